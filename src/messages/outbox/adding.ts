// Rows are added under the lock of their lane, which the database holds until the transaction ends. The position is taken under that
// lock, so within a lane the order of positions is the order of commits, whichever transaction began first. Lanes are locked in the
// order of their numbers, so that two calls of `add` cannot wait for each other.

import type { SqlSession } from '../../clients/sql-database.ts'
import { integer, join, piece, sql } from '../../clients/sql-statement.ts'
import { invalidArgument, OnceError } from '../../core/errors.ts'
import type { OutboxRow } from './envelope.ts'
import { periodsCount } from './schema.sql.ts'
import type { OutboxTables } from './tables.ts'

export interface Adding {
  readonly tables: OutboxTables
  /** PostgreSQL: how long rows go into the same table. */
  readonly periodMs: number
}

export async function addRows(adding: Adding, session: SqlSession, rows: readonly OutboxRow[]): Promise<void> {
  const { database } = adding.tables
  if (database.dialect === 'postgres') return addOnPostgres(adding, session, rows)
  const counts = new Map<number, number>()
  for (const { lane } of rows) counts.set(lane, (counts.get(lane) ?? 0) + 1)
  const lanes = [...counts.keys()].toSorted((a, b) => a - b)
  await takePositions(adding.tables, session, lanes, counts)
  await insert(adding.tables, session, rows, counts)
}

// LOCK TABLE fails outside of a transaction, and takes no more than the next statement does anyway. One statement then waits for the
// lanes, draws a position for each row and inserts all of them.
async function addOnPostgres(
  { tables, periodMs }: Adding,
  session: SqlSession,
  rows: readonly OutboxRow[],
): Promise<void> {
  const { database, names, outbox, lanes } = tables
  await session.query(sql`lock table ${lanes} in row share mode`).catch((error: unknown) => {
    throw isOutside(error) ? outside() : error
  })
  const wanted = [...new Set(rows.map(({ lane }) => lane))]
  const given = rows.map((row) => [
    row.lane,
    row.id,
    row.topic,
    row.key,
    row.type,
    row.payload,
    row.encoding,
    JSON.stringify(row.headers),
  ])
  const added = await session.query(sql`with locked as (
  select l.lane from ${lanes} l where l.lane in (${join(wanted.map(integer), ', ')}) order by l.lane for update
)
insert into ${outbox} (lane, position, period, id, aggregatetype, aggregateid, type, payload, encoding, headers, added_at_ms)
select (e.row->>0)::smallint, nextval(${piece(`'${names.position}'`)}::regclass), ${database.nowMs()} / ${integer(periodMs)} % ${integer(periodsCount)},
  (e.row->>1)::uuid, e.row->>2, e.row->>3, e.row->>4, e.row->>5, e.row->>6, e.row->>7, ${database.nowMs()}
from (select count(*) as lanes from locked) l
cross join json_array_elements(${JSON.stringify(given)}::text::json) with ordinality as e(row, number)
where l.lanes = ${integer(wanted.length)}
order by e.number
returning 'added' as answer`)
  if (added.length !== rows.length) throw lanesMissing(tables, rows.length - added.length)
}

// The counter of a lane is its lock, too: the update holds the row until the transaction ends. On MySQL a savepoint that is gone a
// moment later says that there is no transaction. It is asked before anything is inserted.
async function takePositions(
  { database, lanes }: OutboxTables,
  session: SqlSession,
  wanted: readonly number[],
  counts: ReadonlyMap<number, number>,
): Promise<void> {
  const isMysql = database.dialect === 'mysql'
  if (isMysql) await session.query(sql`savepoint onceonly_outbox`)
  for (const lane of wanted) {
    const count = integer(counts.get(lane)!)
    await session.query(sql`update ${lanes} set position = position + ${count} where lane = ${integer(lane)}`)
  }
  if (!isMysql) return
  await session.query(sql`release savepoint onceonly_outbox`).catch((error: unknown) => {
    throw isOutside(error) ? outside() : error
  })
}

// A statement of this many rows stays below every limit of placeholders.
const rowsPerStatement = 100

async function insert(
  { database, outbox, lanes }: OutboxTables,
  session: SqlSession,
  rows: readonly OutboxRow[],
  counts: ReadonlyMap<number, number>,
): Promise<void> {
  const left = new Map(counts)
  const values = rows.map((row) => {
    // The last row of a lane has the lane's new position, and those before it count down.
    const back = left.get(row.lane)! - 1
    left.set(row.lane, back)
    const position = sql`(select l.position - ${integer(back)} from ${lanes} l where l.lane = ${integer(row.lane)})`
    return sql`(${integer(row.lane)}, ${position}, ${row.id}, ${row.topic}, ${row.key}, ${row.type}, ${row.payload}, ${row.encoding}, ${JSON.stringify(row.headers)}, ${database.nowMs()})`
  })
  for (let start = 0; start < values.length; start += rowsPerStatement) {
    await session.query(sql`insert into ${outbox} (lane, position, id, aggregatetype, aggregateid, type, payload, encoding, headers, added_at_ms)
values ${join(values.slice(start, start + rowsPerStatement), ', ')}`)
  }
}

const notInTransaction = /can only be used in transaction blocks|SAVEPOINT onceonly_outbox does not exist/i

/** The server's own error, perhaps in a wrapper's cause (Drizzle, Prisma). */
function isOutside(error: unknown): boolean {
  let current = error
  for (let depth = 0; depth < 5 && current instanceof Error; depth++) {
    if (notInTransaction.test(current.message)) return true
    current = current.cause
  }
  return false
}

function outside(): OnceError {
  return invalidArgument(
    'outbox.add: expected an open transaction, got a connection outside of one: the event would not commit with what it tells of. Begin a transaction first.',
  )
}

function lanesMissing({ names }: OutboxTables, missing: number): OnceError {
  return new OnceError('SCHEMA_MISSING', {
    message: `${missing} events were not added, as rows of ${names.lanes} are missing. Run outbox.migrate().`,
  })
}

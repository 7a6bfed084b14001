// Finds rows that are not sent. A cursor per lane is enough, as nothing can commit behind it: a later row of the lane waits for the lock,
// and gets a higher position. A cursor over all lanes would lose the rows of a slow transaction.

import { asJson, jsonRow, readWithText, rowWithText } from '../../clients/sql-columns.ts'
import { integer, join, piece, sql } from '../../clients/sql-statement.ts'
import type { SqlStatement } from '../../clients/sql-statement.ts'
import type { HeldShard, RelayRow, RelaySource } from '../relay.ts'
import { lanesOf } from './lanes.ts'
import type { OutboxTables } from './tables.ts'

// One busy lane must not fill every batch while others wait.
const lanesPerBatch = 4

export function readCalls(tables: OutboxTables): Pick<RelaySource, 'read' | 'readDue' | 'heldAmong'> {
  const { database } = tables
  const shards = shardsCount(tables)
  return {
    async read(shard, from, limit) {
      const lanes = lanesOf(shard.shard, await shards())
      const start = Math.max(
        0,
        lanes.findIndex((lane) => lane >= from),
      )
      const turned = [...lanes.slice(start), ...lanes.slice(0, start)]
      const perLane = Math.max(1, Math.ceil(limit / lanesPerBatch))
      const answers = await database.query(
        database.dialect === 'postgres'
          ? onPostgres(tables, shard, turned, perLane, limit)
          : ((await onCounters(tables, shard, turned, perLane, limit)) ?? sql`select '' as answer where 1 = 0`),
      )
      return answers.map(rowIn)
    },
    async heldAmong(ids) {
      if (ids.length === 0) return new Set()
      const id = piece(database.dialect === 'postgres' ? 'id::text' : 'id')
      const given = join(
        ids.map((each) => sql`${each}`),
        ', ',
      )
      return new Set(await database.query(sql`select ${id} as answer from ${tables.held} where id in (${given})`))
    },
    async readDue(shard, limit) {
      const { held } = tables
      const isDue = sql`state = 'waiting' and due_at_ms <= ${database.nowMs()}`
      const answers = await database.query(sql`select ${row(tables, 'h.now_ms', 'h.tries')} from (
  select o.*, ${database.nowMs()} as now_ms from ${held} o where shard = ${integer(shard)} and state = 'waiting' and order_key in (
    select order_key from ${held} where shard = ${integer(shard)} and state in ('waiting', 'parked')
    group by order_key having min(position) = min(case when ${isDue} then position end)
  )
) h order by position limit ${integer(limit)}`)
      return answers.map(rowIn)
    },
  }
}

/** The number is fixed by the first migration. */
export function shardsCount({ database, shards }: OutboxTables): () => Promise<number> {
  let known: number | undefined
  return async () => {
    if (known === undefined) {
      const [answer] = await database.query(sql`select ${jsonRow(database, 'count(*)')} from ${shards}`)
      known = (JSON.parse(answer!) as [number])[0]
    }
    return known
  }
}

// Headers stand in their column as JSON.
function row({ database }: OutboxTables, nowMs: string, tries: string): SqlStatement {
  const numbers = ['h.lane', 'h.position', `${nowMs} - h.added_at_ms`, tries]
  const texts = ['h.id', 'h.encoding', 'h.aggregatetype', 'h.aggregateid'].map((column) => asJson(database, column))
  return rowWithText(database, [...numbers, ...texts, 'h.headers'], 'h.payload')
}

type Members = [
  lane: number,
  position: number,
  ageMs: number,
  tries: number,
  id: string,
  encoding: 'text' | 'base64',
  topic: string,
  key: string | null,
  headers: Record<string, string>,
]

function rowIn(answer: string): RelayRow {
  const [members, payload] = readWithText(answer)
  const [lane, position, ageMs, tries, id, encoding, topic, key, headers] = members as Members
  const body = Buffer.from(payload, encoding === 'base64' ? 'base64' : 'utf8')
  return { lane, position, id, topic, key: key ?? undefined, body, headers, ageMs, tries }
}

/** One descent of the index per lane, in the order of the lanes, until there are enough. */
function onPostgres(
  tables: OutboxTables,
  { cursors }: HeldShard,
  lanes: readonly number[],
  perLane: number,
  limit: number,
): SqlStatement {
  const { database, outbox } = tables
  const given = JSON.stringify(lanes.map((lane) => [lane, cursors.get(lane) ?? 0]))
  return sql`select ${row(tables, 'c.now_ms', '0')} from (
  select cursor, ${database.nowMs()} as now_ms from json_array_elements(${given}::text::json) as given(cursor)
) c cross join lateral (
  select o.* from ${outbox} o
  where o.lane = (c.cursor->>0)::smallint and o.position > (c.cursor->>1)::bigint order by o.position limit ${integer(perLane)}
) h limit ${integer(limit)}`
}

/** The counters of the lanes say where something is new. Undefined when there is nothing. */
async function onCounters(
  tables: OutboxTables,
  { cursors }: HeldShard,
  lanes: readonly number[],
  perLane: number,
  limit: number,
): Promise<SqlStatement | undefined> {
  const { database, outbox, lanes: counters } = tables
  const answers = await database.query(
    sql`select ${jsonRow(database, 'lane, position')} from ${counters} where position > 0 and lane in (${join(lanes.map(integer), ', ')})`,
  )
  const counts = new Map(answers.map((answer) => JSON.parse(answer) as [number, number]))
  const parts: SqlStatement[] = []
  let found = 0
  for (const lane of lanes) {
    const cursor = cursors.get(lane) ?? 0
    const fresh = Math.min((counts.get(lane) ?? 0) - cursor, perLane, limit - found)
    if (fresh <= 0) continue
    found += fresh
    parts.push(sql`select * from (select o.*, ${database.nowMs()} as now_ms from ${outbox} o
where o.lane = ${integer(lane)} and o.position > ${integer(cursor)} order by o.position limit ${integer(fresh)}) p${integer(lane)}`)
  }
  if (parts.length === 0) return undefined
  return sql`select ${row(tables, 'h.now_ms', '0')} from (${join(parts, ' union all ')}) h`
}

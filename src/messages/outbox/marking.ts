// What a relay writes after it has published. The cursors of a shard stand in the row that has its epoch, so one update both checks the
// epoch and marks the rows sent: a relay that has lost the shard writes nothing. Held rows are written in the same transaction.

import { newId } from '../../core/key.ts'
import { integer, join, piece, sql } from '../../clients/sql-statement.ts'
import type { SqlStatement } from '../../clients/sql-statement.ts'
import type { SqlSession } from '../../clients/sql-database.ts'
import type { HeldRow, HeldShard, RelayMark, RelaySource } from '../relay.ts'
import { cursorsText } from './shards.ts'
import type { OutboxTables } from './tables.ts'

type Holding = Pick<HeldShard, 'shard' | 'epoch' | 'cursors'>

export function markCalls(tables: OutboxTables): Pick<RelaySource, 'mark'> {
  return {
    async mark(holding, mark, leaseMs) {
      if (mark.hold.length + mark.again.length + mark.sent.length === 0) {
        return moveCursors(tables, tables.database, holding, mark, leaseMs)
      }
      const transaction = await tables.database.begin({ scope: 'outbox', id: `shard ${holding.shard} ${newId()}` })
      try {
        const moved = await moveCursors(tables, transaction, holding, mark, leaseMs)
        if (moved === 'lost') {
          await transaction.rollback()
          return 'lost'
        }
        await writeHeld(tables, transaction, holding.shard, mark)
      } catch (error) {
        await transaction.rollback()
        throw error
      }
      await transaction.commit()
      return 'done'
    },
  }
}

async function moveCursors(
  { database, shards }: OutboxTables,
  session: SqlSession,
  { shard, epoch, cursors }: Holding,
  mark: RelayMark,
  leaseMs: number,
): Promise<'done' | 'lost'> {
  const text = cursorsText(new Map([...cursors, ...mark.cursors]))
  const own = sql`shard = ${integer(shard)} and epoch = ${integer(epoch)}`
  const update = sql`update ${shards} set cursors = ${text}, lease_until_ms = ${database.nowMs()} + ${integer(leaseMs)} where ${own}`
  if (database.dialect !== 'mysql') {
    const marked = await session.query(sql`${update} returning 'marked' as answer`)
    return marked.length > 0 ? 'done' : 'lost'
  }
  await session.query(update)
  // MySQL does not return what it has updated. Our epoch is there only if the update found it.
  const still = await session.query(sql`select 'marked' as answer from ${shards} where ${own}`)
  return still.length > 0 ? 'done' : 'lost'
}

async function writeHeld(tables: OutboxTables, session: SqlSession, shard: number, mark: RelayMark): Promise<void> {
  const { held } = tables
  if (mark.sent.length > 0) {
    const ids = join(
      mark.sent.map((id) => sql`${id}`),
      ', ',
    )
    await session.query(sql`delete from ${held} where id in (${ids})`)
  }
  for (const again of mark.again) {
    const set = join(
      fateColumns.map((column, index) => sql`${piece(column)} = ${fate(tables, again)[index]!}`),
      ', ',
    )
    await session.query(sql`update ${held} set ${set} where id = ${again.row.id}`)
  }
  // Those that wait behind another are all alike, and go together.
  for (const alike of Map.groupBy(mark.hold, ({ reason, row }) => (reason === undefined ? '' : row.id)).values()) {
    await session.query(hold(tables, shard, alike))
  }
}

const fateColumns = ['state', 'tries', 'due_at_ms', 'failed_at_ms', 'reason']

function fate({ database }: OutboxTables, { state, tries, dueInMs, reason }: HeldRow): readonly SqlStatement[] {
  const nothing = piece(database.dialect === 'postgres' ? 'null::bigint' : 'null')
  return [
    piece(`'${state}'`),
    integer(tries),
    dueInMs === undefined ? nothing : sql`${database.nowMs()} + ${integer(dueInMs)}`,
    reason === undefined ? nothing : database.nowMs(),
    reason === undefined ? piece('null') : sql`${reason}`,
  ]
}

const eventColumns = 'aggregatetype, aggregateid, type, payload, encoding, headers, added_at_ms'

/** Copies rows of the outbox, so that its own rows can be removed while some of them still wait. */
function hold(tables: OutboxTables, shard: number, alike: readonly HeldRow[]): SqlStatement {
  const { database, outbox, held } = tables
  const places = Array.from(
    Map.groupBy(alike, ({ row }) => row.lane),
    ([lane, rows]) => {
      const positions = rows.map(({ row }) => integer(row.position))
      return sql`lane = ${integer(lane)} and position in (${join(positions, ', ')})`
    },
  )
  const orderKey = piece(
    database.dialect === 'postgres' ? 'coalesce(aggregateid, id::text)' : 'coalesce(aggregateid, id)',
  )
  return sql`insert into ${held} (id, shard, lane, position, order_key, ${piece(fateColumns.join(', '))}, ${piece(eventColumns)})
select id, ${integer(shard)}, lane, position, ${orderKey}, ${join(fate(tables, alike[0]!), ', ')}, ${piece(eventColumns)}
from ${outbox} where ${join(places, ' or ')}`
}

// How far behind the relay is, for people and for metrics.

import { jsonRow } from '../../clients/sql-columns.ts'
import { integer, sql } from '../../clients/sql-statement.ts'
import { newId } from '../../core/key.ts'
import { unsentCountedMax } from '../relay.ts'
import type { RelaySource, RelayStatus } from '../relay.ts'
import { allCursors } from './retention.ts'
import type { OutboxTables } from './tables.ts'

export function statusCalls(tables: OutboxTables): Pick<RelaySource, 'status'> {
  const cursors = allCursors(tables)
  return {
    async status() {
      const [unsent, lagMs] =
        tables.database.dialect === 'postgres'
          ? await unsentOnPostgres(tables, await cursors())
          : await unsentByCounters(tables, await cursors())
      return { unsent, lagMs: lagMs ?? undefined, ...(await heldNumbers(tables)), ...(await shardNumbers(tables)) }
    },
  }
}

type Unsent = readonly [count: number, lagMs: number | null]

async function unsentOnPostgres(
  { database, outbox }: OutboxTables,
  cursors: ReadonlyMap<number, number>,
): Promise<Unsent> {
  const lanes = sql`json_array_elements(${JSON.stringify([...cursors])}::text::json) as c(cursor)`
  const isUnsent = sql`o.lane = (c.cursor->>0)::smallint and o.position > (c.cursor->>1)::bigint`
  // The first row of each lane is its oldest, and is found by one descent of the index.
  const counts = sql`select ${jsonRow(database, 'counted.unsent, oldest.lag_ms')}
from (
  select count(*) as unsent from (
    select from ${lanes} cross join lateral (
      select from ${outbox} o where ${isUnsent} order by o.position limit ${integer(unsentCountedMax)}
    ) o limit ${integer(unsentCountedMax)}
  ) found
) counted cross join (
  select ${database.nowMs()} - min(o.added_at_ms) as lag_ms from ${lanes} cross join lateral (
    select o.added_at_ms from ${outbox} o where ${isUnsent} order by o.position limit 1
  ) o
) oldest`
  const transaction = await database.begin({ scope: 'outbox', id: `status ${newId()}` })
  try {
    // The planner does not know which rows are sent, and may take it for cheaper to read a whole table, or a whole lane, once for each of
    // 1,024 lanes. Without a sort only the index has the rows in their order.
    await transaction.query(sql`set local enable_sort = off`)
    const [answer] = await transaction.query(counts)
    return JSON.parse(answer!) as Unsent
  } finally {
    await transaction.rollback()
  }
}

async function unsentByCounters(
  { database, outbox, lanes }: OutboxTables,
  cursors: ReadonlyMap<number, number>,
): Promise<Unsent> {
  const answers = await database.query(
    sql`select ${jsonRow(database, 'lane, position')} from ${lanes} where position > 0`,
  )
  let count = 0
  let lagMs: number | null = null
  for (const answer of answers) {
    const [lane, position] = JSON.parse(answer) as [number, number]
    const cursor = cursors.get(lane) ?? 0
    if (position <= cursor) continue
    count += position - cursor
    const [age] = await database.query(sql`select ${jsonRow(database, 'now_ms - added_at_ms')} from (
  select o.*, ${database.nowMs()} as now_ms from ${outbox} o where o.lane = ${integer(lane)} and o.position > ${integer(cursor)} order by o.position limit 1
) h`)
    if (age !== undefined) lagMs = Math.max(lagMs ?? 0, (JSON.parse(age) as [number])[0])
  }
  return [count, lagMs]
}

type HeldNumbers = Pick<RelayStatus, 'blockedKeys' | 'headOfLineMs' | 'parked' | 'dead' | 'waiting'>

async function heldNumbers({ database, held }: OutboxTables): Promise<HeldNumbers> {
  const answers =
    await database.query(sql`select ${jsonRow(database, 'state, heads, rows_count, now_ms - oldest_ms')} from (
  select h.state, count(distinct case when h.tries > 0 then h.order_key end) as heads, count(*) as rows_count,
    min(case when h.tries > 0 then h.added_at_ms end) as oldest_ms, ${database.nowMs()} as now_ms
  from ${held} h group by h.state
) n`)
  const found = new Map(
    answers.map((answer) => {
      const [state, heads, rows, ageMs] = JSON.parse(answer) as [string, number, number, number | null]
      return [state, { heads, rows, ageMs }]
    }),
  )
  const waiting = found.get('waiting')
  return {
    blockedKeys: waiting?.heads ?? 0,
    headOfLineMs: waiting?.ageMs ?? undefined,
    parked: found.get('parked')?.rows ?? 0,
    dead: found.get('dead')?.rows ?? 0,
    waiting: waiting?.rows ?? 0,
  }
}

async function shardNumbers({ database, shards }: OutboxTables): Promise<Pick<RelayStatus, 'shards' | 'shardsIdle'>> {
  const [answer] =
    await database.query(sql`select ${jsonRow(database, 'count(*), count(case when lease_until_ms <= now_ms then 1 end)')}
from (select s.lease_until_ms, ${database.nowMs()} as now_ms from ${shards} s) n`)
  const [all, shardsIdle] = JSON.parse(answer!) as [number, number]
  return { shards: all, shardsIdle }
}

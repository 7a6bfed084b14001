// Sent rows are kept for a while, for people. What is older goes without row-by-row deletes on PostgreSQL: rows lie in four tables by
// turns, one per period of half the time that they are kept for, and a table whose last row is old enough is emptied as a whole. It is
// left alone while a transaction that has written to it is open, or a row in it is neither sent nor held. On MySQL and SQLite, which
// empty a table only by ending the caller's transactions or not at all, sent rows are deleted in bounded numbers, lane by lane.

import { jsonRow } from '../../clients/sql-columns.ts'
import { integer, piece, sql } from '../../clients/sql-statement.ts'
import { newId } from '../../core/key.ts'
import type { RelaySource } from '../relay.ts'
import { lanesOf } from './lanes.ts'
import { shardsCount } from './reading.ts'
import { periodsCount } from './schema.sql.ts'
import { cursorsIn } from './shards.ts'
import type { OutboxTables } from './tables.ts'

// A delete of this size holds its locks for a few milliseconds. As many as this once in ten seconds remove 5,000 rows per second.
const rowsPerDelete = 500
const deletesPerCall = 100

export function retainCalls(tables: OutboxTables, keepMs: number, periodMs: number): Pick<RelaySource, 'retain'> {
  const cursors = allCursors(tables)
  return {
    retain: async () =>
      tables.database.dialect === 'postgres'
        ? emptyPeriods(tables, keepMs, periodMs, await cursors())
        : deleteSent(tables, keepMs, await cursors()),
  }
}

/** The cursor of every lane. */
export function allCursors(tables: OutboxTables): () => Promise<ReadonlyMap<number, number>> {
  const { database, shards } = tables
  const count = shardsCount(tables)
  return async () => {
    const answers = await database.query(sql`select ${jsonRow(database, 'shard, cursors')} from ${shards}`)
    const found = new Map<number, number>()
    for (const answer of answers) {
      const [shard, text] = JSON.parse(answer) as [number, string]
      const cursors = cursorsIn(text)
      for (const lane of lanesOf(shard, await count())) found.set(lane, cursors.get(lane) ?? 0)
    }
    return found
  }
}

async function emptyPeriods(
  { database, names }: OutboxTables,
  keepMs: number,
  periodMs: number,
  cursors: ReadonlyMap<number, number>,
): Promise<void> {
  const [now] = await database.query(sql`select (${database.nowMs()})::text as answer`)
  for (const period of periodsOver(Number(now), periodMs, keepMs)) {
    const table = piece(names.period(period))
    const [any] = await database.query(sql`select 'yes' as answer from ${table} limit 1`)
    if (any === undefined) continue
    const transaction = await database.begin({ scope: 'outbox', id: `period ${period} ${newId()}` })
    try {
      // A transaction that has written to the table and has not ended holds a lock on it. Nothing waits: the next time will do.
      await transaction.query(sql`set local lock_timeout = '100ms'`)
      await transaction.query(sql`lock table ${table} in access exclusive mode`)
      // To find no row at all the planner may take it for cheaper to read the whole table, which it would do once for each of 1,024 lanes.
      await transaction.query(sql`set local enable_seqscan = off`)
      // A stricter isolation would not see what was committed while we waited for the lock.
      const [unsent] =
        await transaction.query(sql`select 'unsent' as answer from json_array_elements(${JSON.stringify([...cursors])}::text::json) as c(cursor)
where current_setting('transaction_isolation') <> 'read committed' or exists (
  select from ${table} o where o.lane = (c.cursor->>0)::smallint and o.position > (c.cursor->>1)::bigint
) limit 1`)
      if (unsent === undefined) await transaction.query(sql`truncate table ${table}`)
    } catch (error) {
      await transaction.rollback()
      if (String(error).includes('lock timeout')) continue
      throw error
    }
    await transaction.commit()
  }
}

/** The tables that have been written for the last time long enough ago. */
export function periodsOver(nowMs: number, periodMs: number, keepMs: number): readonly number[] {
  const current = Math.floor(nowMs / periodMs)
  return Array.from({ length: periodsCount - 1 }, (_, back) => current - back - 1)
    .filter((period) => nowMs - (period + 1) * periodMs >= keepMs)
    .map((period) => period % periodsCount)
}

async function deleteSent(
  { database, outbox }: OutboxTables,
  keepMs: number,
  cursors: ReadonlyMap<number, number>,
): Promise<void> {
  let deletes = 0
  for (const [lane, cursor] of cursors) {
    if (cursor === 0) continue
    const old = sql`lane = ${integer(lane)} and position <= ${integer(cursor)} and added_at_ms < ${database.nowMs()} - ${integer(keepMs)}`
    for (let deleted = rowsPerDelete; deleted === rowsPerDelete;) {
      const ripe = await database.query(
        sql`select ${jsonRow(database, 'position')} from ${outbox} where ${old} order by position limit ${integer(rowsPerDelete)}`,
      )
      deleted = ripe.length
      if (deleted === 0) break
      const [last] = JSON.parse(ripe.at(-1)!) as [number]
      await database.query(sql`delete from ${outbox} where ${old} and position <= ${integer(last)}`)
      if (++deletes >= deletesPerCall) return
    }
  }
}

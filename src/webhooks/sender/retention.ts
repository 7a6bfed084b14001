// What has waited too long is given up, and what has ended long ago is removed. Every sender does it now and then: the statements of two at
// once find less.

import { integer, sql } from '../../clients/sql-statement.ts'
import type { WebhookTables } from './tables.ts'

export interface WebhookRetention {
  /** A delivery that has not ended by then is given up: its receiver may not remember the id any more. */
  readonly giveUpAfterMs: number
  /** How long events and deliveries are kept after they ended. */
  readonly keepMs: number
}

export async function retain(tables: WebhookTables, { giveUpAfterMs, keepMs }: WebhookRetention): Promise<void> {
  const { database, deliveries, attempts, events } = tables
  const nowMs = database.nowMs()
  await database.query(
    sql`update ${deliveries} set state = 'failed', ended_at_ms = ${nowMs} where ended_at_ms is null and state = 'pending' and since_at_ms <= ${nowMs} - ${integer(giveUpAfterMs)}`,
  )
  const old = sql`ended_at_ms <= ${nowMs} - ${integer(keepMs)}`
  await database.query(sql`delete from ${attempts} where delivery in (select position from ${deliveries} where ${old})`)
  await database.query(sql`delete from ${deliveries} where ${old}`)
  await database.query(
    sql`delete from ${events} where added_at_ms <= ${nowMs} - ${integer(keepMs)} and not exists (select 1 from ${deliveries} d where d.event_id = id)`,
  )
}

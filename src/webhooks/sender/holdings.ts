// Who sends to which endpoint. A sender takes an endpoint by a lease, so the order and the concurrency of an endpoint are kept inside of one
// process. The lease decides when another sender may take it, by the database's clock. Only the epoch, which grows with every take,
// decides who may record what became of an attempt.

import { jsonRow } from '../../clients/sql-columns.ts'
import type { SqlSession } from '../../clients/sql-database.ts'
import { integer, join, piece, sql } from '../../clients/sql-statement.ts'
import type { SqlStatement } from '../../clients/sql-statement.ts'
import { systemRandom } from '../../core/clock.ts'
import type { EndpointOrder } from './endpoints.ts'
import type { Posted } from './posting.ts'
import type { WebhookTables } from './tables.ts'
import type { DeliveryVerdict } from './verdicts.ts'

export interface Holding {
  readonly endpoint: string
  readonly epoch: number
}

export interface DueDelivery {
  readonly position: number
  readonly eventId: string
  readonly topic: string
  /** Attempts of the schedule so far. */
  readonly tries: number
  readonly body: Uint8Array
  readonly headers: Readonly<Record<string, string>>
}

/** An endpoint as it is at this moment, with what is to be sent to it. */
export interface HeldEndpoint {
  readonly url: string
  readonly order: EndpointOrder
  readonly concurrency: number
  /** As they are stored. */
  readonly secrets: string
  readonly nowMs: number
}

export interface HoldingCalls {
  /** Endpoints that have something due and that no sender has, those that were given back first at the beginning. */
  take(limit: number, leaseMs: number): Promise<readonly Holding[]>
  /** Prolongs the lease. Undefined when another sender has the endpoint, or when it is not active any more. */
  extend(holding: Holding, leaseMs: number): Promise<HeldEndpoint | undefined>
  due(
    holding: Holding,
    order: EndpointOrder,
    besides: readonly number[],
    limit: number,
  ): Promise<readonly DueDelivery[]>
  /** `lost` when another sender has the endpoint: nothing is written. */
  record(holding: Holding, attempt: RecordedAttempt): Promise<'done' | 'disabled' | 'lost'>
  give(holding: Holding): Promise<void>
}

export interface RecordedAttempt {
  readonly position: number
  readonly posted: Posted
  readonly verdict: DeliveryVerdict
  /** How long no attempt may have succeeded before the endpoint is disabled. */
  readonly disableAfterMs: number
}

export function holdingCalls(tables: WebhookTables): HoldingCalls {
  const { database, endpoints, deliveries } = tables
  const nowMs = database.nowMs
  return {
    async take(limit, leaseMs) {
      const found = await database.query(sql`select e.id as answer from ${endpoints} e
where e.state = 'active' and e.lease_until_ms <= ${nowMs()} and exists (
  select 1 from ${deliveries} d where d.endpoint_id = e.id and d.state = 'pending' and d.due_at_ms <= ${nowMs()}
    and (e.ordering = 'none' or ${isHead(tables)})
) order by e.lease_until_ms limit ${integer(limit)}`)
      const taken: Holding[] = []
      for (const endpoint of found) {
        const epoch = await takeOne(tables, endpoint, leaseMs)
        if (epoch !== undefined) taken.push({ endpoint, epoch })
      }
      return taken
    },
    async extend(holding, leaseMs) {
      const own = sql`${held(holding)} and state = 'active'`
      await database.query(sql`update ${endpoints} set lease_until_ms = ${nowMs()} + ${integer(leaseMs)} where ${own}`)
      const [found] = await database.query(
        sql`select ${jsonRow(database, 'url, ordering, concurrency, secrets, now_ms')} from (
  select e.*, ${nowMs()} as now_ms from ${endpoints} e where ${own}
) s`,
      )
      if (found === undefined) return undefined
      const [url, order, concurrency, secrets, now] = JSON.parse(found) as [
        string,
        EndpointOrder,
        number,
        string,
        number,
      ]
      return { url, order, concurrency, secrets, nowMs: now }
    },
    due: (holding, order, besides, limit) => readDue(tables, { holding, order, besides, limit }),
    record: (holding, attempt) => record(tables, holding, attempt),
    async give(holding) {
      await database.query(sql`update ${endpoints} set lease_until_ms = ${nowMs()}, owner = '' where ${held(holding)}`)
    },
  }
}

function held({ endpoint, epoch }: Holding): SqlStatement {
  return sql`id = ${endpoint} and epoch = ${integer(epoch)}`
}

async function takeOne(
  { database, endpoints }: WebhookTables,
  endpoint: string,
  leaseMs: number,
): Promise<number | undefined> {
  // Of this take, and not of this process: what is read below is ours only if the update was.
  const owner = systemRandom.uuid()
  const nowMs = database.nowMs()
  await database.query(sql`update ${endpoints} set epoch = epoch + 1, owner = ${owner}, lease_until_ms = ${nowMs} + ${integer(leaseMs)}
where id = ${endpoint} and state = 'active' and lease_until_ms <= ${nowMs}`)
  const [taken] = await database.query(
    sql`select ${jsonRow(database, 'epoch')} from ${endpoints} where id = ${endpoint} and owner = ${owner}`,
  )
  return taken === undefined ? undefined : (JSON.parse(taken) as [number])[0]
}

/** The delivery `d` is the first of its key that has not ended. */
function isHead({ deliveries }: WebhookTables): SqlStatement {
  return sql`not exists (
  select 1 from ${deliveries} b where b.endpoint_id = d.endpoint_id and b.order_key = d.order_key and b.state = 'pending' and b.position < d.position
)`
}

interface DueQuestion {
  readonly holding: Holding
  readonly order: EndpointOrder
  readonly besides: readonly number[]
  readonly limit: number
}

type DueColumns = [position: number, eventId: string, topic: string, tries: number, payload: string, headers: string]

async function readDue(
  tables: WebhookTables,
  { holding, order, besides, limit }: DueQuestion,
): Promise<readonly DueDelivery[]> {
  const { database, deliveries, events } = tables
  const under = besides.length === 0 ? sql`` : sql`and d.position not in (${join(besides.map(integer), ', ')})`
  const inOrder = order === 'none' ? sql`` : sql`and ${isHead(tables)}`
  const columns = `d.position, d.event_id, ${tables.text('v.topic')}, d.tries, v.payload, v.headers`
  const answers = await database.query(sql`select ${jsonRow(database, columns)}
from ${deliveries} d join ${events} v on v.id = d.event_id
where d.endpoint_id = ${holding.endpoint} and d.state = 'pending' and d.due_at_ms <= ${database.nowMs()} ${under} ${inOrder}
order by d.due_at_ms, d.position limit ${integer(limit)}`)
  return answers.map((answer) => {
    const [position, eventId, topic, tries, payload, headers] = JSON.parse(answer) as DueColumns
    const body = Buffer.from(payload, 'base64')
    return { position, eventId, topic, tries, body, headers: JSON.parse(headers) as Record<string, string> }
  })
}

async function record(
  tables: WebhookTables,
  holding: Holding,
  attempt: RecordedAttempt,
): Promise<'done' | 'disabled' | 'lost'> {
  const open = await tables.database.begin({ scope: 'webhooks', id: `${holding.endpoint} ${attempt.position}` })
  try {
    const state = await recordOnEndpoint(tables, open, holding, attempt)
    if (state === undefined) {
      await open.rollback()
      return 'lost'
    }
    await recordOnDelivery(tables, open, attempt)
    await open.commit()
    return state === 'disabled' ? 'disabled' : 'done'
  } catch (error) {
    await open.rollback()
    throw error
  }
}

// One update both checks the epoch and keeps the row until the commit, so a sender that has lost the endpoint writes nothing.
// MySQL assigns from left to right: what is compared is assigned last.
async function recordOnEndpoint(
  { database, endpoints }: WebhookTables,
  session: SqlSession,
  holding: Holding,
  { verdict, disableAfterMs }: RecordedAttempt,
): Promise<string | undefined> {
  const nowMs = database.nowMs()
  const set =
    verdict.is === 'delivered'
      ? sql`failing_since_ms = null`
      : disabling(verdict.is === 'gone' ? 'gone' : 'failing', nowMs, disableAfterMs)
  await session.query(sql`update ${endpoints} set ${set} where ${held(holding)}`)
  const [state] = await session.query(sql`select state as answer from ${endpoints} where ${held(holding)}`)
  return state
}

function disabling(why: 'gone' | 'failing', nowMs: SqlStatement, afterMs: number): SqlStatement {
  const isDue =
    why === 'gone'
      ? sql`state = 'active'`
      : sql`state = 'active' and failing_since_ms <= ${nowMs} - ${integer(afterMs)}`
  return sql`disabled_at_ms = case when ${isDue} then ${nowMs} else disabled_at_ms end,
  disabled_reason = case when ${isDue} then ${piece(`'${why}'`)} else disabled_reason end,
  state = case when ${isDue} then 'disabled' else state end,
  failing_since_ms = coalesce(failing_since_ms, ${nowMs})`
}

async function recordOnDelivery(
  { database, deliveries, attempts }: WebhookTables,
  session: SqlSession,
  { position, posted, verdict }: RecordedAttempt,
): Promise<void> {
  const nowMs = database.nowMs()
  const none = piece(database.dialect === 'postgres' ? 'null::integer' : 'null')
  const status = posted.status === undefined ? none : integer(posted.status)
  const after = 'inMs' in verdict ? sql`due_at_ms = ${nowMs} + ${integer(verdict.inMs)}` : ended(verdict.is, nowMs)
  const own = sql`position = ${integer(position)}`
  await session.query(
    sql`update ${deliveries} set tries = tries + 1, attempts = attempts + 1, last_status = ${status}, ${after} where ${own}`,
  )
  const duration = integer(posted.durationMs)
  await session.query(sql`insert into ${attempts} (delivery, number, at_ms, duration_ms, status, failure, response)
select position, attempts, ${nowMs} - ${duration}, ${duration}, ${status}, ${posted.failure ?? null}, ${posted.response} from ${deliveries} where ${own}`)
}

function ended(is: 'delivered' | 'exhausted', nowMs: SqlStatement): SqlStatement {
  return sql`state = ${piece(is === 'delivered' ? `'delivered'` : `'failed'`)}, ended_at_ms = ${nowMs}`
}

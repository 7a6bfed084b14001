// Deliveries, for people: what was sent where, what came back, and sending it again.

import { jsonRow } from '../../clients/sql-columns.ts'
import { integer, join, sql } from '../../clients/sql-statement.ts'
import type { SqlStatement } from '../../clients/sql-statement.ts'
import { invalidArgument } from '../../core/errors.ts'
import { checkRecordedReason, onRecord } from '../../core/once.ts'
import { aString, checkGiven, oneOf, optional, positiveInteger } from '../../core/options.ts'
import type { Rule } from '../../core/options.ts'
import type { Store } from '../../core/store.ts'
import type { WebhookTables } from './tables.ts'

/** `failed`: every attempt of the schedule failed, it waited too long, or its endpoint was removed. */
export type DeliveryState = 'pending' | 'delivered' | 'failed'

/** One event for one endpoint. */
export interface WebhookDelivery {
  /** The id of the event: `webhook-id` in every attempt. */
  readonly id: string
  readonly endpoint: string
  readonly topic: string
  readonly type: string
  readonly state: DeliveryState
  /** How often it was sent. An attempt of a process that died is not counted. */
  readonly attempts: number
  /** The status of the last attempt. Undefined when there was no answer. */
  readonly status: number | undefined
  readonly addedAtMs: number
  /** When it is tried next. Only while it is pending. */
  readonly dueAtMs: number | undefined
  readonly endedAtMs: number | undefined
  /** Deliveries are listed in this order. */
  readonly position: number
}

export interface WebhookAttempt {
  readonly number: number
  readonly atMs: number
  readonly durationMs: number
  readonly status: number | undefined
  /** Why there was no answer. */
  readonly failure: string | undefined
  /** The first 1,024 bytes of the answer, as text. */
  readonly response: string
}

/** Which deliveries. All that are given must hold. */
export interface DeliveryFilter {
  /** The id of the event. */
  readonly id?: string
  readonly endpoint?: string
  readonly topic?: string
  readonly type?: string
  readonly state?: DeliveryState
  /** Of events that were added from then on, and before then. */
  readonly fromMs?: number
  readonly untilMs?: number
  /** The delivery with this position and all before it are passed over. */
  readonly after?: number
  /** 100 unless given, the oldest first. */
  readonly limit?: number
}

export interface DeliveryCalls {
  list(filter?: DeliveryFilter): Promise<readonly WebhookDelivery[]>
  /** How many there are, counted up to `limit`. */
  count(filter?: DeliveryFilter): Promise<number>
  /** What became of each attempt, and the body that is sent. */
  attempts(id: string, endpoint: string): Promise<readonly WebhookAttempt[]>
  body(id: string): Promise<Uint8Array | undefined>
  /**
   * Sends them again, whatever became of them, with their ids and a schedule of their own. Without an id or a state only those that failed.
   * Returns how many. With a reason it is audited.
   */
  replay(filter: DeliveryFilter, reason?: string): Promise<number>
}

const momentRule: Rule = (value) =>
  Number.isSafeInteger(value) && (value as number) >= 0 ? undefined : 'milliseconds since 1970'

const filterRules = {
  id: optional(aString),
  endpoint: optional(aString),
  topic: optional(aString),
  type: optional(aString),
  state: optional(oneOf('pending', 'delivered', 'failed')),
  fromMs: optional(momentRule),
  untilMs: optional(momentRule),
  after: optional(positiveInteger),
  limit: optional(positiveInteger),
}

/** A screen or two. A person who wants more says so. */
const limitUsual = 100

/** `store` is where reasons are audited. `woken` is called when something is due. */
export function deliveryCalls(tables: WebhookTables, store: Store, woken: () => void): DeliveryCalls {
  const { database, deliveries, events } = tables
  const list = async (filter: DeliveryFilter): Promise<readonly WebhookDelivery[]> => {
    const columns = `d.event_id, d.endpoint_id, ${tables.text('v.topic')}, v.type, d.state, d.attempts, d.last_status, v.added_at_ms, d.due_at_ms, d.ended_at_ms, d.position`
    const answers =
      await database.query(sql`select ${jsonRow(database, columns)} from ${deliveries} d join ${events} v on v.id = d.event_id
where ${wanted(tables, filter)} order by d.position limit ${integer(filter.limit ?? limitUsual)}`)
    return answers.map(deliveryIn)
  }
  // What is under way is recorded as it ends: the fence is the endpoint's.
  const again = async (positions: readonly number[]): Promise<void> => {
    const nowMs = database.nowMs()
    await database.query(sql`update ${deliveries} set state = 'pending', tries = 0, since_at_ms = ${nowMs}, due_at_ms = ${nowMs}, ended_at_ms = null
where position in (${join(positions.map(integer), ', ')})`)
  }
  return {
    async list(filter = {}) {
      checkGiven('webhooks.deliveries.list', filter, filterRules)
      return list(filter)
    },
    async count(filter = {}) {
      checkGiven('webhooks.deliveries.count', filter, filterRules)
      const [found] = await database.query(sql`select ${jsonRow(database, 'count(*)')} from (
select d.position from ${deliveries} d join ${events} v on v.id = d.event_id
where ${wanted(tables, filter)} limit ${integer(filter.limit ?? limitUsual)}) counted`)
      return (JSON.parse(found!) as [number])[0]
    },
    attempts: (id, endpoint) => readAttempts(tables, id, endpoint),
    async body(id) {
      const [found] = await database.query(sql`select payload as answer from ${events} where id = ${id}`)
      return found === undefined ? undefined : Buffer.from(found, 'base64')
    },
    async replay(filter, reason) {
      checkGiven('webhooks.deliveries.replay', filter, filterRules)
      if (Object.keys(filter).every((name) => name === 'limit' || name === 'after')) {
        throw invalidArgument(
          'webhooks.deliveries.replay: which? Give id, endpoint, topic, type, state, fromMs or untilMs',
        )
      }
      if (reason !== undefined) checkRecordedReason('webhooks.deliveries.replay', reason)
      const found = await list({ ...(filter.id === undefined && { state: 'failed' }), ...filter })
      if (found.length === 0) return 0
      if (reason === undefined) await again(found.map(({ position }) => position))
      else {
        for (const { topic, id, position } of found) {
          await onRecord(store, { scope: topic, id }, { what: 'replay', reason }, async () => {
            await again([position])
            return true
          })
        }
      }
      woken()
      return found.length
    },
  }
}

function wanted({ bytes }: WebhookTables, filter: DeliveryFilter): SqlStatement {
  const { id, endpoint, topic, type, state, fromMs, untilMs, after } = filter
  const conditions = [
    sql`1 = 1`,
    ...(id === undefined ? [] : [sql`d.event_id = ${id}`]),
    ...(endpoint === undefined ? [] : [sql`d.endpoint_id = ${endpoint}`]),
    ...(topic === undefined ? [] : [sql`v.topic = ${bytes(topic)}`]),
    ...(type === undefined ? [] : [sql`v.type = ${type}`]),
    ...(state === undefined ? [] : [sql`d.state = ${state}`]),
    ...(fromMs === undefined ? [] : [sql`v.added_at_ms >= ${integer(fromMs)}`]),
    ...(untilMs === undefined ? [] : [sql`v.added_at_ms < ${integer(untilMs)}`]),
    ...(after === undefined ? [] : [sql`d.position > ${integer(after)}`]),
  ]
  return join(conditions, ' and ')
}

async function readAttempts(
  { database, deliveries, attempts }: WebhookTables,
  id: string,
  endpoint: string,
): Promise<readonly WebhookAttempt[]> {
  const columns = 'a.number, a.at_ms, a.duration_ms, a.status, a.failure, a.response'
  const answers =
    await database.query(sql`select ${jsonRow(database, columns)} from ${attempts} a join ${deliveries} d on d.position = a.delivery
where d.event_id = ${id} and d.endpoint_id = ${endpoint} order by a.number`)
  return answers.map((answer) => {
    const [number, atMs, durationMs, status, failure, response] = JSON.parse(answer) as AttemptColumns
    return { number, atMs, durationMs, status: status ?? undefined, failure: failure ?? undefined, response }
  })
}

type AttemptColumns = [number, number, number, status: number | null, failure: string | null, response: string]

type Columns = [
  ...[id: string, endpoint: string, topic: string, type: string, state: DeliveryState, attempts: number],
  ...[status: number | null, addedAtMs: number, dueAtMs: number, endedAtMs: number | null, position: number],
]

function deliveryIn(answer: string): WebhookDelivery {
  const [id, endpoint, topic, type, state, attempts, status, addedAtMs, dueAtMs, endedAtMs, position] = JSON.parse(
    answer,
  ) as Columns
  return {
    id,
    endpoint,
    topic,
    type,
    state,
    attempts,
    status: status ?? undefined,
    addedAtMs,
    dueAtMs: state === 'pending' ? dueAtMs : undefined,
    endedAtMs: endedAtMs ?? undefined,
    position,
  }
}

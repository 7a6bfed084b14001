// The webhook sender: events of the outbox, delivered to the endpoints of customers at least once each, with one id for all attempts.
//
// A relay gives the rows of the outbox to `publisher`, which makes a delivery per event and endpoint (sender/fan-out.ts). Senders on any number
// of machines take endpoints by lease and epoch (sender/holdings.ts), send what is due (sender/worker.ts, attempts.ts, posting.ts) and record each
// attempt under the epoch. An attempt whose process died before it was recorded is made again: the receiver knows the event by its id.
//
// What a customer's URL can reach is decided where a connection is opened (sender/guard.ts, addresses.ts).

import { webhookScheduleMs } from '../core/backoff.ts'
import { systemClock, systemRandom } from '../core/clock.ts'
import type { Clock, Random } from '../core/clock.ts'
import { invalidArgument } from '../core/errors.ts'
import {
  checkOptions,
  nonNegativeMs,
  oneOf,
  optional,
  positiveInteger,
  positiveMs,
  withMethods,
} from '../core/options.ts'
import type { Rule } from '../core/options.ts'
import type { Codec } from '../core/outcome.ts'
import type { Store } from '../core/store.ts'
import { bounded } from '../core/timed-call.ts'
import type { Publisher } from '../messages/broker.ts'
import { addressGuard } from './sender/addresses.ts'
import type { SendingContext } from './sender/attempts.ts'
import { deliveryCalls } from './sender/deliveries.ts'
import type { DeliveryCalls } from './sender/deliveries.ts'
import { endpointCalls } from './sender/endpoints.ts'
import type { EndpointCalls } from './sender/endpoints.ts'
import { fanOut } from './sender/fan-out.ts'
import { guardedAgent } from './sender/guard.ts'
import { holdingCalls } from './sender/holdings.ts'
import type { HoldingCalls } from './sender/holdings.ts'
import { retain } from './sender/retention.ts'
import { webhookTables } from './sender/tables.ts'
import { sendingWorker, sendOnce } from './sender/worker.ts'
import type { SendingWorker, WebhookRun } from './sender/worker.ts'

export type {
  DeliveryCalls,
  DeliveryFilter,
  DeliveryState,
  WebhookAttempt,
  WebhookDelivery,
} from './sender/deliveries.ts'
export type {
  EndpointCalls,
  EndpointFilter,
  EndpointOrder,
  EndpointSecret,
  NewWebhookEndpoint,
  WebhookEndpoint,
  WebhookEndpointChange,
} from './sender/endpoints.ts'
export type { WebhookRun } from './sender/worker.ts'

export interface WebhookSenderOptions {
  /** A store on PostgreSQL, MySQL, MariaDB or SQLite: that of the outbox. The tables of the sender lie beside its own. */
  readonly store: Store
  /** 'required' refuses endpoints whose URL is not https. 'optional' unless given. */
  readonly https?: 'required' | 'optional'
  /** Addresses, ranges (`10.1.0.0/16`) and names of hosts that webhooks may be sent to although they are not public. */
  readonly allow?: readonly string[]
  /** The pause before each attempt. Ten attempts within 75 h 35 min unless given, each pause a tenth shorter or longer. */
  readonly scheduleMs?: readonly number[]
  /** How long an attempt may take. 20 s unless given. */
  readonly timeoutMs?: number
  /** How much of an answer is read before the connection is closed. 64 KiB unless given. The first 1,024 bytes are kept. */
  readonly responseBytesMax?: number
  /** An endpoint of which every attempt has failed for this long is disabled. 5 days unless given. */
  readonly disableAfterMs?: number
  /** What has not been delivered by then is given up, for example while its endpoint was disabled. 4 days unless given. */
  readonly giveUpAfterMs?: number
  /** How long deliveries and attempts are kept after they ended. 30 days unless given. */
  readonly keepMs?: number
  /** How long a sender may be silent before another one takes its endpoints. 60 s unless given, and at least twice `timeoutMs`. */
  readonly leaseMs?: number
  /** How many endpoints this process sends to at once. 16 unless given. */
  readonly endpointsMax?: number
  /** Seals the secrets of endpoints in the database. */
  readonly codec?: Codec
  readonly clock?: Clock
  readonly random?: Random
}

export interface WebhookSender {
  /** For a relay: makes the deliveries of an event. */
  readonly publisher: Publisher
  readonly endpoints: EndpointCalls
  readonly deliveries: DeliveryCalls
  /** Sends until `stop`. */
  start(): void
  /** Sends nothing more, records what is under way, and gives the endpoints back. */
  stop(): Promise<void>
  /** Sends what is due, and ends. For tests and for cron. */
  runOnce(): Promise<WebhookRun>
  /** Creates the tables. Safe to run from several processes. */
  migrate(): Promise<void>
  /** The same as SQL, for migrations of your own. */
  schema(): string
}

const dayMs = 86_400_000

const scheduleRule: Rule = (value) =>
  Array.isArray(value) && value.length > 0 && value.every((each) => nonNegativeMs(each) === undefined)
    ? undefined
    : 'an array of milliseconds, one for each attempt'

const allowRule: Rule = (value) =>
  Array.isArray(value) && value.every((each) => typeof each === 'string') ? undefined : 'an array of strings'

/**
 * Sends the events of an outbox as webhooks: signed as Standard Webhooks, at least once to each endpoint, with the same id in every attempt.
 *
 * @example
 * ```ts
 * import { createOutbox, createRelay } from 'onceonly/outbox'
 * import { sqliteStore } from 'onceonly/sqlite'
 * import { createWebhookSender } from 'onceonly/webhooks'
 *
 * const store = sqliteStore({ path: 'shop.db' })
 * const webhooks = createWebhookSender({ store, https: 'required' })
 * const relay = createRelay({ outbox: createOutbox({ store, source: 'shop' }), publisher: webhooks.publisher })
 * relay.start()
 * webhooks.start()
 * ```
 */
export function createWebhookSender(options: WebhookSenderOptions): WebhookSender {
  checkOptions('createWebhookSender', options, {
    store: withMethods('claim'),
    https: optional(oneOf('required', 'optional')),
    allow: optional(allowRule),
    scheduleMs: optional(scheduleRule),
    timeoutMs: optional(positiveMs),
    responseBytesMax: optional(positiveInteger),
    disableAfterMs: optional(positiveMs),
    giveUpAfterMs: optional(positiveMs),
    keepMs: optional(positiveMs),
    leaseMs: optional(positiveMs),
    endpointsMax: optional(positiveInteger),
    codec: optional(withMethods('encode', 'decode')),
    clock: optional(withMethods('now', 'elapsed', 'schedule')),
    random: optional(withMethods('uuid', 'fraction')),
  })
  const { store, scheduleMs = webhookScheduleMs, keepMs = 30 * dayMs, giveUpAfterMs = 4 * dayMs } = options
  const guard = addressGuard(options.allow)
  const tables = webhookTables(store)
  const contextOf = (): SendingContext =>
    sendingContext(options, holdingCalls(tables), guardedAgent({ guard, connectMs: timeoutOf(options) }))
  checkLease(options)
  let working: { readonly worker: SendingWorker; readonly context: SendingContext } | undefined
  const wake = (): void => working?.worker.wake()
  const { codec } = options
  return {
    publisher: fanOut(tables, scheduleMs[0]!, wake),
    endpoints: endpointCalls({ tables, store, guard, httpsOnly: options.https === 'required', codec }),
    deliveries: deliveryCalls(tables, store, wake),
    start() {
      if (working) return
      const context = contextOf()
      working = { context, worker: sendingWorker(context, () => retain(tables, { keepMs, giveUpAfterMs })) }
    },
    async stop() {
      const ending = working
      working = undefined
      await ending?.worker.stop()
      await ending?.context.agent.close()
    },
    async runOnce() {
      if (working) throw invalidArgument('webhooks.runOnce: the sender has been started, and does this by itself')
      const context = contextOf()
      try {
        await retain(tables, { keepMs, giveUpAfterMs })
        return await sendOnce(context)
      } finally {
        await context.agent.close()
      }
    },
    migrate: () => tables.database.migrate(tables.schema),
    schema: () => `${tables.schema.join(';\n')};\n`,
  }
}

const timeoutOf = ({ timeoutMs = 20_000 }: WebhookSenderOptions): number => timeoutMs
const leaseOf = ({ leaseMs = 60_000 }: WebhookSenderOptions): number => leaseMs

// What is sent at the beginning of a lease must be recorded before it ends.
function checkLease(options: WebhookSenderOptions): void {
  const [leaseMs, timeoutMs] = [leaseOf(options), timeoutOf(options)]
  if (leaseMs >= 2 * timeoutMs) return
  throw invalidArgument(
    `createWebhookSender: expected leaseMs to be at least twice timeoutMs (${timeoutMs}), got ${leaseMs}`,
  )
}

function sendingContext(
  options: WebhookSenderOptions,
  calls: HoldingCalls,
  agent: SendingContext['agent'],
): SendingContext {
  const { clock = systemClock, random = systemRandom } = options
  const leaseMs = leaseOf(options)
  return {
    calls: timedCalls(calls, clock, leaseMs),
    agent,
    limits: { timeoutMs: timeoutOf(options), responseBytesMax: options.responseBytesMax ?? 65_536 },
    scheduleMs: options.scheduleMs ?? webhookScheduleMs,
    disableAfterMs: options.disableAfterMs ?? 5 * dayMs,
    leaseMs,
    endpointsMax: options.endpointsMax ?? 16,
    codec: options.codec,
    clock,
    random,
  }
}

/** A call that takes longer than the lease is given up: the endpoint may be another sender's by then, and what it still does has an old epoch. */
function timedCalls(calls: HoldingCalls, clock: Clock, timeoutMs: number): HoldingCalls {
  const timed = { clock, storeName: 'webhooks', timeoutMs }
  return {
    take: (...given) => bounded(timed, () => calls.take(...given)),
    extend: (...given) => bounded(timed, () => calls.extend(...given)),
    due: (...given) => bounded(timed, () => calls.due(...given)),
    record: (...given) => bounded(timed, () => calls.record(...given)),
    give: (...given) => bounded(timed, () => calls.give(...given)),
  }
}

/** What a person can do with webhooks. */
export type WebhooksByHand = Pick<WebhookSender, 'migrate' | 'endpoints' | 'deliveries'>

/**
 * The webhooks of a store, for tools: endpoints, deliveries and their attempts. It sends nothing.
 *
 * @example
 * import { sqliteStore } from 'onceonly/sqlite'
 * import { webhooksByHand } from 'onceonly/webhooks'
 *
 * const failed = await webhooksByHand(sqliteStore({ path: 'shop.db' })).deliveries.list({ state: 'failed' })
 */
export function webhooksByHand(store: Store): WebhooksByHand {
  return createWebhookSender({ store })
}

// NATS JetStream: a consumer for an inbox and the publisher of a relay, on @nats-io/jetstream.
//
// What it cannot promise: JetStream delivers at least once. It drops a message that is published again within its duplicate window
// (two minutes unless set), and not after it: `msgID` is a help, and the inbox is the guarantee. After a crash of a consumer later
// messages come first, and what it had in hand comes when `ack_wait` is over: for order by key set `max_ack_pending` to 1.
//
// How it keeps the invariants, and what that costs:
// - a message is acknowledged after the inbox has committed, and the acknowledgement is confirmed by the server: one round trip more.
// - while a message is in hand the server is told so at a third of `ack_wait`. A process that stands still for longer loses the message
//   to another consumer, and both may handle it: the inbox lets one of them through.
// - a message that failed goes back with a delay when it has no key and `max_deliver` is -1. Otherwise it is tried again here.
// - after `max_deliver` JetStream leaves a message behind in silence. A consumer that would do so before the inbox has parked it is
//   refused.

import { systemClock, systemRandom } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import {
  aFunction,
  aString,
  checkOptions,
  optional,
  positiveInteger,
  positiveMs,
  withMethods,
} from '../core/options.ts'
import type { NatsHeaders, NatsJetStream, NatsPullConsumer } from '../clients/nats.ts'
import type { BatchHandler, Consuming, MessageHandler, Outgoing, Publisher, Receiver } from './broker.ts'
import { startConsumer } from './nats/consumer.ts'
import type { JetStreamMessage } from './nats/message.ts'
import { createPublisher } from './nats/publisher.ts'
import { together } from './together.ts'

export type { NatsHeaders, NatsJetStream, NatsMessage, NatsPullConsumer } from '../clients/nats.ts'
export type { Consuming, Message, Outgoing, Publisher, Receiver } from './broker.ts'
export type { JetStreamMessage } from './nats/message.ts'

export interface NatsConsumerOptions<Tx> {
  /** `await jetstream(connection).consumers.get(stream, name)`. The connection stays yours to close. */
  readonly consumer: NatsPullConsumer
  readonly inbox: Receiver<Tx>
  /** Messages that this consumer has in hand at once, at most. Default 10. */
  readonly inFlight?: number
  /** How long an acknowledgement may stay unconfirmed. Default 10 s. */
  readonly timeoutMs?: number
  readonly clock?: Clock
}

export interface NatsPublisherOptions<Headers extends NatsHeaders> {
  /** `jetstream(connection)`. The connection stays yours to close. */
  readonly jetstream: NatsJetStream<NoInfer<Headers>>
  /** `headers` of @nats-io/transport-node. */
  readonly headers: () => Headers
  /** The stream that must take the messages. A message that another one would take is refused. */
  readonly stream?: string
  /** Default: the topic of the message. */
  readonly subjectOf?: (message: Outgoing) => string
  /** How long a message may stay unacknowledged. Default 10 s. */
  readonly timeoutMs?: number
}

const consumerRules = {
  consumer: withMethods('fetch', 'info'),
  inbox: withMethods('deliver', 'deliverBatch'),
  inFlight: optional(positiveInteger),
  timeoutMs: optional(positiveMs),
  clock: optional(withMethods('now', 'elapsed', 'schedule')),
}

const publisherRules = {
  jetstream: withMethods('publish'),
  headers: aFunction,
  stream: optional(aString),
  subjectOf: optional(aFunction),
  timeoutMs: optional(positiveMs),
}

/**
 * Takes messages from a pull consumer of JetStream and gives each to the inbox, up to `inFlight` at once.
 *
 * @example
 * import { jetstream } from '@nats-io/jetstream'
 * import { connect } from '@nats-io/transport-node'
 * import { natsConsumer, type Receiver } from 'onceonly/nats'
 *
 * declare const inbox: Receiver<{ query(sql: string, values: unknown[]): Promise<unknown> }>
 * const connection = await connect({ servers: 'localhost:4222', maxReconnectAttempts: -1 })
 * const consumer = await jetstream(connection).consumers.get('orders', 'shipping')
 * const consuming = natsConsumer({ consumer, inbox }, async (tx, message) => {
 *   await tx.query('insert into shipments (order_id) values ($1)', [message.key])
 * })
 * process.on('SIGTERM', () => void consuming.stop())
 * await consuming.ended
 */
export function natsConsumer<Tx>(
  options: NatsConsumerOptions<Tx>,
  handler: MessageHandler<Tx, JetStreamMessage>,
): Consuming {
  checkOptions('natsConsumer', options, consumerRules)
  checkOptions('natsConsumer', { handler }, { handler: aFunction })
  const { consumer, inbox, inFlight = 10, timeoutMs = 10_000, clock = systemClock } = options
  const handle = handler as MessageHandler<Tx>
  return startConsumer({ consumer, inbox, handler: handle, inFlight, timeoutMs, clock, random: systemRandom })
}

/**
 * Takes messages from a pull consumer of JetStream and gives what is in hand at once, up to `inFlight` messages, to the inbox as one batch,
 * with one transaction. A batch has one message of each key.
 *
 * @example
 * import { jetstream } from '@nats-io/jetstream'
 * import { connect } from '@nats-io/transport-node'
 * import { natsBatchConsumer, type Receiver } from 'onceonly/nats'
 *
 * declare const inbox: Receiver<{ query(sql: string, values: unknown[]): Promise<unknown> }>
 * const connection = await connect({ servers: 'localhost:4222', maxReconnectAttempts: -1 })
 * const consumer = await jetstream(connection).consumers.get('orders', 'shipping')
 * const consuming = natsBatchConsumer({ consumer, inbox, inFlight: 100 }, async (tx, fresh) => {
 *   await tx.query('insert into shipments (order_id) select unnest($1::text[])', [fresh.map(({ key }) => key)])
 * })
 */
export function natsBatchConsumer<Tx>(
  options: NatsConsumerOptions<Tx>,
  handler: BatchHandler<Tx, JetStreamMessage>,
): Consuming {
  checkOptions('natsBatchConsumer', options, consumerRules)
  checkOptions('natsBatchConsumer', { handler }, { handler: aFunction })
  const inbox = together(options.inbox, handler as BatchHandler<Tx>, options.inFlight ?? 10)
  return natsConsumer({ ...options, inbox }, () => undefined)
}

/**
 * Publishes what a relay has to JetStream, and waits until a stream has acknowledged each message.
 *
 * @example
 * import { jetstream } from '@nats-io/jetstream'
 * import { connect, headers } from '@nats-io/transport-node'
 * import { natsPublisher } from 'onceonly/nats'
 *
 * const connection = await connect({ servers: 'localhost:4222', maxReconnectAttempts: -1 })
 * const publisher = natsPublisher({ jetstream: jetstream(connection), headers, stream: 'orders' })
 */
export function natsPublisher<Headers extends NatsHeaders>(options: NatsPublisherOptions<Headers>): Publisher {
  checkOptions('natsPublisher', options, publisherRules)
  const { jetstream, headers, stream, subjectOf = ({ topic }) => topic, timeoutMs = 10_000 } = options
  return createPublisher({ jetstream, headers, stream, subjectOf, timeoutMs })
}

// RabbitMQ: a consumer for an inbox and the publisher of a relay, on amqplib.
//
// What it cannot promise: RabbitMQ delivers at least once, and a message that went back to its queue may come after later ones. Several
// consumers of one queue share its messages, whatever their key: for order by key have one (`x-single-active-consumer`).
//
// How it keeps the invariants, and what that costs:
// - a message is acknowledged after the inbox has committed. An acknowledgement that is lost costs a second delivery, and the inbox
//   refuses the second effect.
// - `prefetch` bounds what is in memory and what is handled.
// - a message that failed keeps its place and is tried again here, before later ones of its key. To requeue it would count against the
//   delivery limit of its queue, 20 unless set: a database that is down for seconds would use it up, and RabbitMQ would drop the message.
// - publishing waits for confirms. RabbitMQ also confirms a message that no queue takes: it is published as mandatory, comes back,
//   and counts as failed.

import { systemClock, systemRandom } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import { aFunction, aString, checkOptions, optional, positiveMs, withMethods } from '../core/options.ts'
import type { Rule } from '../core/options.ts'
import type { AmqpConnection } from '../clients/rabbitmq.ts'
import type { BatchHandler, Consuming, MessageHandler, Outgoing, Publisher, Receiver } from './broker.ts'
import { startConsumer } from './rabbitmq/consumer.ts'
import type { RabbitmqMessage } from './rabbitmq/message.ts'
import { createPublisher } from './rabbitmq/publisher.ts'
import { together } from './together.ts'

export type { AmqpConnection } from '../clients/rabbitmq.ts'
export type { Consuming, Message, Outgoing, Publisher, Receiver } from './broker.ts'
export type { RabbitmqMessage } from './rabbitmq/message.ts'

export interface RabbitmqConsumerOptions<Tx> {
  /** Makes a connection. Called again whenever one has ended, so it is also the place to declare queues. The consumer closes it. */
  readonly connect: () => Promise<AmqpConnection>
  readonly queue: string
  readonly inbox: Receiver<Tx>
  /** Messages that this consumer has at once, at most. Default 10. */
  readonly prefetch?: number
  readonly clock?: Clock
}

export interface RabbitmqPublisherOptions {
  /** Makes a connection. Called again whenever one has ended. The publisher closes it. */
  readonly connect: () => Promise<AmqpConnection>
  /** Default: the nameless exchange, which takes a routing key for the name of a queue. */
  readonly exchange?: string
  /** Default: the topic of the message. */
  readonly routingKeyOf?: (message: Outgoing) => string
  /** How long a message may stay unconfirmed. Default 30 s. */
  readonly timeoutMs?: number
  readonly clock?: Clock
}

/** AMQP has 16 bits for it, and its 0 is "no limit". */
const prefetchRule: Rule = (value) =>
  Number.isSafeInteger(value) && (value as number) >= 1 && (value as number) <= 65_535
    ? undefined
    : 'an integer from 1 to 65535'

const clockRule = optional(withMethods('now', 'elapsed', 'schedule'))

const consumerRules = {
  connect: aFunction,
  queue: aString,
  inbox: withMethods('deliver', 'deliverBatch'),
  prefetch: optional(prefetchRule),
  clock: clockRule,
}

const publisherRules = {
  connect: aFunction,
  exchange: optional(aString),
  routingKeyOf: optional(aFunction),
  timeoutMs: optional(positiveMs),
  clock: clockRule,
}

/**
 * Consumes a queue and gives each message to the inbox, up to `prefetch` at once. Connects again whenever the connection ends.
 *
 * @example
 * import { connect } from 'amqplib'
 * import { rabbitmqConsumer, type Receiver } from 'onceonly/rabbitmq'
 *
 * declare const inbox: Receiver<{ query(sql: string, values: unknown[]): Promise<unknown> }>
 * const consuming = rabbitmqConsumer(
 *   { connect: () => connect('amqp://localhost'), queue: 'orders', inbox },
 *   async (tx, message) => {
 *     await tx.query('insert into shipments (order_id) values ($1)', [message.key])
 *   },
 * )
 * process.on('SIGTERM', () => void consuming.stop())
 * await consuming.ended
 */
export function rabbitmqConsumer<Tx>(
  options: RabbitmqConsumerOptions<Tx>,
  handler: MessageHandler<Tx, RabbitmqMessage>,
): Consuming {
  checkOptions('rabbitmqConsumer', options, consumerRules)
  checkOptions('rabbitmqConsumer', { handler }, { handler: aFunction })
  const { connect, queue, inbox, prefetch = 10, clock = systemClock } = options
  const handle = handler as MessageHandler<Tx>
  return startConsumer({ connect, queue, inbox, handler: handle, prefetch, clock, random: systemRandom })
}

/**
 * Consumes a queue and gives what is in hand at once, up to `prefetch` messages, to the inbox as one batch, with one transaction. A batch has
 * one message of each key.
 *
 * @example
 * import { connect } from 'amqplib'
 * import { rabbitmqBatchConsumer, type Receiver } from 'onceonly/rabbitmq'
 *
 * declare const inbox: Receiver<{ query(sql: string, values: unknown[]): Promise<unknown> }>
 * const options = { connect: () => connect('amqp://localhost'), queue: 'orders', inbox, prefetch: 100 }
 * const consuming = rabbitmqBatchConsumer(options, async (tx, fresh) => {
 *   await tx.query('insert into shipments (order_id) select unnest($1::text[])', [fresh.map(({ key }) => key)])
 * })
 */
export function rabbitmqBatchConsumer<Tx>(
  options: RabbitmqConsumerOptions<Tx>,
  handler: BatchHandler<Tx, RabbitmqMessage>,
): Consuming {
  checkOptions('rabbitmqBatchConsumer', options, consumerRules)
  checkOptions('rabbitmqBatchConsumer', { handler }, { handler: aFunction })
  const inbox = together(options.inbox, handler as BatchHandler<Tx>, options.prefetch ?? 10)
  return rabbitmqConsumer({ ...options, inbox }, () => undefined)
}

/**
 * Publishes what a relay has, with confirms, to one exchange. A message that no queue takes is a failure.
 *
 * @example
 * import { connect } from 'amqplib'
 * import { rabbitmqPublisher } from 'onceonly/rabbitmq'
 *
 * const publisher = rabbitmqPublisher({ connect: () => connect('amqp://localhost'), exchange: 'events' })
 */
export function rabbitmqPublisher(options: RabbitmqPublisherOptions): Publisher {
  checkOptions('rabbitmqPublisher', options, publisherRules)
  const {
    connect,
    exchange = '',
    routingKeyOf = ({ topic }) => topic,
    timeoutMs = 30_000,
    clock = systemClock,
  } = options
  return createPublisher({ connect, exchange, routingKeyOf, timeoutMs, clock })
}

// Redis Streams: a consumer for an inbox, and the publisher of a relay, on node-redis or ioredis.
//
// What it cannot promise: what Redis loses. An entry that XADD confirmed is gone after a power cut unless the append-only file is written
// with every command (appendfsync always), and after a failover to a replica that was behind. A stream that is trimmed loses entries that
// nobody has read.
//
// How it keeps the invariants, and what that costs:
// - it asks again and again instead of blocking: XREADGROUP with BLOCK would keep the client's connection from every other caller.
// - an entry in hand is claimed anew by its own consumer (XCLAIM … JUSTID) at a third of claimAfterMs, so that no other takes it over.
// - a failed entry stays in hand until its next try, because Redis cannot be told to hand it out later. It counts as in flight.
// - a group gives an entry to whichever consumer asks first. So the order of a key holds while the group has one consumer.

import { systemClock, systemRandom } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import { invalidArgument } from '../core/errors.ts'
import {
  aFunction,
  aString,
  checkOptions,
  optional,
  positiveInteger,
  positiveMs,
  withMethods,
} from '../core/options.ts'
import { linkTo } from '../clients/redis.ts'
import type { RedisClient } from '../clients/redis.ts'
import { inOrderOfKeys } from './broker.ts'
import type { BatchHandler, Consuming, MessageHandler, Publisher, Receiver } from './broker.ts'
import { startConsumer } from './redis-streams/consumer.ts'
import { fieldsOf } from './redis-streams/entry.ts'
import type { StreamMessage } from './redis-streams/entry.ts'
import { commandsTo } from './redis-streams/stream.ts'
import { together } from './together.ts'

export type { RedisClient } from '../clients/redis.ts'
export type { Consuming, Message, Outgoing, Publisher, Receiver } from './broker.ts'
export type { StreamEntry, StreamMessage } from './redis-streams/entry.ts'

export interface RedisStreamConsumerOptions<Tx> {
  /** A connected client of node-redis or ioredis: one server, a pool, Sentinel or Cluster. It stays yours to close. */
  readonly client: RedisClient
  readonly stream: string
  /** The consumer group. It is created if it is not there, from the first entry of the stream on. */
  readonly group: string
  /** Names this process in the group. A process that comes back under its name begins with what it had in hand. */
  readonly consumerName: string
  readonly inbox: Receiver<Tx>
  /** Messages that this consumer has in hand at once, at most. Default 10. */
  readonly inFlight?: number
  /** A consumer that is silent for this long is taken for dead, and others take its messages over. Default 30 s. */
  readonly claimAfterMs?: number
  /** The bound on any one command. Default 4 s. */
  readonly timeoutMs?: number
  readonly clock?: Clock
}

export interface RedisStreamPublisherOptions {
  /** A connected client of node-redis or ioredis. It stays yours to close. */
  readonly client: RedisClient
  /** The stream of a topic. Default: the topic itself. */
  readonly streamOf?: (topic: string) => string
  /** Trims a stream to about this many entries, read or not. Default: streams grow until you trim them. */
  readonly maxLength?: number
  /** The bound on any one command. Default 4 s. */
  readonly timeoutMs?: number
  readonly clock?: Clock
}

const client = (): undefined => undefined // checked by linkTo, which knows what each kind must have
const clockRule = optional(withMethods('now', 'elapsed', 'schedule'))

const consumerRules = {
  client,
  stream: aString,
  group: aString,
  consumerName: aString,
  inbox: withMethods('deliver', 'deliverBatch'),
  inFlight: optional(positiveInteger),
  claimAfterMs: optional(positiveMs),
  timeoutMs: optional(positiveMs),
  clock: clockRule,
}

const publisherRules = {
  client,
  streamOf: optional(aFunction),
  maxLength: optional(positiveInteger),
  timeoutMs: optional(positiveMs),
  clock: clockRule,
}

const timeoutMsUsual = 4_000

/**
 * Reads a stream as one consumer of a group and gives each message to the inbox, up to `inFlight` at once, those of one key one after
 * another.
 *
 * @example
 * import { createClient } from 'redis'
 * import { redisStreamConsumer, type Receiver } from 'onceonly/redis-streams'
 *
 * declare const inbox: Receiver<{ query(sql: string, values: unknown[]): Promise<unknown> }>
 * const client = await createClient({ url: 'redis://localhost:6379' }).connect()
 * const place = { client, stream: 'orders', group: 'shipping', consumerName: 'shipping-1' }
 * const consuming = redisStreamConsumer({ ...place, inbox }, async (tx, message) => {
 *   await tx.query('insert into shipments (order_id) values ($1)', [message.key])
 * })
 * process.on('SIGTERM', () => void consuming.stop())
 * await consuming.ended
 */
export function redisStreamConsumer<Tx>(
  options: RedisStreamConsumerOptions<Tx>,
  handler: MessageHandler<Tx, StreamMessage>,
): Consuming {
  checkOptions('redisStreamConsumer', options, consumerRules)
  const expected = aFunction(handler)
  if (expected !== undefined) throw invalidArgument(`redisStreamConsumer: expected the handler to be ${expected}`)
  const { inbox, stream, group, consumerName } = options
  return startConsumer({
    link: linkTo(options.client, 'redisStreamConsumer'),
    stream,
    group,
    consumerName,
    inFlight: options.inFlight ?? 10,
    claimAfterMs: options.claimAfterMs ?? 30_000,
    timeoutMs: options.timeoutMs ?? timeoutMsUsual,
    clock: options.clock ?? systemClock,
    random: systemRandom,
    consumer: inbox.consumer,
    // The inbox hands on the messages that this file gave it, whose `raw` is what the handler expects.
    deliver: (message, acknowledge) => inbox.deliver(message, handler as MessageHandler<Tx>, acknowledge),
  })
}

/**
 * Reads a stream as one consumer of a group and gives what is in hand at once, up to `inFlight` messages, to the inbox as one batch, with one
 * transaction. A batch has one message of each key.
 *
 * @example
 * import { createClient } from 'redis'
 * import { redisStreamBatchConsumer, type Receiver } from 'onceonly/redis-streams'
 *
 * declare const inbox: Receiver<{ query(sql: string, values: unknown[]): Promise<unknown> }>
 * const client = await createClient({ url: 'redis://localhost:6379' }).connect()
 * const place = { client, stream: 'orders', group: 'shipping', consumerName: 'shipping-1' }
 * const consuming = redisStreamBatchConsumer({ ...place, inbox, inFlight: 100 }, async (tx, fresh) => {
 *   await tx.query('insert into shipments (order_id) select unnest($1::text[])', [fresh.map(({ key }) => key)])
 * })
 */
export function redisStreamBatchConsumer<Tx>(
  options: RedisStreamConsumerOptions<Tx>,
  handler: BatchHandler<Tx, StreamMessage>,
): Consuming {
  checkOptions('redisStreamBatchConsumer', options, consumerRules)
  checkOptions('redisStreamBatchConsumer', { handler }, { handler: aFunction })
  const inbox = together(options.inbox, handler as BatchHandler<Tx>, options.inFlight ?? 10)
  return redisStreamConsumer({ ...options, inbox }, () => undefined)
}

/**
 * Publishes what a relay has to streams, the messages of one key one after another.
 *
 * @example
 * import { createClient } from 'redis'
 * import { redisStreamPublisher } from 'onceonly/redis-streams'
 *
 * const client = await createClient({ url: 'redis://localhost:6379' }).connect()
 * const publisher = redisStreamPublisher({ client, streamOf: (topic) => `events:${topic}` })
 */
export function redisStreamPublisher(options: RedisStreamPublisherOptions): Publisher {
  checkOptions('redisStreamPublisher', options, publisherRules)
  const { streamOf = (topic) => topic, maxLength } = options
  const link = linkTo(options.client, 'redisStreamPublisher')
  const timeoutMs = options.timeoutMs ?? timeoutMsUsual
  const clock = options.clock ?? systemClock
  const trim = maxLength === undefined ? [] : ['MAXLEN', '~', `${maxLength}`]
  return {
    name: 'redis-streams',
    publish: (messages) =>
      inOrderOfKeys(messages, async (message) => {
        const stream = streamOf(message.topic)
        await commandsTo({ link, stream, timeoutMs, clock })(['XADD', stream, ...trim, '*', ...fieldsOf(message)])
      }),
  }
}

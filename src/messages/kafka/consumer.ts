// A consumer that gives each message to an inbox. Invariants: an offset is committed only after the inbox has acknowledged everything
// before it, the messages of a partition are handled in their order, and one that must be tried again holds up its own partition only.

import type { KafkaBatch, KafkaClient, KafkaGroupOptions } from '../../clients/kafka.ts'
import { type Clock, sleep, systemClock } from '../../core/clock.ts'
import { aString, checkOptions, oneOf, optional, positiveInteger, positiveMs, withMethods } from '../../core/options.ts'
import type { BatchHandler, Consuming, Delivered, MessageHandler, Receiver } from '../broker.ts'
import { aKafkaClient, refuseGroupPromises, topicNames } from './client-options.ts'
import { consuming } from './consuming.ts'
import { type KafkaMessage, messageOf } from './headers.ts'

export interface KafkaConsumerOptions<Tx> {
  /** `confluentClient(…)`, `kafkajsClient(…)` or `platformaticClient(…)`. */
  readonly client: KafkaClient
  readonly topics: readonly string[]
  readonly group: string
  readonly inbox: Receiver<Tx>
  /** Whether records of transactions that were aborted stay hidden. Default `read_committed`, which @platformatic/kafka cannot keep. */
  readonly isolation?: 'read_committed' | 'read_uncommitted'
  /** Where a group begins that has committed nothing. Default `earliest`. */
  readonly begin?: 'earliest' | 'latest'
  /** Static membership: a restart under the same name within `sessionMs` moves no partition. */
  readonly instanceId?: string
  /** `consumer` is the group protocol of KIP-848. Default `classic`. */
  readonly protocol?: 'classic' | 'consumer'
  /** A member that is silent for so long loses its partitions. Default 45 s. */
  readonly sessionMs?: number
  /** Partitions that are handled at once. Default 8. */
  readonly partitionsAtOnce?: number
  /** Messages that a batch handler gets at the most. Default 100. */
  readonly batchMax?: number
  /** How long a partition that moves to another member waits for the message that is being handled. Default 10 s. */
  readonly handoverMs?: number
}

export interface KafkaBatchHandler<Tx> {
  readonly batch: BatchHandler<Tx, KafkaMessage>
}

/**
 * Consumes topics as a member of a group, and gives each message to the inbox. An offset is committed after the inbox has acknowledged
 * the message. With `{ batch }` in place of a handler the inbox gets up to `batchMax` messages of a partition at once.
 *
 * @example
 * import { Kafka } from 'kafkajs'
 * import { kafkaConsumer, kafkajsClient, type Receiver } from 'onceonly/kafka'
 *
 * declare const inbox: Receiver<{ query(sql: string, values: unknown[]): Promise<unknown> }>
 *
 * const client = kafkajsClient(new Kafka({ brokers: ['localhost:9092'] }))
 * const consuming = kafkaConsumer({ client, topics: ['orders'], group: 'mail', inbox }, async (tx, message) => {
 *   await tx.query('insert into mails (order_id) values ($1)', [message.key])
 * })
 * process.once('SIGTERM', () => void consuming.stop())
 */
export function kafkaConsumer<Tx>(
  options: KafkaConsumerOptions<Tx>,
  handler: MessageHandler<Tx, KafkaMessage> | KafkaBatchHandler<Tx>,
): Consuming {
  checkOptions('kafkaConsumer', options, consumerRules)
  checkOptions('kafkaConsumer', { handler }, { handler: aHandler })
  const group = { isolation: 'read_committed', protocol: 'classic', instanceId: undefined, ...options } as const
  refuseGroupPromises('kafkaConsumer', options.client, group)
  const handle =
    typeof handler === 'function' ? oneByOne(options.inbox, handler) : inBatches(options.inbox, handler.batch)
  return consuming(options.inbox.consumer, ({ end, onError }) =>
    options.client.join({
      begin: 'earliest',
      sessionMs: 45_000,
      partitionsAtOnce: 8,
      batchMax: 100,
      handoverMs: 10_000,
      ...definedOf(group),
      handle: (batch) => handle(batch, systemClock),
      onError,
      onEnd: end,
    } as KafkaGroupOptions),
  )
}

const aHandler = (value: unknown): string | undefined =>
  typeof value === 'function' || typeof (value as KafkaBatchHandler<unknown> | undefined)?.batch === 'function'
    ? undefined
    : 'a function, or { batch: a function }'

const consumerRules = {
  client: aKafkaClient,
  topics: topicNames,
  group: aString,
  inbox: withMethods('deliver', 'deliverBatch'),
  isolation: optional(oneOf('read_committed', 'read_uncommitted')),
  begin: optional(oneOf('earliest', 'latest')),
  instanceId: optional(aString),
  protocol: optional(oneOf('classic', 'consumer')),
  sessionMs: optional(positiveMs),
  partitionsAtOnce: optional(positiveInteger),
  batchMax: optional(positiveInteger),
  handoverMs: optional(positiveMs),
}

/** Undefined always means "not given". */
function definedOf(given: object): object {
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined))
}

type HandleBatch = (batch: KafkaBatch, clock: Clock) => Promise<void>

function oneByOne<Tx>(inbox: Receiver<Tx>, handler: MessageHandler<Tx, KafkaMessage>): HandleBatch {
  return async (batch, clock) => {
    for (const record of batch.records) {
      const message = messageOf(record)
      const next = record.offset + 1n
      for (let done = false; !done;) {
        if (batch.signal.aborted) return
        const delivered = await inbox.deliver(message, handler as MessageHandler<Tx>, () => batch.commit(next))
        done = delivered.acknowledged
        if (!delivered.acknowledged) await sleep(clock, delivered.retryAfterMs, { signal: batch.signal })
      }
    }
  }
}

/** Kafka knows one number per partition. So what is done with beyond a message that is not stays here, and is committed with it. */
function inBatches<Tx>(inbox: Receiver<Tx>, handler: BatchHandler<Tx, KafkaMessage>): HandleBatch {
  return async (batch, clock) => {
    const done = batch.records.map(() => false)
    while (!batch.signal.aborted && done.includes(false)) {
      const left = batch.records.flatMap((record, position) => (done[position] ? [] : [{ record, position }]))
      const acknowledge = async (positions: readonly number[]): Promise<void> => {
        const after = done.slice()
        for (const each of positions) after[left[each]!.position] = true
        const first = after.indexOf(false)
        const last = batch.records[first === -1 ? batch.records.length - 1 : first - 1]
        if (last && first !== left[0]!.position) await batch.commit(last.offset + 1n)
        for (const each of positions) done[left[each]!.position] = true
      }
      const delivered = await inbox.deliverBatch(
        left.map(({ record }) => messageOf(record)),
        handler as BatchHandler<Tx>,
        acknowledge,
      )
      const pauseMs = pauseOf(delivered)
      if (pauseMs !== undefined) await sleep(clock, pauseMs, { signal: batch.signal })
    }
  }
}

function pauseOf(delivered: readonly Delivered[]): number | undefined {
  const pauses = delivered.flatMap((each) => (each.acknowledged ? [] : [each.retryAfterMs]))
  return pauses.length === 0 ? undefined : Math.min(...pauses)
}

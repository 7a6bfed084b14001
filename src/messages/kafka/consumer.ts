// A consumer that gives each message to an inbox. Invariants: an offset is committed only after the inbox has acknowledged everything
// before it, or in the very transaction that marks it, the messages of a partition are handled in their order, and one that must be tried again holds up its own partition only.

import type { KafkaBatch, KafkaClient, KafkaGroupOptions } from '../../clients/kafka.ts'
import { type Clock, sleep, systemClock } from '../../core/clock.ts'
import { aString, checkOptions, oneOf, optional, positiveInteger, positiveMs, withMethods } from '../../core/options.ts'
import type { BatchHandler, Consuming, Delivered, MessageHandler, Receiver, StoredOffsets } from '../broker.ts'
import { aKafkaClient, refuseGroupPromises, topicNames, unsupported } from './client-options.ts'
import { consuming } from './consuming.ts'
import { type KafkaMessage, messageOf } from './headers.ts'
import { keepOffsets, type OffsetKeeper } from './stored-offsets.ts'

export interface KafkaConsumerOptions<Tx> {
  /** `confluentClient(…)`, `kafkajsClient(…)` or `platformaticClient(…)`. */
  readonly client: KafkaClient
  readonly topics: readonly string[]
  readonly group: string
  readonly inbox: Receiver<Tx> & { readonly offsets?: StoredOffsets | undefined }
  /**
   * Who says where a partition goes on. `kafka`: the group's committed offsets. `database`: offsets that are written in the transaction of mark
   * and effect, which needs an inbox on a SQL store and @confluentinc/kafka-javascript. Default `kafka`.
   */
  readonly offsets?: 'kafka' | 'database'
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
  const keeper = keeperOf(options)
  const handle =
    typeof handler === 'function'
      ? oneByOne(options.inbox, handler, keeper)
      : inBatches(options.inbox, handler.batch, keeper)
  return consuming(options.inbox.consumer, ({ end, onError }) =>
    options.client.join({
      begin: 'earliest',
      sessionMs: 45_000,
      partitionsAtOnce: 8,
      batchMax: 100,
      handoverMs: 10_000,
      ...definedOf(group),
      startAt: keeper?.startAt,
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
  offsets: optional(oneOf('kafka', 'database')),
  isolation: optional(oneOf('read_committed', 'read_uncommitted')),
  begin: optional(oneOf('earliest', 'latest')),
  instanceId: optional(aString),
  protocol: optional(oneOf('classic', 'consumer')),
  sessionMs: optional(positiveMs),
  partitionsAtOnce: optional(positiveInteger),
  batchMax: optional(positiveInteger),
  handoverMs: optional(positiveMs),
}

function keeperOf<Tx>({ offsets, inbox, client, group }: KafkaConsumerOptions<Tx>): OffsetKeeper | undefined {
  if (offsets !== 'database') return undefined
  if (!inbox.offsets) {
    throw unsupported(
      `kafkaConsumer: offsets: 'database' needs an inbox on PostgreSQL, MySQL, MariaDB or SQLite, and "${inbox.consumer}" has none. Use offsets: 'kafka'.`,
    )
  }
  if (!client.abilities.placing) {
    throw unsupported(
      `kafkaConsumer: ${client.name} begins to read a partition before it can be told where, so offsets: 'database' cannot be promised with it. ` +
        `Use @confluentinc/kafka-javascript, or offsets: 'kafka'.`,
    )
  }
  return keepOffsets(inbox.offsets, group)
}

/** Undefined always means "not given". */
function definedOf(given: object): object {
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined))
}

type HandleBatch = (batch: KafkaBatch, clock: Clock) => Promise<void>

function oneByOne<Tx>(
  inbox: Receiver<Tx>,
  handler: MessageHandler<Tx, KafkaMessage>,
  keeper: OffsetKeeper | undefined,
): HandleBatch {
  return async (batch, clock) => {
    for (const record of batch.records) {
      const message = messageOf(record)
      const next = record.offset + 1n
      let isWritten = keeper === undefined
      const run = async (tx: Tx): Promise<void> => {
        await handler(tx, message)
        await keeper?.write(tx, batch, next)
        isWritten = true
      }
      const acknowledge = async (): Promise<void> => {
        // A duplicate, or one that is not run: there was no transaction.
        if (!isWritten) await keeper!.write(undefined, batch, next)
        await commit(batch, next, keeper)
      }
      for (let done = false; !done;) {
        if (batch.signal.aborted) return
        const delivered = await inbox.deliver(message, run, acknowledge)
        done = delivered.acknowledged
        if (!delivered.acknowledged) await sleep(clock, delivered.retryAfterMs, { signal: batch.signal })
      }
    }
  }
}

/** When the database says where to go on, Kafka is only told. */
async function commit(batch: KafkaBatch, next: bigint, keeper: OffsetKeeper | undefined): Promise<void> {
  try {
    await batch.commit(next)
  } catch (error) {
    if (!keeper) throw error
  }
}

/** Kafka knows one number per partition. So what is done with beyond a message that is not stays here, and is committed with it. */
function inBatches<Tx>(
  inbox: Receiver<Tx>,
  handler: BatchHandler<Tx, KafkaMessage>,
  keeper: OffsetKeeper | undefined,
): HandleBatch {
  return async (batch, clock) => {
    const done = batch.records.map(() => false)
    /** The offset behind all that is done with, if these are, too. Undefined when the first of the batch is not. */
    const nextWith = (positions: readonly number[]): bigint | undefined => {
      const first = done.findIndex((isDone, position) => !isDone && !positions.includes(position))
      const last = batch.records[first === -1 ? batch.records.length - 1 : first - 1]
      return last && last.offset + 1n
    }
    while (!batch.signal.aborted && done.includes(false)) {
      const left = batch.records.flatMap((record, position) => (done[position] ? [] : [{ record, position }]))
      const messages = left.map(({ record }) => messageOf(record))
      const positionOf = new Map(messages.map((message, index) => [message, left[index]!.position]))
      const run = async (tx: Tx, fresh: readonly KafkaMessage[]): Promise<void> => {
        await handler(tx, fresh)
        const next = nextWith(fresh.map((message) => positionOf.get(message)!))
        if (next !== undefined) await keeper?.write(tx, batch, next)
      }
      const acknowledge = async (positions: readonly number[]): Promise<void> => {
        const ended = positions.map((each) => left[each]!.position)
        const next = nextWith(ended)
        if (next !== undefined && ended.includes(left[0]!.position)) {
          await keeper?.write(undefined, batch, next)
          await commit(batch, next, keeper)
        }
        for (const each of ended) done[each] = true
      }
      const delivered = await inbox.deliverBatch(messages, run as BatchHandler<Tx>, acknowledge)
      const pauseMs = pauseOf(delivered)
      if (pauseMs !== undefined) await sleep(clock, pauseMs, { signal: batch.signal })
    }
  }
}

function pauseOf(delivered: readonly Delivered[]): number | undefined {
  const pauses = delivered.flatMap((each) => (each.acknowledged ? [] : [each.retryAfterMs]))
  return pauses.length === 0 ? undefined : Math.min(...pauses)
}

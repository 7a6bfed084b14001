// Consume, transform, produce: what a message becomes and the offset behind it are one Kafka transaction. Invariants: partitions come
// and go only between transactions, the offsets carry the generation of the group (so a zombie's transaction is refused), and after
// any error but the transform's own both producer and consumer are opened anew. What the transaction came to is then the broker's to say:
// `initTransactions` ends what was left open, and the committed offsets tell where to go on.

import {
  called,
  closeProducer,
  type ConfluentClient,
  type ConfluentProducer,
  type Halts,
  type KafkaClient,
  type KafkaRecord,
  type PolledConsumer,
  produce,
  watchHalts,
} from '../../clients/kafka.ts'
import { backoffMs, backoffs } from '../../core/backoff.ts'
import { sleep, systemClock, systemRandom } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { aFunction, aString, checkOptions, oneOf, optional, positiveInteger, positiveMs } from '../../core/options.ts'
import type { Consuming } from '../broker.ts'
import { aKafkaClient, isFenced, requireTransactional, topicNames } from './client-options.ts'
import { consuming } from './consuming.ts'
import { headersOf, type KafkaMessage, messageOf } from './headers.ts'

/** One record that a message becomes. */
export interface Transformed {
  /** Default: `to`. */
  readonly topic?: string
  /** Default: the key of the message. */
  readonly key?: string
  readonly body: Uint8Array
  readonly headers?: Readonly<Record<string, string>>
}

export interface ExactlyOnceOptions {
  /** `confluentClient(…)`. The other clients are refused. */
  readonly client: KafkaClient
  /** The topics to read. */
  readonly from: readonly string[]
  /** The topic to write to. */
  readonly to: string
  /** The records that a message becomes, if any. When it throws, the transaction is aborted and tried again. */
  readonly transform: (
    message: KafkaMessage,
  ) => readonly Transformed[] | Transformed | undefined | Promise<readonly Transformed[] | Transformed | undefined>
  /**
   * The same for each start of one worker, and another for every other worker (the name of a pod of a stateful set). A new start ends the
   * transaction that the last one left open. With a random name its readers would wait for `transactionMs`.
   */
  readonly transactionalId: string
  readonly group: string
  /** Where a group begins that has committed nothing. Default `earliest`. */
  readonly begin?: 'earliest' | 'latest'
  readonly instanceId?: string
  readonly protocol?: 'classic' | 'consumer'
  /** A member that is silent for so long loses its partitions. Default 45 s. */
  readonly sessionMs?: number
  /** Messages of one transaction at the most. Default 500. */
  readonly batchMax?: number
  /** The broker aborts a transaction that is open for longer. Default 60 s. */
  readonly transactionMs?: number
}

const rules = {
  client: aKafkaClient,
  from: topicNames,
  to: aString,
  transform: aFunction,
  transactionalId: aString,
  group: aString,
  begin: optional(oneOf('earliest', 'latest')),
  instanceId: optional(aString),
  protocol: optional(oneOf('classic', 'consumer')),
  sessionMs: optional(positiveMs),
  batchMax: optional(positiveInteger),
  transactionMs: optional(positiveMs),
}

/**
 * Reads topics, and writes what each message becomes together with the offset behind it, in one Kafka transaction. A reader with
 * `read_committed` sees the output of each message exactly once. It holds for Kafka alone: a transform must have no effect elsewhere.
 *
 * @example
 * import { confluentClient, type ConfluentLibrary, exactlyOnce } from 'onceonly/kafka'
 *
 * declare const confluent: ConfluentLibrary // import confluent from '@confluentinc/kafka-javascript'
 *
 * const working = exactlyOnce({
 *   client: confluentClient(confluent, { 'bootstrap.servers': 'localhost:9092' }),
 *   from: ['orders'],
 *   to: 'invoices',
 *   group: 'invoicing',
 *   transactionalId: process.env.HOSTNAME!,
 *   transform: (message) => ({ body: Buffer.from(`invoice of ${message.key}`) }),
 * })
 * process.once('SIGTERM', () => void working.stop())
 */
export function exactlyOnce(options: ExactlyOnceOptions): Consuming {
  checkOptions('exactlyOnce', options, rules)
  const client = requireTransactional('exactlyOnce', options.client, {
    kafkajs: 'the broker accepts the offsets of its zombies, which would then process messages twice',
    '@platformatic/kafka': 'its consumer hands out records of aborted transactions',
  })
  return consuming(options.group, async ({ end, onError }) => {
    const stopping = new AbortController()
    const work = { ...options, client, signal: stopping.signal, onError }
    const running = workUntilStopped(work).catch(end)
    return {
      async stop() {
        stopping.abort()
        await running
      },
    }
  })
}

interface Work extends ExactlyOnceOptions {
  readonly client: ConfluentClient
  readonly signal: AbortSignal
  onError(error: unknown): void
}

async function workUntilStopped(work: Work): Promise<void> {
  for (let tries = 0; !work.signal.aborted; tries++) {
    const transactions = { committed: 0 }
    try {
      await session(work, transactions)
    } catch (error) {
      if (isFenced(error)) throw fenced(work, error)
      if (error instanceof OnceError && !error.retryable) throw error
      work.onError(error)
    }
    if (transactions.committed > 0) tries = 0
    await sleep(systemClock, backoffMs(backoffs.broker, tries, systemRandom), { signal: work.signal })
  }
}

function fenced({ transactionalId, transactionMs = 60_000 }: Work, cause: unknown): OnceError {
  const message =
    `exactlyOnce: the worker "${transactionalId}" was fenced, and what it had not committed is aborted. Another worker has the same ` +
    `transactionalId, or this one stood still for longer than ${transactionMs} ms. Give each worker its own transactionalId, and start this one again.`
  return new OnceError('CLAIM_LOST', { executed: 'no', message, cause })
}

/** Producer and consumer from their opening to the first error that says nothing certain. */
async function session(work: Work, transactions: { committed: number }): Promise<void> {
  const { client, transactionalId, transactionMs = 60_000 } = work
  // First the producer: what the last start of this worker left open is ended before its offsets are read.
  const producer = await client.transactionalProducer(transactionalId, { transactionMs, callMs })
  try {
    const polled = await client.openConsumer({
      topics: work.from,
      group: work.group,
      isolation: 'read_committed',
      begin: work.begin ?? 'earliest',
      instanceId: work.instanceId,
      protocol: work.protocol ?? 'classic',
      sessionMs: work.sessionMs ?? sessionMsDefault,
      startAt: undefined,
    })
    const halts = watchHalts(work.sessionMs ?? sessionMsDefault, () => {})
    try {
      await transact({ work, producer, polled, transactions, halts })
    } finally {
      halts.stop()
      await polled.close()
    }
  } finally {
    await closeProducer(producer)
  }
}

/** A call to the coordinator that takes longer says nothing certain. */
const callMs = 30_000

const sessionMsDefault = 45_000

interface Open {
  readonly work: Work
  readonly halts: Halts
  readonly producer: ConfluentProducer
  readonly polled: PolledConsumer
  readonly transactions: { committed: number }
}

async function transact({ work, producer, polled, transactions, halts }: Open): Promise<void> {
  let idle = 0
  let failures = 0
  while (!work.signal.aborted) {
    const records = await gather(polled, work.batchMax ?? 500)
    if (records.length === 0) {
      await sleep(systemClock, backoffMs(backoffs.kafkaPoll, ++idle, systemRandom), { signal: work.signal })
      continue
    }
    idle = 0
    try {
      await transaction({ work, producer, polled, halts }, records)
      transactions.committed++
      failures = 0
    } catch (error) {
      if (!(error instanceof TransformFailed)) throw error
      work.onError(error.cause)
      await called((done) => producer.abortTransaction(callMs, done))
      await seekBack(polled, records)
      const pauseMs = backoffMs(backoffs.kafkaTransform, failures++, systemRandom)
      await sleep(systemClock, pauseMs, { signal: work.signal })
    }
  }
}

/** Polls for as long as something comes. A partition that goes takes its records along: they are the next member's. */
async function gather(polled: PolledConsumer, max: number): Promise<readonly KafkaRecord[]> {
  let records: KafkaRecord[] = []
  for (;;) {
    const more = await polled.poll(max - records.length, async (gone) => {
      records = records.filter(
        (record) => !gone.some((of) => of.topic === record.topic && of.partition === record.partition),
      )
    })
    records.push(...more)
    if (more.length === 0 || records.length >= max) return records
  }
}

class TransformFailed extends Error {}

async function transaction(
  { work, producer, polled, halts }: Omit<Open, 'transactions'>,
  records: readonly KafkaRecord[],
): Promise<void> {
  await called((done) => producer.beginTransaction(done))
  let failed: Error | undefined
  for (const record of records) {
    const message = messageOf(record)
    for (const { topic = work.to, key = message.key, body, headers = {} } of await transformed(work, message)) {
      produce(producer, { topic, key, value: body, headers: headersOf(headers) }, (error) => (failed ??= error))
    }
  }
  // A record that the client itself refuses (too large) is no part of the transaction, which would commit without it.
  if (failed) throw failed
  // The broker refuses the offsets of a generation that is over. A process that stood still does not even ask.
  halts.check()
  await called((done) => producer.sendOffsetsToTransaction(offsetsBehind(records), polled.consumer, callMs, done))
  await called((done) => producer.commitTransaction(callMs, done))
  // The commit has waited for every record that the client took, and refuses when the broker has not taken one.
  if (failed) throw new Error('Bug! A transaction was committed without one of its records.', { cause: failed })
}

async function transformed(work: Work, message: KafkaMessage): Promise<readonly Transformed[]> {
  try {
    const outputs = await work.transform(message)
    return outputs === undefined
      ? []
      : Array.isArray(outputs)
        ? (outputs as readonly Transformed[])
        : [outputs as Transformed]
  } catch (error) {
    throw new TransformFailed('transform failed', { cause: error })
  }
}

/** Per partition the offset after its last record. */
function offsetsBehind(records: readonly KafkaRecord[]): { topic: string; partition: number; offset: number }[] {
  return endsOf(records).map(({ topic, partition, offset }) => ({ topic, partition, offset: Number(offset) + 1 }))
}

/** The last record of each partition. */
function endsOf(records: readonly KafkaRecord[]): readonly KafkaRecord[] {
  return [...new Map(records.map((record) => [`${record.partition} ${record.topic}`, record])).values()]
}

async function seekBack({ consumer }: PolledConsumer, records: readonly KafkaRecord[]): Promise<void> {
  for (const { topic, partition, offset } of endsOf(records.toReversed())) {
    await called((done) => consumer.seek({ topic, partition, offset: Number(offset) }, callMs, done))
  }
}

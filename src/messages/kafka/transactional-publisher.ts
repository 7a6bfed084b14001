// A publisher for a relay whose rows a reader with `read_committed` sees once. A batch is one Kafka transaction, which holds the records of
// the rows and, in a control topic, the names of all rows of the shard that are published and perhaps not marked as sent. Invariants:
// - A shard has one transactional id. Opening it ends what an earlier relay left open, and fences that relay. Nothing is sent before the
//   last committed control record has been read, and what it names is not sent again.
// - Each opening commits the epoch under which the relay took the shard. A relay that finds a higher one has lost the shard, and the rows
//   that it has read may have been published and forgotten here since.
// - A row is forgotten when it is marked as sent, and never because of time.
// - After an error that says nothing certain the producer is closed. The relay takes its shard anew, which opens the next.

import {
  called,
  closeProducer,
  type ConfluentClient,
  type ConfluentProducer,
  type KafkaClient,
  produce,
} from '../../clients/kafka.ts'
import type { KafkaOutput } from '../../clients/kafka.ts'
import { invalidArgument, OnceError } from '../../core/errors.ts'
import { aString, checkOptions, optional, positiveMs } from '../../core/options.ts'
import { NotSentError } from '../broker.ts'
import type { Outgoing, PlacedRow, Published, RelayShard, ShardedPublisher, ShardPublisher } from '../broker.ts'
import { asError } from '../failures.ts'
import { aKafkaClient, isFenced, requireTransactional, unsupported } from './client-options.ts'
import { outputOf } from './headers.ts'

export interface KafkaTransactionalPublisherOptions {
  /** `confluentClient(…)`. The other clients are refused. */
  readonly client: KafkaClient
  /** Names the outbox: the same in all of its relays, and another for every other outbox. Each shard adds its number. */
  readonly transactionalId: string
  /** Where the transactions say what they have published: a compacted topic, created if it is not there. Default `onceonly-relays`. */
  readonly controlTopic?: string
  /** The broker aborts a transaction that is open for longer. Default 60 s. */
  readonly transactionMs?: number
}

/**
 * Publishes for a relay so that a reader with `read_committed` sees each row of the outbox once, whatever is killed. It needs
 * `@confluentinc/kafka-javascript`.
 *
 * @example
 * import { confluentClient, type ConfluentLibrary, kafkaTransactionalPublisher } from 'onceonly/kafka'
 * import { createRelay, type Outbox } from 'onceonly/outbox'
 *
 * declare const confluent: ConfluentLibrary // import confluent from '@confluentinc/kafka-javascript'
 * declare const outbox: Outbox<unknown>
 *
 * const client = confluentClient(confluent, { 'bootstrap.servers': 'localhost:9092' })
 * createRelay({ outbox, publisher: kafkaTransactionalPublisher({ client, transactionalId: 'shop' }) }).start()
 */
export function kafkaTransactionalPublisher(options: KafkaTransactionalPublisherOptions): ShardedPublisher {
  checkOptions('kafkaTransactionalPublisher', options, {
    client: aKafkaClient,
    transactionalId: aString,
    controlTopic: optional(aString),
    transactionMs: optional(positiveMs),
  })
  const client = requireTransactional('kafkaTransactionalPublisher', options.client, {
    kafkajs: 'its transactions were not tried under crashes, and nobody mends it',
    '@platformatic/kafka': 'its consumer hands out records of aborted transactions',
  })
  const { transactionalId, controlTopic = 'onceonly-relays', transactionMs = 60_000 } = options
  let partitions = 0
  const prepare = async ({ shard }: RelayShard): Promise<void> => {
    if (shard >= partitions) partitions = await client.requireCompacted(controlTopic)
    if (shard < partitions) return
    throw unsupported(
      `kafkaTransactionalPublisher: the topic ${controlTopic} has ${partitions} partitions, and shard ${shard} has no partition of its own. ` +
        `Add partitions: kafka-topics.sh --alter --topic ${controlTopic} --partitions ${shard + 1}`,
    )
  }
  return {
    name: 'kafka',
    openShard(shard) {
      const name = `${transactionalId}-${shard.shard}`
      return shardPublisher({ client, controlTopic, transactionMs, prepare, name, shard })
    },
  }
}

interface Work {
  readonly client: ConfluentClient
  readonly controlTopic: string
  readonly transactionMs: number
  /** The transactional id of the shard, and the key of its control record. */
  readonly name: string
  readonly shard: RelayShard
  prepare(shard: RelayShard): Promise<void>
}

/** A call to the coordinator that takes longer says nothing certain. */
const callMs = 20_000

// A name takes about 55 bytes in a control record, of which a broker takes 1 MB.
const rowsMax = 10_000

type Row = Outgoing & PlacedRow

interface Session {
  readonly producer: ConfluentProducer
  /** By its id the place of each row that is published and perhaps not marked as sent. */
  readonly published: Map<string, string>
}

function shardPublisher(work: Work): ShardPublisher {
  let opening: Promise<Session> | undefined
  let opened: Session | undefined
  let over: Error | undefined
  let before: Promise<unknown> = Promise.resolve()

  let closing: Promise<void> | undefined
  const disconnect = async (): Promise<void> => {
    over ??= new Error(`the producer ${work.name} is closed`)
    const session = await opening?.catch(() => undefined)
    if (session) await closeProducer(session.producer)
  }
  // A second disconnect of librdkafka never ends.
  const close = (): Promise<void> => (closing ??= disconnect())

  const publishNow = async (rows: readonly Row[]): Promise<readonly Published[]> => {
    if (over) throw over
    try {
      opening ??= openSession(work)
      opened = await opening
      return await publishIn(opened, work, rows)
    } catch (error) {
      over = isFenced(error) ? lost(work, error) : asError(error)
      close().catch(() => undefined)
      throw over
    }
  }

  return {
    // One at a time, also when the relay has given up waiting for the last one.
    publish(rows) {
      const publishing = before.then(() => publishNow(rows))
      before = publishing.catch(() => undefined)
      return publishing
    },
    marked: (ids) => ids.forEach((id) => opened?.published.delete(id)),
    close,
  }
}

function lost({ name, shard: { shard, epoch } }: Work, cause?: unknown): OnceError {
  const message =
    `Another relay has shard ${shard}: the producer "${name}" of epoch ${epoch} was fenced, and what it had not committed is aborted. ` +
    `If this does not pass, another outbox has the same transactionalId, or this outbox was restored to an earlier state. Give it another transactionalId.`
  return new OnceError('CLAIM_LOST', { executed: 'unknown', message, ...(cause !== undefined && { cause }) })
}

/** Fences the relay that had the shard before, and learns what it has published. */
async function openSession(work: Work): Promise<Session> {
  const { client, name, transactionMs, shard } = work
  await work.prepare(shard)
  const producer = await client.transactionalProducer(name, { transactionMs, callMs })
  try {
    const { epoch, rows } = await lastWord(work, await commitEpoch(work, producer))
    if (epoch > shard.epoch) throw lost(work)
    const unsent = rows.length === 0 ? [] : await shard.unsent(rows)
    return { producer, published: new Map(unsent.map(({ id, place }) => [id, place])) }
  } catch (error) {
    await closeProducer(producer)
    throw error
  }
}

/** A record that none of the earlier relays can follow: whoever has read the topic to its offset has read all that they have committed. */
async function commitEpoch(work: Work, producer: ConfluentProducer): Promise<bigint> {
  await called((done) => producer.beginTransaction(done))
  const delivered = new Promise<number>((resolve, reject) => {
    const output = controlRecord(work, `${work.name} epoch`, { epoch: work.shard.epoch })
    produce(producer, output, (error, offset) => (error ? reject(error) : resolve(offset!)))
  })
  delivered.catch(() => undefined)
  await called((done) => producer.commitTransaction(callMs, done))
  return BigInt(await delivered)
}

interface LastWord {
  readonly epoch: number
  readonly rows: readonly PlacedRow[]
}

async function lastWord({ client, controlTopic: topic, name, shard }: Work, until: bigint): Promise<LastWord> {
  let epoch = 0
  let rows: readonly PlacedRow[] = []
  for await (const { key, value } of client.readCompacted({ topic, partition: shard.shard }, until, callMs)) {
    const of = Buffer.from(key ?? []).toString()
    if (!value || (of !== name && of !== `${name} epoch`)) continue
    const word = JSON.parse(Buffer.from(value).toString()) as ControlWord
    epoch = Math.max(epoch, word.epoch)
    if (word.rows) rows = word.rows.map(([id, place]) => ({ id, place }))
  }
  return { epoch, rows }
}

/** What a control record holds. */
interface ControlWord {
  readonly epoch: number
  /** Id and place of each. */
  readonly rows?: readonly (readonly [string, string])[]
}

// Each shard has its partition: with another one in it, an open transaction of that one would keep this one from being read.
function controlRecord({ controlTopic: topic, shard }: Work, key: string, word: ControlWord): ControlRecord {
  return { topic, partition: shard.shard, key, value: Buffer.from(JSON.stringify(word)), headers: {} }
}

type ControlRecord = KafkaOutput & { readonly partition: number }

async function publishIn(session: Session, work: Work, rows: readonly Row[]): Promise<readonly Published[]> {
  const { published } = session
  if (rows.length + published.size > rowsMax) {
    throw invalidArgument(
      `kafkaTransactionalPublisher: expected at most ${rowsMax} rows in a transaction, got ${rows.length}. Set a smaller batch of createRelay.`,
    )
  }
  const failed = new Map<string, Error>()
  let left = rows.filter(({ id }) => !published.has(id))
  // A record that the broker will never take aborts the transaction. The others go without it.
  while (left.length > 0) {
    const refused = await transact(session, work, left)
    if (refused.size === 0) {
      for (const { id, place } of left) published.set(id, place)
      break
    }
    for (const [id, error] of refused) failed.set(id, error)
    left = withoutFailedKeys(left, failed)
  }
  return rows.map(({ id }) => failed.get(id))
}

/** What is not sent because of a row before it of the same key is among the failed afterwards. */
function withoutFailedKeys(rows: readonly Row[], failed: Map<string, Error>): Row[] {
  const keys = new Map<string, Error>()
  return rows.filter(({ id, key }) => {
    const before = key === undefined ? undefined : keys.get(key)
    if (before) failed.set(id, new NotSentError(`message ${id} was not sent: ${before.message}`))
    const error = failed.get(id)
    if (error && key !== undefined && !before) keys.set(key, error)
    return !error
  })
}

/** Commits the rows and their names, or aborts and returns the rows that the broker will never take. Throws when it is not certain which. */
async function transact(
  { producer, published }: Session,
  work: Work,
  rows: readonly Row[],
): Promise<ReadonlyMap<string, Error>> {
  const refused = new Map<string, Error>()
  let failed: Error | undefined
  await called((done) => producer.beginTransaction(done))
  for (const row of rows) {
    produce(producer, outputOf(row), (error) => {
      failed ??= error
      if (error && work.client.isFinal(error)) refused.set(row.id, error)
    })
  }
  const names = [...published, ...rows.map(({ id, place }) => [id, place] as const)]
  const record = controlRecord(work, work.name, { epoch: work.shard.epoch, rows: names })
  produce(producer, record, (error) => (failed ??= error))
  // What the client itself refuses (too large) is no part of the transaction, which would commit without it.
  if (!failed) {
    try {
      await called((done) => producer.commitTransaction(callMs, done))
      return refused
    } catch (error) {
      failed = asError(error)
    }
  }
  if (refused.size === 0) throw failed
  await called((done) => producer.abortTransaction(callMs, done))
  return refused
}

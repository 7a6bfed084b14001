// @confluentinc/kafka-javascript through its callback API, which is librdkafka's: the caller polls, and a partition leaves only when the
// caller lets it go. Its errors are known by `code`; `isFatal` is false even for a producer that was fenced.

import { backoffMs, backoffs } from '../../core/backoff.ts'
import { sleep, systemClock, systemRandom } from '../../core/clock.ts'
import { invalidArgument } from '../../core/errors.ts'
import type { KafkaClient, KafkaGroupOptions, KafkaMember, KafkaOutput, KafkaProducer, KafkaRecord } from '../kafka.ts'
import { createLanes, type PartitionLanes, type PartitionName } from './partition-lanes.ts'

/** `import confluent from '@confluentinc/kafka-javascript'`. */
export interface ConfluentLibrary {
  readonly Producer: new (settings: never) => object
  readonly KafkaConsumer: new (settings: never) => object
}

type Callback<T = unknown> = (error: ConfluentError | null | undefined, answer: T) => void

export interface ConfluentError extends Error {
  readonly code: number
  readonly isTxnRequiresAbort?: boolean
}

interface Connection {
  connect(options: { readonly timeout: number }, done: Callback): unknown
  on(event: string, listener: (...given: never[]) => void): unknown
}

export interface ConfluentProducer extends Connection {
  produce(
    topic: string,
    partition: null,
    value: Buffer,
    key: string | null,
    timestamp: null,
    opaque: unknown,
    headers: readonly Record<string, string>[],
  ): unknown
  setPollInBackground(on: boolean): unknown
  disconnect(flushMs: number, done: Callback): unknown
  initTransactions(timeoutMs: number, done: Callback): void
  beginTransaction(done: Callback): void
  commitTransaction(timeoutMs: number, done: Callback): void
  abortTransaction(timeoutMs: number, done: Callback): void
  sendOffsetsToTransaction(
    offsets: readonly ConfluentOffset[],
    consumer: ConfluentConsumer,
    timeoutMs: number,
    done: Callback,
  ): void
}

export interface ConfluentOffset extends PartitionName {
  readonly offset: number
}

interface ConfluentMessage extends ConfluentOffset {
  readonly value: Buffer | null
  readonly key?: Buffer | string | null
  readonly timestamp?: number
  readonly headers?: readonly Readonly<Record<string, Buffer | string>>[]
}

export interface ConfluentConsumer extends Connection {
  subscribe(topics: readonly string[]): unknown
  setDefaultConsumeTimeout(timeoutMs: number): void
  setDefaultIsTimeoutOnlyForFirstMessage(on: boolean): void
  consume(max: number, done: Callback<ConfluentMessage[]>): void
  commitCb(offsets: readonly ConfluentOffset[], done: Callback): unknown
  committed(
    partitions: readonly PartitionName[],
    timeoutMs: number,
    done: Callback<(PartitionName & { offset?: number })[]>,
  ): unknown
  seek(to: ConfluentOffset, timeoutMs: number, done: Callback): unknown
  pause(partitions: readonly PartitionName[]): unknown
  resume(partitions: readonly PartitionName[]): unknown
  assign(partitions: readonly PartitionName[]): unknown
  unassign(): unknown
  incrementalAssign(partitions: readonly PartitionName[]): unknown
  incrementalUnassign(partitions: readonly PartitionName[]): unknown
  rebalanceProtocol(): string
  assignmentLost(): boolean
  disconnect(done: Callback): unknown
}

export type ConfluentSettings = Readonly<Record<string, unknown>>

/** The same client with what exactly-once needs of it. */
export interface ConfluentClient extends KafkaClient {
  transactionalProducer(
    transactionalId: string,
    timeouts: { readonly transactionMs: number; readonly callMs: number },
  ): Promise<ConfluentProducer>
  /** A member of a group that polls for itself. */
  openConsumer(options: ConfluentConsumerOptions): Promise<PolledConsumer>
}

export type ConfluentConsumerOptions = Pick<
  KafkaGroupOptions,
  'topics' | 'group' | 'isolation' | 'begin' | 'instanceId' | 'protocol' | 'sessionMs'
>

/**
 * Kafka by Confluent's client: the one for every promise. Settings are librdkafka's ('bootstrap.servers', 'security.protocol', …).
 * Settings that would break a promise are refused.
 *
 * @example
 * import { confluentClient, type ConfluentLibrary } from 'onceonly/kafka'
 *
 * declare const confluent: ConfluentLibrary // import confluent from '@confluentinc/kafka-javascript'
 * const client = confluentClient(confluent, { 'bootstrap.servers': 'localhost:9092' })
 */
export function confluentClient(library: ConfluentLibrary, settings: ConfluentSettings): ConfluentClient {
  for (const name of ['Producer', 'KafkaConsumer'] as const) {
    if (typeof library?.[name] !== 'function') {
      throw invalidArgument(
        `confluentClient: expected the library, with ${name}, got ${typeof library}. Use import confluent from '@confluentinc/kafka-javascript'.`,
      )
    }
  }
  refuseSettings(settings)
  const newProducer = (more: object): ConfluentProducer =>
    new (library.Producer as unknown as new (settings: object) => ConfluentProducer)(more)
  const newConsumer = (more: object): ConfluentConsumer =>
    new (library.KafkaConsumer as unknown as new (settings: object) => ConfluentConsumer)(more)
  const openConsumer = (options: ConfluentConsumerOptions): Promise<PolledConsumer> =>
    openPolled((rebalance) => newConsumer(consumerSettings(settings, options, rebalance)), options.topics)
  return {
    name: '@confluentinc/kafka-javascript',
    abilities: { readCommitted: true, transactions: true, staticMembership: true, consumerProtocol: true },
    isFinal: (error) => finalCodes.includes((error as ConfluentError).code),
    async producer() {
      const producer = newProducer(producerSettings(settings))
      return sending(await connected(producer))
    },
    join: async (options) => joined(await openConsumer(options), options),
    async transactionalProducer(transactionalId, { transactionMs, callMs }) {
      // A message cannot wait for longer than its transaction.
      const times = { 'transaction.timeout.ms': transactionMs, 'message.timeout.ms': transactionMs }
      const producer = newProducer({ ...producerSettings(settings), 'transactional.id': transactionalId, ...times })
      await connected(producer)
      listen(producer)
      try {
        await called((done) => producer.initTransactions(callMs, done))
        return producer
      } catch (error) {
        await called((done) => producer.disconnect(0, done))
        throw error
      }
    },
    openConsumer,
  }
}

// ERR_MSG_SIZE_TOO_LARGE, ERR_TOPIC_EXCEPTION, ERR_RECORD_LIST_TOO_LARGE, ERR_TOPIC_AUTHORIZATION_FAILED, ERR_INVALID_RECORD,
// ERR_UNKNOWN_TOPIC_OR_PART, and the client's own ERR__UNKNOWN_TOPIC and ERR__UNKNOWN_PARTITION.
const finalCodes = [10, 17, 18, 29, 87, 3, -188, -190]

const connectMs = 30_000

async function connected<C extends Connection>(connection: C): Promise<C> {
  await called((done) => connection.connect({ timeout: connectMs }, done))
  return connection
}

/** A call with a callback as a promise. */
export function called<T>(call: (done: Callback<T>) => unknown): Promise<T> {
  return new Promise((resolve, reject) => call((error, answer) => (error ? reject(error) : resolve(answer))))
}

/** Settings of the user that would break a promise, by name. */
function refuseSettings(settings: ConfluentSettings): void {
  const acks = String(settings['acks'] ?? settings['request.required.acks'] ?? 'all')
  refuse('an idempotent producer', { acks: acks === '-1' ? 'all' : acks }, { acks: 'all' })
  refuse('an idempotent producer', settings, idempotence)
  refuse('a consumer whose offsets follow its handler', settings, { 'enable.auto.commit': false })
}

function refuse(what: string, settings: ConfluentSettings, wanted: ConfluentSettings): void {
  for (const [name, value] of Object.entries(wanted)) {
    if (settings[name] === undefined || String(settings[name]) === String(value)) continue
    throw invalidArgument(
      `confluentClient: expected ${name} to be ${String(value)} for ${what}, got ${String(settings[name])}. Remove it.`,
    )
  }
}

const idempotence = { 'enable.idempotence': true, 'enable.gapless.guarantee': true }

function producerSettings(settings: ConfluentSettings): object {
  const ofConsumers =
    /^(group\.|fetch\.|queued\.|isolation\.level|auto\.offset|enable\.auto|enable\.partition\.eof|session\.)/
  const given = Object.fromEntries(Object.entries(settings).filter(([name]) => !ofConsumers.test(name)))
  // No time-out of a single message: with one, a later message of a key could arrive although an earlier one was given up. The
  // publisher has a time-out for all, after which it gives up the whole producer.
  const timeouts = { 'message.timeout.ms': 0, 'topic.metadata.propagation.max.ms': 5_000 }
  return {
    log_level: 0,
    partitioner: 'murmur2_random',
    ...timeouts,
    ...given,
    ...idempotence,
    acks: 'all',
    dr_cb: true,
  }
}

function consumerSettings(
  settings: ConfluentSettings,
  options: ConfluentConsumerOptions,
  rebalance: RebalanceCallback,
): object {
  const ofProducers =
    /^(acks|request\.required\.acks|enable\.idempotence|enable\.gapless|partitioner|message\.timeout|linger|batch\.|compression|transaction)/
  const given = Object.fromEntries(Object.entries(settings).filter(([name]) => !ofProducers.test(name)))
  // The broker has the session of the new protocol.
  const classic = {
    'session.timeout.ms': options.sessionMs,
    'heartbeat.interval.ms': Math.ceil(options.sessionMs / 10),
  }
  return {
    log_level: 0,
    ...given,
    'group.id': options.group,
    'enable.auto.commit': false,
    'enable.auto.offset.store': false,
    'isolation.level': options.isolation,
    'auto.offset.reset': options.begin,
    'group.protocol': options.protocol,
    ...(options.protocol === 'classic' && classic),
    ...(options.instanceId !== undefined && { 'group.instance.id': options.instanceId }),
    rebalance_cb: rebalance,
  }
}

/** Each delivery report goes to the function that was given with the record. */
function listen(producer: ConfluentProducer): void {
  producer.setPollInBackground(true)
  producer.on(
    'delivery-report',
    (error: Error | null, report: { readonly opaque: (error: Error | undefined) => void }) =>
      report.opaque(error ?? undefined),
  )
  // Librdkafka goes on after these, and a message that fails says so itself.
  producer.on('event.error', () => {})
}

function sending(producer: ConfluentProducer): KafkaProducer {
  listen(producer)
  return {
    send: (outputs) =>
      Promise.all(
        outputs.map((output) => new Promise<Error | undefined>((settle) => produce(producer, output, settle))),
      ),
    close: async () => void (await called((done) => producer.disconnect(0, done))),
  }
}

/** Hands one record to librdkafka. `settle` is called with its delivery report. */
export function produce(
  producer: ConfluentProducer,
  output: KafkaOutput,
  settle: (error: Error | undefined) => void,
): void {
  const headers = Object.entries(output.headers).map(([name, value]) => ({ [name]: value }))
  try {
    producer.produce(output.topic, null, asBuffer(output.value), output.key ?? null, null, settle, headers)
  } catch (error) {
    settle(error as Error)
  }
}

function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.isBuffer(bytes) ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
}

type RebalanceCallback = (error: { readonly code: number }, partitions: readonly PartitionName[]) => void

/** A consumer between whose polls, and only there, partitions come and go. */
export interface PolledConsumer {
  readonly consumer: ConfluentConsumer
  /**
   * Lets partitions come and go, then returns what is there now, at most `max` records. `revoked` is awaited before a partition goes.
   * `lost` partitions are another member's already.
   */
  poll(
    max: number,
    revoked: (partitions: readonly PartitionName[], lost: boolean) => Promise<void>,
  ): Promise<readonly KafkaRecord[]>
  close(): Promise<void>
}

const assignCode = -175
const closeMs = 10_000

async function openPolled(
  create: (rebalance: RebalanceCallback) => ConfluentConsumer,
  topics: readonly string[],
): Promise<PolledConsumer> {
  // A rebalance waits here until the poll that it came with has been looked at: records of that poll belong to the old assignment.
  const rebalances: (readonly [coming: boolean, partitions: readonly PartitionName[]])[] = []
  let closing = false
  const carryOut = (coming: boolean, partitions: readonly PartitionName[]): void => {
    const cooperative = consumer.rebalanceProtocol() === 'COOPERATIVE'
    if (coming) return void (cooperative ? consumer.incrementalAssign(partitions) : consumer.assign(partitions))
    if (cooperative) consumer.incrementalUnassign(partitions)
    else consumer.unassign()
  }
  const consumer: ConfluentConsumer = create(({ code }, partitions) => {
    if (closing) carryOut(code === assignCode, partitions)
    else rebalances.push([code === assignCode, partitions])
  })
  consumer.on('event.error', () => {})
  await connected(consumer)
  consumer.setDefaultConsumeTimeout(0)
  consumer.setDefaultIsTimeoutOnlyForFirstMessage(true)
  consumer.subscribe(topics)
  return {
    consumer,
    async poll(max, revoked) {
      for (let next = rebalances.shift(); next; next = rebalances.shift()) {
        const [coming, partitions] = next
        if (!coming) await revoked(partitions, consumer.assignmentLost())
        carryOut(coming, partitions)
      }
      return (await called<ConfluentMessage[]>((done) => consumer.consume(max, done))).map(recordOf)
    },
    async close() {
      closing = true
      for (const [coming, partitions] of rebalances.splice(0)) carryOut(coming, partitions)
      const left = called((done) => consumer.disconnect(done))
      // Without a coordinator there is no one to say goodbye to.
      await Promise.race([left, sleep(systemClock, closeMs, { background: 'background' })])
    },
  }
}

function recordOf(message: ConfluentMessage): KafkaRecord {
  const { topic, partition, offset, key, value, timestamp } = message
  const headers = Object.fromEntries(
    (message.headers ?? []).flatMap((header) => Object.entries(header).map(([name, text]) => [name, text.toString()])),
  )
  return {
    topic,
    partition,
    offset: BigInt(offset),
    key: key === null || key === undefined ? undefined : Buffer.from(key),
    value: value ?? undefined,
    headers,
    timestampMs: timestamp,
    raw: message,
  }
}

// A lane that holds this many records takes no more until half of them are done with. Pausing costs what was fetched ahead.
const laneMax = 1_000
const pollMax = 500

/** The loop of a member whose records go through lanes. */
function joined(polled: PolledConsumer, options: KafkaGroupOptions): KafkaMember {
  const { consumer } = polled
  const paused = new Map<string, PartitionName>()
  const nameOf = ({ topic, partition }: PartitionName): string => `${partition} ${topic}`
  let stopping = false
  const lanes: PartitionLanes = createLanes({
    ...options,
    clock: systemClock,
    commit: async ({ topic, partition }, next) => {
      await called((done) => consumer.commitCb([{ topic, partition, offset: Number(next) }], done))
    },
    onProgress(of) {
      if (!paused.has(nameOf(of)) || lanes.waiting(of) > laneMax / 2) return
      paused.delete(nameOf(of))
      consumer.resume([of])
    },
  })
  const revoked = async (partitions: readonly PartitionName[], lost: boolean): Promise<void> => {
    for (const of of partitions) paused.delete(nameOf(of))
    await lanes.drop(lost ? 0 : options.handoverMs, partitions)
  }
  const takeSome = async (): Promise<number> => {
    const records = await polled.poll(pollMax, revoked)
    for (const record of records) lanes.push(record)
    for (const { topic, partition } of records) {
      const of = { topic, partition }
      if (lanes.waiting(of) < laneMax || paused.has(nameOf(of))) continue
      paused.set(nameOf(of), of)
      consumer.pause([of])
    }
    return records.length
  }
  const loop = async (): Promise<void> => {
    for (let idle = 0; !stopping;) {
      try {
        idle = (await takeSome()) > 0 ? 0 : idle + 1
      } catch (error) {
        if ((error as ConfluentError).code === fatalCode) return options.onEnd(error)
        options.onError(error)
        idle += 1
      }
      if (idle > 0) await sleep(systemClock, backoffMs(backoffs.kafkaPoll, idle, systemRandom))
    }
  }
  const running = loop()
  let stopped: Promise<void> | undefined
  const stop = async (): Promise<void> => {
    stopping = true
    await running
    await lanes.drop(Infinity)
    await polled.close()
  }
  return { stop: () => (stopped ??= stop()) }
}

// ERR__FATAL.
const fatalCode = -150

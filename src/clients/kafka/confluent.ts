// @confluentinc/kafka-javascript through its callback API, which is librdkafka's: the caller polls, and a partition leaves only when the
// caller lets it go. Its errors are known by `code`; `isFatal` is false even for a producer that was fenced.

import { sleep, systemClock } from '../../core/clock.ts'
import { invalidArgument } from '../../core/errors.ts'
import type { KafkaClient, KafkaGroupOptions, KafkaOutput, KafkaProducer, KafkaRecord } from '../kafka.ts'
import {
  called,
  type ConfluentAdmin,
  type ConfluentConsumer,
  type ConfluentError,
  type ConfluentMessage,
  type ConfluentProducer,
  type Connection,
  type PolledConsumer,
  recordOf,
} from './confluent/library.ts'
import { readCompacted, requireCompacted } from './confluent/compacted-topic.ts'
import { serveMember } from './confluent/member.ts'
import { placed } from './confluent/placing.ts'
import { openMember } from './member.ts'
import type { PartitionName } from './partition-lanes.ts'

export { called, type ConfluentError, type ConfluentProducer, type PolledConsumer } from './confluent/library.ts'

/** `import confluent from '@confluentinc/kafka-javascript'`. */
export interface ConfluentLibrary {
  readonly Producer: new (settings: never) => object
  readonly KafkaConsumer: new (settings: never) => object
  readonly AdminClient: { create(settings: never): object }
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
  /** Creates a compacted topic, unless it is there. Resolves to the number of its partitions. */
  requireCompacted(topic: string): Promise<number>
  /**
   * Reads a partition from its beginning to this offset, without the records of aborted transactions. It waits while an open transaction
   * lies before the offset, for `timeoutMs` at the most.
   */
  readCompacted(of: PartitionName, until: bigint, timeoutMs: number): AsyncIterable<KafkaRecord>
}

export type ConfluentConsumerOptions = Pick<
  KafkaGroupOptions,
  'topics' | 'group' | 'isolation' | 'begin' | 'instanceId' | 'protocol' | 'sessionMs' | 'startAt'
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
  const openAdmin = (): ConfluentAdmin => library.AdminClient.create(adminSettings(settings) as never) as ConfluentAdmin
  const openConsumer = (options: ConfluentConsumerOptions): Promise<PolledConsumer> => {
    const { startAt, topics } = options
    const place =
      startAt &&
      ((consumer: ConfluentConsumer, coming: readonly PartitionName[]) =>
        placed({ startAt, consumer, openAdmin }, coming))
    return openPolled((rebalance) => newConsumer(consumerSettings(settings, options, rebalance)), topics, place)
  }
  return {
    name: '@confluentinc/kafka-javascript',
    abilities: {
      readCommitted: true,
      transactions: true,
      staticMembership: true,
      consumerProtocol: true,
      placing: true,
    },
    isFinal: (error) => finalCodes.includes((error as ConfluentError).code),
    async producer() {
      const producer = newProducer(producerSettings(settings))
      return sending(await connected(producer))
    },
    join: async (options) =>
      openMember((stopping) => serveMember(() => openConsumer(options), options, stopping), options),
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
    requireCompacted: (topic) => requireCompacted(openAdmin, topic),
    readCompacted(of, until, timeoutMs) {
      const open = (): Promise<ConfluentConsumer> =>
        connected(newConsumer(consumerSettings(settings, outsideOfGroups(of.topic), () => {})))
      return readCompacted(open, { of, until, timeoutMs })
    },
  }
}

/** A consumer that joins no group. Librdkafka wants the name of one all the same. */
function outsideOfGroups(topic: string): ConfluentConsumerOptions {
  return {
    topics: [topic],
    group: `onceonly ${topic}`,
    isolation: 'read_committed',
    begin: 'earliest',
    instanceId: undefined,
    protocol: 'classic',
    sessionMs: 45_000,
    startAt: undefined,
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

const notOfAdmins =
  /^(group\.|fetch\.|queued\.|isolation\.level|auto\.offset|enable\.|session\.|acks|request\.required|partitioner|message\.|linger|batch\.|compression|transaction)/

function adminSettings(settings: ConfluentSettings): object {
  return { log_level: 0, ...Object.fromEntries(Object.entries(settings).filter(([name]) => !notOfAdmins.test(name))) }
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

/** Called with the delivery report of a record: why it was not delivered, or at which offset it is. */
export type Settle = (error: Error | undefined, offset?: number) => void

/** Each delivery report goes to the function that was given with the record. */
function listen(producer: ConfluentProducer): void {
  producer.setPollInBackground(true)
  producer.on(
    'delivery-report',
    (error: Error | null, { opaque, offset }: { readonly opaque: Settle; readonly offset?: number }) =>
      opaque(error ?? undefined, offset),
  )
  // Librdkafka goes on after these, and a message that fails says so itself.
  producer.on('event.error', () => {})
}

function sending(producer: ConfluentProducer): KafkaProducer {
  listen(producer)
  return {
    send: (outputs) =>
      Promise.all(
        outputs.map(
          (output) => new Promise<Error | undefined>((resolve) => produce(producer, output, (error) => resolve(error))),
        ),
      ),
    close: async () => void (await called((done) => producer.disconnect(0, done))),
  }
}

/** Closes a transactional producer. Librdkafka need not answer, and the next producer of the same name fences this one anyway. */
export async function closeProducer(producer: ConfluentProducer): Promise<void> {
  const closed = called((done) => producer.disconnect(0, done)).catch(() => {})
  await Promise.race([closed, sleep(systemClock, closeProducerMs, { background: 'background' })])
}

const closeProducerMs = 3_000

/** Hands one record to librdkafka. */
export function produce(
  producer: ConfluentProducer,
  output: KafkaOutput & { readonly partition?: number },
  settle: Settle,
): void {
  const headers = Object.entries(output.headers).map(([name, value]) => ({ [name]: value }))
  try {
    const { topic, partition = null, value, key = null } = output
    producer.produce(topic, partition, asBuffer(value), key, null, settle, headers)
  } catch (error) {
    settle(error as Error)
  }
}

function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.isBuffer(bytes) ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
}

type RebalanceCallback = (error: { readonly code: number }, partitions: readonly PartitionName[]) => void

const assignCode = -175
const closeMs = 10_000

type Place = (
  consumer: ConfluentConsumer,
  coming: readonly PartitionName[],
) => Promise<readonly (PartitionName & { readonly offset?: number })[]>

async function openPolled(
  create: (rebalance: RebalanceCallback) => ConfluentConsumer,
  topics: readonly string[],
  place: Place = async (_, coming) => coming,
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
  /** Librdkafka refuses an assignment to a consumer that is leaving. What is thrown in its callback would end the process. */
  const carryOutWhileClosing = (coming: boolean, partitions: readonly PartitionName[]): void => {
    try {
      carryOut(coming, partitions)
    } catch {}
  }
  const consumer: ConfluentConsumer = create(({ code }, partitions) => {
    if (closing) carryOutWhileClosing(code === assignCode, partitions)
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
      for (let next = rebalances[0]; next; next = rebalances[0]) {
        const [coming, partitions] = next
        // What cannot be placed now waits for the next poll.
        const placed = coming ? await place(consumer, partitions) : partitions
        if (!coming) await revoked(partitions, consumer.assignmentLost())
        rebalances.shift()
        carryOut(coming, placed)
      }
      return (await called<ConfluentMessage[]>((done) => consumer.consume(max, done))).map(recordOf)
    },
    async close() {
      closing = true
      for (const [coming, partitions] of rebalances.splice(0)) carryOutWhileClosing(coming, partitions)
      const left = called((done) => consumer.disconnect(done))
      // Without a coordinator there is no one to say goodbye to.
      await Promise.race([left, sleep(systemClock, closeMs, { background: 'background' })])
    },
  }
}

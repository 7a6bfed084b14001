// @platformatic/kafka. Concurrent sends of its idempotent producer are lost without an error, so there is one send at a time. Its
// read_committed consumer hands out aborted records, so it is for topics without transactions, and the handler needs an inbox.

import { systemClock } from '../../core/clock.ts'
import { invalidArgument } from '../../core/errors.ts'
import type { KafkaClient, KafkaGroupOptions, KafkaProducer, KafkaRecord } from '../kafka.ts'
import { watchHalts, openMember } from './member.ts'
import { createLanes, type PartitionLanes } from './partition-lanes.ts'

/** `import * as platformatic from '@platformatic/kafka'`. */
export interface PlatformaticLibrary {
  readonly Producer: new (settings: never) => object
  readonly Consumer: new (settings: never) => object
  /** The partitions of Java's client. Its own default has others. */
  readonly compatibilityPartitioner: (...given: never[]) => number
}

interface PlatformaticProducer {
  send(options: {
    readonly messages: {
      readonly topic: string
      readonly key?: Buffer
      readonly value: Buffer
      readonly headers: Map<Buffer, Buffer>
    }[]
  }): Promise<unknown>
  on(event: 'error', listener: () => void): unknown
  close(force?: boolean): Promise<void>
}

interface PlatformaticConsumer {
  readonly generationId: number
  on(event: string, listener: (given: unknown) => void): unknown
  consume(options: object): Promise<PlatformaticStream>
  commit(options: {
    readonly offsets: { topic: string; partition: number; offset: bigint; leaderEpoch: number }[]
  }): Promise<void>
  close(force?: boolean): Promise<void>
}

interface PlatformaticStream {
  on(event: 'data', listener: (message: PlatformaticMessage) => void): unknown
  on(event: 'error', listener: (error: Error) => void): unknown
  on(event: 'close', listener: () => void): unknown
  pause(): unknown
  resume(): unknown
}

interface PlatformaticMessage {
  readonly topic: string
  readonly partition: number
  readonly offset: bigint
  readonly timestamp: bigint
  readonly key?: Buffer
  readonly value?: Buffer
  readonly headers: ReadonlyMap<Buffer, Buffer>
  readonly metadata?: { readonly consumer?: { readonly generationId?: number } }
}

export type PlatformaticSettings = Readonly<Record<string, unknown>>

/**
 * Kafka by Platformatic's client: a publisher that sends one batch at a time, and a consumer with an inbox for topics that no producer
 * writes in transactions.
 *
 * @example
 * import * as platformatic from '@platformatic/kafka'
 * import { platformaticClient } from 'onceonly/kafka'
 *
 * const client = platformaticClient(platformatic, { clientId: 'orders', bootstrapBrokers: ['localhost:9092'] })
 */
export function platformaticClient(library: PlatformaticLibrary, settings: PlatformaticSettings): KafkaClient {
  for (const name of ['Producer', 'Consumer', 'compatibilityPartitioner'] as const) {
    if (typeof library?.[name] !== 'function') {
      throw invalidArgument(
        `platformaticClient: expected the library, with ${name}, got ${typeof library}. Use import * as platformatic from '@platformatic/kafka'.`,
      )
    }
  }
  for (const [name, broken] of [
    ['idempotent', false],
    ['autocommit', true],
  ] as const) {
    if (settings[name] === broken)
      throw invalidArgument(`platformaticClient: expected ${name} to be ${!broken}, got ${broken}. Remove it.`)
  }
  const newProducer = library.Producer as unknown as new (settings: object) => PlatformaticProducer
  const newConsumer = library.Consumer as unknown as new (settings: object) => PlatformaticConsumer
  return {
    name: '@platformatic/kafka',
    abilities: {
      readCommitted: false,
      transactions: false,
      staticMembership: true,
      consumerProtocol: false,
      placing: false,
    },
    isFinal: (error) => isUnknownTopic(error as Error) || codesIn(error).some((code) => finalCodes.includes(code)),
    async producer() {
      const promised = { idempotent: true, acks: -1, autocreateTopics: false }
      const partitioner = library.compatibilityPartitioner
      return sending(new newProducer({ ...retries, partitioner, ...settings, ...promised }))
    },
    async join(options) {
      const create = (more: object): PlatformaticConsumer => new newConsumer({ ...retries, ...settings, ...more })
      return openMember((stopping) => serve(create, options, stopping), options)
    },
  }
}

// By default it asks for a topic that does not exist for ever, once per second. The publisher and the relay try again anyway.
const retries = { retries: 10, retryDelay: 50 }

/** Found out by the client itself, whose error has no code of the broker. */
const isUnknownTopic = ({ message }: Error): boolean => /^unknown topic/i.test(message)

const finalCodes = [
  'MESSAGE_TOO_LARGE',
  'RECORD_LIST_TOO_LARGE',
  'INVALID_TOPIC_EXCEPTION',
  'TOPIC_AUTHORIZATION_FAILED',
  'UNKNOWN_TOPIC_OR_PARTITION',
  'INVALID_RECORD',
]

/** An error of several requests holds theirs. */
function codesIn(error: unknown): string[] {
  const { apiId, errors = [] } = error as { readonly apiId?: string; readonly errors?: readonly unknown[] }
  return [...(apiId ? [apiId] : []), ...errors.flatMap(codesIn)]
}

function sending(producer: PlatformaticProducer): KafkaProducer {
  // A send that fails says so itself.
  producer.on('error', () => {})
  return {
    async send(outputs) {
      const messages = outputs.map(({ topic, key, value, headers }) => ({
        topic,
        ...(key !== undefined && { key: Buffer.from(key) }),
        value: Buffer.from(value),
        headers: new Map(Object.entries(headers).map(([name, text]) => [Buffer.from(name), Buffer.from(text)])),
      }))
      try {
        await producer.send({ messages })
        return outputs.map(() => undefined)
      } catch (error) {
        return outputs.map(() => error as Error)
      }
    },
    close: () => producer.close(true),
  }
}

// Of all partitions together: its stream can be paused, a partition of it cannot.
const waitingMax = 2_000

/** Resolves after `stopping`. Rejects when the stream has ended for another reason: it does not survive the end of a connection. */
async function serve(
  create: (more: object) => PlatformaticConsumer,
  options: KafkaGroupOptions,
  stopping: AbortSignal,
): Promise<void> {
  const consumer = create({
    groupId: options.group,
    autocommit: false,
    sessionTimeout: options.sessionMs,
    rebalanceTimeout: Math.max(options.sessionMs, options.handoverMs),
    heartbeatInterval: Math.ceil(options.sessionMs / 10),
    ...(options.instanceId !== undefined && { groupInstanceId: options.instanceId }),
  })
  let stream: PlatformaticStream | undefined
  const lanes: PartitionLanes = createLanes({
    ...options,
    clock: systemClock,
    commit: async ({ topic, partition }, next) => {
      halts.check()
      await consumer.commit({ offsets: [{ topic, partition, offset: next, leaderEpoch: -1 }] })
    },
    onProgress: () => void (lanes.waiting() <= waitingMax / 2 && stream?.resume()),
  })
  const failed = Promise.withResolvers<never>()
  const halts = watchHalts(options.sessionMs, () => {
    void lanes.drop(0)
    failed.reject(new Error('the process stood still'))
  })
  failed.promise.catch(() => {})
  // Without a listener it would end the process.
  consumer.on('error', failed.reject)
  // It does not wait for us, and reads on from the committed offsets: what is in the lanes comes again.
  for (const event of ['consumer:group:rebalance', 'consumer:group:join']) consumer.on(event, () => void lanes.drop(0))
  try {
    stream = await consumer.consume({
      topics: [...options.topics],
      mode: 'committed',
      fallbackMode: options.begin,
      autocommit: false,
      isolationLevel: readUncommitted,
      maxWaitTime: 500,
    })
    const flowing = flowUntilEnd(stream, consumer, lanes, stopping)
    // It may fail after the other has.
    flowing.catch(() => {})
    await Promise.race([flowing, failed.promise])
    await lanes.drop(Infinity)
  } finally {
    halts.stop()
    await lanes.drop(0)
    await consumer.close(true)
  }
}

const readUncommitted = 0

function flowUntilEnd(
  stream: PlatformaticStream,
  consumer: PlatformaticConsumer,
  lanes: PartitionLanes,
  stopping: AbortSignal,
): Promise<void> {
  return new Promise((resolve, reject) => {
    stopping.addEventListener('abort', () => resolve(), { once: true })
    if (stopping.aborted) resolve()
    stream.on('error', reject)
    stream.on('close', () => reject(new Error('the stream of @platformatic/kafka has closed')))
    stream.on('data', (message) => {
      const generation = message.metadata?.consumer?.generationId
      // Fetched before a rebalance, and buffered in the stream.
      if (generation !== undefined && generation !== consumer.generationId) return
      if (!stopping.aborted) lanes.push(recordOf(message))
      if (lanes.waiting() >= waitingMax) stream.pause()
    })
  })
}

function recordOf(message: PlatformaticMessage): KafkaRecord {
  const { topic, partition, offset, key, value, timestamp } = message
  const headers = Object.fromEntries([...message.headers].map(([name, text]) => [name.toString(), text.toString()]))
  return { topic, partition, offset, key, value, headers, timestampMs: Number(timestamp), raw: message }
}

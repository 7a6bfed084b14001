// kafkajs. Its consumer lets a zombie commit offsets, so it is for at-least-once with an inbox, and for no more. A zombie commits only
// what it has handled, hence such a commit brings records again and skips none.

import { systemClock } from '../../core/clock.ts'
import { invalidArgument } from '../../core/errors.ts'
import type { KafkaClient, KafkaGroupOptions, KafkaMember, KafkaProducer, KafkaRecord } from '../kafka.ts'
import { watchHalts } from './member.ts'
import { createLanes } from './partition-lanes.ts'

/** `new Kafka({ brokers })` of kafkajs. */
export interface KafkajsKafka {
  producer(options: object): KafkajsProducer
  consumer(options: {
    readonly groupId: string
    readonly sessionTimeout: number
    readonly heartbeatInterval: number
    readonly maxWaitTimeInMs: number
    readonly readUncommitted: boolean
    readonly allowAutoTopicCreation: boolean
  }): KafkajsConsumer
}

interface KafkajsProducer {
  connect(): Promise<void>
  disconnect(): Promise<void>
  sendBatch(batch: {
    readonly acks: number
    readonly topicMessages: {
      topic: string
      messages: { key: string | null; value: Buffer; headers: Record<string, string> }[]
    }[]
  }): Promise<unknown>
}

interface KafkajsConsumer {
  readonly events: { readonly CRASH: 'consumer.crash' }
  on(event: 'consumer.crash', listener: (event: { payload: { error: Error; restart: boolean } }) => void): unknown
  connect(): Promise<void>
  disconnect(): Promise<void>
  subscribe(options: { readonly topics: string[]; readonly fromBeginning: boolean }): Promise<void>
  run(options: {
    readonly autoCommit: boolean
    readonly eachBatchAutoResolve: boolean
    readonly partitionsConsumedConcurrently: number
    readonly eachBatch: (payload: KafkajsPayload) => Promise<void>
  }): Promise<void>
  commitOffsets(
    offsets: { readonly topic: string; readonly partition: number; readonly offset: string }[],
  ): Promise<void>
}

interface KafkajsPayload {
  readonly batch: { readonly topic: string; readonly partition: number; readonly messages: readonly KafkajsMessage[] }
  resolveOffset(offset: string): void
  heartbeat(): Promise<void>
}

interface KafkajsMessage {
  readonly key: Buffer | null
  readonly value: Buffer | null
  readonly timestamp: string
  readonly offset: string
  readonly headers?: Readonly<Record<string, Buffer | string | (Buffer | string)[] | undefined>>
}

/**
 * Kafka by kafkajs: a publisher, and a consumer with an inbox. It offers no `exactlyOnce`.
 *
 * @example
 * import { Kafka } from 'kafkajs'
 * import { kafkajsClient } from 'onceonly/kafka'
 *
 * const client = kafkajsClient(new Kafka({ brokers: ['localhost:9092'] }))
 */
export function kafkajsClient(kafka: KafkajsKafka): KafkaClient {
  if (typeof kafka?.producer !== 'function' || typeof kafka.consumer !== 'function') {
    throw invalidArgument(`kafkajsClient: expected new Kafka({ brokers }) of kafkajs, got ${typeof kafka}`)
  }
  return {
    name: 'kafkajs',
    abilities: {
      readCommitted: true,
      transactions: false,
      staticMembership: false,
      consumerProtocol: false,
      placing: false,
    },
    isFinal,
    producer: () => openProducer(kafka),
    join: (options) => join(kafka, options),
  }
}

const finalTypes = [
  'MESSAGE_TOO_LARGE',
  'RECORD_LIST_TOO_LARGE',
  'INVALID_TOPIC_EXCEPTION',
  'TOPIC_AUTHORIZATION_FAILED',
  'UNKNOWN_TOPIC_OR_PARTITION',
  'INVALID_RECORD',
]

/** After its retries the error of the broker is the cause. */
function isFinal(error: unknown): boolean {
  const { type, cause } = error as { readonly type?: string; readonly cause?: { readonly type?: string } }
  return finalTypes.includes(type ?? cause?.type ?? '')
}

async function openProducer(kafka: KafkajsKafka): Promise<KafkaProducer> {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, allowAutoTopicCreation: false })
  await producer.connect()
  return {
    // All of a partition in one request, which the broker stores or refuses as a whole.
    async send(outputs) {
      const byTopic = Map.groupBy(outputs, ({ topic }) => topic)
      const topicMessages = [...byTopic].map(([topic, each]) => ({
        topic,
        messages: each.map(({ key, value, headers }) => ({
          key: key ?? null,
          value: Buffer.from(value),
          headers: { ...headers },
        })),
      }))
      try {
        await producer.sendBatch({ acks: -1, topicMessages })
        return outputs.map(() => undefined)
      } catch (error) {
        return outputs.map(() => error as Error)
      }
    },
    close: () => producer.disconnect(),
  }
}

async function join(kafka: KafkajsKafka, options: KafkaGroupOptions): Promise<KafkaMember> {
  const heartbeatInterval = Math.ceil(options.sessionMs / 10)
  const consumer = kafka.consumer({
    groupId: options.group,
    sessionTimeout: options.sessionMs,
    heartbeatInterval,
    allowAutoTopicCreation: false,
    // A stop waits for the fetch that is under way.
    maxWaitTimeInMs: 500,
    readUncommitted: options.isolation === 'read_uncommitted',
  })
  consumer.on(consumer.events.CRASH, ({ payload: { error, restart } }) =>
    restart ? options.onError(error) : options.onEnd(error),
  )
  const underWay = new Set<Ending>()
  let stopping = false
  await consumer.connect()
  await consumer.subscribe({ topics: [...options.topics], fromBeginning: options.begin === 'earliest' })
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    partitionsConsumedConcurrently: options.partitionsAtOnce,
    eachBatch: async (payload) => {
      if (!stopping) await handleBatch({ payload, consumer, options, underWay, heartbeatInterval })
    },
  })
  let stopped: Promise<void> | undefined
  const stop = async (): Promise<void> => {
    stopping = true
    await Promise.all([...underWay].map((end) => end(Infinity)))
    await consumer.disconnect()
  }
  return { stop: () => (stopped ??= stop()) }
}

/** Ends a batch after the message that is being handled, for which it waits so long. */
type Ending = (waitMs: number) => Promise<void>

interface BatchUnderWay {
  readonly payload: KafkajsPayload
  readonly consumer: KafkajsConsumer
  readonly options: KafkaGroupOptions
  readonly underWay: Set<Ending>
  readonly heartbeatInterval: number
}

/**
 * A lane for this one batch. kafkajs calls for a partition again when the batch has returned, and it learns of a rebalance by the
 * heartbeat, which is ours to send while a message is being handled.
 */
async function handleBatch({ payload, consumer, options, underWay, heartbeatInterval }: BatchUnderWay): Promise<void> {
  const { topic, partition, messages } = payload.batch
  let settle = (): void => {}
  let left = messages.length
  const done = new Promise<void>((resolve) => (settle = resolve))
  const lanes = createLanes({
    ...options,
    clock: systemClock,
    partitionsAtOnce: 1,
    handle: async (batch) => {
      await options.handle(batch)
      left -= batch.records.length
      if (left === 0) settle()
    },
    commit: async (_, next) => {
      halts.check()
      await consumer.commitOffsets([{ topic, partition, offset: String(next) }])
      // Where kafkajs reads on.
      payload.resolveOffset(String(next - 1n))
    },
    onEnd: (error) => {
      options.onEnd(error)
      settle()
    },
    onProgress: () => {},
  })
  const end: Ending = async (waitMs) => {
    await lanes.drop(waitMs)
    settle()
  }
  underWay.add(end)
  const halts = watchHalts(options.sessionMs, () => void end(0))
  const beats = beating(payload, heartbeatInterval)
  beats.failed.catch(() => end(options.handoverMs))
  try {
    for (const message of messages) lanes.push(recordOf(topic, partition, message))
    await done
  } finally {
    underWay.delete(end)
    halts.stop()
    beats.stop()
  }
  // A rebalance: kafkajs must hear of it to join again.
  await Promise.race([beats.failed, Promise.resolve()])
}

/** `failed` rejects with the first heartbeat that does. */
function beating(payload: KafkajsPayload, everyMs: number): { readonly failed: Promise<never>; stop(): void } {
  let fail = (_error: unknown): void => {}
  const failed = new Promise<never>((_, reject) => (fail = reject))
  let cancel = (): void => {}
  const beat = (): void => {
    cancel = systemClock.schedule(() => {
      payload.heartbeat().then(beat, fail)
    }, everyMs)
  }
  beat()
  return { failed, stop: () => cancel() }
}

function recordOf(topic: string, partition: number, message: KafkajsMessage): KafkaRecord {
  const { key, value, timestamp, offset, headers = {} } = message
  const texts = Object.entries(headers).flatMap(([name, text]) => {
    const last = Array.isArray(text) ? text.at(-1) : text
    return last === undefined ? [] : [[name, last.toString()] as const]
  })
  return {
    topic,
    partition,
    offset: BigInt(offset),
    key: key ?? undefined,
    value: value ?? undefined,
    headers: Object.fromEntries(texts),
    timestampMs: Number(timestamp),
    raw: message,
  }
}

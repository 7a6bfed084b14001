// What the tests of onceonly/kafka share: topics with random names on the run's broker, the three clients, and an honest receiver in
// memory that stands where an inbox stands.
import { randomUUID } from 'node:crypto'
import * as platformatic from '@platformatic/kafka'
import { Kafka, logLevel } from 'kafkajs'
import {
  confluentClient,
  type ConfluentLibrary,
  type KafkaClient,
  kafkajsClient,
  platformaticClient,
} from '../../../src/messages/kafka.ts'
import type { BatchHandler, Delivered, Message, MessageHandler, Receiver } from '../../../src/messages/broker.ts'
import { confluent, requireConfluent } from '../../servers/confluent.ts'
import { kafka } from '../../servers/kafka.ts'
import { pollUntil } from '../../servers/poll.ts'
import { sharedUrl } from '../../servers/shared.ts'

export const sharedKafka = (): Promise<string> => sharedUrl(kafka)

const hostOf = (url: string): string => new URL(url).host

export function kafkajsOn(url: string, retries = 30): Kafka {
  return new Kafka({
    brokers: [hostOf(url)],
    logLevel: logLevel.NOTHING,
    retry: { initialRetryTime: 50, maxRetryTime: 500, retries },
  })
}

export function confluentOn(url: string, settings: object = {}): ReturnType<typeof confluentClient> {
  return confluentClient(requireConfluent() as ConfluentLibrary, { 'bootstrap.servers': hostOf(url), ...settings })
}

export function platformaticOn(url: string): KafkaClient {
  return platformaticClient(platformatic, { clientId: 'test', bootstrapBrokers: [hostOf(url)] })
}

/** Each client that this machine has, by its name. Confluent's must be compiled. */
export const clientsOn: Readonly<Record<string, (url: string) => KafkaClient>> = {
  ...(confluent.find().found && { '@confluentinc/kafka-javascript': confluentOn }),
  kafkajs: (url) => kafkajsClient(kafkajsOn(url, 6)),
  '@platformatic/kafka': platformaticOn,
}

export async function createTopic(url: string, partitions: number, name = 'topic'): Promise<string> {
  const topic = `${name}-${randomUUID()}`
  await requireTopic(url, topic, partitions)
  return topic
}

// Of a broker that its controller has not heard of for a second, or that has not heard of the new topic. kafkajs gives up on the first.
const passing = [
  'INVALID_REPLICATION_FACTOR',
  'UNKNOWN_TOPIC_OR_PARTITION',
  'LEADER_NOT_AVAILABLE',
  'REQUEST_TIMED_OUT',
  'NOT_CONTROLLER',
  'TOPIC_ALREADY_EXISTS',
]

function passes(error: unknown): false {
  const { errors = [error] } = error as { readonly errors?: readonly unknown[] }
  if (errors.every((each) => passing.includes((each as { readonly type?: string }).type ?? ''))) return false
  throw error
}

/** Creates the topic, also while one of its name is being deleted, and waits until its partitions can be written to. */
export async function requireTopic(url: string, topic: string, partitions = 1): Promise<void> {
  await withAdmin(url, async (admin) => {
    const isThere = async (): Promise<boolean> => {
      const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
      return topics[0]!.partitions.every(({ leader, partitionErrorCode }) => leader >= 0 && partitionErrorCode === 0)
    }
    await pollUntil(`topic ${topic}`, async () => {
      try {
        await admin.createTopics({ topics: [{ topic, numPartitions: partitions }], waitForLeaders: false })
        return await isThere()
      } catch (error) {
        return passes(error)
      }
    })
  })
}

export async function withAdmin<T>(url: string, work: (admin: ReturnType<Kafka['admin']>) => Promise<T>): Promise<T> {
  const admin = kafkajsOn(url).admin()
  await admin.connect()
  try {
    return await work(admin)
  } finally {
    await admin.disconnect()
  }
}

/** The next offset that the group has committed for each partition, -1 for none. */
export async function committedOffsets(url: string, group: string, topic: string): Promise<number[]> {
  const found = await withAdmin(url, (admin) => admin.fetchOffsets({ groupId: group, topics: [topic] }))
  const partitions = found.flatMap((each) => each.partitions)
  return partitions.sort((a, b) => a.partition - b.partition).map(({ offset }) => Number(offset))
}

/** Sends texts with their keys, in order, to the partition that is given or that follows from the key. */
export async function sendTexts(
  url: string,
  topic: string,
  texts: readonly (readonly [key: string, text: string, partition?: number])[],
): Promise<void> {
  const producer = kafkajsOn(url).producer({ idempotent: true })
  await producer.connect()
  const messages = texts.map(([key, value, partition]) => ({
    key,
    value,
    headers: { ce_id: value },
    ...(partition !== undefined && { partition }),
  }))
  await producer.send({ topic, acks: -1, messages })
  await producer.disconnect()
}

export interface MemoryReceiver extends Receiver<undefined> {
  /** Texts of the messages whose effect took place, in that order. */
  readonly effects: string[]
  /** How often a message came that was done with already. */
  duplicates: number
}

/** Remembers ids, as an inbox does, and runs a message again in 20 ms that failed. */
export function memoryReceiver(): MemoryReceiver {
  const seen = new Set<string>()
  const deliver = async (
    message: Message,
    handler: MessageHandler<undefined>,
    acknowledge: () => Promise<void>,
  ): Promise<Delivered> => {
    try {
      if (seen.has(message.id!)) receiver.duplicates++
      else {
        await handler(undefined, message)
        seen.add(message.id!)
        receiver.effects.push(Buffer.from(message.body).toString())
      }
      await acknowledge()
      return { acknowledged: true }
    } catch (error) {
      return { acknowledged: false, retryAfterMs: 20, error }
    }
  }
  const deliverBatch = async (
    messages: readonly Message[],
    handler: BatchHandler<undefined>,
    acknowledge: (positions: readonly number[]) => Promise<void>,
  ): Promise<readonly Delivered[]> => {
    const fresh = messages.filter(({ id }) => !seen.has(id!))
    try {
      await handler(undefined, fresh)
      for (const each of fresh) {
        seen.add(each.id!)
        receiver.effects.push(Buffer.from(each.body).toString())
      }
      receiver.duplicates += messages.length - fresh.length
      await acknowledge(messages.map((_, position) => position))
      return messages.map(() => ({ acknowledged: true }))
    } catch (error) {
      return messages.map(() => ({ acknowledged: false, retryAfterMs: 20, error }))
    }
  }
  const receiver: MemoryReceiver = { consumer: 'test', effects: [], duplicates: 0, deliver, deliverBatch }
  return receiver
}

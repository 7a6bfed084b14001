// Batches of the consumers that hold messages in hand: one transaction for many, one message of each key, each with its own end.
import { AckPolicy, jetstream, jetstreamManager } from '@nats-io/jetstream'
import { connect as connectNats, headers, type NatsConnection } from '@nats-io/transport-node'
import { connect } from 'amqplib'
import { createClient } from 'redis'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { BatchHandler, Consuming, Publisher, Receiver } from '../../src/messages/broker.ts'
import { natsBatchConsumer, natsPublisher } from '../../src/messages/nats.ts'
import { rabbitmqBatchConsumer, rabbitmqPublisher } from '../../src/messages/rabbitmq.ts'
import { type RedisClient, redisStreamBatchConsumer, redisStreamPublisher } from '../../src/messages/redis-streams.ts'
import { nats } from '../servers/nats.ts'
import { needs } from '../servers/needs.ts'
import { pollUntil } from '../servers/poll.ts'
import { rabbitmq } from '../servers/rabbitmq.ts'
import { startRedis } from '../servers/redis.ts'
import type { Running } from '../servers/server.ts'
import { sharedUrl } from '../servers/shared.ts'
import { numbered } from './outgoing.ts'
import { rememberingReceiver } from './remembering-receiver.ts'

interface Ground {
  readonly topic: string
  readonly publisher: Publisher
  consume(inbox: Receiver<string[]>, atOnce: number, handler: BatchHandler<string[]>): Consuming
  // Messages that the broker has not heard of the end of.
  open(): Promise<number>
}

// A receiver that gives the whole batch to its handler, and takes what fails out of it, as an inbox does.
function batchingReceiver(): { inbox: Receiver<string[]>; batches: string[][]; effects: string[] } {
  const { deliverBatch, ...rest } = rememberingReceiver()
  const batches: string[][] = []
  return {
    effects: rest.effects,
    batches,
    inbox: {
      ...rest,
      deliver: () => Promise.reject(new Error('one by one')),
      deliverBatch(messages, handler, acknowledge) {
        batches.push(messages.map(({ id }) => id!))
        return deliverBatch(messages, handler, acknowledge)
      },
    },
  }
}

async function inBatches({ topic, publisher, consume, open }: Ground): Promise<void> {
  const { inbox, batches, effects } = batchingReceiver()
  const sent = numbered(40, (n) => ({ topic, key: `key ${n % 8}` }))
  expect((await publisher.publish(sent)).filter(Boolean)).toEqual([])
  let failures = 0
  const consuming = consume(inbox, 10, (tx, fresh) => {
    if (fresh.some(({ id }) => id === 'm11') && failures++ < 2) throw new Error('not now')
    tx.push(...fresh.map(({ id }) => id!))
  })
  await pollUntil('all to be done', () => effects.length === 40)
  await consuming.stop()
  expect(failures).toBe(3)
  // In the order of each key, also after the failure, and each once.
  for (let rest = 0; rest < 8; rest += 1) {
    const own = effects.filter((id) => Number(id.slice(1)) % 8 === rest)
    expect(own).toEqual([0, 8, 16, 24, 32].map((n) => `m${n + rest}`))
  }
  expect(Math.max(...batches.map(({ length }) => length))).toBeGreaterThan(1)
  for (const batch of batches) {
    expect(batch.length).toBeLessThanOrEqual(10)
    expect(new Set(batch.map((id) => Number(id.slice(1)) % 8)).size).toBe(batch.length)
  }
  await pollUntil('all to be acknowledged', async () => (await open()) === 0)
}

needs('rabbitmq').test('RabbitMQ: batches keep the order of each key, and a failure sinks no other', async () => {
  const url = await sharedUrl(rabbitmq)
  const topic = `q-${crypto.randomUUID()}`
  const first = await connect(url)
  const channel = await first.createChannel()
  await channel.assertQueue(topic, { durable: true, arguments: { 'x-queue-type': 'quorum' } })
  const publisher = rabbitmqPublisher({ connect: () => connect(url) })
  await inBatches({
    topic,
    publisher,
    consume: (inbox, prefetch, handler) =>
      rabbitmqBatchConsumer({ connect: () => connect(url), queue: topic, inbox, prefetch }, handler),
    open: async () => (await channel.checkQueue(topic)).messageCount,
  })
  await publisher.close!()
  await first.close()
})

needs('nats').describe('NATS', () => {
  let connection: NatsConnection
  beforeAll(async () => void (connection = await connectNats({ servers: await sharedUrl(nats) })))
  afterAll(() => connection?.close())

  test('NATS: batches keep the order of each key, and a failure sinks no other', async () => {
    const stream = `s-${crypto.randomUUID()}`
    const manager = await jetstreamManager(connection)
    await manager.streams.add({ name: stream, subjects: [stream] })
    await manager.consumers.add(stream, { durable_name: 'test', ack_policy: AckPolicy.Explicit })
    const consumer = await jetstream(connection).consumers.get(stream, 'test')
    await inBatches({
      topic: stream,
      publisher: natsPublisher({ jetstream: jetstream(connection), headers }),
      consume: (inbox, inFlight, handler) => natsBatchConsumer({ consumer, inbox, inFlight }, handler),
      async open() {
        const { num_pending, num_ack_pending } = await manager.consumers.info(stream, 'test')
        return num_pending + num_ack_pending
      },
    })
  })
})

needs('redis').describe('Redis Streams', () => {
  let server: Running
  let client: RedisClient
  let pending = async (_stream: string): Promise<number> => 0
  let close = (): void => {}
  beforeAll(async () => {
    server = await startRedis()
    const connected = await createClient({ url: server.url }).connect()
    client = connected
    pending = async (stream) => (await connected.xPending(stream, 'test')).pending
    close = () => connected.destroy()
  })
  afterAll(async () => {
    close()
    await server?.stop()
  })

  test('Redis Streams: batches keep the order of each key, and a failure sinks no other', async () => {
    const topic = `s-${crypto.randomUUID()}`
    const place = { client, stream: topic, group: 'test', consumerName: 'one' }
    await inBatches({
      topic,
      publisher: redisStreamPublisher({ client }),
      consume: (inbox, inFlight, handler) => redisStreamBatchConsumer({ ...place, inbox, inFlight }, handler),
      open: () => pending(topic),
    })
  })
})

// What consumers and publishers hold in memory: no more than what is in flight, however much the broker has, and nothing of what is
// done with.
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { AckPolicy, jetstream, jetstreamManager } from '@nats-io/jetstream'
import { connect as connectNats, headers, type NatsConnection } from '@nats-io/transport-node'
import type { SQS } from '@aws-sdk/client-sqs'
import { connect } from 'amqplib'
import { createClient } from 'redis'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { Consuming, MessageHandler, Outgoing, Publisher, Receiver } from '../../src/messages/broker.ts'
import { natsConsumer, natsPublisher } from '../../src/messages/nats.ts'
import { rabbitmqConsumer, rabbitmqPublisher } from '../../src/messages/rabbitmq.ts'
import { type RedisClient, redisStreamConsumer, redisStreamPublisher } from '../../src/messages/redis-streams.ts'
import { sqsConsumer, sqsPublisher } from '../../src/messages/sqs.ts'
import { isLong } from '../long-run.ts'
import { elasticmq } from '../servers/elasticmq.ts'
import { nats } from '../servers/nats.ts'
import { needs } from '../servers/needs.ts'
import { pollUntil } from '../servers/poll.ts'
import { rabbitmq } from '../servers/rabbitmq.ts'
import { startRedis } from '../servers/redis.ts'
import type { Running } from '../servers/server.ts'
import { sharedUrl } from '../servers/shared.ts'
import { connectSqs, createQueue } from '../subjects/sqs.ts'

setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc') as () => void

interface Ground {
  readonly topic: string
  readonly publisher: Publisher
  consume(inbox: Receiver<unknown>, atOnce: number, handler: MessageHandler<unknown>): Consuming
}

// Remembers nothing, so that whatever grows is not its own.
const forgetful: Receiver<unknown> = {
  consumer: 'memory',
  async deliver(message, handler, acknowledge) {
    await handler(undefined, message)
    await acknowledge()
    return { acknowledged: true }
  },
  deliverBatch: () => Promise.reject(new Error('not asked for')),
}

async function bytesUsed(): Promise<number> {
  for (let times = 0; times < 3; times += 1) {
    await new Promise(setImmediate)
    collect()
  }
  const { heapUsed, arrayBuffers } = process.memoryUsage()
  return heapUsed + arrayBuffers
}

const messagesOf = (count: number, bytes: number, { topic }: Ground): Outgoing[] =>
  Array.from({ length: count }, (_, at) => ({
    id: crypto.randomUUID(),
    topic,
    key: `k${at}`,
    body: Buffer.alloc(bytes, 'x'),
    headers: { 'ce-type': 'test' },
  }))

// Brokers write every message to the disk: 10 MB in every run, and 52 MB with ONCEONLY_LONG=1.
const long = isLong ? 200 : 40

async function leavesNothing(ground: Ground, rounds = 3): Promise<void> {
  const count = 500
  let handled = 0
  const consuming = ground.consume(forgetful, 20, () => void (handled += 1))
  const sizes: number[] = []
  for (let round = 1; round <= rounds; round += 1) {
    const published = await ground.publisher.publish(messagesOf(count, 2_000, ground))
    expect(published.filter(Boolean)).toEqual([])
    await pollUntil('all to be handled', () => handled === round * count)
    sizes.push(await bytesUsed())
  }
  await consuming.stop()
  // The smallest growth of a round: what a compiler or a buffer takes meanwhile is no leak. A message that is left weighs 2,000.
  const growth = Math.min(...sizes.slice(1).map((size, at) => size - sizes[at]!))
  expect(growth / count).toBeLessThan(500)
}

async function holdsWhatIsInFlight(ground: Ground, count = long): Promise<void> {
  const bytes = 256 * 1_024
  for (let part = 0; part < count / 20; part += 1) {
    expect((await ground.publisher.publish(messagesOf(20, bytes, ground))).filter(Boolean)).toEqual([])
  }
  const before = await bytesUsed()
  let running = 0
  let release = (): void => {}
  const released = new Promise<void>((resolve) => (release = resolve))
  let handled = 0
  const consuming = ground.consume(forgetful, 4, async () => {
    running += 1
    await released
    handled += 1
  })
  await pollUntil('four handlers', () => running >= 4)
  // Whatever else the broker would send is here by now: nothing more comes while the four are in hand.
  const sizes: number[] = []
  for (let times = 0; times < 20; times += 1) {
    await new Promise((resolve) => setTimeout(resolve, 20))
    sizes.push((await bytesUsed()) - before)
  }
  expect(running).toBe(4)
  // 200 messages are 52 MB, 40 are 10 MB, four are 1 MB, and as much again for what a client reads ahead.
  expect(Math.max(...sizes)).toBeLessThan(16 * bytes)
  release()
  await pollUntil('all to be handled', () => handled === count)
  await consuming.stop()
}

needs('rabbitmq').describe('RabbitMQ', () => {
  async function ground(): Promise<Ground> {
    const url = await sharedUrl(rabbitmq)
    const topic = `q-${crypto.randomUUID()}`
    const first = await connect(url)
    await (await first.createChannel()).assertQueue(topic, { durable: true, arguments: { 'x-queue-type': 'quorum' } })
    await first.close()
    return {
      topic,
      publisher: rabbitmqPublisher({ connect: () => connect(url) }),
      consume: (inbox, prefetch, handler) =>
        rabbitmqConsumer({ connect: () => connect(url), queue: topic, inbox, prefetch }, handler),
    }
  }

  test('thousands of messages leave no memory behind', async () => {
    const here = await ground()
    await leavesNothing(here)
    await here.publisher.close!()
  })

  test('of a long queue a consumer holds no more than it has in flight', async () => {
    const here = await ground()
    await holdsWhatIsInFlight(here)
    await here.publisher.close!()
  })
})

needs('elasticmq').describe('SQS', () => {
  let client: SQS
  beforeAll(async () => void (client = connectSqs(await sharedUrl(elasticmq))))
  afterAll(() => client?.destroy())

  async function ground(): Promise<Ground> {
    const queueUrl = await createQueue(client)
    return {
      topic: 'orders',
      // A server that is small, on a machine that may be busy.
      publisher: sqsPublisher({ client, queueUrl, timeoutMs: 60_000 }),
      consume: (inbox, inFlight, handler) =>
        sqsConsumer({ client, queueUrl, inbox, inFlight, waitMs: 1_000, timeoutMs: 60_000 }, handler),
    }
  }

  test('thousands of messages leave no memory behind', async () => leavesNothing(await ground()))

  test('of a long queue a consumer holds no more than it has in flight', async () =>
    holdsWhatIsInFlight(await ground()))
})

needs('redis').describe('Redis Streams', () => {
  let server: Running
  let client: RedisClient
  let close = (): void => {}
  beforeAll(async () => {
    server = await startRedis()
    const connected = await createClient({ url: server.url }).connect()
    client = connected
    close = () => connected.destroy()
  })
  afterAll(async () => {
    close()
    await server?.stop()
  })

  function ground(): Ground {
    const topic = `s-${crypto.randomUUID()}`
    const place = { client, stream: topic, group: 'test', consumerName: 'one' }
    return {
      topic,
      publisher: redisStreamPublisher({ client }),
      consume: (inbox, inFlight, handler) => redisStreamConsumer({ ...place, inbox, inFlight }, handler),
    }
  }

  test('thousands of messages leave no memory behind', async () => leavesNothing(ground()))

  test('of a long stream a consumer holds no more than it has in flight', async () => holdsWhatIsInFlight(ground()))
})

needs('nats').describe('NATS', () => {
  let connection: NatsConnection
  beforeAll(async () => void (connection = await connectNats({ servers: await sharedUrl(nats) })))
  afterAll(() => connection?.close())

  async function ground(): Promise<Ground> {
    const stream = `s-${crypto.randomUUID()}`
    const manager = await jetstreamManager(connection)
    await manager.streams.add({ name: stream, subjects: [stream] })
    await manager.consumers.add(stream, { durable_name: 'test', ack_policy: AckPolicy.Explicit })
    const consumer = await jetstream(connection).consumers.get(stream, 'test')
    return {
      topic: stream,
      publisher: natsPublisher({ jetstream: jetstream(connection), headers }),
      consume: (inbox, inFlight, handler) => natsConsumer({ consumer, inbox, inFlight }, handler),
    }
  }

  test('thousands of messages leave no memory behind', async () => leavesNothing(await ground()))

  test('of a long stream a consumer holds no more than it has in flight', async () =>
    holdsWhatIsInFlight(await ground()))
})

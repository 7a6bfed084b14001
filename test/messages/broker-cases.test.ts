// The cases of broker-cases.ts on the real brokers, each through its adapter, with a queue of its own for each case.
import { AckPolicy, jetstream, jetstreamManager } from '@nats-io/jetstream'
import { connect as connectNats, headers } from '@nats-io/transport-node'
import { connect } from 'amqplib'
import { createClient } from 'redis'
import { test } from 'vitest'
import { kafkaConsumer, kafkaPublisher } from '../../src/messages/kafka.ts'
import { natsConsumer, natsPublisher } from '../../src/messages/nats.ts'
import { rabbitmqConsumer, rabbitmqPublisher } from '../../src/messages/rabbitmq.ts'
import { redisStreamConsumer, redisStreamPublisher } from '../../src/messages/redis-streams.ts'
import { sqsConsumer, sqsPublisher } from '../../src/messages/sqs.ts'
import { elasticmq } from '../servers/elasticmq.ts'
import type { ServerName } from '../servers/index.ts'
import { nats } from '../servers/nats.ts'
import { needs } from '../servers/needs.ts'
import { rabbitmq } from '../servers/rabbitmq.ts'
import { redis } from '../servers/redis.ts'
import { sharedUrl } from '../servers/shared.ts'
import { connectSqs, createQueue } from '../subjects/sqs.ts'
import { atOnceMax, brokerCases } from './broker-cases.ts'
import type { BrokerGround } from './broker-cases.ts'
import { confluentOn, createTopic, sharedKafka } from './kafka/world.ts'

type Opened = BrokerGround & { close(): Promise<void> }

const newName = (): string => `q-${crypto.randomUUID()}`

const brokers: Readonly<Record<string, readonly [needed: readonly ServerName[], open: () => Promise<Opened>]>> = {
  Kafka: [['kafka', 'confluent'], openKafka],
  RabbitMQ: [['rabbitmq'], openRabbitmq],
  NATS: [['nats'], openNats],
  SQS: [['elasticmq'], openSqs],
  'Redis Streams': [['redis'], openRedis],
}

for (const [name, [needed, open]] of Object.entries(brokers)) {
  needs([...needed]).describe(name, () => {
    test.each(brokerCases)('$name', async ({ run }) => {
      const ground = await open()
      try {
        await run(ground)
      } finally {
        await ground.close()
      }
    })
  })
}

async function openKafka(): Promise<Opened> {
  const url = await sharedKafka()
  const topic = await createTopic(url, 2)
  const publisher = kafkaPublisher({ client: confluentOn(url) })
  return {
    topic,
    publisher,
    // More than a broker takes.
    refused: { body: new Uint8Array(1_500_000) },
    consume: async (inbox, handler) =>
      kafkaConsumer({ client: confluentOn(url), topics: [topic], group: topic, inbox, sessionMs: 6_000 }, handler),
    close: async () => publisher.close?.(),
  }
}

async function openRabbitmq(): Promise<Opened> {
  const url = await sharedUrl(rabbitmq)
  const topic = newName()
  const connection = await connect(url)
  const channel = await connection.createChannel()
  await channel.assertQueue(topic, { durable: true, arguments: { 'x-queue-type': 'quorum' } })
  const publisher = rabbitmqPublisher({ connect: () => connect(url) })
  return {
    topic,
    publisher,
    refused: { topic: newName() },
    consume: async (inbox, handler) =>
      rabbitmqConsumer({ connect: () => connect(url), queue: topic, inbox, prefetch: atOnceMax }, handler),
    async close() {
      await publisher.close?.()
      await connection.close()
    },
  }
}

async function openNats(): Promise<Opened> {
  const connection = await connectNats({ servers: await sharedUrl(nats) })
  const topic = newName()
  const manager = await jetstreamManager(connection)
  await manager.streams.add({ name: topic, subjects: [topic] })
  await manager.consumers.add(topic, { durable_name: 'test', ack_policy: AckPolicy.Explicit })
  const consumer = await jetstream(connection).consumers.get(topic, 'test')
  return {
    topic,
    publisher: natsPublisher({ jetstream: jetstream(connection), headers, timeoutMs: 5_000 }),
    refused: { topic: newName() },
    consume: async (inbox, handler) => natsConsumer({ consumer, inbox, inFlight: atOnceMax }, handler),
    close: () => connection.close(),
  }
}

async function openSqs(): Promise<Opened> {
  const client = connectSqs(await sharedUrl(elasticmq))
  const queueUrl = await createQueue(client, { FifoQueue: 'true' })
  return {
    topic: 'orders',
    publisher: sqsPublisher({ client, queueUrl }),
    // A byte more than SQS takes.
    refused: { body: new Uint8Array(1_048_577).fill(97) },
    consume: async (inbox, handler) => {
      // ElasticMQ gives a message to a question that was cut off when its consumer stopped, and hides it for this long.
      const settings = { waitMs: 1_000, visibilityMs: 5_000, inFlight: atOnceMax }
      return sqsConsumer({ client, queueUrl, inbox, ...settings }, handler)
    },
    close: async () => client.destroy(),
  }
}

async function openRedis(): Promise<Opened> {
  const client = await createClient({ url: await sharedUrl(redis) }).connect()
  const topic = newName()
  const noStream = newName()
  await client.set(noStream, 'a string')
  const place = { client, stream: topic, group: 'test', consumerName: 'one' }
  return {
    topic,
    publisher: redisStreamPublisher({ client }),
    refused: { topic: noStream },
    consume: async (inbox, handler) => redisStreamConsumer({ ...place, inbox, inFlight: atOnceMax }, handler),
    close: async () => client.destroy(),
  }
}

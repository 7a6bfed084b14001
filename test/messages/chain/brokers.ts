// The brokers of the chain: where its messages pass through, how a relay publishes there, and how a consumer reads from there. All of
// them keep what they have confirmed over a kill.
import { setTimeout as sleep } from 'node:timers/promises'
import { AckPolicy, jetstream, jetstreamManager } from '@nats-io/jetstream'
import { connect as connectNats, headers, nanos, type NatsConnection } from '@nats-io/transport-node'
import { connect } from 'amqplib'
import { createClient } from 'redis'
import type { Consuming, MessageHandler, Publisher, Receiver } from '../../../src/messages/broker.ts'
import { kafkaConsumer, kafkaPublisher } from '../../../src/messages/kafka.ts'
import { natsConsumer, natsPublisher } from '../../../src/messages/nats.ts'
import { rabbitmqConsumer, rabbitmqPublisher } from '../../../src/messages/rabbitmq.ts'
import { type RedisClient, redisStreamConsumer, redisStreamPublisher } from '../../../src/messages/redis-streams.ts'
import { sqsConsumer, sqsPublisher } from '../../../src/messages/sqs.ts'
import { startElasticmq } from '../../servers/elasticmq.ts'
import { startFaultProxy } from '../../servers/fault-proxy.ts'
import type { ServerName } from '../../servers/index.ts'
import { startKafka } from '../../servers/kafka.ts'
import { startNats } from '../../servers/nats.ts'
import { pollUntil } from '../../servers/poll.ts'
import { startRabbitmq } from '../../servers/rabbitmq.ts'
import { startRedis } from '../../servers/redis.ts'
import type { Running } from '../../servers/server.ts'
import { connectSqs, createQueue } from '../../subjects/sqs.ts'
import { confluentOn, withAdmin } from '../kafka/world.ts'

export const topic = 'orders'

export interface Started extends AsyncDisposable {
  // What a process needs to find the queue.
  readonly place: string
  // Takes the broker away from everyone for a moment, in the middle of what it does.
  strike(): Promise<void>
}

export interface Consumer<Tx> {
  readonly place: string
  readonly inbox: Receiver<Tx>
  // The same for a process and for the one that is started in its place.
  readonly name: string
}

export interface ChainBroker {
  readonly needs: readonly ServerName[]
  // Consumers at once: more than one only where the broker itself keeps the order of a key among them.
  readonly consumers: number
  // Why no order can be asked for.
  readonly noOrder?: string
  start(): Promise<Started>
  publisher(place: string): Promise<Publisher>
  consume<Tx>(as: Consumer<Tx>, handler: MessageHandler<Tx>): Promise<Consuming>
}

function killed(server: Running, place: string): Started {
  return {
    place,
    async strike() {
      await server.crash()
      await server.restart()
    },
    [Symbol.asyncDispose]: () => server.stop(),
  }
}

const rabbitmq: ChainBroker = {
  needs: ['rabbitmq'],
  consumers: 2,
  async start() {
    const server = await startRabbitmq()
    const connection = await connect(server.url)
    const channel = await connection.createChannel()
    const settings = { 'x-queue-type': 'quorum', 'x-delivery-limit': -1, 'x-single-active-consumer': true }
    await channel.assertQueue(topic, { durable: true, arguments: settings })
    await connection.close()
    await server.queueKept(topic)
    return killed(server, server.url)
  },
  publisher: async (place) => rabbitmqPublisher({ connect: () => connect(place), timeoutMs: 5_000 }),
  consume: async ({ place, inbox }, handler) =>
    rabbitmqConsumer({ connect: () => connect(place), queue: topic, inbox }, handler),
}

const nats: ChainBroker = {
  needs: ['nats'],
  consumers: 2,
  async start() {
    const server = await startNats()
    const connection = await natsAt(server.url)
    const manager = await jetstreamManager(connection)
    await manager.streams.add({ name: topic, subjects: [topic] })
    // JetStream delivers later messages before those of a consumer that died. With one at a time there are no later ones.
    const inOrder = { ack_policy: AckPolicy.Explicit, ack_wait: nanos(1_000), max_ack_pending: 1 }
    await manager.consumers.add(topic, { durable_name: 'chain', ...inOrder })
    await connection.close()
    return killed(server, server.url)
  },
  async publisher(place) {
    const connection = await natsAt(place)
    const publisher = natsPublisher({ jetstream: jetstream(connection), headers, stream: topic, timeoutMs: 2_000 })
    return { ...publisher, close: () => connection.close() }
  },
  async consume({ place, inbox }, handler) {
    const found = jetstream(await natsAt(place)).consumers
    // A server that has just come back may not have its streams yet.
    const consumer = await pollUntil('the consumer', () => found.get(topic, 'chain').catch(() => undefined))
    return natsConsumer({ consumer, inbox, timeoutMs: 1_000 }, handler)
  },
}

const natsAt = (url: string): Promise<NatsConnection> =>
  connectNats({ servers: url, waitOnFirstConnect: true, maxReconnectAttempts: -1, reconnectTimeWait: 100 })

const sqs = {
  needs: ['elasticmq'],
  consumers: 2,
  publisher: async (place) => sqsPublisher({ client: sqsAt(place), queueUrl: place, timeoutMs: 5_000 }),
  consume: async ({ place, inbox }, handler) => {
    const settings = { waitMs: 1_000, visibilityMs: 2_000, timeoutMs: 5_000 }
    return sqsConsumer({ client: sqsAt(place), queueUrl: place, inbox, ...settings }, handler)
  },
} satisfies Omit<ChainBroker, 'start'>

async function fifoQueue(server: Running): Promise<string> {
  const client = connectSqs(server.url)
  const queueUrl = await createQueue(client, { FifoQueue: 'true' })
  client.destroy()
  return queueUrl
}

// All connections are reset, with the requests that are on their way, and new ones too for a while.
const sqsCutOff: ChainBroker = {
  ...sqs,
  async start() {
    const server = await startElasticmq()
    const proxy = await startFaultProxy({ target: server })
    return {
      place: (await fifoQueue(server)).replace(new URL(server.url).host, `127.0.0.1:${proxy.port}`),
      async strike() {
        await proxy.setMode('reset')
        await sleep(500)
        await proxy.setMode('pass')
      },
      async [Symbol.asyncDispose]() {
        await proxy.close()
        await server.stop()
      },
    }
  },
}

const sqsKilled: ChainBroker = {
  ...sqs,
  noOrder: 'ElasticMQ that was killed hands out the messages that were in flight behind the later ones of their group',
  async start() {
    const server = await startElasticmq()
    return killed(server, await fifoQueue(server))
  },
}

const sqsAt = (queueUrl: string): ReturnType<typeof connectSqs> => connectSqs(new URL(queueUrl).origin)

const redisStreams: ChainBroker = {
  needs: ['redis'],
  consumers: 1,
  async start() {
    const server = await startRedis({ config: { appendonly: 'yes', appendfsync: 'always' } })
    return killed(server, server.url)
  },
  publisher: async (place) => redisStreamPublisher({ client: await redisAt(place), timeoutMs: 1_000 }),
  consume: async ({ place, inbox, name }, handler) => {
    const at = { stream: topic, group: 'chain', consumerName: name, timeoutMs: 1_000, claimAfterMs: 5_000 }
    return redisStreamConsumer({ client: await redisAt(place), ...at, inbox }, handler)
  },
}

async function redisAt(url: string): Promise<RedisClient> {
  const client = createClient({ url })
  client.on('error', () => {})
  await client.connect()
  return client
}

const kafka: ChainBroker = {
  needs: ['kafka', 'confluent'],
  consumers: 2,
  async start() {
    const server = await startKafka()
    const topics = [{ topic, numPartitions: 4 }]
    await withAdmin(server.url, (admin) => admin.createTopics({ topics, waitForLeaders: true }))
    return killed(server, server.url)
  },
  publisher: async (place) => kafkaPublisher({ client: confluentOn(place), timeoutMs: 5_000 }),
  consume: async ({ place, inbox, name }, handler) => {
    // Static members: the one that is started again has the partitions of the one that was killed, without a rebalance.
    const settings = { topics: [topic], group: 'chain', instanceId: name }
    return kafkaConsumer({ client: confluentOn(place), ...settings, inbox }, handler)
  },
}

export const brokers = {
  kafka,
  nats,
  rabbitmq,
  'redis-streams': redisStreams,
  'sqs, cut off': sqsCutOff,
  'sqs, killed': sqsKilled,
} satisfies Record<string, ChainBroker>

export type BrokerName = keyof typeof brokers

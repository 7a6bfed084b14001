// What each feature of the messages costs or gains beside going without it, as ratios of pairs that are interleaved in one run: Kafka's
// transactional publisher beside the plain one, offsets in the database beside those of the group, batches of a consumer beside single
// messages, and logical decoding beside polling. Every consumer has its inbox on one PostgreSQL, and its effect is a row.

import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { AckPolicy, jetstream, jetstreamManager } from '@nats-io/jetstream'
import { connect as connectNats, headers } from '@nats-io/transport-node'
import { connect as connectRabbitmq } from 'amqplib'
import pg from 'pg'
import { createClient } from 'redis'
import { newId } from '../src/core/key.ts'
import { createOnce } from '../src/core/once.ts'
import type { BatchHandler, Consuming, MessageHandler, Outgoing, Publisher, Receiver } from '../src/messages/broker.ts'
import { createInbox } from '../src/messages/inbox.ts'
import { kafkaConsumer, kafkaPublisher, kafkaTransactionalPublisher } from '../src/messages/kafka.ts'
import { natsBatchConsumer, natsConsumer, natsPublisher } from '../src/messages/nats.ts'
import { createDecoding, createOutbox, createRelay } from '../src/messages/outbox.ts'
import type { Outbox, RelayOutbox } from '../src/messages/outbox.ts'
import { rabbitmqBatchConsumer, rabbitmqConsumer, rabbitmqPublisher } from '../src/messages/rabbitmq.ts'
import { redisStreamBatchConsumer, redisStreamConsumer, redisStreamPublisher } from '../src/messages/redis-streams.ts'
import { sqsBatchConsumer, sqsConsumer, sqsPublisher } from '../src/messages/sqs.ts'
import { postgresStore } from '../src/stores/postgres.ts'
import { confluentOn, createTopic } from '../test/messages/kafka/world.ts'
import { startElasticmq } from '../test/servers/elasticmq.ts'
import { startKafka } from '../test/servers/kafka.ts'
import { startNats } from '../test/servers/nats.ts'
import { requireReplication } from '../test/servers/pg-logical-replication.ts'
import { startPostgres } from '../test/servers/postgres.ts'
import type { RunningPostgres } from '../test/servers/postgres.ts'
import { startRabbitmq } from '../test/servers/rabbitmq.ts'
import { startRedis } from '../test/servers/redis.ts'
import { connectSqs, createQueue } from '../test/subjects/sqs.ts'
import { drainRates, median, ratioOf } from './measure.ts'
import type { Drained } from './measure.ts'
import { report } from './report.ts'

const rounds = 3
// Each enough for a second or so.
const rows = 600
const kafkaRows = 10_000
const batch = 100
// Messages that a consumer has in hand at once, single or in batches.
const inHand = 50

type Tx = pg.PoolClient
type Closing = (() => Promise<unknown>)[]

export async function benchMessages(): Promise<void> {
  const server = await startPostgres({ settings: { wal_level: 'logical' } })
  const closing: Closing = [() => server.stop()]
  try {
    const desk = await openDesk(server, closing)
    await benchKafka(desk, closing)
    for (const [broker, open] of Object.entries(brokers)) {
      const places = [await open(closing), await open(closing)] as const
      const rates = await drainRates(
        [consumer(desk, 'single', places[0]), consumer(desk, 'batches', places[1])],
        rounds,
      )
      const what = `${broker}: a consumer in batches against single messages: messages per second`
      report({ id: 'P10', what, measured: ratioOf(rates, 'batches', 'single') })
    }
    await benchDecoding(server, closing)
  } finally {
    for (const close of closing.reverse()) await close()
  }
}

/** Where consumers have their inbox and their effects. */
interface Desk {
  readonly inbox: Receiver<Tx>
  readonly one: MessageHandler<Tx>
  readonly many: BatchHandler<Tx>
}

async function openDesk(server: RunningPostgres, closing: Closing): Promise<Desk> {
  const pool = new pg.Pool({ connectionString: await server.createDatabase(), max: 20 })
  closing.push(() => pool.end())
  await pool.query('create table effects (id text not null)')
  const store = postgresStore({ pool })
  await store.migrate()
  const inbox = createInbox(createOnce({ store, scope: 'bench', sweepEveryMs: false }), { consumer: 'bench' })
  await inbox.migrate()
  return {
    inbox: inbox as Receiver<Tx>,
    one: (tx, { id }) => tx.query('insert into effects values ($1)', [id]),
    many: (tx, fresh) => tx.query('insert into effects select unnest($1::text[])', [fresh.map(({ id }) => id)]),
  }
}

/** A queue of its own, and both consumers of it. */
interface Place {
  readonly rows?: number
  readonly publisher: Publisher
  readonly topic: string
  single(inbox: Receiver<Tx>, handler: MessageHandler<Tx>): Consuming
  batches(inbox: Receiver<Tx>, handler: BatchHandler<Tx>): Consuming
}

function consumer({ inbox, one, many }: Desk, how: 'single' | 'batches', place: Place, name: string = how): Drained {
  let consuming: Consuming | undefined
  return {
    name,
    rows: place.rows ?? rows,
    async fill(count) {
      for (let left = count; left > 0; left -= batch) {
        const failed = (await place.publisher.publish(outgoing(place.topic, Math.min(left, batch)))).find(Boolean)
        if (failed) throw failed
      }
    },
    async drain(count) {
      const { counted, done } = counting(inbox, count)
      consuming = how === 'single' ? place.single(counted, one) : place.batches(counted, many)
      await done
    },
    verify: async () => consuming?.stop(),
  }
}

const outgoing = (topic: string, count: number): Outgoing[] =>
  Array.from({ length: count }, () => {
    return { id: newId(), topic, body: Buffer.from(JSON.stringify({ order: 'x'.repeat(280) })), headers: {} }
  })

/** `done` when so many are acknowledged. */
function counting(inbox: Receiver<Tx>, count: number): { counted: Receiver<Tx>; done: Promise<void> } {
  const { promise: done, resolve } = Promise.withResolvers<void>()
  let left = count
  const note = (some: number): void => void ((left -= some) <= 0 && resolve())
  const counted: Receiver<Tx> = {
    ...inbox,
    async deliver(...given) {
      const delivered = await inbox.deliver(...given)
      note(delivered.acknowledged ? 1 : 0)
      return delivered
    },
    async deliverBatch(...given) {
      const delivered = await inbox.deliverBatch(...given)
      note(delivered.filter(({ acknowledged }) => acknowledged).length)
      return delivered
    },
  }
  return { counted, done }
}

const brokers: Readonly<Record<string, (closing: Closing) => Promise<Place>>> = {
  async RabbitMQ(closing) {
    const server = await startRabbitmq()
    const connect = (): ReturnType<typeof connectRabbitmq> => connectRabbitmq(server.url)
    const topic = randomUUID()
    const first = await connect()
    await (await first.createChannel()).assertQueue(topic, { durable: true, arguments: { 'x-queue-type': 'quorum' } })
    await first.close()
    const publisher = rabbitmqPublisher({ connect })
    closing.push(
      () => server.stop(),
      () => publisher.close!(),
    )
    const options = { connect, queue: topic, prefetch: inHand }
    return {
      topic,
      publisher,
      single: (inbox, handler) => rabbitmqConsumer({ ...options, inbox }, handler),
      batches: (inbox, handler) => rabbitmqBatchConsumer({ ...options, inbox }, handler),
    }
  },
  async NATS(closing) {
    const server = await startNats()
    const connection = await connectNats({ servers: server.url })
    closing.push(
      () => server.stop(),
      () => connection.close(),
    )
    const topic = randomUUID()
    const manager = await jetstreamManager(connection)
    await manager.streams.add({ name: topic, subjects: [topic] })
    await manager.consumers.add(topic, { durable_name: 'bench', ack_policy: AckPolicy.Explicit })
    const options = { consumer: await jetstream(connection).consumers.get(topic, 'bench'), inFlight: inHand }
    return {
      topic,
      publisher: natsPublisher({ jetstream: jetstream(connection), headers }),
      single: (inbox, handler) => natsConsumer({ ...options, inbox }, handler),
      batches: (inbox, handler) => natsBatchConsumer({ ...options, inbox }, handler),
    }
  },
  async 'Redis Streams'(closing) {
    const server = await startRedis()
    const client = await createClient({ url: server.url }).connect()
    closing.push(
      () => server.stop(),
      async () => client.destroy(),
    )
    const options = { client, stream: 'orders', group: 'bench', consumerName: 'bench', inFlight: inHand }
    return {
      topic: 'orders',
      publisher: redisStreamPublisher({ client }),
      single: (inbox, handler) => redisStreamConsumer({ ...options, inbox }, handler),
      batches: (inbox, handler) => redisStreamBatchConsumer({ ...options, inbox }, handler),
    }
  },
  async SQS(closing) {
    const server = await startElasticmq()
    const client = connectSqs(server.url)
    closing.push(
      () => server.stop(),
      async () => client.destroy(),
    )
    const queueUrl = await createQueue(client)
    const options = { client, queueUrl, inFlight: inHand, waitMs: 1_000 }
    return {
      topic: 'orders',
      publisher: sqsPublisher({ client, queueUrl }),
      single: (inbox, handler) => sqsConsumer({ ...options, inbox }, handler),
      batches: (inbox, handler) => sqsBatchConsumer({ ...options, inbox }, handler),
    }
  },
}

async function benchKafka(desk: Desk, closing: Closing): Promise<void> {
  const server = await startKafka()
  closing.push(() => server.stop())
  const { url } = server
  const published = await drainRates([await plain(url, closing), await transactional(url, closing)], rounds)
  report({
    id: 'P9',
    what: `Kafka: the transactional publisher against the plain one, batches of ${batch}: rows per second`,
    measured: ratioOf(published, 'transactional', 'plain'),
  })
  for (const how of ['single', 'batches'] as const) {
    const places = [await kafkaPlace(url, 'kafka', closing), await kafkaPlace(url, 'database', closing)] as const
    const senders = [consumer(desk, how, places[0], 'kafka'), consumer(desk, how, places[1], 'database')]
    const rates = await drainRates(senders, rounds)
    const what = `Kafka: offsets in the database against those of the group, ${how === 'single' ? 'single messages' : 'batches'}: messages per second`
    report({ id: 'P10', what, measured: ratioOf(rates, 'database', 'kafka') })
  }
}

async function plain(url: string, closing: Closing): Promise<Drained> {
  const topic = await createTopic(url, 4)
  const publisher = kafkaPublisher({ client: confluentOn(url) })
  closing.push(() => publisher.close!())
  return publishing('plain', topic, (messages) => publisher.publish(messages))
}

async function transactional(url: string, closing: Closing): Promise<Drained> {
  const topic = await createTopic(url, 4)
  const publisher = kafkaTransactionalPublisher({ client: confluentOn(url), transactionalId: 'bench' })
  const shard = publisher.openShard({ shard: 0, epoch: 1, unsent: async (named) => named })
  closing.push(() => shard.close())
  let position = 0
  return publishing('transactional', topic, async (messages) => {
    const sent = await shard.publish(messages.map((message) => ({ ...message, place: `0 ${++position}` })))
    shard.marked(messages.map(({ id }) => id))
    return sent
  })
}

function publishing(name: string, topic: string, publish: Publisher['publish']): Drained {
  let waiting: Outgoing[] = []
  return {
    name,
    rows: kafkaRows,
    fill: async (count) => void (waiting = outgoing(topic, count)),
    async drain(count) {
      for (let sent = 0; sent < count; sent += batch) {
        const failed = (await publish(waiting.slice(sent, sent + batch))).find(Boolean)
        if (failed) throw failed
      }
    },
  }
}

async function kafkaPlace(url: string, offsets: 'kafka' | 'database', closing: Closing): Promise<Place> {
  const client = confluentOn(url)
  const topic = await createTopic(url, 4)
  const publisher = kafkaPublisher({ client })
  closing.push(() => publisher.close!())
  const options = { client, topics: [topic], group: randomUUID(), offsets, sessionMs: 6_000 }
  return {
    // A consumer takes some time to join its group.
    rows: 4 * rows,
    topic,
    publisher,
    single: (inbox, handler) => kafkaConsumer({ ...options, inbox }, handler),
    batches: (inbox, handler) => kafkaConsumer({ ...options, inbox }, { batch: handler }),
  }
}

/** A relay that runs, and another process that adds to its outbox. */
interface Relayed {
  readonly name: string
  /** Resolves when all of them are published. */
  add(count: number): Promise<void>
  /** Connections that the relay has taken out of its pool. */
  calls(): number
}

const pausesMs = [900, 1_250, 1_100, 1_400]
const idleMs = 20_000

async function benchDecoding(server: RunningPostgres, closing: Closing): Promise<void> {
  const both = [await relayed(server, 'polling', closing), await relayed(server, 'decoding', closing)] as const
  const bursts = both.map(({ name, add }): Drained => ({ name, rows: 2_000, fill: async () => {}, drain: add }))
  const latencies = new Map<string, number[]>(both.map(({ name }) => [name, []]))
  for (let round = 0; round < rounds; round++) {
    for (const { name, add } of round % 2 === 0 ? both : both.toReversed()) {
      for (const pauseMs of pausesMs) {
        await sleep(pauseMs)
        const beganMs = performance.now()
        await add(1)
        latencies.get(name)!.push(performance.now() - beganMs)
      }
    }
  }
  const [polled, decoded] = both.map(({ name }) => median(latencies.get(name)!)) as [number, number]
  report({
    id: 'P9',
    what: 'Relay with logical decoding against polling: time until an event is published that another process added after a second of rest',
    measured: decoded / polled,
  })
  const before = both.map(({ calls }) => calls())
  await sleep(idleMs)
  const [polls, looks] = both.map(({ calls }, index) => calls() - before[index]!) as [number, number]
  report({ id: 'P9', what: 'The same: calls to the database while there is nothing to do', measured: looks / polls })
  const rates = await drainRates(bursts, rounds)
  const what = 'The same: events per second, added in transactions of 100 and published'
  report({ id: 'P9', what, measured: ratioOf(rates, 'decoding', 'polling') })
}

async function relayed(server: RunningPostgres, name: 'polling' | 'decoding', closing: Closing): Promise<Relayed> {
  const connectionString = await server.createDatabase()
  const open = (): { pool: pg.Pool; outbox: Outbox<Tx> } => {
    const pool = new pg.Pool({ connectionString, max: 10 })
    pool.on('error', () => {})
    closing.push(() => pool.end())
    return { pool, outbox: createOutbox({ store: postgresStore({ pool }), source: 'bench' }) as Outbox<Tx> }
  }
  const [own, other] = [open(), open()]
  await postgresStore({ pool: own.pool }).migrate()
  await own.outbox.migrate()
  let outbox: RelayOutbox = own.outbox
  if (name === 'decoding') {
    const library = requireReplication()
    const decoding = createDecoding({ outbox: own.outbox, library, connection: { connectionString }, slot: 'bench' })
    await decoding.create()
    closing.push(() => decoding.drop())
    outbox = decoding
  }
  let calls = 0
  own.pool.on('acquire', () => calls++)
  let left = 0
  let done = (): void => {}
  const publish: Publisher['publish'] = async (messages) => {
    if ((left -= messages.length) <= 0) done()
    return messages.map(() => undefined)
  }
  const relay = createRelay({ outbox, publisher: { name, publish } })
  relay.start()
  closing.push(() => relay.stop())
  return {
    name,
    calls: () => calls,
    async add(count) {
      left = count
      const published = new Promise<void>((resolve) => (done = resolve))
      for (let added = 0; added < count; added += batch) await addSome(other, Math.min(batch, count - added))
      await published
    },
  }
}

async function addSome({ pool, outbox }: { pool: pg.Pool; outbox: Outbox<Tx> }, count: number): Promise<void> {
  const client = await pool.connect()
  await client.query('begin')
  const event = { topic: 'orders', type: 'order.placed', data: { total: 1999, note: 'x'.repeat(200) } }
  await outbox.add(
    client,
    Array.from({ length: count }, (_, index) => ({ ...event, key: `order-${index}` })),
  )
  await client.query('commit')
  client.release()
}

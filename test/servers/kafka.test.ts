// Kafka as the tests get it: what it keeps over a crash, that it is shared, and where it sends clients that come through a proxy.
import { randomUUID } from 'node:crypto'
import { Kafka, logLevel } from 'kafkajs'
import { expect, test } from 'vitest'
import { startFaultProxy } from './fault-proxy.ts'
import { freePort } from './free-port.ts'
import { kafka, startKafka } from './kafka.ts'
import { needs } from './needs.ts'
import { sharedUrl } from './shared.ts'

function connect(url: string): Kafka {
  return new Kafka({
    brokers: [new URL(url).host],
    logLevel: logLevel.NOTHING,
    retry: { retries: 20, maxRetryTime: 500 },
  })
}

async function withAdmin<T>(url: string, work: (admin: ReturnType<Kafka['admin']>) => Promise<T>): Promise<T> {
  const admin = connect(url).admin()
  await admin.connect()
  try {
    return await work(admin)
  } finally {
    await admin.disconnect()
  }
}

const createTopic = (url: string, topic: string): Promise<boolean> =>
  withAdmin(url, (admin) => admin.createTopics({ topics: [{ topic, numPartitions: 3 }], waitForLeaders: true }))

const endOf = (url: string, topic: string): Promise<number> =>
  withAdmin(url, async (admin) =>
    (await admin.fetchTopicOffsets(topic)).reduce((sum, { high }) => sum + Number(high), 0),
  )

async function send(url: string, topic: string): Promise<void> {
  const producer = connect(url).producer({ idempotent: true })
  await producer.connect()
  await producer.send({ topic, messages: [{ value: 'a' }, { value: 'b' }] })
  await producer.disconnect()
}

needs('kafka', { ours: true }).describe('a Kafka of our own', () => {
  test('keeps what it confirmed over a crash and an orderly restart', async () => {
    await using server = await startKafka()
    await createTopic(server.url, 'kept')
    await send(server.url, 'kept')
    await server.crash()
    await server.restart()
    expect(await endOf(server.url, 'kept')).toBe(2)
    await server.restart()
    expect(await endOf(server.url, 'kept')).toBe(2)
  })

  test('sends clients that come through the proxy back to the proxy', async () => {
    const port = await freePort()
    await using proxy = await startFaultProxy({ target: { url: `kafka://127.0.0.1:${port}` } })
    await using server = await startKafka({ proxied: { port, advertisedPort: proxy.port } })
    await createTopic(server.url, 'through')
    await send(proxy.url, 'through')
    expect(await endOf(server.url, 'through')).toBe(2)
    const { brokers } = await withAdmin(proxy.url, (admin) => admin.describeCluster())
    expect(brokers.map((broker) => broker.port)).toEqual([proxy.port])
  })
})

needs('kafka').test('the shared Kafka is one for all who ask', async () => {
  const [first, second] = await Promise.all([sharedUrl(kafka), sharedUrl(kafka)])
  expect(first).toBe(second)
  const topic = `shared-${randomUUID()}`
  await createTopic(first, topic)
  await send(second, topic)
  expect(await endOf(first, topic)).toBe(2)
})

// Debezium's outbox event router reads our table with its own defaults. Run by `npm run test:versions -- debezium`, once, and not in
// every run: it takes Kafka, Kafka Connect and half a gigabyte of memory.
import { afterAll, beforeAll, expect, test } from 'vitest'
import { startDebezium } from '../servers/debezium.ts'
import { startKafka } from '../servers/kafka.ts'
import type { Running } from '../servers/server.ts'
import { startPostgres, type RunningPostgres } from '../servers/postgres.ts'
import { createOutbox } from '../../src/messages/outbox.ts'
import { postgresStore } from '../../src/stores/postgres.ts'
import { createPool } from '../subjects/postgres.ts'
import { kafkajsOn, withAdmin } from './kafka/world.ts'
import { eventually } from './eventually.ts'

const topics = ['outbox.event.orders', 'outbox.event.invoices']
let kafka: Running
let database: RunningPostgres

beforeAll(async () => {
  kafka = await startKafka()
  database = await startPostgres({ settings: { wal_level: 'logical' } })
  await withAdmin(kafka.url, (admin) =>
    admin.createTopics({ topics: topics.map((topic) => ({ topic, numPartitions: 3 })), waitForLeaders: true }),
  )
})
afterAll(async () => {
  await database?.stop()
  await kafka?.stop()
})

interface Routed {
  readonly topic: string
  readonly id: string | undefined
  readonly key: string | undefined
  readonly payload: string | undefined
}

test("rows of outbox.add come out on the topics of the router's rule, with our id, key and payload", async () => {
  const url = await database.createDatabase()
  const pool = createPool(url)
  const store = postgresStore({ pool })
  await store.migrate()
  const outbox = createOutbox({ store, source: 'shop' })
  await outbox.migrate()
  const table = 'public.onceonly_outbox'
  await using _ = await startDebezium({
    kafkaHost: new URL(kafka.url).host,
    databaseUrl: url,
    slot: 'debezium',
    table,
  })
  const events = Array.from({ length: 30 }, (_, index) => ({
    topic: index % 3 === 0 ? 'invoices' : 'orders',
    key: `order-${index % 5}`,
    type: 'order.placed',
    data: { number: index, name: 'Ü "quoted" \\ 🙂' },
  }))
  const ids: string[] = []
  for (const [index, event] of events.entries()) {
    const client = await pool.connect()
    await client.query('begin')
    const id = await outbox.add(client, event)
    // Every seventh is undone, and must not come out.
    await client.query(index % 7 === 0 ? 'rollback' : 'commit')
    client.release()
    ids.push(id)
  }
  const expected: Routed[] = events.flatMap(({ topic, key, data }, index) =>
    index % 7 === 0 ? [] : [{ topic: `outbox.event.${topic}`, id: ids[index], key, payload: JSON.stringify(data) }],
  )
  const routed: Routed[] = []
  const consumer = kafkajsOn(kafka.url).consumer({ groupId: 'judge' })
  await consumer.connect()
  await consumer.subscribe({ topics, fromBeginning: true })
  await consumer.run({
    eachMessage: async ({ topic, message }) => {
      const { key, value, headers } = message
      routed.push({ topic, id: headers?.['id']?.toString(), key: key?.toString(), payload: value?.toString() })
    },
  })
  try {
    await eventually('all to be routed', () => routed.length >= expected.length)
  } finally {
    await consumer.disconnect()
    await pool.end()
  }
  const inOrder = (all: readonly Routed[], key: string): Routed[] => all.filter((each) => each.key === key)
  for (const topic of topics)
    for (const key of new Set(events.map((event) => event.key)))
      expect(
        inOrder(
          routed.filter((each) => each.topic === topic),
          key,
        ),
      ).toEqual(
        inOrder(
          expected.filter((each) => each.topic === topic),
          key,
        ),
      )
  expect(routed).toHaveLength(expected.length)
})

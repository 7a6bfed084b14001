// The programs of docs/messaging.md about Kafka run as written, on a real broker.

import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { afterAll, expect, test } from 'vitest'
import { sendTexts, withAdmin } from '../../messages/kafka/world.ts'
import { startKafka } from '../../servers/kafka.ts'
import { needs } from '../../servers/needs.ts'
import { take } from '../blocks.ts'
import { openPrograms } from '../programs.ts'
import { withPrintingInbox } from './printing-inbox.ts'

const running = openPrograms()
afterAll(() => running[Symbol.dispose]())

const programs = take('docs/messaging.md', (code) => code.includes("'onceonly/kafka'"))

test('there are four programs about Kafka', () => {
  expect(programs).toHaveLength(4)
})

needs('kafka', { ours: true }).test('Kafka: the consumer and the publisher run as written', async () => {
  await using server = await startKafka()
  await withAdmin(server.url, (admin) => admin.createTopics({ topics: [{ topic: 'orders' }], waitForLeaders: true }))
  const env = {
    KAFKA_BROKER: new URL(server.url).host,
    KAFKAJS_NO_PARTITIONER_WARNING: '1',
    KAFKAJS_LOG_LEVEL: 'nothing',
  }
  const said = await running.run('kafka', withPrintingInbox(programs[0]!.code), [], env)
  expect(said.split('\n').toSorted()).toEqual(['[ undefined ]', '["order-1"]'])
})

needs(['kafka', 'confluent'], { ours: true }).test('Kafka: exactlyOnce runs as written', async () => {
  await using server = await startKafka()
  const topics = ['orders', 'invoices'].map((topic) => ({ topic }))
  await withAdmin(server.url, (admin) => admin.createTopics({ topics, waitForLeaders: true }))
  await sendTexts(server.url, 'orders', [['order-1', '{}']])
  const program = withConfluent(programs[3]!.code) + endOf('invoices', 'working')
  expect(await running.run('exactly-once', program, [], { KAFKA_BROKER: new URL(server.url).host, WORKER: '1' })).toBe(
    'invoice of order-1',
  )
})

needs(['kafka', 'confluent'], { ours: true }).test('Kafka: the transactional publisher runs as written', async () => {
  await using server = await startKafka()
  await withAdmin(server.url, (admin) => admin.createTopics({ topics: [{ topic: 'orders' }], waitForLeaders: true }))
  const program = withConfluent(programs[2]!.code) + endOf('orders', 'relay')
  expect(await running.run('transactional', program, [], { KAFKA_BROKER: new URL(server.url).host })).toBe(
    '{"total":1999}',
  )
})

needs(['kafka', 'confluent'], { ours: true }).test('Kafka: offsets in the database run as written', async () => {
  await using server = await startKafka()
  await withAdmin(server.url, (admin) => admin.createTopics({ topics: [{ topic: 'orders' }], waitForLeaders: true }))
  await sendTexts(server.url, 'orders', [['order-1', '{}']])
  const program = withConfluent(programs[1]!.code) + untilStored
  expect(await running.run('stored-offsets', program, [], { KAFKA_BROKER: new URL(server.url).host })).toBe('order-1 1')
})

/** Looks into the database until the message is handled, and prints the effect and the stored offset. */
const untilStored = `
import { DatabaseSync } from 'node:sqlite'
const database = new DatabaseSync('shop.db', { timeout: 10_000 })
const find = () =>
  database.prepare('select order_id, next_offset from shipments, onceonly_inbox_offsets').get()
for (let found; ; await new Promise((resolve) => setTimeout(resolve, 50))) {
  try {
    found = find()
  } catch {}
  if (!found) continue
  console.log(found.order_id, found.next_offset)
  break
}
await consuming.stop()
process.exit(0)
`

function withConfluent(code: string): string {
  expect(code).toContain('declare const confluent')
  const world = pathToFileURL(join(import.meta.dirname, '../../servers/confluent.ts')).href
  const library = `import { requireConfluent } from '${world}'\nconst confluent = requireConfluent() as ConfluentLibrary`
  return code
    .replace(/(?<!kafkaConsumer), type ConfluentLibrary }/, ', kafkaConsumer, type ConfluentLibrary }')
    .replace(/^declare const confluent.*$/m, library)
}

/** Reads one message of the topic, and ends. */
const endOf = (topic: string, running: string): string => `
const read = await new Promise<string>((resolve) => {
  const inbox = {
    consumer: 'docs',
    async deliver(message: { body: Uint8Array }, _: unknown, acknowledge: () => Promise<void>) {
      await acknowledge()
      resolve(Buffer.from(message.body).toString())
      return { acknowledged: true as const }
    },
    deliverBatch: async () => [],
  }
  const reader = confluentClient(confluent, { 'bootstrap.servers': process.env.KAFKA_BROKER! })
  const reading = kafkaConsumer({ client: reader, topics: ['${topic}'], group: 'docs', inbox }, () => {})
  void reading.ended
})
console.log(read)
await ${running}.stop()
process.exit(0)
`

// The programs of docs/messaging.md about Kafka run as written, on a real broker.

import { afterAll, expect, test } from 'vitest'
import { withAdmin } from '../../messages/kafka/world.ts'
import { startKafka } from '../../servers/kafka.ts'
import { needs } from '../../servers/needs.ts'
import { take } from '../blocks.ts'
import { openPrograms } from '../programs.ts'
import { withPrintingInbox } from './printing-inbox.ts'

const running = openPrograms()
afterAll(() => running[Symbol.dispose]())

const programs = take('docs/messaging.md', (code) => code.includes("'onceonly/kafka'"))

test('there is one program about Kafka', () => {
  expect(programs).toHaveLength(1)
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

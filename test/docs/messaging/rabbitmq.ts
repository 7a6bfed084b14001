// The program of docs/messaging.md about RabbitMQ runs as written, on a real server.

import { afterAll, expect, test } from 'vitest'
import { needs } from '../../servers/needs.ts'
import { startRabbitmq } from '../../servers/rabbitmq.ts'
import { take } from '../blocks.ts'
import { openPrograms } from '../programs.ts'
import { withPrintingInbox } from './printing-inbox.ts'

const running = openPrograms()
afterAll(() => running[Symbol.dispose]())

const programs = take('docs/messaging.md', (code) => code.includes("'onceonly/rabbitmq'"))

test('there is one program about RabbitMQ', () => {
  expect(programs).toHaveLength(1)
})

needs('rabbitmq', { ours: true }).test('RabbitMQ: the consumer and the publisher run as written', async () => {
  await using server = await startRabbitmq()
  const code = withPrintingInbox(programs[0]!.code)
  const said = await running.run('rabbitmq', code, [], { RABBITMQ_URL: server.url })
  expect(said.split('\n').toSorted()).toEqual(['[ undefined ]', '["order-1"]'])
})

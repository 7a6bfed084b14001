// The program of docs/messaging.md about NATS runs as written, on a real server.

import { afterAll, expect, test } from 'vitest'
import { needs } from '../../servers/needs.ts'
import { startNats } from '../../servers/nats.ts'
import { take } from '../blocks.ts'
import { openPrograms } from '../programs.ts'
import { withPrintingInbox } from './printing-inbox.ts'

const running = openPrograms()
afterAll(() => running[Symbol.dispose]())

const programs = take('docs/messaging.md', (code) => code.includes("'onceonly/nats'"))

test('there is one program about NATS', () => {
  expect(programs).toHaveLength(1)
})

needs('nats', { ours: true }).test('NATS: the consumer and the publisher run as written', async () => {
  await using server = await startNats()
  const code = `${withPrintingInbox(programs[0]!.code)}await connection.close()\n`
  const said = await running.run('nats', code, [], { NATS_URL: server.url })
  expect(said.split('\n').toSorted()).toEqual(['[ undefined ]', '["order-1"]'])
})

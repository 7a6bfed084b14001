// The program of docs/messaging.md about Redis Streams runs as written, on a real server.

import { afterAll, expect, test } from 'vitest'
import { needs } from '../../servers/needs.ts'
import { startRedis } from '../../servers/redis.ts'
import { take } from '../blocks.ts'
import { openPrograms } from '../programs.ts'
import { withPrintingInbox } from './printing-inbox.ts'

const running = openPrograms()
afterAll(() => running[Symbol.dispose]())

const programs = take('docs/messaging.md', (code) => code.includes("'onceonly/redis-streams'"))

test('there is one program about Redis Streams', () => {
  expect(programs).toHaveLength(1)
})

needs('redis').test('Redis Streams: the consumer and the publisher run as written', async () => {
  await using server = await startRedis()
  const code = `${withPrintingInbox(programs[0]!.code)}\nclient.destroy()\n`
  const said = await running.run('redis-streams', code, [], { REDIS_URL: server.url })
  expect(said.split('\n').toSorted()).toEqual(['[ undefined ]', '["order-1"]'])
})

// The program of docs/messaging.md about outbox and relay runs as written.

import { afterAll, expect, test } from 'vitest'
import { take } from '../blocks.ts'
import { openPrograms } from '../programs.ts'

const running = openPrograms()
afterAll(() => running[Symbol.dispose]())

const programs = take('docs/messaging.md', (code) => code.includes("'onceonly/outbox'"))

test('outbox: an event that is committed is published', async () => {
  expect(programs).toHaveLength(1)
  const end = `
while ((await outbox.status()).unsent > 0) await new Promise((resolve) => setTimeout(resolve, 20))
await relay.stop()
await once.close()
`
  expect(await running.run('outbox', `${programs[0]!.code}${end}`)).toBe('orders order-42 order.placed {"total":1999}')
})

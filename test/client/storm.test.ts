// A server that answers 503 for a while, and 10,000 calls: the retries of this client stay within its budget, while those of a client
// without one multiply the load. What the budget refused is not lost: it is resumed when the server is well again.

import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import got from 'got'
import { expect, test } from 'vitest'
import { memoryKeys, retryBudget } from '../../src/client/client.ts'
import { openShop, payments, post } from './shop.ts'

test('10,000 calls in an outage: retries stay within the budget, and every call has its effect once in the end', async () => {
  const calls = 10_000
  const shop = openShop()
  let isDown = true
  let sent = 0
  const budget = retryBudget({ share: 0.1, burst: 100, perSecond: 0, clock: shop.clock })
  const options = {
    keys: memoryKeys(),
    budget,
    onAttempt: () => {},
    fetch(input: string, init: RequestInit) {
      sent++
      return isDown ? Promise.resolve(new Response('', { status: 503 })) : shop.fetch(input, init)
    },
  }
  const client = shop.client(options)
  const pay = (order: number): Promise<unknown> =>
    client
      .fetch(payments, post(`{"order":${order}}`), { operation: `pay:${order}` })
      .then((response) => response.settled())
      .catch(() => {})
  const paying: Promise<unknown>[] = []
  // 100 calls every 100 ms.
  for (let order = 0; order < calls; order++) {
    paying.push(pay(order))
    if (order % 100 === 99) await shop.clock.advance(100)
  }
  await shop.finish(Promise.all(paying))
  const load = sent / calls
  const retries = sent - calls
  expect(retries).toBeGreaterThan(100)
  expect(retries).toBeLessThanOrEqual(100 + 0.1 * calls)
  expect(await client.pending()).toHaveLength(calls)
  isDown = false
  const { settled, failed } = await shop.finish(client.resume(() => {}))
  expect([settled.length, failed.length]).toEqual([calls, 0])
  expect([shop.ledger.length, new Set(shop.ledger).size]).toEqual([calls, calls])
  console.log(`${calls} calls in an outage: ${retries} retries, ${load.toFixed(2)} requests per call`)
})

test('plain got beside it: every call is retried, and the load is a multiple', async () => {
  const calls = 200
  let sent = 0
  const server = createServer((request, response) => {
    sent++
    request.resume()
    response.writeHead(503).end()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  // Its default is two retries. The pauses are shortened, which does not change how many there are.
  const retry = {
    methods: ['POST' as const],
    calculateDelay: ({ computedValue }: { computedValue: number }) => (computedValue ? 1 : 0),
  }
  const paying = Array.from({ length: calls }, () => got.post(url, { body: '{}', retry }).catch(() => {}))
  await Promise.all(paying)
  server.close()
  server.closeAllConnections()
  expect(sent).toBe(calls * 3)
})

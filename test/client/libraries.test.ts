// Existing HTTP libraries with one line: a request whose reply is lost has one key and one effect, through undici's interceptor and
// through the fetch that ky, axios and SDKs take.

import { once as heard } from 'node:events'
import { createServer } from 'node:http'
import type { Server, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { Readable } from 'node:stream'
import { text } from 'node:stream/consumers'
import axios from 'axios'
import ky from 'ky'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { Agent, fetch as undiciFetch, request } from 'undici'
import { createClient, keyedFetch, memoryKeys, providers, retryBudget } from '../../src/client/client.ts'
import { keyedInterceptor } from '../../src/client/node.ts'
import { createOnce } from '../../src/core/once.ts'
import { idempotency } from '../../src/http/node.ts'
import { memoryStore } from '../../src/stores/memory.ts'

let server: Server
let url: string
const ledger: string[] = []
const keysSeen: (string | undefined)[] = []
let lose = 0

/** More than the buffers of sockets and streams hold. */
const largeBytes = 50 * 2 ** 20
let written = 0

/** As fast as it is read. */
async function sendLarge(response: ServerResponse): Promise<void> {
  response.writeEarlyHints({ link: '</a.css>; rel=preload' })
  response.writeHead(200)
  for (written = 0; written < largeBytes; written += 2 ** 16)
    if (!response.write(Buffer.alloc(2 ** 16))) await heard(response, 'drain')
  response.end()
}

beforeAll(async () => {
  const once = createOnce({ store: memoryStore(), scope: 'shop' })
  const shop = idempotency(once, { tenant: 'shared' })(async (incoming, response) => {
    ledger.push(await text(incoming))
    response.writeHead(201, { 'content-type': 'application/json', 'set-cookie': ['a=1', 'b=2'] })
    response.end(JSON.stringify({ receipt: ledger.length }))
  })
  server = createServer((incoming, response) => {
    if (incoming.method === 'GET') return void response.end(`key: ${incoming.headers['idempotency-key'] ?? 'none'}`)
    keysSeen.push(incoming.headers['idempotency-key'] as string | undefined)
    if (incoming.url === '/large') return void sendLarge(response)
    if (incoming.url === '/broken') return void response.write(Buffer.alloc(2_000), () => response.destroy())
    if (lose-- > 0) {
      response.write = () => true
      response.end = () => {
        incoming.socket.destroy()
        return response
      }
    }
    void shop(incoming, response)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/payments`
})
afterAll(() => {
  server.close()
  server.closeAllConnections()
})
beforeEach(() => {
  ledger.length = 0
  keysSeen.length = 0
  lose = 1
})

const options = { keys: memoryKeys(), budget: retryBudget({ burst: 100 }) }
const fetch = keyedFetch(createClient(options))

async function once(receipt: unknown): Promise<void> {
  expect(receipt).toEqual({ receipt: 1 })
  expect(ledger).toEqual(['{"cents":500}'])
  expect(new Set(keysSeen).size).toBe(1)
  expect(keysSeen.length).toBeGreaterThanOrEqual(2)
  expect(await options.keys.list()).toEqual([])
}

test('ky', async () => once(await ky.post(url, { json: { cents: 500 }, fetch, retry: 0 }).json()))

test('axios', async () => {
  const { data } = await axios.post<unknown>(url, { cents: 500 }, { adapter: 'fetch', env: { fetch } })
  await once(data)
})

test('undici: request, with a text and with a stream', async () => {
  const dispatcher = new Agent().compose(keyedInterceptor(options))
  const { statusCode, headers, body } = await request(url, { method: 'POST', body: '{"cents":500}', dispatcher })
  expect([statusCode, headers['idempotency-window']]).toEqual([201, '86400'])
  await once(await body.json())
  lose = 1
  ledger.length = keysSeen.length = 0
  const streamed = await request(url, { method: 'POST', body: Readable.from(['{"cents"', ':500}']), dispatcher })
  await once(await streamed.body.json())
})

test('what changes nothing has no key, through each of them', async () => {
  const dispatcher = new Agent().compose(keyedInterceptor(options))
  expect(await (await request(url, { dispatcher })).body.text()).toBe('key: none')
  expect(await (await fetch(url)).text()).toBe('key: none')
})

test('a key that the library has set is used, so that its own retries have the same key', async () => {
  lose = 0
  const headers = { 'idempotency-key': 'mine' }
  const dispatcher = new Agent().compose(keyedInterceptor(options))
  for (let attempt = 1; attempt <= 2; attempt++) {
    await fetch(url, { method: 'POST', body: '{}', headers })
    await (await request(url, { method: 'POST', body: '{}', headers, dispatcher })).body.dump()
  }
  expect([keysSeen, ledger]).toEqual([['mine', 'mine', 'mine', 'mine'], ['{}']])
})

test('undici: a large response is passed on as it is read, and an early hint is no response', async () => {
  lose = 0
  const dispatcher = new Agent().compose(keyedInterceptor({ ...options, answerBytesMax: 1_000 }))
  const { statusCode, body } = await request(new URL('/large', url), { method: 'POST', body: 'x', dispatcher })
  expect(statusCode).toBe(200)
  let bytes = 0
  for await (const chunk of body as AsyncIterable<Uint8Array>) {
    if (bytes === 0) expect(written).toBeLessThan(largeBytes)
    bytes += chunk.length
  }
  expect(bytes).toBe(largeBytes)
})

test('undici: a response that breaks off after it was passed on is an error, and no second attempt', async () => {
  lose = 0
  const dispatcher = new Agent().compose(keyedInterceptor({ ...options, answerBytesMax: 1_000 }))
  const { body } = await request(new URL('/broken', url), { method: 'POST', body: 'x', dispatcher })
  await expect(body.arrayBuffer()).rejects.toThrow()
  expect(keysSeen).toHaveLength(1)
})

test('undici: fetch through a dispatcher', async () => {
  const dispatcher = new Agent().compose(keyedInterceptor(options))
  await once(await (await undiciFetch(url, { method: 'POST', body: '{"cents":500}', dispatcher })).json())
})

test('undici: an error of the client is the error of the request', async () => {
  const dispatcher = new Agent().compose(keyedInterceptor({ ...options, retry: { totalMs: 1 } }))
  await expect(request('http://127.0.0.1:1/payments', { method: 'POST', dispatcher })).rejects.toMatchObject({
    code: 'NO_ANSWER',
  })
})

test('the table of providers has a source for each, and a client takes each of them', () => {
  for (const server of Object.values(providers)) {
    expect(server.source).toMatch(/^https:\/\//)
    createClient({ keys: memoryKeys(), server })
  }
})

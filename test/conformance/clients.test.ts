// Clients as they ship, against the adapters: whatever became of the first answer, the key of the retry is the same and the
// effect is one.
import axios from 'axios'
import axiosRetry from 'axios-retry'
import got from 'got'
import ky from 'ky'
import OpenAI from 'openai'
import Stripe from 'stripe'
import { describe, expect, test } from 'vitest'
import { Agent, RetryAgent } from 'undici'
import { pollUntil } from '../servers/poll.ts'
import { apps } from './apps/index.ts'
import { type Fault, type FaultyFront, startFaultyFront } from './faulty-front.ts'
import { sum } from './ledger.ts'
import { memory } from './stores.ts'
import { openWorld, type World } from './world.ts'

/** The adapters that serve them: the plainest and the most used. */
const servers = { node: apps.node, express5: apps.express5 }

/** A first answer that does not come is given up after so long; the second comes at once, and has as long. */
const timeoutMs = 1_000
const retries = 3
const key = 'one-payment'
const body = { tag: 'client', amount: 100 }

interface Client {
  readonly name: string
  /** Resolves to the id in the answer. */
  post(url: string): Promise<string>
  /** A key that the client makes up itself. */
  readonly ownKey?: RegExp
}

interface Receipt {
  readonly id: string
}

const headers = { 'Idempotency-Key': key, Authorization: 'Bearer A' }

const clients: readonly Client[] = [
  {
    name: 'stripe-node',
    ownKey: /^stripe-node-retry-/,
    async post(url) {
      const customer = await stripeAt(url).customers.create({ name: 'Jo', metadata: { tag: 'client' } })
      return customer.id
    },
  },
  {
    name: 'got',
    async post(url) {
      const retry = { limit: retries, methods: ['POST' as const], calculateDelay: shortDelay }
      const answer = await got.post(`${url}/effects`, { json: body, headers, retry, timeout: { request: timeoutMs } })
      return (JSON.parse(answer.body) as Receipt).id
    },
  },
  {
    name: 'ky',
    async post(url) {
      const retry = { limit: retries, methods: ['post' as const], retryOnTimeout: true, delay: () => 1 }
      const answer = ky.post(`${url}/effects`, { json: body, headers, retry, timeout: timeoutMs })
      return (await answer.json<Receipt>()).id
    },
  },
  { name: "undici's RetryAgent", post: async (url) => (await withRetryAgent(url)).id },
  {
    name: 'axios with axios-retry',
    async post(url) {
      const client = axios.create({ timeout: timeoutMs })
      // It calls no POST idempotent by itself; who sends a key knows better.
      axiosRetry(client, { retries, retryCondition: () => true, shouldResetTimeout: true })
      const answer = await client.post<Receipt>(`${url}/effects`, body, { headers })
      return answer.data.id
    },
  },
  {
    name: 'openai (Stainless)',
    ownKey: /^stainless-node-retry-/,
    async post(url) {
      const client = new KeyedOpenAI({ apiKey: 'A', baseURL: url, maxRetries: retries, timeout: timeoutMs })
      const answer = await client.post<Receipt>('/effects', { body })
      return answer.id
    },
  },
]

/** The generator of this SDK sends keys for services that say so; OpenAI's does not. */
class KeyedOpenAI extends OpenAI {
  protected override idempotencyHeader = 'Idempotency-Key'
}

function stripeAt(url: string): Stripe {
  const { hostname, port } = new URL(url)
  return new Stripe('A', {
    host: hostname,
    port,
    protocol: 'http',
    maxNetworkRetries: retries,
    timeout: timeoutMs,
    telemetry: false,
  })
}

function shortDelay({ attemptCount }: { attemptCount: number }): number {
  return attemptCount > retries ? 0 : 1
}

async function withRetryAgent(url: string): Promise<Receipt> {
  const agent = new Agent({ headersTimeout: timeoutMs, bodyTimeout: timeoutMs })
  const errorCodes = ['ECONNRESET', 'UND_ERR_SOCKET', 'UND_ERR_HEADERS_TIMEOUT']
  const retrying = new RetryAgent(agent, { maxRetries: retries, minTimeout: 1, methods: ['POST'], errorCodes })
  try {
    const answer = await retrying.request({
      origin: url,
      path: '/effects',
      method: 'POST',
      headers: { ...headers, 'Content-Type': 'application/json' },
      body: JSON.stringify(body),
    })
    return (await answer.body.json()) as Receipt
  } finally {
    await retrying.close()
  }
}

async function inWorld(
  server: keyof typeof servers,
  fault: Fault,
  config: Readonly<Record<string, unknown>>,
  check: (front: FaultyFront, world: World) => Promise<void>,
): Promise<void> {
  const world = await openWorld({ start: servers[server], storeKind: memory, config })
  try {
    await using front = await startFaultyFront(world.port, fault)
    await check(front, world)
  } finally {
    await world.close()
  }
}

async function effectsOf(world: World): Promise<number> {
  return sum(await world.fixture.ledger.counts(), 'effects')
}

describe.each(Object.keys(servers) as (keyof typeof servers)[])('against the %s adapter', (server) => {
  describe.each(clients)('$name', (client) => {
    test.each(['500', 'reset', 'silence'] as const)('when the first answer is lost (%s): one effect', async (fault) => {
      await inWorld(server, fault, {}, async (front, world) => {
        const id = await client.post(front.url)
        expect(id).toBe('effect_1')
        expect(await effectsOf(world)).toBe(1)
        const keys = new Set(front.attempts.map((each) => each.key))
        expect(front.attempts.length).toBeGreaterThanOrEqual(2)
        expect([...keys]).toEqual([client.ownKey ? expect.stringMatching(client.ownKey) : key])
        expect(front.attempts.map((each) => each.replayed)).toEqual(front.attempts.map((_, index) => index > 0))
      })
    })
  })

  test("undici's RetryAgent asks for the rest with Range and If-Match, and is answered the whole", async () => {
    await inWorld(server, 'cut', {}, async (front, world) => {
      // It has seen the beginning and takes nothing but the rest; what matters is what it was told.
      await expect(withRetryAgent(front.url)).rejects.toThrow()
      const [first, second] = front.attempts
      expect(second!.headers).toMatchObject({
        range: expect.stringMatching(/^bytes=10-/) as string,
        'if-match': '"v1"',
      })
      expect(second).toMatchObject({ key, status: first!.status, replayed: true })
      expect(await effectsOf(world)).toBe(1)
    })
  })

  test('stripe-node gets past a 409 while the first request runs', async () => {
    await inWorld(server, 'none', { profile: 'stripe', waitMs: 0 }, async (front, world) => {
      const stripe = stripeAt(front.url)
      const ask = (): Promise<unknown> =>
        stripe.rawRequest('POST', '/gate/stripe', { tag: 'client' }, { idempotencyKey: key, timeout: 30_000 })
      const first = ask()
      await pollUntil('the handler', async () => (await effectsOf(world)) === 1)
      const second = ask()
      await pollUntil('the 409', () => front.attempts.some((each) => each.status === 409))
      world.fixture.gate('stripe').open()
      expect(await second).toMatchObject({ id: 'effect_1' })
      expect(await first).toMatchObject({ id: 'effect_1' })
      expect(await effectsOf(world)).toBe(1)
    })
  })

  test('stripe-node throws when a key is used again for something else', async () => {
    await inWorld(server, 'none', { profile: 'stripe' }, async (front, world) => {
      const stripe = stripeAt(front.url)
      await stripe.customers.create({ name: 'Jo' }, { idempotencyKey: key })
      const again = stripe.customers.create({ name: 'Joanna' }, { idempotencyKey: key })
      await expect(again).rejects.toThrow(Stripe.errors.StripeIdempotencyError)
      expect(await effectsOf(world)).toBe(1)
    })
  })

  test('stripe-node throws when the store is down, and the key is still good', async () => {
    await inWorld(server, 'none', { profile: 'stripe' }, async (front, world) => {
      world.line.setMode('cut')
      const options = { idempotencyKey: key, maxNetworkRetries: 0 }
      const stripe = stripeAt(front.url)
      await expect(stripe.customers.create({ name: 'Jo' }, options)).rejects.toThrow(Stripe.errors.StripeError)
      world.line.setMode('restore')
      expect(await stripe.customers.create({ name: 'Jo' }, options)).toMatchObject({ id: 'effect_1' })
      expect(await effectsOf(world)).toBe(1)
    })
  })
})

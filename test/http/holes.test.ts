// The holes that were found in other libraries by running them, one test each, on Express and on fetch. Hole 14 and 17 are in
// every adapter's key, 21 is docs.test.ts, 22 is the Postgres store's.

import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { request } from 'node:http'
import type { IncomingMessage, Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { Readable } from 'node:stream'
import express from 'express'
import type { Request as ExpressRequest, Response as ExpressResponse } from 'express'
import { afterAll, afterEach, describe, expect, test } from 'vitest'
import { createOnce } from '../../src/core/once.ts'
import type { Once } from '../../src/core/once.ts'
import type { OnceOptions } from '../../src/core/settings.ts'
import type { Store } from '../../src/core/store.ts'
import { memoryData, memoryStore } from '../../src/stores/memory.ts'
import { manualClock } from '../../src/testing/manual-clock.ts'
import type { HttpOptions, IdempotencyContext } from '../../src/http/exchange.ts'
import { idempotency as onExpress } from '../../src/http/express.ts'
import { idempotency as onFetch } from '../../src/http/fetch.ts'

interface Call {
  readonly path: string
  readonly body: Buffer
  readonly once: IdempotencyContext
  readonly express?: { readonly req: ExpressRequest; readonly res: ExpressResponse }
}
interface Reply {
  readonly status?: number
  readonly headers?: Record<string, string>
  readonly body?: string | Buffer
}
type Handler = (call: Call) => Reply | undefined | Promise<Reply | undefined>

interface Answered {
  readonly status: number
  readonly headers: Headers
  readonly body: Buffer
  readonly replayed: boolean
}
interface Asking {
  readonly key?: string
  readonly body?: string | Buffer
  readonly headers?: Record<string, string>
  readonly signal?: AbortSignal
}
interface App {
  post(path: string, asking?: Asking): Promise<Answered>
}

const closing: (() => unknown)[] = []
afterEach(async () => {
  for (const close of closing.splice(0)) await close()
})

function newOnce(options: Partial<OnceOptions> = {}): Once {
  // The tests count timers.
  return createOnce({ store: memoryStore(), scope: 'shop', sweepEveryMs: false, ...options })
}

const tenantOf = (header: string | undefined | null): string | undefined => header?.replace('Bearer ', '')

async function startExpress(
  once: Once,
  handler: Handler,
  options: Partial<Omit<HttpOptions, 'tenant'>> = {},
): Promise<App> {
  const app = express()
  const shop = express.Router()
  const refunds = express.Router()
  const guard = onExpress<ExpressRequest>(once, { tenant: (req) => tenantOf(req.headers.authorization), ...options })
  const answer = (req: ExpressRequest, res: ExpressResponse, next: (error: unknown) => void): void => {
    const call = {
      path: req.originalUrl,
      body: req.body as Buffer,
      once: req.idempotency!,
      express: { req, res },
    }
    Promise.resolve(handler(call)).then((reply) => {
      if (!reply) return
      res.status(reply.status ?? 201).set(reply.headers ?? {})
      if (reply.body === undefined) res.end()
      else res.send(reply.body)
    }, next)
  }
  for (const router of [shop, refunds]) router.use(guard, express.raw({ type: () => true }), answer)
  // Both routers see the same path: what tells them apart is where they are mounted.
  app.use('/shop', shop).use('/refunds', refunds)
  app.use(
    (_error: unknown, _req: ExpressRequest, res: ExpressResponse, _next: unknown) =>
      void res.status(500).send('failed'),
  )
  const server: Server = app.listen(0, '127.0.0.1')
  await new Promise((resolve) => server.on('listening', resolve))
  closing.push(() => (server.closeAllConnections(), new Promise((resolve) => server.close(resolve))))
  const { port } = server.address() as AddressInfo
  return { post: (path, asking) => overHttp(port, path, asking) }
}

function overHttp(port: number, path: string, { key, body = '{}', headers, signal }: Asking = {}): Promise<Answered> {
  return new Promise((resolve, reject) => {
    const all = {
      'Content-Type': 'application/json',
      Authorization: 'Bearer A',
      ...(key && { 'Idempotency-Key': key }),
      ...headers,
    }
    const sent = {
      port,
      host: '127.0.0.1',
      path,
      method: 'POST',
      headers: all,
      agent: false,
      ...(signal && { signal }),
    } as const
    const asking = request(sent, (response: IncomingMessage) => void answeredBy(response).then(resolve, reject))
    asking.on('error', reject).end(body)
  })
}

async function answeredBy(response: IncomingMessage): Promise<Answered> {
  const chunks: Buffer[] = []
  for await (const chunk of response) chunks.push(chunk as Buffer)
  const lines = new Headers()
  const { rawHeaders } = response
  for (let at = 0; at < rawHeaders.length; at += 2) lines.append(rawHeaders[at]!, rawHeaders[at + 1]!)
  return answered(response.statusCode!, lines, Buffer.concat(chunks))
}

function answered(status: number, headers: Headers, body: Buffer): Answered {
  return { status, headers, body, replayed: headers.get('idempotent-replayed') === 'true' }
}

async function startFetch(
  once: Once,
  handler: Handler,
  options: Partial<Omit<HttpOptions, 'tenant'>> = {},
): Promise<App> {
  const tenant = (request: Request): string | undefined => tenantOf(request.headers.get('authorization'))
  const guarded = onFetch(once, { tenant, ...options })(async (request, context) => {
    const body = Buffer.from(await request.arrayBuffer())
    const reply = await handler({ path: new URL(request.url).pathname, body, once: context.idempotency! })
    return new Response((reply!.body ?? null) as string | null, {
      status: reply!.status ?? 201,
      headers: reply!.headers ?? {},
    })
  })
  return {
    async post(path, { key, body = '{}', headers, signal } = {}) {
      const all = {
        'Content-Type': 'application/json',
        Authorization: 'Bearer A',
        ...(key && { 'Idempotency-Key': key }),
        ...headers,
      }
      const asked = new Request(`http://shop.example${path}`, {
        method: 'POST',
        headers: all,
        body: body as string,
        ...(signal && { signal }),
      })
      // Who calls a handler answers what it throws, as Next.js does.
      const response = await guarded(asked).catch(() => new Response('failed', { status: 500 }))
      return answered(response.status, response.headers, Buffer.from(await response.arrayBuffer()))
    },
  }
}

const kinds = { express: startExpress, fetch: startFetch }

function hole(
  number: number,
  name: string,
  prove: (start: typeof startExpress, kind: keyof typeof kinds) => Promise<void>,
): void {
  describe(`hole ${number}: ${name}`, () => {
    for (const [kind, start] of Object.entries(kinds)) test(kind, () => prove(start, kind as keyof typeof kinds))
  })
}

/** Counts what really happened, apart from the library. */
function ledger(): { effects: number } {
  return { effects: 0 }
}

hole(1, 'a 204 or an empty body is replayed as it was and runs nothing', async (start) => {
  for (const reply of [{ status: 204 }, { status: 201, headers: { Location: '/1' } }, { status: 200, body: '' }]) {
    const book = ledger()
    const app = await start(newOnce(), () => (book.effects++, reply))
    const first = await app.post('/shop/a', { key: 'k' })
    const again = await app.post('/shop/a', { key: 'k' })
    expect(again).toMatchObject({ status: reply.status, replayed: true, body: Buffer.alloc(0) })
    expect(again.headers.get('location')).toBe(first.headers.get('location'))
    expect(book.effects).toBe(1)
  }
})

hole(2, 'another body under the same key does not overwrite the good record', async (start) => {
  const app = await start(newOnce(), ({ body }) => ({ body }))
  await app.post('/shop/a', { key: 'k', body: '{"a":1}' })
  expect(await app.post('/shop/a', { key: 'k', body: '{"a":2}' })).toMatchObject({ status: 422, replayed: false })
  expect(await app.post('/shop/a', { key: 'k', body: '{"a":1}' })).toMatchObject({
    status: 201,
    replayed: true,
    body: Buffer.from('{"a":1}'),
  })
})

hole(3, 'the 409 of a duplicate in flight is not replayed as the answer', async (start) => {
  const gate = Promise.withResolvers<void>()
  const began = Promise.withResolvers<void>()
  const handler: Handler = async () => {
    began.resolve()
    await gate.promise
    return { body: 'paid' }
  }
  const app = await start(newOnce(), handler, { waitMs: 0 })
  const first = app.post('/shop/a', { key: 'k' })
  await began.promise
  const duplicate = await app.post('/shop/a', { key: 'k' })
  expect(duplicate).toMatchObject({ status: 409 })
  expect(duplicate.headers.get('retry-after')).toMatch(/^[1-9][0-9]*$/)
  gate.resolve()
  expect(await first).toMatchObject({ status: 201, replayed: false })
  expect(await app.post('/shop/a', { key: 'k' })).toMatchObject({
    status: 201,
    replayed: true,
    body: Buffer.from('paid'),
  })
})

hole(4, 'binary bodies are the same octets in the handler, in the first answer and in the replay', async (start) => {
  const octets = Buffer.from(Array.from({ length: 256 }, (_, at) => at))
  const app = await start(newOnce(), ({ body }) => ({ headers: { 'Content-Type': 'image/png' }, body }))
  const asking = { key: 'k', body: octets, headers: { 'Content-Type': 'application/octet-stream' } }
  expect((await app.post('/shop/a', asking)).body).toEqual(octets)
  expect(await app.post('/shop/a', asking)).toMatchObject({ replayed: true, body: octets })
})

hole(5, 'a store that is down or does not answer is a 503, and the handler does not run', async (start) => {
  const broken: Record<string, Store['claim']> = {
    down: () => Promise.reject(new Error('connection refused')),
    silent: () => new Promise(() => {}),
  }
  for (const [how, claim] of Object.entries(broken)) {
    const clock = manualClock()
    const book = ledger()
    const once = newOnce({ store: { ...memoryStore(), claim }, clock, storeTimeoutMs: 1_000 })
    const app = await start(once, () => (book.effects++, { body: 'x' }))
    const asking = app.post('/shop/a', { key: 'k' })
    if (how === 'silent') {
      await expect.poll(() => clock.pending).toBeGreaterThan(0)
      await clock.advance(1_000)
    }
    expect(await asking).toMatchObject({ status: 503 })
    expect(await app.post('/shop/a')).toMatchObject({ status: 201 })
    expect(book.effects).toBe(1)
  }
})

const folder = mkdtempSync(join(tmpdir(), 'onceonly-holes-'))
const file = join(folder, 'answer.txt')
writeFileSync(file, 'from a file')
afterAll(() => rmSync(folder, { recursive: true }))

hole(6, 'answers written in pieces, as streams and as files are stored whole', async (start, kind) => {
  const pieces = Buffer.from('from a file')
  const ways: Handler[] =
    kind === 'fetch'
      ? [() => ({ body: ReadableStream.from(['from ', 'a file'].map((each) => Buffer.from(each))) as never })]
      : [
          ({ express: { res } = {} as never }) => void (res.write('from '), res.write('a '), res.end('file')),
          ({ express: { res } = {} as never }) => void Readable.from(['from ', 'a ', 'file']).pipe(res),
          ({ express: { res } = {} as never }) => (res.sendFile(file), undefined),
          ({ express: { res } = {} as never }) => void (res.flushHeaders(), setImmediate(() => res.end('from a file'))),
        ]
  for (const way of ways) {
    const book = ledger()
    const app = await start(newOnce(), (call) => (book.effects++, way(call)))
    expect((await app.post('/shop/a', { key: 'k' })).body).toEqual(pieces)
    expect(await app.post('/shop/a', { key: 'k' })).toMatchObject({ replayed: true, body: pieces })
    expect(book.effects).toBe(1)
  }
})

hole(7, 'the mount path is part of the request: a refund does not replay an order', async (start) => {
  const app = await start(newOnce(), ({ path }) => ({ body: path }))
  expect(await app.post('/shop/1', { key: 'k' })).toMatchObject({ status: 201 })
  expect(await app.post('/refunds/1', { key: 'k' })).toMatchObject({ status: 422, replayed: false })
  const byRoute = await start(newOnce(), ({ path }) => ({ body: path }), { keysPer: 'route' })
  await byRoute.post('/shop/1', { key: 'k' })
  expect(await byRoute.post('/refunds/1', { key: 'k' })).toMatchObject({
    replayed: false,
    body: Buffer.from('/refunds/1'),
  })
})

hole(8, 'another tenant with the same key gets nothing of the first one, cookies least of all', async (start) => {
  const handler: Handler = ({ once }) => ({
    headers: { 'Set-Cookie': `session=${once.key.scope}` },
    body: once.key.scope,
  })
  const app = await start(newOnce(), handler)
  const as = (tenant: string): Asking => ({ key: 'k', headers: { Authorization: `Bearer ${tenant}` } })
  await app.post('/shop/a', as('A'))
  const other = await app.post('/shop/a', as('B'))
  expect(other).toMatchObject({ replayed: false, body: Buffer.from('shop/B') })
  expect((await app.post('/shop/a', as('A'))).headers.has('set-cookie')).toBe(false)
  // Names that a careless join would run together.
  expect(await app.post('/shop/a', as('A/B'))).toMatchObject({ replayed: false })
  expect(await app.post('/shop/a', { key: 'k', headers: { Authorization: '' } })).toMatchObject({ status: 400 })
})

hole(9, 'a claim that expires while it is asked for leaves nobody running without one', async (start) => {
  const clock = manualClock()
  const data = memoryData(clock)
  const tokens: string[] = []
  const once = newOnce({ store: memoryStore({ data }), clock, leaseMs: 1_000, attemptMs: 1_000_000 })
  const gates = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  const handler: Handler = async ({ once: { token } }) => {
    await gates[tokens.push(token) - 1]!.promise
    return { body: token }
  }
  const app = await start(once, handler, { waitMs: 0 })
  const first = app.post('/shop/a', { key: 'k' })
  await expect.poll(() => tokens.length).toBe(1)
  // The lease ends unheard of, as when the process stood still.
  const [name, entry] = [...data.entries][0]!
  data.entries.set(name, { ...entry, leaseUntilMs: data.now() })
  const second = app.post('/shop/a', { key: 'k' })
  await expect.poll(() => tokens.length).toBe(2)
  expect(tokens[1]).not.toBe(tokens[0])
  gates[0]!.resolve()
  expect(await first).toMatchObject({ status: 409 })
  gates[1]!.resolve()
  expect(await second).toMatchObject({ status: 201, body: Buffer.from(tokens[1]!) })
  expect(await app.post('/shop/a', { key: 'k' })).toMatchObject({ replayed: true, body: Buffer.from(tokens[1]!) })
})

hole(10, 'a client that goes away does not lose the outcome', async (start) => {
  const book = ledger()
  const gate = Promise.withResolvers<void>()
  const began = Promise.withResolvers<void>()
  const handler: Handler = async ({ once }) => {
    began.resolve()
    await gate.promise
    expect(once.signal.aborted).toBe(false)
    book.effects++
    return { body: 'paid' }
  }
  const app = await start(newOnce(), handler)
  const gone = new AbortController()
  const first = app.post('/shop/a', { key: 'k', signal: gone.signal }).catch(() => {})
  await began.promise
  gone.abort()
  gate.resolve()
  await first
  expect(await app.post('/shop/a', { key: 'k' })).toMatchObject({
    status: 201,
    replayed: true,
    body: Buffer.from('paid'),
  })
  expect(book.effects).toBe(1)
})

hole(11, 'a claim that landed although it timed out does not wedge the key', async (start) => {
  const clock = manualClock()
  const store = memoryStore({ clock })
  let silent = true
  const claim: Store['claim'] = async (...args) => {
    const verdict = await store.claim(...args)
    return silent ? new Promise(() => {}) : verdict
  }
  const app = await start(
    newOnce({ store: { ...store, claim }, clock, storeTimeoutMs: 1_000 }),
    () => ({ body: 'x' }),
    { waitMs: 0 },
  )
  const first = app.post('/shop/a', { key: 'k' })
  await expect.poll(() => clock.pending).toBeGreaterThan(0)
  await clock.advance(1_000)
  expect(await first).toMatchObject({ status: 503 })
  silent = false
  expect(await app.post('/shop/a', { key: 'k' })).toMatchObject({ status: 201, replayed: false })
})

hole(12, 'a zombie that ends late neither deletes nor overwrites what its successor stored', async (start) => {
  for (const late of [
    { status: 500, body: 'late failure' },
    { status: 201, body: 'late success' },
  ]) {
    const clock = manualClock()
    const data = memoryData(clock)
    const gate = Promise.withResolvers<void>()
    let attempts = 0
    const handler: Handler = async () => {
      if (++attempts > 1) return { body: 'second' }
      await gate.promise
      return late
    }
    const once = newOnce({ store: memoryStore({ data }), clock, leaseMs: 1_000 })
    const app = await start(once, handler)
    const zombie = app.post('/shop/a', { key: 'k' })
    await expect.poll(() => attempts).toBe(1)
    const [name, entry] = [...data.entries][0]!
    data.entries.set(name, { ...entry, leaseUntilMs: data.now() })
    expect(await app.post('/shop/a', { key: 'k' })).toMatchObject({ body: Buffer.from('second') })
    gate.resolve()
    expect((await zombie).status).toBe(late.status === 500 ? 500 : 409)
    expect(await app.post('/shop/a', { key: 'k' })).toMatchObject({ replayed: true, body: Buffer.from('second') })
    expect(attempts).toBe(2)
  }
})

hole(13, 'a duplicate that is refused does not take the lock from the one that runs', async (start) => {
  const gate = Promise.withResolvers<void>()
  let attempts = 0
  const handler: Handler = async () => {
    attempts++
    await gate.promise
    return { body: 'x' }
  }
  const app = await start(newOnce(), handler, { waitMs: 0 })
  const first = app.post('/shop/a', { key: 'k' })
  await expect.poll(() => attempts).toBe(1)
  for (const body of ['{}', '{"other":1}', '{}'])
    expect((await app.post('/shop/a', { key: 'k', body })).status).toBeGreaterThan(400)
  gate.resolve()
  expect(await first).toMatchObject({ status: 201 })
  expect(attempts).toBe(1)
})

hole(14, 'requests that overlap keep their own keys', async (start) => {
  const gates: Record<string, PromiseWithResolvers<void>> = {
    '/shop/charge': Promise.withResolvers(),
    '/refunds/refund': Promise.withResolvers(),
  }
  const app = await start(newOnce(), async ({ path, once }) => {
    await gates[path]!.promise
    return { body: `${path} ${once.key.id} ${once.keyFor('provider')}` }
  })
  const charge = app.post('/shop/charge', { key: 'c' })
  const refund = app.post('/refunds/refund', { key: 'r' })
  gates['/refunds/refund']!.resolve()
  const refunded = await refund
  gates['/shop/charge']!.resolve()
  const charged = await charge
  expect(charged.body.toString()).toMatch(/^\/shop\/charge c /)
  expect(refunded.body.toString()).toMatch(/^\/refunds\/refund r /)
  expect((await app.post('/shop/charge', { key: 'c' })).body).toEqual(charged.body)
  expect((await app.post('/refunds/refund', { key: 'r' })).body).toEqual(refunded.body)
})

hole(15, 'a handler that changes its input completes under what was asked', async (start) => {
  const app = await start(newOnce(), ({ body }) => (body.fill(0), { body: 'x' }))
  await app.post('/shop/a', { key: 'k', body: '{"a":1}' })
  expect(await app.post('/shop/a', { key: 'k', body: '{"a":1}' })).toMatchObject({ status: 201, replayed: true })
})

hole(16, 'an answer that cannot be made after the effect leaves no key running', async (start) => {
  let attempts = 0
  const app = await start(newOnce(), () => ({ body: ++attempts === 1 ? JSON.stringify({ id: 1n }) : 'ok' }), {
    waitMs: 0,
  })
  expect(await app.post('/shop/a', { key: 'k' })).toMatchObject({ status: 500 })
  expect(await app.post('/shop/a', { key: 'k' })).toMatchObject({ status: 201, replayed: false })
})

hole(17, 'two keys with the same body are two requests', async (start) => {
  const book = ledger()
  const app = await start(newOnce(), () => (book.effects++, { body: 'x' }))
  for (const [key, tenant] of [
    ['1', 'A'],
    ['2', 'A'],
    ['1', 'B'],
  ] as const)
    expect(await app.post('/shop/a', { key, headers: { Authorization: `Bearer ${tenant}` } })).toMatchObject({
      replayed: false,
    })
  expect(book.effects).toBe(3)
})

hole(18, 'the query is part of the request, the order of JSON members is not if so chosen', async (start) => {
  const app = await start(newOnce(), () => ({ body: 'x' }), { fingerprint: { body: 'jcs' } })
  await app.post('/shop/a?currency=eur', { key: 'k', body: '{"a":1,"b":2}' })
  expect(await app.post('/shop/a?currency=eur', { key: 'k', body: '{"b":2,"a":1}' })).toMatchObject({ replayed: true })
  expect(await app.post('/shop/a?currency=usd', { key: 'k', body: '{"a":1,"b":2}' })).toMatchObject({ status: 422 })
})

hole(19, 'a redirect is an answer: POST-redirect-GET runs once', async (start) => {
  const book = ledger()
  const app = await start(newOnce(), () => (book.effects++, { status: 303, headers: { Location: '/orders/1' } }))
  await app.post('/shop/a', { key: 'k' })
  const again = await app.post('/shop/a', { key: 'k' })
  expect(again).toMatchObject({ status: 303, replayed: true })
  expect(again.headers.get('location')).toBe('/orders/1')
  expect(book.effects).toBe(1)
})

hole(
  20,
  'an expired key is told so, runs anew when that was chosen, and no retention overflows a timer',
  async (start) => {
    const yearMs = 365 * 86_400_000
    for (const onExpired of ['refuse', 'run'] as const) {
      const clock = manualClock()
      const book = ledger()
      const once = newOnce({ store: memoryStore({ clock }), clock })
      const app = await start(once, () => (book.effects++, { body: 'x' }), {
        keepMs: yearMs,
        tombstoneMs: yearMs,
        onExpired,
      })
      expect((await app.post('/shop/a', { key: 'k' })).headers.get('idempotency-window')).toBe(String(yearMs / 1000))
      await clock.advance(yearMs - 1)
      expect(await app.post('/shop/a', { key: 'k' })).toMatchObject({ replayed: true })
      await clock.advance(2)
      expect((await app.post('/shop/a', { key: 'k' })).status).toBe(onExpired === 'refuse' ? 410 : 201)
      expect(book.effects).toBe(onExpired === 'refuse' ? 1 : 2)
    }
  },
)

test('nothing that is published on a channel carries a key, a body or a credential', async () => {
  const said: unknown[] = []
  const listen = (message: unknown): void => void said.push(message)
  const names = ['claimed', 'settled', 'replayed', 'mismatched', 'released'].map((name) => `onceonly:${name}`)
  for (const name of names) subscribe(name, listen)
  try {
    const app = await startExpress(newOnce(), () => ({ body: 'CANARY-answer' }))
    for (const body of ['CANARY-1', 'CANARY-1', 'CANARY-2']) await app.post('/shop/a', { key: 'CANARY-key', body })
  } finally {
    for (const name of names) unsubscribe(name, listen)
  }
  expect(said.length).toBeGreaterThan(3)
  expect(JSON.stringify(said)).not.toContain('CANARY')
})

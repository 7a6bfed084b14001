// What every adapter must do in the same way, on the real frameworks and real sockets.

import 'reflect-metadata'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, request } from 'node:http'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { createRequire } from 'node:module'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { getRequestListener } from '@hono/node-server'
import { All, Controller, Module, Req, Res, StreamableFile, UseInterceptors } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { ExpressAdapter } from '@nestjs/platform-express'
import type { NestFastifyApplication } from '@nestjs/platform-fastify'
import { FastifyAdapter } from '@nestjs/platform-fastify'
import express5 from 'express'
import type { Request as ExpressRequest, Response as ExpressResponse } from 'express'
import fastify from 'fastify'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Hono } from 'hono'
import Koa from 'koa'
import { afterEach, describe, expect, test } from 'vitest'
import { createOnce } from '../../src/core/once.ts'
import type { Once } from '../../src/core/once.ts'
import type { OnceOptions } from '../../src/core/settings.ts'
import type { Store } from '../../src/core/store.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import { manualClock } from '../../src/testing/manual-clock.ts'
import type { HttpOptions, IdempotencyContext } from '../../src/http/exchange.ts'
import { idempotency as onExpress } from '../../src/http/express.ts'
import { idempotency as onFastify } from '../../src/http/fastify.ts'
import { idempotency as onFetch } from '../../src/http/fetch.ts'
import { idempotency as onHono } from '../../src/http/hono.ts'
import { idempotency as onKoa } from '../../src/http/koa.ts'
import { idempotency as onNest } from '../../src/http/nest.ts'
import { idempotency as onNode } from '../../src/http/node.ts'

interface Call {
  readonly once: IdempotencyContext
  /** Aborts when the framework says that the client has gone. */
  readonly gone: AbortSignal
}
interface Reply {
  readonly status?: number
  readonly headers?: Record<string, string>
  readonly body?: string | AsyncIterable<Uint8Array>
}
type Listen = (req: IncomingMessage, res: ServerResponse) => unknown
type Handler = (call: Call) => Reply | Promise<Reply>
type Options = Partial<Omit<HttpOptions, 'tenant'>>
type Start = (once: Once, handler: Handler, options?: Options) => Promise<Listen>

const closing: (() => unknown)[] = []
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close()
})

const tenant = 'shared'

/** Both ways to the context lead to one. */
function same(typed: IdempotencyContext | undefined, declared: IdempotencyContext | undefined): IdempotencyContext {
  if (typed !== declared) throw new Error('of() returned another context than the request has')
  return typed as IdempotencyContext
}

function goneWith(res: ServerResponse): AbortSignal {
  const controller = new AbortController()
  res.on('close', () => !res.writableFinished && controller.abort())
  return controller.signal
}

async function write(res: ServerResponse, { status = 201, headers = {}, body = '' }: Reply): Promise<void> {
  res.writeHead(status, headers)
  if (typeof body === 'string') return void res.end(body)
  for await (const chunk of body) res.write(chunk)
  res.end()
}

function expressOn(express: typeof express5): Start {
  return async (once, handler, options) => {
    const app = express()
    app.set('env', 'test')
    const keyed = onExpress<ExpressRequest>(once, { tenant, ...options })
    app.use(keyed, express.json())
    app.post('/orders', (req: ExpressRequest, res: ExpressResponse, next) => {
      Promise.resolve(handler({ once: same(keyed.of(req), req.idempotency), gone: goneWith(res) })).then(
        ({ status = 201, headers = {}, body = '' }) => {
          res.status(status).set(headers)
          if (typeof body === 'string') res.send(body)
          else Readable.from(body).on('error', next).pipe(res)
        },
        next,
      )
    })
    app.use((_error: unknown, req: ExpressRequest, res: ExpressResponse, _next: unknown) => {
      // What Express does by itself, without writing to the console.
      if (res.headersSent) req.socket.destroy()
      else res.status(500).send('failed')
    })
    return app
  }
}

const webHandler = async (handler: Handler, request: Request, once: IdempotencyContext): Promise<Response> => {
  await request.text()
  const { status = 201, headers = {}, body } = await handler({ once, gone: request.signal })
  const content = body === undefined || body === '' ? null : typeof body === 'string' ? body : ReadableStream.from(body)
  return new Response(content, { status, headers })
}

const startNode: Start = async (once, handler, options) =>
  onNode(once, { tenant, ...options })(async (req, res) => {
    for await (const _ of req);
    await write(res, await handler({ once: req.idempotency!, gone: goneWith(res) }))
  })

const startFetch: Start = async (once, handler, options) => {
  const guarded = onFetch(once, { tenant, ...options })((request, context) =>
    webHandler(handler, request, context.idempotency!),
  )
  return getRequestListener((request) => guarded(request).catch(() => new Response('failed', { status: 500 })))
}

const startHono: Start = async (once, handler, options) => {
  const app = new Hono()
  const keyed = onHono(once, { tenant, ...options })
  app.use(keyed)
  app.post('/orders', (c) => webHandler(handler, c.req.raw, same(keyed.of(c), c.get('idempotency'))))
  app.onError((_error, c) => c.text('failed', 500))
  return getRequestListener(app.fetch)
}

const startKoa: Start = async (once, handler, options) => {
  const app = new Koa()
  app.silent = true
  const keyed = onKoa(once, { tenant, ...options })
  app.use(keyed)
  app.use(async (ctx) => {
    for await (const _ of ctx.req);
    const {
      status = 201,
      headers = {},
      body = '',
    } = await handler({
      once: same(keyed.of(ctx), ctx.idempotency),
      gone: goneWith(ctx.res),
    })
    ctx.status = status
    ctx.set(headers)
    ctx.body = typeof body === 'string' ? body : Readable.from(body)
  })
  return app.callback()
}

const startFastify: Start = async (once, handler, options) => {
  const app = fastify()
  const keyed = onFastify(once, { tenant, ...options })
  await app.register(keyed)
  app.post('/orders', async (request: FastifyRequest, reply: FastifyReply) => {
    const {
      status = 201,
      headers = {},
      body,
    } = await handler({ once: same(keyed.of(request), request.idempotency), gone: goneWith(reply.raw) })
    return reply
      .code(status)
      .headers(headers)
      .send(typeof body === 'string' || !body ? body : Readable.from(body))
  })
  await app.ready()
  closing.push(() => app.close())
  return (req, res) => app.routing(req, res)
}

type Platform = (module: new () => object) => Promise<Listen>

const nestOnExpress: Platform = async (module) => {
  const platform = express5()
  const app = await NestFactory.create(module, new ExpressAdapter(platform), { rawBody: true, logger: false })
  await app.init()
  closing.push(() => app.close())
  return platform
}

const nestOnFastify: Platform = async (module) => {
  const adapter = new FastifyAdapter()
  const app = await NestFactory.create<NestFastifyApplication>(module, adapter, { rawBody: true, logger: false })
  await app.init()
  await adapter.getInstance().ready()
  closing.push(() => app.close())
  return (req, res) => adapter.getInstance().routing(req, res)
}

function nestOn(platform: Platform): Start {
  return (once, handler, options) => {
    const keyed = onNest(once, { tenant, ...options })
    class Orders {
      async handle(
        req: { idempotency?: IdempotencyContext },
        res: ServerResponse & {
          raw?: ServerResponse
          status(code: number): void
          header(name: string, value: string): void
        },
      ) {
        const reply = await handler({ once: same(keyed.of(req), req.idempotency), gone: goneWith(res.raw ?? res) })
        res.status(reply.status ?? 201)
        for (const [name, value] of Object.entries(reply.headers ?? {})) res.header(name, value)
        return typeof reply.body === 'string' || !reply.body
          ? reply.body
          : new StreamableFile(Readable.from(reply.body))
      }
    }
    const descriptor = Object.getOwnPropertyDescriptor(Orders.prototype, 'handle')!
    Controller()(Orders)
    All('orders')(Orders.prototype, 'handle', descriptor)
    Req()(Orders.prototype, 'handle', 0)
    Res({ passthrough: true })(Orders.prototype, 'handle', 1)
    UseInterceptors(keyed)(Orders.prototype, 'handle', descriptor)
    class Shop {}
    Module({ controllers: [Orders] })(Shop)
    return platform(Shop)
  }
}

const adapters: Record<string, Start> = {
  node: startNode,
  fetch: startFetch,
  hono: startHono,
  koa: startKoa,
  express4: expressOn(createRequire(import.meta.url)('express4') as typeof express5),
  express5: expressOn(express5),
  fastify: startFastify,
  'nest on express': nestOn(nestOnExpress),
  'nest on fastify': nestOn(nestOnFastify),
}

interface Answered {
  readonly status: number
  readonly headers: IncomingMessage['headers']
  readonly body: string
  readonly replayed: boolean
}

interface Client {
  post(key?: string, how?: { readonly signal?: AbortSignal; readonly path?: string }): Promise<Answered>
}

async function connectTo(listener: Listen): Promise<Client> {
  const server = createServer((req, res) => void listener(req, res))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  closing.push(() => (server.closeAllConnections(), new Promise((resolve) => server.close(resolve))))
  const { port } = server.address() as AddressInfo
  return {
    post: (key, { signal, path = '/orders' } = {}) =>
      new Promise((resolve, reject) => {
        const headers = { 'Content-Type': 'application/json', ...(key && { 'Idempotency-Key': key }) }
        const asked = {
          port,
          host: '127.0.0.1',
          path,
          method: 'POST',
          headers,
          agent: false,
          ...(signal && { signal }),
        } as const
        const asking = request(asked, (response) => void answeredBy(response).then(resolve, reject))
        asking.on('error', reject).end('{"amount":1}')
      }),
  }
}

async function answeredBy(response: IncomingMessage): Promise<Answered> {
  let body = ''
  for await (const chunk of response.setEncoding('latin1')) body += chunk
  const replayed = response.headers['idempotent-replayed'] === 'true'
  return { status: response.statusCode!, headers: response.headers, body, replayed }
}

function newOnce(options: Partial<OnceOptions> = {}): Once {
  return createOnce({ store: memoryStore(), scope: 'shop', ...options })
}

function newSqlite(): ReturnType<typeof sqliteStore> {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-http-'))
  const store = sqliteStore({ path: join(folder, 'shop.db') })
  closing.push(() => {
    store.close()
    rmSync(folder, { recursive: true })
  })
  return store
}

test('with transaction: true, of() refuses a request that did not pass the adapter, instead of having no tx', () => {
  const store = newSqlite()
  const once = createOnce({ store, scope: 'shop', sweepEveryMs: false })
  const options = { tenant, transaction: true } as const
  const noTransaction = /of\(request\) found no transaction.*option methods/
  expect(() => onExpress(once, options).of({} as never)).toThrow(noTransaction)
  expect(() => onFastify(once, options).of({} as never)).toThrow(noTransaction)
  expect(() => onKoa(once, options).of({} as never)).toThrow(noTransaction)
  expect(() => onHono(once, options).of({ get: () => undefined } as never)).toThrow(noTransaction)
  expect(() => onNest(once, options).of({})).toThrow(noTransaction)
})

describe.each(Object.entries(adapters))('%s', (_, start) => {
  const app = async (once: Once, handler: Handler, options?: Options): Promise<Client> =>
    connectTo(await start(once, handler, options))

  test('the context has the key, the attempt, its token and derived keys that stay the same', async () => {
    const seen: IdempotencyContext[] = []
    const { post } = await app(newOnce(), ({ once }) => (seen.push(once), { status: seen.length === 1 ? 503 : 201 }))
    await post('k')
    await post('k')
    const [first, second] = seen as [IdempotencyContext, IdempotencyContext]
    expect([first.key, first.attempt, first.replayed]).toEqual([{ scope: 'shop/', id: 'k' }, 1, false])
    expect(second.attempt).toBe(2)
    expect(second.fence).toBeGreaterThan(first.fence)
    expect(second.token).not.toBe(first.token)
    expect(second.keyFor('charge')).toBe(first.keyFor('charge'))
    expect(first.signal.aborted).toBe(false)
  })

  test('a request without a key has no context and runs each time', async () => {
    let runs = 0
    const { post } = await app(newOnce(), ({ once }) => (runs++, { body: String(once?.key ?? 'none') }))
    await post()
    expect(await post()).toMatchObject({ status: 201, body: 'none', replayed: false })
    expect(runs).toBe(2)
  })

  test('a key that comes again with another query is refused, and its handler does not run', async () => {
    let runs = 0
    const { post } = await app(newOnce(), () => (runs++, {}))
    expect((await post('k', { path: '/orders?draft=1' })).status).toBe(201)
    expect((await post('k', { path: '/orders' })).status).toBe(422)
    expect(await post('k', { path: '/orders?draft=1' })).toMatchObject({ status: 201, replayed: true })
    expect(runs).toBe(1)
  })

  test('a handler overrules the policy: release, store, notBegun', async () => {
    let runs = 0
    const wishes = { release: 201, store: 503, notBegun: 400 } as const
    const { post } = await app(newOnce(), ({ once }) => {
      const wish = once.key.id as keyof typeof wishes
      once[wish]()
      return { status: wishes[wish], body: String(++runs) }
    })
    for (const [wish, status] of Object.entries(wishes)) {
      const first = await post(wish)
      const again = await post(wish)
      expect(first).toMatchObject({ status, replayed: false })
      expect(again).toMatchObject({ status, replayed: wish === 'store' })
      expect(again.body === first.body).toBe(wish === 'store')
    }
  })

  test('a client that goes away while the answer is streamed does not lose it', async () => {
    let runs = 0
    const gate = Promise.withResolvers<void>()
    const half = Promise.withResolvers<void>()
    async function* pieces(): AsyncGenerator<Uint8Array> {
      yield Buffer.from('first ')
      half.resolve()
      await gate.promise
      yield Buffer.from('second')
    }
    const { post } = await app(newOnce(), () => (runs++, { body: pieces() }))
    const gone = new AbortController()
    const first = post('k', { signal: gone.signal }).catch(() => 'gone')
    await half.promise
    gone.abort()
    expect(await first).toBe('gone')
    gate.resolve()
    expect(await post('k')).toMatchObject({ status: 201, body: 'first second', replayed: true })
    expect(runs).toBe(1)
  })

  test('a handler that wants to stop when its client goes away is told, and what it then does is its own', async () => {
    let runs = 0
    const began = Promise.withResolvers<void>()
    const { post } = await app(newOnce(), async ({ gone }) => {
      if (++runs > 1) return { body: 'done' }
      began.resolve()
      await new Promise((resolve) => gone.addEventListener('abort', resolve))
      return { status: 503, body: 'rolled back' }
    })
    const gone = new AbortController()
    const first = post('k', { signal: gone.signal }).catch(() => 'gone')
    await began.promise
    gone.abort()
    await first
    expect(await post('k')).toMatchObject({ status: 201, body: 'done', replayed: false })
  })

  test('a handler that breaks off in the middle leaves neither half an answer nor a wedged key', async () => {
    let runs = 0
    async function* pieces(): AsyncGenerator<Uint8Array> {
      yield Buffer.from('half')
      if (runs === 1) throw new Error('provider down')
      yield Buffer.from(' and half')
    }
    const { post } = await app(newOnce(), () => (runs++, { body: pieces() }))
    const first = await post('k').catch(() => 'aborted' as const)
    if (first !== 'aborted') expect(first.status).toBeGreaterThanOrEqual(500)
    expect(await post('k')).toMatchObject({ status: 201, body: 'half and half', replayed: false })
    expect(await post('k')).toMatchObject({ body: 'half and half', replayed: true })
  })

  test('a handler that never answers is given up at its deadline, and its key can be taken over', async () => {
    const clock = manualClock()
    let runs = 0
    const once = newOnce({ store: memoryStore({ clock }), clock, leaseMs: 1_000, attemptMs: 5_000 })
    const { post } = await app(once, () => (++runs === 1 ? new Promise<Reply>(() => {}) : { body: 'second' }))
    const first = post('k')
    await expect.poll(() => runs).toBe(1)
    await clock.advance(6_000)
    expect(await first).toMatchObject({ status: 503 })
    await clock.advance(1_000)
    expect(await post('k')).toMatchObject({ status: 201, body: 'second' })
  })

  test('an effect whose record failed is an unknown outcome, or an unprotected answer if that was chosen', async () => {
    for (const onStoreDown of ['refuse', 'run'] as const) {
      const clock = manualClock()
      const settle: Store['settle'] = () => Promise.reject(new Error('connection lost'))
      const once = newOnce({ store: { ...memoryStore({ clock }), settle }, clock, storeTimeoutMs: 100 })
      let ran = false
      const { post } = await app(once, () => ((ran = true), { body: 'paid' }), { onStoreDown })
      const asking = post('k')
      await expect.poll(() => ran).toBe(true)
      const ticking = setInterval(() => void clock.advance(50), 1)
      const answer = await asking
      clearInterval(ticking)
      if (onStoreDown === 'refuse') expect(answer).toMatchObject({ status: 503, headers: { 'retry-after': '1' } })
      else expect(answer).toMatchObject({ status: 201, body: 'paid', headers: { 'idempotency-status': 'unprotected' } })
    }
  })

  test('in a transaction the answer leaves after the commit; a 5xx takes all back, a 4xx is all that is kept', async () => {
    const store = newSqlite()
    const once = createOnce({ store, scope: 'shop', sweepEveryMs: false }) as unknown as Once
    interface Tx {
      exec(sql: string): void
      prepare(sql: string): { get(): { n: number } }
    }
    let status = 500
    const counts: number[] = []
    const handler: Handler = ({ once: { tx } }) => {
      const sql = tx as Tx
      sql.exec('create table if not exists effects (n integer)')
      sql.exec('insert into effects values (1)')
      counts.push(sql.prepare('select count(*) n from effects').get().n)
      return { status, body: `run ${counts.length}` }
    }
    const { post } = await app(once, handler, { transaction: true })
    expect(await post('a')).toMatchObject({ status: 500 })
    status = 402
    expect(await post('a')).toMatchObject({ status: 402, body: 'run 2', replayed: false })
    expect(await post('a')).toMatchObject({ status: 402, body: 'run 2', replayed: true })
    status = 201
    expect(await post('b')).toMatchObject({ status: 201, body: 'run 3', replayed: false })
    expect(await post('b')).toMatchObject({ status: 201, body: 'run 3', replayed: true })
    expect(await post('c')).toMatchObject({ status: 201, body: 'run 4', replayed: false })
    // Each run saw its own write and those that were committed before it: b for c, and none for the others.
    expect(counts).toEqual([1, 1, 1, 2])
  })
})

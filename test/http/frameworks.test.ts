// What single frameworks do in their own way.

import { createHash } from 'node:crypto'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { once as onceEvent } from 'node:events'
import { createServer } from 'node:http'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { connect, constants, createServer as createHttp2Server } from 'node:http2'
import type { ClientHttp2Session, IncomingHttpHeaders, IncomingHttpStatusHeader } from 'node:http2'
import { connect as connectTcp } from 'node:net'
import type { AddressInfo } from 'node:net'
import { Readable } from 'node:stream'
import 'reflect-metadata'
import { getRequestListener } from '@hono/node-server'
import { Controller, Get, HttpException, Module, Post, UseInterceptors } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { ExpressAdapter } from '@nestjs/platform-express'
import express from 'express'
import type { Request as ExpressRequest } from 'express'
import fastify from 'fastify'
import type { FastifyRequest } from 'fastify'
import { Hono } from 'hono'
import { validator } from 'hono/validator'
import Koa from 'koa'
import { of } from 'rxjs'
import { afterEach, describe, expect, test } from 'vitest'
import { OnceError } from '../../src/core/errors.ts'
import { createOnce } from '../../src/core/once.ts'
import type { Once } from '../../src/core/once.ts'
import { createSessions } from '../../src/sessions/sessions.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { idempotency as onExpress } from '../../src/http/express.ts'
import { idempotency as onFastify } from '../../src/http/fastify.ts'
import { idempotency as onFetch } from '../../src/http/fetch.ts'
import { idempotency as onHono } from '../../src/http/hono.ts'
import { idempotency as onKoa } from '../../src/http/koa.ts'
import { idempotency as onNest } from '../../src/http/nest.ts'
import { idempotency as onNode } from '../../src/http/node.ts'
import { pollUntil } from '../servers/poll.ts'

const tenant = 'shared'
const newOnce = (): Once => createOnce({ store: memoryStore(), scope: 'shop' })

const closing: (() => unknown)[] = []
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close()
})

type Ask = (path: string, init?: RequestInit) => Promise<Response>

async function serve(listener: (req: IncomingMessage, res: ServerResponse) => unknown): Promise<Ask> {
  const server = createServer((req, res) => void listener(req, res))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  closing.push(() => (server.closeAllConnections(), new Promise((resolve) => server.close(resolve))))
  const { port } = server.address() as AddressInfo
  return (path, init) => fetch(`http://127.0.0.1:${port}${path}`, init)
}

const keyed = (key: string, body = '{"a":1}', more: Record<string, string> = {}): RequestInit => ({
  method: 'POST',
  headers: { 'Content-Type': 'application/json', 'Idempotency-Key': key, ...more },
  body,
})
const isReplay = (response: Response): boolean => response.headers.get('idempotent-replayed') === 'true'

describe('express', () => {
  test('it works behind a parser that keeps the raw bytes', async () => {
    const app = express()
    const verify = (req: object, _res: unknown, bytes: Buffer): void => void Object.assign(req, { rawBody: bytes })
    app.use(express.json({ verify }), onExpress(newOnce(), { tenant }))
    app.post('/', (req, res) => void res.json(req.body))
    const ask = await serve(app)
    expect(await (await ask('/', keyed('k'))).json()).toEqual({ a: 1 })
    expect(isReplay(await ask('/', keyed('k')))).toBe(true)
    expect((await ask('/', keyed('k', '{"a":2}'))).status).toBe(422)
    expect((await ask('/', keyed('k', '{"a": 1}'))).status).toBe(422)
  })

  test('a route that is reached through two of them is protected once', async () => {
    const once = newOnce()
    const app = express()
    app.use(onExpress(once, { tenant }))
    app.post('/', onExpress(once, { tenant, waitMs: 0 }), (_req, res) => void res.send('x'))
    const ask = await serve(app)
    expect((await ask('/', keyed('k'))).status).toBe(200)
    expect(isReplay(await ask('/', keyed('k')))).toBe(true)
  })

  test('req.once is untouched: it is still the way to listen once', async () => {
    const app = express()
    app.use(onExpress<ExpressRequest>(newOnce(), { tenant }))
    app.post('/', async (req, res) => {
      req.resume()
      await onceEvent(req, 'end')
      const ended = new Promise((resolve) => req.once('more', resolve))
      req.emit('more', 'heard')
      res.send(`${String(await ended)} ${req.idempotency?.key.id}`)
    })
    const ask = await serve(app)
    expect(await (await ask('/', keyed('k'))).text()).toBe('heard k')
  })

  test('a request line that names HTTP/2.0 is 505 with a key, and the handler does not run', async () => {
    let ran = 0
    const guarded = onNode(newOnce(), { tenant })((_req, res) => res.end(String(++ran)))
    const server = createServer((req, res) => void guarded(req, res))
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    closing.push(() => (server.closeAllConnections(), new Promise((resolve) => server.close(resolve))))
    const socket = connectTcp((server.address() as AddressInfo).port, '127.0.0.1')
    socket.write('POST / HTTP/2.0\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 0\r\nConnection: close\r\n\r\n')
    const answered = (await socket.toArray()).join('')
    expect(answered).toMatch(/^HTTP\/1\.1 505 HTTP Version Not Supported/)
    expect(ran).toBe(0)
  })

  test('a listener that throws is 500, and half an answer of one that throws later is cut off', async () => {
    const failures: unknown[] = []
    const listener = (message: unknown): void => void failures.push((message as { error: Error }).error.message)
    subscribe('onceonly:handler-failed', listener)
    closing.push(() => unsubscribe('onceonly:handler-failed', listener))
    const guarded = onNode(newOnce(), { tenant })(async (req, res) => {
      if (req.url === '/early') throw new Error('early')
      res.write('half')
      await new Promise((resolve) => setTimeout(resolve, 1))
      throw new Error('late')
    })
    const ask = await serve(guarded)
    const early = await ask('/early', keyed('a'))
    expect([early.status, await early.json()]).toEqual([
      500,
      { type: 'about:blank', title: 'Internal Server Error', status: 500 },
    ])
    expect(early.headers.get('content-type')).toBe('application/problem+json')
    await expect(ask('/late', keyed('b')).then((response) => response.text())).rejects.toThrow()
    expect(failures).toEqual(['early', 'late'])
  })

  test('what a listener returns for a request that passes is returned', () => {
    const guarded = onNode(newOnce(), { tenant })(() => 'returned')
    expect(guarded({ method: 'POST', headers: {}, url: '/' } as never, {} as never)).toBe('returned')
  })

  test('another header can carry the key, and Idempotency-Key is then a header like any other', async () => {
    let runs = 0
    const header = 'PayPal-Request-Id'
    const ask = await serve(onNode(newOnce(), { tenant, header })((_req, res) => res.end(String(++runs))))
    const post = (headers: Record<string, string>): Promise<Response> => ask('/', { method: 'POST', headers })
    await post({ [header]: 'k' })
    expect(isReplay(await post({ [header]: 'k' }))).toBe(true)
    await post({ 'Idempotency-Key': 'k' })
    await post({ 'Idempotency-Key': 'k' })
    expect(runs).toBe(3)
    expect(await (await post({ [header]: 'k, l' })).json()).toMatchObject({
      title: 'The PayPal-Request-Id header cannot be used',
    })
  })

  test('a tenant function that fails is the app’s error, and claims nothing', async () => {
    const app = express()
    let fails = true
    const tenant = (): string => {
      if (fails) throw new Error('no directory')
      return 'A'
    }
    app.use(onExpress(newOnce(), { tenant }))
    app.post('/', (_req, res) => void res.send('x'))
    app.use(
      (error: Error, _req: unknown, res: express.Response, _next: unknown) => void res.status(500).send(error.message),
    )
    const ask = await serve(app)
    expect(await (await ask('/', keyed('k'))).text()).toBe('no directory')
    fails = false
    expect(isReplay(await ask('/', keyed('k')))).toBe(false)
  })

  test('the rules are published as a page and as JSON', async () => {
    const app = express()
    app.use(onExpress(newOnce(), { tenant, keepMs: 3_600_000, problemBase: 'https://shop.example/problems' }))
    const ask = await serve(app)
    const page = await ask('/.well-known/idempotency', { headers: { Accept: 'text/html' } })
    expect(page.headers.get('content-type')).toMatch('text/html')
    expect(await page.text()).toContain('idempotency-key-reused')
    const rules = (await (
      await ask('/.well-known/idempotency', { headers: { Accept: 'application/json' } })
    ).json()) as object
    expect(rules).toMatchObject({ windowSeconds: 3_600, keyFormat: { lengthMax: 255 }, methods: ['POST', 'PATCH'] })
  })
})

async function overHttp2(listener: (req: never, res: never) => unknown): Promise<ClientHttp2Session> {
  const server = createHttp2Server((req, res) => void listener(req as never, res as never)).listen(0, '127.0.0.1')
  await onceEvent(server, 'listening')
  const session = connect(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
  closing.push(() => (session.destroy(), new Promise((resolve) => server.close(resolve))))
  return session
}

async function askOverHttp2(session: ClientHttp2Session, headers: object, content = '{}') {
  const stream = session.request({ ':method': 'POST', ...headers })
  stream.end(content)
  const [head] = (await onceEvent(stream, 'response')) as [IncomingHttpHeaders & IncomingHttpStatusHeader]
  let body = ''
  for await (const chunk of stream.setEncoding('utf8')) body += chunk
  return { status: head[':status'], replayed: head['idempotent-replayed'] === 'true', body }
}

describe('HTTP/2', () => {
  test('on a raw response a keyed request is refused in words, and others pass', async () => {
    const guarded = onNode(newOnce(), { tenant })((_req, res) => res.end('served'))
    const session = await overHttp2(guarded)
    const failures: string[] = []
    const listener = (message: unknown): void => void failures.push(String((message as { error: Error }).error.message))
    subscribe('onceonly:handler-failed', listener)
    closing.push(() => unsubscribe('onceonly:handler-failed', listener))
    expect(await askOverHttp2(session, {})).toMatchObject({ status: 200, body: 'served' })
    expect(await askOverHttp2(session, { 'idempotency-key': 'k' })).toMatchObject({ status: 500 })
    expect(failures).toEqual([expect.stringMatching(/HTTP\/2.*fetch or Hono/s)])
  })

  const serving = {
    fetch: (once: Once, handler: (request: Request) => Promise<Response>) =>
      onFetch(once, { tenant })((request) => handler(request)),
    hono: (once: Once, handler: (request: Request) => Promise<Response>) =>
      new Hono().use(onHono(once, { tenant })).post('*', (c) => handler(c.req.raw)).fetch,
  }
  test.each(Object.entries(serving))(
    '%s replays, and a client that resets its stream loses nothing',
    async (_, app) => {
      const began = Promise.withResolvers<void>()
      const gate = Promise.withResolvers<void>()
      let runs = 0
      const guarded = app(newOnce(), async (request) => {
        runs++
        if (request.headers.get('idempotency-key') === 'gone') await (began.resolve(), gate.promise)
        return new Response(`${runs} ${await request.text()}`)
      })
      const session = await overHttp2(getRequestListener((request) => guarded(request)) as never)
      const first = { status: 200, replayed: false, body: '1 {}' }
      expect(await askOverHttp2(session, { 'idempotency-key': 'k' })).toEqual(first)
      expect(await askOverHttp2(session, { 'idempotency-key': 'k' })).toEqual({ ...first, replayed: true })
      expect((await askOverHttp2(session, { 'idempotency-key': 'k' }, 'other')).status).toBe(422)
      expect((await askOverHttp2(session, { 'idempotency-key': ['a', 'b'] })).status).toBe(400)
      const reset = session.request({ ':method': 'POST', 'idempotency-key': 'gone' }).on('error', () => {})
      reset.end('{}')
      await began.promise
      reset.close(constants.NGHTTP2_CANCEL)
      await onceEvent(reset, 'close')
      gate.resolve()
      expect(await askOverHttp2(session, { 'idempotency-key': 'gone' })).toMatchObject({ body: '2 {}', replayed: true })
    },
  )
})

describe('fastify', () => {
  test('it works without a socket, as fastify.inject has none', async () => {
    const app = fastify()
    await app.register(onFastify(newOnce(), { tenant }))
    app.post('/', async (request) => ({ id: request.idempotency?.key.id }))
    const asked = { method: 'POST', url: '/', headers: { 'idempotency-key': 'k' }, payload: { a: 1 } } as const
    expect((await app.inject(asked)).json()).toEqual({ id: 'k' })
    const again = await app.inject(asked)
    expect(again.headers['idempotent-replayed']).toBe('true')
    expect(again.json()).toEqual({ id: 'k' })
  })

  test('the body of an injected stream is compared, though no header tells of it', async () => {
    const app = fastify()
    await app.register(onFastify(newOnce(), { tenant }))
    app.post('/', async (request) => request.body)
    const ask = (text: string) => {
      const headers = { 'idempotency-key': 'k', 'content-type': 'text/plain' }
      return app.inject({ method: 'POST', url: '/', headers, payload: Readable.from([Buffer.from(text)]) })
    }
    expect((await ask('one')).body).toBe('one')
    expect((await ask('one')).headers['idempotent-replayed']).toBe('true')
    expect((await ask('two')).statusCode).toBe(422)
  })

  test('a route has options of its own, checked when it is declared, or none at all', async () => {
    const app = fastify()
    await app.register(onFastify(newOnce(), { tenant }))
    app.post('/required', { config: { idempotency: { required: true } } }, async () => 'x')
    app.post('/free', { config: { idempotency: false } }, async (request) => String(request.idempotency))
    expect(() => app.post('/wrong', { config: { idempotency: { lease: 1 } as object } }, async () => 'x')).toThrow(
      /did you mean "leaseMs"/,
    )
    expect((await app.inject({ method: 'POST', url: '/required' })).statusCode).toBe(400)
    expect((await app.inject({ method: 'POST', url: '/free', headers: { 'idempotency-key': 'k' } })).body).toBe(
      'undefined',
    )
  })

  test('a key in a header that only one route has is seen on that route', async () => {
    const app = fastify()
    await app.register(onFastify(newOnce(), { tenant }))
    app.post('/own', { config: { idempotency: { header: 'X-Key' } } }, async (request) => request.idempotency?.key.id)
    app.post('/usual', async (request) => String(request.idempotency?.key.id))
    const ask = (url: string, headers: Record<string, string>) => app.inject({ method: 'POST', url, headers })
    expect((await ask('/own', { 'x-key': 'k' })).body).toBe('k')
    expect((await ask('/own', { 'x-key': 'k' })).headers['idempotent-replayed']).toBe('true')
    expect((await ask('/usual', { 'x-key': 'k' })).body).toBe('undefined')
    expect((await ask('/own', { 'idempotency-key': 'k' })).headers['idempotency-window']).toBeUndefined()
  })

  test('a start is refused by a store that only a person can mend, and not by one that is down', async () => {
    const failing = (code: 'SCHEMA_MISSING' | 'STORE_UNAVAILABLE') => {
      const ready = (): Promise<never> => Promise.reject(new OnceError(code, { message: 'No tables.' }))
      const app = fastify()
      void app.register(onFastify({ ...newOnce(), ready }, { tenant }))
      return app.ready()
    }
    await expect(failing('SCHEMA_MISSING')).rejects.toMatchObject({ code: 'SCHEMA_MISSING' })
    await expect(failing('STORE_UNAVAILABLE')).resolves.toBeDefined()
  })

  test('rules and sessions are published once, at the root only, and an own route is left as it is', async () => {
    const store = memoryStore()
    const once = createOnce({ store, scope: 'shop' })
    const sessions = createSessions({ store, scope: 'tills' })
    const app = fastify()
    const rules = '/.well-known/idempotency'
    app.get(rules, async () => 'own')
    app.post(`${rules}/sessions`, async () => 'own')
    await app.register(onFastify(once, { tenant, sessions }))
    await app.register(onFastify(once, { tenant, sessions }))
    const get = (url: string) => app.inject({ url, headers: { accept: 'application/json' } })
    expect((await get(rules)).body).toBe('own')
    const problem = await get(`${rules}/problems/idempotency-key-missing`)
    expect(problem.headers).toMatchObject({ 'content-type': 'application/json', vary: 'Accept' })
    expect(problem.json()).toMatchObject({ errors: [{ code: 'idempotency-key-missing' }] })

    const child = fastify()
    await child.register(async (below) => void (await below.register(onFastify(once, { tenant, sessions }))), {
      prefix: '/v1',
    })
    expect((await child.inject(rules)).statusCode).toBe(404)
    expect((await child.inject({ method: 'POST', url: `${rules}/sessions` })).statusCode).toBe(404)
  })

  test('a path of sessions in capitals, which the router takes for one, is not found', async () => {
    const store = memoryStore()
    const sessions = createSessions({ store, scope: 'tills' })
    const app = fastify({ routerOptions: { caseSensitive: false } })
    await app.register(onFastify(createOnce({ store, scope: 'shop' }), { tenant, sessions }))
    const path = '/.well-known/idempotency/sessions'
    const register = (url: string) => app.inject({ method: 'POST', url, payload: { client: 'till' } })
    expect((await register(path)).statusCode).toBe(201)
    expect((await register(path.toUpperCase())).statusCode).toBe(404)
  })

  test.each(['application/json', 'text/unknown', undefined])(
    'a session is registered, renewed and closed with a body of type %s',
    async (type) => {
      const store = memoryStore()
      const sessions = createSessions({ store, scope: 'tills' })
      const app = fastify()
      await app.register(onFastify(createOnce({ store, scope: 'shop' }), { tenant, sessions }))
      app.post('/', async (request) => request.idempotency?.key.id)
      const path = '/.well-known/idempotency/sessions'
      const headers = type ? { 'content-type': type } : {}
      const made = await app.inject({ method: 'POST', url: path, headers, payload: Buffer.from('{"client":"till"}') })
      expect([made.statusCode, made.json()]).toMatchObject([201, { session: 'till' }])
      const { epoch } = made.json<{ epoch: number }>()
      const large = Buffer.from(JSON.stringify({ client: 'till', more: 'x'.repeat(4_096) }))
      const refused = await app.inject({ method: 'POST', url: path, headers, payload: large })
      expect(refused.json()).toMatchObject({ status: 400, code: 'idempotency-session-invalid' })
      const numbers = { 'idempotency-session': 'till', 'idempotency-epoch': String(epoch) }
      const ask = () => {
        const numbered = { ...numbers, 'idempotency-sequence': '1', 'idempotency-acknowledged': '0' }
        return app.inject({ method: 'POST', url: '/', headers: numbered })
      }
      expect((await ask()).body).toBe(`/till/${epoch}/1`)
      expect((await ask()).headers['idempotent-replayed']).toBe('true')
      const renewed = await app.inject({ method: 'PUT', url: `${path}/till`, headers: numbers })
      expect(renewed.statusCode).toBe(200)
      expect((await app.inject({ method: 'DELETE', url: `${path}/till`, headers: numbers })).statusCode).toBe(204)
      expect((await ask()).statusCode).toBe(410)
    },
  )

  test('a client that goes away in the middle of its body ends nothing but its own request', async () => {
    const app = fastify()
    let runs = 0
    await app.register(onFastify(newOnce(), { tenant }))
    app.post('/', async () => `${++runs}`)
    await app.ready()
    closing.push(() => app.close())
    const failures: unknown[] = []
    const server = createServer((req, res) => app.routing(req, res))
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    closing.push(() => (server.closeAllConnections(), new Promise((resolve) => server.close(resolve))))
    const { port } = server.address() as AddressInfo
    for (const length of [100, 100_000]) {
      const socket = connectTcp(port, '127.0.0.1').on('error', (error) => failures.push(error))
      socket.write(
        `POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Type: text/plain\r\nContent-Length: ${length}\r\n\r\nhalf`,
      )
      await onceEvent(server, 'request')
      socket.destroy()
    }
    const answered = await fetch(`http://127.0.0.1:${port}/`, keyed('k'))
    expect([await answered.text(), failures]).toEqual(['1', []])
  })

  test('it applies to the routes of its instance and below, and to no others', async () => {
    const app = fastify()
    app.register(async (child) => {
      await child.register(onFastify(newOnce(), { tenant }))
      child.post('/inside', async (request) => String(request.idempotency?.key.id))
    })
    app.post('/outside', async (request) => String((request as { once?: unknown }).once))
    const headers = { 'idempotency-key': 'k' }
    expect((await app.inject({ method: 'POST', url: '/inside', headers })).body).toBe('k')
    expect((await app.inject({ method: 'POST', url: '/outside', headers })).body).toBe('undefined')
  })

  test('validation comes before the claim: another body may follow under the same key', async () => {
    const app = fastify()
    await app.register(onFastify(newOnce(), { tenant }))
    const schema = { body: { type: 'object', required: ['amount'], properties: { amount: { type: 'integer' } } } }
    app.post('/', { schema }, async () => 'paid')
    const ask = (payload: object) =>
      app.inject({ method: 'POST', url: '/', headers: { 'idempotency-key': 'k' }, payload })
    expect((await ask({})).statusCode).toBe(400)
    expect((await ask({ amount: 1 })).body).toBe('paid')
  })

  test('a body that a parser leaves to the handler is compared as well, and the handler reads all of it', async () => {
    const app = fastify()
    await app.register(onFastify(newOnce(), { tenant }))
    app.addContentTypeParser('application/octet-stream', (_request, payload, done) => done(null, payload))
    app.post('/', async (request) => {
      let text = ''
      for await (const chunk of request.body as AsyncIterable<Buffer>) text += chunk.toString()
      return text
    })
    await app.ready()
    closing.push(() => app.close())
    const serving = await serve((req, res) => app.routing(req, res))
    const ask = (body: string): Promise<Response> =>
      serving('/', keyed('k', body, { 'Content-Type': 'application/octet-stream' }))
    expect(await (await ask('abc')).text()).toBe('abc')
    const again = await ask('abc')
    expect([await again.text(), isReplay(again)]).toEqual(['abc', true])
    expect((await ask('abd')).status).toBe(422)
  })

  test('two of us on one application share a request: the body is seen by both, and one holds the key', async () => {
    const app = fastify()
    await app.register(onFastify(newOnce(), { tenant }))
    await app.register(onFastify(newOnce(), { tenant }))
    app.post('/', async (request) => request.body)
    await app.ready()
    closing.push(() => app.close())
    const serving = await serve((req, res) => app.routing(req, res))
    const ask = (body: string): Promise<Response> =>
      serving('/', keyed('k', body, { 'Content-Type': 'application/json' }))
    expect(await (await ask('{"a":1}')).json()).toEqual({ a: 1 })
    expect(isReplay(await ask('{"a":1}'))).toBe(true)
    expect((await ask('{"a":2}')).status).toBe(422)
  })

  test('headers that a plugin set before the handler are on replays and problems, too', async () => {
    const app = fastify()
    let visits = 0
    app.addHook('onRequest', async (_request, reply) => void reply.header('X-Visit', ++visits))
    await app.register(onFastify(newOnce(), { tenant }))
    app.post('/', async () => 'x')
    const ask = (payload: string) =>
      app.inject({
        method: 'POST',
        url: '/',
        headers: { 'idempotency-key': 'k', 'content-type': 'text/plain' },
        payload,
      })
    expect((await ask('a')).headers['x-visit']).toBe('1')
    expect((await ask('a')).headers).toMatchObject({ 'x-visit': '2', 'idempotent-replayed': 'true' })
    expect(await ask('b')).toMatchObject({ statusCode: 422, headers: { 'x-visit': '3' } })
  })

  test('a large body whose digest does not hold is refused, through inject as well', async () => {
    const app = fastify()
    await app.register(onFastify(newOnce(), { tenant, bodyBytesMax: 10 }))
    app.post('/', async () => 'x')
    const payload = '"a text that is long enough"'
    const ask = (claimed: string) => {
      const digest = `sha-256=:${createHash('sha256').update(claimed).digest('base64')}:`
      const headers = { 'idempotency-key': 'k', 'content-type': 'application/json', 'content-digest': digest }
      return app.inject({ method: 'POST', url: '/', headers, payload })
    }
    expect((await ask('another')).statusCode).toBe(400)
    expect((await ask(payload)).statusCode).toBe(200)
    expect((await ask(payload)).headers['idempotent-replayed']).toBe('true')
  })

  test.each([
    ['is arriving', async () => {}],
    ['has arrived', (request: FastifyRequest) => pollUntil('the body', () => request.raw.complete)],
  ])('a large body that %s and whose digest does not hold is refused', async (_, waiting) => {
    const app = fastify()
    let runs = 0
    app.addHook('onRequest', waiting)
    await app.register(onFastify(newOnce(), { tenant, bodyBytesMax: 10 }))
    app.post('/', async () => (runs++, 'x'))
    const digest = (text: string): string => createHash('sha256').update(text).digest('base64')
    const payload = '"a text that is long enough"'
    await app.ready()
    closing.push(() => app.close())
    const serving = await serve((req, res) => app.routing(req, res))
    const ask = (claimed: string): Promise<Response> =>
      serving('/', keyed('k', payload, { 'Content-Digest': `sha-256=:${digest(claimed)}:` }))
    const refused = await ask('another')
    expect([refused.status, await refused.text()]).toEqual([400, expect.stringContaining('Content-Digest claims')])
    expect((await ask(payload)).status).toBe(200)
    expect(isReplay(await ask(payload))).toBe(true)
    expect(runs).toBe(1)
  })

  test('a handler that returns nothing is answered also when its client has gone', async () => {
    const app = fastify()
    const began = Promise.withResolvers<void>()
    const gate = Promise.withResolvers<void>()
    let runs = 0
    await app.register(onFastify(newOnce(), { tenant }))
    app.post('/', async (_request, reply) => {
      runs++
      began.resolve()
      await gate.promise
      reply.code(204)
    })
    await app.ready()
    closing.push(() => app.close())
    const ask = await serve((req, res) => app.routing(req, res))
    const gone = new AbortController()
    const first = ask('/', { ...keyed('k'), signal: gone.signal }).catch(() => 'gone')
    await began.promise
    gone.abort()
    await first
    gate.resolve()
    const again = await ask('/', keyed('k'))
    expect([again.status, isReplay(again), runs]).toEqual([204, true, 1])
  })
})

describe('hono', () => {
  test('a validator that read the body before us has not taken it from us, nor from the handler', async () => {
    const app = new Hono()
    app.post(
      '/',
      validator('json', (value) => value as { a: number }),
      onHono(newOnce(), { tenant }),
      async (c) => c.json({ valid: c.req.valid('json'), again: await c.req.json<object>() }),
    )
    const ask = (body: string) => app.request('/', keyed('k', body))
    expect(await (await ask('{"a":1}')).json()).toEqual({ valid: { a: 1 }, again: { a: 1 } })
    expect(isReplay(await ask('{"a":1}'))).toBe(true)
    expect((await ask('{"a":2}')).status).toBe(422)
  })

  test.each(['text', 'arrayBuffer', 'blob', 'json'] as const)(
    'what was read by %s before us is compared',
    async (way) => {
      const app = new Hono()
      app.use(async (c, next) => (await c.req[way](), next()))
      app.use(onHono(newOnce(), { tenant }))
      app.post('/', async (c) => c.text(await c.req.text()))
      const ask = (body: string) => app.request('/', keyed('k', body))
      expect(await (await ask('{"a":"\u00e9"}')).text()).toBe('{"a":"\u00e9"}')
      expect(isReplay(await ask('{"a":"\u00e9"}'))).toBe(true)
      expect((await ask('{"a":"e"}')).status).toBe(422)
    },
  )

  test('a text that is no longer the bytes that came is not compared, and says so', async () => {
    const app = new Hono()
    const errors: unknown[] = []
    app.use(async (c, next) => (await c.req.text(), next()))
    app.use(onHono(newOnce(), { tenant }))
    app.post('/', (c) => c.text('ran'))
    app.onError((error, c) => (errors.push(error), c.text('failed', 500)))
    const asked = { ...keyed('k'), body: Buffer.from([0xff, 0xfe]) }
    expect((await app.request('/', asked)).status).toBe(500)
    expect(errors).toMatchObject([{ code: 'UNSUPPORTED' }])
  })

  test('two lines of a key are told apart where the platform shows them', async () => {
    const app = new Hono()
    app.use(onHono(newOnce(), { tenant }))
    app.post('/', (c) => c.text(c.get('idempotency')!.key.id))
    const ask = (...lines: string[]) => {
      const rawHeaders = ['X-A', 'Idempotency-Key', ...lines.flatMap((line) => ['Idempotency-KEY', line])]
      return app.request('/', keyed('joined'), { incoming: { rawHeaders } })
    }
    expect(await (await ask('one')).text()).toBe('one')
    expect((await ask('one', 'two')).status).toBe(400)
    expect((await ask()).status).toBe(400)
    expect(await (await app.request('/', keyed('joined'), { incoming: {} })).text()).toBe('joined')
  })

  test('a request that passes two of us is protected once, and others have the rules or pass', async () => {
    const once = newOnce()
    const app = new Hono()
    app.use(onHono(once, { tenant }), onHono(once, { tenant, waitMs: 0 }))
    app.all('/', (c) => c.text('x'))
    expect(await (await app.request('/', keyed('k'))).text()).toBe('x')
    expect(isReplay(await app.request('/', keyed('k')))).toBe(true)
    expect(await (await app.request('/.well-known/idempotency')).text()).toContain('<!doctype html>')
    expect(await (await app.request('/')).text()).toBe('x')
  })

  test('the handler may read the body in any way', async () => {
    const app = new Hono()
    app.use(onHono(newOnce(), { tenant }))
    app.post('/raw', async (c) => c.text(await c.req.raw.text()))
    app.post('/json', async (c) => c.json(await c.req.json<object>()))
    app.post('/clone', async (c) => c.text((await c.req.raw.clone().text()) + (await c.req.text())))
    expect(await (await app.request('/raw', keyed('1'))).text()).toBe('{"a":1}')
    expect(await (await app.request('/json', keyed('2'))).json()).toEqual({ a: 1 })
    expect(await (await app.request('/clone', keyed('3'))).text()).toBe('{"a":1}{"a":1}')
  })

  test('headers of a middleware around us are fresh on a replay, and cookies are not doubled', async () => {
    const app = new Hono()
    let visits = 0
    app.use(async (c, next) => {
      await next()
      c.header('X-Visit', String(++visits))
    })
    app.use(onHono(newOnce(), { tenant }))
    app.post('/', (c) => {
      c.header('Set-Cookie', 'a=1', { append: true })
      c.header('Set-Cookie', 'b=2', { append: true })
      return c.text('x')
    })
    const first = await app.request('/', keyed('k'))
    expect(first.headers.getSetCookie()).toEqual(['a=1', 'b=2'])
    const again = await app.request('/', keyed('k'))
    expect([again.headers.getSetCookie(), again.headers.get('x-visit'), isReplay(again)]).toEqual([[], '2', true])
  })
})

describe('koa', () => {
  test('it works behind a parser that keeps the raw bytes, and publishes the rules', async () => {
    const app = new Koa()
    app.silent = true
    app.use(async (ctx, next) => {
      const chunks = await ctx.req.toArray()
      Object.assign(ctx.req, { rawBody: Buffer.concat(chunks as Buffer[]).toString() })
      await next()
    })
    app.use(onKoa(newOnce(), { tenant }))
    app.use((ctx) => void (ctx.body = ctx.originalUrl))
    const ask = await serve(app.callback())
    expect(await (await ask('/a?b', keyed('k'))).text()).toBe('/a?b')
    expect(isReplay(await ask('/a?b', keyed('k')))).toBe(true)
    expect((await ask('/a?b', keyed('k', '{}'))).status).toBe(422)
    expect((await ask('/a?c', keyed('k'))).status).toBe(422)
    expect(await (await ask('/.well-known/idempotency')).text()).toContain('<!doctype html>')
    expect(await (await ask('/other')).text()).toBe('/other')
  })

  test('a tenant function that fails is the app’s error', async () => {
    const app = new Koa()
    const errors: unknown[] = []
    app.use(async (ctx, next) => {
      await next().catch((error: unknown) => (errors.push(error), (ctx.status = 500)))
    })
    app.use(onKoa(newOnce(), { tenant: () => Promise.reject(new Error('no directory')) }))
    app.use((ctx) => void (ctx.body = 'ran'))
    const ask = await serve(app.callback())
    expect((await ask('/', keyed('k'))).status).toBe(500)
    expect(String(errors)).toContain('no directory')
  })

  test('what a handler throws is the answer that the app makes of it', async () => {
    const app = new Koa()
    let runs = 0
    app.use(async (ctx, next) => {
      try {
        await next()
      } catch (error) {
        ctx.status = (error as { status: number }).status
        ctx.body = { error: (error as Error).message }
      }
    })
    app.use(onKoa(newOnce(), { tenant }))
    app.use((ctx) => ctx.throw(402, `declined ${++runs}`))
    const ask = await serve(app.callback())
    const first = await ask('/', keyed('k'))
    const again = await ask('/', keyed('k'))
    expect([first.status, again.status, isReplay(again)]).toEqual([402, 402, true])
    expect(await again.text()).toBe(await first.text())
  })
})

describe('fetch', () => {
  test('a request that is a Proxy, as Next.js hands one, is handled and replayed; the handler is given that request', async () => {
    const proxied = (body: string, nextUrl: string): Request & { nextUrl: string } => {
      const own = Object.assign(new Request('http://localhost/orders', keyed('k', body)), { nextUrl })
      return new Proxy(own, {
        get(target, name) {
          const value: unknown = Reflect.get(target, name, target)
          return typeof value === 'function' ? (value as () => unknown).bind(target) : value
        },
      })
    }
    const POST = onFetch(newOnce(), { tenant })(async (request) => {
      const { nextUrl, method } = request as Request & { nextUrl: string }
      return Response.json({ nextUrl, method, body: await request.json(), used: request.bodyUsed })
    })
    const first = await POST(proxied('{"a":1}', '/orders'))
    expect([first.status, await first.json()]).toEqual([
      200,
      { nextUrl: '/orders', method: 'POST', body: { a: 1 }, used: true },
    ])
    expect(isReplay(await POST(proxied('{"a":1}', '/orders')))).toBe(true)
    expect((await POST(proxied('{"a":2}', '/orders'))).status).toBe(422)
  })

  test('the platform’s own second argument is kept', async () => {
    const params = Promise.resolve({ id: '7' })
    const POST = onFetch(newOnce(), { tenant })<{ params: Promise<{ id: string }> }>(async (_request, context) =>
      Response.json({ ...(await context.params), key: context.idempotency?.key.id }),
    )
    const asked = (): Request => new Request('http://shop.example/orders/7', keyed('k'))
    expect(await (await POST(asked(), { params })).json()).toEqual({ id: '7', key: 'k' })
    expect(isReplay(await POST(asked(), { params }))).toBe(true)
  })

  test('a handler that is reached through two of them is protected once', async () => {
    const once = newOnce()
    const POST = onFetch(once, { tenant })(
      onFetch(once, { tenant })(async (request) => new Response(await request.text())),
    )
    const asked = (): Request => new Request('http://shop.example/', keyed('k'))
    expect([await (await POST(asked())).text(), isReplay(await POST(asked()))]).toEqual(['{"a":1}', true])
  })

  test('whoever makes the rest of an answer that goes nowhere is told to stop', async () => {
    const store = memoryStore()
    store.settle = async () => Promise.reject(new OnceError('STORE_UNAVAILABLE', { message: 'gone' }))
    const once = createOnce({ store, scope: 'shop', storeTimeoutMs: 50, leaseMs: 100 })
    const cancelled = Promise.withResolvers<void>()
    const pull = (controller: ReadableStreamDefaultController<Uint8Array>): void =>
      controller.enqueue(Buffer.alloc(100))
    const POST = onFetch(once, { tenant, storedBytesMax: 1_000 })(
      () => new Response(new ReadableStream({ pull, cancel: () => cancelled.resolve() })),
    )
    expect((await POST(new Request('http://shop.example/', keyed('k')))).status).toBe(503)
    await cancelled.promise
  })

  test('what a handler throws is thrown on, and its key is free', async () => {
    let runs = 0
    const POST = onFetch(newOnce(), { tenant })(() => {
      if (++runs === 1) throw new Error('provider down')
      return new Response('x')
    })
    const asked = (): Request => new Request('http://shop.example/', keyed('k'))
    await expect(POST(asked())).rejects.toThrow('provider down')
    expect(await (await POST(asked())).text()).toBe('x')
  })

  test('with began a throw is an answer, the same for every retry', async () => {
    let runs = 0
    const POST = onFetch(newOnce(), { tenant, errorPolicy: 'began' })(() => {
      throw new Error(`secret ${++runs}`)
    })
    const asked = (): Request => new Request('http://shop.example/', keyed('k'))
    const first = await POST(asked())
    const again = await POST(asked())
    expect([first.status, again.status, isReplay(again), runs]).toEqual([500, 500, true, 1])
    expect(await again.text()).toBe(await first.text())
  })

  test('a stream passes unbuffered after it is settled, and its retry is told so', async () => {
    const gate = Promise.withResolvers<void>()
    const POST = onFetch(newOnce(), { tenant })(() => {
      async function* events(): AsyncGenerator<Uint8Array> {
        yield Buffer.from('data: 1\n\n')
        await gate.promise
        yield Buffer.from('data: 2\n\n')
      }
      return new Response(ReadableStream.from(events()), { headers: { 'Content-Type': 'text/event-stream' } })
    })
    const asked = (): Request => new Request('http://shop.example/', keyed('k'))
    const reader = (await POST(asked())).body!.getReader()
    expect(Buffer.from((await reader.read()).value as Uint8Array).toString()).toBe('data: 1\n\n')
    expect((await POST(asked())).status).toBe(409)
    gate.resolve()
    expect(Buffer.from((await reader.read()).value as Uint8Array).toString()).toBe('data: 2\n\n')
    expect((await reader.read()).done).toBe(true)
  })
})

describe('rate limiters', () => {
  /** Three requests, then none until it is filled again. */
  function limiter(): { left: number; take(): boolean } {
    return {
      left: 3,
      take() {
        return this.left-- > 0
      },
    }
  }

  test('in front, a replay counts, too, and a throttled client must wait for the answer it lost', async () => {
    const limit = limiter()
    const app = express()
    app.use((_req, res, next) => {
      res.setHeader('RateLimit', `"default";r=${limit.left - 1}`)
      if (limit.take()) next()
      else res.setHeader('Retry-After', '1').sendStatus(429)
    })
    app.use(onExpress(newOnce(), { tenant }))
    app.post('/', (_req, res) => void res.send('paid'))
    const ask = await serve(app)
    expect((await ask('/', keyed('k'))).headers.get('ratelimit')).toBe('"default";r=2')
    expect((await ask('/', keyed('k'))).headers.get('ratelimit')).toBe('"default";r=1')
    await ask('/', keyed('k'))
    expect((await ask('/', keyed('k'))).status).toBe(429)
    expect((await ask('/', keyed('new'))).status).toBe(429)
    limit.left = 3
    expect(isReplay(await ask('/', keyed('k')))).toBe(true)
    expect(isReplay(await ask('/', keyed('new')))).toBe(false)
  })

  test('behind, a replay is free, a refusal is not stored, and its headers are those of the moment', async () => {
    const limit = limiter()
    const app = express()
    app.use(onExpress(newOnce(), { tenant, errorPolicy: 'began' }))
    app.use((_req, res, next) => {
      res.setHeader('RateLimit', `"default";r=${limit.left - 1}`)
      if (limit.take()) next()
      else res.setHeader('Retry-After', '1').sendStatus(429)
    })
    app.post('/', (_req, res) => void res.send('paid'))
    const ask = await serve(app)
    for (const key of ['1', '2', '3']) expect((await ask('/', keyed(key))).status).toBe(200)
    const refused = await ask('/', keyed('4'))
    expect([refused.status, refused.headers.get('retry-after')]).toEqual([429, '1'])
    const lost = await ask('/', keyed('1'))
    expect([lost.status, isReplay(lost), lost.headers.get('ratelimit')]).toEqual([200, true, null])
    limit.left = 1
    const served = await ask('/', keyed('4'))
    expect([served.status, isReplay(served)]).toEqual([200, false])
  })
})

describe('nest', () => {
  const contextOf = (type: string, request: object = {}, response: object = {}) =>
    ({
      getType: () => type,
      switchToHttp: () => ({ getRequest: () => request, getResponse: () => response }),
    }) as never

  test('what is not HTTP passes untouched', async () => {
    const handled = of('handled')
    expect(await onNest(newOnce(), { tenant }).intercept(contextOf('rpc'), { handle: () => handled })).toBe(handled)
  })

  test('a tenant function that fails is the app’s error, in an interceptor and beside the controllers', async () => {
    const store = memoryStore()
    const sessions = createSessions({ store, scope: 'tills' })
    const fails = (): Promise<string> => Promise.reject(new Error('no directory'))
    const interceptor = onNest(createOnce({ store, scope: 'shop' }), { tenant: fails, sessions })
    const handle = (): never => {
      throw new Error('it ran')
    }
    const headers = { 'idempotency-key': 'k' }
    const request = { method: 'POST', headers, rawHeaders: [], url: '/', httpVersionMajor: 1 }
    const intercepted = interceptor.intercept(contextOf('http', request, { getHeaders: () => ({}) }), { handle })
    await expect(intercepted).rejects.toThrow('no directory')
    const app = express()
    app.use(interceptor.rules)
    app.use((error: Error, _req: unknown, res: express.Response, _next: unknown) => void res.send(error.message))
    const ask = await serve(app)
    const registered = await ask('/.well-known/idempotency/sessions', { method: 'POST' })
    expect(await registered.text()).toBe('no directory')
    expect(await (await ask('/.well-known/idempotency')).text()).toContain('<!doctype html>')
    expect((await ask('/other')).status).toBe(404)
  })

  test('sessions are registered beside the controllers, under the path that the client asked for', async () => {
    const store = memoryStore()
    const sessions = createSessions({ store, scope: 'tills' })
    const interceptor = onNest(createOnce({ store, scope: 'shop' }), { tenant, sessions })
    const app = express()
    app.use('/.well-known', interceptor.rules)
    const ask = await serve(app)
    const made = await ask('/.well-known/idempotency/sessions', { method: 'POST', body: '{"client":"till"}' })
    expect([made.status, await made.json()]).toMatchObject([201, { session: 'till' }])
  })

  test('a start is refused by a store that only a person can mend', async () => {
    const ready = (): Promise<never> => Promise.reject(new OnceError('SCHEMA_MISSING', { message: 'No tables.' }))
    await expect(onNest({ ...newOnce(), ready }, { tenant }).onModuleInit()).rejects.toMatchObject({
      code: 'SCHEMA_MISSING',
    })
  })

  test('exceptions are answers by their status, and the rules are published beside the controllers', async () => {
    let runs = 0
    const interceptor = onNest(newOnce(), { tenant })
    class Orders {
      post(): never {
        throw new HttpException(`declined ${++runs}`, 402)
      }
      get(): string {
        return 'listed'
      }
    }
    const { prototype } = Orders
    Controller('orders')(Orders)
    Post()(prototype, 'post', Object.getOwnPropertyDescriptor(prototype, 'post')!)
    Get()(prototype, 'get', Object.getOwnPropertyDescriptor(prototype, 'get')!)
    UseInterceptors(interceptor)(Orders)
    class Shop {}
    Module({ controllers: [Orders] })(Shop)
    const platform = express()
    const app = await NestFactory.create(Shop, new ExpressAdapter(platform), { rawBody: true, logger: false })
    app.use(interceptor.rules)
    await app.init()
    closing.push(() => app.close())
    const ask = await serve(platform)
    const first = await ask('/orders', keyed('k'))
    const again = await ask('/orders', keyed('k'))
    expect([first.status, again.status, isReplay(again), runs]).toEqual([402, 402, true, 1])
    expect(await again.text()).toBe(await first.text())
    expect(await (await ask('/orders')).text()).toBe('listed')
    expect((await ask('/.well-known/idempotency')).status).toBe(200)
  })
})

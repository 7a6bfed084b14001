// An exchange on Node's own request and response, with a stage as every adapter brings one: what the framework is asked for, when, and
// what reaches the client.

import { createServer, request } from 'node:http'
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import { connect } from 'node:net'
import type { AddressInfo, Socket } from 'node:net'
import { buffer, text } from 'node:stream/consumers'
import { afterEach, expect, test, vi } from 'vitest'
import { createOnce } from '../core/once.ts'
import type { Once } from '../core/once.ts'
import { createSessions } from '../sessions/sessions.ts'
import { memoryStore } from '../stores/memory.ts'
import { createExchange } from './exchange.ts'
import type { Body, HttpOptions } from './exchange.ts'
import { concernsNode, exchangeOnNode, serveNode, servePublished } from './on-node.ts'
import type { NodeStage } from './on-node.ts'

const open: Server[] = []
afterEach(async () => {
  for (const server of open.splice(0)) {
    server.closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
  }
})

const newOnce = (): Once => createOnce({ store: memoryStore(), scope: 'shop', sweepEveryMs: false })

type Stage = NodeStage<IncomingMessage>
type Serve = (stage: Stage, exchange: ReturnType<typeof createExchange<IncomingMessage>>) => unknown

interface Served {
  readonly port: number
  readonly failures: unknown[]
}

/** A server that brings a stage of its own to each request. */
async function serve(
  more: (req: IncomingMessage, res: ServerResponse) => Partial<Stage>,
  options: Partial<HttpOptions<IncomingMessage>> = {},
  how: Serve = (stage, exchange) => exchangeOnNode(exchange, stage),
): Promise<Served> {
  const exchange = createExchange<IncomingMessage>(newOnce(), { tenant: 'shared', ...options })
  const failures: unknown[] = []
  const server = createServer((req, res) => {
    const proceed = (): void => void res.end('handled')
    const stage = { request: req, req, res, target: req.url!, proceed, ...more(req, res) }
    void (async () => how(stage, exchange))().catch((error: unknown) => {
      failures.push(error)
      res.destroy()
    })
  })
  open.push(server)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return { port: (server.address() as AddressInfo).port, failures }
}

interface Answered {
  readonly status: number
  readonly headers: Readonly<Record<string, string | string[] | undefined>>
  readonly body: string
}

function ask(
  { port }: Served,
  headers: Record<string, string | string[]> = { 'Idempotency-Key': 'k' },
  { method = 'POST', path = '/', body = '{}' } = {},
): Promise<Answered> {
  return new Promise((resolve, reject) => {
    const asking = request({ port, host: '127.0.0.1', path, method, headers, agent: false }, (response) => {
      const { statusCode, headers: found } = response
      text(response).then((content) => resolve({ status: statusCode!, headers: found, body: content }), reject)
    })
    asking.on('error', reject).end(body)
  })
}

const codeOf = ({ body }: Answered): string => (JSON.parse(body) as { code: string }).code

test('a handler runs once, and its stage is told of the key, then of the body, then to begin', async () => {
  const seen: unknown[] = []
  const served = await serve((_req, res) => ({
    onKey: (key) => seen.push(key),
    onBody: (body) => seen.push(body.is),
    proceed: ({ key }) => {
      seen.push(['proceed', key.id])
      res.end('handled')
    },
    beforeAnswer: () => seen.push('before an answer'),
  }))
  expect(await ask(served)).toMatchObject({ status: 200, body: 'handled' })
  const key = { scope: 'shop/', id: 'k' }
  expect(seen).toEqual([key, 'bytes', ['proceed', 'k']])
  seen.length = 0
  const replayed = await ask(served)
  expect([replayed.body, replayed.headers['idempotent-replayed']]).toEqual(['handled', 'true'])
  expect(seen).toEqual([key, 'bytes', 'before an answer'])
})

test('headers of the framework are on an answer without the handler, and are not stored with one', async () => {
  let id = 0
  const served = await serve((_req, res) => ({
    headersBefore: () => ({ 'x-request': `${++id}` }),
    proceed: () => {
      res.setHeader('X-Request', `${id}`)
      res.setHeader('X-Own', 'yes')
      res.end('handled')
    },
  }))
  expect((await ask(served)).headers).toMatchObject({ 'x-request': '1', 'x-own': 'yes' })
  expect((await ask(served)).headers).toMatchObject({ 'x-request': '2', 'x-own': 'yes', 'idempotent-replayed': 'true' })
})

test('headers that are on the response before the handler are those of the moment', async () => {
  let id = 0
  const served = await serve((_req, res) => {
    res.setHeader('X-Request', `${++id}`)
    return {}
  })
  expect((await ask(served)).headers['x-request']).toBe('1')
  expect((await ask(served)).headers['x-request']).toBe('2')
})

test.each<[lines: string | string[], status: number]>([
  ['k', 200],
  ['"a"', 200],
  ['a, b', 400],
  [['a', 'b'], 400],
  [['a', 'a'], 400],
  ['"a,b"', 200],
])('the key %j is answered %i', async (lines, status) => {
  const served = await serve(() => ({}))
  const found = await ask(served, { 'Idempotency-Key': lines })
  expect(found.status).toBe(status)
  if (status === 400) expect(codeOf(found)).toBe('idempotency-key-invalid')
})

test('of two lines of a key each is seen, and a header that looks alike is none', async () => {
  const seen = vi.fn()
  const served = await serve(
    () => ({}),
    {},
    (stage, exchange) =>
      exchangeOnNode(
        {
          ...exchange,
          handle: (asked) => (
            seen(asked.keyLines),
            { is: 'answer', answer: { status: 200, headers: [], body: Buffer.from('') } }
          ),
        },
        stage,
      ),
  )
  await ask(served, { 'Idempotency-Key': ['a', 'b,c'], 'X-Idempotency-Key': 'Idempotency-Key' })
  await ask(served, { 'X-Value': 'idempotency-key', 'Idempotency-Key': '"a, b"' })
  await ask(served, {})
  expect(seen.mock.calls).toEqual([[['a', 'b,c']], [['"a, b"']], [[]]])
})

test('headers are read in any case, and lines of one name are joined', async () => {
  const seen: unknown[] = []
  const served = await serve(
    () => ({}),
    {},
    (stage, exchange) =>
      exchangeOnNode(
        {
          ...exchange,
          handle(asked) {
            seen.push(asked.method, asked.target, asked.header('X-A'), asked.header('set-cookie'), asked.header('none'))
            return { is: 'answer', answer: { status: 200, headers: [], body: Buffer.from('') } }
          },
        },
        stage,
      ),
  )
  await ask(served, { 'x-a': '1', 'Set-Cookie': ['a', 'b'] }, { method: 'PATCH', path: '/a?b' })
  expect(seen).toEqual(['PATCH', '/a?b', '1', 'a, b', undefined])
})

test('a body that the stage has is not read again', async () => {
  const bodies: Body[] = []
  const given: Body = { is: 'bytes', bytes: Buffer.from('given') }
  for (const body of [given, { body: () => given }, { body: async () => given }]) {
    const served = await serve(() => ({ body, onBody: (each) => bodies.push(each) }))
    expect((await ask(served)).status).toBe(200)
  }
  expect(bodies).toEqual([given, given, given])
})

test('a body that cannot be accepted is answered, and its stage is not told of it', async () => {
  const onBody = vi.fn()
  const tooLarge = await serve(() => ({ body: { is: 'too-large' }, onBody }))
  expect(codeOf(await ask(tooLarge))).toBe('idempotency-body-too-large')
  const mismatch = await serve(() => ({ body: { is: 'digest-mismatch' }, onBody }))
  expect(codeOf(await ask(mismatch))).toBe('idempotency-digest-mismatch')
  expect(onBody).not.toHaveBeenCalled()
})

test('a parser that kept the bytes has kept the body, as bytes or as text', async () => {
  for (const rawBody of [Buffer.from('{}'), '{}']) {
    const served = await serve((req) => {
      req.resume()
      return { rawBody }
    })
    expect((await ask(served)).status).toBe(200)
  }
})

test('an answer that was given in the meantime is left as it is, and the key is free', async () => {
  const proceed = vi.fn()
  let early = true
  const served = await serve((_req, res) => ({
    onBody: () => void (early && res.writeHead(408).end('too late')),
    proceed: () => (proceed(), void res.end('handled')),
  }))
  expect(await ask(served)).toMatchObject({ status: 408, body: 'too late' })
  expect([proceed.mock.calls.length, served.failures]).toEqual([0, []])
  early = false
  expect(await ask(served)).toMatchObject({ status: 200, body: 'handled' })
})

test('a refusal that comes after another answer is dropped', async () => {
  const beforeAnswer = vi.fn()
  const served = await serve((_req, res) => ({
    onKey: () => void res.writeHead(408).end('too late'),
    body: { is: 'too-large' },
    beforeAnswer,
  }))
  expect(await ask(served)).toMatchObject({ status: 408, body: 'too late' })
  expect([served.failures, beforeAnswer.mock.calls]).toEqual([[], []])
})

test('what a tenant function throws is thrown on, before anything was written', async () => {
  const failure = new Error('no such account')
  const served = await serve(() => ({}), {
    tenant: () => {
      throw failure
    },
  })
  await expect(ask(served)).rejects.toThrow()
  expect(served.failures).toEqual([failure])
})

test('an error of the program before the handler is thrown on, and after it is a 500', async () => {
  const broken = (proceeds: boolean): Serve => {
    return (stage, exchange) =>
      exchangeOnNode(
        {
          ...exchange,
          async handle(_asked, run) {
            if (proceeds) await run({ notBegun: () => {} } as never)
            return { is: 'thrown', error: new Error('a bug') }
          },
        },
        stage,
      )
  }
  const before = await serve(() => ({}), {}, broken(false))
  await expect(ask(before)).rejects.toThrow()
  expect(before.failures).toEqual([new Error('a bug')])
  const after = await serve(() => ({}), {}, broken(true))
  expect(await ask(after)).toMatchObject({ status: 500 })
  expect(after.failures).toEqual([])
})

test('an answer to a body that is still coming leaves the connection usable', async () => {
  const { port } = await serve(() => ({}), { required: true })
  const socket = connect(port, '127.0.0.1')
  const length = 200_000
  socket.write(`POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ${length}\r\n\r\n`)
  const [first] = (await new Promise<[Buffer]>((resolve) => socket.once('data', (chunk) => resolve([chunk])))) as [
    Buffer,
  ]
  expect(first.toString()).toMatch(/^HTTP\/1\.1 400 /)
  socket.write(Buffer.alloc(length))
  socket.write('POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 0\r\nConnection: close\r\n\r\n')
  expect((await buffer(socket)).toString()).toMatch(/^HTTP\/1\.1 200 /)
})

test('a client that went away in the middle of its body is no failure, and its handler does not run', async () => {
  const proceed = vi.fn()
  const [reading, ended] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  const served = await serve(
    () => ({ proceed, onKey: () => reading.resolve() }),
    {},
    async (stage, exchange) => {
      await exchangeOnNode(exchange, stage)
      ended.resolve()
    },
  )
  const socket = connect(served.port, '127.0.0.1')
  socket.write('POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 9\r\n\r\nhalf')
  await reading.promise
  socket.resetAndDestroy()
  await ended.promise
  expect([proceed.mock.calls.length, served.failures]).toEqual([0, []])
})

test('a request line of another version is 505 with its document, and nothing is claimed', async () => {
  const seen: string[] = []
  const { port } = await serve(() => ({ beforeAnswer: () => seen.push('before'), onKey: () => seen.push('key') }))
  const socket = connect(port, '127.0.0.1')
  socket.write('POST / HTTP/2.0\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}')
  const [head, body] = (await buffer(socket)).toString().split('\r\n\r\n')
  expect(head).toMatch(/^HTTP\/1\.1 505 HTTP Version Not Supported\r\n/)
  expect(head).toContain('Content-Type: application/problem+json')
  expect(JSON.parse(body!)).toEqual({ type: 'about:blank', title: 'HTTP Version Not Supported', status: 505 })
  expect(seen).toEqual(['before'])
})

test('over HTTP/2 a request with a key is an error that says what to do', async () => {
  const exchange = createExchange<IncomingMessage>(newOnce(), { tenant: 'shared' })
  const stage = { req: { httpVersionMajor: 2, stream: {} } } as unknown as Stage
  await expect(exchangeOnNode(exchange, stage)).rejects.toMatchObject({ code: 'UNSUPPORTED' })
})

const concerned = (headers: object, method: string | undefined = 'POST', options = {}, target = '/'): boolean => {
  const exchange = createExchange<IncomingMessage>(newOnce(), { tenant: 'shared', ...options })
  return concernsNode(exchange, { method, headers } as IncomingMessage, target)
}

test('a request is concerned by its key, by either header of a number, or where a key is required', () => {
  expect(concerned({ 'idempotency-key': '' })).toBe(true)
  expect(concerned({ 'idempotency-session': 's' })).toBe(true)
  expect(concerned({ 'idempotency-sequence': '1' })).toBe(true)
  expect(concerned({ 'idempotency-epoch': '1' })).toBe(false)
  expect(concerned({})).toBe(false)
  expect(concerned({}, 'POST', { required: true })).toBe(true)
  expect(concerned({ 'idempotency-key': 'k' }, 'GET')).toBe(false)
  expect(concerned({ 'idempotency-key': 'k' }, undefined)).toBe(true)
  expect(
    concernsNode(
      createExchange(newOnce(), { tenant: 'shared' }),
      { headers: { 'idempotency-key': 'k' } } as never,
      '/',
    ),
  ).toBe(false)
  expect(concerned({ 'idempotency-key': 'k' }, 'POST', { header: 'X-Key' })).toBe(false)
  expect(concerned({ 'x-key': 'k' }, 'POST', { header: 'X-Key' })).toBe(true)
})

const sessionsPath = '/.well-known/idempotency/sessions'
const withSessions = () => ({ sessions: createSessions({ store: memoryStore(), scope: 'tills' }) })

test('a call of sessions is concerned by its path', () => {
  expect(concerned({}, 'POST', withSessions(), sessionsPath)).toBe(true)
  expect(concerned({}, 'POST', withSessions(), '/')).toBe(false)
  expect(concerned({}, 'POST', {}, sessionsPath)).toBe(false)
})

test('a request that is under way is not concerned a second time', async () => {
  const again: boolean[] = []
  const served = await serve(
    () => ({}),
    {},
    (stage, exchange) => {
      again.push(concernsNode(exchange, stage.req, stage.target))
      const running = exchangeOnNode(exchange, stage)
      again.push(concernsNode(exchange, stage.req, stage.target))
      return running
    },
  )
  await ask(served)
  expect(again).toEqual([true, false])
})

test('what concerns no exchange is the rules, or passes, and what passes is returned', async () => {
  const seen: unknown[] = []
  const served = await serve(
    () => ({ beforeAnswer: () => seen.push('before') }),
    {},
    async (stage, exchange) => {
      const passed = serveNode(exchange, stage, () => (stage.res.end('passed'), 'passed' as const))
      seen.push(passed instanceof Promise ? await passed : passed)
    },
  )
  expect((await ask(served, {})).body).toBe('passed')
  const rules = await ask(
    served,
    { accept: 'application/json' },
    { method: 'GET', path: '/.well-known/idempotency', body: '' },
  )
  expect([rules.status, rules.headers['content-type']]).toEqual([200, 'application/json'])
  expect((await ask(served)).body).toBe('handled')
  expect(seen).toEqual(['passed', 'before', undefined, undefined])
})

test('at the paths of the exchange itself, rules and sessions are served, and nothing else', async () => {
  const seen: unknown[] = []
  const served = await serve(
    () => ({}),
    withSessions(),
    async (stage, exchange) => {
      const found = servePublished(exchange, stage)
      seen.push(found instanceof Promise ? 'a session' : found)
      if (found === false) stage.res.end('not ours')
      await found
    },
  )
  expect((await ask(served, {}, { path: sessionsPath })).status).toBe(201)
  const page = await ask(served, {}, { method: 'GET', path: '/.well-known/idempotency', body: '' })
  expect(page.headers['content-type']).toBe('text/html; charset=utf-8')
  expect((await ask(served)).body).toBe('not ours')
  expect(seen).toEqual(['a session', true, false])
})

test('a handler that has begun its answer is not told that its client has gone, and one that has not is', async () => {
  for (const begins of [true, false]) {
    const closed = vi.fn()
    const began = Promise.withResolvers<{ res: ServerResponse; line: Socket }>()
    const served = await serve(({ socket: line }, res) => ({
      proceed: () => {
        res.on('close', closed)
        if (begins) res.write('half')
        began.resolve({ res, line })
      },
    }))
    const socket = connect(served.port, '127.0.0.1').on('error', () => {})
    socket.write('POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}')
    const { res, line } = await began.promise
    socket.resetAndDestroy()
    await vi.waitFor(() => expect(line.destroyed).toBe(true), 30_000)
    await new Promise((resolve) => setImmediate(resolve))
    expect(closed.mock.calls.length, `begins: ${begins}`).toBe(begins ? 0 : 1)
    res.end('whole')
    await vi.waitFor(async () => expect((await ask(served)).headers['idempotent-replayed']).toBe('true'), 30_000)
  }
})

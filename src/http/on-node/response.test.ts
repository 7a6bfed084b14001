import { once as onceEvent } from 'node:events'
import { createServer, request } from 'node:http'
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import { connect } from 'node:net'
import type { AddressInfo } from 'node:net'
import { PassThrough, Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { gzipSync } from 'node:zlib'
import { describe, expect, test, vi } from 'vitest'
import { createOnce } from '../../core/once.ts'
import { memoryStore } from '../../stores/memory.ts'
import type { Answer, Produced } from '../exchange.ts'
import { idempotency } from '../node.ts'
import type { NodeListener } from '../node.ts'
import { holdResponse } from './response.ts'
import type { HeldResponse, ResponseLimits } from './response.ts'

interface Answered {
  readonly status: number | undefined
  readonly message: string | undefined
  readonly headers: readonly string[]
  readonly trailers: readonly string[]
  readonly body: Buffer
}

async function ask(listener: RequestListener, headers: Record<string, string> = {}): Promise<Answered> {
  const server = createServer(listener)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  try {
    const asking = request({ port, host: '127.0.0.1', method: 'POST', headers, agent: false })
    asking.on('error', () => {}).end('asked')
    const [response] = (await onceEvent(asking, 'response')) as [IncomingMessage]
    const chunks: Buffer[] = []
    for await (const chunk of response) chunks.push(chunk as Buffer)
    const { statusCode: status, statusMessage: message, rawTrailers: trailers } = response
    return { status, message, headers: lines(response.rawHeaders), trailers, body: Buffer.concat(chunks) }
  } finally {
    server.close()
    server.closeAllConnections()
  }
}

// Framing is the connection's; the window is ours.
const apart = /^(date|connection|keep-alive|transfer-encoding|content-length|idempotency-window|trailer):/i

function lines(raw: readonly string[]): string[] {
  const all = raw.flatMap((name, at) => (at % 2 === 0 ? [`${name}: ${raw[at + 1]!}`] : []))
  return all.filter((line) => !apart.test(line)).sort()
}

function guarded(listener: NodeListener, options: object = {}): RequestListener {
  const once = createOnce({ store: memoryStore(), scope: 'test' })
  return idempotency(once, { tenant: 'shared', ...options })(listener) as RequestListener
}

type Write = (res: ServerResponse, seen: unknown[]) => unknown

const ways: Record<string, Write> = {
  'end with a string': (res) => res.end('plain'),
  'end with bytes': (res) => res.end(Buffer.from([0, 255, 128, 10, 13])),
  'end with an encoding': (res) => res.end('aGVsbG8=', 'base64'),
  'end with latin1': (res) => res.setHeader('Content-Type', 'text/plain; charset=latin1').end('é', 'latin1'),
  'end with nothing': (res) => res.writeHead(201, { Location: '/1' }).end(),
  'write and end': (res) => (res.write('a'), res.write(Buffer.from('b')), res.write('Yw==', 'base64'), res.end('d')),
  'writes that reuse their buffer': (res) => {
    const buffer = Buffer.from('one')
    res.write(buffer, () => {
      buffer.write('two')
      res.end(buffer)
    })
  },
  'a head with a reason': (res) => res.writeHead(202, 'Fine by me', { 'X-A': '1' }).end('x'),
  'a head with a reason of its own': (res) => ((res.statusMessage = 'So so'), (res.statusCode = 207), res.end('x')),
  'a head as a flat list': (res) =>
    res.writeHead(200, ['X-Twice', '1', 'X-Twice', '2', 'Content-Type', 'a/b']).end('x'),
  'a head as pairs': (res) =>
    res
      .writeHead(200, [
        ['X-Pair', '1'],
        ['X-Other', '2'],
      ] as never)
      .end('x'),
  'a head over headers': (res) => {
    res.setHeader('X-A', 'gone')
    res.setHeader('X-B', ['1', '2'])
    res.writeHead(200, { 'x-a': 'kept', 'X-N': 7 }).end('x')
  },
  'cookies and lists': (res) => {
    res.setHeader('Set-Cookie', ['a=1; Expires=Wed, 09 Jun 2027 10:18:14 GMT', 'b=2'])
    res.setHeader('Link', ['</a>; rel="x"', '</b>; rel="y"'])
    res.appendHeader('X-More', '1').appendHeader('X-More', '2')
    res.end('x')
  },
  'flushed headers': (res) => (res.setHeader('X-A', '1'), res.flushHeaders(), res.write('a'), res.end('b')),
  'a pipe': (res) => Readable.from(['a', 'b', Buffer.from([0, 1])]).pipe(res),
  'a pipeline': (res) => pipeline(Readable.from(['a', 'b']), new PassThrough(), res),
  'a corked response': (res) => (res.cork(), res.write('a'), res.write('b'), res.uncork(), res.end('c')),
  'a length of its own': (res) => (res.setHeader('Content-Length', 3), res.write('a'), res.end('bc')),
  'compressed bytes': (res) => (res.setHeader('Content-Encoding', 'gzip'), res.end(gzipSync('hello'))),
  '204 with a body that is dropped': (res) => (res.writeHead(204), res.write('no'), res.end('body')),
  '304': (res) => res.writeHead(304, { ETag: '"a"' }).end(),
  'a redirect': (res) => res.writeHead(303, { Location: '/orders/1' }).end(),
  'an error status': (res) => res.writeHead(402).end('{"declined":true}'),
  'early hints': (res) => (res.writeEarlyHints({ link: '</a.css>; rel=preload' }), res.end('x')),
  trailers: (res) => (
    res.setHeader('Trailer', 'X-Sum'),
    res.write('a'),
    res.addTrailers({ 'X-Sum': '1' }),
    res.end('b')
  ),
  'a large body': (res) => res.end(Buffer.alloc(900_000, 'abc')),
  'late, after other work': async (res) => {
    await new Promise((resolve) => setImmediate(resolve))
    res.end('late')
  },
  'what a handler can see': async (res, seen) => {
    const look = (): void => void seen.push(res.headersSent, res.writableEnded, res.statusCode, res.getHeader('x-a'))
    look()
    res.setHeader('X-A', '1').writeHead(201)
    look()
    expect(() => res.setHeader('X-B', '2')).toThrow(/after they are sent/)
    expect(() => res.writeHead(500)).toThrow(/after they are sent/)
    expect(() => res.write(null)).toThrow(/null/)
    expect(() => res.write(7)).toThrow(/chunk/)
    res.statusCode = 500
    seen.push(res.write('a'))
    res.end('b')
    look()
    await onceEvent(res, 'finish')
    seen.push('finished', res.writableFinished)
  },
  'refused heads': (res, seen) => {
    expect(() => res.writeHead(99)).toThrow(/Invalid status code/)
    expect(() => res.setHeader('X-Evil', 'a\r\nX-Injected: 1')).toThrow(/Invalid character/)
    expect(() => res.writeHead(200, { 'X-Evil': 'a\nb' })).toThrow(/Invalid character/)
    expect(() => res.writeHead(200, 'No\r\nX-Injected: 1')).toThrow(/Invalid character/)
    seen.push(res.headersSent)
    res.writeHead(200, 'OK').end('x')
  },
  callbacks: (res, seen) => {
    res.write('a', () => seen.push('written'))
    res.end('b', () => seen.push('ended'))
  },
  'a write after the end': async (res, seen) => {
    res.on('error', (error: NodeJS.ErrnoException) => seen.push(error.code))
    res.end('a')
    res.write('b')
    await onceEvent(res, 'finish')
  },
  'an end after the end': (res, seen) => (res.end('a'), seen.push(res.end() === res), seen.length),
}

describe('a held response is the one that a bare server would have sent', () => {
  for (const [name, write] of Object.entries(ways)) {
    test(name, async () => {
      const seen: [unknown[], unknown[]] = [[], []]
      const bare = await ask((_req, res) => void write(res, seen[0]))
      const first = guarded((_req, res) => write(res, seen[1]))
      const held = await ask(first, { 'Idempotency-Key': 'k' })
      expect(held).toEqual(bare)
      await expect.poll(() => seen[1]).toEqual(seen[0])
      const again = await ask(first, { 'Idempotency-Key': 'k' })
      const replayed = bare.headers.filter((line) => !/^set-cookie:/i.test(line))
      expect(again).toEqual({ ...bare, trailers: [], headers: [...replayed, 'Idempotent-Replayed: true'].sort() })
    })
  }
})

test('a reason phrase that is set after the head reaches nobody, and spoils no replay', async () => {
  const handler = idempotency(createOnce({ store: memoryStore(), scope: 'test' }), { tenant: 'shared' })(
    (_req, res) => {
      res.writeHead(200)
      res.statusMessage = 'not\na phrase'
      res.end('x')
    },
  ) as RequestListener
  const server = createServer(handler)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const post = (): Promise<Response> =>
    fetch(`http://127.0.0.1:${port}/`, { method: 'POST', headers: { 'Idempotency-Key': 'k' } })
  const [first, again] = [await post(), await post()]
  await new Promise((resolve) => server.close(resolve).closeAllConnections())
  expect([first.status, first.statusText]).toEqual([200, 'OK'])
  expect([again.status, again.statusText, await again.text()]).toEqual([200, 'OK', 'x'])
})

test('nothing leaves before the answer is settled', async () => {
  const settling = Promise.withResolvers<void>()
  const store = memoryStore()
  const slow = {
    ...store,
    settle: async (...args: Parameters<typeof store.settle>) => (await settling.promise, store.settle(...args)),
  }
  const once = createOnce({ store: slow, scope: 'test' })
  const written = Promise.withResolvers<number | undefined>()
  const listener: NodeListener = (_req, res) => {
    res.writeHead(201)
    res.flushHeaders()
    res.write('a')
    res.end('b')
    const { socket } = res
    setImmediate(() => written.resolve(socket?.bytesWritten))
  }
  const asking = ask(idempotency(once, { tenant: 'shared' })(listener) as RequestListener, { 'Idempotency-Key': 'k' })
  expect(await written.promise).toBe(0)
  settling.resolve()
  expect(await asking).toMatchObject({ status: 201, body: Buffer.from('ab') })
})

test('an answer that is shorter or longer than it said is not replayed as if it were whole', async () => {
  const listener = guarded((_req, res) => {
    res.setHeader('Content-Length', 2)
    res.end('abc')
  })
  await ask(listener, { 'Idempotency-Key': 'k' }).catch(() => {})
  expect(await ask(listener, { 'Idempotency-Key': 'k' })).toMatchObject({ status: 409 })
})

test('what was on the response before the handler is set anew for a replay and not stored', async () => {
  let requests = 0
  const handler = idempotency(createOnce({ store: memoryStore(), scope: 'test' }), { tenant: 'shared' })((
    _req,
    res,
  ) => {
    res.setHeader('X-Mine', 'handler')
    res.end('x')
  })
  const listener: RequestListener = (req, res) => {
    res.setHeader('X-Visit', `visit ${++requests}`)
    void handler(req, res)
  }
  expect((await ask(listener, { 'Idempotency-Key': 'k' })).headers).toEqual(['X-Mine: handler', 'X-Visit: visit 1'])
  expect((await ask(listener, { 'Idempotency-Key': 'k' })).headers).toEqual([
    'Idempotent-Replayed: true',
    'X-Mine: handler',
    'X-Visit: visit 2',
  ])
})

test('a middleware that wraps the response inside or outside works as without us', async () => {
  const wrap = (res: ServerResponse): void => {
    const { writeHead, end } = res
    res.writeHead = function (this: ServerResponse, ...head: never) {
      this.setHeader('X-Wrapped', 'yes')
      return Reflect.apply(writeHead, this, head) as ServerResponse
    } as ServerResponse['writeHead']
    res.end = function (this: ServerResponse, chunk: string | Buffer) {
      this.removeHeader('Content-Length')
      return Reflect.apply(end, this, [Buffer.from(chunk).toString().toUpperCase()]) as ServerResponse
    } as ServerResponse['end']
  }
  const inside = guarded((_req, res) => (wrap(res), res.end('abc')))
  const within = guarded((_req, res) => res.end('abc'))
  const outside: RequestListener = (req, res) => (wrap(res), within(req, res))
  for (const listener of [inside, outside]) {
    expect(await ask(listener, { 'Idempotency-Key': 'k' })).toMatchObject({
      headers: ['X-Wrapped: yes'],
      body: Buffer.from('ABC'),
    })
    expect(await ask(listener, { 'Idempotency-Key': 'k' })).toMatchObject({
      headers: ['Idempotent-Replayed: true', 'X-Wrapped: yes'],
      body: Buffer.from('ABC'),
    })
  }
})

test('an answer of ours in the place of one whose handler set a Date has a Date', async () => {
  const once = createOnce({ store: memoryStore(), scope: 'test' })
  const listener: NodeListener = async (req, res) => {
    res.setHeader('Date', 'a long time ago')
    await once.forget(req.idempotency!.key, 'so that the claim is lost')
    res.end('done')
  }
  const server = createServer(idempotency(once, { tenant: 'shared' })(listener) as RequestListener)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  try {
    const response = await fetch(`http://127.0.0.1:${port}/`, { method: 'POST', headers: { 'Idempotency-Key': 'k' } })
    expect(response.status).toBe(409)
    expect(Date.parse(response.headers.get('date') ?? '')).not.toBeNaN()
  } finally {
    server.close()
    server.closeAllConnections()
  }
})

/** A response that is held without an exchange, and what its client has got of it. */
async function held(
  limits: Partial<ResponseLimits> = {},
  prepare: (res: ServerResponse) => void = () => {},
  before?: Record<string, string>,
): Promise<{
  res: ServerResponse
  hold: HeldResponse
  produced(): Promise<Produced>
  got(): string
  ended: Promise<unknown>
}> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const reached = onceEvent(server, 'request') as Promise<[IncomingMessage, ServerResponse]>
  const client = connect((server.address() as AddressInfo).port, '127.0.0.1').on('error', () => {})
  let all = ''
  client.on('data', (chunk) => (all += chunk.toString('latin1')))
  const ended = onceEvent(client, 'close').finally(() => server.close())
  client.write('POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n')
  const [, res] = await reached
  res.sendDate = false
  prepare(res)
  const hold = holdResponse(res, { storedBytesMax: 8, stream: 'not-stored', ...limits }, before ?? res.getHeaders())
  return { res, hold, produced: () => hold.produced, got: () => all, ended }
}

const bodyIn = (got: string): string => got.slice(got.indexOf('\r\n\r\n') + 4)
const windowLine = ['Idempotency-Window', '60'] as const

test('a response has begun as soon as its head is given', async () => {
  const { res, hold, ended } = await held()
  expect(hold.began()).toBe(false)
  res.writeHead(200)
  expect([hold.began(), res.headersSent]).toEqual([true, true])
  res.end()
  hold.forward([])
  await ended
})

test.each([
  ['as large as is stored', '12345678', 'answer'],
  ['a byte larger', '123456789', 'stream'],
])('a body %s', async (_, body, is) => {
  for (const told of [false, true]) {
    const { res, hold, produced, got, ended } = await held()
    if (told) res.setHeader('Content-Length', body.length)
    res.write(body.slice(0, 4))
    res.end(body.slice(4))
    expect(await produced()).toMatchObject({ is })
    expect(got()).toBe('')
    hold.forward([windowLine])
    await ended
    expect(got()).toContain('Idempotency-Window: 60\r\n')
    expect(got()).toContain(body.slice(4))
  }
})

test.each([
  ['not-stored', ' Text/Event-Stream; charset=utf-8', 'stream'],
  ['record', 'text/event-stream', 'answer'],
  ['not-stored', 'text/event-streams', 'answer'],
  ['not-stored', 'x-text/event-stream', 'answer'],
] as const)('with stream %s a response of type %s is a %s', async (stream, type, is) => {
  const { res, hold, produced, ended } = await held({ stream })
  res.writeHead(202, { 'Content-Type': type })
  res.end('data')
  const made = await produced()
  expect(made).toMatchObject(is === 'stream' ? { is, status: 202 } : { is, answer: { status: 202 } })
  hold.forward([])
  await ended
})

test('a stream waits until it may go, then all of it goes, and its writer is told to go on', async () => {
  const { res, hold, produced, got, ended } = await held()
  const drained = vi.fn()
  res.on('drain', drained)
  expect([res.write('1234'), res.write('56789')]).toEqual([true, false])
  expect(await produced()).toEqual({ is: 'stream', status: 200 })
  expect([got(), drained.mock.calls.length]).toEqual(['', 0])
  hold.forward([windowLine])
  expect(drained).toHaveBeenCalledTimes(1)
  res.write('more')
  const finished = vi.fn()
  res.end('last', finished)
  await ended
  expect(bodyIn(got())).toBe('4\r\n1234\r\n5\r\n56789\r\n4\r\nmore\r\n4\r\nlast\r\n0\r\n\r\n')
  await vi.waitFor(() => expect(finished).toHaveBeenCalledTimes(1), 30_000)
})

test('what was flushed before it may go is flushed when it may, though no body has come', async () => {
  const { res, hold, produced, got, ended } = await held({ stream: 'not-stored' })
  res.setHeader('Content-Type', 'text/event-stream')
  res.flushHeaders()
  expect(await produced()).toEqual({ is: 'stream', status: 200 })
  expect(got()).toBe('')
  hold.forward([])
  await vi.waitFor(() => expect(got()).toMatch(/^HTTP\/1\.1 200 OK\r\n/), 30_000)
  res.flushHeaders()
  res.end()
  await ended
})

test('a response in the place of another has nothing of it but what was there before, and the rest is dropped', async () => {
  const { res, hold, got, ended } = await held({}, (each) => each.setHeader('X-Before', '1'))
  res.setHeader('X-Handler', '1')
  res.write('half')
  hold.replace({ status: 409, headers: [['X-Other', '1']], body: Buffer.from('other') })
  expect([res.write('more'), res.writeHead(500) === res]).toEqual([true, true])
  res.flushHeaders()
  const called = vi.fn()
  expect(res.end('end', called)).toBe(res)
  await ended
  expect(got()).toMatch(/^HTTP\/1\.1 409 Conflict\r\n/)
  expect([/x-before: 1/i.test(got()), /x-handler/i.test(got())]).toEqual([true, false])
  expect(bodyIn(got())).toBe('other')
  await vi.waitFor(() => expect(called).toHaveBeenCalledTimes(1), 30_000)
})

test('what has been let go, or replaced, is neither let go nor replaced again', async () => {
  const { res, hold, got, ended } = await held()
  res.end('once')
  hold.forward([])
  hold.forward([windowLine])
  hold.replace({ status: 500, headers: [], body: Buffer.from('never') })
  expect(hold.breakOff()).toBe('gave up')
  await ended
  expect(bodyIn(got())).toBe('once')
})

test('an answer that has ended is not given up, and one that has not is broken off', async () => {
  const whole = await held()
  whole.res.end('whole')
  expect(whole.hold.breakOff()).toBe('answered')
  expect(await whole.produced()).toMatchObject({ is: 'answer' })
  whole.hold.forward([])
  await whole.ended
  expect(bodyIn(whole.got())).toBe('whole')
  const half = await held()
  half.res.write('half')
  expect(half.hold.breakOff()).toBe('gave up')
  expect(await half.produced()).toEqual({ is: 'broken' })
  half.hold.forward([])
  await half.ended
  expect(half.got()).toBe('')
})

test('destroy gives up an answer without touching the connection, until the answer is let go', async () => {
  const { res, hold, produced, got, ended } = await held()
  const { socket } = res
  res.write('half')
  expect(res.destroy()).toBe(res)
  expect([await produced(), socket!.destroyed]).toEqual([{ is: 'broken' }, false])
  hold.replace({ status: 503, headers: [], body: Buffer.from('later') })
  await ended
  expect(bodyIn(got())).toBe('later')
  const passing = await held()
  passing.res.write('123456789')
  passing.hold.forward([])
  passing.res.destroy()
  await passing.ended
  expect(passing.res.destroyed).toBe(true)
})

test('all headers in one object are taken as they are, with ours in the place of the handler’s', async () => {
  for (const more of [{}, { 'idempotency-window': '1' }, { 'X-Case': '1' }, { 'x-list': ['1', '2'] as never }]) {
    const { res, hold, produced, got, ended } = await held()
    res.writeHead(201, { 'content-length': '4', 'x-a': '1', ...more })
    res.end('body')
    const made = (await produced()) as { answer: { headers: readonly (readonly string[])[]; body: Uint8Array } }
    expect(made.answer.headers).toContainEqual(['x-a', '1'])
    expect(Buffer.from(made.answer.body).toString()).toBe('body')
    hold.forward([windowLine])
    await ended
    expect(got().match(/idempotency-window: .*/gi)).toEqual(['Idempotency-Window: 60'])
    expect(got().match(/x-a: .*/gi)).toEqual(['x-a: 1'])
    expect(bodyIn(got())).toBe('body')
  }
})

test('a header in one object that was there before, unchanged, is not stored', async () => {
  const { res, hold, produced, ended } = await held({}, () => {}, { 'x-before': '1', 'x-changed': '1' })
  res.writeHead(200, { 'content-length': '1', 'x-before': '1', 'x-changed': '2' })
  res.end('a')
  expect(await produced()).toMatchObject({
    answer: {
      headers: [
        ['content-length', '1'],
        ['x-changed', '2'],
      ],
    },
  })
  hold.forward([])
  await ended
})

test.each([
  ['a phrase of its own', 201, 'Made', { message: 'Made' }],
  ['the usual phrase', 201, 'Created', {}],
] as const)('%s is stored where it is not the usual one', async (_, status, phrase, stored) => {
  const { res, hold, produced, ended } = await held()
  res.writeHead(status, phrase)
  res.end()
  const made = (await produced()) as { answer: object }
  expect(made.answer).toEqual({ status, headers: [], body: new Uint8Array(), ...stored })
  hold.forward([])
  await ended
})

test('the callbacks of a stream that has ended before it may go are called when it has gone', async () => {
  const { res, hold, produced, got, ended } = await held()
  const called = vi.fn()
  res.write('12345')
  res.end('6789', called)
  expect(await produced()).toEqual({ is: 'stream', status: 200 })
  expect(called).not.toHaveBeenCalled()
  hold.forward([])
  await ended
  expect(bodyIn(got())).toMatch(/12345[^]*6789/)
  await vi.waitFor(() => expect(called).toHaveBeenCalledTimes(1), 30_000)
})

test('a list in one object is stored as lines of their own, and a name of ours in any case is replaced', async () => {
  const { res, hold, produced, got, ended } = await held()
  res.writeHead(200, { 'content-length': '1', 'x-list': ['1', '2'] as never, 'IDEMPOTENCY-WINDOW': '1' })
  res.end('a')
  const { answer } = (await produced()) as { answer: Answer }
  expect(answer.headers.filter(([name]) => name === 'x-list')).toEqual([
    ['x-list', '1'],
    ['x-list', '2'],
  ])
  hold.forward([windowLine])
  await ended
  expect(got().match(/idempotency-window: .*/gi)).toHaveLength(1)
  expect(got()).toMatch(/idempotency-window: 60/i)
})

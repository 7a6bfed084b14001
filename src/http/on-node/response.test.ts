import { once as onceEvent } from 'node:events'
import { createServer, request } from 'node:http'
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { PassThrough, Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { gzipSync } from 'node:zlib'
import { describe, expect, test } from 'vitest'
import { createOnce } from '../../core/once.ts'
import { memoryStore } from '../../stores/memory.ts'
import { idempotency } from '../node.ts'
import type { NodeListener } from '../node.ts'

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

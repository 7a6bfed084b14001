import { createHash } from 'node:crypto'
import { once as onceEvent } from 'node:events'
import { createServer } from 'node:http'
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import { connect } from 'node:net'
import type { AddressInfo, Socket } from 'node:net'
import { Readable } from 'node:stream'
import { setImmediate } from 'node:timers/promises'
import { afterEach, describe, expect, test, vi } from 'vitest'
import { createOnce } from '../../core/once.ts'
import { memoryStore } from '../../stores/memory.ts'
import { idempotency } from '../node.ts'
import type { Body, HttpOptions } from '../exchange.ts'
import { ClientGone, readNodeBody, tapNodeBody } from './request.ts'
import type { Tap } from './request.ts'

const open: Server[] = []
afterEach(async () => {
  for (const server of open.splice(0)) {
    server.closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
  }
})

type Consume = (req: IncomingMessage) => Promise<Buffer>

const ways: Record<string, Consume> = {
  'an iterator': async (req) => {
    const chunks: Buffer[] = []
    for await (const chunk of req) chunks.push(chunk as Buffer)
    return Buffer.concat(chunks)
  },
  'data and end, as body parsers do': (req) =>
    new Promise((resolve, reject) => {
      const chunks: Buffer[] = []
      req.on('data', (chunk: Buffer) => chunks.push(chunk))
      req.on('end', () => resolve(Buffer.concat(chunks))).on('error', reject)
    }),
  readable: (req) =>
    new Promise((resolve) => {
      const chunks: Buffer[] = []
      req.on('readable', () => {
        for (let chunk = req.read() as Buffer | null; chunk; chunk = req.read() as Buffer | null) chunks.push(chunk)
      })
      req.on('end', () => resolve(Buffer.concat(chunks)))
    }),
  'late, after other work': async (req) => {
    for (let at = 0; at < 5; at++) await setImmediate()
    return ways['an iterator']!(req)
  },
}

interface Served {
  readonly port: number
  readonly bodies: Buffer[]
}

async function serve(
  consume: Consume,
  middleware: 'at once' | 'late',
  options: Partial<HttpOptions> = {},
): Promise<Served> {
  const bodies: Buffer[] = []
  const guarded = idempotency(createOnce({ store: memoryStore(), scope: 'test' }), { tenant: 'shared', ...options })(
    async (req, res) => {
      const body = await consume(req)
      bodies.push(body)
      res.end(createHash('sha256').update(body).digest('hex'))
    },
  )
  const front = async (req: IncomingMessage, res: ServerResponse): Promise<void> => {
    // Something in front (authentication) that takes its time: the body, or some of it, is there when we come.
    if (middleware === 'late') for (let at = 0; at < 5; at++) await setImmediate()
    guarded(req, res)
  }
  const server = createServer((req, res) => void front(req, res))
  open.push(server)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return { port: (server.address() as AddressInfo).port, bodies }
}

/** Sends the pieces one by one, each on its way before the next. */
async function send(socket: Socket, pieces: readonly (string | Buffer)[]): Promise<string> {
  const answered = onceEvent(socket, 'data') as Promise<[Buffer]>
  for (const piece of pieces) {
    await new Promise((resolve) => socket.write(piece, resolve))
    await setImmediate()
  }
  return (await answered)[0].toString('latin1')
}

const head = (key: string, framing: string): string =>
  `POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: ${key}\r\n${framing}\r\n\r\n`

function asked(how: string, key: string, body: Buffer): (string | Buffer)[] {
  const length = `Content-Length: ${body.length}`
  const third = Math.ceil(body.length / 3)
  const thirds = [body.subarray(0, third), body.subarray(third, 2 * third), body.subarray(2 * third)]
  if (how === 'in one piece') return [Buffer.concat([Buffer.from(head(key, length)), body])]
  if (how === 'after its head') return [head(key, length), body]
  if (how === 'in pieces') return [head(key, length), ...thirds]
  const chunks = thirds
    .filter(({ length: some }) => some > 0)
    .flatMap((each) => [`${each.length.toString(16)}\r\n`, each, '\r\n'])
  return [head(key, 'Transfer-Encoding: chunked'), ...chunks, '0\r\n\r\n']
}

// Small ones fit what Node takes in unread, large ones do not.
const sizes = [1, 300, 70_000, 300_000]

describe.each(Object.entries(ways))('a body read by %s', (_, consume) => {
  describe.each(['at once', 'late'] as const)('behind a middleware that comes %s', (middleware) => {
    test.each(['in one piece', 'after its head', 'in pieces', 'in chunks'])('%s is what was sent', async (how) => {
      const { port, bodies } = await serve(consume, middleware)
      const socket = connect(port, '127.0.0.1')
      for (const size of sizes) {
        const body = Buffer.from(Array.from({ length: size }, (__, at) => (at * 31) % 256))
        const answer = await send(socket, asked(how, `k${size}`, body))
        expect(answer).toMatch(/^HTTP\/1\.1 200 /)
        expect(answer.endsWith(createHash('sha256').update(body).digest('hex'))).toBe(true)
        expect(bodies.at(-1)!.equals(body)).toBe(true)
        const again = await send(socket, asked(how, `k${size}`, body))
        expect(again).toContain('Idempotent-Replayed: true')
      }
      expect(bodies).toHaveLength(sizes.length)
      socket.destroy()
    })
  })
})

test('a handler that does not read leaves the connection usable', async () => {
  const { port } = await serve(async () => Buffer.from('unread'), 'at once')
  const socket = connect(port, '127.0.0.1')
  for (const [at, size] of sizes.entries()) {
    expect(await send(socket, asked('in pieces', `k${at}`, Buffer.alloc(size, 'x')))).toMatch(/^HTTP\/1\.1 200 /)
  }
  socket.destroy()
})

test.each(['at once', 'late'] as const)(
  'a body that is too large is refused %s, and the connection stays usable',
  async (when) => {
    const { port, bodies } = await serve(ways['an iterator']!, when, { bodyBytesMax: 1_000 })
    const socket = connect(port, '127.0.0.1')
    for (const how of ['in one piece', 'in pieces', 'in chunks']) {
      for (const size of [1_001, 100_000]) {
        const answer = await send(socket, asked(how, 'large', Buffer.alloc(size, 'x')))
        expect(answer).toMatch(/^HTTP\/1\.1 413 /)
      }
    }
    expect(await send(socket, asked('in chunks', 'small', Buffer.alloc(1_000, 'x')))).toMatch(/^HTTP\/1\.1 200 /)
    expect(bodies).toHaveLength(1)
    socket.destroy()
  },
)

test.each(['an iterator', 'data and end, as body parsers do'])(
  'a digest that does not hold is refused, stores nothing, and tells the handler that reads by %s',
  async (way) => {
    const seen: unknown[] = []
    const consume: Consume = async (req) => {
      const body = await ways[way]!(req).catch((error: unknown) => (seen.push(error), Buffer.from('failed')))
      if (seen.length === 0) seen.push('whole')
      return body
    }
    const { port } = await serve(consume, 'at once', { bodyBytesMax: 100 })
    const body = Buffer.alloc(50_000, 'x')
    const digest = createHash('sha256').update(body).digest('base64')
    const lines = `Content-Digest: sha-256=:${digest}:\r\nContent-Length: ${body.length}`
    const ask = async (sent: Buffer): Promise<string> => {
      const socket = connect(port, '127.0.0.1')
      const answer = await send(socket, [head('k', lines), sent.subarray(0, 20_000), sent.subarray(20_000)])
      socket.destroy()
      return answer
    }
    expect(await ask(Buffer.alloc(50_000, 'y'))).toMatch(/^HTTP\/1\.1 400 [^]*idempotency-digest-mismatch/)
    expect(String(seen.splice(0))).toMatch(/does not have the digest/)
    expect(await ask(body)).toMatch(/^HTTP\/1\.1 200 /)
    expect(seen).toEqual(['whole'])
    expect(await ask(body)).toContain('Idempotent-Replayed: true')
    expect(await ask(Buffer.alloc(50_000, 'y'))).toMatch(/^HTTP\/1\.1 400 /)
  },
)

test('a body that is all here, and does not match its digest, is refused before the handler runs', async () => {
  let runs = 0
  const consume: Consume = (req) => (runs++, ways['an iterator']!(req))
  const { port, bodies } = await serve(consume, 'late', { bodyBytesMax: 2 })
  const socket = connect(port, '127.0.0.1')
  const digest = createHash('sha256').update('abc').digest('base64')
  const ask = (key: string, body: string): Promise<string> =>
    send(socket, [`${head(key, `Content-Digest: sha-256=:${digest}:\r\nContent-Length: 3`)}${body}`])
  expect(await ask('k', 'abd')).toMatch(/^HTTP\/1\.1 400 [^]*idempotency-digest-mismatch/)
  expect(runs).toBe(0)
  expect(await ask('k', 'abc')).toMatch(/^HTTP\/1\.1 200 /)
  expect(await ask('k', 'abc')).toContain('Idempotent-Replayed: true')
  expect(bodies).toEqual([Buffer.from('abc')])
  socket.destroy()
})

test.each(['an iterator', 'data and end, as body parsers do'])(
  'a handler that reads by %s after a false body has come in is told, and does not take it for whole',
  async (way) => {
    const [began, sent] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
    const seen: unknown[] = []
    const consume: Consume = async (req) => {
      began.resolve()
      await sent.promise
      // Other listeners are no readers.
      req.on('pause', () => {})
      const { complete } = await vi.waitFor(() => (expect(req.complete).toBe(true), req), 30_000)
      const body = await ways[way]!(req).catch((error: unknown) => (seen.push(String(error)), Buffer.from('failed')))
      seen.push(complete)
      return body
    }
    const { port } = await serve(consume, 'at once', { bodyBytesMax: 2 })
    const socket = connect(port, '127.0.0.1')
    const digest = createHash('sha256').update('abc').digest('base64')
    const answered = onceEvent(socket, 'data') as Promise<[Buffer]>
    socket.write(head('k', `Content-Digest: sha-256=:${digest}:\r\nContent-Length: 3`))
    await began.promise
    socket.write('abd', () => sent.resolve())
    expect((await answered)[0].toString()).toMatch(/^HTTP\/1\.1 400 [^]*idempotency-digest-mismatch/)
    expect(seen).toEqual([expect.stringContaining('does not have the digest'), true])
    socket.destroy()
  },
)

test('a client that goes away in the middle of its request claims nothing', async () => {
  const { port, bodies } = await serve(ways['an iterator']!, 'at once')
  for (const size of [100, 200_000]) {
    const socket = connect(port, '127.0.0.1')
    const body = Buffer.alloc(size, 'x')
    await new Promise((resolve) =>
      socket.write(Buffer.concat([Buffer.from(head('k', `Content-Length: ${size + 1}`)), body]), resolve),
    )
    socket.destroy()
  }
  const socket = connect(port, '127.0.0.1')
  expect(await send(socket, asked('in pieces', 'k', Buffer.from('other')))).toMatch(/^HTTP\/1\.1 200 /)
  expect(bodies).toHaveLength(1)
  socket.destroy()
})

test('a large upload that is refused, replayed or in progress is taken off the wire, and the connection stays usable', async () => {
  const { port } = await serve(ways['an iterator']!, 'at once', { bodyBytesMax: 100, waitMs: 0 })
  const large = Buffer.alloc(3_000_000, 'x')
  const socket = connect(port, '127.0.0.1')
  const ask = (key: string, body: Buffer): Promise<string> => {
    const digest = createHash('sha256').update(body).digest('base64')
    return send(socket, [head(key, `Content-Digest: sha-256=:${digest}:\r\nContent-Length: ${body.length}`), body])
  }
  expect(await ask('k', Buffer.from('small'))).toMatch(/^HTTP\/1\.1 200 /)
  expect(await ask('k', large)).toMatch(/^HTTP\/1\.1 422 /)
  expect(await ask('l', large)).toMatch(/^HTTP\/1\.1 200 /)
  expect(await ask('l', large)).toContain('Idempotent-Replayed: true')
  expect(await ask('m', Buffer.from('small'))).toMatch(/^HTTP\/1\.1 200 /)
  socket.destroy()
})

/** Requests as they reach a server, and what is done with each. */
async function reach(use: (req: IncomingMessage, res: ServerResponse) => unknown): Promise<Socket> {
  const server = createServer((req, res) => void use(req, res))
  open.push(server)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return connect((server.address() as AddressInfo).port, '127.0.0.1').on('error', () => {})
}

const bytesOf = async (body: Body | Promise<Body>): Promise<string> => {
  const found = await body
  return found.is === 'bytes' ? Buffer.from(found.bytes).toString() : found.is
}

describe('a small body that is recorded as it arrives', () => {
  test.each(['in one piece', 'after its head', 'in pieces'])('%s is seen, and read by the next one', async (how) => {
    const seen: string[][] = []
    const socket = await reach(async (req, res) => {
      const tap = tapNodeBody(req, 1_000)!
      const early = bytesOf(tap.body())
      const read = await ways['an iterator']!(req)
      seen.push([await early, await bytesOf(tap.body()), read.toString()])
      res.end('done')
    })
    for (const size of [1, 300, 1_000]) {
      const body = Buffer.alloc(size, 'abc')
      expect(await send(socket, asked(how, 'k', body))).toMatch(/^HTTP\/1\.1 200 /)
      expect(seen.pop()).toEqual([`${body}`, `${body}`, `${body}`])
    }
    socket.destroy()
  })

  test('two of us record it, and one reader reads it', async () => {
    const socket = await reach(async (req, res) => {
      const taps = [tapNodeBody(req, 10)!, tapNodeBody(req, 10)!]
      const seen = await Promise.all(taps.map((tap) => bytesOf(tap.body())))
      res.end([...seen, await ways['an iterator']!(req)].join(' '))
    })
    expect(await send(socket, asked('in pieces', 'k', Buffer.from('abc')))).toMatch(/abc abc abc$/)
    socket.destroy()
  })

  test.each<[string, length: string, bytesMax: number, isTapped: boolean]>([
    ['as large as allowed', 'Content-Length: 3', 3, true],
    ['larger than allowed', 'Content-Length: 3', 2, false],
    ['as large as Node buffers in any case', 'Content-Length: 16384', 100_000, true],
    ['larger than that', 'Content-Length: 16385', 100_000, false],
    ['empty', 'Content-Length: 0', 3, false],
    ['of unknown length', 'Transfer-Encoding: chunked', 3, false],
  ])('one that is %s', async (_, framing, bytesMax, isTapped) => {
    const found = Promise.withResolvers<boolean>()
    const socket = await reach((req) => found.resolve(tapNodeBody(req, bytesMax) !== undefined))
    socket.write(head('k', framing))
    expect(await found.promise).toBe(isTapped)
    socket.destroy()
  })

  test('what came in before, or was read, is not recorded', async () => {
    const reached = Promise.withResolvers<IncomingMessage>()
    const socket = await reach((req) => reached.resolve(req))
    socket.write(`${head('k', 'Content-Length: 4')}ab`)
    const req = await reached.promise
    await vi.waitFor(() => expect(req.readableLength).toBe(2), 30_000)
    expect(tapNodeBody(req, 10)).toBeUndefined()
    expect(String(req.read())).toBe('ab')
    expect([req.readableLength, tapNodeBody(req, 10)]).toEqual([0, undefined])
    socket.destroy()
  })

  test('a client that goes away before it is here is gone, whether that is known or not', async () => {
    const reached = Promise.withResolvers<{ req: IncomingMessage; tap: Tap }>()
    const socket = await reach((req) => {
      req.on('error', () => {})
      reached.resolve({ req, tap: tapNodeBody(req, 10)! })
    })
    socket.write(`${head('k', 'Content-Length: 9')}half`)
    const { req, tap } = await reached.promise
    const waiting = tap.body()
    socket.destroy()
    await expect(waiting).rejects.toBeInstanceOf(ClientGone)
    await expect(tap.body()).rejects.toBeInstanceOf(ClientGone)
    expect(tapNodeBody(req, 10)).toBeUndefined()
  })
})

const limits = { bytesMax: 3, sha256: undefined }

test('a body that a parser kept, as bytes or as text, is that body, within its limit', () => {
  const req = { headers: {} } as IncomingMessage
  expect(readNodeBody(req, Buffer.from('abc'), limits)).toEqual({ is: 'bytes', bytes: Buffer.from('abc') })
  expect(readNodeBody(req, '\u00e9', limits)).toEqual({ is: 'bytes', bytes: Buffer.from('\u00e9') })
  expect(readNodeBody(req, 'abcd', limits)).toEqual({ is: 'too-large' })
})

test('a request that says that it has no body is not read', async () => {
  const found = Promise.withResolvers<unknown[]>()
  const socket = await reach((req, res) => {
    found.resolve([readNodeBody(req, undefined, limits), req.readableDidRead])
    res.end()
  })
  const empty = { is: 'bytes', bytes: new Uint8Array() }
  await send(socket, [head('k', 'Content-Length: 0')])
  expect(await found.promise).toEqual([empty, false])
  socket.destroy()
  const stream = Object.assign(Readable.from([Buffer.from('abc')]), { headers: {} }) as unknown as IncomingMessage
  expect(await bytesOf(readNodeBody(stream, undefined, limits))).toBe('abc')
  expect(Buffer.concat(await stream.toArray()).toString()).toBe('abc')
  const told = Object.assign(Readable.from([]), { headers: { 'content-length': '0' } }) as unknown as IncomingMessage
  expect(readNodeBody(told, undefined, limits)).toEqual(empty)
})

test('a body that was read before us is an error that says so', async () => {
  const error = Promise.withResolvers<unknown>()
  const socket = await reach(async (req, res) => {
    await ways['an iterator']!(req)
    try {
      void readNodeBody(req, undefined, limits)
    } catch (thrown) {
      error.resolve(thrown)
    }
    res.end()
  })
  await send(socket, asked('in pieces', 'k', Buffer.from('abc')))
  expect(await error.promise).toMatchObject({ code: 'UNSUPPORTED' })
  socket.destroy()
})

test('a client that went away before we came is gone, unless its whole body is here', async () => {
  const reached = Promise.withResolvers<IncomingMessage>()
  const socket = await reach((req) => reached.resolve(req))
  socket.write(`${head('k', 'Content-Length: 9')}half`)
  const req = await reached.promise
  req.on('error', () => {})
  const gone = new Promise((resolve) => req.on('close', resolve))
  socket.destroy()
  await gone
  expect(() => readNodeBody(req, undefined, { ...limits, bytesMax: 99 })).toThrow(ClientGone)
})

const listened = (req: IncomingMessage): readonly number[] =>
  ['readable', 'error', 'close', 'newListener'].map((event) => req.listenerCount(event))

test.each(['error', 'close'])('a stream that ends with %s alone is a client that is gone', async (event) => {
  const stream = Object.assign(new Readable({ autoDestroy: false, read() {} }), { headers: {} })
  const req = stream as unknown as IncomingMessage
  const reading = bytesOf(readNodeBody(req, undefined, limits))
  stream.emit(event, new Error('cut off'))
  await expect(reading).rejects.toBeInstanceOf(ClientGone)
  expect(listened(req)).toEqual([0, 0, 0, 0])
})

test.each([100, 200_000])('of a body of %i bytes that was read no listener is left', async (size) => {
  const socket = await reach(async (req, res) => {
    const before = listened(req)
    await readNodeBody(req, undefined, { ...limits, bytesMax: size })
    res.end(JSON.stringify([before, listened(req)]))
  })
  const answer = await send(socket, asked('in pieces', 'k', Buffer.alloc(size, 'x')))
  const [before, after] = JSON.parse(answer.slice(answer.lastIndexOf('[['))) as [unknown, unknown]
  expect(after).toEqual(before)
  socket.destroy()
})

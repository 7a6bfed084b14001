import { createHash } from 'node:crypto'
import { once as onceEvent } from 'node:events'
import { createServer } from 'node:http'
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import { connect } from 'node:net'
import type { AddressInfo, Socket } from 'node:net'
import { setImmediate } from 'node:timers/promises'
import { afterEach, describe, expect, test } from 'vitest'
import { createOnce } from '../../core/once.ts'
import { memoryStore } from '../../stores/memory.ts'
import { idempotency } from '../node.ts'
import type { HttpOptions } from '../exchange.ts'

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

test('a body that is too large is refused, and the connection stays usable', async () => {
  const { port, bodies } = await serve(ways['an iterator']!, 'at once', { bodyBytesMax: 1_000 })
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
})

test('a digest that does not hold is refused, stores nothing, and tells the handler', async () => {
  const seen: unknown[] = []
  const consume: Consume = async (req) => {
    const body = await ways['an iterator']!(req).catch((error: unknown) => (seen.push(error), Buffer.from('failed')))
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
})

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

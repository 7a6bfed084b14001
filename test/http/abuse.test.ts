// Hostile and careless clients: a clear answer, bounded memory, and others served meanwhile.

import { createHash } from 'node:crypto'
import { once as onceEvent } from 'node:events'
import { createServer } from 'node:http'
import type { Server } from 'node:http'
import { connect } from 'node:net'
import type { AddressInfo, Socket } from 'node:net'
import { setImmediate } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import express from 'express'
import { afterEach, expect, test } from 'vitest'
import { createOnce } from '../../src/core/once.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { idempotency as onExpress } from '../../src/http/express.ts'
import { idempotency } from '../../src/http/node.ts'
import type { NodeListener } from '../../src/http/node.ts'
import { needsTool } from '../servers/needs.ts'
import type { HttpOptions } from '../../src/http/exchange.ts'

const open: Server[] = []
afterEach(async () => {
  for (const server of open.splice(0)) {
    server.closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
  }
})

async function listen(server: Server): Promise<number> {
  open.push(server)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return (server.address() as AddressInfo).port
}

function serve(listener: NodeListener, options: Partial<HttpOptions> = {}): Promise<number> {
  const once = createOnce({ store: memoryStore(), scope: 'abuse' })
  return listen(createServer(idempotency(once, { tenant: 'shared', ...options })(listener) as never))
}

async function dial(port: number): Promise<Socket> {
  const socket = connect(port, '127.0.0.1')
  await onceEvent(socket, 'connect')
  return socket
}

/** Writes the text as it is and reads until the server closes the connection. */
async function say(port: number, text: string | Buffer): Promise<string> {
  const socket = await dial(port)
  const chunks: Buffer[] = []
  socket.on('data', (chunk: Buffer) => chunks.push(chunk)).on('error', () => {})
  socket.write(text)
  await onceEvent(socket, 'close')
  return Buffer.concat(chunks).toString('latin1')
}

function post(lines: readonly string[], body = '{}'): string {
  const head = [
    'POST / HTTP/1.1',
    'Host: a',
    'Connection: close',
    `Content-Length: ${Buffer.byteLength(body)}`,
    ...lines,
  ]
  return `${head.join('\r\n')}\r\n\r\n${body}`
}

const ok: NodeListener = (_req, res) => res.end('served')

test.each([
  ['two lines', ['Idempotency-Key: a', 'Idempotency-Key: b']],
  ['two lines that are the same', ['Idempotency-Key: a', 'idempotency-key: a']],
  ['two halves of a string', ['Idempotency-Key: "a', 'Idempotency-Key: b"']],
  ['a list', ['Idempotency-Key: "a", "b"']],
  ['octets beyond ASCII', ['Idempotency-Key: \u00e9']],
  ['nothing', ['Idempotency-Key:']],
])('a key of %s is refused and runs nothing', async (_, lines) => {
  let runs = 0
  const port = await serve((_req, res) => (runs++, res.end()))
  const answer = await say(port, Buffer.from(post(lines), 'latin1'))
  expect(answer).toMatch(/^HTTP\/1\.1 400 /)
  expect(answer).toContain('idempotency-key-invalid')
  expect(runs).toBe(0)
})

test('a header with a line break reaches neither the client nor the store', async () => {
  let runs = 0
  const port = await serve((_req, res) => {
    runs++
    res.setHeader('X-Evil', 'a\r\nX-Injected: 1')
    res.end('x')
  })
  for (const _ of [1, 2]) {
    const answer = await say(port, post(['Idempotency-Key: k']))
    expect(answer).toMatch(/^HTTP\/1\.1 500 /)
    expect(answer).not.toContain('Injected')
  }
  expect(runs).toBe(2)
})

test('hostile JSON is a request like any other', async () => {
  const bodies = [
    `${'['.repeat(100_000)}${']'.repeat(100_000)}`,
    `${'{"a":'.repeat(50_000)}1${'}'.repeat(50_000)}`,
    '{"__proto__":{"polluted":true},"constructor":{"prototype":{"polluted":true}}}',
    `{"n":${'9'.repeat(100_000)}}`,
    `"${'\\u0041'.repeat(100_000)}"`,
  ]
  const port = await serve(ok, { fingerprint: { body: 'jcs', omit: ['/__proto__/polluted', '/a/a/a'] } })
  for (const [at, body] of bodies.entries()) {
    const lines = [`Idempotency-Key: k${at}`, 'Content-Type: application/json']
    expect(await say(port, post(lines, body))).toMatch(/^HTTP\/1\.1 200 /)
    expect(await say(port, post(lines, body))).toContain('Idempotent-Replayed: true')
    expect(await say(port, post(lines, `${body} `))).toMatch(/^HTTP\/1\.1 (200|422) /)
  }
  expect(({} as { polluted?: boolean }).polluted).toBeUndefined()
})

const mebibyte = Buffer.alloc(1_048_576, 'x')
const gibibyte = 1_024

// What nobody holds any more must not count, and when V8 would collect it by itself depends on the machine.
setFlagsFromString('--expose-gc')
const collectGarbage = runInNewContext('gc') as () => void
const sampleEvery = 32

/** Sends so many mebibytes, at the pace at which it is taken, and watches how much memory the process needs beyond what it had. */
async function upload(
  port: number,
  mebibytes: number,
  lines: readonly string[],
  send: (socket: Socket, chunk: Buffer) => boolean,
): Promise<{ answer: string; grewBytes: number }> {
  const socket = await dial(port)
  const answered = Promise.withResolvers<string>()
  let answer = ''
  socket.on('error', answered.reject).on('data', (chunk: Buffer) => {
    answer += chunk.toString('latin1')
    const head = answer.indexOf('\r\n\r\n')
    const length = Number(/content-length: (\d+)/i.exec(answer)?.[1])
    if (head > 0 && answer.length >= head + 4 + length) answered.resolve(answer)
  })
  socket.write(`${['POST / HTTP/1.1', 'Host: a', ...lines].join('\r\n')}\r\n\r\n`)
  const before = process.memoryUsage().arrayBuffers
  let grewBytes = 0
  for (let sent = 0; sent < mebibytes; sent++) {
    if (!send(socket, mebibyte)) await onceEvent(socket, 'drain')
    if (sent % sampleEvery !== sampleEvery - 1) continue
    collectGarbage()
    grewBytes = Math.max(grewBytes, process.memoryUsage().arrayBuffers - before)
  }
  if (lines.some((line) => line.startsWith('Transfer-Encoding'))) socket.write('0\r\n\r\n')
  await answered.promise
  socket.destroy()
  return { answer, grewBytes }
}

const asChunk = (socket: Socket, chunk: Buffer): boolean => {
  socket.write(`${chunk.length.toString(16)}\r\n`)
  socket.write(chunk)
  return socket.write('\r\n')
}
// Socket and stream buffers on both sides, in one process; a body that was held would be a gibibyte.
const boundBytes = 96 * 1_048_576

test.each([
  [
    'of a known length',
    [`Content-Length: ${gibibyte * mebibyte.length}`],
    (socket: Socket, chunk: Buffer) => socket.write(chunk),
  ],
  ['in chunks', ['Transfer-Encoding: chunked'], asChunk],
])('a gibibyte %s is refused in bounded memory, and others are served', async (_, lines, send) => {
  let runs = 0
  const port = await serve((_req, res) => (runs++, res.end('served')))
  const uploading = upload(port, gibibyte, ['Idempotency-Key: k', ...lines], send)
  expect(await say(port, post(['Idempotency-Key: other']))).toContain('served')
  const { answer, grewBytes } = await uploading
  expect(answer).toMatch(/^HTTP\/1\.1 413 /)
  expect(grewBytes).toBeLessThan(boundBytes)
  expect(runs).toBe(1)
})

test('a large upload with its digest streams to the handler in bounded memory, and is replayed', async () => {
  const size = 256
  const hash = createHash('sha256')
  for (let at = 0; at < size; at++) hash.update(mebibyte)
  const digest = hash.digest('base64')
  let received = 0
  const port = await serve(async (req, res) => {
    received = 0
    for await (const chunk of req) received += (chunk as Buffer).length
    res.end(String(received))
  })
  const lines = ['Idempotency-Key: k', `Content-Digest: sha-256=:${digest}:`, 'Transfer-Encoding: chunked']
  const first = await upload(port, size, lines, asChunk)
  expect(first.answer).toContain(String(size * mebibyte.length))
  expect(first.grewBytes).toBeLessThan(boundBytes)
  received = 0
  const again = await upload(port, size, lines, asChunk)
  expect(again.answer).toContain('Idempotent-Replayed: true')
  expect(again.grewBytes).toBeLessThan(boundBytes)
  expect(received).toBe(0)
})

test('a slow reader of a large replay holds nobody up', async () => {
  const body = Buffer.alloc(5 * 1_048_576, 'y')
  const port = await serve((_req, res) => res.end(body), { storedBytesMax: body.length })
  expect((await say(port, post(['Idempotency-Key: k']))).length).toBeGreaterThan(body.length)
  const slow = await dial(port)
  slow.pause()
  slow.write(post(['Idempotency-Key: k']))
  for (let at = 0; at < 5; at++)
    expect((await say(port, post(['Idempotency-Key: k']))).length).toBeGreaterThan(body.length)
  let read = 0
  slow.on('data', (chunk: Buffer) => (read += chunk.length)).resume()
  await onceEvent(slow, 'close')
  expect(read).toBeGreaterThan(body.length)
})

// Both ends of each connection are files of this process.
const filesMax = Number(
  (process.report.getReport() as { userLimits: { open_files: { soft: string } } }).userLimits.open_files.soft,
)
const idleSockets = 5_000
// Node and the kernel need some 10 KB for both ends of a connection with half a request; several times that is a leak.
const bytesASocketMax = 40_000

const filesNeeded = 2 * idleSockets + 500
const tooFew =
  filesMax < filesNeeded
    ? { reason: `the test needs ${filesNeeded}, the limit is ${filesMax}`, cure: `ulimit -n ${filesNeeded}` }
    : undefined

needsTool('open files', tooFew).test(
  'five thousand idle sockets, each with half a request, cost little memory and others nothing',
  async () => {
    const port = await serve(ok)
    const held = (): number => (collectGarbage(), process.memoryUsage().heapUsed + process.memoryUsage().external)
    const before = held()
    const idle: Socket[] = []
    // As many at once as the kernel queues for a server that has not accepted yet.
    while (idle.length < idleSockets) idle.push(...(await Promise.all(Array.from({ length: 250 }, () => dial(port)))))
    for (const [at, socket] of idle.entries())
      socket
        .on('error', () => {})
        .write(`POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k${at}\r\nContent-Length: 10\r\n\r\nhalf`)
    await setImmediate()
    expect(await say(port, post(['Idempotency-Key: mine']))).toContain('served')
    expect((held() - before) / idleSockets).toBeLessThan(bytesASocketMax)
    for (const socket of idle) socket.destroy()
    // None of them got as far as a claim: the key is free for whoever sends a whole request.
    expect(await say(port, post(['Idempotency-Key: k7']))).not.toContain('Idempotent-Replayed')
  },
)

test('requests that are sent before the last one was answered are answered in their order', async () => {
  const gate = Promise.withResolvers<void>()
  const port = await serve(async (req, res) => {
    if (req.url === '/first') await gate.promise
    else gate.resolve()
    res.end(`answer to ${req.url}`)
  })
  const ask = (path: string, more: string): string =>
    `POST ${path} HTTP/1.1\r\nHost: a\r\nIdempotency-Key: ${path.slice(1)}\r\nContent-Length: 2\r\n${more}\r\n{}`
  const answers = await say(port, ask('/first', '') + ask('/second', '') + ask('/third', 'Connection: close\r\n'))
  expect(answers.match(/answer to \/[a-z]+/g)).toEqual(['answer to /first', 'answer to /second', 'answer to /third'])
})

test('smuggled lengths are refused by Node before they come to us', async () => {
  const port = await serve(ok)
  const answer = await say(
    port,
    'POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
  )
  expect(answer).toMatch(/^HTTP\/1\.1 400 /)
  expect(answer).not.toContain('served')
})

test('a body that a parser took without keeping its bytes is an error that says what to do, and runs nothing', async () => {
  const app = express()
  let runs = 0
  const failures: string[] = []
  app.use(express.json(), onExpress(createOnce({ store: memoryStore(), scope: 'abuse' }), { tenant: 'shared' }))
  app.post('/', (_req, res) => void (runs++, res.end()))
  app.use(
    (error: Error, _req: unknown, res: express.Response, _next: unknown) =>
      void (failures.push(error.message), res.status(500).end()),
  )
  const port = await listen(createServer(app))
  expect(await say(port, post(['Idempotency-Key: k', 'Content-Type: application/json'], '{"a":1}'))).toMatch(
    /^HTTP\/1\.1 500 /,
  )
  expect(failures[0]).toMatch(/req\.rawBody = bytes/)
  expect(runs).toBe(0)
})

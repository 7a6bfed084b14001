// What a handler and its framework see of a connection during an exchange, on real sockets: the end of the connection comes after the
// exchange, once, and an answer that has ended is sent before the connection is torn down.

import { once as onceEvent } from 'node:events'
import { createServer } from 'node:http'
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import { connect } from 'node:net'
import type { AddressInfo, Socket } from 'node:net'
import { afterEach, expect, test, vi } from 'vitest'
import { holdConnection } from './connection.ts'
import type { ConnectionWatch } from './connection.ts'

const open: Server[] = []
afterEach(async () => {
  for (const server of open.splice(0)) {
    server.closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
  }
})

interface Met {
  readonly req: IncomingMessage
  readonly res: ServerResponse
  /** The server's side of the connection. */
  readonly socket: Socket
  readonly client: Socket
}

const head = (length: number): string => `POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ${length}\r\n\r\n`

/** A request that has reached its server: in full, or with a body that is still coming. */
async function meet(body: 'here' | 'coming' = 'here'): Promise<Met> {
  const server = createServer()
  open.push(server)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const client = connect((server.address() as AddressInfo).port, '127.0.0.1').on('error', () => {})
  const asked = onceEvent(server, 'request') as Promise<[IncomingMessage, ServerResponse]>
  client.write(body === 'here' ? `${head(2)}ab` : `${head(4)}ab`)
  const [req, res] = await asked
  if (body === 'here') {
    req.resume()
    await onceEvent(req, 'end')
  }
  return { req, res, socket: req.socket, client }
}

function watching(more: Partial<ConnectionWatch> = {}): ConnectionWatch {
  return { arrival: 'here', tellAtOnce: () => false, onTornDown: () => 'gave up', ...more }
}

/** The client goes away, and the server's socket has noticed. */
async function goAway({ client, socket }: Met): Promise<void> {
  client.resetAndDestroy()
  await vi.waitFor(() => expect(socket.destroyed).toBe(true), 30_000)
  await new Promise((resolve) => setImmediate(resolve))
}

test('during an exchange the connection looks open, and afterwards it is what it is', async () => {
  const met = await meet()
  const { req, res, socket } = met
  const held = holdConnection(req, res, watching())
  expect([req.socket === socket, res.socket === socket, req.socket === res.socket]).toEqual([false, false, true])
  await goAway(met)
  expect([req.socket.destroyed, req.socket.writable, res.socket!.destroyed]).toEqual([false, true, false])
  expect(req.socket.remoteFamily).toBe(socket.remoteFamily)
  held.release()
  expect([req.socket === socket, req.socket.destroyed]).toEqual([true, true])
})

test('what is called on the connection is called on the real one', async () => {
  const { req, res, socket } = await meet()
  holdConnection(req, res, watching())
  const heard = vi.fn()
  req.socket.once('timeout', heard)
  socket.emit('timeout')
  expect(heard).toHaveBeenCalledTimes(1)
  expect(socket.listenerCount('timeout')).toBe(new Set(socket.listeners('timeout')).size)
})

test('the real connection is shown again before anything is written to it, once', async () => {
  const { req, res, socket } = await meet()
  const held = holdConnection(req, res, watching())
  held.reveal()
  expect([req.socket, res.socket]).toEqual([socket, socket])
  const another = {} as Socket
  ;(req as { socket: Socket }).socket = another
  held.reveal()
  held.release()
  expect(req.socket).toBe(another)
})

test('a response that was given another connection in between keeps it', async () => {
  const { req, res } = await meet()
  const held = holdConnection(req, res, watching())
  const another = {} as Socket
  ;(res as { socket: Socket }).socket = another
  held.reveal()
  expect(res.socket).toBe(another)
})

test('a response that waits for its turn has no connection yet, and is given none', async () => {
  const { req, res } = await meet()
  ;(res as { socket: Socket | null }).socket = null
  const held = holdConnection(req, res, watching())
  expect(res.socket).toBeNull()
  held.release()
  expect(res.socket).toBeNull()
})

test('the end of the connection is held back to the end of the exchange, and comes once', async () => {
  const met = await meet()
  const { req, res, socket } = met
  const heard: string[] = []
  for (const name of ['close', 'error']) socket.on(name, () => heard.push(name))
  res.on('close', () => heard.push('response'))
  const held = holdConnection(req, res, watching())
  await goAway(met)
  expect(heard).toEqual([])
  held.release()
  await vi.waitFor(() => expect(heard).toContain('close'), 30_000)
  expect(heard.filter((name) => name === 'close')).toHaveLength(1)
  expect(heard.filter((name) => name === 'response')).toHaveLength(1)
})

test('other events of the connection are not held back', async () => {
  const { req, res, socket } = await meet()
  holdConnection(req, res, watching())
  const heard = vi.fn()
  socket.on('drain', heard)
  expect(socket.emit('drain', 1, 2)).toBe(true)
  expect(socket.emit('nobody listens')).toBe(false)
  expect(heard).toHaveBeenCalledExactlyOnceWith(1, 2)
})

test('a handler that wants to know is told at once that its client has gone, and not again', async () => {
  const met = await meet()
  const { req, res } = met
  const heard: string[] = []
  req.on('close', () => heard.push('request'))
  res.on('close', () => heard.push('response'))
  await vi.waitFor(() => expect(req.readableEnded).toBe(true), 30_000)
  heard.length = 0
  const held = holdConnection(req, res, watching({ tellAtOnce: () => true }))
  await goAway(met)
  expect(heard).toEqual(['request', 'response'])
  held.release()
  await new Promise((resolve) => setImmediate(resolve))
  expect(heard.filter((name) => name === 'response')).toHaveLength(1)
})

test('two exchanges on one connection: the first that ends leaves the connection to the other', async () => {
  const met = await meet()
  const { req, res, socket } = met
  const closed = vi.fn()
  socket.on('close', closed)
  const [first, second] = [holdConnection(req, res, watching()), holdConnection(req, res, watching())]
  await goAway(met)
  first.release()
  expect(closed).not.toHaveBeenCalled()
  second.release()
  await vi.waitFor(() => expect(closed).toHaveBeenCalledTimes(1), 30_000)
})

test('a connection that is used again holds its end back again', async () => {
  const met = await meet()
  const { req, res, socket } = met
  holdConnection(req, res, watching()).release()
  const closed = vi.fn()
  socket.on('close', closed)
  const held = holdConnection(req, res, watching())
  await goAway(met)
  expect(closed).not.toHaveBeenCalled()
  held.release()
  await vi.waitFor(() => expect(closed).toHaveBeenCalledTimes(1), 30_000)
})

test('while the body is still coming, the end of the connection is told: the rest never comes', async () => {
  const met = await meet('coming')
  const { req, res, socket } = met
  const closed = vi.fn()
  socket.on('close', closed)
  const held = holdConnection(req, res, watching({ arrival: 'coming' }))
  expect(req.socket).toBe(socket)
  await goAway(met)
  await vi.waitFor(() => expect(closed).toHaveBeenCalledTimes(1), 30_000)
  held.release()
})

test('as soon as the whole body is here, its connection is held like any other', async () => {
  const met = await meet('coming')
  const { req, res, socket, client } = met
  const closed = vi.fn()
  socket.on('close', closed)
  const held = holdConnection(req, res, watching({ arrival: 'coming' }))
  expect(req.socket).toBe(socket)
  client.write('cd')
  req.resume()
  await onceEvent(req, 'end')
  expect(req.socket === socket).toBe(false)
  await goAway(met)
  expect(closed).not.toHaveBeenCalled()
  held.release()
  await vi.waitFor(() => expect(closed).toHaveBeenCalledTimes(1), 30_000)
})

test('a body whose exchange has ended before it was here hides nothing any more', async () => {
  const { req, res, socket, client } = await meet('coming')
  holdConnection(req, res, watching({ arrival: 'coming' })).release()
  client.write('cd')
  req.resume()
  await onceEvent(req, 'end')
  expect(req.socket).toBe(socket)
})

test.each(['destroy', 'destroySoon'] as const)(
  '%s of a handler that had not answered tears the connection down',
  async (how) => {
    const { req, res, socket } = await meet()
    const onTornDown = vi.fn((): 'gave up' => 'gave up')
    holdConnection(req, res, watching({ onTornDown }))
    socket.on('error', () => {})
    req.socket[how]()
    expect([socket.destroyed, onTornDown.mock.calls.length]).toEqual([true, 1])
  },
)

test('a handler that tears the connection down after its answer does not lose it: it is closed after the exchange', async () => {
  const { req, res, socket, client } = await meet()
  const held = holdConnection(req, res, watching({ onTornDown: () => 'answered' }))
  expect(req.socket.destroy(new Error('a bug'))).toBe(socket)
  expect(socket.destroyed).toBe(false)
  held.reveal()
  res.end('paid')
  const chunks: Buffer[] = []
  client.on('data', (chunk: Buffer) => chunks.push(chunk))
  const ended = onceEvent(client, 'close')
  held.release()
  await ended
  expect(Buffer.concat(chunks).toString()).toMatch(/paid$/)
})

test('a connection that no handler tore down stays open after the exchange', async () => {
  const { req, res, socket, client } = await meet()
  const held = holdConnection(req, res, watching())
  held.reveal()
  res.end('paid')
  held.release()
  await onceEvent(client, 'data')
  await new Promise((resolve) => setImmediate(resolve))
  expect([socket.destroyed, socket.writable]).toEqual([false, true])
})

test('of two exchanges one has answered: the connection is kept for its answer', async () => {
  const { req, res, socket } = await meet()
  holdConnection(req, res, watching({ onTornDown: () => 'answered' }))
  holdConnection(req, res, watching({ onTornDown: () => 'gave up' }))
  req.socket.destroy()
  expect(socket.destroyed).toBe(false)
})

test('a connection without events, as a test of a framework has, is left as it is', async () => {
  const { res } = await meet()
  for (const socket of [undefined, {}]) {
    const req = { socket } as unknown as IncomingMessage
    const held = holdConnection(req, res, watching())
    expect(req.socket).toBe(socket)
    held.reveal()
    held.release()
    expect(req.socket).toBe(socket)
  }
})

// A client that goes away must not lose the outcome. By default Node and the frameworks end the response with its connection:
// pipes are cut, Koa sends no answer, Nest stops listening. So the end of the socket is held back during an exchange, and
// emitted after the answer has been settled.

import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

export interface HeldConnection {
  /** Show the real socket again: something is about to be written to it. */
  reveal(): void
  /** The exchange has ended: emit the events that were held back. */
  release(): void
}

export interface ConnectionWatch {
  /** Is the body still coming in while the handler runs? Then the end of the socket is not held back: the rest never comes. */
  readonly body: 'here' | 'coming'
  /** The client has gone away: emit 'close' to the handler now, as Node would, or after the exchange? */
  tellAtOnce(): boolean
  /** The handler (or its framework) tears the connection down. Returns whether its answer had ended before. */
  onTornDown(): 'answered' | 'gave up'
}

/** One socket, for all exchanges on it. It is used again, and a client may send a request before it has its last answer. */
interface Line {
  /** Looks like the socket, still open whatever has happened to it. */
  readonly standIn: Socket
  /** An array, not a Set: the table that a Set has outgrown still references its members, and through them whole requests. */
  readonly watches: Watch[]
  /** Events that were not emitted yet. */
  readonly heldBack: unknown[][]
  readonly emit: Socket['emit']
  /** To be closed when the answers that have ended are out. */
  closing: boolean
}

interface Watch extends ConnectionWatch {
  readonly req: IncomingMessage
  readonly res: ServerResponse
  told: boolean
}

// Kept as long as the socket: putting a wrapper on and off for every request costs more than all the rest of this file.
const lines = new WeakMap<Socket, Line>()

export function holdConnection(req: IncomingMessage, res: ServerResponse, how: ConnectionWatch): HeldConnection {
  const { socket } = req
  // The socket of fastify.inject and other stand-ins may have no events: no client goes away there.
  if (typeof socket?.emit !== 'function') return { reveal() {}, release() {} }
  const line = lines.get(socket) ?? openLine(socket)
  const watch: Watch = { ...how, req, res, told: false }
  line.watches.push(watch)
  const shownByResponse = res.socket
  const hide = (): unknown => hidden && (req.socket = line.standIn)
  if (shownByResponse) (res as { socket: Socket }).socket = line.standIn
  let hidden = true
  if (isComing(watch)) req.on('end', hide)
  else hide()
  const reveal = (): void => {
    if (!hidden) return
    hidden = false
    req.socket = socket
    // A response that waits for its turn on the connection has no socket yet.
    if (res.socket === line.standIn) (res as { socket: Socket | null }).socket = shownByResponse
  }
  return {
    reveal,
    release() {
      reveal()
      line.watches.splice(line.watches.indexOf(watch), 1)
      // A response that has emitted 'close' must not emit it again.
      if (watch.told && (socket as { _httpMessage?: unknown })._httpMessage === res) res.detachSocket(socket)
      if (line.watches.length > 0) return
      for (const event of line.heldBack.splice(0)) Reflect.apply(line.emit, socket, event)
      if (line.closing) socket.destroySoon()
    },
  }
}

function openLine(socket: Socket): Line {
  const watches: Watch[] = []
  const line: Line = { standIn: standIn(socket, tearDown), watches, heldBack: [], emit: socket.emit, closing: false }
  /** A handler that throws after its answer must not lose the answer: without us the answer would be on its way by now. */
  function tearDown(error?: Error): Socket {
    const answered = watches.map((watch) => watch.onTornDown()).includes('answered')
    if (answered) line.closing = true
    return answered ? socket : socket.destroy(error)
  }
  socket.emit = function (this: Socket, ...event: unknown[]): boolean {
    const ends = event[0] === 'close' || event[0] === 'error'
    if (!ends || watches.every(isComing)) return Reflect.apply(line.emit, this, event) as boolean
    if (line.heldBack.push(event) === 1) watches.slice().forEach(tellIfWanted)
    return true
  } as Socket['emit']
  lines.set(socket, line)
  return line
}

function isComing({ body, req }: Watch): boolean {
  return body === 'coming' && !req.complete
}

/** Emits what Node emits when the connection is not held back. */
function tellIfWanted(watch: Watch): void {
  if (!watch.tellAtOnce()) return
  watch.told = true
  if (watch.req.readableEnded) watch.req.emit('close')
  watch.res.emit('close')
}

function standIn(socket: Socket, tearDown: (error?: Error) => Socket): Socket {
  return new Proxy(socket, {
    get(target, name) {
      if (name === 'writable') return true
      if (name === 'destroyed') return false
      if (name === 'destroy' || name === 'destroySoon') return tearDown
      const value: unknown = Reflect.get(target, name, target)
      return typeof value === 'function' ? (value as (...all: unknown[]) => unknown).bind(target) : value
    },
  })
}

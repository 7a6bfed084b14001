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
  readonly arrival: 'here' | 'coming'
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

// Kept as long as the socket: putting a wrapper on and off for every request costs more than all the rest of this file. On the
// socket itself: http/on-node.ts says why.
const lineOf = Symbol('onceonly: the exchanges on this socket')
type Marked = Socket & { [lineOf]?: Line }

export function holdConnection(req: IncomingMessage, res: ServerResponse, how: ConnectionWatch): HeldConnection {
  const { socket } = req
  // The socket of fastify.inject and other stand-ins may have no events: no client goes away there.
  if (typeof socket?.emit !== 'function') return notHeld
  return new Watch(req, res, how, (socket as Marked)[lineOf] ?? openLine(socket))
}

const notHeld: HeldConnection = { reveal() {}, release() {} }

/** A class: one object for each request, and no closures. */
class Watch implements HeldConnection {
  readonly req: IncomingMessage
  readonly res: ServerResponse
  readonly how: ConnectionWatch
  told = false
  readonly #line: Line
  readonly #socket: Socket
  /** What the response showed. A response that waits for its turn on the connection has no socket yet. */
  readonly #shown: Socket | null
  #hidden = true

  constructor(req: IncomingMessage, res: ServerResponse, how: ConnectionWatch, line: Line) {
    this.req = req
    this.res = res
    this.how = how
    this.#line = line
    this.#socket = req.socket
    this.#shown = res.socket
    line.watches.push(this)
    if (res.socket) (res as { socket: Socket }).socket = line.standIn
    if (isComing(this)) req.on('end', () => this.#hide())
    else this.#hide()
  }

  #hide(): void {
    if (this.#hidden) this.req.socket = this.#line.standIn
  }

  reveal(): void {
    if (!this.#hidden) return
    this.#hidden = false
    this.req.socket = this.#socket
    if (this.res.socket === this.#line.standIn) (this.res as { socket: Socket | null }).socket = this.#shown
  }

  release(): void {
    const { watches, heldBack, emit } = this.#line
    const socket = this.#socket
    this.reveal()
    watches.splice(watches.indexOf(this), 1)
    // A response that has emitted 'close' must not emit it again.
    if (this.told && (socket as { _httpMessage?: unknown })._httpMessage === this.res) this.res.detachSocket(socket)
    if (watches.length > 0) return
    for (const event of heldBack.splice(0)) Reflect.apply(emit, socket, event)
    if (this.#line.closing) socket.destroySoon()
  }
}

function openLine(socket: Socket): Line {
  const watches: Watch[] = []
  const line: Line = { standIn: standIn(socket, tearDown), watches, heldBack: [], emit: socket.emit, closing: false }
  /** A handler that throws after its answer must not lose the answer: without us the answer would be on its way by now. */
  function tearDown(error?: Error): Socket {
    const answered = watches.map(({ how }) => how.onTornDown()).includes('answered')
    if (answered) line.closing = true
    return answered ? socket : socket.destroy(error)
  }
  socket.emit = function (this: Socket, ...event: unknown[]): boolean {
    const ends = event[0] === 'close' || event[0] === 'error'
    if (!ends || watches.every(isComing)) return Reflect.apply(line.emit, this, event) as boolean
    if (line.heldBack.push(event) === 1) watches.slice().forEach(tellIfWanted)
    return true
  } as Socket['emit']
  ;(socket as Marked)[lineOf] = line
  return line
}

function isComing({ how, req }: Watch): boolean {
  return how.arrival === 'coming' && !req.complete
}

/** Emits what Node emits when the connection is not held back. */
function tellIfWanted(watch: Watch): void {
  if (!watch.how.tellAtOnce()) return
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

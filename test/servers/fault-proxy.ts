// A TCP proxy that fails on demand, in front of any server: delays, black holes, lost requests, lost replies, refusals,
// resets, and cuts at an exact byte or message. Invariant: a fault is in force when the call that sets it has resolved, for
// open connections and for new ones.
import { once } from 'node:events'
import { createServer, type Server, type Socket } from 'node:net'
import { type Direction, type FaultConnection, type Judge, openConnection } from './fault-connection.ts'
import { createCuts, type Cuts } from './fault-cuts.ts'
import { type Framer, type FramerName, framers } from './framers.ts'
import { freePort } from './free-port.ts'

export type FaultMode =
  | 'pass'
  // Connections stay open, and nothing arrives on either side.
  | 'blackHole'
  // What the client sends vanishes.
  | 'dropRequest'
  // The server gets everything; its answers vanish.
  | 'dropReply'
  // New connections are refused; open ones go on.
  | 'refuse'
  // Open connections are reset, new ones as soon as they are made.
  | 'reset'
  // Everything arrives, that much later.
  | { delayMs: number }

// What arrived at the proxy, delivered or not.
export interface Traffic {
  readonly messages: number
  readonly bytes: number
}

export interface FaultProxy extends AsyncDisposable {
  host: string
  port: number
  // The URL of the server, leading through the proxy.
  url: string
  readonly counts: Readonly<{ connections: number; open: number; request: Traffic; reply: Traffic }>
  // A connection that has lost bytes is reset when the mode lets bytes through again: TCP knows no holes.
  setMode(mode: FaultMode): Promise<void>
  cutAt: Cuts['cutAt']
  cutAfterBytes: Cuts['cutAfterBytes']
  // Resets all open connections now; the mode stays.
  resetConnections(): void
  close(): Promise<void>
}

export interface FaultProxyOptions {
  // The server: anything with a URL that names host and port.
  target: { url: string }
  framer?: FramerName | (() => Framer)
}

export async function startFaultProxy({ target, framer = 'chunk' }: FaultProxyOptions): Promise<FaultProxy> {
  const url = new URL(target.url)
  const cuts = createCuts()
  const traffic = createTraffic(url, typeof framer === 'string' ? framers[framer] : framer, cuts)
  const { server, port } = await listenAnywhere(traffic.accept)
  let listener: Server | undefined = server
  const endListener = (): void => {
    listener?.close()
    listener = undefined
  }
  const close = async (): Promise<void> => {
    endListener()
    traffic.reset()
  }
  const proxied = new URL(url)
  proxied.host = `127.0.0.1:${port}`
  return {
    host: '127.0.0.1',
    port,
    url: proxied.href,
    counts: traffic.counts,
    setMode: async (mode) => {
      traffic.setMode(mode)
      if (mode === 'refuse') endListener()
      else listener ??= await listen(port, traffic.accept)
    },
    cutAt: cuts.cutAt,
    cutAfterBytes: cuts.cutAfterBytes,
    resetConnections: traffic.reset,
    close,
    [Symbol.asyncDispose]: close,
  }
}

const directions = ['request', 'reply'] as const

interface ProxyTraffic {
  counts: FaultProxy['counts']
  accept(client: Socket): void
  setMode(mode: FaultMode): void
  reset(): void
}

function createTraffic(target: URL, createFramer: () => Framer, cuts: Cuts): ProxyTraffic {
  const address = { host: target.hostname, port: Number(target.port) }
  const counts = { connections: 0, open: 0, request: { messages: 0, bytes: 0 }, reply: { messages: 0, bytes: 0 } }
  const connections = new Set<FaultConnection>()
  let mode: FaultMode = 'pass'
  const judge: Judge = {
    message(direction, message) {
      counts[direction].messages += 1
      counts[direction].bytes += message.length
      const last = cuts.take(direction, message)
      const deliver = swallows(mode, direction) ? undefined : (last ?? message)
      return { deliver, delayMs: typeof mode === 'object' ? mode.delayMs : 0, cut: last !== undefined }
    },
    swallowsEnd: (direction) => swallows(mode, direction),
  }
  return {
    counts,
    accept(client) {
      counts.connections += 1
      counts.open += 1
      client.on('error', () => {}).on('close', () => (counts.open -= 1))
      if (mode === 'reset') return void client.resetAndDestroy()
      // The server does not hear of a connection that is made into a black hole.
      const reach = mode === 'blackHole' ? undefined : address
      const connection = openConnection(client, reach, createFramer(), judge)
      connections.add(connection)
      void connection.closed.then(() => connections.delete(connection))
    },
    setMode(next) {
      mode = next
      const hasHole = (connection: FaultConnection): boolean =>
        directions.some((direction) => connection.hasLost(direction) && !swallows(next, direction))
      for (const connection of connections) if (next === 'reset' || hasHole(connection)) connection.reset()
    },
    reset() {
      for (const connection of connections) connection.reset()
    },
  }
}

function swallows(mode: FaultMode, direction: Direction): boolean {
  return mode === 'blackHole' || mode === (direction === 'request' ? 'dropRequest' : 'dropReply')
}

async function listenAnywhere(accept: (client: Socket) => void): Promise<{ server: Server; port: number }> {
  for (;;) {
    const port = await freePort()
    try {
      return { server: await listen(port, accept), port }
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE') throw error
    }
  }
}

async function listen(port: number, accept: (client: Socket) => void): Promise<Server> {
  const server = createServer({ allowHalfOpen: true, noDelay: true }, accept)
  server.listen(port, '127.0.0.1')
  await once(server, 'listening')
  return server
}

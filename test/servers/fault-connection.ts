// One connection through the fault proxy: two lanes, from the client to the server (requests) and back (replies).
// Invariant: nobody ever sees a stream with a hole in it, which TCP cannot produce: a connection that has lost bytes can
// only lose more, or be reset.
import { connect, Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Framer } from './framers.ts'

export type Direction = 'request' | 'reply'

export interface Verdict {
  // What to pass on of the message; undefined if it vanishes.
  deliver: Buffer | undefined
  delayMs: number
  // Whether the connection is cut then.
  cut: boolean
}

export interface Judge {
  message(direction: Direction, message: Buffer): Verdict
  // Whether the end of a stream vanishes like everything else.
  swallowsEnd(direction: Direction): boolean
}

export interface FaultConnection {
  hasLost(direction: Direction): boolean
  // Resolves when both ends are closed.
  closed: Promise<unknown>
  reset(): void
}

// Without a target the connection leads nowhere: the client is connected, and all it sends is lost.
export function openConnection(
  client: Socket,
  target: { host: string; port: number } | undefined,
  framer: Framer,
  judge: Judge,
): FaultConnection {
  const server = target ? connect({ ...target, allowHalfOpen: true, noDelay: true }) : new Socket()
  const state: State = { lost: new Set(target ? [] : ['request', 'reply']), cut: false }
  const reset = (): void => {
    client.resetAndDestroy()
    server.resetAndDestroy()
  }
  lane({ direction: 'request', source: client, sink: server, split: framer.request, judge, state, reset })
  lane({ direction: 'reply', source: server, sink: client, split: framer.reply, judge, state, reset })
  const closed = Promise.all([client, server].map((socket) => new Promise((resolve) => socket.once('close', resolve))))
  return { hasLost: (direction) => state.lost.has(direction), closed, reset }
}

// What the two lanes of a connection know of each other.
interface State {
  lost: Set<Direction>
  cut: boolean
}

interface Lane {
  direction: Direction
  source: Socket
  sink: Socket
  split: (chunk: Buffer) => Buffer[]
  judge: Judge
  state: State
  reset: () => void
}

function lane({ direction, source, sink, split, judge, state, reset }: Lane): void {
  const send = inOrder()
  const write = (bytes: Buffer): void => {
    if (!sink.writable || sink.write(bytes)) return
    source.pause()
    sink.once('drain', () => source.resume())
  }
  // Who was to receive gets all that was delivered and then an orderly end: a reset could destroy bytes that it has not
  // read yet, and "after it was delivered" would be a lie. Who sent is reset and learns nothing.
  const cut = (): void => {
    sink.end()
    source.resetAndDestroy()
  }
  source.on('data', (chunk: Buffer) => {
    for (const message of split(chunk)) {
      if (state.cut) return
      const verdict = judge.message(direction, message)
      const { deliver } = verdict
      if (!deliver) state.lost.add(direction)
      else if (deliver.length > 0) send(verdict.delayMs, () => write(deliver))
      if (verdict.cut) {
        state.cut = true
        send(0, cut)
      }
    }
  })
  source.on('end', () => {
    if (judge.swallowsEnd(direction)) state.lost.add(direction)
    else send(0, () => void (sink.writable && sink.end()))
  })
  source.on('error', () => {
    if (state.cut) return
    if (judge.swallowsEnd(direction)) state.lost.add(direction)
    else reset()
  })
}

// Runs actions in the order given, each not before its delay is over; at once if nothing waits.
function inOrder(): (delayMs: number, action: () => void) => void {
  let waiting = 0
  let last = Promise.resolve()
  return (delayMs, action) => {
    if (waiting === 0 && delayMs === 0) return action()
    const dueMs = performance.now() + delayMs
    waiting += 1
    last = last.then(async () => {
      await sleep(Math.max(0, dueMs - performance.now()))
      waiting -= 1
      action()
    })
  }
}

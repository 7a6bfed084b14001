// A gateway in this process in front of whatever a test gives it, on a store and a clock of its own; and requests at the level
// of the socket, for what no HTTP client would send.
import { once as onceEvent } from 'node:events'
import { connect, type Socket } from 'node:net'
import { type Gateway, type GatewayOptions, startGateway } from '../../src/gateway/proxy.ts'
import type { RequestRecord } from '../../src/gateway/request-log.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { type ManualClock, manualClock } from '../../src/testing/manual-clock.ts'

export interface Ground {
  readonly gateway: Gateway
  readonly port: number
  readonly clock: ManualClock
  readonly records: RequestRecord[]
  /** A POST with a key, unless `headers` says otherwise. */
  post(key: string | undefined, body?: string, headers?: Readonly<Record<string, string>>): Promise<Response>
}

const open: (() => Promise<void>)[] = []

/** For afterEach: what was opened is closed, the last first. */
export async function closeAll(): Promise<void> {
  for (const close of open.splice(0).toReversed()) await close()
}

export function closing<T extends { close(): Promise<void> }>(what: T): T {
  open.push(() => what.close())
  return what
}

export async function startGround(upstream: string, options: Partial<GatewayOptions> = {}): Promise<Ground> {
  const clock = manualClock()
  const records: RequestRecord[] = []
  const gateway = closing(
    await startGateway({
      store: memoryStore({ clock }),
      upstream,
      listen: { host: '127.0.0.1', port: 0 },
      ...(options.tenantHeader === undefined && { tenant: 'shared' as const }),
      waitMs: 0,
      sweepEveryMs: 0,
      clock,
      log: (record) => void records.push(record),
      ...options,
    }),
  )
  return {
    gateway,
    port: Number(new URL(gateway.url).port),
    clock,
    records,
    post: (key, body = '{"cents":500}', headers = {}) =>
      fetch(`${gateway.url}/payments`, {
        method: 'POST',
        body,
        headers: {
          'content-type': 'application/json',
          ...(key !== undefined && { 'idempotency-key': key }),
          ...headers,
        },
      }),
  }
}

export async function dial(port: number): Promise<Socket> {
  const socket = connect(port, '127.0.0.1')
  socket.on('error', () => {})
  await onceEvent(socket, 'connect')
  return socket
}

/** Writes the text as it is and reads until the other side closes. */
export async function say(port: number, text: string): Promise<string> {
  const socket = await dial(port)
  const chunks: Buffer[] = []
  socket.on('data', (chunk: Buffer) => void chunks.push(chunk))
  socket.write(Buffer.from(text, 'latin1'))
  await onceEvent(socket, 'close')
  return Buffer.concat(chunks).toString('latin1')
}

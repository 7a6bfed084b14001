// The service behind the gateways under torture. It knows nothing of onceonly: it does what it is asked, each time, and writes
// every effect into the ledger, which deduplicates nothing. It can kill the gateway that asks, before and after its effect.
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Ask, leaseMs } from './asking.ts'
import type { Journal } from './journal.ts'
import type { Point } from './points.ts'
import type { Worker } from './processes.ts'

export interface Upstream {
  readonly url: string
  /** The gateway dies while this key's effect is under way here. */
  killAt(id: string, side: Point['side'], gateway: Worker): void
  close(): void
}

type Meet = (id: string, side: Point['side']) => Promise<void>

export async function startUpstream(journal: Journal): Promise<Upstream> {
  const doomed = new Map<string, { readonly side: Point['side']; readonly gateway: Worker }>()
  const meet: Meet = async (id, side) => {
    const doom = doomed.get(id)
    if (doom?.side !== side) return
    journal.write({ is: 'dying', point: `effect ${side}` })
    doom.gateway.child.kill('SIGKILL')
    await doom.gateway.ended
  }
  let served = 0
  const server = createServer((req, res) => {
    req.resume()
    void serve(journal, meet, req, `${journal.process}/service/${++served}`).then(([status, token]) =>
      res
        .writeHead(status, { 'content-type': 'application/json', 'x-receipt': token })
        .end(JSON.stringify({ token, status })),
    )
  })
  // The gateway closes idle connections. The side that closes first must be the one that would send next.
  server.keepAliveTimeout = 60_000
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    killAt: (id, side, gateway) => void doomed.set(id, { side, gateway }),
    close() {
      server.closeAllConnections()
      server.close()
    },
  }
}

/** `token` is the service's own name of what it does now: the service gets no token. */
async function serve(journal: Journal, meet: Meet, req: IncomingMessage, token: string): Promise<[number, string]> {
  const header = (name: string): string => String(req.headers[name])
  const derivedKey = header('idempotency-key')
  const id = derivedKey.replaceAll('"', '')
  const [ask, attempt] = [header('x-ask') as Ask, Number(header('idempotency-attempt'))]
  journal.write({ is: 'served', call: header('x-call'), token, id, attempt, derivedKey })
  if (ask === 'slow') await sleep(leaseMs * 1.4)
  await meet(id, 'before')
  journal.effect(token)
  await meet(id, 'after')
  const [ended, status] = endOf(ask, attempt)
  journal.write({ is: 'ended', token, ended })
  return [status, token]
}

function endOf(ask: Ask, attempt: number): ['final' | 'threw' | 'returned', number] {
  if (ask === 'final') return ['final', 402]
  // Fails once for each key: the retry returns a value.
  if (ask === 'throws' && attempt === 1) return ['threw', 500]
  return ['returned', 201]
}

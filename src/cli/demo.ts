// `onceonly demo`: the gateway, a payment service that knows nothing of it, the dashboard and a page to play with, on SQLite in
// a temporary folder. What the page shows is read from real requests and from the service's own ledger. Ctrl-C ends it, and
// neither the folder nor a process is left.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { backoffMs, backoffs } from '../core/backoff.ts'
import { sleep, systemClock, systemRandom } from '../core/clock.ts'
import { entriesOf, startAdmin, startJournal } from '../gateway/admin.ts'
import { startGateway } from '../gateway/proxy.ts'
import { createMetrics } from '../gateway/metrics.ts'
import { sqliteStore } from '../stores/sqlite.ts'
import { parseCommand } from './arguments.ts'
import type { Option } from './arguments.ts'
import { openMessages } from './demo/messages.ts'
import { startNetwork } from './demo/network.ts'
import { superviseService } from './demo/supervisor.ts'

export type { MessageCounts } from './demo/messages.ts'

const help = `onceonly demo: a payment page, a payment service and the gateway between them, with faults to switch on

Usage: onceonly demo [--port PORT] [--admin-port PORT] [--service-port PORT] [--page-port PORT]

  --port          the gateway
  --admin-port    the dashboard
  --service-port  the payment service
  --page-port     the page to play with

Ports that are not given are free ones. Everything is on this machine, in a temporary folder, and gone with Ctrl-C.

Example: onceonly demo --port 8080
`

const port: Option<number> = {
  type: 'string',
  expected: 'a port from 0 to 65535',
  parse: (given) => (/^\d{1,5}$/.test(given) && Number(given) <= 65_535 ? Number(given) : undefined),
  json: { type: 'integer' },
}

interface Ports {
  readonly port?: number
  readonly 'admin-port'?: number
  readonly 'service-port'?: number
  readonly 'page-port'?: number
}

export interface RunningDemo {
  readonly page: string
  readonly dashboard: string
  readonly gateway: string
  readonly service: string
  readonly token: string
  close(): Promise<void>
}

export async function demo(args: readonly string[]): Promise<number> {
  const options = { port, 'admin-port': port, 'service-port': port, 'page-port': port }
  const parsed = parseCommand({ command: 'demo', help, options, args })
  if (!parsed) return 0
  // Before anything is started: a Ctrl-C in the first moment must clean up, too.
  const asked = signalled()
  const running = await startDemo(parsed.values)
  console.log(welcome(running))
  await asked
  await running.close()
  return 0
}

function signalled(): Promise<unknown> {
  return new Promise((resolve) => {
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, resolve)
  })
}

/** What was started is ended in reverse, also when something later does not start. */
export async function startDemo(ports: Ports = {}): Promise<RunningDemo> {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-demo-'))
  const endings: (() => unknown)[] = [() => rmSync(folder, { recursive: true, force: true })]
  const close = async (): Promise<void> => {
    for (const end of endings.splice(0).toReversed()) await end()
  }
  try {
    return { ...(await startParts(folder, ports, endings)), close }
  } catch (error) {
    await close()
    throw error
  }
}

async function startParts(
  folder: string,
  ports: Ports,
  endings: (() => unknown)[],
): Promise<Omit<RunningDemo, 'close'>> {
  const opened = <T extends { close(): unknown }>(part: T): T => {
    endings.push(() => part.close())
    return part
  }
  const on = (given = 0): { host: string; port: number } => ({ host: '127.0.0.1', port: given })
  const service = opened(await superviseService(join(folder, 'ledger.jsonl'), ports['service-port'] ?? 0))
  const path = join(folder, 'onceonly.db')
  // A time-out below that of the page, so that a store that is down is reported, and is not just slow.
  const store = opened(sqliteStore({ path, lockWaitMs: 500 }))
  const metrics = opened(createMetrics())
  const gateway = opened(
    await startGateway({
      store,
      upstream: service.url,
      listen: on(ports.port),
      service: 'demo',
      tenant: 'shared',
      // A payment: one whose outcome is unknown is not retried, and people do not want to watch for 30 s.
      onTakeover: 'refuse',
      leaseMs: 2_000,
      log: metrics.request,
    }),
  )
  const token = systemRandom.uuid()
  const { once } = gateway
  const listen = on(ports['admin-port'])
  const admin = opened(
    await startAdmin({
      once,
      store,
      metrics,
      listen,
      token,
      notReady: () => (gateway.ready ? undefined : 'it drains'),
    }),
  )
  const network = opened(
    await startNetwork({
      port: ports['page-port'] ?? 0,
      gateway,
      service,
      dashboardUrl: admin.url,
      entries: entriesOf(once, store, opened(startJournal())),
      messages: opened(await openMessages(path)),
      takeStoreDown: () => holdLock(path),
    }),
  )
  return { page: network.url, dashboard: admin.url, gateway: gateway.url, service: service.url, token }
}

/** SQLite has one writer: while another connection writes, no other can, as with a disk that hangs. */
async function holdLock(path: string): Promise<() => void> {
  const database = new DatabaseSync(path)
  for (let tries = 0; !begin(database); tries++) {
    await sleep(systemClock, backoffMs(backoffs.sqliteLock, tries, systemRandom))
  }
  return () => {
    if (!database.isOpen) return
    database.exec('ROLLBACK')
    database.close()
  }
}

function begin(database: DatabaseSync): boolean {
  try {
    database.exec('BEGIN IMMEDIATE')
    return true
  } catch (error) {
    // Another connection is writing, for a moment. Any other error would not pass.
    if ((error as { errcode?: number }).errcode === 5) return false
    database.close()
    throw error
  }
}

function welcome({ page, dashboard, gateway, service, token }: RunningDemo): string {
  const curl = `curl -i ${gateway}/payments -H 'Content-Type: application/json' -H 'Idempotency-Key: order-1' -d '{"order":"order-1","cents":4900}'`
  return `
  Play       ${page}
  Dashboard  ${dashboard}
  Gateway    ${gateway}

  Open the first one, break things and press Pay. Or pay with curl, twice: the second answer is the first one
  again, says Idempotent-Replayed: true, and nothing is charged.

  ${curl}
  ${curl}

  The payment service is a separate process (${service}) and knows nothing of onceonly.
  Changes in the dashboard need the token ${token}

  Ctrl-C ends everything and removes it.
`
}

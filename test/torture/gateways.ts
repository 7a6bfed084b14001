// Gateways as their users start them, as processes that can be killed and stopped, in front of one service. One more gateway is
// never killed, and by it keys are taken over and asked for in the end.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type Job, leaseMs, scope, waitMs } from './asking.ts'
import { askByHttp, refusingPath } from './http-asking.ts'
import type { Journal } from './journal.ts'
import type { Place, StoreName } from './place.ts'
import type { Fate } from './points.ts'
import { portOf, startProcess, type Worker } from './processes.ts'
import { startUpstream, type Upstream } from './upstream.ts'

export interface GatewayOrders {
  readonly folder: string
  readonly name: string
  readonly offsetMs: number
  readonly fate: Fate
}

export interface Gateways {
  readonly upstream: Upstream
  start(fate: Fate): Worker
  /** By the gateway that is never killed. */
  ask(job: Job): Promise<unknown>
  close(): Promise<void>
}

/** DynamoDB is left out: a gateway has the default allowance for clocks, and each takeover would wait for it. */
export const gatewayStores: readonly StoreName[] = ['sqlite', 'postgres', 'mysql', 'redis', 'redis-postgres', 'mongodb']

interface Ground {
  readonly root: string
  readonly place: Place
  readonly folder: string
  readonly offsetMs: number
  readonly journal: Journal
}

export async function openGateways(ground: Ground): Promise<Gateways> {
  const { root, folder, offsetMs, journal } = ground
  const upstream = await startUpstream(journal)
  const args = argumentsOf(ground, upstream.url)
  let started = 0
  const start = (fate: Fate): Worker => {
    const orders: GatewayOrders = { folder, name: `g${++started}`, offsetMs, fate }
    const worker = startProcess({ root, folder, name: orders.name }, args, { ONCEONLY_TORTURE: JSON.stringify(orders) })
    return { ...worker, port: () => portIn(join(folder, `${orders.name}.log`), worker) }
  }
  let kept: { readonly worker: Worker; readonly port: Promise<number> } | undefined
  return {
    upstream,
    start,
    async ask(job) {
      if (!kept) {
        const worker = start({})
        kept = { worker, port: portOf(worker) }
      }
      return askByHttp(journal, await kept.port, job)
    },
    async close() {
      kept?.worker.child.kill('SIGTERM')
      await kept?.worker.ended
      upstream.close()
    },
  }
}

function argumentsOf({ place, folder }: Ground, upstream: string): string[] {
  const routes = join(folder, 'gateway.json')
  writeFileSync(routes, JSON.stringify({ routes: [{ path: `${refusingPath}/**`, onTakeover: 'refuse' }] }))
  const program = join(import.meta.dirname, '..', '..', 'src', 'cli', 'main.ts')
  const hook = join(import.meta.dirname, 'gateway-hook.ts')
  const where = ['--upstream', upstream, '--listen', '127.0.0.1:0', '--config', routes, ...storeOf(place)]
  const whose = ['--service', scope, '--tenant-header', 'x-tenant', '--sweep-every', '0s']
  const times = ['--lease', `${leaseMs}ms`, '--wait', `${waitMs}ms`]
  return ['--import', hook, program, 'gateway', ...where, ...whose, ...times]
}

function storeOf({ store, url, redisUrl }: Place): string[] {
  if (store === 'sqlite') return ['--store', `sqlite:${url}`]
  if (store === 'mongodb') return ['--store', url.replace('/?', '/torture?')]
  return ['--store', url, ...(redisUrl === undefined ? [] : ['--cache', redisUrl])]
}

/** As it says itself, in its log. A gateway that the hook did not reach would be tortured in vain. */
function portIn(log: string, worker: Worker): number | undefined {
  const line = readFileSync(log, 'utf8')
    .split('\n')
    .find((each) => each.includes('"listening"'))
  if (line === undefined) return undefined
  if (!worker.lines().some(({ is }) => is === 'watched'))
    throw new Error(`${worker.name} has a store that nobody watches`)
  return Number(new URL((JSON.parse(line) as { url: string }).url).port)
}

// P12: the gateway on SQLite against a bare proxy on undici that does nothing but pass on, both in front of the same service,
// each in a process of its own. Every request of the gateway has a new key, so that it is claimed and settled on disk.
// The memory of a gateway is watched over 100,000 requests, a million in a huge run (GATEWAY_REQUESTS changes that).

import { fork } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { once as onceEmitted } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Pool } from 'undici'
import { newId } from '../src/core/key.ts'
import type { ProcessOptions, Spent } from './processes/gateway.ts'
import { compareAll, ratioIn } from './measure.ts'
import type { Variant } from './measure.ts'
import { size } from './plan.ts'
import { report, reportComparison } from './report.ts'

const concurrency = 64
// 1 KB of JSON, as in bench/http.ts.
const body = JSON.stringify({ order: 'ord_01HZX3J5T9Q8W7E6R5T4Y3U2I1', note: 'n'.repeat(974) })

interface Running {
  readonly port: number
  readonly child: ChildProcess
}

export async function benchGateway(): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-bench-'))
  const started: Running[] = []
  const pools: Pool[] = []
  const start = async (options: ProcessOptions): Promise<Running> => {
    const child = fork(join(import.meta.dirname, 'processes', 'gateway.ts'), [JSON.stringify(options)])
    const [port] = (await onceEmitted(child, 'message')) as [number]
    started.push({ port, child })
    return { port, child }
  }
  const ask = (name: string, { port }: Running): Variant => {
    const pool = new Pool(`http://127.0.0.1:${port}`, { connections: concurrency })
    pools.push(pool)
    return { name, work: () => pay(pool) }
  }
  try {
    const upstream = `http://127.0.0.1:${(await start({ is: 'service' })).port}`
    const bare = ask('bare proxy', await start({ is: 'bare', upstream }))
    const gateway = ask('gateway', await start({ is: 'gateway', upstream, path: join(folder, 'gateway.db') }))
    const title = `Gateway on SQLite, c=${concurrency}`
    const compared = await compareAll([bare, gateway], { concurrency, operations: 4_000, rounds: 9 })
    const ratio = ratioIn(compared, 'perSecond', 'gateway', 'bare proxy')
    report({ id: 'P12', what: `${title}: requests per second of a bare proxy`, ...ratio, atLeast: 0.7 })
    reportComparison(title, compared)
    const requests = Number(process.env['GATEWAY_REQUESTS'] ?? size(100_000, 20_000, 1_000_000))
    if (requests > 0) await watchMemory(requests, upstream, join(folder, 'memory.db'), start)
  } finally {
    await Promise.all(pools.map((pool) => pool.destroy()))
    for (const { child } of started) child.kill()
    rmSync(folder, { recursive: true })
  }
}

async function pay(pool: Pool): Promise<void> {
  const headers = { 'content-type': 'application/json', 'idempotency-key': newId() }
  const response = await pool.request({ path: '/payments', method: 'POST', headers, body })
  const { length } = await response.body.text()
  if (response.statusCode !== 201 || length !== 300) {
    throw new Error(`answered ${response.statusCode} with ${length} characters`)
  }
}

/** The second half of the run must need no more than the first did. Entries expire, so that the file stays small. */
async function watchMemory(
  requests: number,
  upstream: string,
  path: string,
  start: (options: ProcessOptions) => Promise<Running>,
): Promise<void> {
  const { port, child } = await start({ is: 'gateway', upstream, path, keepMs: 5_000 })
  const pool = new Pool(`http://127.0.0.1:${port}`, { connections: concurrency })
  const parts = 20
  const residentMb: number[] = []
  for (let part = 0; part < parts; part++) {
    let left = Math.ceil(requests / parts)
    const worker = async (): Promise<void> => {
      while (left-- > 0) await pay(pool)
    }
    await Promise.all(Array.from({ length: concurrency }, worker))
    child.send('spent')
    const [{ residentBytes }] = (await onceEmitted(child, 'message')) as [Spent]
    residentMb.push(residentBytes / 1_048_576)
  }
  await pool.destroy()
  const highest = (from: number, to: number): number => Math.max(...residentMb.slice(from, to))
  const measured = highest(parts / 2, parts) / highest(parts / 10, parts / 2)
  const what = `Gateway: memory over ${requests.toLocaleString('en')} requests`
  report({ id: 'P12', what: `${what}, second half to first`, measured, atMost: 1.1 })
  report({ id: 'P12', what: `${what}, the most in the second half`, measured: highest(parts / 2, parts), unit: 'MB' })
  process.stdout.write(`      resident MB: ${residentMb.map((each) => each.toFixed(0)).join(' ')}\n`)
}

// A client that is killed at any step between choosing the key and having used the answer, and started again, over a network that loses
// requests and replies: against the provider of the payments example, and against its backend on PostgreSQL. The provider's own ledger
// judges: one charge for each order. 30 kills of the one and 20 of the other, and 500 of each with ONCEONLY_LONG=1.

import { spawn } from 'node:child_process'
import { once as heard } from 'node:events'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { describe, expect, test } from 'vitest'
import { startNetwork } from '../../examples/payments/network.ts'
import { seededRandom } from '../../src/testing/seeded-random.ts'
import { freshSeed } from '../fresh-seed.ts'
import { isLong, tellRun } from '../long-run.ts'
import { copyExample } from '../operations/examples.ts'
import { startFaultProxy } from '../servers/fault-proxy.ts'
import { needs } from '../servers/needs.ts'
import { startPostgres } from '../servers/postgres.ts'
import { killedAt } from './killed-at.ts'

interface Ground extends AsyncDisposable {
  readonly name: string
  /** Where orders are paid. */
  readonly url: string
  /** What the provider has done, a line each. */
  readonly ledger: string
  /** The network loses the next request, or the reply to it. */
  lose(what: 'request' | 'reply', happens: () => void): void
  /** How many orders the backend has, if there is one. */
  ordersOf?(order: string): Promise<number>
}

/** A program that prints its port. */
async function start(stack: AsyncDisposableStack, args: readonly string[], env = {}): Promise<string> {
  const child = spawn(process.execPath, args, {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, NODE_OPTIONS: '', NODE_NO_WARNINGS: '1', ...env },
  })
  stack.defer(() => void child.kill('SIGKILL'))
  const [port] = (await heard(child.stdout, 'data')) as [Buffer]
  return `http://127.0.0.1:${port.toString().trim()}`
}

function folderOf(stack: AsyncDisposableStack, folder = mkdtempSync(join(tmpdir(), 'onceonly-kills-'))): string {
  stack.defer(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}

const examples = join(import.meta.dirname, '../../examples/payments')

/** The provider, behind the example's own network. */
async function startProvider(): Promise<Ground> {
  await using stack = new AsyncDisposableStack()
  const ledger = join(folderOf(stack), 'ledger')
  const provider = await start(stack, [join(examples, 'provider.ts'), ledger])
  const network = await startNetwork(() => provider)
  stack.defer(() => network.close())
  const all = stack.move()
  return {
    name: 'client and provider',
    url: `${network.url}/charges`,
    ledger,
    lose: (what, happens) =>
      network.next('/charges', what === 'reply' ? 'lose the response' : 'lose the request', happens),
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  }
}

/** The backend, which keeps its keys in PostgreSQL and pays at the provider, behind a proxy that cuts connections. */
async function startBackend(): Promise<Ground> {
  await using stack = new AsyncDisposableStack()
  const ledger = join(folderOf(stack), 'ledger')
  const server = await startPostgres()
  stack.defer(() => server.stop())
  const connectionString = await server.createDatabase()
  const copied = folderOf(stack, copyExample('payments'))
  const provider = await start(stack, [join(copied, 'provider.ts'), ledger])
  const env = { DATABASE_URL: connectionString, PROVIDER_URL: provider }
  const backend = await start(stack, [join(copied, 'backend.ts')], env)
  const proxy = stack.use(await startFaultProxy({ target: { url: backend } }))
  const pool = new pg.Pool({ connectionString, max: 1 })
  stack.defer(() => pool.end())
  const all = stack.move()
  return {
    name: 'client and backend',
    url: new URL('/payments', proxy.url).href,
    ledger,
    lose: (direction, happens) => void proxy.cutAt({ direction, side: 'before' }).happened.then(happens),
    async ordersOf(order) {
      const { rowCount } = await pool.query('select from orders where "order" = $1', [order])
      return rowCount ?? 0
    },
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  }
}

const linesOf = (file: string): string[] => readFileSync(file, 'utf8').trim().split('\n')

/** A payment has fewer. What an earlier process left comes before it. */
const stepsMax = 18

async function killOften(ground: Ground, wanted: number): Promise<void> {
  await using stack = new AsyncDisposableStack()
  const folder = folderOf(stack)
  const [used, pending] = [join(folder, 'used'), join(folder, 'pending')]
  const seed = freshSeed('client kills') ?? 1
  const random = seededRandom(seed)
  const kills: string[] = []
  // One step after the other, from a random one on, so that a short run reaches as many kinds as a long one.
  const first = random.integer(0, stepsMax - 1)
  let [faults, orders] = [0, 0]
  while (kills.length < wanted) {
    if (random.chance(0.5)) ground.lose(random.chance(0.7) ? 'reply' : 'request', () => faults++)
    const lastStep = 1 + ((first + orders) % stepsMax)
    const where = await killedAt('paying.ts', [pending, ground.url, used, `order-${++orders}`, String(lastStep)])
    if (where !== undefined) kills.push(where)
  }
  expect(await killedAt('paying.ts', [pending, ground.url, used, '', '0'])).toBeUndefined()
  const done = linesOf(ground.ledger).map(
    (line) => JSON.parse(line) as { what: string; order: string; receipt: string },
  )
  const charged = done.filter(({ what }) => what === 'charge')
  const receipts = new Map(charged.map(({ order, receipt }) => [`pay:${order}`, receipt]))
  expect(charged.length, `seed ${seed}: an order was charged twice`).toBe(receipts.size)
  for (const { order } of ground.ordersOf ? charged : []) expect(await ground.ordersOf!(order), order).toBe(1)
  for (const line of linesOf(used)) {
    const [operation, receipt] = line.split(' ')
    expect(receipts.get(operation!), `seed ${seed}: ${line}`).toBe(receipt)
  }
  // Killed before its key was kept, an order was never begun. All others were charged, and their answers were used.
  const usedBy = new Set(linesOf(used).map((line) => line.split(' ')[0]))
  expect(usedBy).toEqual(new Set(receipts.keys()))
  expect(readdirSync(pending).filter((name) => name.endsWith('.json'))).toEqual([])
  const kinds = new Set(kills).size
  tellRun(
    ground.name,
    `${orders} orders, ${wanted} kills at ${kinds} kinds of steps, ${faults} requests or replies lost, ${charged.length} charges, seed ${seed}`,
  )
  // A run that reached too little proves nothing.
  expect(kinds).toBeGreaterThanOrEqual(6)
  expect(faults).toBeGreaterThan(wanted / 20)
}

function suite(startGround: () => Promise<Ground>, usual: number): void {
  const wanted = isLong ? 500 : usual
  const kills = async (): Promise<void> => {
    await using ground = await startGround()
    await killOften(ground, wanted)
  }
  test(`one charge for each order, over ${wanted} kills at any step`, kills, 60_000 + wanted * 5_000)
}

describe('the provider, behind a network that loses', () => suite(startProvider, 30))
needs('postgres').describe('the backend on PostgreSQL, behind a fault proxy', () => suite(startBackend, 20))

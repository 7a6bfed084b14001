// P8: what a request costs the server in CPU, against the bare framework and against the peers. Each variant is a server in a
// process of its own that is asked for its CPU time before and after a round; the load comes from this process, so it does not
// count. Fresh = a new key for each request; replay = a key that is settled. The handler's own count proves which it was.
// Two groups, one after the other in each round: Fastify with every peer that runs there, and Express with express-idempotency.

import { fork } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { once as onceEmitted } from 'node:events'
import { join } from 'node:path'
import { Pool } from 'undici'
import { newId } from '../src/core/key.ts'
import { redis } from '../test/servers/redis.ts'
import type { ServerOptions, Spent } from './processes/http.ts'
import { median, percentiles, ratioFrom } from './measure.ts'
import type { Ratio } from './measure.ts'
import { installPeers } from './peers.ts'
import { size } from './plan.ts'
import { report, reportVariants } from './report.ts'
import type { VariantRow } from './report.ts'
import { startRedis } from './servers.ts'

type Kind = 'fresh' | 'replay'
type Where = 'memory' | 'Redis'

const frameworks = ['Fastify', 'Express'] as const
type Framework = (typeof frameworks)[number]

interface Server {
  readonly name: string
  readonly framework: Framework
  /** Where it keeps what it remembers; the bare framework remembers nothing. */
  readonly where?: Where
  readonly child: ChildProcess
  readonly pool: Pool
  /** Keys that it has settled, for replays. */
  readonly settled: string[]
}

interface Cost {
  /** Of the server, a request; one figure a round. */
  readonly cpuUs: number[]
  /** As the client sees it, every request. */
  readonly durationsMs: number[]
}

type Costs = ReadonlyMap<Server, Cost>

// Over all servers of a group: some ten for each on Fastify, some twenty on Express.
const concurrency = 64
const requestsARound = (): number => size(2_000, 1_000)
// Compiling counts as CPU of the server, too. On memory the figures stop falling after some 15,000 requests, on Redis, where a batch serves several of
// them, after some 50,000.
const warmUpRounds = (): number => size(30, 16)
const rounds = (): number => size(11, 5)
const settledKeys = 1_000
const aims: Readonly<Record<Where, Readonly<Record<Kind, number>>>> = {
  memory: { fresh: 1.4, replay: 1.4 },
  Redis: { fresh: 1.7, replay: 1.7 },
}

const items = Array.from({ length: 12 }, (_, at) => ({
  sku: `sku-${10_000 + at}`,
  name: `item ${at}`,
  cents: 1_000 + at,
}))
const order = { order: 'ord_01HZX3J5T9Q8W7E6R5T4Y3U2I1', customer: 'cus_4711', currency: 'EUR', items, note: '' }
// Filled up to 1 KB of JSON.
const body = JSON.stringify({ ...order, note: 'n'.repeat(1_024 - JSON.stringify(order).length) })

export async function benchHttp(): Promise<void> {
  const peers = installPeers()
  const found = redis.find()
  if (!found.found) say(`Redis is left out: ${found.reason}; cure: ${found.cure}`)
  const config = { appendonly: 'yes', appendfsync: 'everysec' }
  const database = found.found ? await startRedis(found.ours ? { config } : {}) : undefined
  const servers: Server[] = []
  try {
    for (const variant of variants(peers)) {
      const redisUrl = variant.where === 'Redis' ? database?.url : undefined
      if (variant.where === 'Redis' && redisUrl === undefined) continue
      servers.push(
        await startServer(variant, { library: variant.library, ...(redisUrl !== undefined && { redisUrl }) }),
      )
    }
    for (const kind of ['fresh', 'replay'] as const) reportCosts(kind, await measure(kind, servers))
  } finally {
    for (const { pool, child } of servers) {
      await pool.destroy()
      child.kill()
    }
    await database?.stop()
  }
}

interface Variant extends Pick<Server, 'name' | 'framework' | 'where'> {
  readonly library: ServerOptions['library']
}

function variants(peers: 'installed' | 'missing'): Variant[] {
  const all: (Variant & { readonly isPeer?: true })[] = [
    { name: 'bare Fastify', framework: 'Fastify', library: 'bare' },
    { name: 'onceonly', framework: 'Fastify', where: 'memory', library: 'onceonly' },
    { name: 'onceonly', framework: 'Fastify', where: 'Redis', library: 'onceonly' },
    { name: 'node-idempotency', framework: 'Fastify', where: 'memory', library: 'node-idempotency', isPeer: true },
    { name: 'node-idempotency', framework: 'Fastify', where: 'Redis', library: 'node-idempotency', isPeer: true },
    { name: 'Powertools', framework: 'Fastify', where: 'Redis', library: 'powertools', isPeer: true },
    { name: 'bare Express', framework: 'Express', library: 'bare-express' },
    { name: 'onceonly', framework: 'Express', where: 'memory', library: 'onceonly-express' },
    {
      name: 'express-idempotency',
      framework: 'Express',
      where: 'memory',
      library: 'express-idempotency',
      isPeer: true,
    },
  ]
  return all.filter(({ isPeer }) => !isPeer || peers === 'installed')
}

async function startServer({ name, framework, where }: Variant, options: ServerOptions): Promise<Server> {
  const child = fork(join(import.meta.dirname, 'processes', 'http.ts'), [JSON.stringify(options)])
  const port = (await answerOf(child)) as number
  const pool = new Pool(`http://127.0.0.1:${port}`, { connections: concurrency })
  return { name, framework, ...(where && { where }), child, pool, settled: [] }
}

async function answerOf(child: ChildProcess): Promise<unknown> {
  const over = new AbortController()
  const { signal } = over
  const ended = onceEmitted(child, 'exit', { signal }).then(([code]) => {
    throw new Error(`a server of the bench ended with ${code}`)
  })
  try {
    const [answer] = (await Promise.race([onceEmitted(child, 'message', { signal }), ended])) as unknown[]
    return answer
  } finally {
    over.abort()
    ended.catch(() => {})
  }
}

async function measure(kind: Kind, servers: readonly Server[]): Promise<Costs> {
  const costs: Costs = new Map(servers.map((server) => [server, { cpuUs: [], durationsMs: [] }]))
  const groups = frameworks.map((framework) => servers.filter((server) => server.framework === framework))
  for (let count = -warmUpRounds(); count < rounds(); count++) {
    for (const group of count % 2 === 0 ? groups : groups.toReversed()) {
      await measureGroup(kind, group, count < 0 ? undefined : costs)
    }
  }
  return costs
}

// One framework at a time. A slow peer holds nearly all callers of its group, and its neighbours are then asked one request at a
// time: each pays for being woken up. A replay of express-idempotency takes 3 ms of processor time, and made bare Fastify in the same
// group cost twice as much. On Express it still does that to bare Express and to us: compare replays there within their table only.
async function measureGroup(kind: Kind, group: readonly Server[], costs: Costs | undefined): Promise<void> {
  const before = await Promise.all(group.map(spentBy))
  await load(kind, group, costs)
  const after = await Promise.all(group.map(spentBy))
  for (const [at, server] of group.entries()) {
    checkHandled(kind, server, after[at]!.handled - before[at]!.handled)
    const cost = (after[at]!.cpuMicroseconds - before[at]!.cpuMicroseconds) / requestsARound()
    costs?.get(server)!.cpuUs.push(cost)
  }
}

// All servers of a group in turn, request by request: each sees the same arrivals from the same client in the same moment. One after
// the other, a server that is faster than the client would save the cost of waking it up with every answer.
async function load(kind: Kind, servers: readonly Server[], costs: Costs | undefined): Promise<void> {
  let started = 0
  const worker = async (): Promise<void> => {
    for (let index = started++; index < requestsARound(); index = started++) {
      for (let turn = 0; turn < servers.length; turn++) {
        const server = servers[(index + turn) % servers.length]!
        const key = kind === 'fresh' ? newId() : server.settled[index % server.settled.length]!
        const beganMs = performance.now()
        await ask(server, key)
        costs?.get(server)!.durationsMs.push(performance.now() - beganMs)
        if (server.settled.length < settledKeys) server.settled.push(key)
      }
    }
  }
  await Promise.all(Array.from({ length: concurrency }, worker))
}

function checkHandled(kind: Kind, { name, where }: Server, handled: number): void {
  const expected = kind === 'fresh' || !where ? requestsARound() : 0
  if (handled === expected) return
  throw new Error(`${name}, ${where}, ${kind}: the handler ran ${handled} times instead of ${expected}`)
}

async function ask({ name, pool }: Server, key: string): Promise<void> {
  const headers = { 'content-type': 'application/json', 'idempotency-key': key }
  const response = await pool.request({ path: '/payments', method: 'POST', headers, body })
  const { length } = await response.body.text()
  if (response.statusCode !== 200 || length !== 300) {
    throw new Error(`${name} answered ${response.statusCode} with ${length} characters`)
  }
}

async function spentBy({ child }: Server): Promise<Spent> {
  const answer = answerOf(child)
  child.send('spent')
  return (await answer) as Spent
}

const cells: readonly (readonly [Framework, Where])[] = [
  ['Fastify', 'memory'],
  ['Fastify', 'Redis'],
  ['Express', 'memory'],
]

function reportCosts(kind: Kind, costs: Costs): void {
  for (const [framework, where] of cells) {
    const all = [...costs.keys()].filter((server) => server.framework === framework)
    const bare = all.find((server) => server.where === undefined)!
    const [ours, ...peers] = all.filter((server) => server.where === where)
    if (!ours) continue
    const what = `HTTP ${kind}${framework === 'Fastify' ? '' : ` on ${framework}`}, ${where}: CPU`
    // Bare Fastify is what was aimed at. Express is shown: it costs more itself, and the ratio is smaller.
    const aim = framework === 'Fastify' ? { atMost: aims[where][kind] } : {}
    report({ id: 'P8', what: `${what} / ${bare.name}`, ...ratio(costs, ours, bare), ...aim })
    for (const peer of peers) {
      report({ id: 'P8', what: `${what} / ${peer.name}`, ...ratio(costs, ours, peer), atMost: 1 })
    }
    for (const peer of peers) {
      report({ id: 'P8', what: `${what}, ${peer.name} / ${bare.name}`, ...ratio(costs, peer, bare) })
    }
    reportVariants(
      what.slice(0, what.indexOf(': ')),
      [bare, ours, ...peers].map((server) => rowOf(server, costs.get(server)!)),
    )
  }
}

function rowOf({ name }: Server, { cpuUs, durationsMs }: Cost): VariantRow {
  return { name, ...percentiles(durationsMs), clientCpuUs: median(cpuUs) }
}

/** Over the rounds, each compared with its own. */
function ratio(costs: Costs, server: Server, base: Server): Ratio {
  const bases = costs.get(base)!.cpuUs
  return ratioFrom(costs.get(server)!.cpuUs.map((cost, at) => cost / bases[at]!))
}

function say(line: string): void {
  process.stdout.write(`${line}\n`)
}

// P8: what a request costs the server in CPU, against the bare framework and against the peers. Each variant is a server in a
// process of its own that is asked for its CPU time before and after a round; the load comes from this process, so it does not
// count. Fresh = a new key for each request; replay = a key that is settled. The handler's own count proves which it was.

import { fork } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { once as onceEmitted } from 'node:events'
import { join } from 'node:path'
import { Pool } from 'undici'
import { newId } from '../src/core/key.ts'
import { redis, startRedis } from '../test/servers/redis.ts'
import type { ServerOptions, Spent } from './processes/http.ts'
import { median } from './measure.ts'
import { installPeers } from './peers.ts'
import { report } from './report.ts'

type Kind = 'fresh' | 'replay'
type Where = 'memory' | 'Redis'

interface Server {
  readonly name: string
  /** Where it keeps what it remembers; the bare framework remembers nothing. */
  readonly where?: Where
  readonly child: ChildProcess
  readonly pool: Pool
  /** Keys that it has settled, for replays. */
  readonly settled: string[]
}

/** CPU a request of each server, one figure a round. */
type Costs = ReadonlyMap<Server, number[]>

// Over all servers: some ten for each.
const concurrency = 64
const requestsARound = 2_000
// Compiling counts as CPU of the server, too: the figures stop falling after some 20,000 requests.
const warmUpRounds = 12
const rounds = 11
const settledKeys = 1_000
const aims: Readonly<Record<Where, Readonly<Record<Kind, number>>>> = {
  memory: { fresh: 1.1, replay: 1.1 },
  Redis: { fresh: 1.25, replay: 1.1 },
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
    for (const [name, where, library] of variants(peers)) {
      if (where !== 'Redis') servers.push(await startServer(name, where, { library }))
      else if (database) servers.push(await startServer(name, where, { library, redisUrl: database.url }))
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

function variants(peers: 'installed' | 'missing'): [string, Where | undefined, ServerOptions['library']][] {
  const ours: ReturnType<typeof variants> = [
    ['bare Fastify', undefined, 'bare'],
    ['onceonly', 'memory', 'onceonly'],
    ['onceonly', 'Redis', 'onceonly'],
  ]
  if (peers === 'missing') return ours
  return [
    ...ours,
    ['node-idempotency', 'memory', 'node-idempotency'],
    ['node-idempotency', 'Redis', 'node-idempotency'],
    ['Powertools', 'Redis', 'powertools'],
  ]
}

async function startServer(name: string, where: Where | undefined, options: ServerOptions): Promise<Server> {
  const child = fork(join(import.meta.dirname, 'processes', 'http.ts'), [JSON.stringify(options)])
  const port = (await answerOf(child)) as number
  const pool = new Pool(`http://127.0.0.1:${port}`, { connections: concurrency })
  return { name, ...(where && { where }), child, pool, settled: [] }
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
  const costs = new Map(servers.map((server) => [server, [] as number[]]))
  for (let count = -warmUpRounds; count < rounds; count++) {
    const before = await Promise.all(servers.map(spentBy))
    await load(kind, servers)
    const after = await Promise.all(servers.map(spentBy))
    for (const [at, server] of servers.entries()) {
      checkHandled(kind, server, after[at]!.handled - before[at]!.handled)
      const cost = (after[at]!.cpuMicroseconds - before[at]!.cpuMicroseconds) / requestsARound
      if (count >= 0) costs.get(server)!.push(cost)
    }
  }
  return costs
}

// All servers in turn, request by request: each sees the same arrivals from the same client in the same moment. One after the
// other, a server that is faster than the client would save the cost of waking it up with every answer.
async function load(kind: Kind, servers: readonly Server[]): Promise<void> {
  let started = 0
  const worker = async (): Promise<void> => {
    for (let index = started++; index < requestsARound; index = started++) {
      for (let turn = 0; turn < servers.length; turn++) {
        const server = servers[(index + turn) % servers.length]!
        const key = kind === 'fresh' ? newId() : server.settled[index % server.settled.length]!
        await ask(server, key)
        if (server.settled.length < settledKeys) server.settled.push(key)
      }
    }
  }
  await Promise.all(Array.from({ length: concurrency }, worker))
}

function checkHandled(kind: Kind, { name, where }: Server, handled: number): void {
  const expected = kind === 'fresh' || !where ? requestsARound : 0
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

function reportCosts(kind: Kind, costs: Costs): void {
  const [bare, ...others] = costs.keys()
  for (const where of ['memory', 'Redis'] as const) {
    const here = others.filter((server) => server.where === where)
    const ours = here.find(({ name }) => name === 'onceonly')
    if (!ours) continue
    const what = `HTTP ${kind}, ${where}: CPU`
    report({ id: 'P8', what: `${what} / bare Fastify`, measured: ratio(costs, ours, bare!), atMost: aims[where][kind] })
    for (const peer of here.filter((server) => server !== ours)) {
      report({ id: 'P8', what: `${what} / ${peer.name}`, measured: ratio(costs, ours, peer), atMost: 1 })
    }
    for (const peer of here.filter((server) => server !== ours)) {
      report({ id: 'P8', what: `${what}, ${peer.name} / bare Fastify`, measured: ratio(costs, peer, bare!) })
    }
    const shown = [bare!, ...here].map((server) => {
      const against = server === bare ? '' : ` (${ratio(costs, server, bare!).toFixed(2)}×)`
      return `${server.name} ${median(costs.get(server)!).toFixed(0)} µs${against}`
    })
    say(`      ${shown.join('; ')}`)
  }
}

/** The median over the rounds, each compared with its own. */
function ratio(costs: Costs, server: Server, base: Server): number {
  return median(costs.get(server)!.map((cost, at) => cost / costs.get(base)![at]!))
}

function say(line: string): void {
  process.stdout.write(`${line}\n`)
}

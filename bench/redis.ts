// P4: Redis and Valkey against what a careful engineer writes by hand (SET NX PX to take the key, GET to see whether it is still held,
// SET to keep the outcome: three round trips), and against node-idempotency's core and Powertools, which have no fence. All on one server,
// each through one connection. Fresh = claim + settle of a no-op effect with a 300-byte outcome; replay = a second ask.

import { createClient } from 'redis'
import { newId } from '../src/core/key.ts'
import { createOnce } from '../src/core/once.ts'
import { redisStore } from '../src/stores/redis.ts'
import { redis } from '../test/servers/redis.ts'
import { redisCommand, redisInfo } from '../test/servers/redis/command.ts'
import { otherRedis, redisPlace, redisVariable } from '../test/servers/redis/programs.ts'
import { compareAll, ratioIn } from './measure.ts'
import type { ComparedAll, Ratio, Variant } from './measure.ts'
import { installPeers } from './peers.ts'
import { report, reportComparison } from './report.ts'
import { startRedis } from './servers.ts'

/** One library or way of doing it: an effect with a new key, or with one that it has settled. */
interface Way {
  readonly name: string
  ask(id: string): Promise<'ran' | 'replayed'>
  close(): Promise<void>
}

interface Load {
  readonly concurrency: number
  readonly operations: number
}

const outcome = { receipt: 'x'.repeat(280) }
const leaseMs = 30_000
const keepMs = 24 * 3_600_000
const settledKeys = 1_000
const loads: readonly Load[] = [
  { concurrency: 256, operations: 15_000 },
  { concurrency: 64, operations: 10_000 },
  { concurrency: 1, operations: 2_000 },
]

// No snapshot and no rewriting of the append-only file in the middle of a round: it would be that round's.
const config = { appendonly: 'yes', appendfsync: 'everysec', save: '', 'auto-aof-rewrite-percentage': 0 }

export async function benchRedis(): Promise<void> {
  const found = redis.find()
  if (!found.found) return say(`Redis is left out: ${found.reason}; cure: ${found.cure}`)
  await onServer(found.ours)
  if (!found.ours || process.env[redisVariable] !== undefined) return
  // Those that `npm run test:versions` has brought.
  for (const name of Object.keys(otherRedis)) {
    process.env[redisVariable] = name
    try {
      if (redisPlace() !== undefined) await onServer(true)
    } finally {
      delete process.env[redisVariable]
    }
  }
}

async function onServer(isOurs: boolean): Promise<void> {
  const server = await startRedis(isOurs ? { config } : {})
  const ways: Way[] = []
  try {
    const name = await nameOf(server.url)
    ways.push(await openNaive(server.url))
    if (installPeers() === 'installed') {
      ways.push(await openNodeIdempotency(server.url), await openPowertools(server.url))
    }
    ways.push(await openOnce(server.url))
    for (const kind of ['fresh', 'replay'] as const) await sideBySide(name, kind, ways, await hasIfeq(server.url))
  } finally {
    for (const way of ways) await way.close()
    await server.stop()
  }
}

async function nameOf(url: string): Promise<string> {
  const info = await redisInfo(url)
  const [, valkey] = /valkey_version:(\d+\.\d+)/.exec(info) ?? []
  const [, version] = /redis_version:(\d+\.\d+)/.exec(info) ?? []
  return valkey === undefined ? `Redis ${version}` : `Valkey ${valkey}`
}

async function hasIfeq(url: string): Promise<boolean> {
  const probe = redisCommand(url, 'SET', 'bench:probe', 'a', 'IFEQ', 'b')
  return probe.then(
    () => true,
    () => false,
  )
}

async function sideBySide(
  server: string,
  kind: 'fresh' | 'replay',
  ways: readonly Way[],
  ifeq: boolean,
): Promise<void> {
  const variants: Variant[] = []
  for (const way of ways) variants.push(await variantOf(way, kind))
  for (const load of loads) {
    const title = `${server} ${kind}, c=${load.concurrency}`
    const compared = await compareAll(variants, { ...load, rounds: 7 })
    for (const other of compared.names.filter((name) => name !== 'onceonly')) {
      const what = `${title}: throughput against ${other}`
      report({ id: 'P4', what, ...against(compared, other), ...aimOf(kind, other, ifeq) })
    }
    reportComparison(title, compared)
    const calls = compared.serverCalls.get('onceonly')
    if (kind === 'replay' && load.concurrency === 1 && calls !== undefined)
      report({ id: 'P4', what: `${title}: commands of one call`, measured: calls, atMost: 1.01 })
  }
}

function against(compared: ComparedAll, other: string): Ratio {
  return ratioIn(compared, 'perSecond', 'onceonly', other)
}

function aimOf(kind: 'fresh' | 'replay', other: string, ifeq: boolean): { readonly atLeast?: number } {
  if (kind === 'replay') return other === 'node-idempotency' ? { atLeast: 1.1 } : {}
  if (other === 'node-idempotency') return { atLeast: ifeq ? 1 : 0.8 }
  return { atLeast: 1 }
}

async function openOnce(url: string): Promise<Way> {
  const client = await createClient({ url }).connect()
  const once = createOnce({ store: redisStore({ client }), scope: 'bench' })
  return {
    name: 'onceonly',
    ask: async (id) => {
      const { replayed } = await once.run(id, () => outcome, { fingerprint: 'bench' })
      return replayed ? 'replayed' : 'ran'
    },
    async close() {
      await once.close()
      client.destroy()
    },
  }
}

async function openNaive(url: string): Promise<Way> {
  const client = await createClient({ url }).connect()
  return {
    name: 'naive',
    async ask(id) {
      const name = `naive:bench:${id}`
      const running = JSON.stringify({ state: 'running', token: crypto.randomUUID(), fingerprint: 'bench' })
      if ((await client.set(name, running, { NX: true, PX: leaseMs })) === null) {
        const found = JSON.parse((await client.get(name))!) as { state: string; fingerprint: string }
        if (found.state === 'settled' && found.fingerprint === 'bench') return 'replayed'
        throw new Error('neither run nor settled')
      }
      if ((await client.get(name)) !== running) throw new Error('the lease was lost')
      const settled = JSON.stringify({ state: 'settled', fingerprint: 'bench', outcome })
      await client.set(name, settled, { PX: keepMs })
      return 'ran'
    },
    close: async () => client.destroy(),
  }
}

// Installed on demand, and therefore not known by name.
interface NodeIdempotency {
  readonly Idempotency: new (storage: unknown) => {
    onRequest(request: object): Promise<object | undefined>
    onResponse(request: object, response: object): Promise<void>
  }
  readonly RedisStorageAdapter: new (options: { url: string }) => {
    connect(): Promise<void>
    disconnect(): Promise<void>
  }
}

async function openNodeIdempotency(url: string): Promise<Way> {
  const load = async (name: string): Promise<NodeIdempotency> => (await import(name)) as NodeIdempotency
  const { RedisStorageAdapter } = await load('@node-idempotency/storage-adapter-redis')
  const storage = new RedisStorageAdapter({ url })
  await storage.connect()
  const core = new (await load('@node-idempotency/core')).Idempotency(storage)
  return {
    name: 'node-idempotency',
    async ask(id) {
      const request = { method: 'POST', path: '/bench', body: 'bench', headers: { 'idempotency-key': id } }
      if (await core.onRequest(request)) return 'replayed'
      await core.onResponse(request, { body: outcome })
      return 'ran'
    },
    close: () => storage.disconnect(),
  }
}

interface Powertools {
  readonly IdempotencyConfig: new (options: object) => unknown
  readonly makeIdempotent: <In, Out>(work: (asked: In) => Promise<Out>, how: object) => (asked: In) => Promise<Out>
  readonly CachePersistenceLayer: new (options: { client: unknown }) => unknown
}

async function openPowertools(url: string): Promise<Way> {
  const load = async (name: string): Promise<Powertools> => (await import(name)) as Powertools
  const { IdempotencyConfig, makeIdempotent } = await load('@aws-lambda-powertools/idempotency')
  const { CachePersistenceLayer } = await load('@aws-lambda-powertools/idempotency/cache')
  const client = await createClient({ url }).connect()
  const ran = new Set<string>()
  const run = async ({ key }: { readonly key: string }): Promise<object> => {
    ran.add(key)
    return outcome
  }
  const runOnce = makeIdempotent(run, {
    persistenceStore: new CachePersistenceLayer({ client }),
    // Without a context it writes a warning for every call.
    config: new IdempotencyConfig({
      eventKeyJmesPath: 'key',
      lambdaContext: { getRemainingTimeInMillis: () => leaseMs },
    }),
  })
  return {
    name: 'Powertools',
    async ask(id) {
      await runOnce({ key: id })
      return ran.delete(id) ? 'ran' : 'replayed'
    },
    close: async () => client.destroy(),
  }
}

async function variantOf({ name, ask }: Way, kind: 'fresh' | 'replay'): Promise<Variant> {
  const settled = Array.from({ length: kind === 'fresh' ? 0 : settledKeys }, () => newId())
  for (const id of settled) await ask(id)
  const expected = kind === 'fresh' ? 'ran' : 'replayed'
  return {
    name,
    async work(index) {
      const did = await ask(settled[index % settled.length] ?? newId())
      if (did !== expected) throw new Error(`${name}: expected a key to be ${expected}, but it was ${did}`)
    },
  }
}

function say(line: string): void {
  process.stdout.write(`${line}\n`)
}

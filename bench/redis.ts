// P4: Redis against what a careful engineer writes by hand (SET NX PX to take the key, GET to see whether it is still held,
// SET to keep the outcome: three round trips), and against node-idempotency's core, which has no fence. All on one server and
// through one connection each. Fresh = claim + settle of a no-op effect with a 300-byte outcome; replay = a second ask.

import { createClient } from 'redis'
import { newId } from '../src/core/key.ts'
import { createOnce } from '../src/core/once.ts'
import { redisStore } from '../src/stores/redis.ts'
import { redis, startRedis } from '../test/servers/redis.ts'
import { compare } from './measure.ts'
import type { Variant } from './measure.ts'
import { installPeers } from './peers.ts'
import { report, reportRates } from './report.ts'

/** One library or way of doing it: an effect with a new key, or with one that it has settled. */
interface Way {
  readonly name: string
  ask(id: string): Promise<'ran' | 'replayed'>
  close(): Promise<void>
}

interface Aim {
  readonly concurrency: number
  readonly operations: number
  readonly fresh?: number
  readonly replay?: number
}

const outcome = { receipt: 'x'.repeat(280) }
const leaseMs = 30_000
const keepMs = 24 * 3_600_000
const settledKeys = 1_000
// One at a time nothing can be shared: that is shown, and nothing is aimed at.
const alone = { concurrency: 1, operations: 2_000 }
const loads = [
  { concurrency: 256, operations: 20_000 },
  { concurrency: 64, operations: 15_000 },
] as const

// No snapshot and no rewriting of the append-only file in the middle of a round: it would be that round's.
const config = { appendonly: 'yes', appendfsync: 'everysec', save: '', 'auto-aof-rewrite-percentage': 0 }

export async function benchRedis(): Promise<void> {
  const found = redis.find()
  if (!found.found) return say(`Redis is left out: ${found.reason}; cure: ${found.cure}`)
  const server = await startRedis(found.ours ? { config } : {})
  const ways: Way[] = []
  try {
    const ours = await openOnce(server.url)
    const naive = await openNaive(server.url)
    ways.push(ours, naive)
    const [high, middle] = loads
    await beside(naive, ours, [{ ...high, replay: 3 }, middle, alone])
    if (installPeers() === 'missing') return
    const peer = await openNodeIdempotency(server.url)
    ways.push(peer)
    await beside(peer, ours, [{ ...high, fresh: 1 }, { ...middle, fresh: 1 }, alone])
  } finally {
    for (const way of ways) await way.close()
    await server.stop()
  }
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

async function beside(other: Way, ours: Way, aims: readonly Aim[]): Promise<void> {
  for (const kind of ['fresh', 'replay'] as const) {
    const variants = [await variantOf(other, kind), await variantOf(ours, kind)] as const
    for (const aim of aims) {
      const compared = await compare(variants, { rounds: 7, ...aim })
      const atLeast = aim[kind]
      const what = `Redis ${kind}, c=${aim.concurrency}: throughput against ${other.name}`
      report({ id: 'P4', what, measured: compared.throughput, ...(atLeast !== undefined && { atLeast }) })
      reportRates([other.name, ours.name], compared)
    }
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

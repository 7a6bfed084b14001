// What nothing can beat on this machine, one at a time: a write that is on the disk, a round trip to each server, a commit, and a Map in
// memory. A figure of any target is read beside these.

import { closeSync, fdatasyncSync, mkdtempSync, openSync, rmSync, writeSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { createClient } from 'redis'
import { newId } from '../src/core/key.ts'
import { redis } from '../test/servers/redis.ts'
import { compareAll, median, medianOf, quantile } from './measure.ts'
import type { ComparedAll, Variant } from './measure.ts'
import { size } from './plan.ts'
import { report, reportComparison } from './report.ts'
import { startPostgres, startRedis } from './servers.ts'

const entry = { receipt: 'x'.repeat(280) }
// What a small commit writes.
const page = Buffer.alloc(4_096, 'x')

export async function benchLimits(): Promise<void> {
  const closing: (() => Promise<unknown>)[] = []
  try {
    const variants = [oneFsync(closing), ...(await onPostgres(closing)), ...(await onRedis(closing))]
    const compared = await compareAll(variants, { concurrency: 1, operations: 400, rounds: 7 })
    for (const { name } of variants)
      report({ id: 'limits', what: `${name}, one at a time: p50`, ...p50Of(compared, name) })
    inMemory()
    reportComparison('Limits', compared)
  } finally {
    for (const close of closing.toReversed()) await close()
  }
}

function p50Of(compared: ComparedAll, name: string): { measured: number; spread: [number, number]; unit: 'µs' } {
  const all = compared.rounds.map((each) => each.get(name)!.p50Ms * 1_000)
  const measured = medianOf(compared, 'p50Ms', name) * 1_000
  return { measured, spread: [quantile(all, 0.25), quantile(all, 0.75)], unit: 'µs' }
}

function oneFsync(closing: (() => Promise<unknown>)[]): Variant {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-bench-'))
  const file = openSync(join(folder, 'log'), 'a')
  closing.push(async () => {
    closeSync(file)
    rmSync(folder, { recursive: true })
  })
  return {
    name: '4 KB on the disk (write, fdatasync)',
    async work() {
      writeSync(file, page)
      fdatasyncSync(file)
    },
  }
}

async function onPostgres(closing: (() => Promise<unknown>)[]): Promise<Variant[]> {
  const server = await startPostgres()
  closing.push(() => server.stop())
  const client = new pg.Client({ connectionString: await server.createDatabase() })
  await client.connect()
  closing.push(() => client.end())
  await client.query('create table committed (id text)')
  const insert = 'insert into committed values ($1)'
  return [
    { name: 'PostgreSQL, one round trip', work: () => client.query({ name: 'one', text: 'select 1' }) },
    {
      name: 'PostgreSQL, one row committed',
      work: () => client.query({ name: 'row', text: insert, values: [newId()] }),
    },
  ]
}

async function onRedis(closing: (() => Promise<unknown>)[]): Promise<Variant[]> {
  if (!redis.find().found) return []
  const server = await startRedis()
  closing.push(() => server.stop())
  const client = await createClient({ url: server.url }).connect()
  closing.push(async () => client.destroy())
  return [{ name: 'Redis, one round trip', work: () => client.ping() }]
}

/** Keys are new, as they are for claims: the map grows. */
function inMemory(): void {
  const count = size(300_000, 100_000)
  const rounds = Array.from({ length: 7 }, () => {
    const ids = Array.from({ length: count }, () => newId())
    const map = new Map<string, object>()
    const beganMs = performance.now()
    for (const id of ids) if (map.get(id) === undefined) map.set(id, entry)
    return ((performance.now() - beganMs) / count) * 1_000
  })
  const spread = [quantile(rounds, 0.25), quantile(rounds, 0.75)] as const
  report({ id: 'limits', what: 'A Map: look for a new key, then set it', measured: median(rounds), spread, unit: 'µs' })
}

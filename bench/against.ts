// npm run bench:against -- FOLDER: this checkout beside another one, in one process, on the same servers, interleaved. It tells
// whether a change made anything slower, on a machine whose absolute figures mean nothing. Above 1 this checkout needs more.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import fastify from 'fastify'
import type { FastifyInstance, FastifyPluginCallback } from 'fastify'
import pg from 'pg'
import { createClient } from 'redis'
import { startPostgres } from '../test/servers/postgres.ts'
import { startRedis } from '../test/servers/redis.ts'
import { compare } from './measure.ts'
import type { Comparison } from './measure.ts'

/** The slice that both checkouts have. Their types may differ in all else. */
interface Checkout {
  createOnce(options: object): OnceSlice
  memoryStore(options: object): object
  sqliteStore(options: object): { close(): void }
  redisStore(options: object): object
  postgresStore(options: object): { migrate(): Promise<void> }
  idempotency(once: OnceSlice, options: object): FastifyPluginCallback
}

interface OnceSlice {
  run(id: string, effect: () => unknown, options: object): Promise<unknown>
  transaction?(id: string, effect: (tx: pg.PoolClient) => unknown, options: object): Promise<unknown>
  close(): Promise<void>
}

type Pair<T> = readonly [other: T, own: T]

const outcome = { receipt: 'x'.repeat(280) }
const asked = { fingerprint: { cents: 500, to: 'ada' } }
const many: Comparison = { concurrency: 64, operations: 4_000, rounds: 9 }
const alone: Comparison = { concurrency: 1, operations: 600, rounds: 9 }

async function open(folder: string): Promise<Checkout> {
  const parts = ['core/once', 'http/fastify', 'stores/memory', 'stores/sqlite', 'stores/redis', 'stores/postgres']
  const load = async (part: string): Promise<object> =>
    (await import(pathToFileURL(join(resolve(folder), 'src', `${part}.ts`)).href)) as object
  return Object.assign({}, ...(await Promise.all(parts.map(load)))) as Checkout
}

async function pairOf<From, To>(
  [other, own]: Pair<From>,
  make: (from: From, which: 0 | 1) => To | Promise<To>,
): Promise<Pair<To>> {
  return [await make(other, 0), await make(own, 1)]
}

async function beside<Side>(
  what: string,
  [other, own]: Pair<Side>,
  comparison: Comparison,
  work: (side: Side, index: number) => Promise<unknown>,
): Promise<void> {
  const { cpu, p50, p99 } = await compare(
    [
      { name: 'other', work: (index) => work(other, index) },
      { name: 'own', work: (index) => work(own, index) },
    ],
    comparison,
  )
  const figures = `CPU ${cpu.toFixed(2)}×   p50 ${p50.toFixed(2)}×   p99 ${p99.toFixed(2)}×`
  process.stdout.write(`${`${what}, c=${comparison.concurrency}`.padEnd(36)} ${figures}\n`)
}

async function runs(what: string, onces: Pair<OnceSlice>): Promise<void> {
  for (const once of onces) await once.run('replay', () => outcome, asked)
  for (const load of [many, alone]) {
    await beside(`${what}, fresh`, onces, load, (once, index) => once.run(`fresh-${index}`, () => outcome, asked))
    await beside(`${what}, replay`, onces, load, (once) => once.run('replay', () => outcome, asked))
  }
}

async function onMemory(checkouts: Pair<Checkout>): Promise<void> {
  const openOnce = ({ createOnce, memoryStore }: Checkout): OnceSlice =>
    createOnce({ store: memoryStore({ entriesMax: 10_000_000 }), scope: 'bench' })
  const onces = await pairOf(checkouts, openOnce)
  await runs('memory', onces)
  const apps = await pairOf(checkouts, async (checkout) => {
    const app = fastify()
    await app.register(pluginOf(checkout, openOnce(checkout)))
    app.post('/payments', async () => outcome)
    return app
  })
  const post = (app: FastifyInstance, key: string): Promise<unknown> =>
    app.inject({ method: 'POST', url: '/payments', headers: { 'idempotency-key': key }, payload: asked.fingerprint })
  await beside('Fastify on memory, fresh', apps, many, (app, index) => post(app, `fresh-${index}`))
  for (const app of apps) await post(app, 'replay')
  await beside('Fastify on memory, replay', apps, many, (app) => post(app, 'replay'))
  for (const once of onces) await once.close()
}

/** The option was called `scope` once. */
function pluginOf({ idempotency }: Checkout, once: OnceSlice): FastifyPluginCallback {
  try {
    return idempotency(once, { tenant: 'shared' })
  } catch {
    return idempotency(once, { scope: () => 'shared' })
  }
}

async function onSqlite(checkouts: Pair<Checkout>): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-bench-'))
  const stores = await pairOf(checkouts, ({ sqliteStore }, which) => sqliteStore({ path: join(folder, `${which}.db`) }))
  const onces = await pairOf(checkouts, ({ createOnce }, which) => createOnce({ store: stores[which], scope: 'bench' }))
  await runs('SQLite', onces)
  for (const once of onces) await once.close()
  for (const store of stores) store.close()
  rmSync(folder, { recursive: true })
}

async function onRedis(checkouts: Pair<Checkout>): Promise<void> {
  const server = await startRedis({ config: { appendonly: 'yes', appendfsync: 'everysec', save: '' } })
  const clients = await pairOf(checkouts, () => createClient({ url: server.url }).connect())
  const onces = await pairOf(checkouts, ({ createOnce, redisStore }, which) =>
    createOnce({ store: redisStore({ client: clients[which], prefix: `bench-${which}` }), scope: 'bench' }),
  )
  await runs('Redis', onces)
  for (const once of onces) await once.close()
  for (const client of clients) client.destroy()
  await server.stop()
}

async function onPostgres(checkouts: Pair<Checkout>): Promise<void> {
  const server = await startPostgres()
  const pools = await pairOf(
    checkouts,
    async () => new pg.Pool({ connectionString: await server.createDatabase(), max: 20 }),
  )
  const onces = await pairOf(checkouts, async ({ createOnce, postgresStore }, which) => {
    const store = postgresStore({ pool: pools[which] })
    await store.migrate()
    await pools[which].query('create table effects (id text)')
    return createOnce({ store, scope: 'bench' })
  })
  await runs('PostgreSQL', onces)
  await beside('PostgreSQL, transaction', onces, alone, (once, index) =>
    once.transaction!(
      `transaction-${index}`,
      (tx) => tx.query('insert into effects values ($1)', [`${index}`]).then(() => outcome),
      asked,
    ),
  )
  for (const once of onces) await once.close()
  for (const pool of pools) await pool.end()
  await server.stop()
}

const parts: Readonly<Record<string, (checkouts: Pair<Checkout>) => Promise<void>>> = {
  memory: onMemory,
  sqlite: onSqlite,
  redis: onRedis,
  postgres: onPostgres,
}

const [folder, ...wanted] = process.argv.slice(2)
if (folder === undefined || wanted.some((name) => !Object.hasOwn(parts, name))) {
  process.stderr.write(`usage: npm run bench:against -- FOLDER [${Object.keys(parts).join('] [')}]\n`)
  process.exit(2)
}
const checkouts = [await open(folder), await open(join(import.meta.dirname, '..'))] as const
for (const [name, part] of Object.entries(parts)) {
  if (wanted.length === 0 || wanted.includes(name)) await part(checkouts)
}

// Every transaction that `within` takes can add to an outbox: what commits is delivered, and what is rolled back never is. Then the
// same through PgBouncer in transaction mode, where every transaction may get another session.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import Database from 'better-sqlite3'
import { drizzle as drizzleMysql } from 'drizzle-orm/mysql2'
import { drizzle as drizzlePg } from 'drizzle-orm/node-postgres'
import { drizzle as drizzlePostgresJs } from 'drizzle-orm/postgres-js'
import knex from 'knex'
import { CamelCasePlugin, Kysely, MysqlDialect, PostgresDialect } from 'kysely'
import mysqlWithCallbacks from 'mysql2'
import postgres from 'postgres'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createOutbox, createRelay, type Outbox } from '../../src/messages/outbox.ts'
import { mysqlStore } from '../../src/stores/mysql.ts'
import { postgresStore } from '../../src/stores/postgres.ts'
import { sqliteStore, type SqliteDatabase } from '../../src/stores/sqlite.ts'
import { startMariadb } from '../servers/mariadb.ts'
import { needs } from '../servers/needs.ts'
import { startPgbouncer } from '../servers/pgbouncer.ts'
import { type RunningPostgres, startPostgres } from '../servers/postgres.ts'
import { createPrismaClient } from '../servers/prisma.ts'
import { createPool as mysqlPool, inTransaction as inMysql } from '../subjects/mysql.ts'
import { createPool as postgresPool, inTransaction as inPostgres } from '../subjects/postgres.ts'
import { listBroker } from './outbox-ground.ts'

interface Library {
  readonly run: (work: (tx: never) => Promise<void>) => Promise<unknown>
  close(): Promise<unknown>
}

// Commits two transactions of a key, with one between them that is rolled back.
async function check<Tx>(outbox: Outbox<Tx>, { run, close }: Library): Promise<void> {
  const odd = String.raw`it's "quoted" \ ? ?? $1 :name {a,b} %s -- # ; ' 🙂`
  const ids: string[] = []
  const add = (tx: never, data: unknown) => outbox.add(tx, { topic: 'orders', key: odd, type: 'order.placed', data })
  await run(async (tx) => void ids.push(await add(tx, { odd })))
  const undone = run(async (tx) => {
    await add(tx, 'undone')
    throw new Error('undone')
  })
  await expect(undone).rejects.toThrow('undone')
  await run(async (tx) => {
    ids.push(await add(tx, 2))
    const others = [1, 2, 3].map((index) => ({ topic: 'mails', key: `mail-${index}`, type: 'mail', data: { index } }))
    await outbox.add(tx, [...others, { topic: 'mails', type: 'mail' }])
  })
  const broker = listBroker()
  await createRelay({ outbox, publisher: broker }).runOnce()
  await close()
  expect(broker.ofKey(odd)).toEqual(ids)
  expect(broker.arrived).toHaveLength(6)
  expect(Buffer.from(broker.arrived.find(({ id }) => id === ids[0])!.body).toString()).toBe(JSON.stringify({ odd }))
}

const postgresLibraries: Record<string, (url: string) => Library | Promise<Library>> = {
  pg(url) {
    const pool = postgresPool(url)
    return { run: (work) => inPostgres(pool, (tx) => work(tx as never)), close: () => pool.end() }
  },
  'postgres.js'(url) {
    const sql = postgres(url, { max: 2, onnotice: () => {} })
    return { run: (work) => sql.begin((tx) => work(tx as never)), close: () => sql.end() }
  },
  'Drizzle on pg'(url) {
    const pool = postgresPool(url)
    return { run: (work) => drizzlePg(pool).transaction((tx) => work(tx as never)), close: () => pool.end() }
  },
  'Drizzle on postgres.js'(url) {
    const sql = postgres(url, { max: 2, onnotice: () => {} })
    return { run: (work) => drizzlePostgresJs(sql).transaction((tx) => work(tx as never)), close: () => sql.end() }
  },
  Kysely(url) {
    const dialect = new PostgresDialect({ pool: postgresPool(url) })
    const kysely = new Kysely<object>({ dialect, plugins: [new CamelCasePlugin()] })
    return { run: (work) => kysely.transaction().execute((tx) => work(tx as never)), close: () => kysely.destroy() }
  },
  Knex(url) {
    const knexed = knex({ client: 'pg', connection: url })
    return { run: (work) => knexed.transaction((tx) => work(tx as never)), close: () => knexed.destroy() }
  },
}

needs('postgres', { ours: true }).describe('an outbox in transactions of PostgreSQL', () => {
  let server: RunningPostgres
  beforeAll(async () => {
    server = await startPostgres()
  })
  afterAll(() => server.stop())

  const checkOn = async (url: string, library: Library): Promise<void> => {
    const pool = postgresPool(url)
    const store = postgresStore({ pool })
    await store.migrate()
    const outbox = createOutbox({ store, source: 'shop' })
    await outbox.migrate()
    await check(outbox, library)
    await pool.end()
  }

  test.each(Object.keys(postgresLibraries))('%s', async (name) => {
    const url = await server.createDatabase()
    await checkOn(url, await postgresLibraries[name]!(url))
  })

  needs('prisma').test('Prisma', async () => {
    const url = await server.createDatabase()
    const prisma = await createPrismaClient(url)
    await checkOn(url, {
      run: (work) => prisma.$transaction((tx) => work(tx as never)),
      close: () => prisma.$disconnect(),
    })
  })

  needs('pgbouncer').test('pg through PgBouncer in transaction mode, outbox and relay alike', async () => {
    const bouncer = await startPgbouncer(server)
    const direct = await server.createDatabase()
    const url = `postgres://postgres@127.0.0.1:${bouncer.port}${new URL(direct).pathname}`
    await checkOn(url, await postgresLibraries['pg']!(url))
    await bouncer.stop()
  })

  test('a table of a long name in a schema of its own', async () => {
    const url = await server.createDatabase()
    const pool = postgresPool(url)
    const store = postgresStore({ pool, schema: 'shop', table: 'x'.repeat(48) })
    await store.migrate()
    const outbox = createOutbox({ store, source: 'shop' })
    await outbox.migrate()
    await outbox.migrate()
    await check(outbox, await postgresLibraries['pg']!(url))
    await pool.end()
  })

  test('tables that were copied without their sequence are mended by migrate, and no row is lost behind the cursors', async () => {
    const pool = postgresPool(await server.createDatabase())
    const store = postgresStore({ pool })
    await store.migrate()
    const outbox = createOutbox({ store, source: 'shop' })
    await outbox.migrate()
    const broker = listBroker()
    const add = (): Promise<string> =>
      inPostgres(pool, (tx) => outbox.add(tx, { topic: 'orders', key: 'order-1', type: 'order.placed' }))
    const ids = [await add(), await add()]
    await createRelay({ outbox, publisher: broker }).runOnce()
    await pool.query('alter sequence onceonly_outbox_position restart')
    await outbox.migrate()
    ids.push(await add())
    await createRelay({ outbox, publisher: broker }).runOnce()
    expect(broker.firsts()).toEqual(ids)
    await pool.end()
  })

  test.each(['repeatable read', 'serializable'])(
    'two transactions that are %s do not conflict in a lane',
    async (level) => {
      const url = await server.createDatabase()
      const pool = postgresPool(url)
      const store = postgresStore({ pool })
      await store.migrate()
      const outbox = createOutbox({ store, source: 'shop' })
      await outbox.migrate()
      const add = async (): Promise<void> => {
        const client = await pool.connect()
        await client.query(`begin isolation level ${level}`)
        // The snapshot is taken before the lock is waited for.
        await client.query('select 1')
        await outbox.add(client, { topic: 'orders', key: 'order-1', type: 'order.placed' })
        await client.query('commit')
        client.release()
      }
      await Promise.all(Array.from({ length: 6 }, add))
      const broker = listBroker()
      expect(await createRelay({ outbox, publisher: broker }).runOnce()).toMatchObject({ sent: 6 })
      await pool.end()
    },
  )
})

const mysqlLibraries: Record<string, (url: string) => Library> = {
  'mysql2/promise'(url) {
    const pool = mysqlPool(url)
    return { run: (work) => inMysql(pool, (tx) => work(tx as never)), close: () => pool.end() }
  },
  'mysql2 with callbacks'(url) {
    const pool = mysqlPool(url)
    return { run: (work) => inMysql(pool, (tx) => work(tx.connection as never)), close: () => pool.end() }
  },
  Drizzle(url) {
    const pool = mysqlPool(url)
    return { run: (work) => drizzleMysql(pool).transaction((tx) => work(tx as never)), close: () => pool.end() }
  },
  Kysely(url) {
    const dialect = new MysqlDialect({ pool: mysqlWithCallbacks.createPool({ uri: url }) })
    const kysely = new Kysely<object>({ dialect, plugins: [new CamelCasePlugin()] })
    return { run: (work) => kysely.transaction().execute((tx) => work(tx as never)), close: () => kysely.destroy() }
  },
  Knex(url) {
    const knexed = knex({ client: 'mysql2', connection: url })
    return { run: (work) => knexed.transaction((tx) => work(tx as never)), close: () => knexed.destroy() }
  },
}

needs('mariadb', { ours: true }).describe('an outbox in transactions of MariaDB', () => {
  let server: Awaited<ReturnType<typeof startMariadb>>
  beforeAll(async () => {
    server = await startMariadb()
  })
  afterAll(() => server.stop())

  test.each(Object.keys(mysqlLibraries))('%s', async (name) => {
    const url = await server.createDatabase()
    const pool = mysqlPool(url)
    const store = mysqlStore({ pool })
    await store.migrate()
    const outbox = createOutbox({ store, source: 'shop' })
    await outbox.migrate()
    await check(outbox, mysqlLibraries[name]!(url))
    await pool.end()
  })
})

test.each<[string, new (path: string) => SqliteDatabase]>([
  ['node:sqlite', DatabaseSync as never],
  ['better-sqlite3', Database as never],
])('an outbox in transactions of SQLite: %s', async (_name, Library) => {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-outbox-'))
  const path = join(folder, 'shop.db')
  const database = new Library(path)
  database.exec('PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000')
  const store = sqliteStore({ database })
  const outbox = createOutbox({ store, source: 'shop' })
  await outbox.migrate()
  const own = new Library(path)
  own.exec('PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000')
  await check(outbox, {
    async run(work) {
      own.exec('BEGIN IMMEDIATE')
      try {
        await work(own as never)
        own.exec('COMMIT')
      } catch (error) {
        own.exec('ROLLBACK')
        throw error
      }
    },
    close: async () => own.close(),
  })
  store.close()
  database.close()
  rmSync(folder, { recursive: true })
})

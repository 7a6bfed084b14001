// The databases that inbox and outbox are tried on: a store on each, a table of effects without constraints, and the tests' own
// questions. A ground is one database for a test file. `openStore` is another process of the same service, as far as a database can
// tell.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import type { RowDataPacket } from 'mysql2/promise'
import { databaseOf, type SqlDatabase } from '../../src/clients/sql-database.ts'
import { sql } from '../../src/clients/sql-statement.ts'
import type { Once } from '../../src/index.ts'
import type { MysqlStore } from '../../src/stores/mysql.ts'
import { mysqlStore } from '../../src/stores/mysql.ts'
import { postgresStore } from '../../src/stores/postgres.ts'
import type { PostgresStore } from '../../src/stores/postgres.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import type { SqliteStore } from '../../src/stores/sqlite.ts'
import { type FaultProxy, startFaultProxy } from '../servers/fault-proxy.ts'
import { startMariadb } from '../servers/mariadb.ts'
import { startMysql } from '../servers/mysql.ts'
import { type PostgresOptions, startPostgres } from '../servers/postgres.ts'
import { versionsVariable } from '../servers/versions.ts'
import { createPool as mysqlPool } from '../subjects/mysql.ts'
import { createPool as postgresPool } from '../subjects/postgres.ts'

export type SqlStore = PostgresStore | MysqlStore | SqliteStore
export type SqlOnce = Once<SqlStore>

export interface OpenStore extends AsyncDisposable {
  readonly store: SqlStore
  readonly database: SqlDatabase
  // What the death of its process is to the database: every connection ends, in whatever it was doing.
  die(): Promise<void>
}

export interface MessagesGround extends AsyncDisposable {
  readonly dialect: SqlDatabase['dialect']
  // Between the stores and the server. SQLite has none.
  readonly proxy: FaultProxy | undefined
  openStore(): Promise<OpenStore>
  // The names in the table of effects, in the order of their insertion.
  effects(): Promise<string[]>
  // For the tests' own statements, outside of the store. Rows have one column each, which comes as text.
  ask(statement: string): Promise<string[]>
}

// Writes an effect with what a handler is given.
export async function insertEffect(
  ground: MessagesGround,
  database: SqlDatabase,
  tx: unknown,
  name: string,
): Promise<void> {
  await database.join(tx, ground.dialect).query(sql`insert into effects (name) values (${name})`)
}

function opened(store: SqlStore, close: () => Promise<unknown>, die: () => Promise<unknown>): OpenStore {
  let isOver = false
  const end = async (how: () => Promise<unknown>): Promise<void> => {
    if (isOver) return
    isOver = true
    await how()
  }
  return { store, database: databaseOf(store)!, die: () => end(die), [Symbol.asyncDispose]: () => end(close) }
}

export async function startPostgresMessages(settings?: PostgresOptions['settings']): Promise<MessagesGround> {
  const server = await startPostgres(settings && { settings })
  const url = await server.createDatabase()
  const admin = postgresPool(url)
  await admin.query('create table effects (number bigint generated always as identity, name text not null)')
  const proxy = await startFaultProxy({ target: { url }, framer: 'postgres' })
  await postgresStore({ pool: admin }).migrate()
  const ask = async (statement: string): Promise<string[]> =>
    (await admin.query({ text: statement, rowMode: 'array' })).rows.map((row) => String((row as unknown[])[0]))
  return {
    dialect: 'postgres',
    proxy,
    async openStore() {
      const pool = postgresPool(proxy.url)
      pool.on('error', () => {})
      const die = async (): Promise<void> => proxy.resetConnections()
      return opened(postgresStore({ pool }) as PostgresStore, () => pool.end(), die)
    },
    effects: () => ask('select name from effects order by number'),
    ask,
    async [Symbol.asyncDispose]() {
      await proxy.close()
      await admin.end()
      await server.stop()
    },
  }
}

export async function startMysqlMessages(start = startMariadb): Promise<MessagesGround> {
  const server = await start()
  const url = await server.createDatabase()
  const admin = mysqlPool(url)
  await admin.query('create table effects (number bigint auto_increment primary key, name varchar(200) not null)')
  const proxy = await startFaultProxy({ target: { url } })
  await mysqlStore({ pool: admin }).migrate()
  const ask = async (statement: string): Promise<string[]> => {
    const [rows] = await admin.query<RowDataPacket[]>(statement)
    return Array.isArray(rows) ? rows.map((row) => String(Object.values(row)[0])) : []
  }
  return {
    dialect: 'mysql',
    proxy,
    async openStore() {
      const pool = mysqlPool(proxy.url)
      const die = async (): Promise<void> => proxy.resetConnections()
      return opened(mysqlStore({ pool }) as MysqlStore, () => pool.end(), die)
    },
    effects: () => ask('select name from effects order by number'),
    ask,
    async [Symbol.asyncDispose]() {
      await proxy.close()
      await admin.end()
      await server.stop()
    },
  }
}

export async function startSqliteMessages(): Promise<MessagesGround> {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-messages-'))
  const path = join(folder, 'once.db')
  const stores: SqliteStore[] = []
  sqliteStore({ path }).close()
  const admin = new DatabaseSync(path, { timeout: 10_000 })
  admin.exec('create table effects (number integer primary key, name text not null)')
  const ask = async (statement: string): Promise<string[]> =>
    admin
      .prepare(statement)
      .all()
      .map((row) => String(Object.values(row)[0]))
  return {
    dialect: 'sqlite',
    proxy: undefined,
    async openStore() {
      const store = sqliteStore({ path })
      stores.push(store)
      const close = async (): Promise<void> => store.close()
      return opened(store, close, close)
    },
    effects: () => ask('select name from effects order by number'),
    ask,
    async [Symbol.asyncDispose]() {
      for (const store of stores) store.close()
      admin.close()
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

// The same cases on every database, each skipped with its reason where its server is missing.
export const grounds = [
  { name: 'postgres', server: 'postgres', start: () => startPostgresMessages() },
  { name: 'mariadb', server: 'mariadb', start: () => startMysqlMessages() },
  { name: 'sqlite', server: undefined, start: startSqliteMessages },
  // As MariaDB in what inbox and outbox ask of it: once by `npm run test:versions`, and not in every run.
  ...(process.env[versionsVariable] === undefined
    ? []
    : [{ name: 'mysql', server: 'mysql', start: () => startMysqlMessages(startMysql) } as const]),
] as const

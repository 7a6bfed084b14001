// A store by its URL, for the commands. The driver is loaded when it is needed: from where onceonly is installed, or else from
// the folder the command was started in (npx, a global installation). Messages never contain the password of a URL.

import { closeSync, existsSync, openSync } from 'node:fs'
import type { DatabaseSync } from 'node:sqlite'
import type { Clock } from '../core/clock.ts'
import { invalidArgument, OnceError } from '../core/errors.ts'
import { aString, checkGiven, identifier, oneOf } from '../core/options.ts'
import type { Rule } from '../core/options.ts'
import type { Inspectable, Migratable, Store, Sweepable } from '../core/store.ts'
import { duration } from './arguments.ts'
import { checkUrl, connectTimeoutMs, driver, messageOf, withoutPassword } from './open-store/connecting.ts'
import { connectRedis } from './open-store/redis.ts'
import { commandWords } from './words.ts'
import type { DynamodbClient } from '../clients/dynamodb.ts'
import type { MongodbCollection } from '../clients/mongodb.ts'
import type { MysqlPool } from '../clients/mysql.ts'
import type { PgPool } from '../clients/postgres.ts'
import type { RedisClient } from '../clients/redis.ts'

export interface OpenStoreOptions {
  /** redis://…, in front of postgres://…. */
  readonly cache?: string
  readonly clock?: Clock
  /** Of the pool, where there is one. */
  readonly connectionsMax?: number
  /**
   * What to do about a server whose settings can lose data: refuse to work, as a service must, or work with it as it is, for an
   * operator who looks into a store in trouble. A service can still accept them in the URL (?durability=relaxed).
   */
  readonly settings?: 'must-be-safe' | 'as-they-are'
  /** Of an embedded store. A command that only looks must not leave an empty file behind a misspelt name. */
  readonly file?: 'create' | 'must-exist'
}

export interface OpenedStore {
  readonly store: Store & Partial<Sweepable & Inspectable & Migratable>
  /** For people: the URL without its password. */
  readonly describe: string
  /** What the store stands on, for checks that a store does not have (onceonly doctor). */
  readonly ground: Ground
  /** Ends every connection. */
  close(): Promise<void>
}

export type Ground =
  | { readonly kind: 'memory' }
  | { readonly kind: 'sqlite'; readonly path: string; readonly table: string; readonly durability: 'full' | 'relaxed' }
  | { readonly kind: 'postgres'; readonly pool: PgPool; readonly table: string; readonly schema: string | undefined }
  | { readonly kind: 'redis'; readonly client: RedisClient; readonly prefix: string }
  | { readonly kind: 'mysql'; readonly pool: MysqlPool; readonly table: string }
  | { readonly kind: 'mongodb'; readonly collection: MongodbCollection }
  | { readonly kind: 'dynamodb'; readonly client: DynamodbClient; readonly table: string }

const forms =
  'sqlite:FILE, postgres://…, redis://…, redis-cluster://…, redis-sentinel://…, mysql://…, mariadb://…, mongodb://…, ' +
  'dynamodb:TABLE or memory:'

type Opener = (given: Given) => Promise<Omit<OpenedStore, 'describe'>>

interface Given {
  readonly url: string
  readonly options: OpenStoreOptions
}

const openers: Readonly<Record<string, Opener>> = {
  memory: openMemory,
  sqlite: openSqlite,
  postgres: openPostgres,
  postgresql: openPostgres,
  redis: openRedis,
  rediss: openRedis,
  'redis-cluster': openRedis,
  'rediss-cluster': openRedis,
  'redis-sentinel': openRedis,
  'rediss-sentinel': openRedis,
  mysql: openMysql,
  mariadb: openMysql,
  mongodb: openMongodb,
  'mongodb+srv': openMongodb,
  dynamodb: openDynamodb,
}

export async function openStore(url: string, options: OpenStoreOptions = {}): Promise<OpenedStore> {
  const scheme = /^([a-z+-]+):/i.exec(url)?.[1]?.toLowerCase()
  const opener = scheme !== undefined && Object.hasOwn(openers, scheme) ? openers[scheme] : undefined
  if (!opener) throw invalidArgument(`expected a store to be ${forms}, got ${JSON.stringify(withoutPassword(url))}`)
  if (options.cache !== undefined && opener !== openPostgres) {
    throw invalidArgument(
      `a cache goes in front of postgres://…, and the store is ${JSON.stringify(withoutPassword(url))}`,
    )
  }
  const opened = await opener({ url, options })
  return { ...opened, describe: withoutPassword(url) }
}

/** For a store that is not opened: printing a schema must neither create a file nor need a server. Undefined: it has none. */
export async function printSchema(url: string): Promise<string | undefined> {
  if (/^sqlite:/i.test(url)) {
    const { sqliteSchema } = await import('../stores/sqlite.ts')
    return sqliteSchema({ table: sqliteOf(url).table })
  }
  // The others connect at the first query, and Redis has no schema.
  if (/^rediss?(?:-\w+)?:/i.test(url)) return undefined
  const { store, close } = await openStore(url)
  try {
    return store.schema?.()
  } finally {
    await close()
  }
}

const sqlRules = { table: identifier, durability: oneOf('full', 'relaxed') }

const postgresRules = {
  ...sqlRules,
  schema: identifier,
  period: (value: unknown) => (periodOf(value) ? undefined : duration.expected),
}

const periodOf = (given: unknown): number | undefined =>
  given === undefined ? undefined : duration.parse(String(given))

const redisRules = {
  prefix: aString,
  eviction: oneOf('refuse', 'accept'),
  durability: oneOf('aof', 'relaxed'),
  onDataLoss: oneOf('quarantine', 'report'),
}

const mongodbRules = { collection: aString, sharding: oneOf('refuse', 'accept') }

async function openMemory({ options }: Given): Promise<Omit<OpenedStore, 'describe'>> {
  const { memoryStore } = await import('../stores/memory.ts')
  const store = memoryStore(options.clock ? { clock: options.clock } : {})
  return { store, ground: { kind: 'memory' }, close: async () => undefined }
}

async function openSqlite({ url, options }: Given): Promise<Omit<OpenedStore, 'describe'>> {
  const { path, table, durability } = sqliteOf(url)
  const { sqliteStore } = await import('../stores/sqlite.ts')
  const ground: Ground = { kind: 'sqlite', path, table, durability }
  if (options.file === 'must-exist' && (await journalOf(path, table)) !== 'wal') {
    // Opened by its path, the store would set WAL permanently, for every user of the file. Only its owner decides that.
    const { DatabaseSync } = await import('node:sqlite')
    const database = new DatabaseSync(path)
    const store = sqliteStore({ database, table, durability: 'relaxed', ...clockOf(options) })
    return { store, ground, close: async () => (store.close(), database.close()) }
  }
  ownerOnly(path)
  const store = sqliteStore({ path, table, durability, ...clockOf(options) })
  return { store, ground, close: async () => store.close() }
}

/**
 * A file that is created here holds answers to customers, so no other user of the machine may read it. SQLite gives the files
 * beside it the same mode. An existing file keeps the mode that its owner gave it.
 */
function ownerOnly(path: string): void {
  if (path === ':memory:' || existsSync(path)) return
  try {
    closeSync(openSync(path, 'ax', 0o600))
  } catch {
    // Another process was first, or the file cannot be created: the store says why.
  }
}

/**
 * For a file that has our tables already, in this version. Opening it as a store creates what is missing, and a service of an
 * older version would not start any more because an operator looked with a newer one.
 */
async function journalOf(path: string, table: string): Promise<string> {
  const cure = commandWords('migrate', [], [`--store ${JSON.stringify(`sqlite:${path}`)}`])
  if (!existsSync(path)) throw invalidArgument(`there is no file ${path}. ${cure} makes it.`)
  const [{ DatabaseSync }, { sqliteSchema }] = await Promise.all([import('node:sqlite'), import('../stores/sqlite.ts')])
  const sketch = new DatabaseSync(':memory:')
  sketch.exec(sqliteSchema({ table }))
  let database
  try {
    database = new DatabaseSync(path, { readOnly: true })
    const found = schemaVersionIn(database, table)
    if (found === undefined || found < schemaVersionIn(sketch, table)!) {
      const what = found === undefined ? `no table ${table}` : `the tables of an older version (${found})`
      throw new OnceError('SCHEMA_MISSING', { message: `${path} has ${what}. ${cure} brings them up to date.` })
    }
    return String(database.prepare('PRAGMA journal_mode').get()!['journal_mode'])
  } catch (error) {
    if (error instanceof OnceError) throw error
    throw new OnceError('STORE_UNAVAILABLE', { message: `${path} cannot be read: ${messageOf(error)}`, cause: error })
  } finally {
    database?.close()
    sketch.close()
  }
}

function schemaVersionIn(database: DatabaseSync, table: string): number | undefined {
  const known = database.prepare('SELECT 1 FROM sqlite_schema WHERE name = ?').get(`${table}_schema`)
  return known && Number(database.prepare(`SELECT max(version) AS version FROM ${table}_schema`).get()!['version'])
}

function sqliteOf(url: string): { path: string; table: string; durability: 'full' | 'relaxed' } {
  const { rest: path, own } = split(url.slice('sqlite:'.length), sqlRules, 'refused')
  if (path === '') throw invalidArgument('expected sqlite:FILE, got no file')
  const { table = 'onceonly', durability = 'full' } = own as { table?: string; durability?: 'full' | 'relaxed' }
  return { path, table, durability }
}

// A command makes one query after the other. A gateway makes many at once, which the store puts into few statements.
const connectionsMax = 10

async function openPostgres({ url, options }: Given): Promise<Omit<OpenedStore, 'describe'>> {
  const { rest, own } = split(url, postgresRules, 'for-the-driver')
  checkUrl(rest)
  const { postgresStore } = await import('../stores/postgres.ts')
  const pg = (await driver('pg', () => import('pg'))).default
  const pool = new pg.Pool({
    connectionString: rest,
    max: options.connectionsMax ?? connectionsMax,
    connectionTimeoutMillis: connectTimeoutMs,
    application_name: 'onceonly',
  })
  // An idle connection that breaks is replaced. Without a listener its error would end the process.
  pool.on('error', () => undefined)
  const { table = 'onceonly', schema } = own
  const periodMs = periodOf(own['period'])
  const names = { table, ...(schema === undefined ? {} : { schema }), ...(periodMs ? { periodMs } : {}) }
  const store = postgresStore({ pool, ...names, durability: durabilityOf(own, options), ...clockOf(options) })
  const ground: Ground = { kind: 'postgres', pool, table, schema }
  if (options.cache === undefined) return { store, ground, close: () => pool.end() }
  const cache = await connectRedis(options.cache).catch(async (error: unknown) => {
    await pool.end()
    throw error
  })
  const { redisPostgresStore } = await import('../stores/redis-postgres.ts')
  return {
    store: redisPostgresStore({ redis: cache.client, postgres: store, ...clockOf(options) }),
    ground,
    async close() {
      await cache.close()
      await pool.end()
    },
  }
}

async function openRedis({ url, options }: Given): Promise<Omit<OpenedStore, 'describe'>> {
  const { rest, own } = split(url, redisRules, 'for-the-driver')
  const asIs = options.settings === 'as-they-are'
  const given = own as { eviction?: 'accept'; durability?: 'relaxed'; onDataLoss?: 'report'; prefix?: string }
  const { redisStore } = await import('../stores/redis.ts')
  const { client, close } = await connectRedis(rest)
  const store = redisStore({
    client,
    ...given,
    ...(asIs ? { eviction: 'accept', durability: 'relaxed' } : {}),
    ...clockOf(options),
  })
  return { store, ground: { kind: 'redis', client, prefix: own['prefix'] ?? 'onceonly' }, close }
}

async function openMysql({ url, options }: Given): Promise<Omit<OpenedStore, 'describe'>> {
  const { rest, own } = split(url.replace(/^mariadb:/i, 'mysql:'), sqlRules, 'for-the-driver')
  if (checkUrl(rest).pathname.length < 2) throw invalidArgument('expected mysql://HOST/DATABASE, got no database')
  const { mysqlStore } = await import('../stores/mysql.ts')
  const { createPool } = await driver('mysql2', () => import('mysql2/promise'), 'mysql2/promise')
  const pool = createPool({
    uri: rest,
    connectionLimit: options.connectionsMax ?? connectionsMax,
    connectTimeout: connectTimeoutMs,
  })
  const { table = 'onceonly' } = own
  const store = mysqlStore({ pool, table, durability: durabilityOf(own, options), ...clockOf(options) })
  return { store, ground: { kind: 'mysql', pool, table }, close: () => pool.end() }
}

async function openMongodb({ url, options }: Given): Promise<Omit<OpenedStore, 'describe'>> {
  const { rest, own } = split(url, mongodbRules, 'for-the-driver')
  const { mongodbStore } = await import('../stores/mongodb.ts')
  const { MongoClient } = await driver('mongodb', () => import('mongodb'))
  const client = openMongoClient(rest, () => new MongoClient(rest, { serverSelectionTimeoutMS: connectTimeoutMs }))
  const collection = client.db().collection(own['collection'] ?? 'onceonly') as unknown as MongodbCollection
  const sharding = own['sharding'] as 'refuse' | 'accept' | undefined
  const store = mongodbStore({ collection, ...(sharding ? { sharding } : {}), ...clockOf(options) })
  return { store, ground: { kind: 'mongodb', collection }, close: () => client.close() }
}

function openMongoClient<Client>(url: string, open: () => Client): Client {
  // The driver would use the database "test", which the URL does not name.
  if (!/^mongodb(\+srv)?:\/\/[^/]+\/[^/?]+/i.test(url)) {
    throw invalidArgument('expected mongodb://HOST/DATABASE, got no database')
  }
  try {
    return open()
  } catch (error) {
    throw invalidArgument(`${withoutPassword(url)} is no URL for MongoDB: ${messageOf(error)}`)
  }
}

async function openDynamodb({ url, options }: Given): Promise<Omit<OpenedStore, 'describe'>> {
  const { rest: table, own } = split(url.slice('dynamodb:'.length), { region: aString, endpoint: aString }, 'refused')
  if (table === '') throw invalidArgument('expected dynamodb:TABLE, got no table')
  const { dynamodbStore } = await import('../stores/dynamodb.ts')
  const { DynamoDB } = await driver('@aws-sdk/client-dynamodb', () => import('@aws-sdk/client-dynamodb'))
  const { region, endpoint } = own
  const client = new DynamoDB({ ...(region ? { region } : {}), ...(endpoint ? { endpoint } : {}) })
  const store = dynamodbStore({ client, table, ...clockOf(options) })
  return { store, ground: { kind: 'dynamodb', client, table }, close: async () => client.destroy() }
}

function clockOf({ clock }: OpenStoreOptions): { clock?: Clock } {
  return clock ? { clock } : {}
}

function durabilityOf(own: Own, { settings }: OpenStoreOptions): 'full' | 'relaxed' {
  return settings === 'as-they-are' || own['durability'] === 'relaxed' ? 'relaxed' : 'full'
}

/** The store's parameters in the query of a URL. */
type Own = Readonly<Record<string, string>>

/** Takes the store's own parameters out of the query. The driver gets the others, or they are refused. */
function split(
  url: string,
  rules: Readonly<Record<string, Rule>>,
  others: 'for-the-driver' | 'refused',
): { rest: string; own: Own } {
  const start = url.indexOf('?')
  if (start < 0) return { rest: url, own: {} }
  const query = new URLSearchParams(url.slice(start + 1))
  const ours = (name: string): boolean => others === 'refused' || Object.hasOwn(rules, name)
  const own = Object.fromEntries([...query].filter(([name]) => ours(name)))
  checkGiven(`the URL of the store`, own, rules)
  for (const name of Object.keys(own)) query.delete(name)
  return { rest: query.size > 0 ? `${url.slice(0, start)}?${query}` : url.slice(0, start), own }
}

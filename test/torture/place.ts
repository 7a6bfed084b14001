// The stores under torture: how a process opens one from its argument, how the ground is prepared (schema, the ledger in the
// store's own database, triggers), and how an effect in a transaction writes there. The table of effects has no constraint.
import { DatabaseSync } from 'node:sqlite'
import type { Store } from '../../src/core/store.ts'

export const storeNames = ['sqlite', 'postgres', 'mysql', 'redis', 'redis-postgres', 'dynamodb', 'mongodb'] as const

export type StoreName = (typeof storeNames)[number]

/** What a process gets as JSON. */
export interface Place {
  readonly store: StoreName
  /** The file of SQLite, or the URL of the server that decides. */
  readonly url: string
  /** Of the Redis in front of PostgreSQL. */
  readonly redisUrl?: string
}

export type AuditedStore = 'sqlite' | 'postgres' | 'mysql' | 'redis-postgres'

export const audited: readonly StoreName[] = ['sqlite', 'postgres', 'mysql', 'redis-postgres'] satisfies AuditedStore[]

export interface OpenedStore {
  readonly store: Store
  migrate(): Promise<void>
  /** The tests' own statements, straight to the database. */
  sql(statement: string): Promise<readonly Record<string, unknown>[]>
  close(): Promise<void>
}

const ignore = (): void => {}

/** Drivers are loaded when they are needed: a process that is about to be killed starts a few hundred milliseconds sooner. */
export function openStore(place: Place): Promise<OpenedStore> {
  return openers[place.store](place)
}

const openers: Readonly<Record<StoreName, (place: Place) => Promise<OpenedStore>>> = {
  sqlite: openSqlite,
  postgres: openPostgres,
  mysql: openMysql,
  redis: openRedis,
  'redis-postgres': openRedisPostgres,
  dynamodb: openDynamodb,
  mongodb: openMongodb,
}

const noSql = (): never => {
  throw new Error('this store has no SQL')
}

async function openSqlite({ url }: Place): Promise<OpenedStore> {
  const { sqliteStore } = await import('../../src/stores/sqlite.ts')
  const store = sqliteStore({ path: url })
  return {
    store,
    migrate: () => store.migrate(),
    async sql(statement) {
      const database = new DatabaseSync(url, { timeout: 30_000 })
      try {
        return database.prepare(statement).all()
      } finally {
        database.close()
      }
    },
    close: async () => store.close(),
  }
}

async function openPostgres({ url }: Place): Promise<OpenedStore> {
  const [{ default: pg }, { postgresStore }] = await Promise.all([import('pg'), import('../../src/stores/postgres.ts')])
  const pool = new pg.Pool({ connectionString: url, max: 8 })
  // A server that is killed ends idle connections. Without a listener that would end the process.
  pool.on('error', ignore)
  const store = postgresStore({ pool })
  return {
    store,
    migrate: () => store.migrate(),
    sql: async (statement) => (await pool.query<Record<string, unknown>>(statement)).rows,
    close: () => pool.end(),
  }
}

async function openMysql({ url }: Place): Promise<OpenedStore> {
  const [{ createPool }, { mysqlStore }] = await Promise.all([
    import('mysql2/promise'),
    import('../../src/stores/mysql.ts'),
  ])
  const pool = createPool({ uri: url, connectionLimit: 8, supportBigNumbers: true })
  const store = mysqlStore({ pool })
  return {
    store,
    migrate: () => store.migrate(),
    sql: async (statement) => (await pool.query(statement))[0] as Record<string, unknown>[],
    close: () => pool.end(),
  }
}

async function openRedis({ url }: Place): Promise<OpenedStore> {
  const [{ createClient }, { redisStore }] = await Promise.all([import('redis'), import('../../src/stores/redis.ts')])
  const client = createClient({ url })
  client.on('error', ignore)
  await client.connect()
  return {
    store: redisStore({ client }),
    migrate: async () => {},
    sql: async () => noSql(),
    close: async () => client.destroy(),
  }
}

async function openRedisPostgres(place: Place): Promise<OpenedStore> {
  const [{ createClient }, { redisPostgresStore }, opened] = await Promise.all([
    import('redis'),
    import('../../src/stores/redis-postgres.ts'),
    openPostgres(place),
  ])
  const client = createClient({ url: place.redisUrl! })
  client.on('error', ignore)
  await client.connect()
  const store = redisPostgresStore({ redis: client, postgres: opened.store as never })
  return {
    ...opened,
    store,
    async close() {
      client.destroy()
      await opened.close()
    },
  }
}

/** The least that the Date header of a reply, which has whole seconds, can vouch for. */
export const dynamodbSkewMs = 2_500

async function openDynamodb({ url }: Place): Promise<OpenedStore> {
  const [{ DynamoDB }, { dynamodbStore }] = await Promise.all([
    import('@aws-sdk/client-dynamodb'),
    import('../../src/stores/dynamodb.ts'),
  ])
  const credentials = { accessKeyId: 'onceonly', secretAccessKey: 'onceonly' }
  const client = new DynamoDB({ endpoint: url, region: 'local', credentials })
  const store = dynamodbStore({ client, table: 'torture', clockSkewMs: dynamodbSkewMs })
  return {
    store,
    migrate: () => store.migrate(),
    sql: async () => noSql(),
    close: async () => client.destroy(),
  }
}

async function openMongodb({ url }: Place): Promise<OpenedStore> {
  const [{ MongoClient }, { mongodbStore }] = await Promise.all([
    import('mongodb'),
    import('../../src/stores/mongodb.ts'),
  ])
  const client = new MongoClient(url)
  const store = mongodbStore({ collection: client.db('torture').collection('onceonly') })
  return {
    store,
    migrate: () => store.migrate(),
    sql: async () => noSql(),
    close: () => client.close(),
  }
}

export const effectsTable = 'create table torture_effects (token varchar(64), step varchar(64), id varchar(255))'

/** What an effect writes in its transaction, in the words of each client. */
export async function writeEffect(tx: unknown, token: string, step: string, id: string): Promise<void> {
  const sql = `insert into torture_effects values ('${token}', '${step}', '${id}')`
  if (tx instanceof DatabaseSync) tx.exec(sql)
  else await (tx as { query(text: string): Promise<unknown> }).query(sql)
}

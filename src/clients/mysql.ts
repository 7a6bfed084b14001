// The slice of mysql2 that we use, and one shape for it and for the libraries on top of it: statements go out as text without
// parameters (every value is a literal from mysql/statements.ts), and what comes back is read by position. So nothing depends
// on how a client maps names and types, and a procedure is one round trip whatever `multipleStatements` says.

import { invalidArgument } from '../core/errors.ts'
import type { DrizzleTransaction, KnexTransaction, KyselyTransaction } from './sql-transaction.ts'

export interface Session {
  /** The rows of all result sets, in their order; each is its columns as text. */
  run(statement: string): Promise<readonly Row[]>
}

export type Row = readonly (string | null)[]

export interface Connection<Client> extends Session {
  readonly client: Client
  release(): void
  /** For a connection whose state is unknown: it must not go back to the pool, it may be inside a transaction. */
  destroy(): void
}

export interface Connections<Client> extends Session {
  connect(): Promise<Connection<Client>>
}

export interface MysqlQuery {
  readonly sql: string
  readonly rowsAsArray: boolean
}

/** mysql2/promise: a connection. */
export interface MysqlConnection {
  query(query: MysqlQuery): Promise<unknown>
}

export interface MysqlPoolConnection extends MysqlConnection {
  release(): void
  destroy(): void
}

/** mysql2/promise: what createPool gives. */
export interface MysqlPool<Client extends MysqlPoolConnection = MysqlPoolConnection> {
  query(query: MysqlQuery): Promise<unknown>
  getConnection(): Promise<Client>
}

/** mysql2 with callbacks; its `promise()` gives the above on the same connections. */
export interface MysqlCallbackPool<Pool extends MysqlPool = MysqlPool> {
  promise(): Pool
}

export interface MysqlCallbackConnection {
  promise(): MysqlConnection
}

/** Whatever `within` takes: an open transaction of one of these libraries, on the store's database. */
export type MysqlTransaction =
  | MysqlConnection
  | MysqlCallbackConnection
  | KyselyTransaction
  | DrizzleTransaction
  | KnexTransaction

export function connectionsOf<Client>(given: MysqlPool | MysqlCallbackPool): Connections<Client> {
  const pool = 'promise' in given && typeof given.promise === 'function' ? given.promise() : (given as MysqlPool)
  return {
    run: (sql) => query(pool, sql),
    async connect() {
      const client = await pool.getConnection()
      // Once it is given back it is somebody else's: a ROLLBACK that comes after would end their transaction.
      let isOver = false
      const end = (how: 'release' | 'destroy'): void => {
        if (!isOver) client[how]()
        isOver = true
      }
      return {
        client: client as Client,
        async run(sql) {
          if (isOver) throw new Error('this transaction is over, and its connection may be in use by others')
          return query(client, sql)
        },
        release: () => end('release'),
        destroy: () => end('destroy'),
      }
    },
  }
}

/** A transaction that the caller opened, by its shape. */
export function sessionOf(tx: unknown): Session {
  if (has(tx, 'executeQuery')) return kyselySession(tx as KyselyTransaction)
  if (has(tx, 'raw') && (tx as KnexTransaction).isTransaction) {
    return { run: async (sql) => rowsOf(first(await (tx as KnexTransaction).raw(sql))) }
  }
  // A pool would send each statement over another connection, outside of every transaction.
  if (!has(tx, 'getConnection')) {
    if (has(tx, 'execute') && has(tx, 'rollback') && !has(tx, 'query')) {
      return { run: async (sql) => rowsOf(first(await (tx as DrizzleTransaction).execute(sql as never))) }
    }
    if (has(tx, 'promise')) return sessionOf((tx as MysqlCallbackConnection).promise())
    if (has(tx, 'query')) return { run: (sql) => query(tx as MysqlConnection, sql) }
  }
  throw invalidArgument(
    `mysqlStore: expected an open transaction of mysql2 (a connection, not the pool), Drizzle, Kysely or Knex, ` +
      `got ${tx === null ? 'null' : Array.isArray(tx) ? 'an array' : `a value of type ${typeof tx}`}`,
  )
}

async function query(client: MysqlConnection, sql: string): Promise<Row[]> {
  return rowsOf(first(await client.query({ sql, rowsAsArray: false })))
}

function kyselySession(tx: KyselyTransaction): Session {
  if (!tx.isTransaction) {
    throw invalidArgument('mysqlStore: expected a Kysely transaction, got a Kysely instance outside of one')
  }
  return {
    async run(sql) {
      const node = { kind: 'RawNode', sqlFragments: [sql], parameters: [] }
      const sent = { sql, query: node, parameters: [], queryId: { queryId: 'onceonly' } }
      return rowsOf((await tx.executeQuery(sent as never)).rows)
    },
  }
}

// mysql2 answers with the result and the description of its columns; so do Drizzle and Knex.
function first(answer: unknown): unknown {
  return Array.isArray(answer) ? (answer as unknown[])[0] : answer
}

// A SELECT gives an array of rows, a CALL an array of such arrays with a header at the end, everything else a header. A plugin
// that renames columns (Kysely's CamelCasePlugin) makes an object of each of the arrays.
function rowsOf(result: unknown): Row[] {
  if (!Array.isArray(result)) return []
  return (result as unknown[]).flatMap((item) => {
    if (Array.isArray(item)) return rowsOf(item)
    if (typeof item !== 'object' || item === null || 'affectedRows' in item) return []
    const values = Object.values(item) as unknown[]
    return values.every(isPlainObject) ? rowsOf(values) : [values.map(textOf)]
  })
}

function isPlainObject(value: unknown): boolean {
  return typeof value === 'object' && value !== null && !(value instanceof Uint8Array)
}

// Text that has to do with binary columns arrives as bytes.
function textOf(value: unknown): string | null {
  if (value === null || value === undefined) return null
  return value instanceof Uint8Array ? Buffer.from(value).toString('latin1') : String(value as string | number | bigint)
}

function has(value: unknown, method: string): boolean {
  const able = typeof value === 'object' || typeof value === 'function'
  return able && value !== null && typeof (value as Record<string, unknown>)[method] === 'function'
}

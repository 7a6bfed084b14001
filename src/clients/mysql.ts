// The slice of mysql2 that we use, and one shape for it and for the libraries on top of it. A store sends text without parameters
// (every value is a literal from stores/mysql/literals.ts) and reads rows by position, so nothing depends on how a client maps names
// and types, and a procedure is one round trip whatever `multipleStatements` says. Writes send text with values.

import { drizzleQuery, has, kyselyQuery, libraryTransactionOf, noTransaction } from './sql-transaction.ts'
import type { DrizzleTransaction, KnexTransaction, KyselyTransaction } from './sql-transaction.ts'

export interface MysqlSession {
  /** The rows of all result sets, in their order. Each is its columns as text. */
  run(statement: string): Promise<readonly MysqlRow[]>
}

export type MysqlRow = readonly (string | null)[]

/** A connection of the pool that is ours until we release it. */
export interface MysqlHeldConnection<Client> extends MysqlSession {
  readonly client: Client
  release(): void
  /** For a connection whose state is unknown. It must not go back to the pool, because it may be inside a transaction. */
  destroy(): void
}

export interface MysqlConnections<Client> extends MysqlSession {
  connect(): Promise<MysqlHeldConnection<Client>>
}

export interface MysqlQuery {
  readonly sql: string
  readonly rowsAsArray: boolean
}

/** mysql2/promise: a connection. */
export interface MysqlConnection {
  query(query: MysqlQuery): Promise<unknown>
  execute(query: never, values: never): Promise<unknown>
}

/** All that a store needs of a connection from its pool. */
export interface MysqlPoolConnection {
  query(query: MysqlQuery): Promise<unknown>
  release(): void
  destroy(): void
}

/** mysql2/promise: what createPool returns. */
export interface MysqlPool<Client extends MysqlPoolConnection = MysqlPoolConnection> {
  query(query: MysqlQuery): Promise<unknown>
  getConnection(): Promise<Client>
}

/** mysql2 with callbacks. Its `promise()` returns the above on the same connections. */
export interface MysqlCallbackPool<Pool extends MysqlPool = MysqlPool> {
  promise(): Pool
}

export interface MysqlCallbackConnection {
  promise(): MysqlConnection
}

/** An open transaction on a MySQL or MariaDB database, of one of these libraries. */
export type MysqlTransaction =
  | MysqlConnection
  | MysqlCallbackConnection
  | KyselyTransaction
  | DrizzleTransaction
  | KnexTransaction

export function connectionsOf<Client>(given: MysqlPool | MysqlCallbackPool): MysqlConnections<Client> {
  const pool = has(given, 'promise') ? (given as MysqlCallbackPool).promise() : (given as MysqlPool)
  return {
    run: (sql) => query(pool, sql),
    async connect() {
      const client = await pool.getConnection()
      // A released connection belongs to another caller: a late ROLLBACK would end that caller's transaction.
      let isOver = false
      const end = (how: 'release' | 'destroy'): void => {
        if (!isOver) client[how]()
        isOver = true
      }
      return {
        client: client as Client,
        async run(sql) {
          if (isOver) throw new Error('this transaction has ended, and its connection may be in use by others')
          return query(client, sql)
        },
        release: () => end('release'),
        destroy: () => end('destroy'),
      }
    },
  }
}

interface MysqlPoolConfig {
  readonly config?: { readonly connectionLimit?: unknown }
}

/** How many connections the pool can have, if it says so. A pool of mysql2/promise has the callback pool inside. */
export function poolSizeOf(pool: MysqlPool | MysqlCallbackPool): number | undefined {
  const inner = (pool as { readonly pool?: MysqlPoolConfig }).pool ?? (pool as MysqlPoolConfig)
  const limit = inner.config?.connectionLimit
  return typeof limit === 'number' ? limit : undefined
}

async function query(client: Pick<MysqlConnection, 'query'>, sql: string): Promise<MysqlRow[]> {
  return rowsOf(first(await client.query({ sql, rowsAsArray: false })))
}

/** A transaction that the caller opened, for a store. */
export function sessionOf(tx: unknown, caller: string): MysqlSession {
  const send = senderOf(tx, caller)
  return { run: async (statement) => rowsOf(await send(statement, [])) }
}

/** Sends a statement with its values. Resolves to the result as the library has it: rows, a header, or Kysely's result. */
export type MysqlSend = (text: string, values: readonly unknown[]) => Promise<unknown>

/** A transaction that the caller opened, by its shape. `caller` begins the message of a refusal: "mysqlStore". */
export function senderOf(tx: unknown, caller: string): MysqlSend {
  // A pool would send each statement over another connection, outside of every transaction.
  if (!has(tx, 'getConnection')) {
    const found = libraryTransactionOf(tx, caller)
    switch (found?.library) {
      case 'Kysely':
        return (text, values) => found.tx.executeQuery(kyselyQuery(text, values))
      case 'Drizzle':
        return async (text, values) =>
          first(await found.tx.execute(values.length > 0 ? drizzleQuery(text, values) : (text as never)))
      case 'Knex':
        // Without values Knex leaves every question mark in the text alone.
        return async (text, values) =>
          first(await (values.length > 0 ? found.tx.raw(text, values as never) : found.tx.raw(text)))
      default:
    }
    if (has(tx, 'promise')) return senderOf((tx as MysqlCallbackConnection).promise(), caller)
    if (has(tx, 'query')) return mysql2Sender(tx as MysqlConnection)
  }
  return noTransaction(tx, caller, 'mysql2 (a connection, not the pool), Drizzle, Kysely or Knex')
}

// The server prepares statements with values: mysql2's `query` would write the values into the text, with backslashes that a server
// with NO_BACKSLASH_ESCAPES takes for backslashes. Savepoints cannot be prepared on every server, and have no values.
function mysql2Sender(tx: MysqlConnection): MysqlSend {
  return async (sql, values) => {
    const sent = { sql, rowsAsArray: false }
    return first(await (values.length > 0 ? tx.execute(sent as never, values as never) : tx.query(sent)))
  }
}

/** The first column of the rows, as text. */
export function answersOf(result: unknown): readonly string[] {
  return rowsOf(result).map((row) => row[0]!)
}

// mysql2 returns the result and the description of its columns, and so do Drizzle and Knex.
function first(returned: unknown): unknown {
  return Array.isArray(returned) ? (returned as unknown[])[0] : returned
}

// A SELECT returns an array of rows, a CALL an array of such arrays with a header at the end, everything else a header. Kysely
// returns an object with rows. A plugin that renames columns (Kysely's CamelCasePlugin) makes an object of each of the arrays.
function rowsOf(result: unknown): MysqlRow[] {
  if (!Array.isArray(result)) return hasRows(result) ? rowsOf(result.rows) : []
  return (result as unknown[]).flatMap((item) => {
    if (Array.isArray(item)) return rowsOf(item)
    if (typeof item !== 'object' || item === null || 'affectedRows' in item) return []
    const values = Object.values(item) as unknown[]
    return values.every(isPlainObject) ? rowsOf(values) : [values.map(textOf)]
  })
}

function hasRows(result: unknown): result is { readonly rows: readonly unknown[] } {
  return typeof result === 'object' && result !== null && Array.isArray((result as { rows?: unknown }).rows)
}

function isPlainObject(value: unknown): boolean {
  return typeof value === 'object' && value !== null && !(value instanceof Uint8Array)
}

// Text that has to do with binary columns arrives as bytes.
function textOf(value: unknown): string | null {
  if (value === null || value === undefined) return null
  return value instanceof Uint8Array ? Buffer.from(value).toString('latin1') : String(value as string | number | bigint)
}

export interface MysqlServerError {
  readonly errno: number
  readonly sqlState: string
  readonly message: string
}

/** The server's own error, perhaps in a wrapper's cause (Drizzle). Undefined when the server sent none (a lost connection). */
export function serverErrorOf(error: unknown): MysqlServerError | undefined {
  let current = error
  // A cause can be a wrapper again, and causes can form a circle.
  for (let depth = 0; depth < 5 && typeof current === 'object' && current !== null; depth++) {
    const { errno, sqlState, message, cause } = current as Partial<MysqlServerError> & { cause?: unknown }
    // Node's own errors have an errno, too: a negative one, and no SQLSTATE.
    if (typeof errno === 'number' && errno > 0 && typeof sqlState === 'string') {
      return { errno, sqlState, message: String(message) }
    }
    current = cause
  }
  return undefined
}

export function errnoOf(error: unknown): number | undefined {
  return serverErrorOf(error)?.errno
}

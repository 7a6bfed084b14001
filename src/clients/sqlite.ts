// The slice of node:sqlite and better-sqlite3 that stores and writes use, and what differs between the two.

export type SqliteValue = string | bigint | number | null | Uint8Array

export interface SqliteStatement {
  run(...values: SqliteValue[]): unknown
  get(...values: SqliteValue[]): unknown
  all(...values: SqliteValue[]): unknown[]
}

/** What `DatabaseSync` of node:sqlite and `Database` of better-sqlite3 have in common, as far as it is used here. */
export interface SqliteDatabase {
  exec(sql: string): unknown
  prepare(sql: string): SqliteStatement
  close(): unknown
  /** node:sqlite, since Node 22.16. */
  readonly isTransaction?: boolean
  /** better-sqlite3. */
  readonly inTransaction?: boolean
}

/** Prepared so that rows are objects with plain numbers, whatever the user has made the default of this connection. */
export function prepare(database: Pick<SqliteDatabase, 'prepare'>, sql: string): SqliteStatement {
  const statement = database.prepare(sql) as SqliteStatement & {
    setReadBigInts?(on: boolean): unknown
    setReturnArrays?(on: boolean): unknown
    safeIntegers?(on: boolean): unknown
  }
  statement.setReadBigInts?.(false)
  statement.setReturnArrays?.(false)
  statement.safeIntegers?.(false)
  return statement
}

export function inTransaction(database: SqliteDatabase): boolean {
  try {
    const known = database.isTransaction ?? database.inTransaction
    if (known !== undefined) return known
    // Node before 22.16 does not report it. A deferred BEGIN takes no lock, and fails exactly when a transaction is open.
    database.exec('BEGIN')
    database.exec('ROLLBACK')
    return false
  } catch (error) {
    if (error instanceof Error && error.message.includes('within a transaction')) return true
    if (isClosed(error)) return false
    throw error
  }
}

/** After some errors (disk full, I/O) SQLite has already rolled back, and a second ROLLBACK would be another error. */
export function rollBack(database: SqliteDatabase): void {
  if (inTransaction(database)) database.exec('ROLLBACK')
}

/** The absolute path of the file, or '' for a database in memory. */
export function fileOf(database: SqliteDatabase): string {
  const attached = prepare(database, 'PRAGMA database_list').all() as { name: string; file: string | null }[]
  return attached.find((each) => each.name === 'main')?.file ?? ''
}

/** The error says that the database is no longer open, in the words of either library. */
export function isClosed(error: unknown): boolean {
  return error instanceof Error && error.message.includes('not open')
}

// Connections to a SQLite file: the slice of node:sqlite and better-sqlite3 that we use, the settings under which a commit
// survives a power cut, and what their errors mean. A connection that could lose an acknowledged commit is refused.

import { OnceError, invalidArgument } from '../../core/errors.ts'

export type SqliteValue = string | number | null | Uint8Array

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

/** 'full': every acknowledged commit is on the disk. 'relaxed': the last ones may be lost in a power cut, not in a crash. */
export type Durability = 'full' | 'relaxed'

/** Prepared so that rows are objects with plain numbers, whatever the user has made the default of this connection. */
export function prepare(database: SqliteDatabase, sql: string): SqliteStatement {
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
    // Node before 22.16 does not tell. A deferred BEGIN takes no lock, and fails just inside a transaction.
    database.exec('BEGIN')
    database.exec('ROLLBACK')
    return false
  } catch (error) {
    if (error instanceof Error && error.message.includes('within a transaction')) return true
    if (isClosed(error)) return false
    throw error
  }
}

/** SQLite has rolled back by itself after some errors (disk full, I/O), and a second ROLLBACK would be an error of its own. */
export function rollBack(database: SqliteDatabase): void {
  if (inTransaction(database)) database.exec('ROLLBACK')
}

/** The absolute path of the file, or '' for a database in memory. */
export function fileOf(database: SqliteDatabase): string {
  const attached = prepare(database, 'PRAGMA database_list').all() as { name: string; file: string | null }[]
  return attached.find((each) => each.name === 'main')?.file ?? ''
}

/** Settings of a connection of our own. The journal mode belongs to the file, so it is changed only where the file is ours. */
export function configure(database: SqliteDatabase, journal: 'wal' | 'as it is', durability: Durability): void {
  // A time-out inside SQLite blocks the event loop; waiting for locks is done outside, see sqlite/turns.ts.
  database.exec('PRAGMA busy_timeout = 0')
  if (journal === 'wal') database.exec('PRAGMA journal_mode = WAL')
  // EXTRA is FULL, and with a rollback journal it also syncs the folder after the journal was deleted.
  database.exec(`PRAGMA synchronous = ${durability === 'full' ? 'EXTRA' : 'NORMAL'}`)
  // On macOS fsync leaves the data in the drive's cache; elsewhere these two do nothing.
  if (durability === 'full') database.exec('PRAGMA fullfsync = 1; PRAGMA checkpoint_fullfsync = 1')
  checkDurability(database, durability)
}

const synchronousLevels = ['OFF', 'NORMAL', 'FULL', 'EXTRA'] as const

/**
 * Looks at what is really in force: better-sqlite3 opens a WAL database at NORMAL, and a commit that was acknowledged can
 * be gone after a power cut. With a deleted journal even FULL can lose one: the deletion itself is not synced.
 */
export function checkDurability(database: SqliteDatabase, durability: Durability): void {
  if (durability === 'relaxed') return
  const { journal_mode: journal } = prepare(database, 'PRAGMA journal_mode').get() as { journal_mode: string }
  const { synchronous } = prepare(database, 'PRAGMA synchronous').get() as { synchronous: number }
  const needed = journal === 'delete' ? 3 : 2
  if (journal !== 'memory' && journal !== 'off' && synchronous >= needed) return
  throw new OnceError('STORE_UNSAFE', {
    message:
      `The SQLite connection has journal_mode ${journal} and synchronous ${synchronousLevels[synchronous] ?? synchronous}, so a commit ` +
      `that was acknowledged can be lost in a power cut and its effect run twice. Run "PRAGMA journal_mode = WAL" and ` +
      `"PRAGMA synchronous = FULL" on it first, or accept the risk with durability: 'relaxed'.`,
  })
}

// The primary result codes of SQLite that mean something to us.
const codeNames: Readonly<Record<number, string>> = {
  5: 'BUSY',
  6: 'LOCKED',
  7: 'NOMEM',
  8: 'READONLY',
  10: 'IOERR',
  11: 'CORRUPT',
  13: 'FULL',
  14: 'CANTOPEN',
  15: 'PROTOCOL',
  18: 'TOOBIG',
  19: 'CONSTRAINT',
  20: 'MISMATCH',
  26: 'NOTADB',
}

/** 'BUSY' for each of SQLITE_BUSY, SQLITE_BUSY_SNAPSHOT, …; undefined for an error that is not SQLite's. */
export function sqliteCode(error: unknown): string | undefined {
  if (typeof error !== 'object' || error === null) return undefined
  const { errcode, code } = error as { errcode?: unknown; code?: unknown }
  if (typeof errcode === 'number') return codeNames[errcode & 0xff] ?? 'ERROR'
  return typeof code === 'string' && code.startsWith('SQLITE_') ? code.split('_')[1] : undefined
}

/** Somebody else has the lock; nothing was done, and it can be tried again. */
export function isBusy(error: unknown): boolean {
  const code = sqliteCode(error)
  return code === 'BUSY' || code === 'LOCKED' || code === 'PROTOCOL'
}

/** The request itself is wrong: others in the same transaction have nothing to fear from it. */
export function isOfOneRequest(error: unknown): boolean {
  if (error instanceof OnceError) return true
  const code = sqliteCode(error)
  if (isClosed(error)) return false
  if (code === undefined) return error instanceof TypeError || error instanceof RangeError
  return code === 'CONSTRAINT' || code === 'MISMATCH' || code === 'TOOBIG'
}

function isClosed(error: unknown): boolean {
  return error instanceof Error && error.message.includes('not open')
}

const cures: Readonly<Record<string, string>> = {
  FULL: 'Make room on the disk (a sweep needs room too), or raise max_page_count.',
  READONLY: 'The file, its folder and the connection must be writable.',
  CANTOPEN: 'The folder must exist and be writable, and the path must name a file.',
  NOTADB: 'The path names a file that is not a SQLite database; nothing in it was changed.',
  CORRUPT: 'Restore the file from a backup.',
  IOERR: 'Check the disk.',
}
// These stay as they are however often one asks.
const lasting: readonly (string | undefined)[] = ['READONLY', 'CANTOPEN', 'NOTADB', 'CORRUPT']

/** Everything that reaches the caller is an OnceError. */
export function asOnceError(error: unknown): OnceError {
  if (error instanceof OnceError) return error
  const code = sqliteCode(error)
  const message = error instanceof Error ? error.message : String(error)
  if (isOfOneRequest(error))
    return new OnceError('INVALID_ARGUMENT', { message: `SQLite refused the request: ${message}`, cause: error })
  if (/no such (table|column)/.test(message)) {
    return new OnceError('SCHEMA_MISSING', {
      message: `SQLite says "${message}". Run migrate(), or the SQL of schema(), on this database, and check the table option.`,
      cause: error,
    })
  }
  return new OnceError('STORE_UNAVAILABLE', {
    message: `SQLite failed: ${message}. Nothing was written. ${cures[code ?? ''] ?? ''}`.trimEnd(),
    retryable: !lasting.includes(code),
    cause: error,
  })
}

/** By the same copy of SQLite, see connectLike in sqlite.ts, and on the same file. */
export function checkSameDatabase(tx: SqliteDatabase, own: SqliteDatabase): void {
  const sameCopy = tx instanceof own.constructor || own instanceof tx.constructor
  if (!sameCopy) {
    throw invalidArgument(
      `within: expected a database handle of the library that the store uses, got another one. Two copies of SQLite on one ` +
        `file in one process lose each other's locks. Create the store with sqliteStore({ database }).`,
    )
  }
  const [theirs, ours] = [fileOf(tx), fileOf(own)]
  if (theirs !== ours)
    throw invalidArgument(
      `within: expected a handle on ${ours}, the file of the store, got one on ${theirs || 'a database in memory'}`,
    )
}

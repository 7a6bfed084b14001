// What SQLite's errors mean. Invariant: everything that leaves the store is an OnceError.

import { isClosed } from '../../clients/sqlite.ts'
import { OnceError } from '../../core/errors.ts'

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

/** 'BUSY' for each of SQLITE_BUSY, SQLITE_BUSY_SNAPSHOT, …. Undefined for an error that is not SQLite's. */
export function sqliteCode(error: unknown): string | undefined {
  if (typeof error !== 'object' || error === null) return undefined
  const { errcode, code } = error as { errcode?: unknown; code?: unknown }
  if (typeof errcode === 'number') return codeNames[errcode & 0xff] ?? 'ERROR'
  return typeof code === 'string' && code.startsWith('SQLITE_') ? code.split('_')[1] : undefined
}

/** Another connection has the lock. Nothing was done, and the caller can try again. */
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

const cures: Readonly<Record<string, string>> = {
  FULL: 'Make room on the disk (a sweep needs room too), or raise max_page_count.',
  READONLY: 'The file, its folder and the connection must be writable.',
  CANTOPEN: 'The folder must exist and be writable, and the path must name a file.',
  NOTADB: 'The path names a file that is not a SQLite database; nothing in it was changed.',
  CORRUPT: 'Restore the file from a backup.',
  IOERR: 'Check the disk.',
}
// These stay as they are however often the caller tries again.
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

// What went wrong, in our words. Invariant: everything that leaves the store is an OnceError, and `executed: 'no'` is said
// only where the server itself said that it wrote nothing, or where the effect had not begun.

import { OnceError } from '../../core/errors.ts'

interface ServerError {
  readonly errno: number
  readonly sqlState: string
  readonly message: string
}

/** What the server itself said; undefined when it said nothing (a lost connection). It may sit in a wrapper's cause (Drizzle). */
function serverErrorOf(error: unknown): ServerError | undefined {
  let current = error
  // Wrappers of wrappers exist, circles too.
  for (let depth = 0; depth < 5 && typeof current === 'object' && current !== null; depth++) {
    const { errno, sqlState, message, cause } = current as Partial<ServerError> & { cause?: unknown }
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

// Lock wait time-out, deadlock, a row that changed since the snapshot (MariaDB's snapshot isolation), a conflict that group
// replication found at COMMIT. The first leaves the transaction open, and all of it is to be rolled back.
const conflicts: readonly (number | undefined)[] = [1205, 1213, 1020, 3101]

/** Because of others; when all of it is rolled back, it may run again. */
export function isConflict(error: unknown): boolean {
  return conflicts.includes(errnoOf(error))
}

/** The server's own word that this COMMIT did not happen. Without it (connection cut, server shut down) nobody knows. */
export function saysRolledBack(error: unknown): boolean {
  return isConflict(error) || /^(22|23|40|42)/.test(serverErrorOf(error)?.sqlState ?? '')
}

/** A savepoint that is not there has the same number as a procedure that is not there. */
export function isSavepointMissing(error: unknown): boolean {
  const said = serverErrorOf(error)
  return said?.errno === 1305 && said.message.includes('SAVEPOINT')
}

const cures: Readonly<Record<number, string>> = {
  1049: 'The database is missing',
  1146: 'The table is missing',
  1305: 'The procedures of this version are missing',
}

export function storeError(error: unknown, during: string, executed: 'no' | 'unknown'): OnceError {
  if (error instanceof OnceError) return error
  const errno = errnoOf(error) ?? 0
  if (isSavepointMissing(error)) {
    const message =
      `within: expected a connection inside a transaction; it is not in one, or its transaction was rolled back ` +
      `(by a deadlock, or by hand), so nothing was written. Begin a transaction first.`
    return new OnceError('INVALID_ARGUMENT', { message, cause: error })
  }
  if (errno === 1046) {
    const message = 'mysqlStore: expected a pool with a database, got one without. Name it in createPool.'
    return new OnceError('INVALID_ARGUMENT', { message, cause: error })
  }
  if (Object.hasOwn(cures, errno)) return schemaMissing(`${cures[errno]}: ${messageOf(error)}.`, error)
  if (isConflict(error)) {
    const message = `A ${during} was refused by the server because of others: ${messageOf(error)}. Roll back, and run the whole transaction again.`
    return new OnceError('TRANSACTION_CONFLICT', { message, cause: error })
  }
  const effect = executed === 'no' ? 'The effect was not run.' : 'Whether it was carried out is not known; ask again.'
  const message = `MySQL did not carry out a ${during}: ${messageOf(error)}. ${effect}`
  return new OnceError('STORE_UNAVAILABLE', { message, executed, cause: error })
}

export function schemaMissing(why: string, cause?: unknown): OnceError {
  const message = `${why} Run "await store.migrate()" once, or give the SQL of store.schema() to your own migrations.`
  return new OnceError('SCHEMA_MISSING', { message, cause })
}

export function messageOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  // A refused connection is an AggregateError without a message of its own.
  const inner = error instanceof AggregateError ? (error.errors[0] as unknown) : undefined
  return error.message || (inner instanceof Error ? inner.message : '') || error.name
}

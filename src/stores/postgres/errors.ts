// What went wrong, in our words. Invariant: everything that leaves the store is an OnceError, and `executed: 'no'` is said
// only where the server itself said that it wrote nothing, or where the effect had not begun.

import { OnceError } from '../../core/errors.ts'

/** Raised by the write function when a commit must not happen. Not of the standard's classes, so nobody else's. */
export const lostState = 'OO001'

/** Somebody else had the lock for longer than lock_timeout. */
export const lockNotAvailable = '55P03'

/** The SQLSTATE of an error of any of the clients, which may sit in a wrapper's cause (Drizzle) or meta (Prisma). */
export function sqlStateOf(error: unknown): string | undefined {
  let current = error
  // Wrappers of wrappers exist, circles too.
  for (let depth = 0; depth < 5 && typeof current === 'object' && current !== null; depth++) {
    const { code, meta, cause } = current as { code?: unknown; meta?: { code?: unknown }; cause?: unknown }
    for (const candidate of [meta?.code, code]) {
      // Node's own codes (EPIPE) have five characters, too; an SQLSTATE has a digit in it.
      if (typeof candidate === 'string' && /^(?=.*\d)[0-9A-Z]{5}$/.test(candidate)) return candidate
    }
    current = cause
  }
  return undefined
}

/** Rolled back because of others; all of it may run again. */
export function isConflict(error: unknown): boolean {
  const state = sqlStateOf(error)
  return state === '40001' || state === '40P01'
}

/** The claims of one statement share the server's lock table; when it is full, a later moment has room. */
export function isPassing(error: unknown): boolean {
  return isConflict(error) || sqlStateOf(error) === '53200'
}

/** The server's own word that this COMMIT did not happen. Without it (connection cut, server shut down) nobody knows. */
export function saysRolledBack(error: unknown): boolean {
  // 40 rollback, 23 deferred constraint, 25 aborted before, OO ours. Not 57, 58, XX: those come from a server that is going.
  return /^(40|23|25|22|42|54|55|P0|OO)/.test(sqlStateOf(error) ?? '')
}

const cures: Readonly<Record<string, string>> = {
  '3F000': 'The schema is missing',
  '42P01': 'The table is missing',
  '42883': 'The functions of this version are missing',
}

export function storeError(error: unknown, during: string, executed: 'no' | 'unknown'): OnceError {
  if (error instanceof OnceError) return error
  const state = sqlStateOf(error)
  if (state !== undefined && Object.hasOwn(cures, state))
    return schemaMissing(`${cures[state]}: ${messageOf(error)}.`, error)
  if (state === '25P01') {
    const message = `within: expected a client inside a transaction; it is not in one, so nothing was claimed. BEGIN first.`
    return new OnceError('INVALID_ARGUMENT', { message, cause: error })
  }
  if (isConflict(error)) {
    const message = `A ${during} was rolled back by PostgreSQL because of others: ${messageOf(error)}. Run the whole transaction again.`
    return new OnceError('TRANSACTION_CONFLICT', { message, cause: error })
  }
  const effect = executed === 'no' ? 'The effect was not run.' : 'Whether it was carried out is not known; ask again.'
  const message = `PostgreSQL did not carry out a ${during}: ${messageOf(error)}. ${effect}`
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

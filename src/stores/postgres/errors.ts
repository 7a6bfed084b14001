// Errors of the server and its clients as errors of the store. Invariant: everything that leaves the store is an OnceError, and it
// says `executed: 'no'` only where the server itself said that it wrote nothing, or where the effect had not begun.

import { OnceError } from '../../core/errors.ts'
import { isTlsFailure, messageOf, refusedTls, refusedUser, unavailable } from '../failures.ts'
import { conflictWithOthers, poolMends, schemaMissing } from '../sql-answers.ts'

/** Our functions raise it when a commit must not happen. Its class is none of the standard's, so no other code raises it. */
export const lostState = 'OO001'

/** Our functions raise it when the transaction is not the one that claimed any more. */
export const endedState = 'OO002'

/** Another transaction had the lock for longer than lock_timeout. */
export const lockNotAvailable = '55P03'

interface WrappedError {
  readonly code?: unknown
  /** Prisma: `code` up to version 6, the error of its driver since version 7. */
  readonly meta?: {
    readonly code?: unknown
    readonly driverAdapterError?: { readonly cause?: { readonly originalCode?: unknown } }
  }
  readonly cause?: unknown
}

/** The SQLSTATE of an error of any of the clients, which may sit in a wrapper's cause (Drizzle) or meta (Prisma). */
export function sqlStateOf(error: unknown): string | undefined {
  let current = error
  // A cause can be a wrapper again, and causes can form a circle.
  for (let depth = 0; depth < 5 && typeof current === 'object' && current !== null; depth++) {
    const { code, meta, cause } = current as WrappedError
    // Prisma's own codes (P2034) look like an SQLSTATE, so what the server said comes first.
    for (const candidate of [meta?.driverAdapterError?.cause?.originalCode, meta?.code, code]) {
      // Node's own codes (EPIPE) have five characters, too. An SQLSTATE has a digit in it.
      if (typeof candidate === 'string' && /^(?=.*\d)[0-9A-Z]{5}$/.test(candidate)) return candidate
    }
    current = cause
  }
  return undefined
}

/** Rolled back because of other transactions. All of it may run again. */
export function isConflict(error: unknown): boolean {
  const state = sqlStateOf(error)
  return state === '40001' || state === '40P01'
}

/** The claims of one statement share the server's lock table. When it is full, a later moment has room. */
export function isPassing(error: unknown): boolean {
  return isConflict(error) || sqlStateOf(error) === '53200'
}

/** The straight way also meets keys that were committed between the look of a statement and its lock. The next look finds them. */
export function isPassingStraight(error: unknown): boolean {
  return isPassing(error) || sqlStateOf(error) === '23505'
}

/** The session does not know the prepared statement, or knows it already: a pooler gave the connection another one. */
export function isUnprepared(error: unknown): boolean {
  const state = sqlStateOf(error)
  return state === '26000' || state === '42P05'
}

/** The server itself said that this COMMIT did not happen. Without that (connection cut, server shut down) it is unknown. */
export function saysRolledBack(error: unknown): boolean {
  // 40 rollback, 23 deferred constraint, 25 aborted before, 26 what the session has not prepared, OO ours. Not 57, 58, XX: a server
  // that shuts down or fails sends those, perhaps after it has committed.
  return /^(40|23|25|26|22|42|54|55|P0|OO)/.test(sqlStateOf(error) ?? '')
}

const missing: Readonly<Record<string, string>> = {
  '3F000': 'The schema is missing',
  '42P01': 'The table is missing',
  '42883': 'The functions of this version are missing',
}

/** A wrong password or user, a database that does not exist, a right that the user lacks. */
const refusals: readonly (string | undefined)[] = ['28P01', '28000', '3D000', '42501']

function refusesUser(error: unknown): boolean {
  // The server asks for a password, and the pool has none: pg itself says so, without a code.
  return refusals.includes(sqlStateOf(error)) || /password must be a string/.test(messageOf(error))
}

/** `what` completes "PostgreSQL could not …": "claim payments/42". */
export function storeError(error: unknown, what: string, executed: 'no' | 'unknown'): OnceError {
  if (error instanceof OnceError) return error
  const state = sqlStateOf(error)
  if (state !== undefined && Object.hasOwn(missing, state)) {
    return schemaMissing(`${missing[state]}: ${messageOf(error)}.`, error)
  }
  if (state === '25P01') {
    const message = `within: expected a client inside a transaction, got one outside of any. Nothing was claimed. BEGIN first.`
    return new OnceError('INVALID_ARGUMENT', { message, cause: error })
  }
  if (isConflict(error)) return conflictWithOthers('PostgreSQL', what, error)
  const refused = { server: 'PostgreSQL', cause: error }
  if (refusesUser(error)) return refusedUser({ ...refused, correct: poolMends.user })
  if (state === undefined && isTlsFailure(error)) return refusedTls({ ...refused, correct: poolMends.tls })
  return unavailable({ server: 'PostgreSQL', what, executed, cause: error })
}

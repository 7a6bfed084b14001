// What went wrong, in our words. Invariant: everything that leaves the store is an OnceError. `executed: 'no'` stands only where the
// server itself said that it wrote nothing, or where the effect had not begun.

import { errnoOf, serverErrorOf } from '../../clients/mysql.ts'
import { OnceError } from '../../core/errors.ts'
import { isTlsFailure, messageOf, refusedTls, refusedUser, unavailable } from '../failures.ts'
import { conflictWithOthers, poolMends, schemaMissing } from '../sql-answers.ts'

// Lock wait time-out, deadlock, a row that changed since the snapshot (MariaDB's snapshot isolation), a conflict that group
// replication found at COMMIT. The first leaves the transaction open, and all of it must be rolled back.
const conflicts: readonly (number | undefined)[] = [1205, 1213, 1020, 3101]

/** The server refused it because of other transactions. When all of it is rolled back, it may run again. */
export function isConflict(error: unknown): boolean {
  return conflicts.includes(errnoOf(error))
}

/** The server's own word that this COMMIT did not happen. Without it (connection cut, server shut down) its fate is unknown. */
export function saysRolledBack(error: unknown): boolean {
  return isConflict(error) || /^(22|23|40|42)/.test(serverErrorOf(error)?.sqlState ?? '')
}

/** A savepoint that is not there has the same number as a procedure that is not there. */
export function isSavepointMissing(error: unknown): boolean {
  const said = serverErrorOf(error)
  return said?.errno === 1305 && said.message.includes('SAVEPOINT')
}

const missing: Readonly<Record<number, string>> = {
  1049: 'The database is missing',
  1146: 'The table is missing',
  1305: 'The procedures of this version are missing',
}

/**
 * Access denied: to the server, from this host, to the database, a table, a column, a procedure, or without a password. An account
 * that is locked (MySQL, MariaDB), whose password has expired, or that must use TLS.
 */
const refusals: readonly number[] = [1045, 1130, 1044, 1142, 1143, 1370, 1698, 3118, 4151, 1820, 1862, 3159]

/** `what` completes "MySQL could not …": "claim payments/42". */
export function storeError(error: unknown, what: string, executed: 'no' | 'unknown'): OnceError {
  if (error instanceof OnceError) return error
  const errno = errnoOf(error) ?? 0
  if (isSavepointMissing(error)) {
    const message =
      `MySQL could not ${what}: expected a connection inside a transaction. Either none was begun, or it was rolled back ` +
      `(by a deadlock, or manually). Nothing was written. Begin a transaction first.`
    return new OnceError('INVALID_ARGUMENT', { message, cause: error })
  }
  if (errno === 1046) {
    const message = 'mysqlStore: expected a pool with a database, got one without. Name it in createPool.'
    return new OnceError('INVALID_ARGUMENT', { message, cause: error })
  }
  if (Object.hasOwn(missing, errno)) return schemaMissing(`${missing[errno]}: ${messageOf(error)}.`, error)
  if (isConflict(error)) return conflictWithOthers('MySQL', what, error)
  const refused = { server: 'MySQL', cause: error }
  if (refusals.includes(errno)) return refusedUser({ ...refused, correct: poolMends.user })
  if (errno === 0 && isTlsFailure(error)) return refusedTls({ ...refused, correct: poolMends.tls })
  return unavailable({ server: 'MySQL', what, executed, cause: error })
}

// What went wrong, in our words. Invariant: everything that leaves the store is an OnceError.

import { OnceError } from '../../core/errors.ts'
import { isTlsFailure, refusedTls, refusedUser, unavailable } from '../failures.ts'

// CommandNotFound, BSONObjectTooLarge: the same command would fail again.
const lasting = [59, 10_334]

// UserNotFound, Unauthorized, AuthenticationFailed, and Atlas' own for a wrong user or password.
const refusals = [11, 13, 18, 8_000]

/** `what` completes "MongoDB could not …": "claim payments/42". */
export function storeError(error: unknown, what: string, executed: 'no' | 'unknown'): OnceError {
  if (error instanceof OnceError) return error
  const code = codeOf(error)
  const refused = { server: 'MongoDB', cause: error }
  if (refusals.includes(code)) {
    return refusedUser({
      ...refused,
      correct: 'the user, the password or the roles of the client that the store was given',
    })
  }
  if (code === 0 && isTlsFailure(error))
    return refusedTls({ ...refused, correct: 'the TLS options of the client that the store was given' })
  return unavailable({ server: 'MongoDB', what, executed, cause: error, retryable: !lasting.includes(code) })
}

function codeOf(error: unknown): number {
  const code = (error as { code?: unknown } | undefined)?.code
  return typeof code === 'number' ? code : 0
}

// What went wrong, in our words. Invariant: everything that leaves the store is an OnceError.

import { OnceError } from '../../core/errors.ts'
import { isTlsFailure, messageOf, refusedTls, refusedUser } from '../refusals.ts'

// CommandNotFound, BSONObjectTooLarge: the same command would fail again.
const lasting = [59, 10_334]

// UserNotFound, Unauthorized, AuthenticationFailed, and Atlas' own for a wrong user or password.
const refusals = [11, 13, 18, 8_000]

export function storeError(error: unknown, during: string, executed: 'no' | 'unknown'): OnceError {
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
  const effect = executed === 'no' ? 'The effect was not run.' : 'Whether it was carried out is not known; ask again.'
  return new OnceError('STORE_UNAVAILABLE', {
    message: `MongoDB did not carry out a ${during}: ${messageOf(error)}. ${effect}`,
    executed,
    retryable: !lasting.includes(code),
    cause: error,
  })
}

function codeOf(error: unknown): number {
  const code = (error as { code?: unknown } | undefined)?.code
  return typeof code === 'number' ? code : 0
}

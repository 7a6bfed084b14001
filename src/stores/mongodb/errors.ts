// What went wrong, in our words. Invariant: everything that leaves the store is an OnceError.

import { OnceError } from '../../core/errors.ts'

// Unauthorized, AuthenticationFailed, CommandNotFound, BSONObjectTooLarge: the same command would fail again.
const lasting = [13, 18, 59, 10_334]

export function storeError(error: unknown, during: string, executed: 'no' | 'unknown'): OnceError {
  if (error instanceof OnceError) return error
  const effect = executed === 'no' ? 'The effect was not run.' : 'Whether it was carried out is not known; ask again.'
  return new OnceError('STORE_UNAVAILABLE', {
    message: `MongoDB did not carry out a ${during}: ${error instanceof Error ? error.message : String(error)}. ${effect}`,
    executed,
    retryable: !lasting.includes(codeOf(error)),
    cause: error,
  })
}

function codeOf(error: unknown): number {
  const code = (error as { code?: unknown } | undefined)?.code
  return typeof code === 'number' ? code : 0
}

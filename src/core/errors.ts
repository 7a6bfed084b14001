// The one error class. Before a caller retries it must know one thing: may the effect have happened? `executed` says so:
// 'no' only when this call did not run the effect and has learnt of no attempt that did or might.

/** Every code, with what it says about the effect. docs/errors.md has the cure of each code, and a test compares the two. */
export const errorCodes = {
  INVALID_ARGUMENT: { executed: 'no', retryable: false },
  UNSUPPORTED: { executed: 'no', retryable: false },
  IN_FLIGHT: { executed: 'unknown', retryable: true },
  MISMATCH: { executed: 'no', retryable: false },
  EXPIRED: { executed: 'unknown', retryable: false },
  IN_DOUBT: { executed: 'unknown', retryable: false },
  CLAIM_LOST: { executed: 'unknown', retryable: true },
  DEADLINE_PASSED: { executed: 'unknown', retryable: true },
  STORE_UNAVAILABLE: { executed: 'no', retryable: true },
  STORE_UNSAFE: { executed: 'no', retryable: false },
  SCHEMA_MISSING: { executed: 'no', retryable: false },
  PARKED: { executed: 'unknown', retryable: false },
  NEWER_VERSION: { executed: 'unknown', retryable: true },
  TRANSACTION_CONFLICT: { executed: 'no', retryable: true },
  COMMIT_REFUSED: { executed: 'no', retryable: false },
  OUTCOME_UNKNOWN: { executed: 'unknown', retryable: true },
  NO_ANSWER: { executed: 'unknown', retryable: true },
  OUTCOME_UNREADABLE: { executed: 'yes', retryable: false },
  OUTCOME_NOT_STORED: { executed: 'yes', retryable: false },
} as const

export type ErrorCode = keyof typeof errorCodes
export type Executed = 'yes' | 'no' | 'unknown'

export interface OnceErrorDetails {
  readonly message: string
  readonly executed?: Executed
  readonly retryable?: boolean
  readonly retryAfterMs?: number
  readonly cause?: unknown
}

export class OnceError extends Error {
  readonly code: ErrorCode
  readonly executed: Executed
  readonly retryable: boolean
  readonly retryAfterMs: number | undefined

  constructor(code: ErrorCode, details: OnceErrorDetails) {
    super(details.message, details.cause === undefined ? undefined : { cause: details.cause })
    this.name = 'OnceError'
    this.code = code
    this.executed = details.executed ?? errorCodes[code].executed
    this.retryable = details.retryable ?? errorCodes[code].retryable
    this.retryAfterMs = details.retryAfterMs
  }
}

/** A failure that is itself the answer (card declined): it is stored, and every retry gets the same. */
export class FinalError extends Error {
  readonly data: unknown

  constructor(message: string, details: { readonly data?: unknown; readonly cause?: unknown } = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause })
    this.name = 'FinalError'
    this.data = details.data
  }
}

/** The effect may have taken place: the key stays claimed until its lease ends, then `onTakeover` decides. */
export class InDoubtError extends Error {
  constructor(message: string, details: { readonly cause?: unknown } = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause })
    this.name = 'InDoubtError'
  }
}

/** The effect was asked for but never began (validation failed, a limiter said no): the attempt leaves no trace. */
export class NotBegunError extends Error {
  constructor(message: string, details: { readonly cause?: unknown } = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause })
    this.name = 'NotBegunError'
  }
}

export function invalidArgument(message: string): OnceError {
  return new OnceError('INVALID_ARGUMENT', { message })
}

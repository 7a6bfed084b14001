// The one error class. Before a caller retries it must know one thing: may the effect have happened? `executed` says so:
// 'no' only when this call did not run the effect and has learnt of no attempt that did or might.

export type ErrorCode =
  | 'INVALID_ARGUMENT'
  | 'UNSUPPORTED'
  | 'UNAUTHENTICATED'
  | 'IN_FLIGHT'
  | 'MISMATCH'
  | 'EXPIRED'
  | 'IN_DOUBT'
  | 'CLAIM_LOST'
  | 'DEADLINE_PASSED'
  | 'STORE_UNAVAILABLE'
  | 'STORE_UNSAFE'
  | 'SCHEMA_MISSING'
  | 'PARKED'
  | 'NEWER_VERSION'
  | 'TRANSACTION_CONFLICT'
  | 'COMMIT_REFUSED'
  | 'OUTCOME_UNKNOWN'
  | 'NO_ANSWER'
  | 'OUTCOME_UNREADABLE'
  | 'OUTCOME_NOT_STORED'
  | 'SESSION_EXPIRED'
  | 'FENCED'
  | 'FORGOTTEN'
  | 'WINDOW_EXCEEDED'
  | 'GAP'

interface CodeMeaning {
  readonly executed: Executed
  readonly retryable: boolean
}

// Each once, and not in every row: browsers load these tables. A code that only refuses is in the second one, which they do not load.
const refused: CodeMeaning = { executed: 'no', retryable: false }
const notNow: CodeMeaning = { executed: 'no', retryable: true }
const inDoubt: CodeMeaning = { executed: 'unknown', retryable: false }
const askAgain: CodeMeaning = { executed: 'unknown', retryable: true }
const executed: CodeMeaning = { executed: 'yes', retryable: false }

type RefusedCode =
  | 'INVALID_ARGUMENT'
  | 'UNSUPPORTED'
  | 'UNAUTHENTICATED'
  | 'MISMATCH'
  | 'STORE_UNSAFE'
  | 'SCHEMA_MISSING'
  | 'COMMIT_REFUSED'

/** All codes that are not a plain refusal. */
const otherCodes: Readonly<Record<Exclude<ErrorCode, RefusedCode>, CodeMeaning>> = {
  IN_FLIGHT: askAgain,
  EXPIRED: inDoubt,
  IN_DOUBT: inDoubt,
  CLAIM_LOST: askAgain,
  DEADLINE_PASSED: askAgain,
  STORE_UNAVAILABLE: notNow,
  PARKED: inDoubt,
  NEWER_VERSION: askAgain,
  TRANSACTION_CONFLICT: notNow,
  OUTCOME_UNKNOWN: askAgain,
  NO_ANSWER: askAgain,
  OUTCOME_UNREADABLE: executed,
  OUTCOME_NOT_STORED: executed,
  SESSION_EXPIRED: inDoubt,
  FENCED: inDoubt,
  FORGOTTEN: inDoubt,
  WINDOW_EXCEEDED: notNow,
  GAP: notNow,
}

/** Every code, with what it says about the effect. docs/errors.md has the cure of each code, and a test compares the two. */
export const errorCodes: Readonly<Record<ErrorCode, CodeMeaning>> = {
  ...otherCodes,
  INVALID_ARGUMENT: refused,
  UNSUPPORTED: refused,
  UNAUTHENTICATED: refused,
  MISMATCH: refused,
  STORE_UNSAFE: refused,
  SCHEMA_MISSING: refused,
  COMMIT_REFUSED: refused,
}

export type Executed = 'yes' | 'no' | 'unknown'

export interface OnceErrorDetails {
  readonly message: string
  readonly executed?: Executed
  readonly retryable?: boolean
  readonly retryAfterMs?: number | undefined
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
    const meaning = (otherCodes as Partial<typeof errorCodes>)[code] ?? refused
    this.executed = details.executed ?? meaning.executed
    this.retryable = details.retryable ?? meaning.retryable
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

/** The store may have done what it was asked. What its caller wanted was not begun, and `why` says so. Other errors stay as they are. */
export function asNotBegun(cause: unknown, why: string): unknown {
  if (!(cause instanceof OnceError) || cause.executed !== 'unknown') return cause
  const { code, retryable } = cause
  return new OnceError(code, { message: `${why} (${cause.message})`, executed: 'no', retryable, cause })
}

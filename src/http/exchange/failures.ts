// Which problem an error of `once` or of a session becomes. A table, so that every code has its one place.

import type { ErrorCode } from '../../core/errors.ts'
import type { ProblemName } from './problem.ts'
import type { RequestAttempt } from './verdict.ts'

/** The answer when `once` refused, or could not keep what the handler produced. */
export interface FailureRule {
  readonly problem: ProblemName
  /** Instead of `problem`, for a number in a session. */
  readonly numbered?: ProblemName
  /** Instead of `problem`, when the answer could not be written and what the handler did lies outside of the transaction of its session. */
  readonly ranOutside?: ProblemName
  /** Instead of `problem`, when `once` knows that nothing of the handler's writes was kept. `thrown`: the program must be changed. */
  readonly rolledBack?: ProblemName | 'thrown'
  /** With `onStoreDown: 'run'`, and no transaction: run the handler, or forward what it produced, and say so in a header. */
  readonly unprotected?: 'run' | 'forward'
  /** Without a transaction: forward what the handler produced. The next request gets the problem `notStored`. */
  readonly forward?: true
}

/** A code that is not listed here is an error of the program, and is thrown on. */
export const failureRules: Readonly<Partial<Record<ErrorCode, FailureRule>>> = {
  IN_FLIGHT: { problem: 'inProgress' },
  MISMATCH: { problem: 'keyReused', numbered: 'sequenceReused' },
  EXPIRED: { problem: 'keyExpired' },
  IN_DOUBT: { problem: 'inDoubt' },
  // The retry gets the winner's answer.
  CLAIM_LOST: { problem: 'inProgress' },
  DEADLINE_PASSED: { problem: 'outcomeUnknown', rolledBack: 'deadlinePassed', ranOutside: 'outcomeUnknown' },
  STORE_UNAVAILABLE: { problem: 'storeUnavailable', unprotected: 'run', ranOutside: 'outcomeUnknown' },
  STORE_UNSAFE: { problem: 'storeUnavailable' },
  SCHEMA_MISSING: { problem: 'storeUnavailable' },
  TRANSACTION_CONFLICT: { problem: 'transactionConflict', ranOutside: 'outcomeUnknown' },
  OUTCOME_UNKNOWN: { problem: 'outcomeUnknown', unprotected: 'forward' },
  OUTCOME_UNREADABLE: { problem: 'outcomeUnreadable' },
  OUTCOME_NOT_STORED: { problem: 'notStored', rolledBack: 'thrown', forward: true },
  SESSION_EXPIRED: { problem: 'sessionExpired' },
  FENCED: { problem: 'sessionFenced' },
  FORGOTTEN: { problem: 'sessionForgotten' },
  WINDOW_EXCEEDED: { problem: 'windowExceeded' },
  GAP: { problem: 'sequenceGap' },
}

/** Of a registration, a renewal or the end of a session. A store that did not answer may have done it. */
export function sessionProblemOf(code: ErrorCode): ProblemName | undefined {
  return code === 'STORE_UNAVAILABLE' ? 'sessionNotConfirmed' : failureRules[code]?.problem
}

/** `thrown`: the error is thrown on. */
export function problemOf(
  rule: FailureRule,
  { numbered, produced }: RequestAttempt,
  nothingKept: boolean,
  inTransaction: boolean,
): ProblemName | 'thrown' {
  if (numbered && produced && !inTransaction && rule.ranOutside) return rule.ranOutside
  if (nothingKept && rule.rolledBack) return rule.rolledBack
  return (numbered && rule.numbered) ?? rule.problem
}

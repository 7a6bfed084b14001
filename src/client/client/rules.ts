// What is asked again, in one table. Everything that is not in it is the answer, and goes to the caller as it is. An answer that the
// server has stored (a replay) is never asked again: it will not change.

import type { ErrorCode, Executed } from '../../core/errors.ts'
import type { Arrived } from './answer.ts'

export type Ruling =
  | { readonly is: 'answer' }
  | {
      readonly is: 'retry'
      readonly why: string
      readonly executed: Executed
      readonly retryAfterMs: number | undefined
    }
  | { readonly is: 'error'; readonly code: ErrorCode; readonly executed: Executed; readonly why: string }

/** Statuses that say nothing about the request but "not now". */
const retriedStatuses = (status: number): boolean =>
  status === 408 || status === 425 || status === 429 || (status >= 500 && status <= 599)

/**
 * What a server says about a key, by the `code` of its problem document. Where the document says `retryable`, that decides, and the
 * error code is for the one that is not. Stripe's two codes stand for those of its own API.
 */
export const problemRules: Readonly<Record<string, ErrorCode | 'retry'>> = {
  'idempotency-in-progress': 'retry',
  idempotency_key_in_use: 'retry',
  'idempotency-store-unavailable': 'STORE_UNAVAILABLE',
  'idempotency-transaction-conflict': 'TRANSACTION_CONFLICT',
  'idempotency-deadline-passed': 'DEADLINE_PASSED',
  'idempotency-outcome-unknown': 'IN_DOUBT',
  'idempotency-key-expired': 'EXPIRED',
  'idempotency-key-reused': 'MISMATCH',
  idempotency_error: 'MISMATCH',
  'idempotency-response-not-stored': 'OUTCOME_NOT_STORED',
  'idempotency-outcome-unreadable': 'OUTCOME_UNREADABLE',
  'idempotency-key-missing': 'INVALID_ARGUMENT',
  'idempotency-key-invalid': 'INVALID_ARGUMENT',
  'idempotency-scope-missing': 'INVALID_ARGUMENT',
  'idempotency-digest-mismatch': 'INVALID_ARGUMENT',
  'idempotency-body-too-large': 'INVALID_ARGUMENT',
}

interface Problem {
  readonly code?: unknown
  readonly title?: unknown
  readonly retryable?: unknown
  readonly executed?: unknown
  readonly error?: { readonly code?: unknown; readonly type?: unknown; readonly message?: unknown }
}

export function judge(arrived: Arrived, replayHeader: string, nowMs: number): Ruling {
  const { status, headers } = arrived.response
  if (status < 400 || headers.get(replayHeader) === 'true') return { is: 'answer' }
  const problem = problemOf(arrived)
  const code = [problem.code, problem.error?.code, problem.error?.type].find((each) => ruleOf(each))
  const rule = ruleOf(code)
  const said = headers.get('stripe-should-retry')
  const isRetried = rule ? isRetriedProblem(rule, problem) : retriedStatuses(status)
  const why = `${status}${code ? ` ${String(code)}` : ''}`
  const executed = executedOf(problem)
  if (said === null ? isRetried : said === 'true') {
    return { is: 'retry', why, executed, retryAfterMs: retryAfterMs(headers.get('retry-after'), nowMs) }
  }
  return rule && rule !== 'retry' ? { is: 'error', code: rule, executed, why } : { is: 'answer' }
}

function ruleOf(code: unknown): ErrorCode | 'retry' | undefined {
  return typeof code === 'string' && Object.hasOwn(problemRules, code) ? problemRules[code] : undefined
}

function isRetriedProblem(rule: ErrorCode | 'retry', { retryable }: Problem): boolean {
  return typeof retryable === 'boolean' ? retryable : rule === 'retry'
}

function executedOf({ executed }: Problem): Executed {
  return executed === 'yes' || executed === 'no' ? executed : 'unknown'
}

function problemOf({ response, bytes }: Arrived): Problem {
  if (!bytes || !/\bjson\b/.test(response.headers.get('content-type') ?? '')) return {}
  try {
    return (JSON.parse(new TextDecoder().decode(bytes)) as Problem | null) ?? {}
  } catch {
    return {}
  }
}

/** Seconds, or a date (RFC 9110, 10.2.3). What is neither is as if it were not there. */
function retryAfterMs(value: string | null, nowMs: number): number | undefined {
  if (value === null) return undefined
  const ms = /^\d+$/.test(value) ? Number(value) * 1_000 : Date.parse(value) - nowMs
  return Number.isNaN(ms) ? undefined : Math.max(0, ms)
}

/** Codes of Node's errors that come before a byte was sent. */
const neverSent = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'UND_ERR_CONNECT_TIMEOUT'])

/** A fetch that failed: nothing is known of its effect, unless there was no connection. */
export function judgeFailure(error: unknown): Extract<Ruling, { is: 'retry' }> {
  const { message, cause } = error as { message?: string; cause?: { code?: string; message?: string } }
  const executed = neverSent.has(cause?.code ?? '') ? 'no' : 'unknown'
  const why = [message ?? String(error), cause?.code ?? cause?.message].filter(Boolean).join(': ')
  return { is: 'retry', why, executed, retryAfterMs: undefined }
}

// What is asked again, in one table. Everything that is not in it is the answer, and goes to the caller as it is. An answer that the
// server has stored (a replay) is never asked again: it will not change.

import { msUntil } from '../../core/backoff.ts'
import type { ErrorCode, Executed } from '../../core/errors.ts'
import type { Arrived } from './answer.ts'
import type { ServerRules } from './settings.ts'

export interface Ruling {
  /** An error code where no retry helps. */
  readonly is: 'answer' | 'retry' | ErrorCode
  /** What the server said, in a few words. */
  readonly why: string
  readonly executed: Executed
  readonly retryAfterMs?: number | undefined
}

/** Statuses that say nothing about the request but "not now". */
const isRetried = (status: number): boolean => [408, 425, 429].includes(status) || status >= 500

/**
 * What a server says about a key, by the `code` of its problem document. Where the document says `retryable`, that decides, and the error
 * code is for those that are not. Every other code that begins with `idempotency-` refuses the request as it is. Those with underscores
 * are Stripe's.
 */
const problemRules = new Map<unknown, ErrorCode>(
  Object.entries({
    'idempotency-in-progress': 'IN_FLIGHT',
    idempotency_key_in_use: 'IN_FLIGHT',
    'idempotency-store-unavailable': 'STORE_UNAVAILABLE',
    'idempotency-outcome-unknown': 'IN_DOUBT',
    'idempotency-key-expired': 'EXPIRED',
    'idempotency-key-reused': 'MISMATCH',
    idempotency_error: 'MISMATCH',
    'idempotency-response-not-stored': 'OUTCOME_NOT_STORED',
    'idempotency-outcome-unreadable': 'OUTCOME_UNREADABLE',
  }),
)

interface Problem {
  readonly code?: unknown
  readonly retryable?: unknown
  readonly executed?: unknown
  readonly error?: { readonly code?: unknown; readonly type?: unknown }
}

export function judge(arrived: Arrived, { replayHeader, problems }: Required<ServerRules>, nowMs: number): Ruling {
  const { status, headers } = arrived
  const ruleOf = (said: unknown): ErrorCode | undefined =>
    problems.get(said) ??
    problemRules.get(said) ??
    (String(said).startsWith('idempotency-') ? 'INVALID_ARGUMENT' : undefined)
  const { code, retryable, executed, error } = problemOf(arrived)
  const known = [code, error?.code, error?.type].find(ruleOf) as string | undefined
  const rule = ruleOf(known)
  const isAnswer = status < 400 || headers.get(replayHeader) === 'true'
  const isAgain = rule ? (retryable ?? rule === 'IN_FLIGHT') : isRetried(status)
  return {
    is: isAnswer ? 'answer' : isAgain ? 'retry' : (rule ?? 'answer'),
    why: `${status} ${known ?? ''}`.trim(),
    executed: executed === 'yes' || executed === 'no' ? executed : 'unknown',
    retryAfterMs: msUntil(headers.get('retry-after'), nowMs),
  }
}

function problemOf({ headers, body }: Arrived): Problem {
  try {
    const isJson = headers.get('content-type')?.includes('json')
    return (isJson && (JSON.parse(new TextDecoder().decode(body as Uint8Array)) as Problem | null)) || {}
  } catch {
    return {}
  }
}

/** A fetch that failed: nothing is known of its effect. */
export function judgeFailure(error: unknown): Ruling {
  const { message, cause } = error as { message?: string; cause?: { message?: string } }
  return { is: 'retry', why: `${message ?? String(error)} ${cause?.message ?? ''}`.trim(), executed: 'unknown' }
}

// What the exchange answers by itself: problem documents (RFC 9457), each with a type of its own. They are never stored, never
// cached, and carry neither the key nor the tenant. `executed` says what a client must know before it tries again.

import { rulesPath } from './options.ts'
import type { HttpSettings } from './options.ts'
import type { Answer, HeaderLine } from './stored-response.ts'

export interface ProblemKind {
  readonly code: string
  readonly status: number
  readonly title: string
  readonly detail: string
  readonly retryable: boolean
  readonly executed: 'yes' | 'no' | 'unknown'
}

function kind(
  code: string,
  status: number,
  executed: ProblemKind['executed'],
  retry: 'retryable' | 'final',
  title: string,
  detail: string,
): ProblemKind {
  return { code: `idempotency-${code}`, status, executed, retryable: retry === 'retryable', title, detail }
}

export type ProblemName =
  | 'keyMissing'
  | 'keyInvalid'
  | 'scopeMissing'
  | 'digestMismatch'
  | 'bodyTooLarge'
  | 'keyReused'
  | 'inProgress'
  | 'notStored'
  | 'inDoubt'
  | 'outcomeUnknown'
  | 'keyExpired'
  | 'storeUnavailable'
  | 'transactionConflict'
  | 'deadlinePassed'
  | 'outcomeUnreadable'

/** Every answer of our own. docs/http.md lists them; a test compares the two. */
export const problemKinds: Readonly<Record<ProblemName, ProblemKind>> = {
  keyMissing: kind(
    'key-missing',
    400,
    'no',
    'final',
    'An Idempotency-Key header is required here',
    'Send a new random key, such as a UUID, with every new request, and the same key with its retries.',
  ),
  keyInvalid: kind(
    'key-invalid',
    400,
    'no',
    'final',
    'The Idempotency-Key header cannot be used',
    'Send one header line with a quoted string of visible ASCII.',
  ),
  scopeMissing: kind(
    'scope-missing',
    400,
    'no',
    'final',
    'It is not known whose Idempotency-Key this is',
    'Send the credentials that name the account the key belongs to.',
  ),
  digestMismatch: kind(
    'digest-mismatch',
    400,
    'unknown',
    'final',
    'The content does not have the digest that Content-Digest claims',
    'Nothing was stored. Send the content and its sha-256 digest again.',
  ),
  bodyTooLarge: kind(
    'body-too-large',
    413,
    'no',
    'final',
    'The content is too large for a request with an Idempotency-Key',
    'Send less, or send a Content-Digest header with the sha-256 digest of the content.',
  ),
  keyReused: kind(
    'key-reused',
    422,
    'no',
    'final',
    'This Idempotency-Key was used with another request',
    'Keys can only be used with the same parameters they were first used with. Use a new key for a new request.',
  ),
  inProgress: kind(
    'in-progress',
    409,
    'unknown',
    'retryable',
    'A request with this Idempotency-Key is being processed',
    'Ask again with the same key: the answer will be that of the request which is being processed.',
  ),
  notStored: kind(
    'response-not-stored',
    409,
    'yes',
    'final',
    'The request was processed, and its answer was not stored',
    'It was a stream, or too large to be stored. It will not be processed again.',
  ),
  inDoubt: kind(
    'outcome-unknown',
    409,
    'unknown',
    'final',
    'It is not known what became of the request with this Idempotency-Key',
    'It began and never reported. It will not be processed again until somebody has looked into it.',
  ),
  outcomeUnknown: kind(
    'outcome-unknown',
    503,
    'unknown',
    'retryable',
    'It is not known what became of the request with this Idempotency-Key',
    'It was processed, and the result could not be recorded. Ask again with the same key.',
  ),
  keyExpired: kind(
    'key-expired',
    410,
    'unknown',
    'final',
    'This Idempotency-Key was used, and its answer is no longer kept',
    'Nothing was processed now. Find out what became of the first request, and use a new key if it is wanted again.',
  ),
  storeUnavailable: kind(
    'store-unavailable',
    503,
    'no',
    'retryable',
    'Requests with an Idempotency-Key cannot be processed at the moment',
    'Nothing was processed. Ask again with the same key.',
  ),
  transactionConflict: kind(
    'transaction-conflict',
    503,
    'no',
    'retryable',
    'The request was rolled back because of others',
    'Nothing was kept of it. Ask again with the same key.',
  ),
  deadlinePassed: kind(
    'deadline-passed',
    503,
    'no',
    'retryable',
    'The request did not end by its deadline and was rolled back',
    'Nothing was kept of it. Ask again with the same key.',
  ),
  outcomeUnreadable: kind(
    'outcome-unreadable',
    500,
    'yes',
    'final',
    'The request was processed, and its stored answer cannot be read',
    'It will not be processed again. Tell the operator of this server.',
  ),
}

/** A duplicate that comes back sooner is held by waitMs anyway; one that comes back much later waits for nothing. */
const retryAfterSecondsMax = 5

export interface ProblemDetails {
  readonly detail?: string
  readonly retryAfterMs?: number | undefined
  /** False where no retry can cure it, whatever the kind says. */
  readonly retryable?: boolean
}

export function problem(settings: HttpSettings<never>, name: ProblemName, details: ProblemDetails = {}): Answer {
  const is: ProblemKind = problemKinds[name]
  const stripe = settings.profile === 'stripe'
  const status = stripe && name === 'keyReused' ? 400 : is.status
  const detail = details.detail ? `${details.detail} ${is.detail}` : is.detail
  const headers: HeaderLine[] = [
    ['Content-Type', 'application/problem+json'],
    ['Cache-Control', 'no-store'],
    ['Link', `<${rulesPath}>; rel="describedby"`],
  ]
  const retryable = is.retryable && details.retryable !== false
  if (retryable) headers.push(['Retry-After', retryAfter(details.retryAfterMs)])
  if (stripe) headers.push(['Stripe-Should-Retry', String(retryable)])
  const { code, executed } = is
  const title = is.title.replace('Idempotency-Key', settings.header)
  const document = { type: `${settings.problemBase}/${code}`, title, status, detail, code, retryable, executed }
  const body = stripe ? { ...document, error: stripeError(name, document) } : document
  return { status, headers, body: Buffer.from(JSON.stringify(body)) }
}

function retryAfter(retryAfterMs = 0): string {
  return String(Math.min(retryAfterSecondsMax, Math.max(1, Math.ceil(retryAfterMs / 1000))))
}

// What stripe-node looks for: it takes an error body without an `error` member for a success.
function stripeError(name: ProblemName, document: { title: string; detail: string; status: number }): object {
  const message = `${document.title}. ${document.detail}`
  if (name === 'inProgress') return { type: 'invalid_request_error', code: 'idempotency_key_in_use', message }
  if (document.status >= 500) return { type: 'api_error', message }
  const invalid = name === 'keyMissing' || name === 'scopeMissing' || name === 'bodyTooLarge'
  return { type: invalid ? 'invalid_request_error' : 'idempotency_error', message }
}

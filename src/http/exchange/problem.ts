// The exchange's own answers: problem documents (RFC 9457), each with its own type. They are never stored, never cached, and
// carry neither the key nor the tenant. `executed` says what a client must know before it retries.

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
  | 'sessionInvalid'
  | 'sessionAndKey'
  | 'sessionsNotOffered'
  | 'sessionExpired'
  | 'sessionFenced'
  | 'sessionForgotten'
  | 'sequenceReused'
  | 'windowExceeded'
  | 'sequenceGap'
  | 'sessionNotConfirmed'

/** Every answer that the exchange itself makes. docs/http.md lists them, and a test compares the two. */
export const problemKinds: Readonly<Record<ProblemName, ProblemKind>> = {
  keyMissing: {
    code: 'idempotency-key-missing',
    status: 400,
    executed: 'no',
    retryable: false,
    title: 'The Idempotency-Key header is required here',
    detail: 'Send a new random key, such as a UUID, with every new request, and the same key with its retries.',
  },
  keyInvalid: {
    code: 'idempotency-key-invalid',
    status: 400,
    executed: 'no',
    retryable: false,
    title: 'The Idempotency-Key header cannot be used',
    detail: 'Send one header line with a quoted string of visible ASCII.',
  },
  scopeMissing: {
    code: 'idempotency-scope-missing',
    status: 400,
    executed: 'no',
    retryable: false,
    title: 'It is not known whose Idempotency-Key this is',
    detail: 'Send the credentials that name the account the key belongs to.',
  },
  digestMismatch: {
    code: 'idempotency-digest-mismatch',
    status: 400,
    executed: 'unknown',
    retryable: false,
    title: 'The content does not have the digest that Content-Digest claims',
    detail: 'Nothing was stored. Send the content and its sha-256 digest again.',
  },
  bodyTooLarge: {
    code: 'idempotency-body-too-large',
    status: 413,
    executed: 'no',
    retryable: false,
    title: 'The content is too large for a request with the header Idempotency-Key',
    detail: 'Send less, or send a Content-Digest header with the sha-256 digest of the content.',
  },
  keyReused: {
    code: 'idempotency-key-reused',
    status: 422,
    executed: 'no',
    retryable: false,
    title: 'This Idempotency-Key was used with another request',
    detail:
      'Keys can only be used with the same parameters they were first used with. Use a new key for a new request.',
  },
  inProgress: {
    code: 'idempotency-in-progress',
    status: 409,
    executed: 'unknown',
    retryable: true,
    title: 'A request with this Idempotency-Key is being processed',
    detail: 'Ask again with the same key: the answer will be that of the request which is being processed.',
  },
  notStored: {
    code: 'idempotency-response-not-stored',
    status: 409,
    executed: 'yes',
    retryable: false,
    title: 'The request was processed, and its answer was not stored',
    detail: 'It was a stream, or too large to be stored. It will not be processed again.',
  },
  inDoubt: {
    code: 'idempotency-outcome-unknown',
    status: 409,
    executed: 'unknown',
    retryable: false,
    title: 'It is not known what became of the request with this Idempotency-Key',
    detail: 'It began and never reported. It will not be processed again until an operator has resolved it.',
  },
  outcomeUnknown: {
    code: 'idempotency-outcome-unknown',
    status: 503,
    executed: 'unknown',
    retryable: true,
    title: 'It is not known what became of the request with this Idempotency-Key',
    detail: 'It was processed, and the result could not be recorded. Ask again with the same key.',
  },
  keyExpired: {
    code: 'idempotency-key-expired',
    status: 410,
    executed: 'unknown',
    retryable: false,
    title: 'This Idempotency-Key was used, and its answer is no longer kept',
    detail:
      'Nothing was processed now. Find out what became of the first request, and use a new key if it is wanted again.',
  },
  storeUnavailable: {
    code: 'idempotency-store-unavailable',
    status: 503,
    executed: 'no',
    retryable: true,
    title: 'Requests with the header Idempotency-Key cannot be processed at the moment',
    detail: 'Nothing was processed. Ask again with the same key.',
  },
  transactionConflict: {
    code: 'idempotency-transaction-conflict',
    status: 503,
    executed: 'no',
    retryable: true,
    title: 'The request was rolled back by a conflict with another transaction',
    detail: 'Nothing was kept of it. Ask again with the same key.',
  },
  deadlinePassed: {
    code: 'idempotency-deadline-passed',
    status: 503,
    executed: 'no',
    retryable: true,
    title: 'The request did not end by its deadline and was rolled back',
    detail: 'Nothing was kept of it. Ask again with the same key.',
  },
  outcomeUnreadable: {
    code: 'idempotency-outcome-unreadable',
    status: 500,
    executed: 'yes',
    retryable: false,
    title: 'The request was processed, and its stored answer cannot be read',
    detail: 'It will not be processed again. Tell the operator of this server.',
  },
  sessionInvalid: {
    code: 'idempotency-session-invalid',
    status: 400,
    executed: 'no',
    retryable: false,
    title: 'The request does not say which request of which session it is',
    detail:
      'Send Idempotency-Session, Idempotency-Epoch, Idempotency-Sequence and Idempotency-Acknowledged, each in one header line.',
  },
  sessionAndKey: {
    code: 'idempotency-session-and-key',
    status: 400,
    executed: 'no',
    retryable: false,
    title: 'The request has both an Idempotency-Key and a session',
    detail: 'Send either the key, or the headers of the session.',
  },
  sessionsNotOffered: {
    code: 'idempotency-sessions-not-offered',
    status: 400,
    executed: 'no',
    retryable: false,
    title: 'This server offers no sessions',
    detail: 'Nothing was processed, as it would not have been protected. Send an idempotency key instead.',
  },
  sessionExpired: {
    code: 'idempotency-session-expired',
    status: 410,
    executed: 'unknown',
    retryable: false,
    title: 'The session is unknown, closed, or was silent for too long',
    detail: 'Nothing was processed now. Find out what became of the requests that have no answer, then register again.',
  },
  sessionFenced: {
    code: 'idempotency-session-fenced',
    status: 409,
    executed: 'unknown',
    retryable: false,
    title: 'The client has registered again since, so this epoch has ended',
    detail: 'Use the session that was registered last, and give every process a client name of its own.',
  },
  sessionForgotten: {
    code: 'idempotency-session-forgotten',
    status: 410,
    executed: 'unknown',
    retryable: false,
    title: 'The client has acknowledged this request, and its answer is no longer kept',
    detail: 'Nothing was processed now. Do not send a request again whose answer you have acknowledged.',
  },
  sequenceReused: {
    code: 'idempotency-sequence-reused',
    status: 422,
    executed: 'no',
    retryable: false,
    title: 'This Idempotency-Sequence was used with another request',
    detail: 'A number stands for one request, and its retries must be the same. Use the next number for a new request.',
  },
  windowExceeded: {
    code: 'idempotency-window-exceeded',
    status: 409,
    executed: 'no',
    retryable: true,
    title: 'Too many requests of this session have no acknowledged answer',
    detail: 'Acknowledge the answers that have arrived, and send the request again with the same number.',
  },
  sequenceGap: {
    code: 'idempotency-sequence-gap',
    status: 409,
    executed: 'no',
    retryable: true,
    title: 'An earlier request of this session has not arrived',
    detail: 'Send the earlier requests first, then this one again with the same number.',
  },
  sessionNotConfirmed: {
    code: 'idempotency-store-unavailable',
    status: 503,
    executed: 'unknown',
    retryable: true,
    title: 'The session could not be registered, renewed or closed at the moment',
    detail: 'It is not known whether it was. Ask again: the session that is registered last is the one that counts.',
  },
}

/** A duplicate that comes back sooner is held by waitMs anyway. A duplicate that comes back much later waits for nothing. */
const retryAfterSecondsMax = 5

export interface ProblemDetails {
  readonly detail?: string
  readonly retryAfterMs?: number | undefined
  /** False where no retry can cure it, whatever the kind says. */
  readonly retryable?: boolean
  /** The request had a number in a session, and no key. */
  readonly isNumbered?: boolean
}

/** What they say of keys is meant. Every other problem speaks of the number, where the request has one. */
const aboutSessions: ReadonlySet<ProblemName> = new Set(['sessionInvalid', 'sessionAndKey', 'sessionsNotOffered'])

/** Stripe has no 422. */
export function statusOf({ profile }: Pick<HttpSettings<never>, 'profile'>, name: ProblemName): number {
  const isReused = name === 'keyReused' || name === 'sequenceReused'
  return profile === 'stripe' && isReused ? 400 : problemKinds[name].status
}

export function problem(settings: HttpSettings<never>, name: ProblemName, details: ProblemDetails = {}): Answer {
  const is: ProblemKind = problemKinds[name]
  const stripe = settings.profile === 'stripe'
  const status = statusOf(settings, name)
  const inSession = details.isNumbered === true && !aboutSessions.has(name)
  const own = inSession ? is.detail.replace(/\bkey\b/g, 'number') : is.detail
  const detail = details.detail ? `${details.detail} ${own}` : own
  const retryable = is.retryable && details.retryable !== false
  const title = is.title.replace('Idempotency-Key', inSession ? 'Idempotency-Sequence' : settings.header)
  return problemAnswer({
    kind: { ...is, status, title, detail, retryable },
    base: settings.problemBase,
    retryAfterSeconds: retryAfter(details.retryAfterMs),
    headers: [['Link', `<${rulesPath}>; rel="describedby"`]],
    stripe: stripe ? stripeError(name, { status, title, detail }) : undefined,
  })
}

/** The document and headers of a problem, for the exchange and the gateway. `stripe` is its `error` member in that profile. */
export function problemAnswer(of: {
  readonly kind: ProblemKind
  readonly base: string
  readonly retryAfterSeconds: number
  readonly headers?: readonly HeaderLine[]
  readonly stripe: object | undefined
}): Answer {
  const { status, code, title, detail, executed, retryable } = of.kind
  const headers: HeaderLine[] = [
    ['Content-Type', 'application/problem+json'],
    ['Cache-Control', 'no-store'],
    ...(of.headers ?? []),
  ]
  if (retryable) headers.push(['Retry-After', String(of.retryAfterSeconds)])
  if (of.stripe) headers.push(['Stripe-Should-Retry', String(retryable)])
  const document = { type: `${of.base}/${code}`, title, status, detail, code, retryable, executed }
  const body = of.stripe ? { ...document, error: of.stripe } : document
  return { status, headers, body: Buffer.from(JSON.stringify(body)) }
}

function retryAfter(retryAfterMs = 0): number {
  return Math.min(retryAfterSecondsMax, Math.max(1, Math.ceil(retryAfterMs / 1000)))
}

const invalidRequests: ReadonlySet<ProblemName> = new Set([
  'keyMissing',
  'scopeMissing',
  'bodyTooLarge',
  ...aboutSessions,
])

// What stripe-node looks for: it takes an error body without an `error` member for a success.
function stripeError(name: ProblemName, document: { title: string; detail: string; status: number }): object {
  const message = `${document.title}. ${document.detail}`
  if (name === 'inProgress') return { type: 'invalid_request_error', code: 'idempotency_key_in_use', message }
  if (document.status >= 500) return { type: 'api_error', message }
  return { type: invalidRequests.has(name) ? 'invalid_request_error' : 'idempotency_error', message }
}

// The rules of an exchange, on a picture of request and response that knows no framework. The claim is written before the handler
// runs. Nothing of an answer leaves before the key is settled. What the exchange answers itself is never stored.
//
// The words of this room:
// - stage: what an adapter brings, which is its framework's request, the raw request and response, and how to start the handler.
// - answer: a complete HTTP response, as status, header lines and body.
// - produced: what the handler did. It gave an answer, began a stream, broke off or threw.
// - verdict: what becomes of the key. Its answer is stored, or it is open to a retry, forgotten, left in doubt, or stored as final.
// - delivery: what the adapter does then. It forwards the handler's own answer, sends another one, or throws.
//
// Decisions, and what they cost:
// - Raw responses are held by overriding five methods of Node's ServerResponse. All Node frameworks end there, so one capture
//   serves them. 32 ways of writing are compared with a bare server, byte for byte. Costs: it rests on two internals of Node.
// - What we put on Node's request and response is a shared function, with its state under a symbol, never a closure per
//   request. Measured: with closures whole requests outlive the young generation, it triples, and all code slows down. Costs:
//   `this` must be the response.
// - Fastify bodies up to 16 KB are recorded as they arrive, and Fastify reads as it would without us. Costs: an override of
//   `req.push`.
// - What is here is not waited for: up to the claim a plain request makes no promise. Costs: `whenHere` instead of `await`.
// - The last head that was stored, the last that was replayed and the last frame of a fingerprint are remembered, since a service
//   answers and is asked the same again and again. What is stored is the same. Costs: a comparison where they differ.
// - `once` checks a scoped key, not `scopedKey`, which makes it. Costs: `scopedKey` alone returns an unchecked key.
// - The context of a request is `idempotency` everywhere (`req.idempotency`, `ctx.idempotency`, `c.get('idempotency')`):
//   nothing of Node's own types is widened or shadowed. Costs: `onceonly/node` users type their listener's `req` by the
//   wrapper.
// - A parsed body is never fingerprinted, because parsing loses differences. A parser in front must keep the raw bytes. If it
//   does not, the request fails with an error that says so.
// - Headers that were there before the handler are not stored. The middleware that set them (CORS, request ids, limits) sets
//   them again.
// - 401, 407, 408, 421, 425 and 429 are never stored unless the handler calls `store()`. They refuse to look at the request,
//   and would be replayed for a day. Costs: a handler that means one of them as its answer must say so.
// - A handler says "in doubt" through the context (`inDoubt()`), because frameworks turn throws into answers before we see
//   them. Costs: a fourth wish. Only throws of fetch handlers mean what they mean in `once.run`.
// - A connection torn down after the answer has ended is closed after the answer has left. Costs: it lives until the
//   settle.
// - A false digest fails the stream when the handler reads it, and forgets the key. A stream that failed earlier looks like one
//   without a body, and the request that was claimed does not exist. Costs: no mismatch is reported afterwards.
// - In a transaction a 4xx is a FinalError that carries the answer. A commit conflict is 503, as a request can be handled only
//   once.
// - IN_DOUBT (409) and OUTCOME_UNKNOWN (503) share the type `idempotency-outcome-unknown`: both say that the outcome is
//   unknown. `status` and `retryable` distinguish the two.

import { systemRandom } from '../core/clock.ts'
import { createOp } from '../core/call.ts'
import type { Op, Result } from '../core/call.ts'
import { FinalError, OnceError } from '../core/errors.ts'
import { publish } from '../core/events.ts'
import type { Key } from '../core/key.ts'
import type { Once } from '../core/once.ts'
import type { RunOptions } from '../core/settings.ts'
import type { Store, Transactional } from '../core/store.ts'
import { isUnfit } from '../core/timed-call.ts'
import { claimedSha256 } from './exchange/content-digest.ts'
import { createContext } from './exchange/context.ts'
import type { IdempotencyContext } from './exchange/context.ts'
import { failureRules, problemOf, sessionProblemOf } from './exchange/failures.ts'
import { inStore, lacksTenant, readKeyOf } from './exchange/named-request.ts'
import { readHttpOptions } from './exchange/options.ts'
import type { FingerprintedRequest, HttpOptions, HttpSettings } from './exchange/options.ts'
import { problem } from './exchange/problem.ts'
import type { ProblemDetails, ProblemName } from './exchange/problem.ts'
import { requestFingerprint } from './exchange/request-fingerprint.ts'
import { createRules } from './exchange/rules.ts'
import type { AlsoPublished } from './exchange/rules.ts'
import { callSession, isNumbered, readNumbered, registrationBytesMax, sessionCall } from './exchange/sessions.ts'
import type { HttpSessions, Numbered, SessionCall } from './exchange/sessions.ts'
import { decodeStored } from './exchange/stored-response.ts'
import type { Answer, HeaderLine } from './exchange/stored-response.ts'
import { bytesOfFinal, createAttempt, tellOnce } from './exchange/verdict.ts'
import type { RequestAttempt, RunHandler } from './exchange/verdict.ts'

export { checkDigest, claimedSha256, DigestError } from './exchange/content-digest.ts'
export { contextOf } from './exchange/context.ts'
export type { ContextWith, IdempotencyContext, OnceOn, TransactionsOf, TxWith } from './exchange/context.ts'
export { keptBytes } from './exchange/kept-body.ts'
export { boundaryOf, multipartDigest } from './exchange/multipart.ts'
export { fingerprintTable, headerName, httpTable } from './exchange/option-table.ts'
export type { HttpOption, OptionTable, ReadAs } from './exchange/option-table.ts'
export { rulesPath } from './exchange/options.ts'
export type { FingerprintOptions, HttpOptions } from './exchange/options.ts'
export { problemAnswer, problemKinds } from './exchange/problem.ts'
export type { ProblemKind } from './exchange/problem.ts'
export { normalEscape, splitTarget } from './exchange/request-fingerprint.ts'
export type { AlsoPublished } from './exchange/rules.ts'
export { scopedKey } from './exchange/scoped-key.ts'
export { numberedBy, sessionHeaders, sessionsPath } from './exchange/sessions.ts'
export type { HttpSessions } from './exchange/sessions.ts'
export {
  decodeStored,
  encodeAnswer,
  encodeNotStored,
  foundOptions,
  headersToKeep,
  hopByHop,
  storedResponse,
} from './exchange/stored-response.ts'
export type { Answer, HeaderLine } from './exchange/stored-response.ts'
export { internalError } from './exchange/verdict.ts'

/** A request with a key or a number (or one that should have had it), as an adapter shows it. */
export interface AskedRequest<Asked> extends FingerprintedRequest {
  /** The framework's own request, for the user's functions. */
  readonly request: Asked
  /** The value of each Idempotency-Key line. */
  readonly keyLines: readonly string[]
  /** Called with the key in the store before the body is read, for the log. */
  onKey?(key: Key): void
  /** Read the body, and leave it for the handler to read again. */
  body(limits: BodyLimits): Body | Promise<Body>
}

export interface BodyLimits {
  readonly bytesMax: number
  /** The sha-256 that the client claims, in base64. */
  readonly sha256: string | undefined
}

export type Body =
  | { readonly is: 'bytes'; readonly bytes: Uint8Array }
  /** Too large to be read before the claim: it streams to the handler. `verify` reads what the handler left, to the end. */
  | { readonly is: 'claimed'; readonly sha256: string; verify(): Promise<boolean> }
  | { readonly is: 'too-large' }
  /** The body is here, is too large to be accepted without a digest, and does not match the claimed digest. */
  | { readonly is: 'digest-mismatch' }

/** What a handler produced. */
export type Produced =
  | { readonly is: 'answer'; readonly answer: Answer }
  /** It began an answer that cannot be held: server-sent events, or more than storedBytesMax. */
  | { readonly is: 'stream'; readonly status: number }
  /** It broke off in the middle of its answer. */
  | { readonly is: 'broken' }
  | { readonly is: 'thrown'; readonly error: unknown }

/** What the adapter is to do now. */
export type Delivery =
  /** Send this answer. What the handler wrote or still writes is dropped. */
  | { readonly is: 'answer'; readonly answer: Answer }
  /** Let the handler's own answer go, with these headers added. */
  | { readonly is: 'handler'; readonly headers: readonly HeaderLine[] }
  | { readonly is: 'thrown'; readonly error: unknown }

export interface Exchange<Asked, Tx = unknown> {
  readonly settings: HttpSettings<Asked>
  /**
   * For adapters that have a start: throws if no request with a key can be served until a person mends the store. A store that is down
   * may be up again by the first request.
   */
  checkStore(): Promise<void>
  /** Everything else passes untouched. `isNamed`: it has a key, or one of the headers `numberedBy`. */
  concerns(method: string, isNamed: boolean): boolean
  /** The request registers, renews or closes a session, and is for `handle`, too. */
  managesSession(method: string, target: string): boolean
  /** The published rules, if the request asks for them. */
  rules(method: string, target: string, accept?: string): Answer | undefined
  /**
   * `run` starts the handler and resolves when it has answered. Throws, at once or later, when the exchange cannot begin: nothing was
   * claimed, and the handler was not started.
   */
  handle(
    asked: AskedRequest<Asked>,
    run: (context: IdempotencyContext<Tx>) => Promise<Produced>,
  ): Delivery | Promise<Delivery>
}

/** Once per adapter. */
interface ExchangeSetup<Asked> {
  readonly once: Once
  readonly settings: HttpSettings<Asked>
  readonly window: HeaderLine
  /** The same for requests of sessions. Undefined when it is that itself. */
  readonly forSessions?: ExchangeSetup<Asked>
}

export function createExchange<Asked, Tx = unknown>(
  once: Once,
  options: HttpOptions<Asked>,
  also: AlsoPublished = {},
): Exchange<Asked, Tx> {
  const settings = readHttpOptions(once, options)
  const { sessions } = settings
  const keyed: ExchangeSetup<Asked> = { once, settings, window: windowHeader(settings.windowSeconds) }
  // An answer is kept until it is acknowledged, or its session has been silent for its lease.
  const windowSeconds = sessions ? Math.floor(sessions.leaseMs / 1000) : settings.windowSeconds
  const setup = { ...keyed, forSessions: { once, settings, window: windowHeader(windowSeconds) } }
  return {
    settings,
    checkStore: () => checkStore(once, sessions),
    concerns: (method, isNamed) => (isNamed || settings.required) && settings.methods.has(method),
    managesSession: (method, target) => sessions !== undefined && sessionCall(method, target) !== undefined,
    rules: createRules(settings, also),
    handle: (asked, run) => handleRequest(setup, asked, run as RunHandler),
  }
}

function windowHeader(seconds: number): HeaderLine {
  return ['Idempotency-Window', String(seconds)]
}

export async function checkStore(once: Once, sessions?: HttpSessions): Promise<void> {
  const ifUnfit = (error: unknown): void => {
    if (isUnfit(error)) throw error
  }
  await once.ready().catch(ifUnfit)
  await sessions?.show('any').catch(ifUnfit)
}

/** Waits only for what is not here: in the plain case nothing is waited for before the claim. */
function handleRequest<Asked>(
  keyed: ExchangeSetup<Asked>,
  asked: AskedRequest<Asked>,
  run: RunHandler,
): Delivery | Promise<Delivery> {
  const { sessions } = keyed.settings
  const call = sessions && sessionCall(asked.method, asked.target)
  if (call) return manageSession(keyed.forSessions!, sessions, call, asked)
  // Where no sessions are offered, a key protects its request whatever else the request carries.
  const inSession = (sessions !== undefined || asked.keyLines.length === 0) && isNumbered(asked)
  const setup = inSession ? keyed.forSessions! : keyed
  const { settings } = setup
  const named = inSession ? readNumbered(settings, asked) : readKeyOf(settings, asked)
  if ('problem' in named) return refuse(setup, named.problem, named.details)
  const tenant = settings.tenant === 'shared' ? undefined : settings.tenant(asked.request)
  return whenHere(tenant, (whose) => handleNamed(setup, asked, run, named, whose))
}

function handleNamed<Asked>(
  setup: ExchangeSetup<Asked>,
  asked: AskedRequest<Asked>,
  run: RunHandler,
  named: { readonly key: string } | Numbered,
  tenant: string | null | undefined,
): Delivery | Promise<Delivery> {
  const { settings } = setup
  if (lacksTenant(settings, tenant)) return refuse(setup, 'scopeMissing')
  const { key, numbered } = inStore(setup, asked, named, tenant || undefined)
  asked.onKey?.(key)
  const limits = { bytesMax: settings.bodyBytesMax, sha256: claimedSha256(asked.header('content-digest')) }
  return whenHere(asked.body(limits), (body) => {
    if (body.is === 'too-large') return refuse(setup, 'bodyTooLarge')
    if (body.is === 'digest-mismatch') return refuse(setup, 'digestMismatch')
    const fingerprint = requestFingerprint(settings, asked, body)
    return ask(setup, createAttempt(key, numbered, body, run), { ...settings.call, fingerprint, onThrow: 'release' })
  })
}

/** Goes on at once with what is here. To wait for it would cost a turn of the queue and a promise. */
function whenHere<T, R>(coming: T | PromiseLike<T>, then: (here: T) => R | Promise<R>): R | Promise<R> {
  return isPromise(coming) ? Promise.resolve(coming).then(then) : then(coming)
}

function isPromise<T>(value: T | PromiseLike<T>): value is PromiseLike<T> {
  return typeof (value as PromiseLike<T> | undefined | null)?.then === 'function'
}

/** Registers, renews or closes a session. */
async function manageSession<Asked>(
  setup: ExchangeSetup<Asked>,
  sessions: HttpSessions,
  call: SessionCall,
  asked: AskedRequest<Asked>,
): Promise<Delivery> {
  const { settings } = setup
  const tenant = settings.tenant === 'shared' ? undefined : await settings.tenant(asked.request)
  if (lacksTenant(settings, tenant)) return refuse(setup, 'scopeMissing')
  const body = await asked.body({ bytesMax: registrationBytesMax, sha256: undefined })
  if (body.is !== 'bytes' || body.bytes.length > registrationBytesMax) {
    return refuse(setup, 'sessionInvalid', { detail: `The body is larger than ${registrationBytesMax} bytes.` })
  }
  try {
    const from = { tenant: tenant || undefined, body: body.bytes, header: (name: string) => asked.header(name) }
    const answer = await callSession({ sessions, hashKeys: settings.hashKeys }, call, from)
    if ('problem' in answer) return refuse(setup, answer.problem, answer.details)
    return { is: 'answer', answer }
  } catch (error) {
    if (!(error instanceof OnceError)) return { is: 'thrown', error }
    const { code, retryAfterMs, retryable } = error
    const name = sessionProblemOf(code)
    return name ? refuse(setup, name, { retryAfterMs, retryable }) : { is: 'thrown', error }
  }
}

/** Whether the store has transactions was checked when the options were read. */
function transacting(once: Once): Once<Store & Transactional<unknown>, 'codec'> {
  return once as unknown as Once<Store & Transactional<unknown>, 'codec'>
}

async function ask<Asked>(
  setup: ExchangeSetup<Asked>,
  attempt: RequestAttempt,
  options: RunOptions,
): Promise<Delivery> {
  const { once, settings } = setup
  const { key, body } = attempt
  try {
    const result = attempt.numbered
      ? await applyNumbered(settings, attempt, attempt.numbered, options.fingerprint as string)
      : settings.transaction
        ? await transacting(once).transaction(key, (tx, op) => tellOnce(settings, attempt, op, tx), options)
        : await once.run(key, (op) => tellOnce(settings, attempt, op, undefined), options)
    return result.replayed ? await replay(setup, body, result.value) : forward(setup, attempt)
  } catch (error) {
    if (attempt.produced && error === attempt.thrown) return forward(setup, attempt)
    return afterFailure(setup, attempt, error)
  }
}

/** The transaction of a session is the handler's only if it asked for one. */
function applyNumbered(
  settings: HttpSettings<never>,
  attempt: RequestAttempt,
  numbered: Numbered,
  fingerprint: string,
): Promise<Result<Uint8Array>> {
  return settings.sessions!.apply({ ...numbered, fingerprint }, (tx, op) =>
    tellOnce(settings, attempt, op, settings.transaction ? tx : undefined),
  )
}

/** Delivers the handler's own answer, or the answer in its place, after the store has settled the key. */
function forward<Asked>(
  setup: ExchangeSetup<Asked>,
  attempt: RequestAttempt,
  more: readonly HeaderLine[] = [],
): Delivery {
  if (attempt.instead) return answerWith(setup, attempt.instead, more)
  if (attempt.produced?.is === 'thrown') return { is: 'thrown', error: attempt.produced.error }
  return { is: 'handler', headers: [setup.window, ...more] }
}

async function replay<Asked>(setup: ExchangeSetup<Asked>, body: Body, value: unknown): Promise<Delivery> {
  const { settings } = setup
  // Only the digest was compared so far, and a client can send any digest.
  if (body.is === 'claimed' && !(await body.verify())) return refuse(setup, 'digestMismatch')
  let stored
  try {
    stored = decodeStored(value)
    if (stored.is === 'answer' && stored.version !== 'any' && stored.version < settings.version) {
      if (settings.onOlderVersion === 'refuse') return refuse(setup, 'keyExpired')
      const own = ownCopy(stored.answer)
      if (settings.upgrade) stored = { ...stored, answer: await settings.upgrade(own, stored.version) }
    }
  } catch {
    return refuse(setup, 'outcomeUnreadable')
  }
  if (stored.is === 'not-stored') return refuse(setup, 'notStored')
  const marks: HeaderLine[] = [[settings.replayHeader, 'true']]
  // stripe-node retries a 500 unless this header says that the answer will not change.
  if (settings.profile === 'stripe' && stored.answer.status >= 500) marks.push(['Stripe-Should-Retry', 'false'])
  return answerWith(setup, stored.answer, marks)
}

/** Other replays have the same lines, and the user's function may change its own. */
function ownCopy(answer: Answer): Answer {
  return { ...answer, headers: answer.headers.map(([name, value]) => [name, value]) }
}

const unprotected: HeaderLine = ['Idempotency-Status', 'unprotected']

async function afterFailure<Asked>(
  setup: ExchangeSetup<Asked>,
  attempt: RequestAttempt,
  error: unknown,
): Promise<Delivery> {
  const refused = bytesOfFinal(error)
  if (refused) return replay(setup, attempt.body, refused)
  if (!(error instanceof OnceError)) {
    // A FinalError that a handler threw is replayed as it was. Any other error is the store's, after the handler ran.
    return error instanceof FinalError ? { is: 'thrown', error } : refuse(setup, 'outcomeUnknown')
  }
  const rule = failureRules[error.code]
  if (!rule) return { is: 'thrown', error }
  const { onStoreDown, transaction } = setup.settings
  const failOpen = onStoreDown === 'run' && !transaction ? rule.unprotected : undefined
  if (failOpen === 'run' && !attempt.produced) {
    publish('unprotected', attempt.key, { code: error.code })
    attempt.produced = await attempt.run(createContext(unclaimed(attempt.key), undefined, attempt.choice))
    return forward(setup, attempt, [unprotected])
  }
  // The user chose answers over protection. The answer is there, only its record is missing.
  if (failOpen && attempt.produced) {
    publish('unprotected', attempt.key, { code: error.code })
    return forward(setup, attempt, [unprotected])
  }
  if (rule.forward && !transaction && attempt.produced) return forward(setup, attempt)
  const name = problemOf(rule, attempt, error.executed === 'no', transaction)
  if (name === 'thrown') return { is: 'thrown', error }
  return refuse(setup, name, { retryAfterMs: error.retryAfterMs, retryable: error.retryable })
}

/** The handler's `Op` when nothing could be claimed: derived keys are the same as ever, the fence is below every other. */
function unclaimed(key: Key): Op {
  const { signal } = new AbortController()
  return createOp({ key, token: systemRandom.uuid(), attempt: 1, fence: 0 }, () => signal)
}

function refuse<Asked>(setup: ExchangeSetup<Asked>, name: ProblemName, details?: ProblemDetails): Delivery {
  return answerWith(setup, problem(setup.settings, name, { ...details, isNumbered: !setup.forSessions }))
}

function answerWith<Asked>(setup: ExchangeSetup<Asked>, answer: Answer, more: readonly HeaderLine[] = []): Delivery {
  return { is: 'answer', answer: { ...answer, headers: [...answer.headers, setup.window, ...more] } }
}

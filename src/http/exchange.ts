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
// - `return await` on the hot path: adopting another promise costs more than awaiting it. Costs: it looks redundant.
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
import type { Op } from '../core/call.ts'
import { FinalError, invalidArgument, OnceError } from '../core/errors.ts'
import type { ErrorCode } from '../core/errors.ts'
import { publish } from '../core/events.ts'
import type { Key } from '../core/key.ts'
import type { Once } from '../core/once.ts'
import type { RunOptions } from '../core/settings.ts'
import type { Store, Transactional } from '../core/store.ts'
import { isUnfit } from '../core/timed-call.ts'
import { claimedSha256 } from './exchange/content-digest.ts'
import { createContext } from './exchange/context.ts'
import type { IdempotencyContext } from './exchange/context.ts'
import { readKey } from './exchange/key-header.ts'
import { readHttpOptions } from './exchange/options.ts'
import type { FingerprintedRequest, HttpOptions, HttpSettings } from './exchange/options.ts'
import { problem } from './exchange/problem.ts'
import type { ProblemDetails, ProblemName } from './exchange/problem.ts'
import { requestFingerprint, splitTarget } from './exchange/request-fingerprint.ts'
import { createRules } from './exchange/rules.ts'
import type { AlsoPublished } from './exchange/rules.ts'
import { scopedKey } from './exchange/scoped-key.ts'
import { decodeStored } from './exchange/stored-response.ts'
import type { Answer, HeaderLine } from './exchange/stored-response.ts'
import { bytesOfFinal, tellOnce } from './exchange/verdict.ts'
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

/** A request with a key (or one that should have had it), as an adapter shows it. */
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
  /** Everything else passes untouched. */
  concerns(method: string, hasKey: boolean): boolean
  /** The published rules, if the request asks for them. */
  rules(method: string, target: string, accept?: string): Answer | undefined
  /** `run` starts the handler and resolves when it has answered. It never rejects. */
  handle(asked: AskedRequest<Asked>, run: (context: IdempotencyContext<Tx>) => Promise<Produced>): Promise<Delivery>
}

/** Once per adapter. */
interface ExchangeSetup<Asked> {
  readonly once: Once
  readonly settings: HttpSettings<Asked>
  readonly window: HeaderLine
}

export function createExchange<Asked, Tx = unknown>(
  once: Once,
  options: HttpOptions<Asked>,
  also: AlsoPublished = {},
): Exchange<Asked, Tx> {
  const settings = readHttpOptions(once, options)
  const setup: ExchangeSetup<Asked> = { once, settings, window: ['Idempotency-Window', String(settings.windowSeconds)] }
  return {
    settings,
    checkStore: () => checkStore(once),
    concerns: (method, hasKey) => (hasKey || settings.required) && settings.methods.has(method),
    rules: createRules(settings, also),
    handle: (asked, run) => handleRequest(setup, asked, run as RunHandler),
  }
}

export async function checkStore(once: Once): Promise<void> {
  await once.ready().catch((error: unknown) => {
    if (isUnfit(error)) throw error
  })
}

async function handleRequest<Asked>(
  setup: ExchangeSetup<Asked>,
  asked: AskedRequest<Asked>,
  run: RunHandler,
): Promise<Delivery> {
  const { once, settings } = setup
  if (asked.keyLines.length === 0) return refuse(setup, 'keyMissing')
  const reading = readKey(asked.keyLines, settings)
  if ('refused' in reading) {
    return refuse(setup, 'keyInvalid', { detail: `The header was refused because ${reading.refused}.` })
  }
  const tenant = settings.tenant === 'shared' ? undefined : await settings.tenant(asked.request)
  if (settings.tenant !== 'shared' && !tenant) return refuse(setup, 'scopeMissing')
  if (tenant && typeof tenant !== 'string') throw tenantIsNoText(tenant)
  const route = settings.keysPer === 'route' ? `${asked.method} ${splitTarget(asked.target).path}` : undefined
  const owner = { service: once.scope, tenant: tenant || undefined, route }
  const key = scopedKey(owner, reading.key, settings.hashKeys ? 'hashed' : 'plain')
  asked.onKey?.(key)
  const limits = { bytesMax: settings.bodyBytesMax, sha256: claimedSha256(asked.header('content-digest')) }
  const coming = asked.body(limits)
  const body = coming instanceof Promise ? await coming : coming
  if (body.is === 'too-large') return refuse(setup, 'bodyTooLarge')
  if (body.is === 'digest-mismatch') return refuse(setup, 'digestMismatch')
  const fingerprint = requestFingerprint(settings, asked, body)
  const attempt: RequestAttempt = {
    key,
    body,
    run,
    choice: { verdict: undefined },
    produced: undefined,
    instead: undefined,
    thrown: undefined,
  }
  // `return await`: adopting the promise of another function costs more than awaiting it.
  return await ask(setup, attempt, { ...settings.call, fingerprint, onThrow: 'release' })
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
    const result = settings.transaction
      ? await transacting(once).transaction(key, (tx, op) => tellOnce(settings, attempt, op, tx), options)
      : await once.run(key, (op) => tellOnce(settings, attempt, op, undefined), options)
    return result.replayed ? await replay(setup, body, result.value) : forward(setup, attempt)
  } catch (error) {
    if (attempt.produced && error === attempt.thrown) return forward(setup, attempt)
    return afterFailure(setup, attempt, error)
  }
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
      if (settings.upgrade) stored = { ...stored, answer: await settings.upgrade(stored.answer, stored.version) }
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

/** The answer when `once` refused, or could not keep what the handler produced. */
interface FailureRule {
  readonly problem: ProblemName
  /** Instead of `problem`, when `once` knows that nothing of the handler's writes was kept. `thrown`: the program must be changed. */
  readonly rolledBack?: ProblemName | 'thrown'
  /** With `onStoreDown: 'run'`, and no transaction: run the handler, or forward what it produced, and say so in a header. */
  readonly unprotected?: 'run' | 'forward'
  /** Without a transaction: forward what the handler produced. The next request gets the problem `notStored`. */
  readonly forward?: true
}

/** A code that is not listed here is an error of the program, and is thrown on. */
const failureRules: Readonly<Partial<Record<ErrorCode, FailureRule>>> = {
  IN_FLIGHT: { problem: 'inProgress' },
  MISMATCH: { problem: 'keyReused' },
  EXPIRED: { problem: 'keyExpired' },
  IN_DOUBT: { problem: 'inDoubt' },
  // The retry gets the winner's answer.
  CLAIM_LOST: { problem: 'inProgress' },
  DEADLINE_PASSED: { problem: 'outcomeUnknown', rolledBack: 'deadlinePassed' },
  STORE_UNAVAILABLE: { problem: 'storeUnavailable', unprotected: 'run' },
  STORE_UNSAFE: { problem: 'storeUnavailable' },
  SCHEMA_MISSING: { problem: 'storeUnavailable' },
  TRANSACTION_CONFLICT: { problem: 'transactionConflict' },
  OUTCOME_UNKNOWN: { problem: 'outcomeUnknown', unprotected: 'forward' },
  OUTCOME_UNREADABLE: { problem: 'outcomeUnreadable' },
  OUTCOME_NOT_STORED: { problem: 'notStored', rolledBack: 'thrown', forward: true },
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
  if (failOpen === 'forward' && attempt.produced) {
    publish('unprotected', attempt.key, { code: error.code })
    return forward(setup, attempt, [unprotected])
  }
  if (rule.forward && !transaction && attempt.produced) return forward(setup, attempt)
  const name = error.executed === 'no' ? (rule.rolledBack ?? rule.problem) : rule.problem
  if (name === 'thrown') return { is: 'thrown', error }
  return refuse(setup, name, { retryAfterMs: error.retryAfterMs, retryable: error.retryable })
}

// Not the problem of a missing tenant: it would ask every client for credentials and hide the cause from the operator.
function tenantIsNoText(tenant: unknown): OnceError {
  return invalidArgument(
    `idempotency: expected tenant to return a string, got a ${typeof tenant}. Nothing was run. Return String(id) for a number.`,
  )
}

/** The handler's `Op` when nothing could be claimed: derived keys are the same as ever, the fence is below every other. */
function unclaimed(key: Key): Op {
  const { signal } = new AbortController()
  return createOp({ key, token: systemRandom.uuid(), attempt: 1, fence: 0 }, () => signal)
}

function refuse<Asked>(setup: ExchangeSetup<Asked>, name: ProblemName, details?: ProblemDetails): Delivery {
  return answerWith(setup, problem(setup.settings, name, details))
}

function answerWith<Asked>(setup: ExchangeSetup<Asked>, answer: Answer, more: readonly HeaderLine[] = []): Delivery {
  return { is: 'answer', answer: { ...answer, headers: [...answer.headers, setup.window, ...more] } }
}

// All the logic of an exchange, on a picture of request and response that knows no framework. The claim is written before the
// handler runs; nothing of an answer leaves before it is settled; what we answer ourselves is never stored.

import { systemRandom } from '../core/clock.ts'
import { createOp } from '../core/once/effect.ts'
import type { Op } from '../core/once/effect.ts'
import { FinalError, InDoubtError, invalidArgument, NotBegunError, OnceError } from '../core/errors.ts'
import type { ErrorCode } from '../core/errors.ts'
import type { Key } from '../core/key.ts'
import type { Once } from '../core/once.ts'
import type { RunOptions } from '../core/settings.ts'
import type { Store, Transactional } from '../core/store.ts'
import { claimedSha256, DigestError } from './exchange/content-digest.ts'
import { createContext, fateOf } from './exchange/context.ts'
import type { IdempotencyContext, Wish } from './exchange/context.ts'
import { readKey } from './exchange/key-header.ts'
import { readHttpOptions } from './exchange/options.ts'
import type { FingerprintedRequest, HttpOptions, HttpSettings } from './exchange/options.ts'
import { problem } from './exchange/problem.ts'
import type { ProblemDetails, ProblemName } from './exchange/problem.ts'
import { requestFingerprint, splitTarget } from './exchange/request-fingerprint.ts'
import { createRules } from './exchange/rules.ts'
import { scopedKey } from './exchange/scoped-key.ts'
import { decodeStored, encodeAnswer, encodeNotStored } from './exchange/stored-response.ts'
import type { Answer, HeaderLine } from './exchange/stored-response.ts'

export { checkDigest, claimedSha256, DigestError } from './exchange/content-digest.ts'
export type { IdempotencyContext } from './exchange/context.ts'
export { keptBytes } from './exchange/kept-body.ts'
export { fingerprintTable, headerName, httpTable } from './exchange/option-table.ts'
export type { HttpOption, OptionTable, ReadAs } from './exchange/option-table.ts'
export { rulesPath } from './exchange/options.ts'
export type { FingerprintOptions, HttpOptions } from './exchange/options.ts'
export { splitTarget } from './exchange/request-fingerprint.ts'
export type { Answer, HeaderLine } from './exchange/stored-response.ts'

/** A request with a key (or one that should have had it), as an adapter shows it. */
export interface AskedRequest<Asked> extends FingerprintedRequest {
  /** The framework's own request, for the user's functions. */
  readonly request: Asked
  /** The value of each Idempotency-Key line. */
  readonly keyLines: readonly string[]
  /** Told the key in the store before the body is read, for whoever logs it. */
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
  /** Too large to be read first: it streams to the handler. `verify` waits for its end, reading what the handler left. */
  | { readonly is: 'claimed'; readonly sha256: string; verify(): Promise<boolean> }
  | { readonly is: 'too-large' }
  /** It is here, too large to be taken without a digest, and does not have the one that was claimed. */
  | { readonly is: 'digest-mismatch' }

/** What a handler came to. */
export type Produced =
  | { readonly is: 'answer'; readonly answer: Answer }
  /** It began an answer that cannot be held: server-sent events, or more than storedBytesMax. */
  | { readonly is: 'stream'; readonly status: number }
  /** It broke off in the middle of its answer. */
  | { readonly is: 'broken' }
  | { readonly is: 'thrown'; readonly error: unknown }

/** What the adapter is to do now. */
export type Delivery =
  /** Send this; whatever the handler wrote or still writes reaches nobody. */
  | { readonly is: 'answer'; readonly answer: Answer }
  /** Let the handler's own answer go, with these headers added. */
  | { readonly is: 'handler'; readonly headers: readonly HeaderLine[] }
  | { readonly is: 'thrown'; readonly error: unknown }

export interface Exchange<Asked, Tx = unknown> {
  readonly settings: HttpSettings<Asked>
  /** Everything else passes untouched. */
  concerns(method: string, hasKey: boolean): boolean
  /** The published rules, when they are what is asked for. */
  rules(method: string, target: string, accept?: string): Answer | undefined
  /** `run` starts the handler and resolves when it has answered. It never rejects. */
  handle(asked: AskedRequest<Asked>, run: (context: IdempotencyContext<Tx>) => Promise<Produced>): Promise<Delivery>
}

interface Ground<Asked> {
  readonly once: Once
  readonly settings: HttpSettings<Asked>
  readonly window: HeaderLine
}

export function createExchange<Asked, Tx = unknown>(once: Once, options: HttpOptions<Asked>): Exchange<Asked, Tx> {
  const settings = readHttpOptions(once, options)
  const ground: Ground<Asked> = { once, settings, window: ['Idempotency-Window', String(settings.windowSeconds)] }
  return {
    settings,
    concerns: (method, hasKey) => (hasKey || settings.required) && settings.methods.has(method),
    rules: createRules(settings),
    handle: (asked, run) => handle(ground, asked, run as Run),
  }
}

type Run = (context: IdempotencyContext) => Promise<Produced>

async function handle<Asked>(ground: Ground<Asked>, asked: AskedRequest<Asked>, run: Run): Promise<Delivery> {
  const { once, settings } = ground
  if (asked.keyLines.length === 0) return refuse(ground, 'keyMissing')
  const reading = readKey(asked.keyLines, settings)
  if ('refused' in reading) {
    return refuse(ground, 'keyInvalid', { detail: `The header was refused because ${reading.refused}.` })
  }
  const tenant = settings.tenant === 'shared' ? undefined : await settings.tenant(asked.request)
  if (settings.tenant !== 'shared' && !tenant) return refuse(ground, 'scopeMissing')
  if (tenant && typeof tenant !== 'string') throw tenantIsNoText(tenant)
  const route = settings.keysPer === 'route' ? `${asked.method} ${splitTarget(asked.target).path}` : undefined
  const owner = { service: once.scope, tenant: tenant || undefined, route }
  const key = scopedKey(owner, reading.key, settings.hashKeys ? 'hashed' : 'plain')
  asked.onKey?.(key)
  const limits = { bytesMax: settings.bodyBytesMax, sha256: claimedSha256(asked.header('content-digest')) }
  const coming = asked.body(limits)
  const body = coming instanceof Promise ? await coming : coming
  if (body.is === 'too-large') return refuse(ground, 'bodyTooLarge')
  if (body.is === 'digest-mismatch') return refuse(ground, 'digestMismatch')
  const fingerprint = requestFingerprint(settings, asked, body)
  // `return await`: to adopt the promise of another costs more than to wait for it.
  return await ask(ground, key, { ...settings.call, fingerprint, onThrow: 'release' }, body, run)
}

/** One handler under one key: what it came to, and what that means for the key. */
interface Attempt {
  readonly body: Body
  readonly wish: Wish
  readonly run: Run
  produced: Produced | undefined
  /** What is answered in the handler's place. */
  instead: Answer | undefined
  /** What was thrown so that `once` gives the key back. */
  gaveBack: unknown
}

/** Whether the store has transactions was asked when the options were read. */
function transacting(once: Once): Once<Store & Transactional<unknown>, 'codec'> {
  return once as unknown as Once<Store & Transactional<unknown>, 'codec'>
}

async function ask<Asked>(
  ground: Ground<Asked>,
  key: Key,
  options: RunOptions,
  body: Body,
  run: Run,
): Promise<Delivery> {
  const { once, settings } = ground
  const wish: Wish = { fate: undefined }
  const attempt: Attempt = { body, wish, run, produced: undefined, instead: undefined, gaveBack: undefined }
  try {
    const result = settings.transaction
      ? await transacting(once).transaction(key, (tx, op) => perform(ground, attempt, op, tx), options)
      : await once.run(key, (op) => perform(ground, attempt, op, undefined), options)
    return result.replayed ? await replay(ground, body, result.value) : letGo(ground, attempt)
  } catch (error) {
    if (attempt.produced && error === attempt.gaveBack) return letGo(ground, attempt)
    return afterFailure(ground, key, attempt, error)
  }
}

/** The effect: the bytes to be stored, or a throw that gives the key back. */
async function perform<Asked>(ground: Ground<Asked>, attempt: Attempt, op: Op, tx: unknown): Promise<Uint8Array> {
  const { settings } = ground
  // A transaction that lost against others would run all of it again, but a request can be handled only once.
  if (attempt.produced) {
    attempt.instead = problem(settings, 'transactionConflict')
    giveBack(attempt, new Error('The transaction was rolled back because of others.'))
  }
  const produced = (attempt.produced = await attempt.run(createContext(op, tx, attempt.wish)))
  if (produced.is === 'thrown') {
    if (produced.error instanceof DigestError) refuseDigest(ground, attempt)
    // With `began` a throw is an answer to be stored, so it must be one: the framework's own would come too late.
    if (settings.errorPolicy !== 'began' || produced.error instanceof NotBegunError) giveBack(attempt, produced.error)
    attempt.instead = internalError()
  }
  const answer = attempt.instead ?? (produced.is === 'answer' ? produced.answer : undefined)
  if (answer && attempt.body.is === 'claimed' && !(await attempt.body.verify())) refuseDigest(ground, attempt)
  const status = answer ? answer.status : produced.is === 'stream' ? produced.status : 500
  const fate = fateOf(status, settings.errorPolicy, attempt.wish)
  if (fate === 'forget') giveBack(attempt, new NotBegunError('The handler said that it had not begun.'))
  if (fate === 'doubt') giveBack(attempt, new InDoubtError('The handler said that its effect may have taken place.'))
  if (fate === 'open') giveBack(attempt, new Error(`The answer (${status}) is not one to be stored.`))
  const bytes = answer ? encodeAnswer(answer, settings) : encodeNotStored()
  // In a transaction a refusal is the outcome, without the writes that led to it.
  if (settings.transaction && status >= 400) giveBack(attempt, finalAnswer(bytes))
  return bytes
}

function giveBack(attempt: Attempt, error: unknown): never {
  attempt.gaveBack = error
  throw error
}

function refuseDigest<Asked>(ground: Ground<Asked>, attempt: Attempt): never {
  attempt.instead = problem(ground.settings, 'digestMismatch')
  // The request that was claimed does not exist, so its key must be free for the one that was meant.
  giveBack(attempt, new NotBegunError('The content did not have the digest that was claimed.'))
}

/** The handler's own answer, or what stands in its place, now that the store has what it is to have. */
function letGo<Asked>(ground: Ground<Asked>, attempt: Attempt, more: readonly HeaderLine[] = []): Delivery {
  if (attempt.instead) return answerWith(ground, attempt.instead, more)
  if (attempt.produced?.is === 'thrown') return { is: 'thrown', error: attempt.produced.error }
  return { is: 'handler', headers: [ground.window, ...more] }
}

async function replay<Asked>(ground: Ground<Asked>, body: Body, value: unknown): Promise<Delivery> {
  const { settings } = ground
  // Only the digest was compared so far, and anybody can write a digest down.
  if (body.is === 'claimed' && !(await body.verify())) return refuse(ground, 'digestMismatch')
  let stored
  try {
    stored = decodeStored(value)
  } catch {
    return refuse(ground, 'outcomeUnreadable')
  }
  if (stored.is === 'not-stored') return refuse(ground, 'notStored')
  const marks: HeaderLine[] = [[settings.replayHeader, 'true']]
  // stripe-node tries a 500 again unless it is told that the answer will stay what it is.
  if (settings.profile === 'stripe' && stored.answer.status >= 500) marks.push(['Stripe-Should-Retry', 'false'])
  return answerWith(ground, stored.answer, marks)
}

const problemOf: Readonly<Partial<Record<ErrorCode, ProblemName>>> = {
  IN_FLIGHT: 'inProgress',
  MISMATCH: 'keyReused',
  EXPIRED: 'keyExpired',
  IN_DOUBT: 'inDoubt',
  // The retry is given the winner's answer.
  CLAIM_LOST: 'inProgress',
  DEADLINE_PASSED: 'outcomeUnknown',
  STORE_UNAVAILABLE: 'storeUnavailable',
  STORE_UNSAFE: 'storeUnavailable',
  SCHEMA_MISSING: 'storeUnavailable',
  TRANSACTION_CONFLICT: 'transactionConflict',
  OUTCOME_UNKNOWN: 'outcomeUnknown',
  OUTCOME_UNREADABLE: 'outcomeUnreadable',
  OUTCOME_NOT_STORED: 'notStored',
}

const unprotected: HeaderLine = ['Idempotency-Status', 'unprotected']

/** `once` refused, or could not keep what the handler came to. */
async function afterFailure<Asked>(
  ground: Ground<Asked>,
  key: Key,
  attempt: Attempt,
  error: unknown,
): Promise<Delivery> {
  const refused = bytesOfFinal(error)
  if (refused) return replay(ground, attempt.body, refused)
  if (!(error instanceof OnceError)) {
    // A FinalError that a handler threw is replayed as it was; anything else is the store's, after the handler ran.
    return error instanceof FinalError ? { is: 'thrown', error } : refuse(ground, 'outcomeUnknown')
  }
  const failOpen = ground.settings.onStoreDown === 'run' && !ground.settings.transaction
  if (failOpen && error.code === 'STORE_UNAVAILABLE' && !attempt.produced) {
    attempt.produced = await attempt.run(createContext(unclaimed(key), undefined, attempt.wish))
    return letGo(ground, attempt, [unprotected])
  }
  // Too large for this store, which knows only that it ran: the answer is still here, and the next one will be told.
  const notStored = error.code === 'OUTCOME_NOT_STORED' && !ground.settings.transaction
  if (notStored && attempt.produced) return letGo(ground, attempt)
  // The user chose answers over protection: this one is there, only its record is not.
  if (failOpen && error.code === 'OUTCOME_UNKNOWN' && attempt.produced) return letGo(ground, attempt, [unprotected])
  const name = problemOf[error.code]
  return name ? refuse(ground, name, { retryAfterMs: error.retryAfterMs }) : { is: 'thrown', error }
}

// Not a missing tenant: every request would be told to send credentials, and nobody would find out why.
function tenantIsNoText(tenant: unknown): OnceError {
  return invalidArgument(
    `idempotency: expected tenant to return a string, got a ${typeof tenant}. Nothing was run. Return String(id) for a number.`,
  )
}

/** What a handler is given when nothing could be claimed: derived keys are the same as ever, the fence is below every other. */
function unclaimed(key: Key): Op {
  const { signal } = new AbortController()
  return createOp({ key, token: systemRandom.uuid(), attempt: 1, fence: 0 }, () => signal)
}

function refuse<Asked>(ground: Ground<Asked>, name: ProblemName, details?: ProblemDetails): Delivery {
  return answerWith(ground, problem(ground.settings, name, details))
}

function answerWith<Asked>(ground: Ground<Asked>, answer: Answer, more: readonly HeaderLine[] = []): Delivery {
  return { is: 'answer', answer: { ...answer, headers: [...answer.headers, ground.window, ...more] } }
}

/** For a handler that threw where no framework is there to answer. */
export function internalError(): Answer {
  const body = { type: 'about:blank', title: 'Internal Server Error', status: 500 }
  return {
    status: 500,
    headers: [['Content-Type', 'application/problem+json']],
    body: Buffer.from(JSON.stringify(body)),
  }
}

// A failure is kept as JSON.
function finalAnswer(bytes: Uint8Array): FinalError {
  return new FinalError('The request was refused.', { data: { http: Buffer.from(bytes).toString('base64') } })
}

function bytesOfFinal(error: unknown): Uint8Array | undefined {
  const data = error instanceof FinalError ? (error.data as { readonly http?: unknown } | undefined) : undefined
  return typeof data?.http === 'string' ? Buffer.from(data.http, 'base64') : undefined
}

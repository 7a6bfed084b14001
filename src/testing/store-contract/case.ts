// What a case of the store contract is, and the few words in which all of them are written. A case gets a fresh subject on
// empty data, moves time only with `advance`, and leaves minutes of room unless it asks for exact edges.

import assert from 'node:assert/strict'
import { hash } from 'node:crypto'
import { sleep, systemClock, systemRandom } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { key } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type {
  Claim,
  ClaimRequest,
  Inspectable,
  Retention,
  Store,
  Sweepable,
  Transactional,
  Verdict,
} from '../../core/store.ts'
import type { ContractSubject } from './subject.ts'

/** Everything that a store promises, by the name under which `cannot` may except it, with what it means. */
export const guarantees = {
  'atomic-claims': 'of any number of claims at once, one is granted',
  takeover: 'the lease decides when others may try',
  'any-order': 'calls on one key in one tick are answered as some order of them would be',
  fencing: 'only token and fence together decide who may write',
  repeats: 'a call that is repeated after a lost reply recognises itself',
  mismatch: 'a key reused for another request never runs and changes nothing',
  release: 'a key can be given back, open or without a trace',
  expiry: 'retention counts from completion, and a tombstone keeps late retries from running',
  'exact-edges': 'leases and retention end at their exact millisecond (needs a clock that stands still)',
  outcomes: 'an outcome comes back byte for byte',
  unreadable: 'unreadable data is never taken for absent',
  keys: 'keys are compared byte for byte',
  'clock-skew': "the callers' clocks do not matter",
  sweep: 'expiry touches nothing that is alive, and changes no answer (Sweepable)',
  'counted-sweep': 'expiry goes entry by entry: in bounded steps, and counted (Sweepable)',
  inspection: 'entries can be looked at and mended by hand (Inspectable)',
  transactions: "the record commits with the caller's own writes (Transactional)",
  'no-waiting': "no claim waits for somebody's open transaction (Transactional)",
  'abandoned-effects': 'what an effect writes after its transaction was abandoned reaches nobody (Transactional)',
  collecting: 'what an effect collected is written with its outcome, all of it or nothing (Collecting)',
  operations: 'steps are recorded under the token, and a worker finds what nobody works on (StepLedger, Recoverable)',
  'transactional-steps': 'a step commits with its record (TransactionalSteps)',
  'crash-recovery': 'what was acknowledged survives a crash of the server (faults)',
  'connection-faults':
    'a store that cannot be reached fails closed, soon, and never says of a write whose reply was lost that it was not done (faults)',
  'commit-faults': 'a connection that is lost at COMMIT tells the truth (Transactional and faults)',
} as const

export type Guarantee = keyof typeof guarantees

export interface ContractCase {
  /** States the guarantee. Unique. */
  readonly name: string
  readonly guarantee: Guarantee
  /** Resolves when the store keeps the guarantee, rejects when it does not. A random case takes the seed, to be run as it was. */
  run(subject: ContractSubject, seed?: number): Promise<void>
}

export const minuteMs: number = 60_000
export const hourMs: number = 60 * minuteMs

/** Long enough that the real time a case takes on a slow machine is nothing beside it. */
export const leaseMs: number = 10 * minuteMs
export const retention: Retention = { keepMs: 24 * hourMs, tombstoneMs: 7 * 24 * hourMs }

export const aKey: Key = key('contract', 'a key')

/** 43 characters, as core/fingerprint.ts makes them. */
export function fingerprintOf(text: string): string {
  return hash('sha256', text, 'base64url')
}

export const otherFingerprint: string = fingerprintOf('another request')

export function bytesOf(text: string): Uint8Array {
  return new TextEncoder().encode(text)
}

export function request(changes: Partial<ClaimRequest> = {}): ClaimRequest {
  return {
    token: systemRandom.uuid(),
    fingerprint: fingerprintOf('a request'),
    leaseMs,
    retention,
    version: 1,
    onTakeover: 'run',
    onExpired: 'refuse',
    ...changes,
  }
}

/** Claim, and be granted. */
export async function take(
  store: Pick<Store, 'claim'>,
  subject: Key,
  changes: Partial<ClaimRequest> = {},
): Promise<Claim> {
  return grantedOf(await store.claim(subject, request(changes)))
}

/** Claim and settle. */
export async function finish(
  store: Store,
  subject: Key,
  outcome: Uint8Array,
  changes: Partial<ClaimRequest> = {},
): Promise<Claim> {
  const claim = await take(store, subject, changes)
  assert.equal(await store.settle(claim, outcome, changes.retention ?? retention), 'done')
  return claim
}

/** The verdict that another caller gets now. */
export async function ask(store: Store, subject: Key, changes: Partial<ClaimRequest> = {}): Promise<Verdict> {
  return store.claim(subject, request(changes))
}

export function grantedOf(verdict: Verdict): Claim {
  assert.equal(verdict.is, 'granted', `expected the claim to be granted, got ${describe(verdict)}`)
  return (verdict as Extract<Verdict, { is: 'granted' }>).claim
}

export function assertGranted(verdict: Verdict, how: 'fresh' | 'reopened' | 'taken-over', attempt: number): Claim {
  const claim = grantedOf(verdict)
  assert.equal((verdict as Extract<Verdict, { is: 'granted' }>).how, how)
  assert.equal(claim.attempt, attempt)
  return claim
}

export function assertIs(verdict: Verdict, is: Verdict['is']): void {
  assert.equal(verdict.is, is, `expected ${is}, got ${describe(verdict)}`)
}

export function assertBusy(verdict: Verdict, atMostMs: number): void {
  assert.ok(verdict.is === 'busy', `expected busy, got ${describe(verdict)}`)
  const { retryAfterMs } = verdict
  assert.ok(
    Number.isFinite(retryAfterMs) && retryAfterMs >= 0 && retryAfterMs <= atMostMs,
    `expected retryAfterMs from 0 to ${atMostMs}, got ${retryAfterMs}`,
  )
}

export function assertSettled(verdict: Verdict, outcome: Uint8Array): void {
  assert.ok(verdict.is === 'settled', `expected settled, got ${describe(verdict)}`)
  assert.ok(verdict.outcome instanceof Uint8Array, 'expected the outcome as bytes')
  assert.ok(
    Buffer.compare(verdict.outcome, outcome) === 0,
    `expected the ${outcome.length} bytes that were settled, got ${verdict.outcome.length} bytes that differ`,
  )
}

export function describe(verdict: Verdict): string {
  return JSON.stringify(verdict, (name, value: unknown) => (name === 'outcome' ? 'bytes' : value))
}

export function countGranted(verdicts: readonly Verdict[]): number {
  return verdicts.filter((verdict) => verdict.is === 'granted').length
}

/** A call that must fail: returns its error. */
export async function failureOf(work: Promise<unknown>): Promise<OnceError> {
  const outcome = await work.then(
    (value) => ({ value }),
    (error: unknown) => ({ error }),
  )
  assert.ok('error' in outcome, 'expected an error, got an answer')
  assert.ok(outcome.error instanceof OnceError, `expected an OnceError, got ${String(outcome.error)}`)
  return outcome.error
}

// Far above what any store takes to give up, far below what a test runner's patience is.
const boundMs = 40_000

/** Nothing may hang: rejects when `work` has not ended by then. */
export async function bounded<T>(what: string, work: Promise<T>): Promise<T> {
  const ended = new AbortController()
  const late = sleep(systemClock, boundMs, { signal: ended.signal }).then(() => {
    if (!ended.signal.aborted) throw new assert.AssertionError({ message: `${what} had not ended after ${boundMs} ms` })
    return work
  })
  return Promise.race([work, late]).finally(() => ended.abort())
}

/** A call that the store must serve: an error of the store is what the case was looking for, and not its mishap. */
export async function served<T>(what: string, work: Promise<T>): Promise<T> {
  return bounded(what, work).catch((error: unknown) => {
    if (!(error instanceof OnceError)) throw error
    throw new assert.AssertionError({ message: `expected ${what} to be served, got ${error.code}: ${error.message}` })
  })
}

/** The first answer of `work` that is not an error, for the moments in which a server comes back. */
export async function eventually<T>(work: () => Promise<T>): Promise<T> {
  const startedAtMs = systemClock.elapsed()
  for (;;) {
    try {
      return await bounded('a call to a store that comes back', work())
    } catch (error) {
      if (!(error instanceof OnceError) || !error.retryable || systemClock.elapsed() - startedAtMs > boundMs)
        throw error
      await sleep(systemClock, 20)
    }
  }
}

/** Asks until the verdict is something else than busy: a server takes a moment to see that a connection is gone. */
export async function claimWhenFree(claim: () => Promise<Verdict>): Promise<Verdict> {
  return eventually(async () => {
    const verdict = await claim()
    if (verdict.is === 'busy') throw new OnceError('IN_FLIGHT', { message: 'the key is still busy' })
    return verdict
  })
}

export function times(count: number): readonly number[] {
  return Array.from({ length: count }, (_, index) => index)
}

export function sweepableOf(store: Store & Partial<Sweepable>): Sweepable {
  return having(store, ['sweep'], 'sweep')
}

export function inspectableOf(subject: ContractSubject): Inspectable {
  return having(subject.store, ['show', 'list', 'mend', 'audit'], 'inspection')
}

export interface TransactionalSubject {
  readonly store: Store & Transactional<unknown>
  readonly transactions: NonNullable<ContractSubject['transactions']>
}

export function transactionalOf(subject: ContractSubject): TransactionalSubject {
  assert.ok(subject.transactions, missing('the subject lends no transactions', 'transactions'))
  const store: Store & Transactional<unknown> = having(subject.store, ['within', 'begin', 'isConflict'], 'transactions')
  return { store, transactions: subject.transactions }
}

export function faultsOf(subject: ContractSubject, guarantee: Guarantee): NonNullable<ContractSubject['faults']> {
  assert.ok(subject.faults, missing('the subject lends no faults', guarantee))
  return subject.faults
}

export function having<T>(store: Store, methods: readonly string[], guarantee: Guarantee): T {
  const absent = methods.filter((method) => typeof (store as unknown as Record<string, unknown>)[method] !== 'function')
  assert.equal(absent.length, 0, missing(`the store has no ${absent.join(', ')}`, guarantee))
  return store as T
}

export function missing(what: string, guarantee: Guarantee): string {
  return `${what}. If it cannot have them, say so: cannot: { '${guarantee}': 'why' }`
}

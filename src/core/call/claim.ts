// Asking the store for a key, from the token to the verdict. A claim whose answer never came is disowned, so that a key whose
// effect will not run is not blocked. A claim that was granted too long ago is confirmed before anything starts.

import { claimLost } from './attempt.ts'
import type { RunContext } from './attempt.ts'
import type { Call, Calls } from '../call.ts'
import { unheardReleaseDelaysMs } from '../backoff.ts'
import { sleep } from '../clock.ts'
import { asNotBegun } from '../errors.ts'
import type { OnceError } from '../errors.ts'
import { publish } from '../events.ts'
import { describeKey } from '../key.ts'
import type { Key } from '../key.ts'
import type { Settings } from '../settings.ts'
import { callStore, StoreCall } from '../timed-call.ts'
import type { Began, Claim, ClaimRequest, Verdict } from '../store.ts'

/** How one kind of claim is asked for. */
export interface Asking<A extends Verdict | Began<unknown>> {
  ask(context: RunContext, key: Key, request: ClaimRequest): Promise<A>
  /** Undo a claim that no caller will use: its answer came too late (`late`), or never. */
  disown(context: RunContext, key: Key, request: ClaimRequest, late?: A): Promise<void>
}

export interface ClaimAnswer<A> {
  readonly verdict: Verdict
  /** What the store returned. Missing when another local caller of the same group got the verdict. */
  readonly answer?: A
  /** When the store was asked: the lease counts from here. */
  readonly askedMs: number
}

/** Ask the store, and while the key is busy ask again for up to waitMs. */
export async function claim<A extends Verdict | Began<unknown>>(
  calls: Calls,
  call: Call,
  asking: Asking<A>,
): Promise<ClaimAnswer<A>> {
  const first = await askTimed(calls, call, asking)
  return isWaitedFor(call, first.verdict) ? ((await waitForKey(calls, call, asking)) ?? first) : first
}

/** Ask the store once, now. */
export function ask<A extends Verdict | Began<unknown>>(
  { context }: Calls,
  call: Call,
  asking: Asking<A>,
  nowMs: number,
): Promise<A> {
  return new ClaimCall(context, call, asking).begin(nowMs)
}

export function isWaitedFor(call: Call, verdict: Verdict): boolean {
  return verdict.is === 'busy' && call.settings.waitMs > 0
}

/** Asks again while the key is busy. Undefined when it still is after waitMs. */
export async function waitForKey<A extends Verdict | Began<unknown>>(
  calls: Calls,
  call: Call,
  asking: Asking<A>,
): Promise<ClaimAnswer<A> | undefined> {
  const { clock } = calls.context
  const startedMs = clock.elapsed()
  const askAgain = (): Promise<ClaimAnswer<A>> => askTimed(calls, call, asking)
  const later = await calls.waiting.wait({ group: call.group, waitMs: call.settings.waitMs, ask: askAgain })
  publish('waited', call.key, { durationMs: clock.elapsed() - startedMs, ended: later ? 'verdict' : 'in-flight' })
  return later
}

async function askTimed<A extends Verdict | Began<unknown>>(
  calls: Calls,
  call: Call,
  asking: Asking<A>,
): Promise<ClaimAnswer<A>> {
  const askedMs = calls.context.clock.elapsed()
  const answer = await ask(calls, call, asking, askedMs)
  return { verdict: verdictOf(answer), answer, askedMs }
}

/** One question to the store. Whatever it leaves behind that no caller hears of is disowned. */
class ClaimCall<A extends Verdict | Began<unknown>> extends StoreCall<A> {
  readonly #context: RunContext
  readonly #key: Key
  readonly #request: ClaimRequest
  readonly #asking: Asking<A>

  constructor(context: RunContext, call: Call, asking: Asking<A>) {
    super(context.storeCalls, 'claim', call.key)
    this.#context = context
    this.#key = call.key
    // The token is random, not the attempt number: an entry can be forgotten and claimed anew, attempts start again at 1,
    // and a zombie of the old attempt 1 would pass for the new one.
    this.#request = { ...call.request, token: context.random.uuid() }
    this.#asking = asking
  }

  begin(nowMs: number): Promise<A> {
    return this.start(() => this.#asking.ask(this.#context, this.#key, this.#request), nowMs)
  }

  protected override late(answer: A): void {
    if (verdictOf(answer).is === 'granted') this.#disown(answer)
  }

  protected override errorFor(cause: unknown): OnceError {
    const error = super.errorFor(cause)
    // The claim may have landed although its reply was lost. Its effect will not run, so it must not block the key.
    if (error.code === 'STORE_UNAVAILABLE') this.#disown()
    return error
  }

  #disown(late?: A): void {
    this.#context.background(this.#asking.disown(this.#context, this.#key, this.#request, late))
  }
}

function verdictOf(answer: Verdict | Began<unknown>): Verdict {
  return 'is' in answer ? answer : answer.verdict
}

/** A claim that holds its key by lease. A claim whose answer never came is released by its token. */
export function byLease(ask: Asking<Verdict>['ask']): Asking<Verdict> {
  return { ask, disown: releaseUnheard }
}

/** No effect runs under this token, so its release may come at any time. */
async function releaseUnheard(context: RunContext, key: Key, request: ClaimRequest): Promise<void> {
  const { clock, closing, store, storeCalls } = context
  const unheard: Claim = { key, token: request.token, attempt: 0, fence: 0 }
  for (const delayMs of unheardReleaseDelaysMs) {
    if (delayMs >= request.leaseMs) return
    await sleep(clock, delayMs, { signal: closing, background: 'background' })
    const released = callStore(storeCalls, 'release', key, () => store.release(unheard, 'forget'))
    if ((await released.catch(() => undefined)) === 'lost') return
  }
}

/** The lease counts from the asking: a process that stood still until it had ended must not start what another may have taken. */
export function mayHaveEnded({ clock }: RunContext, settings: Settings, askedMs: number): boolean {
  return clock.elapsed() - askedMs >= settings.leaseMs
}

/** Asks the store whether a claim whose lease may have ended still holds its key. */
export async function stillHeld(context: RunContext, held: Claim, settings: Settings, askedMs: number): Promise<void> {
  if (!mayHaveEnded(context, settings, askedMs)) return
  const { store, storeCalls } = context
  const asking = callStore(storeCalls, 'extend', held.key, () => store.extend(held, settings.leaseMs))
  const why = `The lease of ${describeKey(held.key)} may have ended before its effect began. The effect was not run.`
  const fenced = await asking.catch((cause: unknown) => Promise.reject(asNotBegun(cause, why)))
  if (fenced === 'lost') throw claimLost(held, settings, { executed: 'no' })
}

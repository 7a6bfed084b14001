// Asking the store for a key, from the token to the verdict. A claim whose answer never came is disowned, so that a key whose
// effect will not run is not blocked. A claim that was granted too long ago is confirmed before anything starts.

import { claimLost } from './attempt.ts'
import type { RunContext } from './attempt.ts'
import type { Call, Calls } from '../call.ts'
import { unheardReleaseDelaysMs } from '../backoff.ts'
import { sleep } from '../clock.ts'
import { OnceError } from '../errors.ts'
import { publish } from '../events.ts'
import type { Key } from '../key.ts'
import type { Settings } from '../settings.ts'
import { callStore } from '../timed-call.ts'
import type { Began, Claim, ClaimRequest, Verdict } from '../store.ts'

/** How one kind of claim is asked for. */
export interface Asking<A extends Verdict | Began<unknown>> {
  ask(request: ClaimRequest): Promise<A>
  /** Undo a claim that no caller will use: its answer came too late (`late`), or never. */
  disown(request: ClaimRequest, late?: A): Promise<void>
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
  { context, waiting }: Calls,
  call: Call,
  asking: Asking<A>,
): Promise<ClaimAnswer<A>> {
  const { clock, random, storeCalls } = context

  async function askOnce(): Promise<ClaimAnswer<A>> {
    // The token is random, not the attempt number: an entry can be forgotten and claimed anew, attempts start again at 1,
    // and a zombie of the old attempt 1 would pass for the new one.
    const request = { ...call.request, token: random.uuid() }
    const askedMs = clock.elapsed()
    const late = (answer: A): void => {
      if (verdictOf(answer).is === 'granted') context.background(asking.disown(request, answer))
    }
    try {
      const answer = await callStore(storeCalls, 'claim', call.key, () => asking.ask(request), late)
      return { verdict: verdictOf(answer), answer, askedMs }
    } catch (error) {
      // The claim may have landed although its reply was lost. Its effect will not run, so it must not block the key.
      if (error instanceof OnceError && error.code === 'STORE_UNAVAILABLE') context.background(asking.disown(request))
      throw error
    }
  }

  const first = await askOnce()
  const { waitMs } = call.settings
  if (first.verdict.is !== 'busy' || waitMs === 0) return first
  const startedMs = clock.elapsed()
  const later = await waiting.wait({ group: call.group, waitMs, ask: askOnce })
  publish('waited', call.key, { durationMs: clock.elapsed() - startedMs, ended: later ? 'verdict' : 'in-flight' })
  return later ?? first
}

function verdictOf(answer: Verdict | Began<unknown>): Verdict {
  return 'is' in answer ? answer : answer.verdict
}

/** A claim that holds its key by lease. A claim whose answer never came is released by its token. */
export function byLease(
  context: RunContext,
  key: Key,
  ask: (request: ClaimRequest) => Promise<Verdict>,
): Asking<Verdict> {
  return { ask, disown: (request) => releaseUnheard(context, key, request) }
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
export async function stillHeld(context: RunContext, held: Claim, settings: Settings, askedMs: number): Promise<void> {
  const { clock, store, storeCalls } = context
  if (clock.elapsed() - askedMs < settings.leaseMs) return
  const fenced = await callStore(storeCalls, 'extend', held.key, () => store.extend(held, settings.leaseMs))
  if (fenced === 'lost') throw claimLost(held, settings, { executed: 'no' })
}

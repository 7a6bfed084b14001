// One attempt that holds a key by lease: it runs the effect, keeps the lease alive meanwhile, and writes what it came to. The
// token decides every write: an attempt that was taken over can neither report success nor touch the entry.

import { backoffMs } from '../backoff.ts'
import { sleep } from '../clock.ts'
import type { Clock, Random } from '../clock.ts'
import { startEffect } from './effect.ts'
import type { Ended, Op } from './effect.ts'
import { OnceError } from '../errors.ts'
import { publish } from '../events.ts'
import { describeKey } from '../key.ts'
import type { Settings } from '../settings.ts'
import { callStore } from '../store-call.ts'
import type { StoreCalls } from '../store-call.ts'
import type { Advanced, Change, Claim, Fenced, Retention, StepLedger, Store } from '../store.ts'

type Writing = 'settle' | 'release' | 'advance'

/** What every call stands on. */
export interface Ground {
  readonly store: Store
  readonly clock: Clock
  readonly random: Random
  readonly calls: StoreCalls
  /** Work that goes on after a caller was answered; `close` waits for it. */
  background(work: Promise<unknown>): void
  /** Aborts when `close` is called: what can be cut short is. */
  readonly closing: AbortSignal
}

export interface Attempt {
  readonly ended: Promise<Ended>
  settle(outcome: Uint8Array, retention: Retention): Promise<Fenced>
  release(how: 'open' | 'forget'): Promise<Fenced>
  /** A write of an operation, which goes on after it or ends with it. */
  advance(change: Change, store: StepLedger): Promise<Advanced>
  /** Stop extending the lease and write nothing. */
  leave(): void
}

export function beginAttempt(ground: Ground, claim: Claim, settings: Settings, effect: (op: Op) => unknown): Attempt {
  const { clock, store } = ground
  const startedMs = clock.elapsed()
  let lost = false
  let writing = false
  const learnLost = (): void => {
    lost = true
    publish('lost', claim.key, { attempt: claim.attempt, durationMs: clock.elapsed() - startedMs })
  }
  const stopHeartbeat = startHeartbeat(ground, claim, settings, (why) => {
    // A heartbeat that our own settle has overtaken is told `lost`, too; the settle itself knows better.
    if (writing) return
    if (why === 'lost') learnLost()
    running.abort(claimLost(claim, settings))
  })
  const onDeadline = (): OnceError => {
    // A heartbeat that outlives its handler would wedge the key.
    stopHeartbeat()
    return deadlinePassed(claim, settings)
  }
  const running = startEffect(
    clock,
    { claim, attemptMs: settings.attemptMs, onDeadline, graceMs: settings.leaseMs },
    effect,
  )

  async function write<Answer extends Advanced>(
    during: Writing,
    call: () => Promise<Answer>,
  ): Promise<Answer | 'lost'> {
    if (lost) return 'lost'
    const beganMs = clock.elapsed()
    let fenced: Answer
    try {
      fenced = await callStore(ground.calls, during, claim.key, call)
    } catch (error) {
      fenced = await persist(ground, claim, settings, { during, call, beganMs, error })
    }
    if (fenced === 'lost' && !lost) {
      learnLost()
      running.abort(claimLost(claim, settings))
    }
    return fenced
  }

  async function writeLast<Answer extends Advanced>(
    during: Writing,
    call: () => Promise<Answer>,
  ): Promise<Answer | 'lost'> {
    writing = true
    try {
      return await write(during, call)
    } finally {
      stopHeartbeat()
    }
  }

  return {
    ended: running.ended,
    settle: (outcome, retention) => writeLast('settle', () => store.settle(claim, outcome, retention)),
    release: (how) => writeLast('release', () => store.release(claim, how)),
    advance: (change, ledger) =>
      (change.becomes.to === 'running' ? write : writeLast)('advance', () => ledger.advance(claim, change)),
    leave: stopHeartbeat,
  }
}

/**
 * Extends the lease at a third of it, so that two extensions may fail before it ends. `onEnd` is told when the store says
 * the claim is lost, or when a whole lease passed without an answer (`silent`: it may be lost; only the token can tell).
 */
function startHeartbeat(
  ground: Ground,
  claim: Claim,
  settings: Settings,
  onEnd: (why: 'lost' | 'silent') => void,
): () => void {
  const { clock, store } = ground
  const { leaseMs } = settings
  const periodMs = leaseMs / 3
  let stopped = false
  let aliveMs = clock.elapsed()
  let cancel = clock.schedule(() => void beat(), periodMs)
  const leftMs = (): number => aliveMs + leaseMs - clock.elapsed()

  async function beat(): Promise<void> {
    const beganMs = clock.elapsed()
    // Below a millisecond nothing can be extended any more, and a timer for it would only come back here.
    if (leftMs() < 1) return end('silent')
    const calls = { ...ground.calls, timeoutMs: Math.min(ground.calls.timeoutMs, leftMs()) }
    const fenced = await callStore(calls, 'extend', claim.key, () => store.extend(claim, leaseMs)).catch(
      () => undefined,
    )
    if (stopped) return
    if (fenced === 'lost') return end('lost')
    // The lease counts from when the store wrote it, at the earliest when we asked.
    if (fenced === 'done') aliveMs = beganMs
    const pauseMs = Math.min(periodMs - (clock.elapsed() - beganMs), leftMs())
    cancel = clock.schedule(() => void beat(), Math.max(0, pauseMs))
  }

  function end(why: 'lost' | 'silent'): void {
    if (stopped) return
    stopped = true
    cancel()
    onEnd(why)
  }

  return () => {
    stopped = true
    cancel()
  }
}

const writeBackoff = { firstMs: 50, factor: 2, maxMs: 2_000 }

/** A write that the store did not confirm. */
interface Unconfirmed<Answer> {
  readonly during: Writing
  readonly call: () => Promise<Answer>
  readonly beganMs: number
  readonly error: unknown
}

/**
 * Writes with the token are safe to repeat, so a store that fails is asked again until the lease would be over. The caller
 * is kept for one store time-out only and is then told that the outcome is unknown; the writing goes on without it.
 */
async function persist<Answer extends Advanced>(
  ground: Ground,
  claim: Claim,
  settings: Settings,
  { during, call, beganMs, error }: Unconfirmed<Answer>,
): Promise<Answer> {
  const { clock, calls } = ground
  if (error instanceof OnceError && isRefusal(error)) throw error
  const once = (): Promise<Answer> => callStore(calls, during, claim.key, call)
  const untilMs = beganMs + Math.max(settings.leaseMs, calls.timeoutMs)
  const writing = repeat(ground, once, untilMs)
  ground.background(writing)
  const fenced = await within(clock, beganMs + calls.timeoutMs - clock.elapsed(), writing)
  if (fenced !== undefined) return fenced
  throw new OnceError('OUTCOME_UNKNOWN', {
    message:
      `The effect for ${describeKey(claim.key)} (attempt ${claim.attempt}) has ended, but the store did not confirm the ${during}. ` +
      'Ask again with the same key: the answer will be the stored outcome, or the effect will be taken up when the lease ends.',
    cause: error,
  })
}

/**
 * The store has refused it (an outcome too large for it), and would do so again. Not what says that nothing was executed, as
 * a server that is not fit to be used does: after an effect that cannot be true, and it may pass.
 */
function isRefusal({ code, executed, retryable }: OnceError): boolean {
  return !retryable && (executed !== 'no' || code === 'OUTCOME_NOT_STORED')
}

async function repeat<T>({ clock, random }: Ground, call: () => Promise<T>, untilMs: number): Promise<T | undefined> {
  for (let tries = 0; clock.elapsed() < untilMs; tries++) {
    await sleep(clock, backoffMs(writeBackoff, tries, random))
    try {
      return await call()
    } catch {} // it was published as store-failed
  }
  return undefined
}

/** What `work` comes to, or undefined when it has not ended by then. */
async function within<T>(clock: Clock, patienceMs: number, work: Promise<T>): Promise<T | undefined> {
  const impatient = Promise.withResolvers<undefined>()
  const cancel = clock.schedule(() => impatient.resolve(undefined), patienceMs)
  try {
    return await Promise.race([work, impatient.promise])
  } finally {
    cancel()
  }
}

export function claimLost(
  claim: Claim,
  settings: Settings,
  details: { readonly executed?: 'no'; readonly cause?: unknown } = {},
): OnceError {
  return new OnceError('CLAIM_LOST', {
    message:
      `The effect for ${describeKey(claim.key)} (attempt ${claim.attempt}) outlived its ${settings.leaseMs} ms lease and another attempt ` +
      'may have taken over; its result was not stored. Raise leaseMs above the slowest pause, or keep the event loop free so that the heartbeat can run.',
    ...details,
  })
}

function deadlinePassed(claim: Claim, settings: Settings): OnceError {
  return new OnceError('DEADLINE_PASSED', {
    message:
      `The effect for ${describeKey(claim.key)} (attempt ${claim.attempt}) did not end within its attemptMs of ${settings.attemptMs}; ` +
      'its key can be claimed again when the lease ends. Raise attemptMs, or end the effect when op.signal aborts.',
  })
}

// Holding a key by lease: a heartbeat keeps the lease alive, the effect runs under it, and every write carries token and fence.
// The store decides each write: an attempt that was taken over can neither report success nor touch the entry.

import { backoffMs, backoffs } from '../backoff.ts'
import { sleep } from '../clock.ts'
import type { Clock, Random } from '../clock.ts'
import { startEffect } from './effect.ts'
import type { EffectHolder, Ended, Op, RunningEffect } from './effect.ts'
import { OnceError } from '../errors.ts'
import { publish } from '../events.ts'
import { Heartbeat } from './heartbeat.ts'
import type { HeartbeatHolder } from './heartbeat.ts'
import { describeKey } from '../key.ts'
import type { Settings } from '../settings.ts'
import { callStore, StoreCall } from '../timed-call.ts'
import type { StoreCalls } from '../timed-call.ts'
import type { Advanced, Change, Claim, Fenced, Retention, StepLedger, Store } from '../store.ts'

type Writing = 'settle' | 'release' | 'advance'

/** What every call of one `createOnce` uses. */
export interface RunContext {
  readonly store: Store
  readonly clock: Clock
  readonly random: Random
  readonly storeCalls: StoreCalls
  /** Work that goes on after its caller has a result. `close` waits for it. */
  background(work: Promise<unknown>): void
  /** Aborts when `close` is called: what can be cut short is. */
  readonly closing: AbortSignal
}

/** A key that this process holds: its lease is extended until the last write or `stop`. */
export interface HeldKey {
  readonly claim: Claim
  /** Run the effect under the lease and the attempt's deadline. Once at most. Never throws and never rejects. */
  run(effect: (op: Op) => unknown): Ended | Promise<Ended>
  /** `by` is the store unless the outcome is written together with something. */
  settle(outcome: Uint8Array, retention: Retention, by?: Pick<Store, 'settle'>): Promise<Fenced>
  release(how: 'open' | 'forget'): Promise<Fenced>
  /** A write of an operation, which goes on after it or ends with it. */
  advance(change: Change, store: StepLedger): Promise<Advanced>
  /** Stop extending the lease and write nothing. */
  stop(): void
}

export function holdKey(context: RunContext, claim: Claim, settings: Settings): HeldKey {
  return new LeasedKey(context, claim, settings)
}

/** One object for each held key, as every call makes one. It is what its heartbeat and its effect report to. */
class LeasedKey implements HeldKey, HeartbeatHolder, EffectHolder {
  readonly claim: Claim
  readonly settings: Settings
  readonly #context: RunContext
  readonly #heldSinceMs: number
  readonly #heartbeat: Heartbeat
  #effect: RunningEffect | undefined
  /** What lost its claim before it began does not begin. */
  #aborted: OnceError | undefined
  #isLost = false
  #isLastWrite = false

  constructor(context: RunContext, claim: Claim, settings: Settings) {
    this.claim = claim
    this.settings = settings
    this.#context = context
    this.#heldSinceMs = context.clock.elapsed()
    this.#heartbeat = new Heartbeat(context, this, this.#heldSinceMs)
  }

  run(effect: (op: Op) => unknown): Ended | Promise<Ended> {
    if (this.#aborted) return { is: 'threw', thrown: this.#aborted }
    this.#effect = startEffect(this.#context.clock, this, effect)
    return this.#effect.ended
  }

  settle(outcome: Uint8Array, retention: Retention, by: Pick<Store, 'settle'> = this.#context.store): Promise<Fenced> {
    return this.#writeLast('settle', () => by.settle(this.claim, outcome, retention))
  }

  release(how: 'open' | 'forget'): Promise<Fenced> {
    return this.#writeLast('release', () => this.#context.store.release(this.claim, how))
  }

  advance(change: Change, ledger: StepLedger): Promise<Advanced> {
    const call = (): Promise<Advanced> => ledger.advance(this.claim, change)
    return change.becomes.to === 'running'
      ? this.#write('advance', call, 'one of several')
      : this.#writeLast('advance', call)
  }

  stop(): void {
    this.#heartbeat.stop()
  }

  heartbeatEnded(why: 'lost' | 'silent'): void {
    // The store answers `lost` to a heartbeat that our own settle has overtaken. The settle itself knows better.
    if (this.#isLastWrite) return
    if (why === 'lost') this.#learnLost()
    this.#abort()
  }

  onDeadline(): OnceError {
    // A heartbeat that outlives its handler would wedge the key.
    this.stop()
    return deadlinePassed(this.claim, this.settings)
  }

  #writeLast<Result extends Advanced>(during: Writing, call: () => Promise<Result>): Promise<Result | 'lost'> {
    this.#isLastWrite = true
    return this.#write(during, call, 'last')
  }

  async #write<Result extends Advanced>(
    during: Writing,
    call: () => Promise<Result>,
    which: 'last' | 'one of several',
  ): Promise<Result | 'lost'> {
    try {
      if (this.#isLost) return 'lost'
      const beganMs = this.#context.clock.elapsed()
      let fenced: Result
      try {
        fenced = await new StoreCall<Result>(this.#context.storeCalls, during, this.claim.key).start(call, beganMs)
      } catch (error) {
        fenced = await persist(this.#context, this.claim, this.settings, { during, call, beganMs, error })
      }
      if (fenced === 'lost' && !this.#isLost) {
        this.#learnLost()
        this.#abort()
      }
      return fenced
    } finally {
      if (which === 'last') this.stop()
    }
  }

  #learnLost(): void {
    this.#isLost = true
    const { key, attempt } = this.claim
    publish('lost', key, { attempt, durationMs: this.#context.clock.elapsed() - this.#heldSinceMs })
  }

  #abort(): void {
    this.#aborted ??= claimLost(this.claim, this.settings)
    this.#effect?.abort(this.#aborted)
  }
}

/** A write that the store did not confirm. */
interface Unconfirmed<Result> {
  readonly during: Writing
  readonly call: () => Promise<Result>
  readonly beganMs: number
  readonly error: unknown
}

/**
 * Writes with the token are safe to repeat, so a store that fails is asked again until the lease would have ended. The caller
 * waits for one store time-out only and then gets OUTCOME_UNKNOWN. The writing goes on without it.
 */
async function persist<Result extends Advanced>(
  context: RunContext,
  claim: Claim,
  settings: Settings,
  { during, call, beganMs, error }: Unconfirmed<Result>,
): Promise<Result> {
  const { clock, storeCalls } = context
  if (error instanceof OnceError && isRefusal(error)) throw error
  const ask = (): Promise<Result> => callStore(storeCalls, during, claim.key, call)
  const untilMs = beganMs + Math.max(settings.leaseMs, storeCalls.timeoutMs)
  const writing = repeat(context, ask, untilMs)
  context.background(writing)
  const fenced = await patiently(clock, beganMs + storeCalls.timeoutMs - clock.elapsed(), writing)
  if (fenced !== undefined) return fenced
  throw new OnceError('OUTCOME_UNKNOWN', {
    message:
      `The effect for ${describeKey(claim.key)} (attempt ${claim.attempt}) has ended, but the store did not confirm the ${during}. ` +
      'Retry with the same key: the call returns the stored outcome, or runs the effect again once the lease has ended.',
    cause: error,
  })
}

/**
 * The store has refused the write (an outcome too large for it, a condition of the caller's) and would do so again. An error that says that nothing was executed
 * (a server that is unfit) is no refusal: after an effect that cannot be true, and the server may become fit again.
 */
function isRefusal({ code, executed, retryable }: OnceError): boolean {
  return !retryable && (executed !== 'no' || code === 'OUTCOME_NOT_STORED' || code === 'COMMIT_REFUSED')
}

async function repeat<T>(
  { clock, random }: RunContext,
  call: () => Promise<T>,
  untilMs: number,
): Promise<T | undefined> {
  for (let tries = 0; clock.elapsed() < untilMs; tries++) {
    await sleep(clock, backoffMs(backoffs.write, tries, random))
    try {
      return await call()
    } catch {} // it was published as store-failed
  }
  return undefined
}

/** The result of `work`, or undefined when it has not ended by then. */
async function patiently<T>(clock: Clock, patienceMs: number, work: Promise<T>): Promise<T | undefined> {
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

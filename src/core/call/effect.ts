// Runs an effect that holds a key: what it is given, its deadline, and how it ended. An effect that ignores its signal does
// not hang its caller: one lease after the signal it is given up, though its code cannot be stopped.

import { Limit } from '../clock.ts'
import type { Clock } from '../clock.ts'
import type { OnceError } from '../errors.ts'
import { deriveKey } from '../key.ts'
import type { Key } from '../key.ts'
import type { Settings } from '../settings.ts'
import type { Claim } from '../store.ts'

/** What an effect is given. */
export interface Op {
  readonly key: Key
  readonly attempt: number
  readonly token: string
  /** Grows with every attempt of the key: hand it to a downstream system that refuses an older one. */
  readonly fence: number
  /** Aborts when the claim is lost or the attempt's deadline passes. */
  readonly signal: AbortSignal
  /** The idempotency key for a named part of the effect in another system: the same on every attempt, 36 characters. */
  keyFor(name: string): string
}

export type Ended =
  | { readonly is: 'returned'; readonly value: unknown; readonly thrown?: undefined }
  | { readonly is: 'threw'; readonly thrown: unknown }
  | { readonly is: 'hung'; readonly thrown: OnceError }

/** What holds the key of an effect. */
export interface EffectHolder {
  readonly claim: Claim
  /** The signal aborts `attemptMs` after the start. The effect may go on for a lease after its signal aborted. */
  readonly settings: Pick<Settings, 'attemptMs' | 'leaseMs'>
  /** Returns what the signal aborts with. */
  onDeadline(): OnceError
}

/** A signal is made when it is asked for: most effects never do, and a signal costs as much as the rest of a call. */
interface HasSignal {
  signal(): AbortSignal
}

export function createOp(claim: Claim, signal: () => AbortSignal): Op {
  return new EffectOp(claim, { signal })
}

/** A class for its getter: one in an object literal is made anew for every call, which costs more than all the rest. */
class EffectOp implements Op {
  readonly key: Key
  readonly attempt: number
  readonly token: string
  readonly fence: number
  readonly #running: HasSignal

  constructor({ key, attempt, token, fence }: Claim, running: HasSignal) {
    this.key = key
    this.attempt = attempt
    this.token = token
    this.fence = fence
    this.#running = running
  }

  get signal(): AbortSignal {
    return this.#running.signal()
  }

  /** A function that needs no `this`: effects take it out of its op. */
  get keyFor(): (name: string) => string {
    return (name) => deriveKey(this.key, name)
  }
}

export function startEffect(clock: Clock, holder: EffectHolder, effect: (op: Op) => unknown): RunningEffect {
  return new RunningEffect(clock, holder, effect)
}

/** An effect, with the limit that ends it: first its deadline, then the grace after its signal aborted. */
export class RunningEffect extends Limit implements HasSignal {
  /** What returns no promise has ended at once. */
  readonly ended: Ended | Promise<Ended>
  readonly #clock: Clock
  readonly #holder: EffectHolder
  #controller: AbortController | undefined
  #aborted: OnceError | undefined
  /** Of an effect that did not end at once. */
  #tell: ((how: Ended) => void) | undefined
  #hasEnded = false

  constructor(clock: Clock, holder: EffectHolder, effect: (op: Op) => unknown) {
    super()
    this.#clock = clock
    this.#holder = holder
    this.set(clock, holder.settings.attemptMs)
    this.ended = this.#start(effect)
  }

  signal(): AbortSignal {
    this.#controller ??= new AbortController()
    if (this.#aborted) this.#controller.abort(this.#aborted)
    return this.#controller.signal
  }

  /** Abort the signal, for a reason other than the deadline. */
  abort(error: OnceError): void {
    if (this.#aborted) return
    this.#aborted = error
    if (!this.#hasEnded) {
      this.cancel()
      this.set(this.#clock, this.#holder.settings.leaseMs)
    }
    this.#controller?.abort(error)
  }

  passed(): void {
    if (this.#aborted) this.#tell!(this.#end({ is: 'hung', thrown: this.#aborted }))
    else this.abort(this.#holder.onDeadline())
  }

  #start(effect: (op: Op) => unknown): Ended | Promise<Ended> {
    let returned: unknown
    try {
      returned = effect(new EffectOp(this.#holder.claim, this))
    } catch (thrown) {
      return this.#end({ is: 'threw', thrown })
    }
    if (!isThenable(returned)) return this.#end({ is: 'returned', value: returned })
    return new Promise((tell) => {
      this.#tell = tell
      Promise.resolve(returned).then(
        (value) => tell(this.#end({ is: 'returned', value })),
        (thrown: unknown) => tell(this.#end({ is: 'threw', thrown })),
      )
    })
  }

  #end(how: Ended): Ended {
    this.#hasEnded = true
    this.cancel()
    return how
  }
}

/** What `await` would wait for: a promise, or a query builder. */
export function isThenable(value: unknown): value is PromiseLike<unknown> {
  return isObject(value) && typeof (value as { readonly then?: unknown }).then === 'function'
}

export function isObject(value: unknown): value is object {
  return (typeof value === 'object' && value !== null) || typeof value === 'function'
}

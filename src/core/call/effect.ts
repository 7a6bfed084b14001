// Runs an effect that holds a key: what it is given, its deadline, and how it ended. An effect that ignores its signal does
// not hang its caller: one lease after the signal it is given up, though its code cannot be stopped.

import type { Clock } from '../clock.ts'
import type { OnceError } from '../errors.ts'
import { deriveKey } from '../key.ts'
import type { Key } from '../key.ts'
import type { Claim } from '../store.ts'
import { started } from '../timed-call.ts'

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

export interface EffectOptions {
  readonly claim: Claim
  /** The signal aborts this long after the start, with what `onDeadline` returns. */
  readonly attemptMs: number
  onDeadline(): OnceError
  /** How long the effect may go on after its signal aborted. */
  readonly graceMs: number
}

export interface RunningEffect {
  readonly ended: Promise<Ended>
  /** Abort the signal, for a reason other than the deadline. */
  abort(error: OnceError): void
}

export function createOp(claim: Claim, signal: () => AbortSignal): Op {
  return new EffectOp(claim, signal)
}

/** A class for its getter: one in an object literal is made anew for every call, which costs more than all the rest. */
class EffectOp implements Op {
  readonly key: Key
  readonly attempt: number
  readonly token: string
  readonly fence: number
  readonly keyFor: (name: string) => string
  readonly #signal: () => AbortSignal

  constructor(claim: Claim, signal: () => AbortSignal) {
    this.key = claim.key
    this.attempt = claim.attempt
    this.token = claim.token
    this.fence = claim.fence
    this.keyFor = (name) => deriveKey(claim.key, name)
    this.#signal = signal
  }

  // Made when it is asked for: most effects never do, and a signal costs as much as the rest of a call.
  get signal(): AbortSignal {
    return this.#signal()
  }
}

export function startEffect(clock: Clock, options: EffectOptions, effect: (op: Op) => unknown): RunningEffect {
  const ended = Promise.withResolvers<Ended>()
  let controller: AbortController | undefined
  let aborted: OnceError | undefined
  let cancelTimer = clock.schedule(() => abort(options.onDeadline()), options.attemptMs)

  const signal = (): AbortSignal => {
    controller ??= new AbortController()
    if (aborted) controller.abort(aborted)
    return controller.signal
  }
  const abort = (error: OnceError): void => {
    if (aborted) return
    aborted = error
    cancelTimer()
    cancelTimer = clock.schedule(() => ended.resolve({ is: 'hung', thrown: error }), options.graceMs)
    controller?.abort(error)
  }
  const end = (how: Ended): void => {
    cancelTimer()
    ended.resolve(how)
  }
  started(() => effect(createOp(options.claim, signal))).then(
    (value) => end({ is: 'returned', value }),
    (thrown: unknown) => end({ is: 'threw', thrown }),
  )
  return { ended: ended.promise, abort }
}

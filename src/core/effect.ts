// Runs an effect that holds a key: what it is given, its deadline, and how it ended. An effect that ignores its signal does
// not hang its caller: one lease after the signal it is given up, though nobody can stop its code.

import type { Clock } from './clock.ts'
import type { OnceError } from './errors.ts'
import { deriveKey } from './key.ts'
import type { Key } from './key.ts'
import type { Claim } from './store.ts'

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
  /** The signal aborts this long after the start, with what `onDeadline` answers. */
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

export function createOp(claim: Claim, signal: AbortSignal): Op {
  const { key, attempt, token, fence } = claim
  return Object.freeze({ key, attempt, token, fence, signal, keyFor: (name: string) => deriveKey(key, name) })
}

export function startEffect(clock: Clock, options: EffectOptions, effect: (op: Op) => unknown): RunningEffect {
  const controller = new AbortController()
  const hung = Promise.withResolvers<Ended>()
  let cancelGrace: () => void = () => {}

  const abort = (error: OnceError): void => {
    if (controller.signal.aborted) return
    cancelGrace = clock.schedule(() => hung.resolve({ is: 'hung', thrown: error }), options.graceMs)
    controller.abort(error)
  }
  const cancelDeadline = clock.schedule(() => abort(options.onDeadline()), options.attemptMs)
  const running = (async () => effect(createOp(options.claim, controller.signal)))().then(
    (value): Ended => ({ is: 'returned', value }),
    (thrown: unknown): Ended => ({ is: 'threw', thrown }),
  )
  const ended = Promise.race([running, hung.promise]).finally(() => {
    cancelDeadline()
    cancelGrace()
  })
  return { ended, abort }
}

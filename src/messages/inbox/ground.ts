// What an inbox stands on: a database whose transaction holds mark and effect (by-transaction.ts), or a store that claims and settles
// (by-claim.ts).

import type { Clock, Random } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import type { Codec } from '../../core/outcome.ts'
import { started } from '../../core/timed-call.ts'
import type { Read } from './message.ts'
import type { ParkedCode } from './parked.ts'

/** What is promised about the number of effects of a message. */
export type MessageDelivery = 'effectively-once' | 'at-most-once' | 'at-least-once'

/** What became of a message. `handled`, `duplicate` and `refused` are ends: acknowledge it. `busy` and `failed` must come again. */
export type Handled =
  | { readonly is: 'handled' }
  /** It was handled before, by this consumer. */
  | { readonly is: 'duplicate' }
  /** It was not run, and never will be unless a person redrives it. */
  | { readonly is: 'refused'; readonly code: RefusedCode; readonly detail: string }
  /** Another process handles it now, or one before it of the same key failed. */
  | { readonly is: 'busy'; readonly retryAfterMs: number }
  | { readonly is: 'failed'; readonly error: unknown; readonly attempts: number; readonly retryAfterMs: number }

export type RefusedCode = 'PARKED' | 'STALE' | Exclude<ParkedCode, 'ATTEMPTS'>

export function refused(code: RefusedCode, detail: string): Handled {
  return { is: 'refused', code, detail }
}

export interface DeadLetterReason {
  readonly code: ParkedCode
  readonly detail: string
}

export interface InboxSettings<M> {
  /** Of the consumer: 'shop/inbox/mailer'. */
  readonly scope: string
  readonly attempts: number
  readonly attemptMs: number
  readonly windowMs: number
  readonly clock: Clock
  readonly random: Random
  readonly codec: Codec | undefined
  readonly deadLetter: ((message: M, reason: DeadLetterReason) => unknown) | undefined
}

export type Run<M> = (tx: unknown, messages: readonly M[]) => unknown

export interface InboxGround<M> {
  readonly guarantee: 'one-transaction' | 'claim-and-settle'
  /** Mark and run, each once. The ids differ. */
  handle(messages: readonly Read<M>[], run: Run<M>): Promise<readonly Handled[]>
  /** Mark without running: `handled` when this call made the mark. */
  mark(message: Read<M>): Promise<Handled>
  /** Run without a mark. */
  run(messages: readonly Read<M>[], run: Run<M>): Promise<void>
  /** Hand it to the dead-letter function and keep it, without running it. */
  park(message: Read<M>, code: ParkedCode, detail: string): Promise<Handled>
  sweep(beforeMs: number, limit: number): Promise<void>
}

/** Thrown for what a handler threw, so that it is told from what the store threw. */
export class HandlerError extends Error {
  override readonly name = 'HandlerError'
  /** It may still be running. */
  readonly isHung: boolean
  constructor(cause: unknown, isHung = false) {
    super('the handler failed', { cause })
    this.isHung = isHung
  }
}

/** Runs a handler for `attemptMs` at most. */
export function deadlineOf(settings: InboxSettings<never>, run: () => unknown): Promise<unknown> {
  const { clock, attemptMs } = settings
  return new Promise((resolve, reject) => {
    const cancel = clock.schedule(() => {
      const error = new OnceError('DEADLINE_PASSED', {
        executed: 'no',
        message: `The handler of ${settings.scope} did not end within its attemptMs of ${attemptMs}, and what it wrote was rolled back.`,
      })
      reject(new HandlerError(error, true))
    }, attemptMs)
    started(run)
      .then(resolve, (error: unknown) => reject(new HandlerError(error)))
      .finally(cancel)
  })
}

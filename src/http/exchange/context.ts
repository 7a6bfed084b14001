// The context of a request with a key (`req.idempotency`): the key it runs under, and what becomes of the handler's response.

import type { Op } from '../../core/call.ts'
import { invalidArgument } from '../../core/errors.ts'
import type { Once, TxOf } from '../../core/once.ts'
import type { Store } from '../../core/store.ts'
import type { ErrorPolicy } from './options.ts'

export interface IdempotencyContext<Tx = unknown> extends Op {
  /** With `transaction: true`: the store's transaction, to write with. The answer leaves after the commit. Otherwise undefined. */
  readonly tx: Tx
  /** A handler that runs is never a replay. */
  readonly replayed: false
  /** Do not store the answer that follows. The key is free for a retry of this request. */
  release(): void
  /** Store the answer that follows, whatever its status. */
  store(): void
  /** Nothing was done (validation failed, a limiter refused). No trace is left, and the key is free for another request. */
  notBegun(): void
  /** Something may have happened, and the outcome is unknown. The key is kept until its lease ends, then `onTakeover` decides. */
  inDoubt(): void
}

/** What `createOnce` returned, on the store `S`. */
export type OnceOn<S extends Store> = Once & { readonly store: S }

/** The type of `tx`. */
export type TxWith<S, InTransaction extends boolean> = InTransaction extends true ? TxOf<S> : undefined

/** What `of(request)` returns. A request without a key has no context. With `transaction: true` such a request is refused. */
export type ContextWith<S, InTransaction extends boolean> = InTransaction extends true
  ? IdempotencyContext<TxOf<S>>
  : IdempotencyContext<undefined> | undefined

/** Refuses `transaction: true` on a store without transactions, where the store is known. */
export type TransactionsOf<S, InTransaction extends boolean> = [InTransaction] extends [true]
  ? Store extends S
    ? unknown
    : [TxOf<S>] extends [never]
      ? { readonly 'transaction: true needs': 'a store with transactions: sqlite, postgres, mysql or dynamodb' }
      : unknown
  : unknown

/** The context of a request for `of`: with `transaction: true` it must be there. */
export function contextOf<S, InTransaction extends boolean>(
  found: IdempotencyContext | undefined,
  { transaction }: { readonly transaction: boolean },
): ContextWith<S, InTransaction> {
  if (transaction && !found) {
    throw invalidArgument(
      'idempotency: of(request) found no transaction. The request has not passed this middleware, or its method is not protected ' +
        '(the option methods, by default POST and PATCH).',
    )
  }
  return found as ContextWith<S, InTransaction>
}

/** What becomes of the key: the answer is stored, it is open to a retry, nothing is remembered, or it is left to its lease. */
export type VerdictName = 'store' | 'open' | 'forget' | 'doubt'

/** What the handler said about the answer that follows, through its context. */
export interface HandlerChoice {
  verdict: VerdictName | undefined
}

/** A class for its getter: a getter in an object literal is created per request, which costs more than all the rest. */
class Context<Tx> implements IdempotencyContext<Tx> {
  readonly #op: Op
  readonly key: Op['key']
  readonly attempt: number
  readonly token: string
  readonly fence: number
  readonly keyFor: Op['keyFor']
  readonly tx: Tx
  readonly replayed = false
  readonly release: () => void
  readonly store: () => void
  readonly notBegun: () => void
  readonly inDoubt: () => void

  constructor(op: Op, tx: Tx, choice: HandlerChoice) {
    this.#op = op
    this.key = op.key
    this.attempt = op.attempt
    this.token = op.token
    this.fence = op.fence
    this.keyFor = op.keyFor
    this.tx = tx
    this.release = () => void (choice.verdict = 'open')
    this.store = () => void (choice.verdict = 'store')
    this.notBegun = () => void (choice.verdict = 'forget')
    this.inDoubt = () => void (choice.verdict = 'doubt')
  }

  /** Created when it is read. */
  get signal(): AbortSignal {
    return this.#op.signal
  }
}

export function createContext<Tx>(op: Op, tx: Tx, choice: HandlerChoice): IdempotencyContext<Tx> {
  return new Context(op, tx, choice)
}

/**
 * These statuses refuse to look at the request, each with a way to have it looked at: credentials, another connection, a later
 * retry. Replaying them for a day would lock out a client that does so.
 */
export const unheard: ReadonlySet<number> = new Set([401, 407, 408, 421, 425, 429])

export function verdictFor(status: number, policy: ErrorPolicy, choice: HandlerChoice): VerdictName {
  if (choice.verdict) return choice.verdict
  if (unheard.has(status)) return 'open'
  if (policy === 'began') return 'store'
  return status >= (policy === 'success-only' ? 400 : 500) ? 'open' : 'store'
}

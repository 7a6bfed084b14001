// What a store must lend to the contract: itself, a second instance on the same data, and hands on the world around it.

import type { Inspectable, Store, Sweepable, Transactional } from '../../core/store.ts'

export interface ContractSubject<Tx = unknown> {
  readonly store: Store & Partial<Transactional<Tx> & Sweepable & Inspectable>
  /**
   * Another instance on the same data, as a second process would have it. `clockSkewMs` is by how much that process's own
   * clock is wrong: a store that reads a process's clock anywhere must be given one that is off by so much.
   */
  another(process?: { readonly clockSkewMs?: number }): Promise<Store & Partial<Sweepable>>
  /**
   * Move the store's own clock forward. Every instance sees it. The clock should stand still otherwise (freeze it when the
   * subject is created), or the exact edges cannot be tested. A store whose clock cannot be stopped says so with
   * `cannot: { 'exact-edges': why }`. All other cases leave minutes of room.
   */
  advance(ms: number): Promise<void>
  /** Replace the stored outcome of this settled key by bytes that no call wrote. */
  corrupt(key: { readonly scope: string; readonly id: string }, bytes: Uint8Array): Promise<void>
  /** The user's own transactions, on the same database, with a table of effects that has no unique constraint. */
  readonly transactions?: {
    /** Commits when `work` resolves, rolls back when it throws. */
    run<T>(work: (tx: Tx) => Promise<T>): Promise<T>
    addEffect(tx: Tx, name: string): Promise<void>
    /** COMMIT in the transaction's own words: what an effect must not do. */
    commitByHand(tx: Tx): Promise<void>
    /** Committed effects only. */
    countEffects(name: string): Promise<number>
  }
  /** For a store that is `Collecting`: effects that are counted, without a unique constraint. */
  readonly collecting?: {
    /** Collects one more of the effect. */
    addEffect(tx: unknown, name: string): void
    /** Collects a write whose condition does not hold. */
    addRefused(tx: unknown): void
    countEffects(name: string): Promise<number>
  }
  readonly faults?: {
    /** kill -9 of the server, then the same data again. Resolves when it answers. */
    crashServer(): Promise<void>
    /** No connection gets through until `heal`. */
    cutOff(): Promise<void>
    heal(): Promise<void>
    /** The next request that contains a commit: its connection is cut before the server sees it, or before its reply comes back. */
    cutAtCommit(side: 'before' | 'after'): Promise<void>
    /** The reply of the next store call is lost after the server has carried it out. */
    dropNextReply(): Promise<void>
  }
  destroy(): Promise<void>
}

// The front door: ask for an effect by its key, and it runs once however often it is asked for. The claim is written before
// the effect starts, and an answer is given only after its outcome is settled (or its transaction committed).

import type { RunContext } from './once/attempt.ts'
import { createByHand } from './once/by-hand.ts'
import type { ByHand } from './once/by-hand.ts'
import { createCalls } from './once/call.ts'
import type { Result } from './once/call.ts'
import type { Op } from './once/effect.ts'
import { run } from './once/run.ts'
import { startSweeping } from './once/sweeping.ts'
import { createTransactions } from './once/transaction.ts'
import type { Within } from './once/transaction.ts'
import type { Key } from './key.ts'
import { createOperations, unfinishedKeepMs } from './operations.ts'
import type { Operations } from './operations.ts'
import { readOnceOptions } from './settings.ts'
import type { OnceOptions, RunOptions, Settings } from './settings.ts'
import type { Began, Store, SyncTransactional } from './store.ts'

export type { ShownEntry } from './once/by-hand.ts'

/** What the store's transactions are written with; `never` for a store that has none. */
export type TxOf<S> = S extends { begin(...args: never): Promise<Began<infer Tx>> } ? Tx : never
/** Every kind of transaction that the store can join. */
export type ForeignTxOf<S> =
  | (S extends { within(tx: infer Tx): unknown } ? Tx : never)
  | (S extends SyncTransactional<infer Tx> ? Tx : never)

export interface Once<S extends Store = Store> extends ByHand, Operations<TxOf<S>> {
  readonly store: S
  readonly scope: string
  /** What holds for a call that says nothing else. */
  readonly settings: Settings
  /** Run the effect, or be told what it came to. */
  run<T>(id: string | Key, effect: (op: Op) => T | Promise<T>, options?: RunOptions): Promise<Result<T>>
  /** Effect and record in one transaction of the store: they commit together or not at all. */
  transaction<T>(
    id: string | Key,
    effect: (tx: TxOf<S>, op: Op) => T | Promise<T>,
    options?: RunOptions,
  ): Promise<Result<T>>
  /** The same in a transaction that the caller opened and will end. */
  within(tx: ForeignTxOf<S>): Within
  /** Stop what runs in the background and wait for what is being written. The store stays open: it is yours. */
  close(): Promise<void>
}

export function createOnce<S extends Store>(options: OnceOptions<S>): Once<S> {
  const { settings, clock, random } = readOnceOptions(options)
  const { store, scope } = options
  const backgroundWork = new Set<Promise<unknown>>()
  const closing = new AbortController()
  const context: RunContext = {
    store,
    clock,
    random,
    storeCalls: { clock, storeName: store.name, timeoutMs: settings.storeTimeoutMs },
    background(work) {
      const tracked = work.catch(() => {}).finally(() => backgroundWork.delete(tracked))
      backgroundWork.add(tracked)
    },
    closing: closing.signal,
  }
  const calls = createCalls(options, settings, context)
  if (options.sweepEveryMs !== undefined) startSweeping(context, options.sweepEveryMs)

  return {
    store,
    scope,
    settings,
    run: async (id, effect, runOptions = {}) => run(calls, calls.read('run', id, effect, runOptions), effect),
    ...createTransactions(calls),
    // Kept as long as its operation may be: a compensation that is forgotten while that is in doubt would run again.
    ...createOperations<TxOf<S>>(calls, options, settings, async (id, effect) =>
      run(calls, calls.read('reconcile', id, effect, { keepMs: unfinishedKeepMs }), effect),
    ),
    ...createByHand(context, scope, options.codec),
    async close() {
      closing.abort()
      await Promise.all(backgroundWork)
    },
  }
}

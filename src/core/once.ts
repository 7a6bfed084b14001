// The front door: ask for an effect by its key, and it runs once however often it is asked for. The claim is written before
// the effect starts, and an answer is given only after its outcome is settled (or its transaction committed).

import { createCalls } from './call.ts'
import type { Op, Result, RunContext } from './call.ts'
import { createByHand } from './once/by-hand.ts'
import type { OnceByHand } from './once/by-hand.ts'
import { checkReady } from './once/ready.ts'
import { run } from './once/run.ts'
import { startSweeping } from './once/sweeping.ts'
import { createTransactions } from './once/transaction.ts'
import type { OnceTransactions, OnceWithin, Within, WithinSync } from './once/transaction.ts'
import type { Key } from './key.ts'
import { createOperations, unfinishedKeepMs } from './operations.ts'
import type { Operations } from './operations.ts'
import type { Codec } from './outcome.ts'
import { readOnceOptions } from './settings.ts'
import type { OnceOptions, RunOptions, Settings } from './settings.ts'
import type { Began, Collector, Inspectable, Recoverable, StepLedger, Store, SyncTransactional } from './store.ts'
import type { Storable, Stored, ValueKind } from './stored.ts'
import { started } from './timed-call.ts'

export type { Op, Result } from './call.ts'
export type { FoundOutcome, OnceByHand, ShownEntry } from './once/by-hand.ts'
export { checkRecordedReason, onRecord } from './once/on-record.ts'
export type { MessageChange, RecordedChange, SessionChange, WebhookChange } from './once/on-record.ts'
export type { DoubtDecision, KeyReconcileOptions, KeyReconciliation } from './once/reconcile.ts'
export { run as runCall } from './once/run.ts'
export { hasTransactions, transaction as transactionCall } from './once/transaction.ts'
export type { OnceTransactions, OnceWithin, Within, WithinSync } from './once/transaction.ts'

/** What the store's transactions are written with. `never` for a store that has none. */
export type TxOf<S> = S extends { begin(...args: never): Promise<Began<infer Tx>> }
  ? Tx
  : S extends { collect(...args: never): Collector<infer Tx, unknown> }
    ? Tx
    : never
/** Every kind of transaction that the store can join. */
export type ForeignTxOf<S> =
  | (S extends { within(tx: infer Tx): unknown } ? Tx : never)
  | (S extends SyncTransactional<infer Tx> ? Tx : never)

/** What `createOnce` gives on any store. */
export interface OnceRunner<S extends Store = Store, Kind extends ValueKind = 'json'> {
  readonly store: S
  readonly scope: string
  /** What holds for a call that says nothing else. */
  readonly settings: Settings
  /**
   * Run the effect, or return the stored result of an earlier run.
   *
   * @example
   * import { createOnce } from 'onceonly'
   * import { memoryStore } from 'onceonly/memory'
   *
   * const once = createOnce({ store: memoryStore(), scope: 'payments' })
   * const { value, replayed } = await once.run('order-42', () => ({ receipt: 'r1' }), { fingerprint: { cents: 500 } })
   */
  run<T>(
    id: string | Key,
    effect: ((op: Op) => T | Promise<T>) & Storable<T, Kind>,
    options?: RunOptions,
  ): Promise<Result<Stored<T, Kind>>>
  /**
   * Resolves if the store could serve a call now, and throws the store's error if not. Call it before you listen: missing tables, an
   * unsafe server or a wrong password (`retryable: false`) then end the start, with their cure, and not the first request.
   *
   * @example
   * import { createOnce } from 'onceonly'
   * import { memoryStore } from 'onceonly/memory'
   *
   * const once = createOnce({ store: memoryStore(), scope: 'payments' })
   * await once.ready()
   */
  ready(): Promise<void>
  /** Stop what runs in the background and wait for what is being written. The store stays open: it is yours. */
  close(): Promise<void>
}

/**
 * What `createOnce` gives. It has the methods that its store can serve: manual changes where entries can be inspected,
 * transactions and operations where the store has them. `Kind` says whether a codec stores the values. `Once` without parameters
 * is any of them.
 */
export type Once<S extends Store = Store, Kind extends ValueKind = Store extends S ? ValueKind : 'json'> = OnceRunner<
  S,
  Kind
> &
  (S extends Inspectable ? OnceByHand<Kind> : unknown) &
  ([TxOf<S>] extends [never] ? unknown : OnceTransactions<TxOf<S>, Kind>) &
  (S extends { within(...args: never): unknown }
    ? OnceWithin<ForeignTxOf<S>, S extends SyncTransactional<never> ? WithinSync<Kind> : Within<Kind>>
    : unknown) &
  (S extends StepLedger & Recoverable ? Operations<TxOf<S>, Kind> : unknown)

/**
 * The front door: effects are asked for by key, and each runs once however often it is asked for.
 *
 * @example
 * import { createOnce } from 'onceonly'
 * import { sqliteStore } from 'onceonly/sqlite'
 *
 * const once = createOnce({ store: sqliteStore({ path: 'once.db' }), scope: 'payments' })
 * const { value } = await once.run('order-42', () => ({ receipt: 'r1' }))
 */
export function createOnce<S extends Store>(options: OnceOptions<S> & { readonly codec: Codec }): Once<S, 'codec'>
export function createOnce<S extends Store>(options: OnceOptions<S>): Once<S, 'json'>
export function createOnce(options: OnceOptions): Once {
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
  startSweeping(context, options.sweepEveryMs)
  // Kept as long as its operation may be: a compensation that is forgotten while that is in doubt would run again.
  const operations = createOperations(calls, options, settings, async (id, effect) =>
    run(calls, calls.read('reconcile', id, effect, { keepMs: unfinishedKeepMs }), effect),
  )

  return {
    store,
    scope,
    settings,
    run: (id, effect, runOptions = noOptions) =>
      started(() => run(calls, calls.read('run', id, effect, runOptions), effect)),
    ...createTransactions(calls),
    ...operations,
    ...createByHand(context, options, settings, () => operations.stepsInDoubt()),
    ready: () => checkReady(context, scope),
    async close() {
      closing.abort()
      await Promise.all(backgroundWork)
    },
  }
}

const noOptions: RunOptions = {}

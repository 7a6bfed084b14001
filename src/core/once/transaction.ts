// Effect and record in one transaction: the strongest form. There is no lease and no heartbeat here: the database keeps
// others away while the transaction is open, and a crash takes effect and claim back together.

import { claim, createOp, isObject, isThenable, startEffect, undoneAsNotStored, valueOf } from '../call.ts'
import type { Asking, Call, Calls, Ended, Op, Result, RunContext } from '../call.ts'
import { collecting, isCollecting } from './collecting.ts'
import { backoffMs, countedBackoffs } from '../backoff.ts'
import { sleep } from '../clock.ts'
import { FinalError, invalidArgument, OnceError } from '../errors.ts'
import { publish } from '../events.ts'
import { describeKey, keyString } from '../key.ts'
import type { Key } from '../key.ts'
import { failureOf } from '../outcome.ts'
import type { Outcome } from '../outcome.ts'
import type { RunOptions } from '../settings.ts'
import type { Storable, Stored, ValueKind } from '../stored.ts'
import { bounded } from '../timed-call.ts'
import type {
  Began,
  Claim,
  Fenced,
  InTransaction,
  Store,
  SyncInTransaction,
  SyncTransactional,
  Transactional,
} from '../store.ts'

/** `once.within(tx)`: the record becomes part of the caller's transaction, and is as final as its commit. */
export interface Within<Kind extends ValueKind = 'json'> {
  /** Run the effect in the caller's transaction, or return its stored result. */
  run<T>(
    id: string | Key,
    effect: ((op: Op) => T | Promise<T>) & Storable<T, Kind>,
    options?: RunOptions,
  ): Promise<Result<Stored<T, Kind>>>
}

/** The same on a store whose transactions may be synchronous (SQLite). */
export interface WithinSync<Kind extends ValueKind = 'json'> extends Within<Kind> {
  /** For synchronous transactions (better-sqlite3). The effect must not return a promise. */
  runSync<T>(
    id: string | Key,
    effect: ((op: Op) => T) & Storable<T, Kind>,
    options?: RunOptions,
  ): Result<Stored<T, Kind>>
}

/** What `Once` has on a store that opens transactions itself, written with `Tx`. */
export interface OnceTransactions<Tx, Kind extends ValueKind = 'json'> {
  /** Effect and record in one transaction of the store: they commit together or not at all. */
  transaction<T>(
    id: string | Key,
    effect: ((tx: Tx, op: Op) => T | Promise<T>) & Storable<T, Kind>,
    options?: RunOptions,
  ): Promise<Result<Stored<T, Kind>>>
}

/** What `Once` has on a store that can join a transaction. `Foreign` is every kind that it can join. */
export interface OnceWithin<Foreign, Joined> {
  /** Effect and record in a transaction that the caller opened and will end. */
  within(tx: Foreign): Joined
}

type AnyTransactions = OnceTransactions<unknown, 'codec'> & OnceWithin<unknown, WithinSync<'codec'>>

export function createTransactions(calls: Calls): AnyTransactions {
  const { store } = calls.context
  return {
    async transaction(id, effect, options = {}) {
      const call = calls.read('transaction', id, effect, options)
      if (isCollecting(store)) return collecting(calls, call, store, effect)
      return transaction(calls, call, transactional(store, 'transaction'), effect)
    },
    within: (tx) => ({
      run: async (id, effect, options = {}) => {
        const call = calls.read('within.run', id, effect, options)
        const joined = transactional(store, 'within').within(tx)
        // Its own transaction holds the key: no other call can end it.
        if (isHeldBy(tx, call.key)) return calls.answer(call, ownKey, 0)
        const leave = enter(tx, call.key)
        try {
          return await runWithin(calls, call, joined, effect)
        } finally {
          leave()
        }
      },
      runSync: (id, effect, options = {}) => {
        const call = calls.read('within.runSync', id, effect, options)
        const joined = syncTransactional(store).withinSync(tx)
        if (isHeldBy(tx, call.key)) return calls.answer(call, ownKey, 0)
        const leave = enter(tx, call.key)
        try {
          return runWithinSync(calls, call, joined, effect)
        } finally {
          leave()
        }
      },
    }),
  }
}

const { transaction: conflictBackoff } = countedBackoffs

export async function transaction<T, Tx>(
  calls: Calls,
  call: Call,
  store: Transactional<Tx>,
  effect: (tx: Tx, op: Op) => T | Promise<T>,
): Promise<Result<T>> {
  const { clock, random } = calls.context
  for (let tries = 0; ; tries++) {
    try {
      return await tryTransaction(calls, call, store, effect)
    } catch (error) {
      // The rollback took the effect along, so all of it may run again.
      if (!store.isConflict(error)) throw error
      if (tries + 1 >= conflictBackoff.triesMax) throw conflict(call.key, error)
      await sleep(clock, backoffMs(conflictBackoff, tries, random))
    } finally {
      calls.wake(call)
    }
  }
}

async function tryTransaction<T, Tx>(
  calls: Calls,
  call: Call,
  store: Transactional<Tx>,
  effect: (tx: Tx, op: Op) => T | Promise<T>,
): Promise<Result<T>> {
  const { context } = calls
  const startedMs = context.clock.elapsed()
  const { verdict, answer } = await claim(calls, call, beginning(store))
  if (verdict.is !== 'granted') return calls.answer(call, verdict, startedMs)
  const granted = answer?.granted
  if (!granted) throw new Error(`Bug! The ${context.store.name} store granted a transaction without giving it.`)
  const { attempt } = verdict.claim
  publish('claimed', call.key, { attempt, how: verdict.how, durationMs: context.clock.elapsed() - startedMs })
  const ended = await runEffect(context, call, verdict.claim, (op) => {
    if (isObject(granted.tx)) heldBy.set(granted.tx, keyString(call.key))
    return effect(granted.tx, op)
  })
  if (isObject(granted.tx)) heldBy.delete(granted.tx)
  const outcome = outcomeOf(calls, ended, call)
  if (!outcome) {
    await rollBack(context, granted, ended.is === 'hung' ? 'abandon' : 'rollback')
    publish('released', call.key, { attempt, how: 'forget', durationMs: context.clock.elapsed() - startedMs })
    throw ended.thrown
  }
  const stored = calls.encode(outcome)
  // A refusal is never committed with the writes that led to it, also when it cannot be stored itself.
  if (outcome.kind === 'failure' && stored.outcome.kind === 'not-stored') {
    await rollBack(context, granted, 'rollback')
    publish('released', call.key, { attempt, how: 'forget', durationMs: context.clock.elapsed() - startedMs })
    throw undoneAsNotStored(call.key, stored.outcome.reason)
  }
  if ((await commit(context, call, granted, stored)) === 'lost') throw lostInTransaction(call.key)
  publish('settled', call.key, { attempt, kind: stored.outcome.kind, durationMs: context.clock.elapsed() - startedMs })
  if (stored.outcome.kind === 'failure') throw ended.thrown
  return { value: valueOf(call.key, stored.outcome) as T, replayed: false, attempt }
}

/** A transaction that began too late is rolled back. One whose reply was lost ends with its connection. */
function beginning<Tx>(store: Transactional<Tx>): Asking<Began<Tx>> {
  return {
    ask: (_context, key, request) => store.begin(key, request),
    disown: async (context, _key, _request, late) => {
      if (late?.granted) await rollBack(context, late.granted, 'rollback')
    },
  }
}

type OpenTransaction = NonNullable<Began<unknown>['granted']>

/**
 * Never fails and never hangs: the error that led here matters more, and a connection that does not even roll back is cut
 * off, which rolls back by itself.
 */
async function rollBack(context: RunContext, granted: OpenTransaction, how: 'rollback' | 'abandon'): Promise<void> {
  try {
    await bounded(context.storeCalls, () => granted[how]())
  } catch {
    if (how === 'rollback') await rollBack(context, granted, 'abandon')
  }
}

/** A failure is committed without the writes that led to it. */
async function commit(
  context: RunContext,
  call: Call,
  granted: OpenTransaction,
  stored: { bytes: Uint8Array; outcome: Outcome },
): Promise<Fenced> {
  const asItIs = (error: unknown): boolean =>
    error instanceof OnceError || (context.store as Store & Transactional<unknown>).isConflict(error)
  try {
    if (stored.outcome.kind === 'failure') await bounded(context.storeCalls, () => granted.undoEffect())
  } catch (error) {
    await rollBack(context, granted, 'abandon')
    if (asItIs(error)) throw error
    throw new OnceError('STORE_UNAVAILABLE', {
      message: `The transaction for ${describeKey(call.key)} could not be rolled back to its claim, and was rolled back as a whole. Retry with the same key.`,
      cause: error,
    })
  }
  try {
    return await bounded(context.storeCalls, () => granted.commit(stored.bytes, call.request.retention))
  } catch (error) {
    if (asItIs(error)) throw error
    throw new OnceError('OUTCOME_UNKNOWN', {
      message:
        `The transaction for ${describeKey(call.key)} was sent to be committed, and the store did not confirm it. ` +
        'Ask again with the same key: the answer will be the stored outcome, or the effect will run because nothing was committed.',
      cause: error,
    })
  }
}

async function runEffect(context: RunContext, call: Call, claim: Claim, effect: (op: Op) => unknown): Promise<Ended> {
  const { settings } = call
  const onDeadline = (): OnceError =>
    new OnceError('DEADLINE_PASSED', {
      executed: 'no',
      message:
        `The transaction for ${describeKey(call.key)} did not end within its attemptMs of ${settings.attemptMs} and was rolled back. ` +
        'Raise attemptMs, or end the effect when op.signal aborts.',
    })
  return startEffect(context.clock, { claim, settings, onDeadline }, effect).ended
}

/** What is to be committed. Undefined when all of it is to be taken back. In a transaction nothing is ever in doubt. */
function outcomeOf({ context }: Calls, ended: Ended, call: Call): Outcome | undefined {
  if (ended.is === 'returned') return { kind: 'value', value: ended.value }
  if (ended.is === 'hung') return undefined
  // What the database rolled back by a conflict is no answer of the effect: all of it may run again.
  const isConflict = (context.store as Partial<Transactional<unknown>>).isConflict?.(ended.thrown) ?? false
  const store = ended.thrown instanceof FinalError || (call.settings.onThrow === 'store' && !isConflict)
  return store ? { kind: 'failure', error: failureOf(ended.thrown) } : undefined
}

const ownKey = { is: 'busy', retryAfterMs: 0 } as const

/** The key that each transaction of `once.transaction` holds while its effect runs. */
const heldBy = new WeakMap<object, string>()

function isHeldBy(tx: unknown, key: Key): boolean {
  return isObject(tx) && heldBy.get(tx) === keyString(key)
}

/** The transactions in which an effect of `within(tx)` runs now. */
const inUse = new WeakSet<object>()

/**
 * Two runs that overlap on one transaction would share its savepoints: the rollback of the first would take the settled record of
 * the second along after its caller got success.
 */
function enter(tx: unknown, key: Key): () => void {
  if (!isObject(tx)) return () => {}
  if (inUse.has(tx)) {
    throw invalidArgument(
      `within(tx): another effect still runs in this transaction, so the one for ${describeKey(key)} was not started. ` +
        'Await the first run before the second begins, or use one run for both effects.',
    )
  }
  inUse.add(tx)
  return () => void inUse.delete(tx)
}

async function runWithin<T>(
  calls: Calls,
  call: Call,
  store: InTransaction,
  effect: (op: Op) => T | Promise<T>,
): Promise<Result<T>> {
  const { context } = calls
  const startedMs = context.clock.elapsed()
  // Waiting here would hold the caller's locks and look at its old snapshot: a busy key is reported at once.
  const verdict = await store.claim(call.key, { ...call.request, token: context.random.uuid() })
  if (verdict.is !== 'granted') return calls.answer(call, verdict, startedMs)
  const { claim } = verdict
  // If that fails, the transaction is broken and rolls back as a whole.
  const undo = (): Promise<void> => store.undoClaim(claim).catch(() => {})
  const ended = await runEffect(context, call, claim, effect)
  const outcome = outcomeOf(calls, ended, call)
  if (!outcome) {
    await undo()
    throw ended.thrown
  }
  const stored = calls.encode(outcome)
  if (stored.outcome.kind === 'not-stored') {
    await undo()
    throw undoneAsNotStored(call.key, stored.outcome.reason)
  }
  if (stored.outcome.kind === 'failure') await store.undoEffect(claim)
  const fenced = await store.settle(claim, stored.bytes, call.request.retention).catch(async (error: unknown) => {
    // Too large for this store.
    if (!(error instanceof OnceError) || error.code !== 'OUTCOME_NOT_STORED') throw error
    await undo()
    throw undoneAsNotStored(call.key, error.message)
  })
  if (fenced === 'lost') throw lostInTransaction(call.key)
  if (stored.outcome.kind === 'failure') throw ended.thrown
  return { value: valueOf(call.key, stored.outcome) as T, replayed: false, attempt: claim.attempt }
}

function runWithinSync<T>(calls: Calls, call: Call, store: SyncInTransaction, effect: (op: Op) => T): Result<T> {
  const startedMs = calls.context.clock.elapsed()
  const verdict = store.claim(call.key, { ...call.request, token: calls.context.random.uuid() })
  if (verdict.is !== 'granted') return calls.answer(call, verdict, startedMs)
  const { claim } = verdict
  const ended = endSync(() => effect(createOp(claim, () => new AbortController().signal)), call.key)
  const outcome = outcomeOf(calls, ended, call)
  if (!outcome) {
    store.undoClaim(claim)
    throw ended.thrown
  }
  const stored = calls.encode(outcome)
  if (stored.outcome.kind === 'not-stored') {
    store.undoClaim(claim)
    throw undoneAsNotStored(call.key, stored.outcome.reason)
  }
  if (stored.outcome.kind === 'failure') store.undoEffect(claim)
  if (store.settle(claim, stored.bytes, call.request.retention) === 'lost') throw lostInTransaction(call.key)
  if (stored.outcome.kind === 'failure') throw ended.thrown
  return { value: valueOf(call.key, stored.outcome) as T, replayed: false, attempt: claim.attempt }
}

function endSync(effect: () => unknown, key: Key): Ended {
  try {
    const value = effect()
    if (!isThenable(value)) return { is: 'returned', value }
    // Only a promise has begun already. A query builder (Drizzle) begins when it is awaited, and here it never is.
    if (value instanceof Promise) value.catch(() => {})
    throw invalidArgument(
      `runSync: the effect for ${describeKey(key)} returned a promise, which would outlive the transaction. Use run().`,
    )
  } catch (thrown) {
    return { is: 'threw', thrown }
  }
}

function transactional(store: Store, what: string): Transactional<unknown> {
  if ('begin' in store && 'within' in store) return store as Store & Transactional<unknown>
  const message = isCollecting(store)
    ? `${what}: the ${store.name} store cannot join a transaction. Use transaction(), whose tx collects what to write.`
    : `${what}: the ${store.name} store has no transactions. Use run(), or a store that has: sqlite, postgres, mysql.`
  throw new OnceError('UNSUPPORTED', { message })
}

/** Whether `once.transaction` works on this store. */
export function hasTransactions(store: Store): boolean {
  return 'begin' in store || isCollecting(store)
}

function syncTransactional(store: Store): SyncTransactional<unknown> {
  if ('withinSync' in store) return store as Store & SyncTransactional<unknown>
  throw new OnceError('UNSUPPORTED', {
    message: `runSync: the ${store.name} store has no synchronous transactions. Use run().`,
  })
}

function lostInTransaction(key: Key): OnceError {
  return new OnceError('CLAIM_LOST', {
    executed: 'no',
    message: `The claim on ${describeKey(key)} was released by an operator while its transaction was open. The transaction was rolled back. Retry with the same key.`,
  })
}

function conflict(key: Key, cause: unknown): OnceError {
  return new OnceError('TRANSACTION_CONFLICT', {
    message: `The transaction for ${describeKey(key)} was rolled back ${conflictBackoff.triesMax} times (deadlock or serialization failure). Retry with the same key.`,
    cause,
  })
}

// The front door: ask for an effect by its key, and it runs once however often it is asked for. The claim is written before
// the effect starts, and an answer is given only after its outcome is settled (or its transaction committed).

import { beginAttempt, claimLost } from './once/attempt.ts'
import type { Attempt, Ground } from './once/attempt.ts'
import { claim, stillHeld } from './once/claim.ts'
import type { Ended, Op } from './once/effect.ts'
import { FinalError, InDoubtError, invalidArgument, NotBegunError, OnceError } from './errors.ts'
import { publish } from './events.ts'
import type { Key } from './key.ts'
import type { Doubt, Reconciliation, ReconcileOptions, Resolution, StepDoubt } from './operations/doubts.ts'
import { unfinishedKeepMs } from './operations/attempt.ts'
import type { Recovery, RecoveryOptions } from './operations/worker.ts'
import type { OperationOp } from './operations/steps.ts'
import type { Operation, OperationOptions } from './operations/operation.ts'
import { createOperations } from './operations.ts'
import { decodeOutcome, failureOf } from './outcome.ts'
import type { Outcome } from './outcome.ts'
import { createProtocol, keyFrom, valueOf } from './once/call.ts'
import type { Call, Protocol, Result } from './once/call.ts'
import { readOnceOptions } from './settings.ts'
import type { OnceOptions, RunOptions, Settings } from './settings.ts'
import { callStore } from './store-call.ts'
import type { Began, Claim, Entry, Inspectable, Store, SyncTransactional } from './store.ts'
import { startSweeping } from './once/sweeping.ts'
import { createTransactions } from './once/transaction.ts'
import type { Within } from './once/transaction.ts'

/** What the store's transactions are written with; `never` for a store that has none. */
export type TxOf<S> = S extends { begin(...args: never): Promise<Began<infer Tx>> } ? Tx : never
/** Every kind of transaction that the store can join. */
export type ForeignTxOf<S> =
  | (S extends { within(tx: infer Tx): unknown } ? Tx : never)
  | (S extends SyncTransactional<infer Tx> ? Tx : never)

/** An entry as `get` shows it: the stored outcome is decoded. */
export type ShownEntry = Omit<Entry, 'outcome'> & { readonly outcome?: Outcome }

export interface Once<S extends Store = Store> {
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
  /** An effect of several steps, which a retry or a worker takes up where a crash left it. */
  operation<Input, T>(
    name: string,
    options: OperationOptions,
    run: (op: OperationOp<TxOf<S>>, input: Input) => T | Promise<T>,
  ): Operation<Input, T>
  /** A worker that finishes what a dead process began, though no client retries. */
  recover(operations: readonly Operation<never, unknown>[], options?: RecoveryOptions): Recovery
  /** What began and never reported: steps of the operations defined here, and keys of `run`. */
  inDoubt(): AsyncIterable<Doubt>
  /** Ask the outside system in bulk about the steps of one operation that are in doubt, and put them right. */
  reconcile(
    operation: string,
    resolve: (doubts: readonly StepDoubt[]) => Promise<readonly Resolution[]>,
    options?: ReconcileOptions,
  ): Promise<Reconciliation>
  get(id: string | Key): Promise<ShownEntry | undefined>
  /** Open a running or abandoned entry by hand: its holder is fenced off and the next request runs. Audited. */
  release(id: string | Key, reason: string): Promise<ShownEntry | undefined>
  /** Delete an entry by hand: the next request runs as new. Audited. */
  forget(id: string | Key, reason: string): Promise<ShownEntry | undefined>
  /** Stop what runs in the background and wait for what is being written. The store stays open: it is yours. */
  close(): Promise<void>
}

export function createOnce<S extends Store>(options: OnceOptions<S>): Once<S> {
  const { settings, clock, random } = readOnceOptions(options)
  const { store, scope } = options
  const backgroundWork = new Set<Promise<unknown>>()
  const closing = new AbortController()
  const ground: Ground = {
    store,
    clock,
    random,
    calls: { clock, storeName: store.name, timeoutMs: settings.storeTimeoutMs },
    background(work) {
      const tracked = work.catch(() => {}).finally(() => backgroundWork.delete(tracked))
      backgroundWork.add(tracked)
    },
    closing: closing.signal,
  }
  const protocol = createProtocol(options, settings, ground)
  if (options.sweepEveryMs !== undefined) startSweeping(ground, options.sweepEveryMs)

  async function inspect(
    what: string,
    id: string | Key,
    look: (store: Inspectable, key: Key) => Promise<Entry | undefined>,
  ) {
    const subject = keyFrom(scope, id)
    const entry = await callStore(ground.calls, 'inspect', subject, () => look(inspectable(store, what), subject))
    return entry && shown(entry, options)
  }

  async function mend(id: string | Key, action: 'release' | 'forget', reason: string): Promise<ShownEntry | undefined> {
    if (typeof reason !== 'string' || reason.trim() === '') {
      throw invalidArgument(`${action}: expected a reason, for the audit trail, got ${JSON.stringify(reason)}`)
    }
    const entry = await inspect(action, id, (inspected, subject) => inspected.mend(subject, action, reason))
    if (entry) publish('mended', entry.key, { action })
    return entry
  }

  return {
    store,
    scope,
    settings,
    run: (id, effect, runOptions = {}) => run(protocol, 'run', id, effect, runOptions),
    ...createTransactions(protocol),
    // Kept as long as its operation may be: a compensation that is forgotten while that is in doubt would run again.
    ...createOperations(protocol, options, settings, (id, effect) =>
      run(protocol, 'reconcile', id, effect, { keepMs: unfinishedKeepMs }),
    ),
    get: (id) => inspect('get', id, (inspected, subject) => inspected.show(subject)),
    release: (id, reason) => mend(id, 'release', reason),
    forget: (id, reason) => mend(id, 'forget', reason),
    async close() {
      closing.abort()
      await Promise.all(backgroundWork)
    },
  }
}

async function run<T>(
  protocol: Protocol,
  what: string,
  id: string | Key,
  effect: (op: Op) => T | Promise<T>,
  options: RunOptions,
): Promise<Result<T>> {
  const { ground } = protocol
  const call = protocol.call(what, id, effect, options)
  const startedMs = ground.clock.elapsed()
  const { verdict, askedMs } = await protocol.ask(call, (request) =>
    claim(ground, call.key, request, () => ground.store.claim(call.key, request)),
  )
  if (verdict.is !== 'granted') return protocol.answer(call, verdict, startedMs)
  const durationMs = ground.clock.elapsed() - startedMs
  publish('claimed', call.key, { attempt: verdict.claim.attempt, how: verdict.how, durationMs })
  if (verdict.how === 'taken-over') publish('taken-over', call.key, { attempt: verdict.claim.attempt })
  await stillHeld(ground, verdict.claim, call.settings, askedMs)
  const attempt = beginAttempt(ground, verdict.claim, call.settings, effect)
  try {
    const plan = planFor(await attempt.ended, call.settings)
    if (plan.do === 'settle') return await settle(protocol, call, verdict.claim, attempt, plan)
    throw await giveBack(protocol, call, verdict.claim, attempt, plan)
  } finally {
    attempt.leave()
    protocol.wake(call)
  }
}

/** What to do with the key, now that the effect has ended. */
type Plan =
  | { readonly do: 'settle'; readonly outcome: Outcome; readonly thrown?: unknown }
  | { readonly do: 'open' | 'forget' | 'left-to-lease'; readonly thrown: unknown }

function planFor(ended: Ended, settings: Settings): Plan {
  if (ended.is === 'returned') return { do: 'settle', outcome: { kind: 'value', value: ended.value } }
  const { thrown } = ended
  // It still runs somewhere and may still do anything: only the lease can end it.
  if (ended.is === 'hung') return { do: 'left-to-lease', thrown }
  if (thrown instanceof FinalError) return { do: 'settle', outcome: { kind: 'failure', error: thrown }, thrown }
  if (thrown instanceof NotBegunError) return { do: 'forget', thrown }
  if (thrown instanceof InDoubtError || settings.onThrow === 'doubt') return { do: 'left-to-lease', thrown }
  if (settings.onThrow === 'store')
    return { do: 'settle', outcome: { kind: 'failure', error: failureOf(thrown) }, thrown }
  return { do: 'open', thrown }
}

async function settle<T>(
  protocol: Protocol,
  call: Call,
  held: Claim,
  attempt: Attempt,
  plan: Plan & { do: 'settle' },
): Promise<Result<T>> {
  const { clock } = protocol.ground
  const startedMs = clock.elapsed()
  let stored = protocol.encode(plan.outcome)
  let fenced
  try {
    fenced = await attempt.settle(stored.bytes, call.request.retention)
  } catch (error) {
    // Too large for this store: that it ran is kept at least, so that it never runs again.
    if (!(error instanceof OnceError) || error.code !== 'OUTCOME_NOT_STORED') throw error
    stored = protocol.encode({ kind: 'not-stored', reason: error.message })
    fenced = await attempt.settle(stored.bytes, call.request.retention)
  }
  if (fenced === 'lost') throw claimLost(held, call.settings, { cause: plan.thrown })
  const { outcome } = stored
  publish('settled', call.key, {
    attempt: held.attempt,
    kind: outcome.kind,
    durationMs: clock.elapsed() - startedMs,
  })
  if (outcome.kind === 'failure') throw plan.thrown
  return { value: valueOf(call.key, outcome) as T, replayed: false, attempt: held.attempt }
}

/** Answers what to throw. The user's own error matters more than a release that failed or came too late: the lease will end. */
async function giveBack(
  protocol: Protocol,
  call: Call,
  held: Claim,
  attempt: Attempt,
  plan: Exclude<Plan, { do: 'settle' }>,
): Promise<unknown> {
  const { clock } = protocol.ground
  const startedMs = clock.elapsed()
  if (plan.do !== 'left-to-lease') await attempt.release(plan.do).catch(() => {})
  publish('released', call.key, { attempt: held.attempt, how: plan.do, durationMs: clock.elapsed() - startedMs })
  return plan.thrown
}

function shown(entry: Entry, options: OnceOptions): ShownEntry {
  const { outcome, ...rest } = entry
  return outcome ? { ...rest, outcome: decodeOutcome(outcome, options.codec, entry.key) } : rest
}

function inspectable(store: Store, what: string): Inspectable {
  if ('show' in store && 'mend' in store) return store as Store & Inspectable
  throw new OnceError('UNSUPPORTED', {
    message: `${what}: the ${store.name} store cannot show or mend single entries.`,
  })
}

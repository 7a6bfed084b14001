// Steps in a transaction of the store: what they write, their record and the fence check commit together or not at all. A
// COMMIT that the store did not confirm is never repeated: the next attempt reads whether it happened.

import { claimLost, valueOf } from '../call.ts'
import { backoffMs, countedBackoffs } from '../backoff.ts'
import { sleep } from '../clock.ts'
import { OnceError } from '../errors.ts'
import { describeKey } from '../key.ts'
import { storable } from './records.ts'
import type { StepRecord } from './records.ts'
import type { StepsContext } from './steps.ts'
import { bounded } from '../timed-call.ts'
import type { Advanced, BegunStep, Change, Store, Transactional, TransactionalSteps } from '../store.ts'

/** Runs the work of a step, or of its undo, in a transaction, and commits its record with it. */
export type Transact = (work: TransactionWork) => Promise<unknown>

export interface TransactionWork {
  readonly name: string
  signal(): AbortSignal
  work(tx: unknown): unknown
  /** The record to commit, made from the encoded result of `work`. */
  done(result: Uint8Array): StepRecord
}

export interface TransactionSteps {
  readonly transact: Transact
  /** Rolls back every transaction that is still open, under code that still runs. */
  abandon(): Promise<void>
}

export function createTransactionSteps(context: StepsContext): TransactionSteps {
  const open: OpenSteps = { begun: new Set(), isAbandoned: false }
  return {
    transact: (work) => repeatedly(context, open, work),
    async abandon() {
      open.isAbandoned = true
      await Promise.all([...open.begun].map((begun) => begun.abandon().catch(() => {})))
    },
  }
}

interface OpenSteps {
  readonly begun: Set<BegunStep<unknown>>
  /** No transaction is opened any more: no code would be left to end it under code that hangs. */
  isAbandoned: boolean
}

async function repeatedly(context: StepsContext, open: OpenSteps, work: TransactionWork): Promise<unknown> {
  const { runtime } = context
  const store = transactionalSteps(runtime.store)
  for (let tries = 1; ; tries++) {
    try {
      return await tryTransact(context, store, open, work)
    } catch (error) {
      // The rollback has reverted everything, so all of it may run again.
      const signal = work.signal()
      if (!store.isConflict(error) || tries >= countedBackoffs.transaction.triesMax || signal.aborted) throw error
      await sleep(runtime.clock, backoffMs(countedBackoffs.transaction, tries - 1, runtime.random), { signal })
    }
  }
}

type TransactionalStore = TransactionalSteps<unknown> & Pick<Transactional<unknown>, 'isConflict'>

async function tryTransact(
  context: StepsContext,
  store: TransactionalStore,
  open: OpenSteps,
  { name, work, done }: TransactionWork,
): Promise<unknown> {
  const { runtime, journal, settings, codec } = context
  const late = (begun: BegunStep<unknown> | undefined): void => {
    if (begun) runtime.background(rollBack(context, begun))
  }
  const begun = await bounded(runtime.storeCalls, () => store.beginStep(journal.claim), late)
  if (!begun) throw claimLost(journal.claim, settings, { executed: 'no' })
  if (open.isAbandoned) {
    await rollBack(context, begun)
    throw claimLost(journal.claim, settings, { executed: 'no' })
  }
  open.begun.add(begun)
  try {
    const { bytes, outcome } = storable(journal.claim.key, codec, name, await work(begun.tx))
    await journal.commit({ step: done(bytes) }, (change) => commitWithin(context, begun, change))
    return valueOf(journal.claim.key, outcome)
  } catch (error) {
    await rollBack(context, begun)
    throw error
  } finally {
    open.begun.delete(begun)
  }
}

/** Never fails and never hangs: a connection that does not even roll back is cut off, which rolls back by itself. */
async function rollBack({ runtime }: StepsContext, begun: BegunStep<unknown>): Promise<void> {
  await bounded(runtime.storeCalls, () => begun.rollback()).catch(() => begun.abandon().catch(() => {}))
}

/** A COMMIT that the store did not confirm in time may have happened, and is never repeated. */
async function commitWithin(
  { runtime, journal }: StepsContext,
  begun: BegunStep<unknown>,
  change: Change,
): Promise<Advanced> {
  let isAnswered = false
  const commit = (): Promise<Advanced> => begun.commit(change).finally(() => (isAnswered = true))
  return bounded(runtime.storeCalls, commit).catch((cause: unknown) => {
    if (isAnswered) throw cause
    throw new OnceError('OUTCOME_UNKNOWN', {
      message:
        `The ${runtime.store.name} store did not confirm the commit of a step of ${describeKey(journal.claim.key)} within ` +
        `${runtime.storeCalls.timeoutMs} ms. Ask again with the same key: the next attempt reads whether it was committed.`,
      cause,
    })
  })
}

function transactionalSteps(store: Store): TransactionalStore {
  if ('beginStep' in store) return store as Store & TransactionalStore
  throw new OnceError('UNSUPPORTED', {
    message: `op.transaction: the ${store.name} store has no transactions. Use op.step(), or a store that has: sqlite, postgres, mysql.`,
  })
}

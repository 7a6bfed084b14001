// Steps in a transaction of the store: what they write, their record and the fence check commit together or not at all. A
// COMMIT that was not answered is never repeated: the next attempt reads whether it happened.

import { claimLost } from '../once/attempt.ts'
import { backoffMs } from '../backoff.ts'
import type { Backoff } from '../backoff.ts'
import { sleep } from '../clock.ts'
import { OnceError } from '../errors.ts'
import { describeKey } from '../key.ts'
import { storable } from './records.ts'
import type { StepRecord } from './records.ts'
import type { StepsGround } from './steps.ts'
import { valueOf } from '../once/call.ts'
import { bounded } from '../store-call.ts'
import type { Advanced, BegunStep, Change, Store, Transactional, TransactionalSteps } from '../store.ts'

/** Runs `work` in a transaction, and commits with it the record that `done` makes of its outcome. */
export type Transact = (
  name: string,
  work: (tx: unknown) => unknown,
  done: (result: Uint8Array) => StepRecord,
) => Promise<unknown>

export interface TransactionSteps {
  readonly transact: Transact
  /** Take back every transaction that is still open, under code that still runs. */
  abandon(): Promise<void>
}

export function createTransactionSteps(context: StepsGround): TransactionSteps {
  const open = new Set<BegunStep<unknown>>()
  return {
    transact: (...step) => repeatedly(context, open, step),
    async abandon() {
      await Promise.all([...open].map((begun) => begun.abandon().catch(() => {})))
    },
  }
}

/** A step that loses against others five times in a row is not going to win soon; the operation tries again later. */
const conflictTriesMax = 5
const conflictBackoff: Backoff = { firstMs: 10, factor: 3, maxMs: 500 }

async function repeatedly(
  context: StepsGround,
  open: Set<BegunStep<unknown>>,
  step: Parameters<Transact>,
): Promise<unknown> {
  const { ground, op } = context
  const store = transactionalSteps(ground.store)
  for (let tries = 1; ; tries++) {
    try {
      return await tryTransact(context, store, open, step)
    } catch (error) {
      // The rollback took everything along, so all of it may run again.
      if (!store.isConflict(error) || tries >= conflictTriesMax || op.signal.aborted) throw error
      await sleep(ground.clock, backoffMs(conflictBackoff, tries - 1, ground.random), { signal: op.signal })
    }
  }
}

type TransactionalStore = TransactionalSteps<unknown> & Pick<Transactional<unknown>, 'isConflict'>

async function tryTransact(
  context: StepsGround,
  store: TransactionalStore,
  open: Set<BegunStep<unknown>>,
  [name, work, done]: Parameters<Transact>,
): Promise<unknown> {
  const { ground, journal, settings, codec } = context
  const late = (begun: BegunStep<unknown> | undefined): void => {
    if (begun) ground.background(takeBack(context, begun))
  }
  const begun = await bounded(ground.storeCalls, () => store.beginStep(journal.claim), late)
  if (!begun) throw claimLost(journal.claim, settings, { executed: 'no' })
  open.add(begun)
  try {
    const { bytes, outcome } = storable(journal.claim.key, codec, name, await work(begun.tx))
    await journal.commit({ step: done(bytes) }, (change) => commitWithin(context, begun, change))
    return valueOf(journal.claim.key, outcome)
  } catch (error) {
    await takeBack(context, begun)
    throw error
  } finally {
    open.delete(begun)
  }
}

/** Never fails and never hangs: a connection that does not even roll back is cut off, which rolls back by itself. */
async function takeBack({ ground }: StepsGround, begun: BegunStep<unknown>): Promise<void> {
  await bounded(ground.storeCalls, () => begun.rollback()).catch(() => begun.abandon().catch(() => {}))
}

/** A COMMIT that nobody answered in time may have happened, and is never repeated. */
async function commitWithin(
  { ground, journal }: StepsGround,
  begun: BegunStep<unknown>,
  change: Change,
): Promise<Advanced> {
  let isAnswered = false
  const commit = (): Promise<Advanced> => begun.commit(change).finally(() => (isAnswered = true))
  return bounded(ground.storeCalls, commit).catch((cause: unknown) => {
    if (isAnswered) throw cause
    throw new OnceError('OUTCOME_UNKNOWN', {
      message:
        `A step of ${describeKey(journal.claim.key)} was to be committed, and the ${ground.store.name} store did not say whether it was. ` +
        'The next attempt of the operation will know.',
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

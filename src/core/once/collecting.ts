// `once.transaction` on a store whose transactions do not stay open. The effect collects its writes while a lease and a heartbeat
// hold the key, as in `run`. They are committed with the outcome, all or nothing: until then nothing has happened.

import { undoneAsNotStored } from '../call.ts'
import type { Call, Calls, Ended, Op, Result } from '../call.ts'
import { OnceError } from '../errors.ts'
import { describeKey } from '../key.ts'
import type { Collecting, Store } from '../store.ts'
import { planFor, run } from './run.ts'
import type { EndPlan } from './run.ts'

export function isCollecting(store: Store): store is Store & Collecting<unknown> {
  return 'collect' in store && 'settleWith' in store
}

export async function collecting<T, Tx>(
  calls: Calls,
  call: Call,
  store: Collecting<Tx>,
  effect: (tx: Tx, op: Op) => T | Promise<T>,
): Promise<Result<T>> {
  const { tx, end } = store.collect(call.key)
  const plan = (ended: Ended): EndPlan => {
    const collected = end()
    const usual = planFor(ended, call.settings)
    if (ended.is === 'returned' && usual.do === 'settle') {
      return {
        ...usual,
        by: { settle: (claim, outcome, retention) => store.settleWith(claim, outcome, retention, collected) },
      }
    }
    // Nothing was written, so a failed attempt leaves no trace. A failure that is stored is stored without the writes.
    if (ended.is === 'hung' || usual.do === 'open') return { do: 'forget', thrown: undone(ended.thrown, call) }
    return usual.do === 'settle' ? { ...usual, notStored: (reason) => undoneAsNotStored(call.key, reason) } : usual
  }
  return run(calls, call, (op) => effect(tx, op), plan)
}

/** Whatever the deadline of an attempt says in general, here it is known that nothing was written. */
function undone(thrown: unknown, { key, settings }: Call): unknown {
  if (!(thrown instanceof OnceError) || thrown.code !== 'DEADLINE_PASSED') return thrown
  return new OnceError('DEADLINE_PASSED', {
    executed: 'no',
    message:
      `The transaction for ${describeKey(key)} did not end within its attemptMs of ${settings.attemptMs}, and nothing was written. ` +
      'Raise attemptMs, or end the effect when op.signal aborts.',
    cause: thrown,
  })
}

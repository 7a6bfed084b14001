// One call of `once.run`: claim the key, hold it while the effect runs, and settle or release it by how the effect ended. The
// caller gets a result only after the outcome is settled.

import { ask, byLease, claimLost, holdKey, isWaitedFor, mayHaveEnded, stillHeld, valueOf, waitForKey } from '../call.ts'
import type { Call, Calls, Ended, HeldKey, Op, Result } from '../call.ts'
import { FinalError, InDoubtError, NotBegunError, OnceError } from '../errors.ts'
import { isHeard, publish } from '../events.ts'
import type { Key } from '../key.ts'
import { failureOf } from '../outcome.ts'
import type { Outcome } from '../outcome.ts'
import type { Settings } from '../settings.ts'
import type { Store, Verdict } from '../store.ts'

export async function run<T>(
  calls: Calls,
  call: Call,
  effect: (op: Op) => T | Promise<T>,
  plan: (ended: Ended, settings: Settings) => EndPlan = planFor,
): Promise<Result<T>> {
  const { context } = calls
  const { clock } = context
  const startedMs = clock.elapsed()
  let verdict = await ask(calls, call, claiming, startedMs)
  let askedMs = startedMs
  if (isWaitedFor(call, verdict)) {
    const later = await waitForKey(calls, call, claiming)
    if (later) ({ verdict, askedMs } = later)
  }
  if (verdict.is !== 'granted') return calls.answer(call, verdict, startedMs)
  if (isHeard('claimed') || verdict.how === 'taken-over') tellClaimed(call.key, verdict, clock.elapsed() - startedMs)
  if (mayHaveEnded(context, call.settings, askedMs)) await stillHeld(context, verdict.claim, call.settings, askedMs)
  const held = holdKey(context, verdict.claim, call.settings)
  try {
    const end = plan(await held.run(effect), call.settings)
    if (end.do === 'settle') return await settle(calls, call, held, end)
    throw await release(calls, call, held, end)
  } finally {
    held.stop()
    calls.wake(call)
  }
}

const claiming = byLease(({ store }, key, request) => store.claim(key, request))

export function tellClaimed(key: Key, { claim, how }: Verdict & { is: 'granted' }, durationMs: number): void {
  const { attempt } = claim
  publish('claimed', key, { attempt, how, durationMs })
  if (how === 'taken-over') publish('taken-over', key, { attempt })
}

/** What to do with the key, now that the effect has ended. */
export type EndPlan =
  | {
      readonly do: 'settle'
      readonly outcome: Outcome
      readonly thrown?: unknown
      /** What writes the outcome. The store itself unless it is written together with something. */
      readonly by?: Pick<Store, 'settle'>
      /** The error of an outcome that cannot be stored, where the effect has written nothing: the key is then forgotten. */
      readonly notStored?: (reason: string) => OnceError
    }
  | { readonly do: 'open' | 'forget' | 'left-to-lease'; readonly thrown: unknown }

export function planFor(ended: Ended, settings: Settings): EndPlan {
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
  calls: Calls,
  call: Call,
  held: HeldKey,
  plan: EndPlan & { do: 'settle' },
): Promise<Result<T>> {
  const { clock } = calls.context
  const { attempt } = held.claim
  const { retention } = call.request
  const startedMs = clock.elapsed()
  let stored = calls.encode(plan.outcome)
  if (stored.outcome.kind === 'not-stored' && plan.notStored) {
    throw await refused(calls, call, held, plan.notStored(stored.outcome.reason))
  }
  let fenced
  try {
    fenced = await held.settle(stored.bytes, retention, plan.by)
  } catch (error) {
    if (error instanceof OnceError && error.code === 'COMMIT_REFUSED') throw await refused(calls, call, held, error)
    // Too large for this store: that it ran is kept at least, so that it never runs again.
    if (!(error instanceof OnceError) || error.code !== 'OUTCOME_NOT_STORED') throw error
    if (plan.notStored) throw await refused(calls, call, held, plan.notStored(error.message))
    stored = calls.encode({ kind: 'not-stored', reason: error.message })
    fenced = await held.settle(stored.bytes, retention, plan.by)
  }
  if (fenced === 'lost') throw claimLost(held.claim, call.settings, { cause: plan.thrown })
  const { outcome } = stored
  if (isHeard('settled')) {
    publish('settled', call.key, { attempt, kind: outcome.kind, durationMs: clock.elapsed() - startedMs })
  }
  if (outcome.kind === 'failure') throw plan.thrown
  return { value: valueOf(call.key, outcome) as T, replayed: false, attempt }
}

/**
 * What was to be written with the outcome, or the outcome itself, is refused, and nothing was written: the key is free at once. If the key is not
 * ours any more, an earlier try of the same write may have landed, so "nothing" is not said.
 */
async function refused(calls: Calls, call: Call, held: HeldKey, error: OnceError): Promise<OnceError> {
  const { clock } = calls.context
  const startedMs = clock.elapsed()
  const fenced = await held.release('forget').catch(() => 'done' as const)
  if (fenced === 'lost') return claimLost(held.claim, call.settings, { cause: error })
  publish('released', call.key, {
    attempt: held.claim.attempt,
    how: 'forget',
    durationMs: clock.elapsed() - startedMs,
  })
  return error
}

/** Returns the error to throw: the user's own, even if the release failed. The lease frees the key anyway. */
async function release(
  calls: Calls,
  call: Call,
  held: HeldKey,
  plan: Exclude<EndPlan, { do: 'settle' }>,
): Promise<unknown> {
  const { clock } = calls.context
  const startedMs = clock.elapsed()
  if (plan.do !== 'left-to-lease') await held.release(plan.do).catch(() => {})
  const durationMs = clock.elapsed() - startedMs
  publish('released', call.key, { attempt: held.claim.attempt, how: plan.do, durationMs })
  return plan.thrown
}

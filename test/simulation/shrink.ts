// Makes a plan that fails smaller while it still fails by the same assertion: what is left is what matters.

import type { Assertion } from '../../src/testing/history-checker-violation.ts'
import type { Plan } from './plan.ts'
import { judgePlan } from './schedule.ts'
import type { Wrong } from './workload.ts'

/** A story of a dozen lines is reached long before; a plan has some forty things that could be left out. */
const runsMax = 500

export async function shrink(plan: Plan, assertion: Assertion, wrong?: Wrong): Promise<Plan> {
  let smallest = plan
  let runs = 0
  for (let again = true; again && runs < runsMax;) {
    again = false
    for (const smaller of smallerPlans(smallest)) {
      if (runs++ >= runsMax) break
      const { violations } = await judgePlan(smaller, wrong)
      if (!violations.some((violation) => violation.assertion === assertion)) continue
      smallest = smaller
      again = true
      break
    }
  }
  return smallest
}

function* smallerPlans(plan: Plan): Generator<Plan> {
  for (const list of ['worldFaults', 'messageFaults', 'calls'] as const) {
    for (const index of plan[list].keys()) yield { ...plan, [list]: plan[list].filter((_, other) => other !== index) }
  }
  if (plan.conflictChance > 0) yield { ...plan, conflictChance: 0 }
  for (const [index, { name, skewMs, rate, sweepEveryMs }] of plan.processes.entries()) {
    if (skewMs === 0 && rate === 1 && sweepEveryMs === undefined) continue
    yield { ...plan, processes: plan.processes.with(index, { name, skewMs: 0, rate: 1 }) }
  }
  for (const [index, call] of plan.calls.entries()) {
    if (call.retries > 0) yield { ...plan, calls: plan.calls.with(index, { ...call, retries: 0 }) }
    if (call.waitMs > 0) yield { ...plan, calls: plan.calls.with(index, { ...call, waitMs: 0 }) }
    for (const effect of call.effects.length > 1 ? call.effects : []) {
      yield { ...plan, calls: plan.calls.with(index, { ...call, effects: [effect] }) }
    }
  }
}

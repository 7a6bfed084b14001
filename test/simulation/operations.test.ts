// The simulation of operations in the test suite: its schedules, its determinism, and how it tells a failure.

import { describe, expect, test } from 'vitest'
import { tellOperations } from './world/operations/checker/story.ts'
import { freshSeed } from '../fresh-seed.ts'
import { missedQuotas } from './counts.ts'
import { describeFailure } from './failure.ts'
import { noOperationCounts, operationQuotas } from './operation-counts.ts'
import { operationPlanFor } from './operation-plan.ts'
import { runOperationPlan } from './operation-workload.ts'
import { expectNoViolation } from './search.ts'
import type { SimulationRun } from './search.ts'
import { operationSimulation } from './simulations.ts'

const seed = freshSeed('the simulation of operations')
const runs: readonly SimulationRun[] = [
  { what: 'operations', seed: 1, schedules: 20_000 },
  ...(seed === undefined ? [] : [{ what: 'operations', seed, schedules: 20_000 }]),
]

test.each(runs)(
  '$schedules schedules of operations from seed $seed on break no guarantee, and met enough faults to count',
  { timeout: 1_800_000 },
  expectNoViolation,
)

test('the same seed gives the same trace, in whichever way promises are waited for', async () => {
  for (let seed = 1; seed <= 100; seed++) {
    const first = await runOperationPlan(operationPlanFor(seed), { drain: 'quick' })
    const second = await runOperationPlan(operationPlanFor(seed), { drain: 'thorough' })
    expect(second.traceHash, `seed ${seed}`).toBe(first.traceHash)
    expect(tellOperations(second.history), `seed ${seed}`).toBe(tellOperations(first.history))
  }
})

// That it sees what is wrong, the seeded bugs prove: test/seeded-bugs/table/simulation.ts.
describe('the harness', () => {
  test('a failure is told with its seed and as a story of steps', async () => {
    // The source is sound, so the judge is not: it takes every undo for a violation.
    const strict: typeof operationSimulation = {
      ...operationSimulation,
      async judgePlan(plan) {
        const judged = await operationSimulation.judgePlan(plan)
        const message = 'a step was undone'
        return { ...judged, violations: judged.counts['undos']! > 0 ? [{ assertion: 'step-once', message }] : [] }
      },
    }
    let seed = 1
    while ((await strict.judgePlan(operationPlanFor(seed))).violations.length === 0) seed++
    const told = await describeFailure(strict, seed)
    expect(told).toContain(`npm run simulate -- --what operations --seed ${seed} --schedules 1`)
    expect(told).toContain('step-once: a step was undone')
    expect(told).toMatch(/ms {2}process \d calls run of "step \d"/)
  })

  test('a run that met too little is invalid', () => {
    const missed = missedQuotas({ ...noOperationCounts(), schedules: 20_000 }, operationQuotas)
    expect(missed.map((line) => line.split(':')[0])).toEqual(Object.keys(operationQuotas))
  })
})

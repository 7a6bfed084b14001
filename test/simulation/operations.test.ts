// The simulation of operations in the test suite: its schedules, its determinism, and that it sees what is wrong.

import { describe, expect, test } from 'vitest'
import { tellOperations } from './world/operations/checker/story.ts'
import { freshSeed } from '../fresh-seed.ts'
import { missedQuotas } from './counts.ts'
import { describeFailure } from './failure.ts'
import { noOperationCounts, operationQuotas } from './operation-counts.ts'
import { operationPlanFor } from './operation-plan.ts'
import { runOperationSchedule } from './operation-schedule.ts'
import { runOperationPlan } from './operation-workload.ts'
import { expectNoViolation } from './search.ts'
import type { SimulationRun } from './search.ts'
import { operationSimulation } from './simulations.ts'
import { knownWrongOperations } from './wrong/operations.ts'

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

describe('the harness sees what is wrong', () => {
  // Most are found within 100 schedules, the rarest within 500.
  const schedulesMax = 3_000

  test.each(knownWrongOperations)('$name: found by $foundBy', async (wrong) => {
    for (let seed = 1; seed <= schedulesMax; seed++) {
      const { violations } = await runOperationSchedule(seed, wrong)
      if (violations.some(({ assertion }) => assertion === wrong.foundBy)) return
    }
    expect.unreachable(`not found in ${schedulesMax} schedules`)
  })

  test('a failure is told with its seed and as a story of steps', async () => {
    const wrong = knownWrongOperations.find(({ name }) => name === 'guesses what is in doubt')!
    const isFound = async (seed: number): Promise<boolean> =>
      (await runOperationSchedule(seed, wrong)).violations[0]?.assertion === 'step-once'
    let seed = 1
    while (!(await isFound(seed))) seed++
    const told = await describeFailure(operationSimulation, seed, wrong)
    expect(told).toContain(`npm run simulate -- --what operations --seed ${seed} --schedules 1`)
    expect(told).toContain('step-once')
    expect(told).toMatch(/ms {2}process \d calls run of "step \d"/)
  })

  test('a run that met too little is invalid', () => {
    const missed = missedQuotas({ ...noOperationCounts(), schedules: 20_000 }, operationQuotas)
    expect(missed.map((line) => line.split(':')[0])).toEqual(Object.keys(operationQuotas))
  })
})

// The simulation in the test suite: a bounded part of it, its determinism, and how it tells a failure.

import { describe, expect, test } from 'vitest'
import { tellStory } from '../../src/testing/history-checker.ts'
import { freshSeed, isThorough } from '../fresh-seed.ts'
import { sessionQuotas } from '../sessions/simulation/counts.ts'
import { planFor, redisPlanFor } from './plan.ts'
import type { Plan } from './plan.ts'
import { missedQuotas, noCounts } from './counts.ts'
import { describeFailure } from './failure.ts'
import { highest, lowered, quotas, redisQuotas } from './quotas.ts'
import { runSchedule } from './schedule.ts'
import { shrink } from './shrink.ts'
import { expectNoViolation } from './search.ts'
import type { SimulationRun } from './search.ts'
import { keySimulation } from './simulations.ts'
import { runPlan } from './workload.ts'

// A fixed seed shows whether a change broke what held before. A fresh one looks where no run has looked.
const keySeed = freshSeed('the simulation of keys')
const redisSeed = freshSeed('the simulation of Redis')
const runs: readonly SimulationRun[] = [
  { what: 'keys', seed: 1, schedules: isThorough ? 150_000 : 15_000 },
  { what: 'redis', seed: 1, schedules: isThorough ? 20_000 : 5_000 },
  ...(keySeed === undefined ? [] : [{ what: 'keys', seed: keySeed, schedules: 300_000 }]),
  ...(redisSeed === undefined ? [] : [{ what: 'redis', seed: redisSeed, schedules: 40_000 }]),
]

test.each(runs)(
  '$what: $schedules schedules of faults and healing from seed $seed on break no guarantee, and met enough faults to count',
  { timeout: 1_800_000 },
  expectNoViolation,
)

describe('determinism', () => {
  test('the same seed gives the same trace, in whichever way promises are waited for', async () => {
    for (let seed = 1; seed <= 200; seed++) {
      const first = await runPlan(planFor(seed), { drain: 'quick' })
      const second = await runPlan(planFor(seed), { drain: 'thorough' })
      expect(second.traceHash, `seed ${seed}`).toBe(first.traceHash)
      expect(tellStory(second.history), `seed ${seed}`).toBe(tellStory(first.history))
    }
  })

  test('the same holds on Redis', async () => {
    for (let seed = 1; seed <= 100; seed++) {
      const first = await runPlan(redisPlanFor(seed), { drain: 'quick' })
      const second = await runPlan(redisPlanFor(seed), { drain: 'thorough' })
      expect(second.traceHash, `seed ${seed}`).toBe(first.traceHash)
      expect(tellStory(second.history), `seed ${seed}`).toBe(tellStory(first.history))
    }
  })

  test('different seeds give different traces', async () => {
    const hashes = new Set<number>()
    for (let seed = 1; seed <= 200; seed++) hashes.add((await runSchedule(seed)).run.traceHash)
    expect(hashes.size).toBe(200)
  })

  test('a plan follows from its seed alone', () => {
    expect(planFor(4_711)).toEqual(planFor(4_711))
  })
})

// That it sees what is wrong, the seeded bugs prove: test/seeded-bugs/table/simulation.ts.
describe('the harness', () => {
  test('a failure is told with its seed and as a story that is shorter than what happened', async () => {
    // The source is sound, so the judge is not: it takes every takeover for a violation.
    const strict: typeof keySimulation = {
      ...keySimulation,
      async judgePlan(plan) {
        const judged = await keySimulation.judgePlan(plan)
        const message = 'a key was taken over'
        return { ...judged, violations: judged.counts['takeovers']! > 0 ? [{ assertion: 'one-holder', message }] : [] }
      },
    }
    const isFound = async (plan: Plan): Promise<boolean> => (await strict.judgePlan(plan)).violations.length > 0
    let seed = 1
    while (!(await isFound(planFor(seed)))) seed++
    const told = await describeFailure(strict, seed)
    expect(told).toContain(`npm run simulate -- --what keys --seed ${seed} --schedules 1`)
    expect(told).toContain('one-holder: a key was taken over')
    expect(told).toMatch(/ms {2}process \d is asked for (shop|bank)\/\d/)
    const whole = planFor(seed)
    const smallest = await shrink(strict, whole, 'one-holder')
    const sizeOf = ({ calls, messageFaults, worldFaults }: Plan): number =>
      calls.length + messageFaults.length + worldFaults.length
    expect(sizeOf(smallest)).toBeLessThan(sizeOf(whole))
    expect(await isFound(smallest)).toBe(true)
  })

  test('a run that met too little is invalid', () => {
    expect(missedQuotas({ ...noCounts(), schedules: 10_000 })).toContain(
      `takeovers: 0, at least ${10 * quotas['takeovers']!} expected`,
    )
  })

  test('no quota is lower than it has been, unless its reason stands beside it', () => {
    for (const [table, most] of Object.entries(highest)) {
      const now = { quotas, redisQuotas, sessionQuotas }[table as keyof typeof highest]
      const excused = lowered.filter(
        (each) => each.table === table && each.why.length > 20 && each.from >= most[each.name]!,
      )
      const below = Object.keys(most).filter((name) => (now[name] ?? 0) < most[name]!)
      expect(below.filter((name) => !excused.some((each) => each.name === name))).toEqual([])
      expect(Object.keys(now).filter((name) => now[name]! > (most[name] ?? 0))).toEqual([])
    }
  })
})

// The simulation in the test suite: a bounded part of it, its determinism, and that it sees what is wrong.

import { describe, expect, test } from 'vitest'
import { tellStory } from '../../src/testing/history-checker.ts'
import { freshSeed, isThorough } from '../fresh-seed.ts'
import { planFor, redisPlanFor } from './plan.ts'
import { missedQuotas, noCounts } from './counts.ts'
import { describeFailure } from './failure.ts'
import { highest, lowered, quotas, redisQuotas } from './quotas.ts'
import { judgePlan, runSchedule } from './schedule.ts'
import { shrink } from './shrink.ts'
import { expectNoViolation } from './search.ts'
import type { SimulationRun } from './search.ts'
import { keySimulation } from './simulations.ts'
import { runPlan } from './workload.ts'
import { knownWrongRedis, knownWrongs } from './wrong.ts'

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

describe('the harness sees what is wrong', () => {
  // Each is found within 300 schedules as a rule; ten times that leaves room for a generator that changes.
  const schedulesMax = 3_000

  test.each(knownWrongs)('$name: found by $foundBy', async (wrong) => {
    for (let seed = 1; seed <= schedulesMax; seed++) {
      const { violations } = await runSchedule(seed, wrong)
      if (violations.some(({ assertion }) => assertion === wrong.foundBy)) return
    }
    expect.unreachable(`not found in ${schedulesMax} schedules`)
  })

  test.each(knownWrongRedis)('on Redis, $name: found by $foundBy', async (wrong) => {
    for (let seed = 1; seed <= schedulesMax; seed++) {
      const { violations } = await judgePlan(redisPlanFor(seed), wrong)
      if (violations.some(({ assertion }) => assertion === wrong.foundBy)) return
    }
    expect.unreachable(`not found in ${schedulesMax} schedules`)
  })

  test('a failure is told with its seed and as a story that is shorter than what happened', async () => {
    const wrong = knownWrongs.find(({ name }) => name === 'settles without a fence')!
    const isFound = async (seed: number): Promise<boolean> =>
      (await runSchedule(seed, wrong)).violations[0]?.assertion === 'settled-is-final'
    let seed = 1
    while (!(await isFound(seed))) seed++
    const told = await describeFailure(keySimulation, seed, wrong)
    expect(told).toContain(`npm run simulate -- --what keys --seed ${seed} --schedules 1`)
    expect(told).toContain('settled-is-final')
    expect(told).toMatch(/ms {2}process \d is asked for (shop|bank)\/\d/)
    const whole = planFor(seed)
    const smallest = await shrink(keySimulation, whole, 'settled-is-final', wrong)
    const sizeOf = ({ calls, messageFaults, worldFaults }: typeof whole): number =>
      calls.length + messageFaults.length + worldFaults.length
    expect(sizeOf(smallest)).toBeLessThan(sizeOf(whole))
    expect((await judgePlan(smallest, wrong)).violations.map(({ assertion }) => assertion)).toContain(
      'settled-is-final',
    )
  })

  test('a run that met too little is invalid', () => {
    expect(missedQuotas({ ...noCounts(), schedules: 10_000 })).toContain(
      `takeovers: 0, at least ${10 * quotas['takeovers']!} expected`,
    )
  })

  test('no quota is lower than it has been, unless its reason stands beside it', () => {
    for (const [table, most] of Object.entries(highest)) {
      const now = { quotas, redisQuotas }[table as keyof typeof highest]
      const excused = lowered.filter(
        (each) => each.table === table && each.why.length > 20 && each.from >= most[each.name]!,
      )
      const below = Object.keys(most).filter((name) => (now[name] ?? 0) < most[name]!)
      expect(below.filter((name) => !excused.some((each) => each.name === name))).toEqual([])
      expect(Object.keys(now).filter((name) => now[name]! > (most[name] ?? 0))).toEqual([])
    }
  })
})

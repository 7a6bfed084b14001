// A few simulated schedules, for the mutation tester only: they notice what no single test does. `npm run simulate` runs millions.

import { expect, test } from 'vitest'
import { simulations } from '../simulation/simulations.ts'

// Some of each, so that one run stays below two seconds.
const schedules: Readonly<Record<string, number>> = { keys: 200, operations: 60, redis: 40 }

test.each(Object.entries(schedules))(
  '%s: %i schedules without a violation',
  async (what, count) => {
    const { planFor, judgePlan } = simulations[what]!
    for (let seed = 1; seed <= count; seed++) {
      expect((await judgePlan(planFor(seed))).violations).toEqual([])
    }
  },
  60_000,
)

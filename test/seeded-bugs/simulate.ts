// node test/seeded-bugs/simulate.ts WHAT ASSERTION SCHEDULES: runs schedules of keys, Redis or operations until one breaks this assertion, and says after how
// many, and what else was broken on the way. It stands in the copy, so that it runs the source with the bug in it.

import { simulations } from '../simulation/simulations.ts'

export interface Found {
  /** How many schedules it took. Undefined when it was not found. */
  readonly after?: number
  readonly alsoBroken: readonly string[]
}

async function find(what: string, assertion: string, schedulesMax: number): Promise<Found> {
  const { planFor, judgePlan } = simulations[what]!
  const alsoBroken = new Set<string>()
  for (let seed = 1; seed <= schedulesMax; seed++) {
    const { violations } = await judgePlan(planFor(seed))
    if (violations.some((each) => each.assertion === assertion)) return { after: seed, alsoBroken: [...alsoBroken] }
    for (const each of violations) alsoBroken.add(each.assertion)
  }
  return { alsoBroken: [...alsoBroken] }
}

const [what = '', assertion = '', schedulesMax = '0'] = process.argv.slice(2)
process.stdout.write(JSON.stringify(await find(what, assertion, Number(schedulesMax))))

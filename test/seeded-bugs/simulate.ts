// node test/seeded-bugs/simulate.ts ASSERTION SCHEDULES: runs schedules until one breaks this assertion, and says after how
// many, and what else was broken on the way. It stands in the copy, so that it runs the source with the bug in it.

import { runSchedule } from '../simulation/schedule.ts'

export interface Found {
  /** How many schedules it took; undefined when it was not found. */
  readonly after?: number
  readonly alsoBroken: readonly string[]
}

async function find(assertion: string, schedulesMax: number): Promise<Found> {
  const alsoBroken = new Set<string>()
  for (let seed = 1; seed <= schedulesMax; seed++) {
    const { violations } = await runSchedule(seed)
    if (violations.some((each) => each.assertion === assertion)) return { after: seed, alsoBroken: [...alsoBroken] }
    for (const each of violations) alsoBroken.add(each.assertion)
  }
  return { alsoBroken: [...alsoBroken] }
}

const [assertion = '', schedulesMax = '0'] = process.argv.slice(2)
process.stdout.write(JSON.stringify(await find(assertion, Number(schedulesMax))))

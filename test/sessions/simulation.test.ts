// Schedules of sessions from seeds: late duplicates, gaps, ghosts, crashes of clients and servers, sessions that end.
import { expect, test } from 'vitest'
import { freshSeed, isThorough } from '../fresh-seed.ts'
import { addCounts, missedQuotas } from '../simulation/counts.ts'
import { judgeSessions } from './simulation.ts'
import { sessionQuotas } from './simulation/counts.ts'

const schedulesFixed = 150
const schedulesFresh = 300

async function run(first: number, count: number): Promise<Record<string, number>> {
  const total: Record<string, number> = {}
  for (let seed = first; seed < first + count; seed++) {
    const { counts, violations } = await judgeSessions(seed)
    expect(violations, `seed ${seed}: npm run simulate -- --what sessions --seed ${seed} --schedules 1`).toEqual([])
    addCounts(total, counts)
  }
  return total
}

test('fixed seeds: one effect per number, equal answers, a window of rows, and no client is locked out', async () => {
  const counts = await run(1, schedulesFixed)
  // So few schedules may meet half by chance.
  const halves = Object.fromEntries(Object.entries(sessionQuotas).map(([name, quota]) => [name, quota / 2]))
  expect(missedQuotas(counts, halves), 'a run that met too little has shown nothing').toEqual([])
}, 120_000)

const fresh = freshSeed('sessions')
if (fresh !== undefined) {
  test(
    'fresh seeds: the same',
    async () => void (await run(fresh, isThorough ? schedulesFresh : schedulesFixed)),
    300_000,
  )
}

test('the same seed gives the same schedule', async () => {
  expect((await judgeSessions(7)).story()).toBe((await judgeSessions(7)).story())
})

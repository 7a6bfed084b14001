// Schedules of sessions from seeds: late duplicates, gaps, ghosts, crashes of clients and servers, sessions that end.
import { expect, test } from 'vitest'
import { freshSeed, isThorough } from '../fresh-seed.ts'
import { judgeSessions } from './simulation.ts'

const schedulesFixed = 150
const schedulesFresh = 300

// What a hundred and fifty schedules must have met at the least: a run that met too little has shown nothing.
const quotas: Readonly<Record<string, number>> = {
  effects: 500,
  replayed: 300,
  'ran again': 40,
  'taken over': 5,
  'request late': 100,
  'reply lost': 100,
  'server kill': 50,
  'server pause': 50,
  ghost: 50,
  'client lost its memory': 20,
  SESSION_EXPIRED: 20,
  FENCED: 5,
  FORGOTTEN: 20,
  IN_FLIGHT: 20,
  CLAIM_LOST: 1,
}

async function run(seeds: readonly number[]): Promise<Record<string, number>> {
  const total: Record<string, number> = {}
  for (const seed of seeds) {
    const { counts, violations, story } = await judgeSessions(seed)
    const told = violations.length > 0 ? `again: ONCEONLY_SEED=${seed}\n${story.join('\n')}` : ''
    expect(violations, `seed ${seed}, ${told}`).toEqual([])
    for (const [name, count] of Object.entries(counts)) total[name] = (total[name] ?? 0) + count
  }
  return total
}

const seedsFrom = (first: number, count: number): number[] => Array.from({ length: count }, (_, index) => first + index)

test('fixed seeds: one effect per number, equal answers, a window of rows, and no client is locked out', async () => {
  const total = await run(seedsFrom(1, schedulesFixed))
  const missed = Object.entries(quotas).filter(([name, quota]) => (total[name] ?? 0) < quota)
  expect(missed, JSON.stringify(total)).toEqual([])
}, 120_000)

const fresh = freshSeed('sessions')
if (fresh !== undefined) {
  test(
    'fresh seeds: the same',
    async () => void (await run(seedsFrom(fresh, isThorough ? schedulesFresh : schedulesFixed))),
    300_000,
  )
}

test('the same seed gives the same schedule', async () => {
  expect((await judgeSessions(7)).story).toEqual((await judgeSessions(7)).story)
})

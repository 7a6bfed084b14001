// Schedules of the relay from seeds: out-of-order commits, late and lost acknowledgements, processes that die or stand still, relays
// that meet in one shard, brokers that refuse keys or take nothing. Then everything heals, and everything must have arrived in order.
import { afterAll, expect, test } from 'vitest'
import { freshSeed, isThorough } from '../fresh-seed.ts'
import { type Counts, noCounts } from './relay-world.ts'
import { judgeRelaySchedule } from './simulation/relay-schedule.ts'

const schedulesFixed = 60
// A shard that its relay owned without working on it; rows behind a parked one that were due before it; a relay that went on with what it
// knew when taking its shard anew had failed.
const found = [1364274397, 1239410333, 1440834133, 1742045338, 1017912388]
const schedulesFresh = 1_000
const total = noCounts()

test('fixed seeds: every committed event arrives, in the order of commits per key', { timeout: 300_000 }, async () => {
  for (const seed of found) await runSchedule(seed)
  for (let seed = 1; seed <= schedulesFixed; seed++) await runSchedule(seed)
  expectReached(total)
})

const fresh = freshSeed('the relay')
if (fresh !== undefined) {
  test('fresh seeds: the same', { timeout: 600_000 }, async () => {
    for (let seed = fresh; seed < fresh + (isThorough ? schedulesFresh : schedulesFixed); seed++)
      await runSchedule(seed)
  })
}

afterAll(() => process.stdout.write(`relay simulation: ${JSON.stringify(total)}\n`))

async function runSchedule(seed: number): Promise<void> {
  const { counts, violations } = await judgeRelaySchedule(seed)
  expect(violations, `seed ${seed} (again: ONCEONLY_SEED=${seed})`).toEqual([])
  for (const name of Object.keys(total) as (keyof Counts)[]) total[name] += counts[name]!
}

function expectReached(counts: Counts): void {
  const least: Partial<Counts> = {
    committed: 500,
    rolledBack: 50,
    kills: 60,
    takeovers: 40,
    fenced: 5,
    lostReplies: 100,
    repeated: 50,
    held: 50,
    dead: 1,
  }
  for (const [name, number] of Object.entries(least)) {
    expect(counts[name as keyof Counts], `a run that reached too few: ${name}`).toBeGreaterThanOrEqual(number)
  }
}

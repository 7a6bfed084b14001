// Schedules of the inbox from seeds, in all its ways, and of the whole chain from outbox to inbox: redeliveries, zombies, deaths in the middle, commits
// without an answer, conflicts, poison, splits of batches, stale versions, windows that pass, parked and redriven messages. Then
// everything heals, and every message must have come to its one end.
import { expect, test } from 'vitest'
import { freshSeed, isThorough } from '../fresh-seed.ts'
import { missedQuotas } from '../simulation/counts.ts'
import { judgeChainSchedule } from './simulation/chain-schedule.ts'
import { chainQuotas, inboxQuotas, waysQuotas } from './simulation/counts.ts'
import { judgeInboxSchedule } from './simulation/inbox-schedule.ts'
import { judgeWaysSchedule } from './simulation/ways-schedule.ts'

const schedulesFixed = 100
const schedulesFresh = 300

// A message that was parked under the hands of the process that ran its last attempt. One that was done, and was parked because another
// with its id stood before it in a batch: after its mark was swept, a redrive ran it again.
const found: readonly number[] = [170, 1_636_651_351]

const simulations = [
  { what: 'inbox', judge: judgeInboxSchedule, quotas: inboxQuotas, found },
  { what: 'ways', judge: judgeWaysSchedule, quotas: waysQuotas, found: [] },
  { what: 'chain', judge: judgeChainSchedule, quotas: chainQuotas, found: [] },
]

type Simulated = (typeof simulations)[number]

test.each(simulations)(
  '$what, fixed seeds: every message has the effects that are promised, in order, and comes to its end',
  { timeout: 300_000 },
  async ({ what, judge, quotas, found }) => {
    const seeds = [...found, ...Array.from({ length: schedulesFixed }, (_, index) => index + 1)]
    const counts = await run({ what, judge }, seeds)
    // A hundred schedules may meet half by chance.
    const halves = Object.fromEntries(Object.entries(quotas).map(([name, quota]) => [name, quota / 2]))
    expect(missedQuotas(counts, halves), 'a run that met too little has shown nothing').toEqual([])
  },
)

const fresh = freshSeed('the inbox')
if (fresh !== undefined) {
  const count = isThorough ? schedulesFresh : schedulesFixed
  const seeds = Array.from({ length: count }, (_, index) => fresh + index)
  test.each(simulations)('$what, fresh seeds: the same', { timeout: 600_000 }, async (simulated) => {
    await run(simulated, seeds)
  })
}

test('the same seed gives the same schedule', async () => {
  for (const { judge } of simulations) {
    const [first, second] = [await judge(7), await judge(7)]
    expect(second.story()).toBe(first.story())
  }
})

async function run(
  { what, judge }: Pick<Simulated, 'what' | 'judge'>,
  seeds: readonly number[],
): Promise<Record<string, number>> {
  const total: Record<string, number> = {}
  for (const seed of seeds) {
    const { counts, violations } = await judge(seed)
    expect(violations, `seed ${seed}: npm run simulate -- --what ${what} --seed ${seed} --schedules 1`).toEqual([])
    for (const [name, count] of Object.entries(counts)) total[name] = (total[name] ?? 0) + count
  }
  return total
}

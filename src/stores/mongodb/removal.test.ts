// When MongoDB may remove an entry by itself: late, and never early.

import { expect, test } from 'vitest'
import { manualClock } from '../../testing/manual-clock.ts'
import { removalSlackMs, removalTimes } from './removal.ts'

const retention = { keepMs: 1_000_000, tombstoneMs: 100_000 }

test('a removal is an hour after everything else, counted from the server time that has passed since its last reply', async () => {
  const clock = manualClock()
  const removal = removalTimes(clock)
  await clock.advance(7)
  removal.note(1_700_000_000_000)
  await clock.advance(2_500)
  expect(removal.hints(30_000, retention)).toEqual({
    sweepAt: new Date(1_700_000_000_000 + 1_000_000),
    removeAt: new Date(1_700_000_000_000 + 2_500 + 30_000 + 1_000_000 + 100_000 + removalSlackMs),
  })
  expect(removalSlackMs).toBe(3_600_000)
})

test('the last reply counts', async () => {
  const clock = manualClock()
  const removal = removalTimes(clock)
  removal.note(5_000)
  await clock.advance(10)
  removal.note(4_000)
  expect(removal.hints(0, { keepMs: 1, tombstoneMs: 0 })).toEqual({
    sweepAt: new Date(4_001),
    removeAt: new Date(4_001 + removalSlackMs),
  })
})

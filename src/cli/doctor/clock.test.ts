import { expect, test } from 'vitest'
import { manualClock } from '../../testing/manual-clock.ts'
import { judgeSkew, machineDecides, measureSkew, storeDecides } from './clock.ts'

/** A store whose clock is behind ours by aheadMs, and that answers after replyMs, half of it there and half back. */
async function measured(aheadMs: number, replyMs: number): Promise<{ atLeastMs: number; atMostMs: number }> {
  const clock = manualClock()
  return measureSkew(clock, 1, async () => {
    await clock.advance(replyMs / 2)
    const told = Math.floor(clock.now() - aheadMs)
    await clock.advance(replyMs / 2)
    return told
  })
}

test.each([0, 40, -40, 5_000, -5_000])('a difference of %s ms is within what was measured', async (aheadMs) => {
  for (const replyMs of [0, 10, 1_000]) {
    const { atLeastMs, atMostMs } = await measured(aheadMs, replyMs)
    expect(atLeastMs).toBeLessThanOrEqual(aheadMs)
    expect(atMostMs).toBeGreaterThanOrEqual(aheadMs)
    expect(atMostMs - atLeastMs).toBeLessThanOrEqual(replyMs + 2)
  }
})

test('what is surely beyond the limit is told, what may be is unknown, the rest is ok', async () => {
  expect(judgeSkew(await measured(5_000, 10), storeDecides)).toMatchObject({ verdict: 'warning' })
  expect(judgeSkew(await measured(-5_000, 10), machineDecides)).toMatchObject({ verdict: 'violated' })
  expect(judgeSkew(await measured(-5_000, 10), machineDecides).found).toMatch(
    /^5 s behind the store, give or take 6 ms$|^4 s/,
  )
  expect(judgeSkew(await measured(500, 10), storeDecides)).toMatchObject({ verdict: 'ok' })
  expect(judgeSkew(await measured(0, 8_000), storeDecides)).toMatchObject({ verdict: 'unknown' })
})

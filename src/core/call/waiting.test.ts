import { describe, expect, test, vi } from 'vitest'
import { manualClock } from '../../testing/manual-clock.ts'
import type { Random } from '../clock.ts'
import type { Verdict } from '../store.ts'
import { createWaiting } from './waiting.ts'

/** Always the longest pause, so that times can be told in advance. */
const steady: Random = {
  uuid: () => crypto.randomUUID(),
  fraction: () => 1,
  bytes: (count) => new Uint8Array(count),
}
const busy: Verdict = { is: 'busy', retryAfterMs: 5 }
const settled: Verdict = { is: 'settled', outcome: new Uint8Array(), version: 0, attempt: 1 }
const claim = { key: { scope: 's', id: 'i' }, token: 't', attempt: 2, fence: 2 }
const granted: Verdict = { is: 'granted', claim, how: 'reopened' }

function world() {
  const clock = manualClock()
  const waiting = createWaiting(clock, steady)
  const answer = { verdict: busy }
  const ask = vi.fn(async () => ({ verdict: answer.verdict, own: true }))
  const wait = (waitMs: number, group = 'a') => {
    const ended: unknown[] = []
    void waiting.wait({ group, waitMs, ask }).then(
      (asked) => ended.push(asked ?? 'in vain', clock.elapsed()),
      (error: Error) => ended.push(error.message),
    )
    return ended
  }
  return { clock, waiting, answer, ask, wait }
}

describe('those who wait for one key', () => {
  test('share the answer of the one who asks, unless it is the key itself', async () => {
    const { clock, waiting, answer, ask, wait } = world()
    expect(waiting.isAnyWaiting()).toBe(false)
    const [leader, other] = [wait(10_000), wait(10_000)]
    expect(waiting.isAnyWaiting()).toBe(true)
    await clock.advance(19)
    expect(ask).not.toHaveBeenCalled()
    await clock.advance(1)
    expect(ask).toHaveBeenCalledTimes(1)
    answer.verdict = settled
    await clock.advance(32)
    expect(leader).toEqual([{ verdict: settled, own: true }, 52])
    expect(other).toEqual([{ verdict: settled }, 52])
    expect(ask).toHaveBeenCalledTimes(2)
    expect(waiting.isAnyWaiting()).toBe(false)
    expect(clock.pending).toBe(0)
  })

  test('go on one by one when the key is granted to the one who asks', async () => {
    const { clock, answer, ask, wait } = world()
    const [leader, other] = [wait(10_000), wait(10_000)]
    answer.verdict = granted
    await clock.advance(20)
    expect(leader).toEqual([{ verdict: granted, own: true }, 20])
    expect(other).toEqual([])
    answer.verdict = settled
    await clock.advance(20)
    expect(other).toEqual([{ verdict: settled, own: true }, 40])
    expect(ask).toHaveBeenCalledTimes(2)
    expect(clock.pending).toBe(0)
  })

  test('end each at its own time, and whoever is left asks', async () => {
    const { clock, ask, wait } = world()
    const [short, shorter, long] = [wait(100), wait(50), wait(200)]
    await clock.advance(50)
    expect([short, shorter, long]).toEqual([[], ['in vain', 50], []])
    await clock.advance(50)
    expect(short).toEqual(['in vain', 100])
    const before = ask.mock.calls.length
    await clock.advance(99)
    expect(ask.mock.calls.length).toBeGreaterThan(before)
    expect(long).toEqual([])
    await clock.advance(1)
    expect(long).toEqual(['in vain', 200])
    expect(clock.pending).toBe(0)
  })

  test('are woken by name, and ask at once', async () => {
    const { clock, waiting, answer, ask, wait } = world()
    const [a, b] = [wait(10_000, 'a'), wait(10_000, 'b')]
    answer.verdict = settled
    waiting.wake('a')
    waiting.wake('none')
    await clock.advance(0)
    expect([a.length, b.length, ask.mock.calls.length]).toEqual([2, 0, 1])
    expect(waiting.isAnyWaiting()).toBe(true)
    waiting.wake('b')
    await clock.advance(0)
    expect([b.length, waiting.isAnyWaiting(), clock.pending]).toEqual([2, false, 0])
  })

  test('get the error of the one who asks only if they are the one, and the next one asks', async () => {
    const { clock, answer, ask, wait } = world()
    ask.mockRejectedValueOnce(new Error('down'))
    const [leader, other] = [wait(10_000), wait(10_000)]
    await clock.advance(20)
    expect([leader, other]).toEqual([['down'], []])
    answer.verdict = settled
    await clock.advance(20)
    expect(other).toEqual([{ verdict: settled, own: true }, 40])
  })

  test('who come after an answer wait anew, and are not forgotten with those before them', async () => {
    const { clock, waiting, answer, ask, wait } = world()
    const later: unknown[][] = []
    ask.mockImplementationOnce(async () => {
      // Asked for before the answer, and joined right after it.
      queueMicrotask(() => queueMicrotask(() => later.push(wait(10_000))))
      return { verdict: settled, own: true }
    })
    wait(10_000)
    await clock.advance(20)
    expect(later).toEqual([[]])
    expect(waiting.isAnyWaiting()).toBe(true)
    answer.verdict = settled
    waiting.wake('a')
    await clock.advance(0)
    expect(later).toEqual([[{ verdict: settled, own: true }, 20]])
    expect(waiting.isAnyWaiting()).toBe(false)
  })
})

// A Redis that is down costs a few calls their time-out, and then one call per second.

import { expect, test, vi } from 'vitest'
import { manualClock } from '../../testing/manual-clock.ts'
import { breaker } from './breaker.ts'

const down = (): Promise<string> => Promise.reject(new Error('ECONNREFUSED'))

test('an answer is passed on, and a failure is nothing', async () => {
  const { attempt, rests } = breaker(manualClock(), 1_000)
  expect(await attempt(async () => 'found')).toBe('found')
  expect(await attempt(down)).toBeUndefined()
  expect(rests()).toBe(false)
})

test('an answer that does not come within the time-out is a failure', async () => {
  const clock = manualClock()
  const { attempt } = breaker(clock, 1_000)
  const answer = attempt(() => new Promise(() => {}))
  await clock.advance(1_000)
  expect(await answer).toBeUndefined()
  expect(clock.pending).toBe(0)
})

test('after three failures in a row nobody asks for a second, and then one call does', async () => {
  const clock = manualClock()
  const { attempt, rests } = breaker(clock, 500)
  for (const resting of [false, false, true]) {
    await attempt(down)
    expect(rests()).toBe(resting)
  }
  const ask = vi.fn(down)
  await attempt(ask)
  await clock.advance(999)
  await attempt(ask)
  expect(ask).not.toHaveBeenCalled()
  await clock.advance(1)
  // Of many at once, one asks.
  const hung = attempt(() => (ask(), new Promise(() => {})))
  await Promise.all([attempt(ask), attempt(ask)])
  expect(ask).toHaveBeenCalledTimes(1)
  // The second without questions counts from when that one failed.
  await clock.advance(500)
  await hung
  await clock.advance(999)
  expect(rests()).toBe(true)
  await clock.advance(1)
  expect(rests()).toBe(false)
})

test('one success, and it takes three failures again', async () => {
  const clock = manualClock()
  const { attempt, rests } = breaker(clock, 1_000)
  for (let n = 0; n < 3; n++) await attempt(down)
  await clock.advance(1_000)
  expect(await attempt(async () => 'back')).toBe('back')
  await attempt(down)
  await attempt(down)
  expect(rests()).toBe(false)
  await attempt(down)
  expect(rests()).toBe(true)
})

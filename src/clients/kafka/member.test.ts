import { expect, test } from 'vitest'
import { watchHalts } from './member.ts'

/** Blocks the process, as a halt does: no timer runs. */
const standStill = (ms: number): unknown => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms)

test('a process that stood still for most of its session can commit nothing more, from the first look on', () => {
  const sessionMs = 2_000
  let halts = 0
  const watched = watchHalts(sessionMs, () => halts++)
  watched.check()
  expect(halts).toBe(0)
  standStill(sessionMs * 0.75)
  expect(() => watched.check()).toThrow(/stood still for \d+ ms of a session of 2000 ms/)
  expect(() => watched.check()).toThrow(/stood still/)
  expect(halts).toBe(1)
  watched.stop()
})

// What the check of a native batch has counted is in the mark of the server. If it were not known, it would hide one write that is missing.

import { expect, test } from 'vitest'
import { manualClock } from '../../../testing/manual-clock.ts'
import type { NativeGround, Turn } from '../native.ts'
import { serverTime } from '../time.ts'
import { readCheck } from './check.ts'

/** Of an instance that has heard of one write, a check that came back with these replies: whether it is clean, and what became known. */
function checked(...raw: readonly unknown[]): [isClean: boolean, counted: readonly number[]] {
  const counted: number[] = []
  const watch = { count: (sent: { mark: number }, mark: number) => (counted.push(mark), mark > sent.mark) }
  const time = serverTime(manualClock())
  const known = { lineage: 'one', mark: 1 }
  const turn: Turn = { connection: 1, sent: time.here(), bounds: { earliestMs: 0, latestMs: 0 }, known }
  const ground = { context: { link: { connection: () => 1 } }, watch, time } as unknown as NativeGround
  const { isClean } = readCheck(ground, turn, { commands: [], register: undefined, time: undefined }, raw)
  return [isClean, counted]
}

test('a mark that grew is known, and clean', () => {
  expect(checked(2)).toEqual([true, [2]])
})

test('a mark that did not grow is known, and not clean', () => {
  expect(checked(1)).toEqual([false, [1]])
})

test('a mark is known also when the server refused another command of the check', () => {
  expect(checked(2, new Error('NOPERM'))).toEqual([false, [2]])
  expect(checked(1, new Error('NOPERM'))).toEqual([false, [1]])
})

test('a count that the server refused says nothing', () => {
  expect(checked(new Error('READONLY'))).toEqual([false, []])
})

test.each([
  [-0.001, false],
  [0, true],
  [5, true],
  [6, true],
  [6.001, false],
])('%d ms after the earliest that its time can be, the server is believed: %s', (afterMs, isBelieved) => {
  const time = serverTime(manualClock())
  const bounds = { earliestMs: 1_700_000_000_000, latestMs: 1_700_000_000_005 }
  const turn: Turn = { connection: 1, sent: time.here(), bounds, known: { lineage: 'one', mark: 1 } }
  const watch = { count: () => true }
  const ground = { context: { link: { connection: () => 1 } }, watch, time } as unknown as NativeGround
  const microseconds = 1_700_000_000_000_000 + Math.round(afterMs * 1_000)
  const reply = [Math.floor(microseconds / 1_000_000), microseconds % 1_000_000].map((part) => Buffer.from(`${part}`))
  const check = readCheck(ground, turn, { commands: [], register: undefined, time: 1 }, [2, reply])
  expect(check.isClean).toBe(isBelieved)
})

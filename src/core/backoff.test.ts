import { expect, test } from 'vitest'
import { backoffMs, fullJitterMs, msUntil, webhookPauseMs } from './backoff.ts'
import type { Random } from './clock.ts'

const drawing = (fraction: number): Random => ({
  uuid: () => crypto.randomUUID(),
  fraction: () => fraction,
  bytes: (count) => new Uint8Array(count),
})

const backoff = { firstMs: 100, factor: 3, maxMs: 1_000 }

test('a pause grows by its factor up to its maximum, and is between half and all of that', () => {
  expect([0, 1, 2, 3, 50].map((tries) => backoffMs(backoff, tries, drawing(0)))).toEqual([50, 150, 450, 500, 500])
  expect(backoffMs(backoff, 1, drawing(0.5))).toBe(225)
  expect(backoffMs(backoff, 1, drawing(1))).toBe(300)
})

test('with full jitter it is between nothing and all of that', () => {
  expect(fullJitterMs(backoff, 2, drawing(0))).toBe(0)
  expect([0, 1, 2, 3, 50].map((tries) => fullJitterMs(backoff, tries, drawing(0.5)))).toEqual([50, 150, 450, 500, 500])
})

test('the pauses of webhooks are up to a tenth shorter or longer, in whole milliseconds', () => {
  expect([0, 0.5, 1].map((fraction) => webhookPauseMs(5_000, drawing(fraction)))).toEqual([4_500, 5_000, 5_500])
  expect(webhookPauseMs(1_001, drawing(0))).toBe(901)
})

test.each<[value: string | null | undefined, ms: number | undefined]>([
  ['120', 120_000],
  ['0', 0],
  ['Thu, 01 Jan 1970 00:01:40 GMT', 90_000],
  // A date that has passed asks for no pause.
  ['Thu, 01 Jan 1970 00:00:01 GMT', 0],
  ['soon', undefined],
  ['12x', undefined],
  ['x12', undefined],
  ['', undefined],
  [null, undefined],
  [undefined, undefined],
])('Retry-After %j is %s ms', (value, ms) => {
  expect(msUntil(value, 10_000)).toBe(ms)
})

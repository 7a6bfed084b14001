import { expect, test } from 'vitest'
import { manualClock } from '../../testing/manual-clock.ts'
import { createPatience } from './patience.ts'

test('ten wrong tokens are free; then an address has one looked at a second, whoever waits too long is sent away', async () => {
  const clock = manualClock()
  const patience = createPatience(clock)
  for (let guess = 1; guess <= 10; guess++) {
    expect(patience.waitMs('10.0.0.1')).toBe(0)
    patience.wrong('10.0.0.1')
  }
  const waits = Array.from({ length: 12 }, () => patience.waitMs('10.0.0.1'))
  expect(waits).toEqual([1_000, 2_000, 3_000, 4_000, 5_000, 6_000, 7_000, 8_000, 9_000, 10_000, undefined, undefined])
  expect(patience.waitMs('10.0.0.2')).toBe(0)
  // Whoever comes when the queue has gone on waits no more than a turn.
  await clock.advance(10_000)
  expect(patience.waitMs('10.0.0.1')).toBe(1_000)
})

test('the right token, or a minute without a wrong one, ends it', async () => {
  const clock = manualClock()
  const patience = createPatience(clock)
  const guess = (address: string): void => {
    for (let time = 1; time <= 20; time++) patience.wrong(address)
  }
  guess('a')
  expect(patience.waitMs('a')).toBeGreaterThan(0)
  patience.right('a')
  expect(patience.waitMs('a')).toBe(0)
  guess('a')
  await clock.advance(60_001)
  expect(patience.waitMs('a')).toBe(0)
  patience.wrong('a')
  expect(patience.waitMs('a')).toBe(0)
})

test('the addresses of one IPv6 network are one, and what is remembered is bounded', () => {
  const patience = createPatience(manualClock())
  for (let host = 1; host <= 10; host++) patience.wrong(`2001:db8:0:7::${host}`)
  expect(patience.waitMs('2001:db8:0:7:ffff::1')).toBe(1_000)
  expect(patience.waitMs('2001:db8:0:8::1')).toBe(0)
  expect(patience.waitMs('::1')).toBe(0)
  for (let address = 0; address < 1_000; address++) patience.wrong(`10.0.${address >> 8}.${address & 255}`)
  expect(patience.waitMs('2001:db8:0:7::1')).toBe(0)
})

import { expect, test } from 'vitest'
import { freshSeed } from './fresh-seed.ts'

test('CI explores a seed that it has not seen, and a given one comes back', () => {
  const drawn = Array.from({ length: 20 }, () => freshSeed('a test', { ONCEONLY_REQUIRE: 'all' })!)
  expect(new Set(drawn).size).toBe(20)
  expect(Math.min(...drawn)).toBeGreaterThan(1_000_000)
  expect(freshSeed('a test', { ONCEONLY_SEED: '7', ONCEONLY_REQUIRE: 'all' })).toBe(7)
  expect(freshSeed('a test', { ONCEONLY_SEED: '7' })).toBe(7)
})

test('a run on a desk has the fixed seeds only, and no seed that is none', () => {
  expect(freshSeed('a test', {})).toBeUndefined()
  expect(() => freshSeed('a test', { ONCEONLY_SEED: 'x' })).toThrow(
    'expected ONCEONLY_SEED to be a whole number, got "x"',
  )
})

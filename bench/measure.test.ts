// The arithmetic of the bench, and that variants really lie side by side.

import { describe, expect, test } from 'vitest'
import { compareAll, compareDrains, median, percentiles, quantile, ratioFrom, ratioIn } from './measure.ts'
import type { Round, Variant } from './measure.ts'

const round = (perSecond: number): Round => ({ perSecond, p50Ms: 1, p99Ms: 2, cpuMs: 3, serverCpuMs: 4 })

test('a ratio is the median of rounds that lie side by side, with their quartiles', () => {
  const all = [
    [100, 200],
    [50, 300],
    [10, 10],
  ].map(
    ([naive, ours]) =>
      new Map([
        ['naive', round(naive!)],
        ['ours', round(ours!)],
      ]),
  )
  const compared = { names: ['naive', 'ours'], rounds: all, serverCalls: new Map() }
  expect(ratioIn(compared, 'perSecond', 'ours', 'naive')).toEqual({ measured: 2, spread: [1.5, 4] })
})

test('quantiles lie between neighbours', () => {
  expect(quantile([4, 1, 3, 2], 0.5)).toBe(2.5)
  expect(quantile([7], 0.75)).toBe(7)
  expect(median([3, 1, 2])).toBe(2)
  expect(ratioFrom([1, 2, 3, 4, 5])).toEqual({ measured: 3, spread: [2, 4] })
  expect(percentiles(Array.from({ length: 100 }, (_, index) => 100 - index))).toEqual({ p50Ms: 50, p99Ms: 99 })
})

describe('compareAll', () => {
  const sequence: string[] = []
  const variant = (name: string): Variant => ({
    name,
    work: async () => void (sequence.at(-1) !== name && sequence.push(name)),
  })

  test('runs every variant in every round, and reverses the order on odd rounds', async () => {
    const compared = await compareAll([variant('a'), variant('b'), variant('c')], {
      concurrency: 2,
      operations: 4,
      rounds: 2,
    })
    expect(sequence.join('')).toBe('abc' + 'abc' + 'ba')
    expect(compared.rounds).toHaveLength(2)
    expect(compared.rounds[0]!.get('a')!.perSecond).toBeGreaterThan(0)
  })

  test('each unit of work has an index of its own', async () => {
    const seen: number[] = []
    const work = async (index: number): Promise<void> => void seen.push(index)
    await compareAll([{ name: 'a', work }], { concurrency: 3, operations: 9, rounds: 2 })
    expect(new Set(seen).size).toBe(seen.length)
  })

  test('asks each variant whether it did the work, and ends with what it says', async () => {
    const lazy: Variant = {
      name: 'lazy',
      work: async () => {},
      verify: async (operations) => {
        throw new Error(`0 rows instead of ${operations}`)
      },
    }
    await expect(compareAll([lazy], { concurrency: 1, operations: 5 })).rejects.toThrow('0 rows instead of 1')
  })

  test('refuses two variants of one name', async () => {
    await expect(compareAll([variant('a'), variant('a')], { concurrency: 1, operations: 1 })).rejects.toThrow(
      'one name',
    )
  })
})

test('a drain is measured without its filling, and the first rounds are not counted', async () => {
  const counts: number[] = []
  const drained = { name: 'a', rows: 20, fill: async () => {}, drain: async (count: number) => void counts.push(count) }
  const compared = await compareDrains([drained], 2)
  expect(counts).toEqual([2, 2, 2, 20, 20])
  expect(compared.rounds).toHaveLength(2)
})

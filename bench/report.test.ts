// How results are shown and kept: a target says whether it was reached, and a run replaces its own parts only.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import {
  aimOf,
  amountOf,
  besideOf,
  digits,
  readResults,
  resultsPath,
  short,
  tableOf,
  verdictOf,
  writeResults,
} from './report.ts'

const fresh = { id: 'P1', what: 'Postgres fresh, c=64: throughput', measured: 4.812, atLeast: 4.5 }

describe('a target', () => {
  test('shows its measure with the quartiles, and its aim', () => {
    expect(amountOf({ ...fresh, spread: [4.5, 5.06] })).toBe('4.81× (4.50 to 5.06)')
    expect(aimOf(fresh)).toBe('≥ 4.5×')
    expect(amountOf({ ...fresh, measured: 404.4, unit: 'B' })).toBe('404 B')
    expect(aimOf({ id: 'P13', what: '', measured: 1, atMost: 6_400, unit: 'rows' })).toBe('≤ 6400 rows')
  })

  test('is reached, missed, or not aimed at', () => {
    expect(verdictOf(fresh)).toBe('reached')
    expect(verdictOf({ ...fresh, measured: 4.4 })).toBe('MISSED')
    expect(verdictOf({ ...fresh, atMost: 4.6 })).toBe('MISSED')
    expect(verdictOf({ id: 'P1', what: '', measured: 1 })).toBe('')
  })

  test('has beside it who ran in the comparison that it speaks of', () => {
    const variants = [
      { name: 'naive', perSecond: 3_312 },
      { name: 'onceonly', perSecond: 15_900 },
    ]
    expect(besideOf(fresh, [{ title: 'Postgres fresh, c=64', variants }])).toBe('naive 3.3k/s, onceonly 15.9k/s')
    expect(besideOf(fresh, [{ title: 'Postgres replay', variants }])).toBe('')
    const costs = [{ name: 'bare', clientCpuUs: 75.24 }]
    expect(besideOf(fresh, [{ title: 'Postgres fresh', variants: costs }])).toBe('bare 75.2 µs')
  })
})

test('the table is sorted by target', () => {
  const lines = tableOf(
    [
      { ...fresh, id: 'P12' },
      { ...fresh, id: 'limits' },
      { ...fresh, id: 'P4' },
    ],
    [],
  ).split('\n')
  expect(lines.map((line) => line.split(' ')[0])).toEqual(['id', 'P4', 'P12', 'limits'])
})

test('figures are short', () => {
  expect([0.0123, 0.5, 4.567, 45.67, 456.7].map(digits)).toEqual(['0.012', '0.50', '4.57', '45.7', '457'])
  expect([940, 9_400, 94_000, 940_000].map(short)).toEqual(['940', '9.4k', '94.0k', '940k'])
})

test('a run replaces the results of its part, and a quick run has a file of its own', () => {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-bench-'))
  const path = join(folder, 'latest.json')
  writeResults('postgres', { figures: [fresh], comparisons: [] }, 1, path)
  writeResults('redis', { figures: [{ ...fresh, measured: 1.23456789 }], comparisons: [] }, 1, path)
  writeResults('postgres', { figures: [], comparisons: [] }, 2, path)
  const results = readResults(path)
  expect(results['postgres']).toMatchObject({ tookS: 2, figures: [] })
  expect(results['redis']).toMatchObject({ effort: 'full', figures: [{ measured: 1.235 }] })
  expect(results['redis']!.machine!.cores).toBeGreaterThan(0)
  expect(resultsPath('quick')).not.toBe(resultsPath('full'))
  expect(resultsPath('huge')).toBe(resultsPath('full'))
  rmSync(folder, { recursive: true })
})

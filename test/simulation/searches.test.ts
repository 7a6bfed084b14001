import { expect, test } from 'vitest'
import { searchLine } from '../../scripts/guarantees.ts'
import { withSearch } from './searches.ts'

test('searches on one commit are one search, and those on earlier commits are told apart', () => {
  const first = withSearch({}, 'keys', { commit: 'aaa', schedules: 100, found: 1 })
  const again = withSearch(first, 'keys', { commit: 'aaa', schedules: 50, found: 1 })
  expect(again).toEqual({ keys: [{ commit: 'aaa', schedules: 150, found: 2 }] })
  const mended = withSearch(again, 'keys', { commit: 'bbb', schedules: 1_000, found: 0 })
  expect(searchLine('Keys', mended['keys']!)).toBe(
    'Keys, seeds that no run had seen: 1,000 schedules at bbb, **0 violations**. Before that 150, which found 2, mended since.',
  )
})

// No figure is typed: what can be counted stands in docs/guarantees.md as it is today, and what was measured stands in the docs as the
// bench recorded it.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { measuredPages, plots, withFigures, withoutFigures } from '../scripts/figures.ts'
import { contractSize, mutantTable, ordersTable, searchLine, simulated } from '../scripts/guarantees.ts'
import { readSearches } from './simulation/searches.ts'

const read = (page: string): string => readFileSync(join(import.meta.dirname, '../docs', page), 'utf8')

test('docs/guarantees.md says how many cases and broken stores there are (npm run guarantees writes it)', () => {
  expect(read('guarantees.md')).toContain(`<!-- figures: contract -->${contractSize}<!-- /figures: contract -->`)
})

test('docs/guarantees.md has the mutants of the last audit (npm run guarantees writes them)', () => {
  expect(read('guarantees.md')).toContain(`<!-- figures: mutants -->\n\n${mutantTable()}\n\n<!-- /figures: mutants -->`)
})

test('docs/guarantees.md has the recorded searches for calls that no order explains (npm run guarantees writes them)', () => {
  expect(read('guarantees.md')).toContain(`<!-- figures: orders -->\n\n${ordersTable()}\n\n<!-- /figures: orders -->`)
})

test.each(Object.entries(readSearches()))(
  'docs/guarantees.md has the recorded searches with fresh seeds (%s; npm run guarantees writes them)',
  (what, searches) => {
    const line = searchLine(simulated[what as keyof typeof simulated], searches)
    expect(read('guarantees.md')).toContain(`<!-- figures: fresh ${what} -->${line}<!-- /figures: fresh ${what} -->`)
  },
)

describe.each(measuredPages)('docs/%s', (page) => {
  test('has the figures that the bench recorded (npm run figures writes them)', () => {
    expect(read(page)).toBe(withFigures(page, read(page)))
  })

  test('has no ratio, no time and no volume typed into its text', () => {
    const typed = /\d(?:\.\d+)?×|\d+\.\d+ (?:times|of (?:the|its))|\d µs|\d [kM]?B of WAL|p99 (?:is|of) \d/g
    expect([...withoutFigures(read(page)).matchAll(typed)].map(([text]) => text)).toEqual([])
  })
})

test.each(Object.entries(plots()))(
  'docs/figures/%s is drawn from what the bench recorded (npm run figures draws it)',
  (file, svg) => {
    expect(read(join('figures', file))).toBe(svg)
  },
)

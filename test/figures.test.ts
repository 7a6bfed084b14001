// Figures that can be counted stand in docs/guarantees.md as they are today.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { contractSize } from '../scripts/guarantees.ts'

test('docs/guarantees.md says how many cases and broken stores there are (npm run guarantees writes it)', () => {
  const page = readFileSync(join(import.meta.dirname, '../docs/guarantees.md'), 'utf8')
  expect(page).toContain(`<!-- figures: contract -->${contractSize}<!-- /figures: contract -->`)
})

// What a seed names is named again by it, and each seed names its own share.

import { join } from 'node:path'
import { expect, test } from 'vitest'
import { isInSample } from './sample.ts'

const root = join(import.meta.dirname, '../..')

const mutants = Array.from({ length: 2_000 }, (_, line) => ({
  fileName: join(root, 'src/core/key.ts'),
  replacement: line % 2 === 0 ? 'true' : 'false',
  location: { start: { line, column: 3 }, end: { line, column: 9 } },
}))

const drawn = (share: number, seed: number): readonly number[] =>
  mutants.filter((mutant) => isInSample({ share, seed }, mutant)).map(({ location }) => location.start.line)

test('a seed draws the same mutants again, and about the share that was asked for', () => {
  expect(drawn(0.15, 7)).toEqual(drawn(0.15, 7))
  expect(drawn(0.15, 7).length).toBeGreaterThan(240)
  expect(drawn(0.15, 7).length).toBeLessThan(360)
})

test('another seed draws others, and a share of 1 draws all', () => {
  const first = new Set(drawn(0.15, 7))
  const both = drawn(0.15, 8).filter((line) => first.has(line))
  expect(both.length).toBeLessThan(first.size / 2)
  expect(drawn(1, 7)).toHaveLength(mutants.length)
})

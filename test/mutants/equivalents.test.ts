// The list of equivalents cannot rot: what it speaks of is still in the source, each row has a reason, and the last audit met it.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { equivalents } from './equivalents.ts'
import { isKnown, readAudits } from './score.ts'

const read = (path: string): string => readFileSync(join(import.meta.dirname, '../..', path), 'utf8')

test.each(equivalents)('$file: $from -> $to', ({ file, line, from, to, why }) => {
  const found = read(file)
    .split('\n')
    .filter((each) => each.includes(line))
  expect(
    found.some((each) => each.includes(from)),
    `"${from}" stands in no line with "${line}"`,
  ).toBe(true)
  expect(to).not.toBe(from)
  expect(why.length).toBeGreaterThan(20)
})

test('each row is a mutant that the last audit of its file met, so that the list holds nothing for later', () => {
  const audits = readAudits()
  const idle = equivalents.filter((row) => {
    const audit = audits[row.file]
    // A sample may have passed it over.
    return audit && !audit.sample && !audit.alive.some((each) => isKnown(row, row.file, each))
  })
  expect(idle.map(({ file, from, to }) => `${file}: ${from} -> ${to}`)).toEqual([])
})

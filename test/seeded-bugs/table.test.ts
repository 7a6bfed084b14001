// The table of seeded bugs cannot rot: every row still changes today's source, and what must catch it is still there.

import { globSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { assertions } from '../../src/testing/history-checker/violation.ts'
import { describeCaughtBy } from './bug.ts'
import { root, seeded } from './copy.ts'
import { seededBugs } from './table.ts'

const read = (path: string): string => readFileSync(join(root, path), 'utf8')
const contracts = globSync(['src/testing/store-contract/*.ts', 'test/writes/contract-*.ts'], { cwd: root })
  .map(read)
  .join('\n')

test.each(seededBugs)('$id: its find is in the source once, and changes it', (bug) => {
  const sound = read(bug.file)
  expect(seeded(sound, bug)).not.toBe(sound)
})

test.each(seededBugs)('$id: what must catch it exists', ({ caughtBy }) => {
  if ('simulation' in caughtBy) return expect(assertions).toContain(caughtBy.simulation)
  // The name may be put together from parts, so only its ends are looked for; a name that fits no test is MISSED by the run.
  const ends = [caughtBy.test.slice(0, 9), caughtBy.test.slice(-9)]
  const text = read(caughtBy.file) + contracts
  expect(
    ends.some((end) => text.includes(end)),
    describeCaughtBy(caughtBy),
  ).toBe(true)
})

test('there are at least 260, each with a name of its own', () => {
  expect(seededBugs.length).toBeGreaterThanOrEqual(260)
  expect(new Set(seededBugs.map(({ id }) => id)).size).toBe(seededBugs.length)
})

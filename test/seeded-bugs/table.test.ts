// The table of seeded bugs cannot rot: every row still changes today's source, and what must catch it is still there.

import { globSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { assertions } from '../../src/testing/history-checker.ts'
import { messageAssertions } from '../messages/simulation/world.ts'
import { sessionAssertions } from '../sessions/simulation/world.ts'
import { describeCaughtBy } from './bug.ts'
import { root, seeded } from './copy.ts'
import { judge } from './hunt.ts'
import { isSlow, partOfDay, parts, rotate } from './rotation.ts'
import { seededBugs } from './table.ts'

const read = (path: string): string => readFileSync(join(root, path), 'utf8')
const contracts = globSync(
  [
    'src/testing/store-contract/*.ts',
    'test/writes/contract/*.ts',
    'test/{http,messages,sessions,webhooks}/*-cases.ts',
    'test/client/*-contract.ts',
  ],
  { cwd: root },
)
  .map(read)
  .join('\n')

test.each(seededBugs)('$id: its find is in the source once, and changes it', (bug) => {
  const sound = read(bug.file)
  expect(seeded(sound, bug)).not.toBe(sound)
})

test.each(seededBugs)('$id: what must catch it exists', ({ caughtBy }) => {
  if ('simulation' in caughtBy)
    return expect([...assertions, ...messageAssertions, ...sessionAssertions]).toContain(caughtBy.simulation)
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

test('three days in a row run every bug, each day names what it leaves out, and what is quick runs every day', () => {
  const days = Array.from({ length: parts }, (_, day) => rotate(seededBugs, partOfDay(day * 86_400_000)))
  expect(new Set(days.flatMap(({ bugs }) => bugs)).size).toBe(seededBugs.length)
  for (const { bugs, left } of days) {
    expect(bugs.length + left.length).toBe(seededBugs.length)
    expect(left.every(isSlow)).toBe(true)
    expect(left.length).toBeLessThanOrEqual(Math.ceil((seededBugs.filter(isSlow).length * 2) / 3))
  }
  expect(() => rotate(seededBugs, 3)).toThrow('expected --part to be a whole number from 0 to 2')
})

test('a test that ran out of time has not caught anything', () => {
  const answer = (message: string) => ({
    tests: [{ file: 'a', title: 'b', status: 'failed' as const, message }],
    said: '',
  })
  expect(judge(answer('Test timed out in 15000ms.\nmore'), undefined).is).toBe('missed')
  expect(judge(answer('expected 1 to be 2'), undefined)).toEqual({ is: 'caught', after: 'expected 1 to be 2' })
})

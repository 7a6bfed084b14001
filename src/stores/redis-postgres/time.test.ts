// How often the database is asked for its time.

import { expect, test } from 'vitest'
import type { Began, Transactional } from '../../core/store.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import { memoryStore } from '../memory.ts'
import { databaseTime } from './time.ts'

type Begin = Transactional<unknown>['begin']

test('while the database is being asked it is not asked again, and then not until its answer is old', async () => {
  const clock = manualClock()
  const answers: (() => void)[] = []
  const begin: Begin = async (key, { token }) => {
    await new Promise<void>((resolve) => answers.push(resolve))
    const claim = { key, token, attempt: 1, fence: 7_000_000 }
    const granted = { rollback: async () => {} } as NonNullable<Began<unknown>['granted']>
    return { verdict: { is: 'granted', how: 'fresh', claim }, granted }
  }
  const time = databaseTime(clock, { ...memoryStore({ clock }), begin })
  expect([time(), time(), time()]).toEqual([undefined, undefined, undefined])
  expect(answers).toHaveLength(1)
  answers[0]!()
  await clock.advance(1)
  expect(time()).toEqual({ earliestMs: 7_001, latestMs: 7_001 })
  expect(answers).toHaveLength(1)
  await clock.advance(60_000)
  time()
  time()
  expect(answers).toHaveLength(2)
})

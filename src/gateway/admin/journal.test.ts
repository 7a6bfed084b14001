import { expect, test } from 'vitest'
import { publish } from '../../core/events.ts'
import { hashKey } from '../../core/key.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import { startJournal } from './journal.ts'

const key = { scope: 'journal', id: 'k' }
const run = { attempt: 1, how: 'fresh', durationMs: 1 } as const

test('it remembers the last ten thousand events, counts all of them, and never holds a key', () => {
  const journal = startJournal(manualClock())
  publish('claimed', { scope: 'journal', id: 'first' }, run)
  for (let index = 0; index < 10_050; index++) publish('replayed', key, { attempt: 1, durationMs: 1 })
  expect(journal.seen).toBe(10_051)
  expect(journal.of(hashKey(key))).toHaveLength(10_000)
  expect(journal.of(hashKey({ scope: 'journal', id: 'first' }))).toEqual([])
  expect(journal.latest(2).map(({ number }) => number)).toEqual([10_051, 10_050])
  expect(journal.totals()).toMatchObject({ run: 1, absorbed: 10_050 })
  expect(JSON.stringify(journal.latest(1))).not.toContain('"k"')
  journal.close()
  publish('claimed', key, run)
  expect(journal.seen).toBe(10_051)
})

test('a duplicate is absorbed once: one that waited and was answered is counted by its answer', () => {
  const journal = startJournal(manualClock())
  publish('waited', key, { durationMs: 5, ended: 'verdict' })
  publish('replayed', key, { attempt: 1, durationMs: 5 })
  publish('waited', key, { durationMs: 5, ended: 'in-flight' })
  publish('doubted', key, { attempt: 1 })
  expect(journal.totals().absorbed).toBe(3)
  journal.close()
})

test('the plot has 120 slices up to now, the quiet ones too, and a clock that is set back loses nothing', async () => {
  const clock = manualClock()
  const journal = startJournal(clock)
  publish('claimed', key, run)
  await clock.advance(60_000)
  publish('replayed', key, { attempt: 1, durationMs: 1 })
  const slices = journal.slices()
  expect(slices).toHaveLength(120)
  expect(slices.at(-1)).toMatchObject({ run: 0, absorbed: 1 })
  expect(slices.at(-13)).toMatchObject({ run: 1, absorbed: 0 })
  clock.setNow(clock.now() - 600_000)
  publish('replayed', key, { attempt: 1, durationMs: 1 })
  expect(journal.slices().at(-1)).toMatchObject({ absorbed: 2 })
  await clock.advance(3_600_000 + 600_000)
  expect(journal.slices().every(({ run: ran, absorbed }) => ran + absorbed === 0)).toBe(true)
  journal.close()
})

import { expect, test } from 'vitest'
import type { Entry } from '../../core/store.ts'
import { timelineOf } from './timeline.ts'
import type { SeenEvent } from './journal.ts'

const key = { scope: 'shop', id: 'k' }
const entry: Entry = {
  key,
  state: 'settled',
  attempt: 2,
  fence: 7,
  fingerprint: 'f',
  version: 0,
  firstClaimedAtMs: 1_000,
  leaseUntilMs: 2_000,
  expiresAtMs: 3_000,
  forgottenAtMs: 4_000,
}
const whats = (...given: Parameters<typeof timelineOf>): string[] => timelineOf(...given).map(({ what }) => what)

test('what no event of this process has told is told by the entry', () => {
  expect(whats(entry, [], [])).toEqual(['first claimed', 'settled', 'expires', 'forgotten'])
  expect(whats({ ...entry, state: 'running' }, [], [])).toEqual(['first claimed', 'lease ends', 'forgotten'])
  expect(whats({ ...entry, state: 'abandoned' }, [], [])).toEqual([
    'first claimed',
    'lease over',
    'expires',
    'forgotten',
  ])
  expect(whats({ ...entry, state: 'open' }, [], [])).toEqual(['first claimed', 'released', 'expires', 'forgotten'])
  expect(whats({ ...entry, state: 'tombstone' }, [], [])).toEqual(['first claimed', 'expired', 'forgotten'])
})

test('events, manual changes and the entry are one story, in the order of time, each told once', () => {
  const seen: SeenEvent[] = [
    { number: 1, atMs: 1_000, name: 'claimed', event: { attempt: 1, how: 'fresh', durationMs: 1 } },
    { number: 2, atMs: 1_500, name: 'mended', event: { action: 'release' } },
    { number: 3, atMs: 1_600, name: 'claimed', event: { attempt: 2, how: 'taken-over', durationMs: 1 } },
    { number: 4, atMs: 1_600, name: 'taken-over', event: { attempt: 2 } },
    { number: 5, atMs: 2_000, name: 'settled', event: { attempt: 2, kind: 'value', durationMs: 1 } },
    { number: 6, atMs: 2_500, name: 'replayed', event: { attempt: 2, durationMs: 0.2 } },
  ]
  const audit = [{ key, atMs: 1_500, action: 'release', reason: 'stuck', before: 'running' }] as const
  expect(whats(entry, audit, seen)).toEqual([
    'claimed',
    'released manually',
    'taken over',
    'settled',
    'replayed',
    'expires',
    'forgotten',
  ])
})

test('a key that is gone still has what was seen and what people did', () => {
  const audit = [{ key, atMs: 1_500, action: 'forget', reason: 'a test', before: 'settled' }] as const
  expect(timelineOf(undefined, audit, [])).toMatchObject([{ what: 'forgotten manually', witness: 'audit' }])
})

test('a message that was redriven is told by what became of it and by who asked', () => {
  const seen: SeenEvent[] = [
    { number: 1, atMs: 1_000, name: 'message', event: { is: 'refused', code: 'PARKED' } },
    { number: 2, atMs: 1_500, name: 'mended', event: { action: 'redrive' } },
  ]
  const audit = [
    { key, atMs: 1_500, action: 'forget', reason: 'redrive: a test', before: 'running' },
    { key, atMs: 1_600, action: 'forget', reason: 'discard: a test', before: 'running' },
  ] as const
  expect(timelineOf(undefined, audit, seen)).toMatchObject([
    { what: 'message', detail: 'The message was refused (PARKED). Nothing ran.' },
    { what: 'redriven manually', detail: 'It was parked. Reason: redrive: a test' },
    { what: 'discarded manually', detail: 'It was parked. Reason: discard: a test' },
  ])
})

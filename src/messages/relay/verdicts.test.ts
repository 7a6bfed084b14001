import { expect, test } from 'vitest'
import { systemRandom } from '../../core/clock.ts'
import { FinalError } from '../../core/errors.ts'
import { NotSentError } from '../broker.ts'
import type { Published } from '../broker.ts'
import type { RelayRow } from './source.ts'
import { isOutage, judge } from './verdicts.ts'
import type { FailurePolicy } from './verdicts.ts'

let position = 0
const row = (key: string | undefined, tries = 0): RelayRow => {
  position++
  const place = { lane: 1, position, id: `row-${position}`, topic: 'orders', key }
  return { ...place, body: new Uint8Array(), headers: {}, ageMs: 0, tries }
}
const refused = new Error('refused')
const judged = (rows: readonly RelayRow[], published: readonly Published[], policy: FailurePolicy = 'block') =>
  judge(rows, published, policy, systemRandom)

test('after the first failure of a key nothing of it counts as sent, whatever the publisher says', () => {
  const rows = [row('a'), row('b'), row('a'), row('b')]
  const { sent, held } = judged(rows, [refused, undefined, undefined, undefined])
  expect(sent).toEqual([rows[1], rows[3]])
  expect(held).toMatchObject([
    { row: rows[0], state: 'waiting', tries: 1, reason: 'Error: refused', dueInMs: expect.any(Number) as number },
    { row: rows[2], state: 'waiting', tries: 0, reason: undefined, dueInMs: 0 },
  ])
})

test('rows without a key do not wait for each other', () => {
  const rows = [row(undefined), row(undefined)]
  expect(judged(rows, [refused, undefined])).toMatchObject({ sent: [rows[1]], held: [{ row: rows[0] }] })
})

test('the pause grows with the tries, up to five minutes', () => {
  const pause = (tries: number): number => judged([row('a', tries)], [refused]).held[0]!.dueInMs!
  expect(pause(0)).toBeLessThanOrEqual(1_000)
  expect(pause(4)).toBeGreaterThanOrEqual(8_000)
  expect(pause(1_000)).toBeLessThanOrEqual(300_000)
})

test.each<[FailurePolicy, number, string]>([
  ['block', 1_000, 'waiting'],
  [{ skipAfter: 3 }, 1, 'waiting'],
  [{ skipAfter: 3 }, 2, 'dead'],
  [{ parkAfter: 3 }, 1, 'waiting'],
  [{ parkAfter: 3 }, 2, 'parked'],
  ['park', 8, 'waiting'],
  ['park', 9, 'parked'],
])('with %j a row that has failed %i times before is %s', (policy, tries, state) => {
  const { held } = judged([row('a', tries), row('a')], [refused, new NotSentError('behind')], policy)
  expect(held).toMatchObject([{ state }, { state: 'waiting', tries: 0 }])
})

test('a FinalError ends the tries at once, except where rows are never given up', () => {
  const final = new FinalError('too large')
  expect(judged([row('a')], [final], { skipAfter: 9 }).held).toMatchObject([{ state: 'dead' }])
  expect(judged([row('a')], [final], 'block').held).toMatchObject([{ state: 'waiting' }])
})

test('an outage is when everything of several keys failed and nothing else was confirmed', () => {
  const rows = [row('a'), row('b')]
  expect(isOutage(rows, [refused, refused], false)).toBe(true)
  expect(isOutage(rows, [refused, refused], true)).toBe(false)
  expect(isOutage(rows, [refused, undefined], false)).toBe(false)
  expect(isOutage([row('a'), row('a')], [refused, new NotSentError('behind')], false)).toBe(false)
  expect(isOutage(rows, [refused, new FinalError('too large')], false)).toBe(false)
})

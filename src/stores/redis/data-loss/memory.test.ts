// What an instance makes of replies that come in another order than their questions were sent in.

import { expect, test } from 'vitest'
import { systemClock } from '../../../core/clock.ts'
import { headingPlaces, registerPlaces, writerOf } from '../places.ts'
import { registerMemory } from './memory.ts'

const headingText = writerOf(headingPlaces)
const lineageOf = (letter: string): string => letter.repeat(registerPlaces.lineage.width)
const heading = (letter: string, mark: number, evidence: string): string =>
  headingText({ now: 1, lineage: lineageOf(letter), mark, evidence })

test('a reply to a question of an instance that knew nothing does not make it forget the dataset that it heard of since', () => {
  const memory = registerMemory({ register: 'register', clock: systemClock, quarantines: true })
  const [first, second] = [memory.known(), memory.known()]
  memory.learn(first, heading('a', 1, 'none'))
  // Redis was emptied in between, and another instance has begun anew: this reply cannot say so.
  expect(memory.learn(second, heading('b', 0, 'none'))).toBeUndefined()
  expect(memory.known()).toEqual({ lineage: lineageOf('a'), mark: 1 })
  expect(memory.learn(memory.known(), heading('b', 0, 'replaced'))).toMatchObject({ evidence: 'replaced' })
  expect(memory.known()).toEqual({ lineage: lineageOf('b'), mark: 0 })
})

test('a reply that was under way while another told of a new dataset is no news', () => {
  const memory = registerMemory({ register: 'register', clock: systemClock, quarantines: true })
  memory.learn(memory.known(), heading('a', 1, 'none'))
  const late = memory.known()
  memory.learn(memory.known(), heading('b', 0, 'emptied'))
  expect(memory.learn(late, heading('a', 2, 'none'))).toBeUndefined()
  expect(memory.known()).toEqual({ lineage: lineageOf('b'), mark: 0 })
})

test('a late reply that acknowledges a write of a dataset that is gone by then makes the next question ask for it', () => {
  const memory = registerMemory({ register: 'register', clock: systemClock, quarantines: true })
  const [first, second] = [memory.known(), memory.known()]
  // The first question was granted before Redis was emptied. The reply to the second one comes before its reply.
  memory.learn(second, heading('b', 0, 'none'))
  expect(memory.learn(first, heading('a', 1, 'none'))).toBeUndefined()
  expect(memory.known()).toEqual({ lineage: lineageOf('a'), mark: 1 })
  expect(memory.learn(memory.known(), heading('b', 0, 'replaced'))).toMatchObject({ evidence: 'replaced' })
  expect(memory.known()).toEqual({ lineage: lineageOf('b'), mark: 0 })
})

test('a late reply that acknowledges no write tells of nothing that is lost', () => {
  const memory = registerMemory({ register: 'register', clock: systemClock, quarantines: true })
  const [first, second] = [memory.known(), memory.known()]
  memory.learn(second, heading('b', 1, 'none'))
  memory.learn(first, heading('a', 0, 'none'))
  expect(memory.known()).toEqual({ lineage: lineageOf('b'), mark: 1 })
})

test('a mark that went back under native writes stays too low for every script, however often they count in it', () => {
  const memory = registerMemory({ register: 'register', clock: systemClock, quarantines: true })
  memory.learn(memory.known(), heading('a', 5, 'none'))
  const [first, second] = [memory.known(), memory.known()]
  // One write is lost. The first count hides that, and the second, which was sent before its reply, is above all that was known.
  expect(memory.count(first, 5)).toBe(false)
  expect(memory.count(second, 6)).toBe(false)
  expect(memory.known().mark).toBeGreaterThan(1_000_000)
  expect(memory.learn(memory.known(), heading('b', 6, 'went-back'))).toMatchObject({ evidence: 'went-back' })
  expect(memory.known()).toEqual({ lineage: lineageOf('b'), mark: 6 })
  expect(memory.count(memory.known(), 7)).toBe(true)
  // Of a dataset that is no longer the known one it says nothing.
  expect(memory.count(first, 9)).toBe(false)
  expect(memory.known()).toEqual({ lineage: lineageOf('b'), mark: 7 })
})

test('a late reply of a dataset that is as old as the one of today is no news', () => {
  const memory = registerMemory({ register: 'register', clock: systemClock, quarantines: true })
  const [first, second] = [memory.known(), memory.known()]
  const bornTogether = (letter: string, mark: number): string =>
    headingText({ now: 1, lineage: `${letter}-1`.padEnd(registerPlaces.lineage.width, '0'), mark, evidence: 'none' })
  memory.learn(second, bornTogether('b', 1))
  memory.learn(first, bornTogether('a', 1))
  expect(memory.known().lineage).toMatch(/^b/)
})

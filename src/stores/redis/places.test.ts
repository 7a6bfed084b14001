// Texts of fixed places, as scripts and native commands read them.

import { expect, test } from 'vitest'
import { fitted, writerOf } from './places.ts'

const place = { from: 1, to: 4, width: 4 }

test.each([
  [7, '0007'],
  [1234, '1234'],
  ['on', 'on  '],
  ['four', 'four'],
  ['', '    '],
] as const)('%j fills its place', (value, text) => {
  expect(fitted(value, place)).toBe(text)
})

// What follows would be read one place further on, and be another call.
test.each([12_345, 'fives', 'é', 'fouré', 'éé'])('%j does not fit, and nothing is written', (value) => {
  expect(() => fitted(value, place)).toThrow('Bug! Expected 4 characters of ASCII')
})

test('fields at the end may be left out, and what follows a field that is left out is', () => {
  const write = writerOf({ first: place, second: place, third: place })
  expect(write({ first: 1, second: 'on', third: 3 })).toBe('0001 on   0003')
  expect(write({ first: 1 })).toBe('0001')
  expect(write({ first: 1, third: 3 })).toBe('0001')
})

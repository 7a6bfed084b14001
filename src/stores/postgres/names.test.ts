// Names in the database: PostgreSQL cuts a long one off without an error, and two functions would be one.

import { expect, test } from 'vitest'
import { functionName, nameOf, qualified } from './names.ts'

const table = (length: number, last = 'x'): string => 't'.repeat(length - 1) + last

test('what belongs to a table is named after it, in its schema', () => {
  expect(qualified({ table: 'onceonly', schema: undefined })).toBe('"onceonly"')
  expect(qualified({ table: 'onceonly', schema: 'tenant' }, '_audit')).toBe('"tenant"."onceonly_audit"')
  expect(functionName({ table: 'onceonly', schema: undefined }, 'claim')).toMatch(/^"onceonly_claim_v\d+"$/)
})

test.each([56, 57])('a name of up to 63 bytes stays as it is: a table of %i', (length) => {
  expect(nameOf({ table: table(length), schema: undefined }, '_audit')).toBe(`${table(length)}_audit`)
})

test('a longer one has exactly 63 bytes, begins with the table and ends with what it is', () => {
  const name = nameOf({ table: table(58), schema: undefined }, '_audit')
  expect(name).toMatch(/^t{48}_[0-9a-f]{8}_audit$/)
  expect(name).toHaveLength(63)
})

test('and two tables that differ only at their end never share one', () => {
  const names = ['a', 'b'].map((last) => nameOf({ table: table(63, last), schema: undefined }, '_writes_v3'))
  expect(new Set(names).size).toBe(2)
})

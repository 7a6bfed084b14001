import fc from 'fast-check'
import { expect, test } from 'vitest'
import { manualClock } from '../testing/manual-clock.ts'
import { checkKey, deriveKey, hashKey, key, keyOf, newId } from './key.ts'
import { systemRandom } from './clock.ts'

const uuid = (version: number): RegExp =>
  new RegExp(`^[0-9a-f]{8}-[0-9a-f]{4}-${version}[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

test('a key keeps every byte: nothing is trimmed, folded or truncated', () => {
  for (const id of [' a ', 'A', 'a', 'é', 'e\u0301', "'; drop table--", '😀', 'a'.repeat(255)]) {
    expect(key('scope', id)).toEqual({ scope: 'scope', id })
  }
})

test.each(['', '\u0000', 'a\u0085', 'a\u007f', '\udc00', 'a'.repeat(256), 'ü'.repeat(128), 5, null, undefined, {}])(
  'neither scope nor id can be %j',
  (part) => {
    expect(() => key(part as string, 'id')).toThrow(
      expect.objectContaining({ code: 'INVALID_ARGUMENT', executed: 'no' }),
    )
    expect(() => key('scope', part as string)).toThrow(expect.objectContaining({ code: 'INVALID_ARGUMENT' }))
  },
)

test('a key cannot be changed afterwards', () => {
  expect(() => ((key('a', 'b') as { id: string }).id = 'c')).toThrow(TypeError)
})

test('keyOf is deterministic, and different parts are different keys', () => {
  expect(keyOf('payments', ['order', 42])).toEqual(keyOf('payments', ['order', 42]))
  expect(keyOf('payments', ['order', 42]).id).toMatch(uuid(8))
  const parts = fc.array(
    fc.oneof(fc.string({ unit: 'binary' }), fc.double({ noNaN: true, noDefaultInfinity: true }), fc.boolean()),
    { minLength: 1 },
  )
  const well = parts.filter((each) => each.every((part) => typeof part !== 'string' || part.isWellFormed()))
  fc.assert(
    fc.property(well, well, (a, b) => {
      const same = a.length === b.length && a.every((part, index) => part === b[index])
      expect(keyOf('s', a).id === keyOf('s', b).id).toBe(same)
    }),
  )
})

test('parts of a key do not run into each other, and types are told apart', () => {
  const ids = [['a', 'bc'], ['ab', 'c'], ['abc'], ['1'], [1], ['true'], [true], ['', 'abc'], ['abc', '']].map(
    (parts) => keyOf('s', parts).id,
  )
  expect(new Set(ids).size).toBe(ids.length)
})

test.each([[[]], ['abc'], [[{}]], [[null]], [[Number.NaN]], [['\ud800']], [undefined]])('keyOf refuses %j', (parts) => {
  expect(() => keyOf('s', parts as never)).toThrow(expect.objectContaining({ code: 'INVALID_ARGUMENT' }))
})

test('a derived key depends on scope, id and name', () => {
  const derived = [
    deriveKey(key('a', 'b'), 'c'),
    deriveKey(key('a', 'bc'), 'c'),
    deriveKey(key('ab', 'c'), 'c'),
    deriveKey(key('a', 'b'), 'd'),
  ]
  expect(new Set(derived).size).toBe(4)
  expect(derived[0]).toHaveLength(36)
  expect(derived[0]).toBe('a4fcf8d9-feaf-8d46-afbb-0bbf91bf76ba') // it is in other systems' databases: it may never change
})

test('a new id is a UUIDv7 that sorts by time', async () => {
  const clock = manualClock()
  const ids: string[] = []
  for (let index = 0; index < 50; index++) {
    ids.push(newId(clock, systemRandom))
    await clock.advance(1)
  }
  expect(ids.every((id) => uuid(7).test(id))).toBe(true)
  expect([...ids].sort()).toEqual(ids)
  expect(Number.parseInt(ids[0]!.replace('-', '').slice(0, 12), 16)).toBe(1_700_000_000_000)
  expect(newId()).toMatch(uuid(7))
})

test('a hashed key shows neither scope nor id', () => {
  expect(hashKey(key('payments', 'secret'))).toMatch(/^[0-9a-f]{32}$/)
  expect(hashKey(key('payments', 'secret'))).not.toBe(hashKey(key('payments', 'secret2')))
})

test('what is derived from a key is the same in every version: other systems have it stored', () => {
  const order = key('payments', 'order-42')
  expect(keyOf('payments', ['order-42', 'refund', 2, true]).id).toBe('a5dde85b-9902-8bdb-baae-0b74b71f197f')
  expect(deriveKey(order, 'charge')).toBe('5f312b5e-3425-87d2-a175-a9b135087242')
  expect(hashKey(order)).toBe('76374bf4e90962668e587680d206c6e9')
})

test.each<[refused: string, call: () => unknown]>([
  ['expected scope to be a string, got null', () => key(null as never, 'id')],
  ['expected id to be a string, got an array', () => key('scope', [] as never)],
  ['expected id to be a string, got number', () => key('scope', 5 as never)],
  ['expected the name of a derived key to be 1 to 255 bytes of UTF-8, got 0', () => deriveKey(key('a', 'b'), '')],
  ['expected part 1 of a key to be well-formed Unicode', () => keyOf('s', ['a', '\ud800'])],
  ['expected a key with scope and id, got null', () => checkKey(null as never)],
])('the refusal says what was expected and what came: %s', (message, call) => {
  expect(call).toThrow(expect.objectContaining({ code: 'INVALID_ARGUMENT', message: expect.stringContaining(message) }))
})

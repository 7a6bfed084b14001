// Whatever comes from outside becomes digits and hexadecimal in a statement, or is refused.

import { expect, test } from 'vitest'
import { key } from '../../core/key.ts'
import {
  claimLiterals,
  fingerprint,
  hex,
  integer,
  keyLiterals,
  keyPart,
  quoted,
  recordName,
  token,
  word,
} from './literals.ts'

const uuid = '01234567-89ab-cdef-0123-456789abcdef'
const refused = (message: string) => expect.objectContaining({ code: 'INVALID_ARGUMENT', message })

test('a key, a claim and a name of a record are hexadecimal, whatever is in them', () => {
  expect(keyLiterals(key("o'clock", 'é'))).toEqual(["x'6f27636c6f636b'", "x'c3a9'"])
  expect(claimLiterals({ key: key('a', 'b'), token: uuid, attempt: 9, fence: 7 })).toEqual([
    "x'61'",
    "x'62'",
    `'${uuid}'`,
    '7',
  ])
  expect(recordName('\u0000')).toBe("x'00'")
})

test('bytes are those of the view, not of what it looks at', () => {
  expect(hex(new Uint8Array([1, 2, 3, 4]).subarray(1, 3))).toBe("x'0203'")
})

test('what would be cut off is refused, counted in bytes', () => {
  expect(keyPart('é'.repeat(127))).toHaveLength(3 + 2 * 254)
  expect(keyPart('a'.repeat(255))).toHaveLength(3 + 2 * 255)
  expect(() => keyPart('é'.repeat(128))).toThrow(
    refused('expected scope and id of at most 255 bytes of UTF-8, got 256'),
  )
  expect(() => recordName('a'.repeat(256))).toThrow(
    refused('expected the name of a record of at most 255 bytes of UTF-8, got 256'),
  )
  expect(fingerprint('f'.repeat(64))).toHaveLength(3 + 2 * 64)
  expect(() => fingerprint('é'.repeat(33))).toThrow(
    refused('expected a fingerprint of at most 64 bytes of UTF-8, got 66 bytes'),
  )
})

test.each([0.5, Number.NaN, Infinity, 2 ** 53, '1; drop table' as unknown as number])('%s is no integer', (value) => {
  expect(() => integer('fence', value)).toThrow(refused(`expected fence to be an integer, got ${value}`))
})

test('an integer is its digits', () => {
  expect(integer('fence', 2 ** 53 - 1)).toBe('9007199254740991')
  expect(integer('fence', -1)).toBe('-1')
})

test.each(['', uuid.toUpperCase(), `x${uuid}`, `${uuid}x`, `${uuid.slice(0, -1)}'`])('%j is no token', (text) => {
  expect(() => token(text)).toThrow(refused(`expected a token to be a UUID in lower case, got ${JSON.stringify(text)}`))
})

test('a word of ours has no quote in it', () => {
  expect(word('begin_step2')).toBe("'begin_step2'")
  for (const text of ['', "o'clock", 'Open', 'a b', '-a', 'a-'])
    expect(() => word(text)).toThrow(refused(`expected a word of our own, got ${JSON.stringify(text)}`))
  expect(quoted("select 'a', 'b'")).toBe("'select ''a'', ''b'''")
})

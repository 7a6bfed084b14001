import { isDeepStrictEqual } from 'node:util'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { readKey } from './key-header.ts'

const lenient = { parse: 'lenient', keyFormat: 'any', keyLengthMax: 255 } as const
const strict = { ...lenient, parse: 'strict' } as const

const quoted = (value: string): string => `"${value.replace(/["\\]/g, '\\$&')}"`
const printable = fc.string({
  unit: fc.integer({ min: 0x20, max: 0x7e }).map((code) => String.fromCharCode(code)),
  minLength: 1,
  maxLength: 255,
})

describe('the quoted form', () => {
  test('every printable string is read back as it was', () => {
    fc.assert(fc.property(printable, (value) => isDeepStrictEqual(readKey([quoted(value)], strict), { key: value })))
  })

  test.each(['"a";x', '"a"; x=1;y="b;c";z=?1', '"a";d=@1659578233;e=:YWJj:;f=%"f%c3%bc";g=tok/en;h=-1.5'])(
    'parameters are no part of the key: %s',
    (field) => expect(readKey([field], strict)).toEqual({ key: 'a' }),
  )

  test.each([
    '"',
    '"a',
    'a"',
    '"a\\"',
    '"a\\n"',
    '"a"b',
    '"a" b',
    '"a", "b"',
    '"a";',
    '"a";X=1',
    '"a";x=',
    '"é"',
    '"a\tb"',
    "'a'\"",
  ])('a malformed string is refused: %s', (field) => expect(readKey([field], strict)).toHaveProperty('refused'))
})

describe('the bare form', () => {
  test.each([
    '8e03978e-40d5-43e8-bc93-6894a57f9324',
    'a+b/c0Z9=',
    'order:42|v1=retry.2~x',
    '__proto__',
    "'--",
    '{x}',
    '*',
  ])('is taken as it is: %s', (field) => {
    expect(readKey([field], lenient)).toEqual({ key: field })
    expect(readKey([`\t ${field} \t`], lenient)).toEqual({ key: field })
    expect(readKey([quoted(field)], lenient)).toEqual({ key: field })
    expect(readKey([field], strict)).toHaveProperty('refused')
  })

  test.each(['a b', 'a,b', 'a;b', 'a\\b', 'a"b', 'é', 'a\u007f', '\u0000'])('is refused: %j', (field) => {
    expect(readKey([field], lenient)).toHaveProperty('refused')
  })
})

test('no line, an empty one and more than one are never a key', () => {
  for (const lines of [[], [''], ['  '], ['""'], ['a', 'a'], ['"a"', '"b"']])
    expect(readKey(lines, lenient)).toHaveProperty('refused')
})

test('the length is that of the key, not of the field', () => {
  const rules = { ...lenient, keyLengthMax: 3 }
  expect(readKey(['"\\"\\"\\""'], rules)).toEqual({ key: '"""' })
  expect(readKey(['abcd'], rules)).toHaveProperty('refused')
})

test('a published format is enforced', () => {
  const uuid = { ...lenient, keyFormat: 'uuid' } as const
  expect(readKey(['8E03978e-40d5-43e8-bc93-6894a57f9324'], uuid)).toEqual({
    key: '8E03978e-40d5-43e8-bc93-6894a57f9324',
  })
  expect(readKey(['8e03978e-40d5-43e8-bc93-6894a57f9324x'], uuid)).toHaveProperty('refused')
  const own = { ...lenient, keyFormat: (key: string) => key.startsWith('ord_') }
  expect(readKey(['ord_1'], own)).toEqual({ key: 'ord_1' })
  expect(readKey(['1'], own)).toHaveProperty('refused')
})

test('any field is read or refused, in time that grows with its length only', () => {
  fc.assert(fc.property(fc.string({ unit: 'binary' }), (field) => void readKey([field], lenient)))
  const hostile = [
    '"',
    '"a"' + ';a'.repeat(50_000) + '!',
    '"' + '\\"'.repeat(50_000),
    'a'.repeat(100_000) + ' ',
    '"a";a="' + '\\\\'.repeat(50_000),
  ]
  for (const field of hostile) expect(readKey([field], lenient)).toHaveProperty('refused')
})

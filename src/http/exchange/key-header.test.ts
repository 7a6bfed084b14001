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

test('the reason of a refusal is said', () => {
  const refusal = (lines: string[], rules: Parameters<typeof readKey>[1] = lenient): unknown => readKey(lines, rules)
  expect(refusal([])).toEqual({ refused: 'the header was sent more than once' })
  expect(refusal(['a', 'a'])).toEqual({ refused: 'the header was sent more than once' })
  for (const empty of ['', ' \t', '""', ' "";a ']) expect(refusal([empty]), empty).toEqual({ refused: 'it is empty' })
  expect(refusal(['a b'])).toEqual({
    refused: 'it is neither a string in double quotes nor visible ASCII without " , ; and \\',
  })
  expect(refusal(['a'], strict)).toEqual({ refused: 'it is not a string in double quotes' })
  expect(refusal(['abcd'], { ...lenient, keyLengthMax: 3 })).toEqual({ refused: 'it is longer than 3 characters' })
  expect(refusal(['abc'], { ...lenient, keyLengthMax: 3 })).toEqual({ key: 'abc' })
  expect(refusal(['a'], { ...lenient, keyFormat: 'uuid' })).toEqual({ refused: 'it is not a UUID' })
  expect(refusal(['a'], { ...lenient, keyFormat: () => false })).toEqual({
    refused: 'it does not have the format that this server asks for',
  })
})

test.each([
  '"a\u001fb"',
  '"a\u007fb"',
  '"a\\',
  '"\\a"',
  '"a";x=1.',
  '"a";x=1.1234',
  '"a";x=1234567890123456',
  '"a";x=?2',
  '"a";x=%"%G0"',
])('what no structured field has is refused: %j', (field) => expect(readKey([field], strict)).toHaveProperty('refused'))

test('the first and the last printable character are in a key, and blanks around it are not', () => {
  expect(readKey(['" ~"'], strict)).toEqual({ key: ' ~' })
  expect(readKey([' \t"a"\t '], strict)).toEqual({ key: 'a' })
  expect(readKey(['!~'], lenient)).toEqual({ key: '!~' })
  expect(readKey(['\u000ba'], lenient)).toHaveProperty('refused')
  expect(readKey(['a'], lenient)).toEqual({ key: 'a' })
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
  for (const near of [
    '8e03978e-40d5-43e8-bc93-6894a57f9324x',
    'x8e03978e-40d5-43e8-bc93-6894a57f9324',
    '8e03978e40d543e8bc936894a57f9324',
  ])
    expect(readKey([near], uuid)).toHaveProperty('refused')
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

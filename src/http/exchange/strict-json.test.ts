// Which JSON may stand for its value: what every parser reads alike.

import { expect, test } from 'vitest'
import { parseStrictJson } from './strict-json.ts'

const parse = (text: string): unknown => parseStrictJson(Buffer.from(text))

test.each([
  'null',
  'true',
  '"a\\"b\\\\"',
  '[]',
  '{}',
  ' [1, "2", {"a" : [ ]}]\n',
  // A name may come again in another object.
  '{"a":{"a":1},"b":{"a":1}}',
  '[{"a":1},{"a":1}]',
  '{"a":[{"a":1},{"a":1}],"b":{}}',
  '{"a":"a","b":"a"}',
  '{"a\\"":1,"a":2}',
  '{"a":":","b":"\\":"}',
  '["a","a"]',
])('%s is taken by its value', (text) => {
  expect(parse(text)).toEqual({ value: JSON.parse(text) as unknown })
})

test.each([
  '0',
  '-0',
  '0.000',
  '0e5',
  '-7',
  '1.0',
  '1.50',
  '10e-1',
  '1E+2',
  '0.1',
  '-1.25e3',
  '120e1',
  '999999999999999',
  '-99999999999999',
  '1234567890123456',
  '-1234567890123456',
  '9007199254740992',
  '100000000000000000000',
  '1e21',
  '1.5e300',
  '0.0000001',
  '5e-324',
])('the number %s is the same after a trip through a double', (text) => {
  expect(parse(`[${text}]`)).toEqual({ value: [Number(text)] })
})

test.each([
  '9007199254740993',
  '-9007199254740993',
  '123456789012345678',
  '0.1000000000000000055',
  '1.00000000000000001',
  '1e400',
  '-1e400',
  '1e-400',
])('the number %s is not, so its text is not taken by its value', (text) => {
  expect(parse(text)).toBeUndefined()
  expect(parse(`{"a":[1,${text}]}`)).toBeUndefined()
})

test.each([
  '{"a":1,"a":1}',
  '{"a":1,"b":{"a":2},"a":3}',
  '{"a":1,"b":[{}],"a":3}',
  '[0,{"a" :1,"a"\n:2}]',
  '{"":1,"":2}',
  '{"a\\"":1,"a\\"":2}',
])('a member that comes twice is not taken by its value: %s', (text) => {
  expect(parse(text)).toBeUndefined()
})

test.each(['', '{', '[1,]', '01', '\ufeff{}', 'undefined'])('no JSON: %j', (text) => {
  expect(parse(text)).toBeUndefined()
})

test('bytes that are not UTF-8 are no JSON', () => {
  expect(parseStrictJson(Buffer.from('"\u00ff"', 'latin1'))).toBeUndefined()
})

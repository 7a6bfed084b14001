import fc from 'fast-check'
import { expect, test } from 'vitest'
import { canonicalJson } from './canonical-json.ts'
import { fingerprint } from './fingerprint.ts'

// From RFC 8785, appendix B and section 3.2.3.
test('canonical JSON is that of RFC 8785', () => {
  expect(canonicalJson([56, 1e30, 4.5, 2e-3, 1e-27, -0, 333333333.3333333])).toBe(
    '[56,1e+30,4.5,0.002,1e-27,0,333333333.3333333]',
  )
  expect(
    canonicalJson({ '\u20ac': 1, '\r': 2, '\ufb33': 3, '1': 4, '\ud83d\ude00': 5, '\u0080': 6, '\u00f6': 7 }),
  ).toBe('{"\\r":2,"1":4,"\u0080":6,"\u00f6":7,"\u20ac":1,"\ud83d\ude00":5,"\ufb33":3}')
  expect(canonicalJson('\u20ac$\u000F\nA\'\u0042\u0022\u005c\\"/')).toBe('"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"')
})

test('the order of members does not matter, their values do', () => {
  expect(fingerprint({ a: 1, b: { c: 2, d: 3 } })).toBe(fingerprint({ b: { d: 3, c: 2 }, a: 1 }))
  expect(fingerprint({ a: 1 })).not.toBe(fingerprint({ a: 2 }))
  expect(fingerprint({ a: 1 })).not.toBe(fingerprint({ A: 1 }))
  expect(fingerprint([1, 2])).not.toBe(fingerprint([2, 1]))
})

test('equal JSON values have equal fingerprints, others do not', () => {
  fc.assert(
    fc.property(fc.jsonValue(), fc.jsonValue(), (a, b) => {
      expect(fingerprint(structuredClone(a))).toBe(fingerprint(a))
      expect(fingerprint(a) === fingerprint(b)).toBe(canonicalJson(a) === canonicalJson(b))
      expect(JSON.parse(canonicalJson(a))).toEqual(JSON.parse(JSON.stringify(a)))
    }),
  )
})

test('bytes, text, JSON and nothing never meet', () => {
  const seen = [
    fingerprint('1'),
    fingerprint(1),
    fingerprint(Buffer.from('1')),
    fingerprint('"1"'),
    fingerprint(undefined),
    fingerprint(null),
    fingerprint(''),
  ]
  expect(new Set(seen).size).toBe(seen.length)
  expect(seen.every((each) => /^[\w-]{43}$/.test(each))).toBe(true)
})

test('what JSON would silently change is refused', () => {
  class Hidden {
    readonly #secret = 1
    peek = (): number => this.#secret
  }
  for (const value of [
    1n,
    Number.NaN,
    Infinity,
    () => {},
    Symbol('x'),
    new Map(),
    new Set(),
    new Hidden(),
    [undefined],
    { a: '\ud800' },
    '\ud800',
    /x/,
  ]) {
    expect(() => fingerprint(value)).toThrow(expect.objectContaining({ code: 'INVALID_ARGUMENT' }))
  }
})

test('own members only: __proto__ is a name like any other', () => {
  expect(canonicalJson(JSON.parse('{"__proto__":{"a":1},"b":2}'))).toBe('{"__proto__":{"a":1},"b":2}')
})

test('a hostile depth is an error, not a stack overflow', () => {
  let deep: unknown = 1
  for (let level = 0; level < 100_000; level++) deep = [deep]
  expect(() => fingerprint(deep)).toThrow(/deeper than 500/)
})

test('a shared object is not a cycle', () => {
  const shared = { a: 1 }
  expect(canonicalJson([shared, shared])).toBe('[{"a":1},{"a":1}]')
})

test('an object whose prototype has no constructor is refused like every other that is not plain', () => {
  expect(() => fingerprint(Object.create(Object.create(null) as object))).toThrow(/not a plain object/)
})

test('a fingerprint is the same in every version: entries have it stored', () => {
  expect(fingerprint('a')).toBe('Z7VYw38N10zgYCBS6RUmYfBECNdY576d2kHyAdwLbGc')
  expect(fingerprint(Buffer.from('a'))).toBe('6UuN5k7TYWkwIdN7KPpZsYYOor3QvJ3juXqhLL759-4')
  expect(fingerprint({ b: 1, a: [null, true, 'x'] })).toBe('2X0eJnM9hJS8EtqPC-fGS8dirnkdJIAWzb70dp63gEA')
  expect(fingerprint(undefined)).toBe('_PM9--E8I1S_DhsGP5-0InR6Rs7gC3QgvO_yuBRXs0U')
  expect(fingerprint(null)).toBe('r40XMYlPTIDbCOTk0MNw1yBnnmF14WptG7t-SOcwEJg')
})

const nested = (levels: number): unknown => Array.from({ length: levels }).reduce<unknown>((inner) => ({ inner }), 1)

test('canonical JSON takes what JSON would: dates by their own form, no undefined members, objects without a prototype', () => {
  expect(canonicalJson({ at: new Date(0) })).toBe('{"at":"1970-01-01T00:00:00.000Z"}')
  expect(canonicalJson({ toJSON: 'a member like others' })).toBe('{"toJSON":"a member like others"}')
  expect(canonicalJson({ a: undefined, b: 1 })).toBe('{"b":1}')
  expect(canonicalJson(Object.assign(Object.create(null) as object, { a: 1 }))).toBe('{"a":1}')
  expect(() => canonicalJson(nested(500))).not.toThrow()
})

test.each<[refused: string, value: unknown]>([
  ['the value is nested deeper than 500 levels', nested(501)],
  ['the value is nested deeper than 500 levels', Array.from({ length: 501 }).reduce<unknown>((inner) => [inner], 1)],
  ['function at $.a[1].b has no JSON form', { a: [0, { b: () => {} }] }],
  ['NaN at $[0] has no JSON form', [Number.NaN]],
  ['the value at $.at is an invalid Date, which has no JSON form', { at: new Date('soon') }],
  ['the string at $.a has a lone surrogate', { a: '\ud800' }],
  ['the value at $.a is a Map, not a plain object', { a: new Map() }],
  ['is an object with its own prototype, not a plain object', Object.create(Object.create(null) as object)],
])('canonical JSON refuses by name and place: %s', (message, value) => {
  expect(() => canonicalJson(value)).toThrow(message)
})

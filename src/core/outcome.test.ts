// What is stored of an outcome, byte by byte: entries outlive the version that wrote them.

import { runInNewContext } from 'node:vm'
import { Response as UndiciResponse } from 'undici'
import { describe, expect, test } from 'vitest'
import { FinalError } from './errors.ts'
import { key } from './key.ts'
import { asResolved, decodeOutcome, encodeOutcome, failureOf, versionOf } from './outcome.ts'
import type { Codec, Outcome } from './outcome.ts'

const subject = key('payments', '42')
const stored = (outcome: Outcome, codec?: Codec): string =>
  Buffer.from(encodeOutcome(outcome, codec).bytes).toString('latin1')
const read = (text: string, codec?: Codec): Outcome => decodeOutcome(Buffer.from(text, 'latin1'), codec, subject)
const value = (of: unknown): Outcome => ({ kind: 'value', value: of })
const failure = (message: string, data?: unknown): Outcome => ({
  kind: 'failure',
  error: new FinalError(message, data === undefined ? {} : { data }),
})

const nested = (bottom: unknown, levels: number): unknown =>
  Array.from({ length: levels }).reduce<unknown>((inner) => [inner], bottom)

/** Turns every byte, so that nothing of it can be read in the clear. */
const turning: Codec = {
  encode: (each) => Buffer.from(JSON.stringify(each)).map((byte) => byte ^ 1),
  decode: (bytes) => JSON.parse(Buffer.from(bytes.map((byte) => byte ^ 1)).toString()) as unknown,
}

test.each<[text: string, outcome: Outcome]>([
  ['j{"a":[1,null,"x"]}', value({ a: [1, null, 'x'] })],
  ['jnull', value(null)],
  ['u', value(undefined)],
  ['b\u0000\u00ff', value(new Uint8Array([0, 255]))],
  ['f{"message":"declined"}', failure('declined')],
  ['f{"message":"declined","data":{"code":51}}', failure('declined', { code: 51 })],
  ['nit was too large', { kind: 'not-stored', reason: 'it was too large' }],
])('%j is what is stored, and what is read', (text, outcome) => {
  expect(stored(outcome)).toBe(text)
  expect(read(text)).toEqual(outcome)
})

// Each is a value whose copy could be something else than what JSON makes of it.
test.each<[what: string, of: () => unknown]>([
  ['a number below zero that is zero', () => [-0, { at: -0 }]],
  ['a hole in an array', () => ({ at: [1, , 3] })], // oxlint-disable-line no-sparse-arrays
  ['a member called __proto__', () => JSON.parse('{"__proto__":{"admin":true},"a":1}') as unknown],
  ['an object without a prototype', () => Object.assign(Object.create(null) as object, { a: 1 })],
  [
    'a form of its own that is not enumerable',
    () => Object.defineProperty({ a: 1 }, 'toJSON', { value: () => 'form' }),
  ],
  ['an array with a form of its own', () => Object.assign([1], { toJSON: () => 'form' })],
  ['an array with a member beside its elements', () => Object.assign([1], { beside: 2 })],
  ['members that are numbers, in another order', () => ({ b: 1, 2: 1, a: 1, 1: 1 })],
  ['half a character', () => ({ '\ud800': '\udfff' })],
  [
    'a getter that returns another value each time',
    () =>
      ((count) => ({
        get at() {
          return count++
        },
      }))(0),
  ],
  ['a Date inside', () => ({ at: [new Date(0)] })],
])('the first caller is given exactly what every replay is given: %s', (_what, of) => {
  const { bytes, outcome } = encodeOutcome(value(of()), undefined)
  const replayed = decodeOutcome(bytes, undefined, subject)
  expect(outcome).toStrictEqual(replayed)
  expect(JSON.stringify(outcome)).toBe(JSON.stringify(replayed))
  expect(Buffer.from(bytes).toString()).toMatch(/^j/)
})

test('a member called __proto__ is stored, and stays a member', () => {
  const text = '{"a":1,"__proto__":{"admin":true}}'
  const { bytes, outcome } = encodeOutcome(value(JSON.parse(text)), undefined)
  expect(Buffer.from(bytes).toString()).toBe(`j${text}`)
  expect(outcome).not.toHaveProperty('value.admin')
})

test('what is stored of a value with a form of its own is that form', () => {
  expect(stored(value(Object.defineProperty({ a: 1 }, 'toJSON', { value: () => 'form' })))).toBe('j"form"')
  expect(stored(value([Object.assign([1], { toJSON: () => 'form' })]))).toBe('j["form"]')
})

test('the copy that the first caller is given is his own', () => {
  const given = { list: [{ a: 1 }] }
  const { outcome } = encodeOutcome(value(given), undefined)
  given.list[0]!.a = 2
  expect(outcome).toEqual(value({ list: [{ a: 1 }] }))
})

test.each<[version: number | 'any', mark: string]>([
  [0, 'r0;'],
  [2_147_483_647, 'r2147483647;'],
  ['any', 'rany;'],
])('an outcome that a person gave is marked with its version, %s, and is read like every other', (version, mark) => {
  for (const outcome of [value({ a: ';' }), value(new Uint8Array([59, 0])), value(undefined), failure('no; never')]) {
    const marked = asResolved(encodeOutcome(outcome, undefined).bytes, version)
    expect(Buffer.from(marked).toString('latin1')).toBe(mark + stored(outcome))
    expect(decodeOutcome(marked, undefined, subject)).toEqual(outcome)
    expect(versionOf(marked, 7)).toBe(version)
  }
  expect(versionOf(Buffer.from(stored(value('r1;'))), 7)).toBe(7)
})

test('a codec has a letter of its own for values and for failures, and gets both', () => {
  expect(stored(value({ a: 1 }), turning)[0]).toBe('c')
  expect(stored(failure('no', 5), turning)[0]).toBe('e')
  for (const outcome of [value({ a: 1 }), failure('no', 5)])
    expect(read(stored(outcome, turning), turning)).toEqual(outcome)
})

test('a codec gets a failure with its message, and with data only where there are some', () => {
  const got: unknown[] = []
  const codec: Codec = { ...turning, encode: (each) => (got.push(each), turning.encode(each)) }
  encodeOutcome(failure('no'), codec)
  encodeOutcome(failure('no', null), codec)
  expect(got).toStrictEqual([{ message: 'no' }, { message: 'no', data: null }])
})

test.each<[why: string, text: string]>([
  ['it was written with a codec, and none is given', 'c{}'],
  ['it was written with a codec, and none is given', 'd{}'],
  ['it was written with a codec, and none is given', 'e{}'],
  ['it begins with byte none', ''],
  ['it begins with byte none', 'r1;'],
  ['it begins with byte 114', 'r1;r1;u'],
  ['it begins with byte 120', 'x'],
  ['it holds a failure without a message', 'f{}'],
  ['it holds a failure without a message', 'fnull'],
])('what cannot be read says why, with the key: %s', (why, text) => {
  expect(() => read(text)).toThrow(
    expect.objectContaining({
      code: 'OUTCOME_UNREADABLE',
      message: expect.stringMatching(new RegExp(`payments/42 cannot be read: ${why}`)),
      cause: expect.any(Error),
    }),
  )
})

test.each<[name: string, value: unknown]>([
  ['an empty object', {}],
  ['one of another realm', runInNewContext('({})')],
  ['one without a prototype', Object.create(null)],
  ['an empty array of another realm', runInNewContext('[]')],
  ['a boxed string', Object('')],
  ['a member that says null of itself', { is: { toJSON: () => null }, at: null, since: new Date(0) }],
  [
    'an instance with members',
    new (class Receipt {
      readonly id = 'r1'
    })(),
  ],
])('%s is stored', (_name, of) => {
  expect(stored(value(of))).toBe(`j${JSON.stringify(of)}`)
})

describe('a value that cannot be stored says what it is, where it stands and what to do', () => {
  const cyclic: { self?: unknown } = {}
  cyclic.self = cyclic
  test.each<[reason: string, value: unknown]>([
    ['a function cannot be stored', () => {}],
    ['a symbol cannot be stored', Symbol('x')],
    ['a function in "f" cannot be stored', { f: () => {} }],
    ['a symbol in "s" cannot be stored', { s: Symbol('x') }],
    ['a BigInt cannot be stored as JSON; give a codec', 5n],
    ['a BigInt in "n" cannot be stored as JSON; give a codec', { n: 5n }],
    ['NaN in "n" cannot be stored as JSON: return null, or a string', { n: Number.NaN }],
    ['NaN in "1" cannot be stored as JSON: return null, or a string', [1, Number.NaN]],
    ['NaN in "n" cannot be stored as JSON: return null, or a string', nested({ n: Number.NaN }, 60)],
    ['-Infinity cannot be stored as JSON: return null, or a string', -Infinity],
    ['Infinity in "0" cannot be stored as JSON', [Object(Infinity)]],
    ['an invalid Date cannot be stored as JSON: return null, or a valid Date', new Date('soon')],
    ['an invalid Date in "at" cannot be stored as JSON', { orders: [{ at: new Date(Number.NaN) }] }],
    ['an invalid Date in "0" cannot be stored as JSON', runInNewContext('[new Date(NaN)]')],
    ['a Map in "m" cannot be stored as JSON: return [...map], or give a codec', { m: new Map() }],
    ['a Float64Array in "f" cannot be stored as JSON: return a Uint8Array by itself', { f: new Float64Array(1) }],
    ['a DataView cannot be stored as JSON', new DataView(new ArrayBuffer(1))],
    ['a Response cannot be stored as JSON, which leaves nothing of it: return its data', new UndiciResponse('{}')],
    ['a ReadableStream in "s" cannot be stored as JSON', { s: new ReadableStream() }],
    ['a WeakRef cannot be stored as JSON', new WeakRef({})],
    ['a NumberFormat cannot be stored as JSON', new Intl.NumberFormat()],
    ['a Map cannot be stored as JSON, which leaves nothing of it', runInNewContext('new Map([[1, 2]])')],
  ])('%s', (reason, of) => {
    const { outcome } = encodeOutcome(value(of), undefined)
    expect(outcome).toMatchObject({ kind: 'not-stored', reason: expect.stringContaining(reason) })
  })

  test.each<[what: string, codec: Codec]>([
    ['encode of the codec returned a Promise', { ...turning, encode: (async () => Buffer.from('x')) as never }],
    [
      'encode of the codec returned a Promise',
      { ...turning, encode: (() => Promise.reject(new Error('no'))) as never },
    ],
    ['encode of the codec returned a string', { ...turning, encode: (() => 'text') as never }],
    ['encode of the codec returned null', { ...turning, encode: (() => null) as never }],
    ['encode of the codec returned a ArrayBuffer', { ...turning, encode: (() => new ArrayBuffer(1)) as never }],
    ['decode of the codec returned a Promise', { ...turning, decode: async () => 1 }],
  ])('%s', (reason, codec) => {
    for (const outcome of [value(1), value(new Uint8Array(1)), failure('no')]) {
      expect(encodeOutcome(outcome, codec).outcome).toMatchObject({
        kind: 'not-stored',
        reason: expect.stringContaining(reason),
      })
    }
  })

  test('and the reason is cut, however long it is', () => {
    const codec: Codec = { ...turning, encode: () => expect.fail('x'.repeat(2_000)) }
    const { bytes, outcome } = encodeOutcome(value(1), codec)
    expect(outcome).toMatchObject({ kind: 'not-stored' })
    expect(bytes.length).toBe(501)
  })
})

test.each<[name: string, value: unknown, text: string]>([
  ['a date in its own form', { at: new Date(0) }, 'j{"at":"1970-01-01T00:00:00.000Z"}'],
  ['what says itself how it is stored', { toJSON: () => 'itself' }, 'j"itself"'],
  [
    'a class by its members',
    new (class Paid {
      cents = 5
    })(),
    'j{"cents":5}',
  ],
  ['an object without a prototype', Object.assign(Object.create(null) as object, { a: 1 }), 'j{"a":1}'],
  ['no undefined members', { a: undefined, b: null }, 'j{"b":null}'],
])('JSON is stored as JSON.stringify writes it: %s', (_, of, text) => {
  expect(stored(value(of))).toBe(text)
})

test('a deep value is stored whole', () => {
  const deep = nested('bottom', 300)
  expect(stored(value(deep))).toBe(`j${JSON.stringify(deep)}`)
})

test('a throw that is stored keeps its message, and the error itself as the cause', () => {
  const thrown = new TypeError('declined')
  expect(failureOf(thrown)).toMatchObject({ name: 'FinalError', message: 'declined', cause: thrown })
  expect(failureOf('a text')).toMatchObject({ message: 'a text', cause: 'a text' })
  const final = new FinalError('as it is')
  expect(failureOf(final)).toBe(final)
})

test('a plain value is read once: what stands in it cannot be another the second time', () => {
  const members = {
    text: 'a',
    yes: true,
    none: null,
    count: 5,
    list: ['a', false, null, 1.5],
    deep: { a: { b: ['c'] } },
  }
  const reads: string[] = []
  const watched = Object.defineProperties(
    {},
    Object.fromEntries(
      Object.entries(members).map(([name, member]) => [
        name,
        { enumerable: true, get: () => (reads.push(name), member) },
      ]),
    ),
  )
  const { bytes, outcome } = encodeOutcome(value(watched), undefined)
  expect(reads).toEqual(Object.keys(members))
  expect(Buffer.from(bytes).toString()).toBe(`j${JSON.stringify(members)}`)
  expect(outcome).toEqual(value(members))
})

test('what cannot be stored is named by what it is, and a buffer by its own name', () => {
  class Basket extends Map {}
  const reasons = [new Basket(), new Float64Array(1), new DataView(new ArrayBuffer(1)), new SharedArrayBuffer(1)].map(
    (each) => (encodeOutcome(value({ at: each }), undefined).outcome as { reason: string }).reason,
  )
  expect(reasons.map((reason) => reason.split(' cannot')[0])).toEqual([
    'a Map in "at"',
    'a Float64Array in "at"',
    'a DataView in "at"',
    'a SharedArrayBuffer in "at"',
  ])
})

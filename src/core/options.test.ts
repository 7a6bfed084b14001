import { describe, expect, test } from 'vitest'
import {
  aFunction,
  aReason,
  aString,
  checkGiven,
  checkOptions,
  identifier,
  nonNegativeMs,
  oneOf,
  optional,
  positiveInteger,
  positiveMs,
  versionNumber,
  withMethods,
} from './options.ts'
import type { Rule } from './options.ts'

const hundredYearsMs = 100 * 365.25 * 86_400_000

describe('a rule', () => {
  test.each<[name: string, rule: Rule, right: readonly unknown[], wrong: readonly unknown[]]>([
    [
      'a positive integer of milliseconds',
      positiveMs,
      [1, hundredYearsMs],
      [0, -1, 1.5, hundredYearsMs + 1, '1', Number.NaN, undefined],
    ],
    ['a positive integer of milliseconds', nonNegativeMs, [0, 1, hundredYearsMs], [-1, 0.5, hundredYearsMs + 1, null]],
    ['a positive integer', positiveInteger, [1, hundredYearsMs + 1], [0, -1, 1.5, 2 ** 53, '1']],
    ['an integer from 0 to 2147483647', versionNumber, [0, 1, 2 ** 31 - 1], [-1, 0.5, 2 ** 31, '1']],
    ['a reason, for the audit trail', aReason, ['asked the bank', ' x '], ['', ' \n', 'a\0b', '\ud800', 5, undefined]],
    ['a non-empty string', aString, ['a', ' '], ['', 5, undefined]],
    ['a function', aFunction, [() => {}, Map], [{}, 'f', undefined]],
    [
      'a name of 1 to 48 lower-case letters',
      identifier,
      ['a', '_', 'onceonly_entries2', 'a'.repeat(48)],
      ['', '2a', 'A', 'a-b', 'a b', ' a', 'a\n', 'a'.repeat(49), 5],
    ],
  ])('takes what it should and says what it expected: %s', (expected, rule, right, wrong) => {
    expect(right.map(rule)).toEqual(right.map(() => undefined))
    expect(wrong.map(rule)).toEqual(wrong.map(() => expect.stringContaining(expected)))
    expect(optional(rule)(undefined)).toBeUndefined()
    expect(wrong.filter((each) => each !== undefined).map(optional(rule))).not.toContain(undefined)
  })

  test('for one of several names them, with the one that was meant', () => {
    const rule = oneOf('refuse', 'run')
    expect([rule('refuse'), rule('run')]).toEqual([undefined, undefined])
    expect(rule('refuze')).toBe('"refuse" or "run", did you mean "refuse"?')
    expect(rule('x'.repeat(10))).toBe('"refuse" or "run"')
    expect(rule(5)).toBe('"refuse" or "run"')
    // What is longer than any name costs no comparison.
    expect(oneOf('x'.repeat(64))('x'.repeat(63))).toContain('did you mean')
    expect(oneOf('x'.repeat(64))(`${'x'.repeat(63)}y`)).toContain('did you mean')
    expect(oneOf('x'.repeat(64))('x'.repeat(65))).not.toContain('did you mean')
  })

  test('for methods looks for functions, in objects and in functions, and names them', () => {
    const rule = withMethods('now', 'schedule')
    const clock = { now: () => 0, schedule: () => {} }
    expect(rule(clock)).toBeUndefined()
    expect(rule(Object.assign(() => {}, clock))).toBeUndefined()
    for (const wrong of [null, undefined, 'now', 5, {}, { now: clock.now }, { ...clock, now: 5 }]) {
      expect(rule(wrong)).toBe('an object with the methods now, schedule')
    }
  })
})

const rules: Readonly<Record<string, Rule>> = {
  scope: aString,
  leaseMs: optional(positiveMs),
  storeTimeoutMs: optional(positiveMs),
}

describe('options', () => {
  test('that are right are taken, with what is optional or without', () => {
    expect(() => checkOptions('createThing', { scope: 'a' }, rules)).not.toThrow()
    expect(() => checkOptions('createThing', { scope: 'a', leaseMs: undefined }, rules)).not.toThrow()
    expect(() => checkGiven('run', {}, rules)).not.toThrow()
  })

  test.each<[message: string, given: unknown]>([
    ['createThing: expected scope to be a non-empty string, got undefined', {}],
    ['createThing: expected scope to be a non-empty string, got undefined', { scope: undefined }],
    ['createThing: expected an object of options, got undefined', undefined],
    ['createThing: expected an object of options, got null', null],
    ['createThing: expected an object of options, got an array', []],
    ['createThing: expected an object of options, got a function', () => {}],
    ['createThing: expected an object of options, got "scope"', 'scope'],
    ['expected leaseMs to be a positive integer of milliseconds, got "30s"', { scope: 'a', leaseMs: '30s' }],
    ['milliseconds, got 5n', { scope: 'a', leaseMs: 5n }],
    ['milliseconds, got true', { scope: 'a', leaseMs: true }],
    ['milliseconds, got null', { scope: 'a', leaseMs: null }],
    ['milliseconds, got NaN', { scope: 'a', leaseMs: Number.NaN }],
    ['milliseconds, got an object', { scope: 'a', leaseMs: {} }],
    ['milliseconds, got an array', { scope: 'a', leaseMs: [30] }],
    ['milliseconds, got a symbol', { scope: 'a', leaseMs: Symbol('x') }],
    [`milliseconds, got "${'x'.repeat(80)}"`, { scope: 'a', leaseMs: 'x'.repeat(80) }],
    [`milliseconds, got "${'x'.repeat(80)}…"`, { scope: 'a', leaseMs: 'x'.repeat(81) }],
  ])('that are wrong are refused with what came: %s', (message, given) => {
    expect(() => checkOptions('createThing', given, rules)).toThrow(
      expect.objectContaining({ code: 'INVALID_ARGUMENT', executed: 'no', message: expect.stringContaining(message) }),
    )
  })

  test('that calls take are not required', () => {
    expect(() => checkGiven('run', { leaseMs: 5 }, rules)).not.toThrow()
    expect(() => checkGiven('run', { leaseMs: 0 }, rules)).toThrow('run: expected leaseMs')
  })

  test('of an object are its own: what it inherits is neither given nor known', () => {
    expect(() => checkGiven('run', { toString: 5 }, rules)).toThrow('unknown option "toString"')
    expect(() => checkOptions('createThing', Object.create({ scope: 'a' }), rules)).toThrow('expected scope')
  })

  // The nearest is by the number of letters to change. A third of them is no longer a slip.
  test.each<[name: string, meant: string | undefined]>([
    ['leasems', 'leaseMs'],
    ['lease', 'leaseMs'],
    ['leseMs', 'leaseMs'],
    ['laeseMs', 'leaseMs'],
    ['leaseMss', 'leaseMs'],
    ['xleaseMs', 'leaseMs'],
    ['leaXXMs', 'leaseMs'],
    ['leXXXMs', undefined],
    ['scop', 'scope'],
    ['storeTimeXXX', undefined],
    ['soreTimeutS', 'storeTimeoutMs'],
    ['timeout', undefined],
    ['retries', undefined],
    ['s', 'scope'],
  ])('that are not known are refused with the one that was meant: %s', (name, meant) => {
    const hint = meant === undefined ? '' : `, did you mean "${meant}"?`
    expect(() => checkGiven('run', { [name]: 1 }, rules)).toThrow(
      expect.objectContaining({ message: `run: unknown option "${name}"${hint}` }),
    )
  })
})

import { describe, expect, test } from 'vitest'
import { memoryStore } from '../stores/memory.ts'
import { systemClock, systemRandom } from './clock.ts'
import { readOnceOptions, readRunOptions } from './settings.ts'
import type { OnceOptions, RunOptions } from './settings.ts'

const hourMs = 3_600_000
const store = memoryStore()
const optionsWith = (options: Partial<OnceOptions> = {}): OnceOptions => ({ store, scope: 'payments', ...options })
const onceWith = (options: Partial<OnceOptions> = {}) => ({
  options: optionsWith(options),
  settings: readOnceOptions(optionsWith(options)).settings,
})
const forCall = (options: RunOptions, once: Partial<OnceOptions> = {}) => readRunOptions('run', onceWith(once), options)

describe('the settings of createOnce', () => {
  test('have a default each, and the clock and the chance of the system', () => {
    expect(readOnceOptions(optionsWith())).toEqual({
      settings: {
        leaseMs: 30_000,
        keepMs: 24 * hourMs,
        tombstoneMs: 7 * 24 * hourMs,
        waitMs: 5_000,
        attemptMs: 600_000,
        onExpired: 'refuse',
        onTakeover: 'run',
        onThrow: 'release',
        storeTimeoutMs: 5_000,
        version: 0,
      },
      clock: systemClock,
      random: systemRandom,
    })
  })

  test('are what was given, where undefined is "not given"', () => {
    const given = {
      leaseMs: 1,
      keepMs: 2,
      tombstoneMs: 0,
      waitMs: 0,
      attemptMs: 5,
      onExpired: 'run',
      onTakeover: 'refuse',
      onThrow: 'doubt',
      storeTimeoutMs: 6,
      version: 7,
    } as const
    const [clock, random] = [{ ...systemClock }, { ...systemRandom }]
    const read = readOnceOptions(optionsWith({ ...given, clock, random, sweepEveryMs: false }))
    expect(read.settings).toEqual(given)
    expect(read.clock).toBe(clock)
    expect(read.random).toBe(random)
    const absent = Object.fromEntries(Object.keys(given).map((name) => [name, undefined]))
    expect(onceWith(absent).settings).toEqual(onceWith().settings)
    expect(onceWith({ leaseMs: 1_000 }).settings.attemptMs).toBe(20_000)
  })

  test.each<[name: keyof OnceOptions, wrong: unknown, expected: string]>([
    ['leaseMs', 0, 'a positive integer of milliseconds'],
    ['keepMs', 0, 'a positive integer of milliseconds'],
    ['tombstoneMs', -1, 'a positive integer of milliseconds'],
    ['waitMs', -1, 'a positive integer of milliseconds'],
    ['attemptMs', 0, 'a positive integer of milliseconds'],
    ['storeTimeoutMs', 0, 'a positive integer of milliseconds'],
    ['onExpired', 'later', '"refuse" or "run"'],
    ['onTakeover', 'later', '"run" or "refuse"'],
    ['onThrow', 'later', '"release" or "store" or "doubt"'],
    ['version', -1, 'an integer from 0'],
    ['upgrade', {}, 'a function'],
    ['sweepEveryMs', true, 'a positive integer of milliseconds, or false'],
    ['store', {}, 'an object with the methods claim, extend, settle, release'],
    ['codec', { encode: () => {} }, 'an object with the methods encode, decode'],
    ['clock', { now: () => 0 }, 'an object with the methods now, elapsed, schedule'],
    ['random', { uuid: () => '' }, 'an object with the methods uuid, fraction, bytes'],
    ['scope', '', '1 to 255 bytes'],
  ])('are refused where they are wrong: %s', (name, wrong, expected) => {
    expect(() => readOnceOptions(optionsWith({ [name]: wrong }))).toThrow(
      expect.objectContaining({
        code: 'INVALID_ARGUMENT',
        message: expect.stringContaining(`${name} to be ${expected}`),
      }),
    )
  })
})

describe('the settings of a call', () => {
  test('are those of createOnce, the very same, where the call changes nothing', () => {
    const once = onceWith({ leaseMs: 1_000 })
    for (const options of [{}, { fingerprint: 5 }, { leaseMs: undefined }, { leaseMs: 1_000, onThrow: 'release' }]) {
      expect(readRunOptions('run', once, options as RunOptions)).toBe(once.settings)
    }
  })

  test('are its own where it gives some, and the others stay', () => {
    const { settings } = onceWith()
    expect(forCall({ waitMs: 0, fingerprint: 1 })).toEqual({ ...settings, waitMs: 0 })
    expect(forCall({ onThrow: 'store', keepMs: undefined } as object)).toEqual({ ...settings, onThrow: 'store' })
  })

  test('have a deadline that fits the longer lease, unless the user chose one', () => {
    expect(forCall({ leaseMs: 60_000 }).attemptMs).toBe(1_200_000)
    expect(forCall({ leaseMs: 1_000 }).attemptMs).toBe(600_000)
    expect(forCall({ leaseMs: 60_000, attemptMs: 5 }).attemptMs).toBe(5)
    expect(forCall({ leaseMs: 60_000 }, { attemptMs: 7 }).attemptMs).toBe(7)
  })

  test.each<[message: string, options: unknown]>([
    ['run: unknown option "lease"', { lease: 5 }],
    ['run: unknown option "toString"', { toString: undefined }],
    ['run: unknown option "version"', { version: 0 }],
    ['run: expected leaseMs', { leaseMs: '30s' }],
    ['run: expected an object of options, got null', null],
    ['run: expected an object of options, got undefined', undefined],
    ['run: expected an object of options, got an array', []],
    ['run: expected an object of options, got a function', () => {}],
  ])('are refused where they are wrong: %s', (message, options) => {
    expect(() => forCall(options as RunOptions)).toThrow(message)
  })
})

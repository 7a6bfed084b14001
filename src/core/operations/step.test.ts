import { describe, expect, test } from 'vitest'
import { codeOf, openShop } from '../../../test/operations/shop.ts'
import { checkLookup, readStep, readTransactionStep } from './step.ts'

const run = (): string => 'ran'

describe('a step', () => {
  test('is a function, or an object with one', () => {
    expect(readStep('charge', run)).toEqual({ run })
    const whole = {
      run,
      undo: run,
      lookup: () => 'unknown' as const,
      inDoubt: 'park' as const,
      retry: { attempts: 3, firstMs: 1, factor: 1, maxMs: 5 },
      timeoutMs: 5,
      pivot: true as const,
      fingerprint: null,
    }
    expect(readStep('charge', whole)).toBe(whole)
    expect(readStep('charge', { run, inDoubt: 'run' })).toMatchObject({ inDoubt: 'run' })
    expect(readTransactionStep('charge', run)).toEqual({ run })
    const inside = { run, undo: run, pivot: true as const, fingerprint: 1 }
    expect(readTransactionStep('charge', inside)).toBe(inside)
  })

  test.each<[message: string, given: unknown]>([
    ['step "charge": expected run to be a function', {}],
    ['step "charge": expected run to be a function', { run: 5 }],
    ['expected undo to be a function', { run, undo: 5 }],
    ['expected lookup to be a function', { run, lookup: 5 }],
    ['expected inDoubt to be "run" or "park"', { run, inDoubt: 'stop' }],
    ['expected retry to be an object with attempts, got 3', { run, retry: 3 }],
    ['expected retry to be an object with attempts, got null', { run, retry: null }],
    ['step "charge", retry: expected attempts to be a positive integer', { run, retry: {} }],
    ['expected firstMs to be a positive integer of milliseconds', { run, retry: { attempts: 1, firstMs: 0 } }],
    ['expected factor to be a number of at least 1, got 0.9', { run, retry: { attempts: 1, factor: 0.9 } }],
    ['expected factor to be a number of at least 1, got "2"', { run, retry: { attempts: 1, factor: '2' } }],
    ['expected maxMs to be a positive integer of milliseconds', { run, retry: { attempts: 1, maxMs: 0.5 } }],
    ['unknown option "tries"', { run, retry: { attempts: 1, tries: 5 } }],
    ['expected timeoutMs to be a positive integer of milliseconds', { run, timeoutMs: 0 }],
    ['expected pivot to be true, or absent, got false', { run, pivot: false }],
    ['unknown option "timeout", did you mean "timeoutMs"?', { run, timeout: 5 }],
    ['step "charge": expected an object of options', 'charge'],
  ])('that is wrong is refused: %s', (message, given) => {
    expect(() => readStep('charge', given as never)).toThrow(
      expect.objectContaining({ code: 'INVALID_ARGUMENT', message: expect.stringContaining(message) }),
    )
  })

  test.each<[message: string, given: unknown]>([
    ['transaction "charge": expected run to be a function', {}],
    ['expected undo to be a function', { run, undo: 5 }],
    ['expected pivot to be true, or absent', { run, pivot: 1 }],
    ['transaction "charge": unknown option "lookup"', { run, lookup: run }],
  ])('in a transaction that is wrong is refused: %s', (message, given) => {
    expect(() => readTransactionStep('charge', given as never)).toThrow(message)
  })

  test('has a name of 1 to 200 bytes of text', () => {
    for (const name of ['a', 'a b/c', 'ü'.repeat(100), 'x'.repeat(200)]) {
      expect(readStep(name, run)).toEqual({ run })
    }
    for (const name of ['', 'x'.repeat(201), 'ü'.repeat(101), 'a\nb', 'a\u0085', '\ud800', 5, undefined]) {
      for (const read of [readStep, readTransactionStep]) {
        expect(() => read(name as string, run)).toThrow('expected the name of a step to be 1 to 200 bytes')
      }
    }
    expect(() => readStep('y'.repeat(300), run)).toThrow(`got "${'y'.repeat(80)}"`)
    expect(() => readStep(5 as never, run)).toThrow('got number')
  })
})

test('a lookup returns what it found, or one of two words', () => {
  expect(checkLookup('charge', 'not-found')).toBe('not-found')
  expect(checkLookup('charge', 'unknown')).toBe('unknown')
  expect(checkLookup('charge', { found: undefined })).toEqual({ found: undefined })
  for (const wrong of [undefined, null, 'found', {}, 5]) {
    expect(() => checkLookup('charge', wrong)).toThrow('step "charge": expected lookup to return { found }')
  }
})

describe('an operation', () => {
  const never = (): never => expect.fail('the operation ran')

  test.each<[message: string, name: unknown, options: unknown, body?: unknown]>([
    ['expected the name of an operation to be 1 to 64 letters', '', {}],
    ['expected the name of an operation to be 1 to 64 letters', 'a/b', {}],
    ['expected the name of an operation to be 1 to 64 letters', 'a b', {}],
    ['expected the name of an operation to be 1 to 64 letters', 'x'.repeat(65), {}],
    ['expected the name of an operation to be 1 to 64 letters', 5, {}],
    ['operation "a": expected a function, got undefined', 'a', {}, null],
    ['operation "a": expected attempts to be a positive integer', 'a', { attempts: 0 }],
    ['operation "a": expected version to be an integer', 'a', { version: -1 }],
    ['operation "a": expected leaseMs to be', 'a', { leaseMs: 0 }],
    ['operation "a": expected keepMs to be', 'a', { keepMs: 0 }],
    ['operation "a": expected attemptMs to be', 'a', { attemptMs: 0 }],
    ['operation "a": expected waitMs to be', 'a', { waitMs: -1 }],
    ['operation "a": expected tombstoneMs to be', 'a', { tombstoneMs: -1 }],
    ['operation "a": expected onExpired to be', 'a', { onExpired: 'later' }],
    ['operation "a": unknown option "onThrow"', 'a', { onThrow: 'store' }],
    ['operation "a", backoff: expected firstMs to be', 'a', { backoff: { firstMs: 0 } }],
    ['operation "a", backoff: expected an object of options', 'a', { backoff: 5 }],
    ['operation "a": expected an object of options', 'a', null],
  ])('that is wrong is refused where it is defined: %s', (message, name, options, body = never) => {
    const once = openShop().process()
    expect(() => once.operation(name as string, options as never, (body ?? undefined) as never)).toThrow(
      expect.objectContaining({ code: 'INVALID_ARGUMENT', message: expect.stringContaining(message) }),
    )
  })

  test('has a scope of its own, and is defined once', () => {
    const once = openShop().process()
    const longest = once.operation('Az09_.-'.padEnd(64, 'x'), {}, never)
    expect(longest).toMatchObject({ name: 'Az09_.-'.padEnd(64, 'x'), scope: `shop/operations/${longest.name}` })
    expect(() => once.operation(longest.name, {}, never)).toThrow('is defined twice')
  })

  test.each(['enlist', 'ledger', 'advance', 'due', 'show'])('needs a store that keeps steps: %s', (method) => {
    const store = { ...openShop().process().store } as Record<string, unknown>
    delete store[method]
    const once = openShop().process({ store: store as never, sweepEveryMs: false })
    expect(() => once.operation('a', {}, never)).toThrow(
      expect.objectContaining({
        code: 'UNSUPPORTED',
        message: expect.stringContaining('the memory store keeps no steps'),
      }),
    )
  })

  test('that nothing defined is not reconciled, and what none defined is not recovered', async () => {
    const once = openShop().process()
    expect(await codeOf(once.reconcile('a', async () => []))).toBe('INVALID_ARGUMENT')
    for (const wrong of [null, undefined, 'a', {}]) {
      expect(() => once.recover([wrong as never])).toThrow('expected operations that once.operation() made')
    }
    expect(() => once.recover([], { everyMs: 0 })).toThrow('recover: expected everyMs')
    expect(() => once.recover([], { concurrency: 0 })).toThrow('recover: expected concurrency')
  })
})

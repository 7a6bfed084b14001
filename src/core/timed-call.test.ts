import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { manualClock } from '../testing/manual-clock.ts'
import { OnceError } from './errors.ts'
import type { ErrorCode } from './errors.ts'
import { hashKey, key } from './key.ts'
import { bounded, callStore, isUnfit, started } from './timed-call.ts'

const subject = key('payments', 'order-42')

function callsOf() {
  const clock = manualClock()
  return { clock, calls: { clock, storeName: 'redis', timeoutMs: 500 } }
}

const thrown = (work: Promise<unknown>): Promise<OnceError> =>
  work.then(
    () => expect.fail('expected an error'),
    (error: unknown) => error as OnceError,
  )

const heard: { readonly name: string; readonly event: object }[] = []
const listeners = ['store-failed', 'store-unfit'].map((name) => ({
  channel: `onceonly:${name}`,
  listener: (event: unknown): void => void heard.push({ name, event: event as object }),
}))
let warned: ReturnType<typeof vi.fn>
beforeEach(() => {
  heard.length = 0
  warned = vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
  for (const { channel, listener } of listeners) subscribe(channel, listener)
})
afterEach(() => {
  warned.mockRestore()
  for (const { channel, listener } of listeners) unsubscribe(channel, listener)
})

describe('a call to a store', () => {
  test('ends with the answer, and leaves no timer', async () => {
    const { clock, calls } = callsOf()
    expect(await callStore(calls, 'claim', subject, async () => 'answer')).toBe('answer')
    expect(await bounded(calls, async () => 'answer')).toBe('answer')
    expect(clock.pending).toBe(0)
    expect(heard).toEqual([])
  })

  test.each<[during: 'claim' | 'settle', message: string]>([
    ['claim', 'The redis store did not answer (claim): ECONNRESET. The effect was not run. Check that'],
    ['settle', 'The redis store did not answer (settle): ECONNRESET. Check that'],
  ])('that fails is STORE_UNAVAILABLE, with the store and what was asked of it: %s', async (during, message) => {
    const { clock, calls } = callsOf()
    const cause = new Error('ECONNRESET')
    const error = await thrown(callStore(calls, during, subject, () => Promise.reject(cause)))
    expect(error).toMatchObject({ code: 'STORE_UNAVAILABLE', executed: 'no', retryable: true, cause })
    expect(error.message).toContain(message)
    expect(clock.pending).toBe(0)
    expect(heard).toEqual([
      {
        name: 'store-failed',
        event: { scope: 'payments', keyHash: hashKey(subject), during, code: 'STORE_UNAVAILABLE' },
      },
    ])
  })

  test.each(['mend', 'session'] as const)(
    'that changes something for a person or a client may have done it: %s',
    async (during) => {
      const { clock, calls } = callsOf()
      for (const failing of [() => Promise.reject(new Error('ECONNRESET')), () => new Promise<never>(() => {})]) {
        const telling = thrown(callStore(calls, during, subject, failing))
        await clock.advance(calls.timeoutMs)
        expect(await telling).toMatchObject({
          code: 'STORE_UNAVAILABLE',
          executed: 'unknown',
          retryable: true,
          message: expect.stringContaining('It may have done it all the same. Check that') as string,
        })
      }
    },
  )

  test('that throws before it returns a promise is no different', async () => {
    const { calls } = callsOf()
    const throwing = (): never => {
      throw new TypeError('no such method')
    }
    expect((await thrown(callStore(calls, 'claim', subject, throwing))).message).toContain('no such method')
    await expect(started(throwing)).rejects.toThrow('no such method')
    expect(await started(() => 5)).toBe(5)
  })

  test.each<[what: string, cause: unknown]>([
    ['(claim): TypeError.', new TypeError()],
    ['(claim): only text.', 'only text'],
    ['(claim): null.', null],
  ])('that fails with something else says so: %s', async (message, cause) => {
    const { calls } = callsOf()
    expect((await thrown(callStore(calls, 'claim', subject, () => Promise.reject(cause)))).message).toContain(message)
  })

  test('that is not answered in time fails, and the late answer goes to whoever cleans up', async () => {
    const { clock, calls } = callsOf()
    const answer = Promise.withResolvers<string>()
    const late = vi.fn()
    const told = vi.fn()
    const failing = thrown(callStore(calls, 'claim', subject, () => answer.promise, late))
    void failing.then(told)
    await clock.advance(499)
    expect(told).not.toHaveBeenCalled()
    await clock.advance(1)
    expect((await failing).message).toContain('no answer within 500 ms')
    expect(late).not.toHaveBeenCalled()
    answer.resolve('late')
    await clock.advance(0)
    expect(late.mock.calls).toEqual([['late']])
  })

  test('whose failure comes late is told once, and an answer in time is not late', async () => {
    const { clock, calls } = callsOf()
    const answer = Promise.withResolvers<string>()
    const late = vi.fn()
    const failing = thrown(callStore(calls, 'claim', subject, () => answer.promise, late))
    await clock.advance(500)
    await failing
    answer.reject(new Error('ECONNRESET'))
    await clock.advance(0)
    expect(heard).toHaveLength(1)
    await callStore(calls, 'claim', subject, async () => 'answer', late)
    await bounded(calls, async () => 'answer', late)
    expect(late).not.toHaveBeenCalled()
  })

  test('that is only bounded fails with the error of the store as it is, and tells nobody', async () => {
    const { clock, calls } = callsOf()
    const cause = new Error('deadlock')
    expect(await thrown(bounded(calls, () => Promise.reject(cause)))).toBe(cause)
    const late = vi.fn()
    const answer = Promise.withResolvers<string>()
    const failing = thrown(bounded(calls, () => answer.promise, late))
    await clock.advance(500)
    expect((await failing).message).toBe('no answer within 500 ms')
    answer.resolve('late')
    await clock.advance(0)
    expect(late.mock.calls).toEqual([['late']])
    expect(heard).toEqual([])
  })

  test.each<[cause: unknown, code: string | undefined]>([
    [{ code: 'ECONNREFUSED' }, 'ECONNREFUSED'],
    [{ code: '57P01' }, '57P01'],
    [{ code: 'x'.repeat(40) }, 'x'.repeat(40)],
    [{ code: 'x'.repeat(41) }, undefined],
    [{ code: 'key payments/order-42' }, undefined],
    [{ code: '' }, undefined],
    [{ code: 5 }, undefined],
    [{}, undefined],
    ['ECONNREFUSED', undefined],
    [null, undefined],
  ])('tells the code of a driver, and nothing that is no code: %j', async (cause, code) => {
    const { calls } = callsOf()
    await thrown(callStore(calls, 'claim', undefined, () => Promise.reject(cause)))
    expect(heard[0]!.event).toEqual({
      scope: undefined,
      keyHash: undefined,
      during: 'claim',
      code: 'STORE_UNAVAILABLE',
      ...(code !== undefined && { cause: code }),
    })
  })

  test.each<ErrorCode>(['SESSION_EXPIRED', 'FENCED', 'FORGOTTEN', 'MISMATCH', 'WINDOW_EXCEEDED', 'GAP'])(
    'that the rules of a session refuse has not failed: %s',
    async (code) => {
      const { calls } = callsOf()
      const refused = new OnceError(code, { message: 'refused' })
      expect(await thrown(callStore(calls, 'session', subject, () => Promise.reject(refused)))).toBe(refused)
      expect(heard).toEqual([])
    },
  )
})

describe('a store that only a person can mend', () => {
  const unsafe = (message = 'appendonly is off', cause?: unknown): OnceError =>
    new OnceError('STORE_UNSAFE', { message, cause })

  test('is known by its code, and by the fact that no retry helps', () => {
    const refused = (code: ErrorCode, retryable = false): OnceError => new OnceError(code, { message: 'm', retryable })
    for (const code of ['STORE_UNAVAILABLE', 'STORE_UNSAFE', 'SCHEMA_MISSING'] as const) {
      expect(isUnfit(refused(code))).toBe(true)
      expect(isUnfit(refused(code, true))).toBe(false)
    }
    expect(isUnfit(refused('MISMATCH'))).toBe(false)
    expect(isUnfit(new Error('STORE_UNSAFE'))).toBe(false)
  })

  test('is told as a warning of the process, with its cure and without the key', async () => {
    const { calls } = callsOf()
    const error = unsafe('payments/order-42 is not safe, payments/order-42: appendonly is off', { code: 'UNSAFE' })
    expect(await thrown(callStore(calls, 'claim', subject, () => Promise.reject(error)))).toBe(error)
    expect(warned.mock.calls).toEqual([
      [
        'The redis store cannot be used. a key is not safe, a key: appendonly is off',
        { type: 'OnceonlyWarning', code: 'STORE_UNSAFE' },
      ],
    ])
    expect(heard).toEqual([
      { name: 'store-failed', event: expect.objectContaining({ code: 'STORE_UNSAFE', cause: 'UNSAFE' }) },
      {
        name: 'store-unfit',
        event: { scope: undefined, keyHash: undefined, store: 'redis', code: 'STORE_UNSAFE', cause: 'UNSAFE' },
      },
    ])
  })

  test('is told once per hour and cause, and by each createOnce', async () => {
    const { clock, calls } = callsOf()
    const fail = (error: OnceError, by = calls): Promise<OnceError> =>
      thrown(callStore(by, 'sweep', undefined, () => Promise.reject(error)))
    await fail(unsafe())
    await fail(unsafe())
    expect(warned).toHaveBeenCalledTimes(1)
    await fail(unsafe('appendonly is off', { code: 'OTHER' }))
    await fail(new OnceError('SCHEMA_MISSING', { message: 'no tables' }))
    expect(warned).toHaveBeenCalledTimes(3)
    await fail(unsafe(), { ...calls })
    expect(warned).toHaveBeenCalledTimes(4)
    await clock.advance(3_599_999)
    await fail(unsafe())
    expect(warned).toHaveBeenCalledTimes(4)
    await clock.advance(1)
    await fail(unsafe())
    expect(warned).toHaveBeenCalledTimes(5)
    expect(warned.mock.calls[0]![0]).toBe('The redis store cannot be used. appendonly is off')
  })
})

// What a held key promises besides safety: its last write is not given up early, its release is over when the caller is told,
// and its deadline fits its lease.

import { expect, test, vi } from 'vitest'
import { memoryData, memoryStore } from '../../stores/memory.ts'
import type { MemoryData } from '../../stores/memory.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import type { ManualClock } from '../../testing/manual-clock.ts'
import { InDoubtError, NotBegunError, OnceError } from '../errors.ts'
import { createOnce } from '../once.ts'
import type { OnceOptions } from '../settings.ts'
import type { Store } from '../store.ts'

function world() {
  const clock = manualClock()
  const data = memoryData(clock)
  const process = (options: Partial<OnceOptions> = {}) =>
    createOnce({ store: memoryStore({ data }), scope: 'payments', clock, sweepEveryMs: false, ...options })
  return { clock, data, process }
}

/** A store whose settles fail until it is up again. */
function flakyStore(data: MemoryData) {
  const store = memoryStore({ data })
  const flaky = {
    isUp: false,
    store: {
      ...store,
      settle: (...args: Parameters<Store['settle']>) =>
        flaky.isUp ? store.settle(...args) : Promise.reject(new Error('ECONNREFUSED')),
    },
  }
  return flaky
}

async function codeOf(work: Promise<unknown>): Promise<string> {
  const thrown: unknown = await work.then(
    () => expect.fail('expected an error'),
    (error: unknown) => error,
  )
  return thrown instanceof OnceError ? thrown.code : String(thrown)
}

/** Runs an effect whose settle is not confirmed, to the moment when its caller has given up. */
async function leaveUnsettled(once: ReturnType<ReturnType<typeof world>['process']>, clock: ManualClock) {
  const effect = vi.fn(() => 'charged')
  const first = codeOf(once.run('42', effect))
  await clock.advance(1_000)
  expect(await first).toBe('OUTCOME_UNKNOWN')
  return effect
}

test('a settle that is not confirmed is repeated until its lease ends', async () => {
  const { clock, data, process } = world()
  const flaky = flakyStore(data)
  const once = process({ store: flaky.store, leaseMs: 30_000, storeTimeoutMs: 1_000 })
  const effect = await leaveUnsettled(once, clock)
  await clock.advance(26_000)
  flaky.isUp = true
  await clock.advance(2_500)
  expect(await process().run('42', effect, { waitMs: 0 })).toMatchObject({ value: 'charged', replayed: true })
  expect(effect).toHaveBeenCalledTimes(1)
})

test('after its lease a settle is not repeated any more', async () => {
  const { clock, data, process } = world()
  const flaky = flakyStore(data)
  const settle = vi.spyOn(flaky.store, 'settle')
  const once = process({ store: flaky.store, leaseMs: 30_000, storeTimeoutMs: 1_000 })
  await leaveUnsettled(once, clock)
  await clock.advance(31_000)
  const asked = settle.mock.calls.length
  await clock.advance(60_000)
  expect(settle.mock.calls.length).toBe(asked)
  expect(clock.pending).toBe(0)
})

test('close waits for a settle that is not confirmed, and goes on repeating it', async () => {
  const { clock, data, process } = world()
  const flaky = flakyStore(data)
  const once = process({ store: flaky.store, leaseMs: 30_000, storeTimeoutMs: 1_000 })
  const effect = await leaveUnsettled(once, clock)
  const closed = vi.fn()
  const closing = once.close().then(closed)
  await clock.advance(5_000)
  expect(closed).not.toHaveBeenCalled()
  flaky.isUp = true
  await clock.advance(2_500)
  await closing
  expect(await process().run('42', effect)).toMatchObject({ value: 'charged', replayed: true })
  expect(effect).toHaveBeenCalledTimes(1)
})

test.each([
  ['opened', () => new Error('declined'), 2],
  ['forgotten', () => new NotBegunError('invalid'), 1],
] as const)('a caller is told of a failure after its key is free again (%s)', async (_, error, attempt) => {
  const { data, process } = world()
  const store = memoryStore({ data })
  const begun = Promise.withResolvers<void>()
  const answer = Promise.withResolvers<void>()
  const slow: Store = {
    ...store,
    async release(...args) {
      begun.resolve()
      await answer.promise
      return store.release(...args)
    },
  }
  const told = vi.fn()
  const failing = process({ store: slow }).run('42', () => Promise.reject(error()))
  const heard = failing.catch(told)
  await begun.promise
  await new Promise(setImmediate)
  expect(told).not.toHaveBeenCalled()
  answer.resolve()
  await heard
  expect(await process().run('42', () => 'second', { waitMs: 0 })).toMatchObject({ value: 'second', attempt })
})

test('a release that fails does not hide why the effect failed', async () => {
  const { data, process, clock } = world()
  const deaf: Store = { ...memoryStore({ data }), release: () => Promise.reject(new Error('ECONNREFUSED')) }
  const once = process({ store: deaf, storeTimeoutMs: 1_000 })
  const failing = codeOf(once.run('42', () => Promise.reject(new Error('declined'))))
  await clock.advance(1_000)
  expect(await failing).toBe('Error: declined')
})

test('a call with a lease of its own has a deadline that fits it', async () => {
  const { clock, process } = world()
  const once = process({ leaseMs: 30_000 })
  let signal: AbortSignal | undefined
  const hung = codeOf(
    once.run('42', (op) => ((signal = op.signal), new Promise<string>(() => {})), { leaseMs: 600_000 }),
  )
  await clock.advance(20 * 600_000 - 1)
  expect(signal!.aborted).toBe(false)
  await clock.advance(1)
  expect(signal!.aborted).toBe(true)
  await clock.advance(600_000)
  expect(await hung).toBe('DEADLINE_PASSED')
})

test('a deadline of its own holds, whatever the lease', async () => {
  const { clock, process } = world()
  const hung = codeOf(process().run('42', () => new Promise<string>(() => {}), { leaseMs: 10_000, attemptMs: 500 }))
  await clock.advance(10_500)
  expect(await hung).toBe('DEADLINE_PASSED')
})

test('an effect in doubt is not released: its key is busy until its lease ends, to the millisecond', async () => {
  const { clock, process } = world()
  const once = process({ leaseMs: 30_000, waitMs: 0 })
  const inDoubt = new InDoubtError('no answer')
  await expect(once.run('42', () => Promise.reject(inDoubt))).rejects.toBe(inDoubt)
  await clock.advance(29_999)
  expect(await codeOf(once.run('42', () => 'second'))).toBe('IN_FLIGHT')
  await clock.advance(1)
  expect(await once.run('42', () => 'second')).toMatchObject({ value: 'second', attempt: 2 })
})

// What a held key promises besides safety: its last write is not given up early, its release is over when the caller is told,
// and its deadline fits its lease.

import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { memoryData, memoryStore } from '../../stores/memory.ts'
import type { MemoryData } from '../../stores/memory.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import type { ManualClock } from '../../testing/manual-clock.ts'
import { InDoubtError, NotBegunError, OnceError } from '../errors.ts'
import { hashKey, key } from '../key.ts'
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

test('a deadline that createOnce was given holds for a call with a longer lease of its own', async () => {
  const { clock, process } = world()
  const once = process({ leaseMs: 1_000, attemptMs: 20_000 })
  let signal: AbortSignal | undefined
  const hung = codeOf(once.run('42', (op) => ((signal = op.signal), new Promise<string>(() => {})), { leaseMs: 5_000 }))
  await clock.advance(20_000 - 1)
  expect(signal!.aborted).toBe(false)
  await clock.advance(1)
  expect(signal!.aborted).toBe(true)
  await clock.advance(5_000)
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

test('a store that is slow to confirm is given its whole time, though that is longer than the lease', async () => {
  const { clock, data, process } = world()
  const flaky = flakyStore(data)
  const settled = process({ store: flaky.store, leaseMs: 1_000, storeTimeoutMs: 10_000 }).run('42', () => 'charged')
  await clock.advance(5_000)
  flaky.isUp = true
  await clock.advance(2_500)
  expect(await settled).toMatchObject({ value: 'charged', replayed: false })
  expect(clock.pending).toBe(0)
})

test('a caller waits for one store time-out from its settle on, however long its process has run', async () => {
  const { clock, data, process } = world()
  await clock.advance(1_000_000)
  const told = vi.fn()
  void process({ store: flakyStore(data).store, storeTimeoutMs: 1_000 })
    .run('42', () => 'charged')
    .catch(told)
  await clock.advance(999)
  expect(told).not.toHaveBeenCalled()
  await clock.advance(1)
  expect(told).toHaveBeenCalledTimes(1)
  const [error] = told.mock.calls[0] as [OnceError]
  expect(error.message).toContain('payments/42 (attempt 1)')
  expect(error.message).toContain('did not confirm the settle')
  expect((error.cause as OnceError).message).toContain('ECONNREFUSED')
})

test.each([
  ['an outcome that is too large', 'OUTCOME_NOT_STORED', {}, 2],
  ['one that is too large and left nothing', 'OUTCOME_NOT_STORED', { executed: 'no' }, 2],
  ['an entry that cannot be read', 'OUTCOME_UNREADABLE', {}, 1],
] as const)('what a store refuses for good is not asked again: %s', async (_, code, details, asked) => {
  const { clock, data, process } = world()
  const settle = vi.fn(() => Promise.reject(new OnceError(code, { message: 'refused', ...details })))
  const told = codeOf(process({ store: { ...memoryStore({ data }), settle } }).run('42', () => 'charged'))
  await clock.advance(0)
  expect(await told).toBe(code)
  // What is too large is tried once more as "not stored".
  expect(settle).toHaveBeenCalledTimes(asked)
})

describe('a claim that is lost', () => {
  const heard: { readonly attempt: number; readonly durationMs: number; readonly keyHash: string }[] = []
  const failures: { readonly during: string }[] = []
  const hearLost = (event: unknown): void => void heard.push(event as (typeof heard)[number])
  const hearFailure = (event: unknown): void => void failures.push(event as (typeof failures)[number])
  beforeEach(() => {
    heard.length = failures.length = 0
    subscribe('onceonly:lost', hearLost)
    subscribe('onceonly:store-failed', hearFailure)
  })
  afterEach(() => {
    unsubscribe('onceonly:lost', hearLost)
    unsubscribe('onceonly:store-failed', hearFailure)
  })

  test('is told by its heartbeat: the signal aborts, the event says how long it was held, and nothing is settled', async () => {
    const { clock, data, process } = world()
    const store = memoryStore({ data })
    const settle = vi.fn(store.settle)
    await clock.advance(500)
    const work = Promise.withResolvers<string>()
    let signal: AbortSignal | undefined
    const zombie = process({ store: { ...store, settle, extend: async () => 'lost' as const }, leaseMs: 3_000 })
    const lost = codeOf(zombie.run('42', (op) => ((signal = op.signal), work.promise)))
    await clock.advance(999)
    expect(signal!.aborted).toBe(false)
    await clock.advance(1)
    expect(signal!.reason).toMatchObject({ code: 'CLAIM_LOST' })
    work.resolve('first')
    expect(await lost).toBe('CLAIM_LOST')
    expect(settle).not.toHaveBeenCalled()
    expect(heard).toEqual([
      { scope: 'payments', keyHash: hashKey(key('payments', '42')), attempt: 1, durationMs: 1_000 },
    ])
  })

  test('by silence is not told as lost before the store says so: its settle decides', async () => {
    const { clock, data, process } = world()
    const mute: Store = { ...memoryStore({ data }), extend: () => Promise.reject(new Error('ECONNRESET')) }
    const work = Promise.withResolvers<string>()
    let signal: AbortSignal | undefined
    const first = process({ store: mute, leaseMs: 3_000 }).run('42', (op) => ((signal = op.signal), work.promise))
    await clock.advance(2_999)
    expect(signal!.aborted).toBe(false)
    await clock.advance(1)
    expect(signal!.reason).toMatchObject({ code: 'CLAIM_LOST' })
    expect(heard).toEqual([])
    expect(failures.every(({ during }) => during === 'extend')).toBe(true)
    work.resolve('first')
    expect(await first).toMatchObject({ value: 'first', replayed: false })
  })

  test('is told by its settle, once, with the key and the lease in the message', async () => {
    const { clock, data, process } = world()
    const store = memoryStore({ data })
    const lost = process({ store: { ...store, settle: async () => 'lost' as const } }).run('42', async () => {
      await clock.advance(200)
      return 'first'
    })
    await expect(lost).rejects.toMatchObject({
      code: 'CLAIM_LOST',
      message: expect.stringContaining('payments/42 (attempt 1) outlived its 30000 ms lease'),
    })
    expect(heard).toMatchObject([{ attempt: 1, durationMs: 200 }])
  })

  test('is told by its release, and the caller gets the error of the effect', async () => {
    const { data, process } = world()
    const store: Store = { ...memoryStore({ data }), release: async () => 'lost' }
    expect(await codeOf(process({ store }).run('42', () => Promise.reject(new Error('declined'))))).toBe(
      'Error: declined',
    )
    expect(heard).toHaveLength(1)
  })

  test.each(['settle', 'release'] as const)('says what was asked of a store that fails: %s', async (during) => {
    const { clock, data, process } = world()
    const store: Store = { ...memoryStore({ data }), [during]: () => Promise.reject(new Error('ECONNRESET')) }
    const failing = codeOf(
      process({ store, storeTimeoutMs: 1_000, leaseMs: 1_000 }).run('42', () =>
        during === 'settle' ? 'value' : Promise.reject(new Error('declined')),
      ),
    )
    await clock.advance(5_000)
    await failing
    expect(failures.length).toBeGreaterThan(1)
    expect(new Set(failures.map((each) => each.during))).toEqual(new Set([during]))
  })
})

test('a heartbeat ends with the last write: a settled key is extended no more', async () => {
  const { clock, data, process } = world()
  const store = memoryStore({ data })
  const extend = vi.fn(store.extend)
  const once = process({ store: { ...store, extend }, leaseMs: 3_000 })
  const work = Promise.withResolvers<string>()
  const first = once.run('42', () => work.promise)
  await clock.advance(2_500)
  expect(extend).toHaveBeenCalledTimes(2)
  work.resolve('first')
  await first
  await clock.advance(60_000)
  expect(extend).toHaveBeenCalledTimes(2)
})

test('a hung effect is told with its key, its attempt and its deadline', async () => {
  const { clock, process } = world()
  const hung = process({ leaseMs: 1_000, attemptMs: 2_000 }).run('42', () => new Promise<string>(() => {}))
  const told = expect(hung).rejects.toMatchObject({
    code: 'DEADLINE_PASSED',
    message: expect.stringContaining('payments/42 (attempt 1) did not end within its attemptMs of 2000'),
  })
  await clock.advance(3_000)
  await told
})

describe('a heartbeat', () => {
  /** A holder whose extensions the test answers, and what it has been told. */
  async function holder(options: Partial<OnceOptions>, extendBy: (clock: ManualClock) => Store['extend']) {
    const { clock, data, process } = world()
    const spied = vi.fn(extendBy(clock))
    const work = Promise.withResolvers<string>()
    const seen: { signal?: AbortSignal } = {}
    const once = process({ leaseMs: 3_000, ...options, store: { ...memoryStore({ data }), extend: spied } })
    const first = once.run('42', (op) => ((seen.signal = op.signal), work.promise))
    first.catch(() => {})
    await clock.advance(0)
    return { clock, extend: spied, work, first, signal: seen.signal! }
  }

  test('comes at every third of the lease, counted from when it asked, though answers are slow', async () => {
    const askedAtMs: number[] = []
    const at = await holder({ storeTimeoutMs: 5_000 }, (clock) => () => {
      askedAtMs.push(clock.elapsed())
      return new Promise((resolve) => void clock.schedule(() => resolve('done'), 400))
    })
    await at.clock.advance(6_500)
    expect(askedAtMs).toEqual([1_000, 2_000, 3_000, 4_000, 5_000, 6_000])
    at.work.resolve('first')
    await at.first
  })

  test('that fails is repeated, and only a lease without any success ends the attempt', async () => {
    let calls = 0
    const at = await holder({}, () => async () => {
      if (++calls % 2 === 1) throw new Error('ECONNRESET')
      return 'done'
    })
    await at.clock.advance(30_000)
    expect(at.signal.aborted).toBe(false)
    at.work.resolve('first')
    expect(await at.first).toMatchObject({ value: 'first' })
  })

  test('counts the lease from its last success: a failure does not prolong it', async () => {
    let calls = 0
    const at = await holder({}, () => async () => {
      if (++calls > 1) throw new Error('ECONNRESET')
      return 'done'
    })
    await at.clock.advance(3_999)
    expect(at.signal.aborted).toBe(false)
    await at.clock.advance(1)
    expect(at.signal.aborted).toBe(true)
  })

  test('gives an extension that hangs no more time than the lease has left', async () => {
    const at = await holder({ storeTimeoutMs: 60_000 }, () => () => new Promise(() => {}))
    await at.clock.advance(2_999)
    expect(at.signal.aborted).toBe(false)
    await at.clock.advance(1)
    expect(at.signal.reason).toMatchObject({ code: 'CLAIM_LOST' })
  })

  test('asks nothing more when it has heard that the claim is lost', async () => {
    const at = await holder({}, () => async () => 'lost')
    await at.clock.advance(60_000)
    expect(at.extend).toHaveBeenCalledTimes(1)
    expect(at.signal.aborted).toBe(true)
  })

  test('whose answer comes after the settle asks nothing more', async () => {
    const answer = Promise.withResolvers<'done'>()
    const at = await holder({}, () => () => answer.promise)
    await at.clock.advance(1_000)
    at.work.resolve('first')
    await at.first
    answer.resolve('done')
    await at.clock.advance(60_000)
    expect(at.extend).toHaveBeenCalledTimes(1)
    expect(at.clock.pending).toBe(0)
  })
})

describe('the events of one call', () => {
  const names = ['claimed', 'taken-over', 'settled', 'released'] as const
  const heard: { name: string; event: object }[] = []
  const listeners = names.map((name) => {
    const listener = (event: unknown): void => void heard.push({ name, event: event as object })
    return { channel: `onceonly:${name}`, listener }
  })
  beforeEach(() => {
    heard.length = 0
    for (const { channel, listener } of listeners) subscribe(channel, listener)
  })
  afterEach(() => listeners.forEach(({ channel, listener }) => unsubscribe(channel, listener)))

  /** A store that takes 30 ms for a claim, 20 ms for a settle and 10 ms for a release. */
  function slowStore(clock: ManualClock, data: MemoryData): Store {
    const store = memoryStore({ data })
    const after = <T>(ms: number, call: () => Promise<T>): Promise<T> =>
      new Promise((resolve) => clock.schedule(() => resolve(call()), ms))
    return {
      ...store,
      claim: (...args) => after(30, () => store.claim(...args)),
      settle: (...args) => after(20, () => store.settle(...args)),
      release: (...args) => after(10, () => store.release(...args)),
    }
  }

  test('say what happened, which attempt it was, and how long the store took', async () => {
    const { clock, data, process } = world()
    await clock.advance(777)
    const once = process({ store: slowStore(clock, data), leaseMs: 1_000, waitMs: 0 })
    const failing = once.run('42', () => Promise.reject(new Error('down'))).catch(() => {})
    await clock.advance(100)
    await failing
    const inDoubt = once.run('42', () => Promise.reject(new InDoubtError('no answer'))).catch(() => {})
    await clock.advance(2_000)
    await inDoubt
    const last = once.run('42', () => 'value')
    await clock.advance(100)
    await last
    expect(heard).toMatchObject([
      { name: 'claimed', event: { attempt: 1, how: 'fresh', durationMs: 30 } },
      { name: 'released', event: { attempt: 1, how: 'open', durationMs: 10 } },
      { name: 'claimed', event: { attempt: 2, how: 'reopened', durationMs: 30 } },
      { name: 'released', event: { attempt: 2, how: 'left-to-lease', durationMs: 0 } },
      { name: 'claimed', event: { attempt: 3, how: 'taken-over', durationMs: 30 } },
      { name: 'taken-over', event: { attempt: 3 } },
      { name: 'settled', event: { attempt: 3, kind: 'value', durationMs: 20 } },
    ])
  })
})

test('a takeover is told also to those who listen to nothing else', async () => {
  const { clock, process } = world()
  const once = process({ leaseMs: 1_000, waitMs: 0 })
  const heard = vi.fn()
  subscribe('onceonly:taken-over', heard)
  await once.run('42', () => Promise.reject(new InDoubtError('no answer'))).catch(() => {})
  await clock.advance(1_000)
  await once.run('42', () => 'value')
  unsubscribe('onceonly:taken-over', heard)
  expect(heard.mock.calls.map(([event]) => event as object)).toMatchObject([{ attempt: 2 }])
})

test('a failure whose claim was lost is told as lost, with the failure as its cause', async () => {
  const { data, process } = world()
  const store: Store = { ...memoryStore({ data }), settle: async () => 'lost' }
  const declined = new TypeError('declined')
  const lost = process({ store, onThrow: 'store' }).run('42', () => Promise.reject(declined))
  await expect(lost).rejects.toMatchObject({ code: 'CLAIM_LOST', cause: declined })
})

test('an effect that hangs is in doubt when it is given up, and not released: it may still do anything', async () => {
  const { clock, process } = world()
  const once = process({ leaseMs: 1_000, attemptMs: 2_000, onTakeover: 'refuse', waitMs: 0 })
  const hung = codeOf(once.run('42', () => new Promise<string>(() => {})))
  await clock.advance(3_000)
  expect(await hung).toBe('DEADLINE_PASSED')
  expect(await codeOf(once.run('42', () => 'second'))).toBe('IN_DOUBT')
})

test('a settle whose outcome the store itself does not know is asked again', async () => {
  const { clock, data, process } = world()
  const store = memoryStore({ data })
  let calls = 0
  const unsure: Store = {
    ...store,
    settle: (...args) =>
      ++calls === 1
        ? Promise.reject(new OnceError('OUTCOME_UNKNOWN', { message: 'a failover' }))
        : store.settle(...args),
  }
  const settled = process({ store: unsure }).run('42', () => 'charged')
  await clock.advance(1_000)
  expect(await settled).toMatchObject({ value: 'charged', replayed: false })
  expect(calls).toBe(2)
})

test('an attempt whose settle is refused as lost leaves no timer', async () => {
  const { clock, data, process } = world()
  const store: Store = { ...memoryStore({ data }), settle: async () => 'lost' }
  expect(await codeOf(process({ store }).run('42', async () => 'first'))).toBe('CLAIM_LOST')
  expect(clock.pending).toBe(0)
})

// Asking for a key, and waiting for it: what happens to claims that nobody heard of, and how often a duplicate asks.

import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { describe, expect, test, vi } from 'vitest'
import { memoryData, memoryStore } from '../../stores/memory.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import type { Random } from '../clock.ts'
import { OnceError } from '../errors.ts'
import { createOnce } from '../once.ts'
import type { OnceOptions } from '../settings.ts'
import type { Store } from '../store.ts'

/** Always the longest pause, so that times can be told in advance. */
const steady: Random = {
  uuid: () => crypto.randomUUID(),
  fraction: () => 1,
  bytes: (count) => crypto.getRandomValues(new Uint8Array(count)),
}

function world() {
  const clock = manualClock()
  const data = memoryData(clock)
  const store = memoryStore({ data })
  const process = (options: Partial<OnceOptions> = {}) =>
    createOnce({ store, scope: 'payments', clock, random: steady, sweepEveryMs: false, ...options })
  return { clock, data, store, process }
}

const codeOf = (work: Promise<unknown>): Promise<unknown> =>
  work.then(
    () => 'no error',
    (error: { code?: string }) => error.code,
  )

describe('a claim that nobody heard of', () => {
  /** Every claim lands, and its reply is lost; releases are answered as the test says. */
  async function unheard(leaseMs: number, answer: 'done' | 'lost' | 'down') {
    const { clock, store, process } = world()
    const releasedAtMs: number[] = []
    const deaf: Store = {
      ...store,
      claim: async (...args) => (await store.claim(...args), Promise.reject(new Error('ECONNRESET'))),
      release: async (_claim, how) => {
        expect(how).toBe('forget')
        releasedAtMs.push(clock.elapsed())
        if (answer === 'down') throw new Error('ECONNRESET')
        return answer
      },
    }
    const once = process({ store: deaf, leaseMs })
    expect(await codeOf(once.run('42', () => 'never'))).toBe('STORE_UNAVAILABLE')
    return { clock, once, releasedAtMs }
  }

  test('is released again and again, as it may still be on its way', async () => {
    const { clock, releasedAtMs } = await unheard(30_000, 'done')
    await clock.advance(60_000)
    expect(releasedAtMs).toEqual([0, 100, 1_100, 6_100])
    expect(clock.pending).toBe(0)
  })

  test('is released also by a store that fails meanwhile', async () => {
    const { clock, releasedAtMs } = await unheard(30_000, 'down')
    await clock.advance(60_000)
    expect(releasedAtMs).toEqual([0, 100, 1_100, 6_100])
  })

  test('is released once where the store knows that it is not there', async () => {
    const { clock, releasedAtMs } = await unheard(30_000, 'lost')
    await clock.advance(60_000)
    expect(releasedAtMs).toEqual([0])
  })

  test('is not released later than its lease would end', async () => {
    const { clock, releasedAtMs } = await unheard(1_000, 'done')
    await clock.advance(60_000)
    expect(releasedAtMs).toEqual([0, 100])
  })

  test('does not keep close waiting for its pauses', async () => {
    const { clock, once, releasedAtMs } = await unheard(30_000, 'done')
    await clock.advance(200)
    const closed = vi.fn()
    void once.close().then(closed)
    await clock.advance(0)
    expect(closed).toHaveBeenCalledTimes(1)
    expect(releasedAtMs).toHaveLength(4)
  })
})

describe('what is given back of a claim', () => {
  interface Given {
    readonly answer: () => ReturnType<Store['claim']>
    readonly afterMs?: number
  }

  /** What was released of a call whose claim was answered so, and how its pauses were set. */
  async function released({ answer, afterMs = 0 }: Given) {
    const { clock, store, process } = world()
    const given: unknown[] = []
    const pauses: unknown[] = []
    const mute: Store = {
      ...store,
      claim: async () => {
        if (afterMs > 0) await new Promise<void>((resolve) => void clock.schedule(resolve, afterMs))
        return answer()
      },
      release: async ({ attempt, fence, token, key }, how) => {
        given.push({ attempt, fence, how, id: key.id, hasToken: token.length === 36 })
        return 'lost'
      },
    }
    const watched = {
      ...clock,
      now: () => clock.now(),
      elapsed: () => clock.elapsed(),
      schedule: (run: () => void, delayMs: number, how?: 'background') => {
        if (how) pauses.push([delayMs, how])
        return clock.schedule(run, delayMs)
      },
    }
    const once = process({ store: mute, storeTimeoutMs: 1_000, clock: watched })
    const failing = codeOf(once.run('42', () => 'never'))
    await clock.advance(10_000)
    return { code: await failing, given, pauses }
  }
  const unheard = { attempt: 0, fence: 0, how: 'forget', id: '42', hasToken: true }

  test('is whatever its token holds, and no pause for it keeps the process alive', async () => {
    const lost = await released({ answer: () => Promise.reject(new Error('ECONNRESET')) })
    expect(lost).toEqual({ code: 'STORE_UNAVAILABLE', given: [unheard], pauses: [[0, 'background']] })
  })

  test('is nothing when the store refused it', async () => {
    const unsafe = new OnceError('STORE_UNSAFE', { message: 'appendonly is off', retryable: true })
    expect(await released({ answer: () => Promise.reject(unsafe) })).toMatchObject({ code: 'STORE_UNSAFE', given: [] })
  })

  test('is nothing more when a late answer is no grant', async () => {
    const busy = await released({ answer: async () => ({ is: 'busy', retryAfterMs: 5 }), afterMs: 5_000 })
    expect(busy).toMatchObject({ code: 'STORE_UNAVAILABLE', given: [unheard] })
    const claim = { key: { scope: 'payments', id: '42' }, token: 't', attempt: 1, fence: 5 }
    const granted = await released({ answer: async () => ({ is: 'granted', claim, how: 'fresh' }), afterMs: 5_000 })
    expect(granted).toMatchObject({ code: 'STORE_UNAVAILABLE', given: [unheard, unheard] })
  })
})

test('a claim whose answer took as long as its lease is confirmed before the effect starts', async () => {
  const { clock, store, process } = world()
  const extend = vi.fn(store.extend)
  const slow = (ms: number): Store => ({
    ...store,
    extend,
    claim: async (...args) => {
      const verdict = await store.claim(...args)
      await new Promise<void>((resolve) => void clock.schedule(resolve, ms))
      return verdict
    },
  })
  const run = async (id: string, ms: number): Promise<unknown> => {
    const result = process({ store: slow(ms), leaseMs: 3_000, storeTimeoutMs: 60_000 }).run(id, () => 'ran')
    await clock.advance(ms)
    return (await result).value
  }
  expect(await run('quick', 2_999)).toBe('ran')
  expect(extend).not.toHaveBeenCalled()
  expect(await run('late', 3_000)).toBe('ran')
  expect(extend).toHaveBeenCalledTimes(1)
})

describe('a duplicate that waits', () => {
  /** A key that is held, and a duplicate of another process that asks for it. */
  async function waiting(waitMs: number) {
    const { clock, store, process } = world()
    const work = Promise.withResolvers<string>()
    const first = process().run('42', () => work.promise)
    await clock.advance(0)
    const askedAtMs: number[] = []
    const asking: Store = { ...store, claim: (...args) => (askedAtMs.push(clock.elapsed()), store.claim(...args)) }
    const once = process({ store: asking, waitMs })
    return { clock, work, first, once, askedAtMs }
  }

  test('asks soon at first, then twice a second, and once more when its time is over', async () => {
    const { clock, work, first, once, askedAtMs } = await waiting(2_000)
    const duplicate = codeOf(once.run('42', () => 'never'))
    await clock.advance(10_000)
    expect(await duplicate).toBe('IN_FLIGHT')
    const pauses = askedAtMs.slice(1).map((at, index) => Math.round(at - askedAtMs[index]!))
    expect(pauses.slice(0, 7)).toEqual([20, 32, 51, 82, 131, 210, 336])
    expect(pauses.slice(7, -1).every((pause) => pause === 500)).toBe(true)
    expect(askedAtMs.at(-1)).toBe(2_000)
    work.resolve('first')
    await first
  })

  test('hands its lead on when its time is over: the others go on asking, and get the outcome', async () => {
    const { clock, work, first, once, askedAtMs } = await waiting(60_000)
    const leader = codeOf(once.run('42', () => 'never', { waitMs: 100 }))
    await clock.advance(0)
    const others = [1, 2].map(() => once.run('42', () => 'never'))
    await clock.advance(100)
    expect(await leader).toBe('IN_FLIGHT')
    const before = askedAtMs.length
    await clock.advance(5_000)
    const polls = askedAtMs.length - before
    // One of the two asks for both.
    expect(polls).toBeGreaterThan(9)
    expect(polls).toBeLessThan(20)
    work.resolve('first')
    await first
    await clock.advance(500)
    expect((await Promise.all(others)).map(({ value }) => value)).toEqual(['first', 'first'])
    expect(clock.pending).toBe(0)
  })

  test('that is woken while the key is still busy goes back to its pauses', async () => {
    const { clock, store, process } = world()
    const once = process({ waitMs: 60_000 })
    const work = Promise.withResolvers<string>()
    // Held by another process: what ends here wakes the duplicate and changes nothing.
    const holder = process().run('42', () => work.promise)
    await clock.advance(0)
    const claim = vi.spyOn(store, 'claim')
    const duplicate = once.run('42', () => 'never')
    await clock.advance(3_000)
    const before = claim.mock.calls.length
    await clock.advance(2_000)
    expect(claim.mock.calls.length - before).toBeLessThan(6)
    work.resolve('first')
    await holder
    await clock.advance(500)
    expect(await duplicate).toMatchObject({ value: 'first', replayed: true })
  })

  test('says how long it waited, and what for', async () => {
    const heard: object[] = []
    const listener = (event: unknown): void => void heard.push(event as object)
    const { clock, work, first, once } = await waiting(1_000)
    subscribe('onceonly:waited', listener)
    const impatient = codeOf(once.run('42', () => 'never'))
    await clock.advance(1_000)
    await impatient
    // One that does not wait has not waited.
    await codeOf(once.run('42', () => 'never', { waitMs: 0 }))
    const patient = once.run('42', () => 'never', { waitMs: 10_000 })
    await clock.advance(300)
    work.resolve('first')
    await first
    await clock.advance(500)
    await patient
    unsubscribe('onceonly:waited', listener)
    expect(heard).toMatchObject([
      { durationMs: 1_000, ended: 'in-flight' },
      { durationMs: expect.closeTo(316, 0), ended: 'verdict' },
    ])
  })
})

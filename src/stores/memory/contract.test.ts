// The memory store keeps the contract; what is its own: it is bounded, and a wall clock that is set does not move its time.

import { describe, expect, test } from 'vitest'
import { key } from '../../core/key.ts'
import { bytesOf, finish, request, retention, take } from '../../testing/store-contract.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import { memoryCannot, memorySubject } from '../../../test/subjects/memory.ts'
import { sweptTest } from '../../../test/subjects/swept.ts'
import { storeContract } from '../../testing/store-contract.ts'
import { memoryStore } from '../memory.ts'

sweptTest(memorySubject)
storeContract({ name: 'memory', create: () => memorySubject(), cannot: memoryCannot, test })

describe('a memory store that is full', () => {
  const short = { keepMs: 1_000, tombstoneMs: 1_000 }

  test('refuses a new key with STORE_UNAVAILABLE and forgets nothing that is alive', async () => {
    const store = memoryStore({ entriesMax: 2, clock: manualClock() })
    const claim = await take(store, key('full', '1'))
    await finish(store, key('full', '2'), bytesOf('kept'))
    await expect(store.claim(key('full', '3'), request())).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
      executed: 'no',
      message: expect.stringContaining('did not claim full/3'),
    })
    expect(await store.settle(claim, bytesOf('still mine'), retention)).toBe('done')
    expect(await store.claim(key('full', '2'), request())).toMatchObject({ is: 'settled' })
  })

  test('still takes over, reopens and gives a fresh life to the keys that it has', async () => {
    const clock = manualClock()
    const store = memoryStore({ entriesMax: 1, clock })
    await store.release(await take(store, key('full', '1'), { retention: short }), 'open')
    await take(store, key('full', '1'), { leaseMs: 100, retention: short })
    await clock.advance(100)
    expect(await take(store, key('full', '1'), { leaseMs: 100, retention: short })).toMatchObject({ attempt: 3 })
    await clock.advance(1_100)
    expect(await take(store, key('full', '1'), { onExpired: 'run' })).toMatchObject({ attempt: 1 })
  })

  test('keeps tombstones, and makes room as soon as one of them is over', async () => {
    const clock = manualClock()
    const store = memoryStore({ entriesMax: 2, clock })
    await finish(store, key('full', '1'), bytesOf('old'), { retention: short })
    await take(store, key('full', '2'))
    await clock.advance(1_999)
    await expect(store.claim(key('full', '3'), request())).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
    await clock.advance(1)
    await take(store, key('full', '3'))
    await expect(store.claim(key('full', '4'), request())).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
    expect(await store.show(key('full', '2'))).toMatchObject({ state: 'running' })
  })

  test('makes room for what was settled with less retention than it was claimed with', async () => {
    const clock = manualClock()
    const store = memoryStore({ entriesMax: 1, clock })
    const claim = await take(store, key('full', '1'))
    await expect(store.claim(key('full', '2'), request())).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
    await store.settle(claim, bytesOf('brief'), short)
    await clock.advance(2_000)
    await take(store, key('full', '2'))
  })
})

test('a wall clock that is set forward or back ends no lease and prolongs none', async () => {
  const clock = manualClock()
  const store = memoryStore({ clock })
  const start = clock.now()
  await take(store, key('clock', '1'), { leaseMs: 1_000 })
  for (const now of [start + 1e9, start - 1e9]) {
    clock.setNow(now)
    expect(await store.claim(key('clock', '1'), request())).toEqual({ is: 'busy', retryAfterMs: 1_000 })
  }
  await clock.advance(1_000)
  expect(await store.claim(key('clock', '1'), request())).toMatchObject({ is: 'granted', how: 'taken-over' })
})

test('no timer is set, however long something is kept', async () => {
  const clock = manualClock()
  const store = memoryStore({ clock })
  await finish(store, key('timer', '1'), bytesOf('long'), { retention: { keepMs: 1e12, tombstoneMs: 1e12 } })
  await store.sweep({ limit: 10 })
  expect(clock.pending).toBe(0)
})

test('options are checked at once', () => {
  expect(() => memoryStore({ entriesMax: 0 })).toThrow('expected entriesMax to be a positive integer, got 0')
  expect(() => memoryStore({ entryMax: 5 } as object)).toThrow('unknown option "entryMax", did you mean "entriesMax"?')
})

test('the audit trail of manual changes keeps the newest ten thousand', async () => {
  const store = memoryStore()
  for (let round = 0; round < 10_001; round++) {
    await take(store, key('audit', '1'))
    await store.mend(key('audit', '1'), 'forget', `round ${round}`)
  }
  const records = await store.audit(key('audit', '1'))
  expect(records).toHaveLength(10_000)
  expect(records.at(-1)?.reason).toBe('round 10000')
})

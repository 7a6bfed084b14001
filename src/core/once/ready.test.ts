import { expect, test, vi } from 'vitest'
import { memoryData, memoryStore } from '../../stores/memory.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import { OnceError } from '../errors.ts'
import { createOnce } from '../once.ts'
import type { Store } from '../store.ts'

function world(change: (store: Store) => Partial<Store> = () => ({})) {
  const clock = manualClock()
  const data = memoryData(clock)
  const memory = memoryStore({ data })
  const store: Store = { ...memory, ...change(memory) }
  return { clock, data, once: createOnce({ store, scope: 'shop', clock, sweepEveryMs: false, storeTimeoutMs: 500 }) }
}

test('a store that could serve a call is ready, was asked as a call asks it, and keeps nothing of it', async () => {
  const asked: unknown[] = []
  const { data, once } = world((store) => ({
    claim: async (...args) => {
      asked.push(args)
      return store.claim(...args)
    },
  }))
  await once.ready()
  await once.ready()
  expect(data.entries.size).toBe(0)
  expect(asked).toMatchObject([
    [
      { scope: 'shop#readiness' },
      {
        leaseMs: 30_000,
        retention: { keepMs: 30_000, tombstoneMs: 0 },
        version: 0,
        onTakeover: 'run',
        onExpired: 'run',
      },
    ],
    [{ scope: 'shop#readiness' }, {}],
  ])
  const [[first, { token }], [second]] = asked as [[{ id: string }, { token: string }], [{ id: string }]]
  expect(first.id).toBe(token)
  expect(second.id).not.toBe(first.id)
})

test.each<[what: string, change: (store: Store) => Partial<Store>]>([
  ['its claim', () => ({ claim: () => Promise.reject(new OnceError('SCHEMA_MISSING', { message: 'no tables' })) })],
  ['its release', () => ({ release: () => Promise.reject(new OnceError('SCHEMA_MISSING', { message: 'no tables' })) })],
])('a store that refuses is not ready, and the error is its own: %s', async (_, change) => {
  const warned = vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
  await expect(world(change).once.ready()).rejects.toMatchObject({ code: 'SCHEMA_MISSING', message: 'no tables' })
  warned.mockRestore()
})

test('a store that is busy with the key is ready: it has answered', async () => {
  const release = vi.fn()
  const { once } = world(() => ({ claim: async () => ({ is: 'busy', retryAfterMs: 5 }), release }))
  await once.ready()
  expect(release).not.toHaveBeenCalled()
})

test('a claim that is granted too late is forgotten, and close waits for that', async () => {
  const late = Promise.withResolvers<void>()
  const { clock, data, once } = world((store) => ({
    claim: async (...args) => (await late.promise, store.claim(...args)),
  }))
  const ready = expect(once.ready()).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
  await clock.advance(500)
  await ready
  late.resolve()
  await clock.advance(0)
  await once.close()
  expect(data.entries.size).toBe(0)
})

import { expect, test } from 'vitest'
import { OnceError } from '../core/errors.ts'
import { createOnce } from '../core/once.ts'
import { memoryStore } from '../stores/memory.ts'
import { manualClock } from '../testing/manual-clock.ts'
import { watchReadiness } from './readiness.ts'

async function watched(
  body: (world: { failing: boolean; turn(): Promise<void>; notReady(): string | undefined }) => Promise<void>,
) {
  const clock = manualClock()
  const store = memoryStore({ clock })
  const claim = store.claim.bind(store)
  const world = {
    failing: false,
    turn: () => clock.advance(2_000),
    notReady: () => watch.notReady(),
  }
  store.claim = (key, request) =>
    world.failing
      ? Promise.reject(new OnceError('STORE_UNAVAILABLE', { message: 'Redis has lost data' }))
      : claim(key, request)
  const once = createOnce({ store, scope: 'gateway:test', clock, sweepEveryMs: false })
  const watch = watchReadiness({ once, clock })
  try {
    await body(world)
    expect(await store.list({ limit: 10 })).toEqual([])
  } finally {
    await watch.close()
  }
}

test('a store that answers is ready, and the watch leaves no entry behind', () =>
  watched(async (world) => {
    for (let round = 0; round < 5; round++) await world.turn()
    expect(world.notReady()).toBe(undefined)
  }))

test('a blip does not make it not ready', () =>
  watched(async (world) => {
    await world.turn()
    world.failing = true
    await world.turn()
    await world.turn()
    expect(world.notReady()).toBe(undefined)
    world.failing = false
    await world.turn()
    expect(world.notReady()).toBe(undefined)
  }))

test('failures that are not in a row do not make it not ready, however many there are', () =>
  watched(async (world) => {
    for (let round = 0; round < 12; round++) {
      world.failing = round % 3 !== 2
      await world.turn()
      expect(world.notReady()).toBe(undefined)
    }
    world.failing = false
    await world.turn()
  }))

test('three failures in a row make it not ready, with the reason; two successes make it ready again', () =>
  watched(async (world) => {
    await world.turn()
    world.failing = true
    for (let round = 0; round < 3; round++) await world.turn()
    expect(world.notReady()).toBe('Redis has lost data')
    world.failing = false
    await world.turn()
    expect(world.notReady()).toBe('Redis has lost data')
    await world.turn()
    expect(world.notReady()).toBe(undefined)
  }))

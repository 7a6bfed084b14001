// Resolve and keep, where Redis is special: a large outcome lies under a name of its own, with its own time to live.

import { afterAll, beforeAll, expect, test } from 'vitest'
import { startRedisGround } from '../../../test/subjects/redis.ts'
import type { RedisGround } from '../../../test/subjects/redis.ts'
import { needs } from '../../../test/servers/needs.ts'
import { key } from '../../core/key.ts'
import { ask, assertSettled, bytesOf, finish, hourMs, retention, take } from '../../testing/store-contract/case.ts'
import type { RedisStore } from '../redis.ts'

needs('redis', { ours: true }).describe('mending a Redis entry', () => {
  let ground: RedisGround
  beforeAll(async () => {
    ground = await startRedisGround()
  })
  afterAll(() => ground[Symbol.asyncDispose]())

  test.each([
    ['small', bytesOf('found out')],
    ['large', new Uint8Array(5_000).fill(7)],
  ])('a %s outcome that a person found out is replayed, and its holder is fenced off', async (size, outcome) => {
    await using subject = await disposable(ground)
    const aKey = key('mending', `resolve ${size}`)
    const held = await take(subject.store, aKey)
    const reason = 'ünder the provider’s reference 7'
    expect(await subject.store.mend(aKey, { resolve: outcome, retention }, reason)).toMatchObject({ state: 'running' })
    assertSettled(await ask(subject.store, aKey), outcome)
    expect(await subject.store.settle(held, bytesOf('late'), retention)).toBe('lost')
    expect(await subject.store.release(held, 'open')).toBe('lost')
    assertSettled(await ask(subject.store, aKey), outcome)
    expect(await subject.store.audit(aKey)).toMatchObject([{ action: 'resolve', before: 'running', reason }])
    // Only what is not settled can be resolved.
    const again = await subject.store.mend(aKey, { resolve: bytesOf('another'), retention }, 'again')
    expect(again).toMatchObject({ state: 'settled' })
    assertSettled(await ask(subject.store, aKey), outcome)
  })

  test.each([
    ['small', bytesOf('paid')],
    ['large', new Uint8Array(5_000).fill(7)],
  ])('a %s outcome is kept for longer, and never for shorter', async (size, outcome) => {
    await using subject = await disposable(ground)
    const aKey = key('mending', `keep ${size}`)
    const times = { keepMs: hourMs, tombstoneMs: hourMs }
    await finish(subject.store, aKey, outcome, { retention: times })
    await subject.store.mend(aKey, { keepMs: 3 * hourMs }, 'a dispute')
    await subject.store.mend(aKey, { keepMs: hourMs / 2 }, 'too short')
    await subject.advance(3 * hourMs - 1)
    assertSettled(await ask(subject.store, aKey), outcome)
    await subject.advance(1)
    expect(await ask(subject.store, aKey)).toEqual({ is: 'expired' })
    await subject.advance(hourMs)
    expect(await ask(subject.store, aKey)).toMatchObject({ is: 'granted', how: 'fresh' })
  })
})

interface Disposable extends AsyncDisposable {
  readonly store: RedisStore
  advance(ms: number): Promise<void>
}

async function disposable(ground: RedisGround): Promise<Disposable> {
  const subject = await ground.createSubject('node-redis')
  return {
    store: subject.store as RedisStore,
    advance: async (ms) => subject.advance(ms),
    [Symbol.asyncDispose]: () => subject.destroy(),
  }
}

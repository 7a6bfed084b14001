// What a call costs, and what happens when one of the two servers is gone, slow, empty or back: the answers stay the same.

import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { inTransaction } from '../../../test/subjects/postgres.ts'
import { open, startRedisPostgresGround, testTime } from '../../../test/subjects/redis-postgres.ts'
import type { Opened, OpenOptions, RedisPostgresGround, TestTime } from '../../../test/subjects/redis-postgres.ts'
import { drivers } from '../../../test/subjects/redis.ts'
import { startFaultProxy } from '../../../test/servers/fault-proxy.ts'
import { needs } from '../../../test/servers/needs.ts'
import { pollUntil } from '../../../test/servers/poll.ts'
import { redisCommand, redisInfo } from '../../../test/servers/redis/command.ts'
import { createOnce } from '../../core/once.ts'
import { OnceError } from '../../core/errors.ts'
import { key } from '../../core/key.ts'
import {
  ask,
  assertGranted,
  assertSettled,
  bytesOf,
  failureOf,
  finish,
  otherFingerprint,
  request,
  retention,
  take,
  times,
} from '../../testing/store-contract.ts'
import { ownKey } from './names.ts'
import { redisPostgresStore } from '../redis-postgres.ts'

const aKey = key('faults', 'a key')

needs(['postgres', 'redis'], { ours: true }).describe('Redis over PostgreSQL, when things go wrong', () => {
  let ground: RedisPostgresGround
  let time: TestTime
  const opened: AsyncDisposable[] = []

  beforeAll(async () => {
    ground = await startRedisPostgresGround()
  })
  beforeEach(async () => {
    await ground.postgres.reset()
    await redisCommand(ground.redis.url, 'FLUSHALL')
    time = testTime()
    return async () => {
      for (const each of opened.splice(0)) await each[Symbol.asyncDispose]()
    }
  })
  afterAll(() => ground[Symbol.asyncDispose]())

  const passes = async (ms: number): Promise<void> => {
    await ground.postgres.advance(ms)
    time.advance(ms)
  }
  const openStore = async (options: OpenOptions = {}): Promise<Opened> => {
    const pair = await open(ground, { clock: time, ...options })
    opened.push(pair)
    return pair
  }

  test.each(drivers)('%s: a hit is one Redis command and no SQL', async (driver) => {
    const postgresProxy = await startFaultProxy({ target: ground.postgres, framer: 'postgres' })
    opened.push(postgresProxy)
    const { store } = await openStore({ driver, postgresUrl: postgresProxy.url })
    await finish(store, aKey, bytesOf('x'))
    const commands = async (): Promise<number> =>
      Number(/total_commands_processed:(\d+)/.exec(await redisInfo(ground.redis.url))![1])
    const cost = async (work: () => Promise<unknown>): Promise<{ redis: number; sql: number }> => {
      const asking = (await commands()) - (await commands())
      const before = { redis: await commands(), sql: postgresProxy.counts.request.messages }
      await work()
      // Asking costs a command or a few of its own.
      return {
        redis: (await commands()) - before.redis + asking,
        sql: postgresProxy.counts.request.messages - before.sql,
      }
    }
    expect(await cost(() => ask(store, aKey))).toEqual({ redis: 1, sql: 0 })
    expect(await cost(() => store.begin(aKey, request()))).toEqual({ redis: 1, sql: 0 })
    expect(await cost(() => Promise.all(times(50).map(() => ask(store, aKey))))).toEqual({ redis: 1, sql: 0 })
    const fresh = await cost(() => ask(store, key('faults', 'fresh')))
    expect(fresh.redis).toBe(1)
    expect(fresh.sql).toBeGreaterThan(0)
  })

  test('what a transaction has not committed is not in Redis, and what it has committed is after the first replay', async () => {
    const { store, watched, pool } = await openStore()
    await inTransaction(pool, async (tx) => {
      const inside = store.within(tx)
      const claim = await take(inside, aKey)
      expect(await inside.settle(claim, bytesOf('x'), retention)).toBe('done')
      await watched.quiet()
      expect(watched.commands).toEqual([])
    })
    assertSettled(await ask(store, aKey), bytesOf('x'))
    watched.calls.length = 0
    assertSettled(await ask(store, aKey), bytesOf('x'))
    expect(watched.calls).toEqual([])
  })

  test('a transaction of the store that was rolled back leaves nothing in Redis, and one that committed is a hit', async () => {
    const { store, watched } = await openStore()
    const undone = await store.begin(aKey, request())
    await undone.granted!.rollback()
    expect(await redisCommand(ground.redis.url, 'DBSIZE')).toBe(0)
    const done = await store.begin(aKey, request())
    expect(await done.granted!.commit(bytesOf('x'), retention)).toBe('done')
    watched.calls.length = 0
    assertSettled((await store.begin(aKey, request())).verdict, bytesOf('x'))
    expect(watched.calls).toEqual([])
  })

  test('a hit with another fingerprint is decided by the database', async () => {
    const { store, watched } = await openStore()
    await finish(store, aKey, bytesOf('x'))
    watched.calls.length = 0
    expect(await ask(store, aKey, { fingerprint: otherFingerprint })).toEqual({ is: 'mismatch' })
    expect(watched.calls).toEqual(['claim'])
  })

  test('a large outcome is left to the database', async () => {
    const { store } = await openStore()
    const large = new Uint8Array(64 * 1024 + 1).fill(7)
    await finish(store, aKey, large)
    assertSettled(await ask(store, aKey), large)
    expect(await redisCommand(ground.redis.url, 'DBSIZE')).toBe(0)
  })

  test.each(drivers)(
    '%s: a Redis that hangs costs three time-outs at the most, then nobody asks it until it is back',
    async (driver) => {
      const pair = await openStore({ driver, redisTimeoutMs: 20 })
      await finish(pair.store, aKey, bytesOf('x'))
      ground.redis.pause()
      try {
        pair.watched.commands.length = 0
        for (const _ of times(10)) assertSettled(await ask(pair.bare, aKey), bytesOf('x'))
        const sent = (name: string): number => pair.watched.commands.filter((each) => each === name).length
        // At the most: on a busy machine a time-out of 20 ms may have passed before.
        expect(sent('MGET')).toBeLessThanOrEqual(3)
        expect(sent('SET')).toBeLessThanOrEqual(3)
        // After a second one call finds out, and the others do not wait for it.
        const before = sent('MGET')
        time.advance(1_000)
        for (const _ of times(5)) assertSettled(await ask(pair.bare, aKey), bytesOf('x'))
        expect(sent('MGET')).toBe(before + 1)
      } finally {
        ground.redis.resume()
      }
      await pollUntil('Redis to answer again', async () => {
        time.advance(1_000)
        await ground.postgres.advance(1_000)
        pair.watched.calls.length = 0
        assertSettled(await ask(pair.store, aKey), bytesOf('x'))
        return pair.watched.calls.length === 0
      })
    },
  )

  test('calls that wait behind a Redis that hangs are let go together', async () => {
    const pair = await openStore({ redisTimeoutMs: 20 })
    ground.redis.pause()
    try {
      pair.watched.commands.length = 0
      const verdicts = await Promise.all(times(1_000).map((index) => ask(pair.bare, key('faults', `key ${index}`))))
      expect(verdicts.every((verdict) => verdict.is === 'granted')).toBe(true)
      // 1,000 questions are 16 batches; four are under way at once, and the rest is not sent any more.
      expect(pair.watched.commands.length).toBeLessThanOrEqual(6)
    } finally {
      ground.redis.resume()
    }
  })

  test('Redis emptied, killed and restarted in the middle of a load: one effect a key, and every answer the same', async () => {
    const stores = [await openStore(), await openStore({ driver: 'ioredis' })].map((each) => each.bare)
    const effects = new Map<string, number>()
    const answers = new Map<string, Set<string>>()
    let stopped = false
    const caller = async (number: number): Promise<void> => {
      const once = createOnce({ store: stores[number % 2]!, scope: 'load', waitMs: 60_000 })
      for (let turn = number; !stopped; turn++) {
        const id = `key ${turn % 40}`
        const { value } = await once.run(id, async () => {
          effects.set(id, (effects.get(id) ?? 0) + 1)
          return `${id} by ${number} in turn ${turn}`
        })
        if (!answers.has(id)) answers.set(id, new Set())
        answers.get(id)!.add(value)
      }
    }
    const load = Promise.all(times(8).map(caller))
    await pollUntil('every key to have run', () => effects.size === 40)
    await redisCommand(ground.redis.url, 'FLUSHALL')
    await ground.redis.crash()
    await ground.redis.restart()
    await passes(2_000)
    ground.redis.pause()
    await passes(2_000)
    ground.redis.resume()
    await ground.redis.restart()
    await pollUntil('Redis to have been filled again', async () => {
      await passes(1_000)
      return ((await redisCommand(ground.redis.url, 'DBSIZE')) as number) > 0
    })
    stopped = true
    await load
    expect([...effects.values()]).toEqual(times(40).map(() => 1))
    expect([...answers.values()].map((each) => each.size)).toEqual(times(40).map(() => 1))
  })

  test('while the database is down, hits are answered for a minute at the most, and everything else is STORE_UNAVAILABLE', async () => {
    const postgresProxy = await startFaultProxy({ target: ground.postgres, framer: 'postgres' })
    opened.push(postgresProxy)
    const { store, bare } = await openStore({ postgresUrl: postgresProxy.url, ageMaxMs: 3_600_000 })
    await finish(store, aKey, bytesOf('x'))
    await postgresProxy.setMode('refuse')
    postgresProxy.resetConnections()
    assertSettled(await ask(bare, aKey), bytesOf('x'))
    for (const [subject, changes] of [
      [key('faults', 'new'), {}],
      [aKey, { fingerprint: otherFingerprint }],
    ] as const) {
      expect(await failureOf(ask(bare, subject, changes))).toMatchObject({
        code: 'STORE_UNAVAILABLE',
        executed: 'no',
        retryable: true,
      })
    }
    time.advance(60_000)
    assertSettled(await ask(bare, aKey), bytesOf('x'))
    time.advance(1)
    expect(await failureOf(ask(bare, aKey))).toMatchObject({ code: 'STORE_UNAVAILABLE', executed: 'no' })
    await postgresProxy.setMode('pass')
  })

  test('an answer that was mended past this store is told for ageMaxMs at the most', async () => {
    const { store, database } = await openStore({ ageMaxMs: 5_000 })
    await finish(store, aKey, bytesOf('x'))
    await database.mend(aKey, 'forget', 'past the store')
    await passes(5_000)
    assertGranted(await ask(store, aKey), 'fresh', 1)
  })

  test('forgetting works while Redis is down', async () => {
    const pair = await openStore()
    await finish(pair.store, aKey, bytesOf('x'))
    await ground.redis.crash()
    expect((await pair.bare.mend(aKey, 'forget', 'a test'))?.state).toBe('settled')
    expect(await pair.database.show(aKey)).toBe(undefined)
    await ground.redis.restart()
    assertGranted(await ask(pair.bare, aKey), 'fresh', 1)
  })

  test("the store's own entry is shown to nobody", async () => {
    const { store, database } = await openStore()
    for (const scope of ['a', 'z']) for (const id of ['1', '2']) await finish(store, key(scope, id), bytesOf('x'))
    const scopes = async (from: typeof store, limit: number): Promise<string[]> =>
      (await from.list({ limit })).map((entry) => entry.key.scope)
    expect(await scopes(database, 9)).toHaveLength(5)
    expect(await scopes(store, 9)).toEqual(['a', 'a', 'z', 'z'])
    expect(await scopes(store, 3)).toEqual(['a', 'a', 'z'])
    expect(await store.list({ limit: 9, scope: ownKey('secret').scope })).toEqual([])
    expect(await store.show(ownKey('secret'))).toBe(undefined)
    expect((await database.show(ownKey('secret')))?.outcome).toHaveLength(32)
    expect(await store.mend(ownKey('secret'), 'forget', 'a new one')).toBe(undefined)
  })

  test('a database without its tables is told as such', async () => {
    const { connected, pool } = await openStore()
    const { postgresStore } = await import('../postgres.ts')
    const store = redisPostgresStore({
      redis: connected.client,
      postgres: postgresStore({ pool, table: 'never_migrated' }),
    })
    for (const _ of times(3)) expect(await failureOf(ask(store, aKey))).toMatchObject({ code: 'SCHEMA_MISSING' })
  })

  test('wrong options are refused at once', async () => {
    const { connected, database } = await openStore()
    const right = { redis: connected.client, postgres: database }
    const refused = (changes: object): string => {
      try {
        redisPostgresStore({ ...right, ...changes } as typeof right)
        return 'accepted'
      } catch (error) {
        return error instanceof OnceError ? error.message : 'another error'
      }
    }
    expect(refused({ ageMaxMs: '60s' })).toBe(
      'redisPostgresStore: expected ageMaxMs to be a positive integer of milliseconds, got "60s"',
    )
    expect(refused({ redis: {} })).toMatch(/expected redis to be a client of node-redis or of ioredis/)
    expect(refused({ postgres: {} })).toMatch(/expected postgres to be an object with the methods claim, /)
    expect(refused({ prefix: 'a b' })).toMatch(/expected prefix to be 1 to 64 letters/)
    expect(refused({ ageMax: 1 })).toBe('redisPostgresStore: unknown option "ageMax", did you mean "ageMaxMs"?')
  })
})

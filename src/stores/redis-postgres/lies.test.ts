// A Redis that lies: whatever it hands out, the answer is the database's. And time: who is told what around the moments at
// which an answer is over, by whatever clocks.

import fc from 'fast-check'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { open, startRedisPostgresGround, testTime, warmUp } from '../../../test/subjects/redis-postgres.ts'
import type { Opened, OpenOptions, RedisPostgresGround, TestTime } from '../../../test/subjects/redis-postgres.ts'
import { needs } from '../../../test/servers/needs.ts'
import { redisCommand } from '../../../test/servers/redis/command.ts'
import { key, keyString } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Verdict } from '../../core/store.ts'
import {
  ask,
  assertGranted,
  assertSettled,
  bytesOf,
  fingerprintOf,
  finish,
  retention,
  take,
} from '../../testing/store-contract.ts'
import { cacheName } from './names.ts'
import { redisPostgresStore } from '../redis-postgres.ts'

const aKey = key('lies', 'a key')
const ageMaxMs = 60_000
// See redis-postgres/cache.ts.
const marginMs = 250

needs(['postgres', 'redis'], { ours: true }).describe('a Redis that lies', () => {
  let ground: RedisPostgresGround
  let time: TestTime
  const opened: Opened[] = []

  beforeAll(async () => {
    ground = await startRedisPostgresGround()
  })
  beforeEach(async () => {
    await ground.postgres.reset()
    await ground.postgres.admin.query('drop table if exists public.elsewhere, public.elsewhere_audit')
    await redisCommand(ground.redis.url, 'FLUSHALL')
    time = testTime()
    return async () => {
      for (const each of opened.splice(0)) await each[Symbol.asyncDispose]()
    }
  })
  afterAll(() => ground[Symbol.asyncDispose]())

  const openStore = async (options: OpenOptions = {}): Promise<Opened> => {
    opened.push(await open(ground, { clock: time, ageMaxMs, ...options }))
    return opened.at(-1)!
  }
  const passes = async (ms: number): Promise<void> => {
    await ground.postgres.advance(ms)
    time.advance(ms)
  }
  const name = (subject: Key): string => cacheName('onceonly:settled', subject)
  const inRedis = async ({ connected }: Opened, subject: Key): Promise<Buffer> => {
    const client = connected.client as { sendCommand(command: string[], options: object): Promise<unknown> }
    const bytes = await client.sendCommand(['GET', name(subject)], { typeMapping: { 36: Buffer } })
    expect(bytes, `${subject.scope}/${subject.id} should be in Redis`).toBeInstanceOf(Buffer)
    return bytes as Buffer
  }
  const put = async ({ connected }: Opened, subject: Key, bytes: Buffer): Promise<void> => {
    await connected.send('SET', name(subject), bytes as unknown as string)
  }
  const expectTheDatabasesWord = async (
    { store, database }: Opened,
    subject: Key,
    fingerprint: string,
  ): Promise<Verdict> => {
    const told = await ask(store, subject, { fingerprint })
    expect(told).toEqual(await ask(database, subject, { fingerprint }))
    return told
  }

  test('no change to any bytes in Redis, and no exchange of entries, ever changes an answer', async () => {
    const pair = await openStore()
    const elsewhere = await openStore({ table: 'elsewhere', prefix: 'elsewhere' })
    const prints = ['one', 'two'].map(fingerprintOf)
    const keys = ['a', 'b', 'ab'].flatMap((scope) => ['b', 'bc', 'c'].map((id) => key(scope, id)))
    const sealed: Buffer[] = [Buffer.from('forgotten'), Buffer.alloc(0)]
    for (const [index, each] of keys.entries()) {
      await finish(pair.store, each, bytesOf(`outcome ${index}`), { fingerprint: prints[index % 2]!, version: index })
      sealed.push(await inRedis(pair, each))
      await finish(elsewhere.store, each, bytesOf(`of elsewhere`), { fingerprint: prints[index % 2]!, version: index })
      const client = elsewhere.connected.client as { sendCommand(command: string[], as: object): Promise<unknown> }
      const named = ['GET', cacheName('elsewhere', each)]
      sealed.push((await client.sendCommand(named, { typeMapping: { 36: Buffer } })) as Buffer)
    }
    const lie = fc.oneof(
      fc.record({
        of: fc.constantFrom(...sealed),
        flips: fc.array(fc.tuple(fc.nat(), fc.integer({ min: 1, max: 255 }))),
      }),
      fc.record({ of: fc.constantFrom(...sealed), length: fc.nat(), more: fc.uint8Array({ maxLength: 20 }) }),
      fc.record({ garbage: fc.uint8Array({ maxLength: 200 }) }),
    )
    const bytesOfLie = (told: typeof lie extends fc.Arbitrary<infer Lie> ? Lie : never): Buffer => {
      if ('garbage' in told) return Buffer.from(told.garbage)
      if ('length' in told) return Buffer.concat([told.of.subarray(0, told.length % (told.of.length + 1)), told.more])
      const bytes = Buffer.from(told.of)
      for (const [at, change] of told.flips) if (bytes.length > 0) bytes[at % bytes.length]! ^= change
      return bytes
    }
    await fc.assert(
      fc.asyncProperty(fc.constantFrom(...keys), fc.constantFrom(...prints), lie, async (subject, print, told) => {
        await put(pair, subject, bytesOfLie(told))
        const verdict = await expectTheDatabasesWord(pair, subject, print)
        expect(verdict.is).toBe(print === prints[keys.indexOf(subject) % 2] ? 'settled' : 'mismatch')
      }),
      { numRuns: 400 },
    )
  })

  test('an entry of any other key, scope or table, for the same request, is a miss', async () => {
    const pair = await openStore()
    const elsewhere = await openStore({ table: 'elsewhere' })
    // Parts that would be the same text without a border between them, and the same id in several scopes.
    const keys = ['a', 'b', 'ab'].flatMap((scope) => ['b', 'bc', 'c'].map((id) => key(scope, id)))
    const sealed: { by: string; bytes: Buffer }[] = []
    for (const each of keys) {
      await finish(pair.store, each, bytesOf(keyString(each)))
      sealed.push({ by: keyString(each), bytes: await inRedis(pair, each) })
    }
    await pair.connected.send('FLUSHALL')
    await finish(elsewhere.store, keys[0]!, bytesOf('of elsewhere'))
    sealed.push({ by: 'elsewhere', bytes: await inRedis(elsewhere, keys[0]!) })
    for (const subject of keys) {
      for (const { by, bytes } of sealed) {
        await put(pair, subject, bytes)
        pair.watched.calls.length = 0
        assertSettled(await ask(pair.store, subject), bytesOf(keyString(subject)))
        expect(pair.watched.calls.includes('claim'), `${by} answers for ${keyString(subject)}`).toBe(
          by !== keyString(subject),
        )
      }
    }
  })

  test('every single bit of an entry counts', async () => {
    const pair = await openStore()
    await finish(pair.store, aKey, bytesOf('x'))
    const right = await inRedis(pair, aKey)
    for (let bit = 0; bit < right.length * 8; bit++) {
      const wrong = Buffer.from(right)
      wrong[bit >> 3]! ^= 1 << (bit & 7)
      await put(pair, aKey, wrong)
      pair.watched.calls.length = 0
      expect(await ask(pair.store, aKey)).toEqual({ is: 'settled', outcome: bytesOf('x'), version: 1, attempt: 1 })
      expect(pair.watched.calls).toContain('claim')
    }
  })

  test('what is no string is a miss', async () => {
    const pair = await openStore()
    await finish(pair.store, aKey, bytesOf('x'))
    await pair.connected.send('DEL', name(aKey))
    await pair.connected.send('LPUSH', name(aKey), 'a list')
    assertSettled(await ask(pair.store, aKey), bytesOf('x'))
  })

  test('an entry that Redis kept from an earlier life is not taken for one of the new', async () => {
    const pair = await openStore()
    await finish(pair.store, aKey, bytesOf('old'))
    const old = await inRedis(pair, aKey)
    await pair.store.mend(aKey, 'forget', 'a test')
    await finish(pair.store, aKey, bytesOf('new'))
    assertSettled(await ask(pair.store, aKey), bytesOf('new'))
    await passes(ageMaxMs)
    await put(pair, aKey, old)
    assertSettled(await ask(pair.store, aKey), bytesOf('new'))
  })

  test('two tables that share a Redis and its names never answer for each other', async () => {
    const [here, there] = [await openStore(), await openStore({ table: 'elsewhere' })]
    await finish(here.store, aKey, bytesOf('of here'))
    assertSettled(await ask(here.store, aKey), bytesOf('of here'))
    assertGranted(await ask(there.store, aKey), 'fresh', 1)
  })

  test('what is forgotten is forgotten at once for every process, also by a process that was about to remember it', async () => {
    let held: (() => void)[] = []
    const wrap: OpenOptions['wrap'] = (client) =>
      new Proxy(client, {
        get(target, property) {
          const own = Reflect.get(target, property, target) as (...args: unknown[]) => Promise<unknown>
          if (property !== 'sendCommand') return own
          return async (command: string[], options: object) => {
            if (command[0] === 'SET' && command.includes('NX')) await new Promise<void>((go) => held.push(go))
            return own(command, options)
          }
        },
      })
    const slow = await openStore({ wrap, redisTimeoutMs: 60_000 })
    const other = await openStore()
    await finish(slow.store, aKey, bytesOf('old'))
    expect(held).toHaveLength(1)
    await other.store.mend(aKey, 'forget', 'a test')
    held.forEach((go) => go())
    await slow.watched.quiet()
    await finish(other.store, aKey, bytesOf('new'))
    for (const { store } of [slow, other]) assertSettled(await ask(store, aKey), bytesOf('new'))
    // Held back until nothing bars the name: by then it is over.
    held = []
    const later = key('lies', 'later')
    await finish(slow.store, later, bytesOf('old'))
    await other.store.mend(later, 'forget', 'a test')
    await finish(other.store, later, bytesOf('new'))
    await passes(ageMaxMs)
    await other.connected.send('DEL', name(later))
    held.forEach((go) => go())
    await slow.watched.quiet()
    for (const { store } of [slow, other]) assertSettled(await ask(store, later), bytesOf('new'))
  })

  test.each(['before', 'after'] as const)('a name is barred %s the change, too', async (when) => {
    const forgetting = await openStore()
    const other = await openStore()
    const { database } = forgetting
    await finish(forgetting.store, aKey, bytesOf('old'))
    // The database's own mend, and what happens right before it or right after it.
    const mend: typeof database.mend = async (...args) => {
      if (when === 'before') assertSettled(await ask(other.database, aKey), bytesOf('old'))
      if (when === 'before') expect(await forgetting.connected.send('GET', name(aKey))).toBe('forgotten')
      const entry = await database.mend(...args)
      // Redis loses everything, and another process puts there what it has read before.
      if (when === 'after') await put(forgetting, aKey, old)
      return entry
    }
    const old = await inRedis(forgetting, aKey)
    const store = redisPostgresStore({
      redis: forgetting.connected.client,
      postgres: { ...database, mend },
      clock: time,
    })
    await store.mend(aKey, 'forget', 'a test')
    assertGranted(await ask(other.store, aKey), 'fresh', 1)
  })

  test('an answer comes from Redis until shortly before it expires, and not one millisecond after', async () => {
    const pair = await openStore()
    const short = { keepMs: 10_000, tombstoneMs: 1_000 }
    await finish(pair.store, aKey, bytesOf('x'), { retention: short })
    const askedDatabase = async (): Promise<boolean> => {
      pair.watched.calls.length = 0
      expect(await ask(pair.store, aKey)).toEqual(await ask(pair.database, aKey))
      return pair.watched.calls.includes('claim')
    }
    expect(await askedDatabase()).toBe(false)
    await passes(short.keepMs - marginMs - 1)
    expect(await askedDatabase()).toBe(false)
    await passes(1)
    expect(await askedDatabase()).toBe(true)
    await passes(marginMs - 1)
    assertSettled(await ask(pair.store, aKey), bytesOf('x'))
    await passes(1)
    expect(await ask(pair.store, aKey)).toEqual({ is: 'expired' })
    // Redis has a clock of its own, which has not moved: the entry is still there, and does not count.
    await inRedis(pair, aKey)
  })

  test('a first replay is remembered no longer than its entry is kept', async () => {
    const [writer, reader] = [await openStore({ prefix: 'a' }), await openStore()]
    await finish(writer.store, aKey, bytesOf('x'), { retention: { keepMs: 10_000, tombstoneMs: 1_000 } })
    await passes(5_000)
    assertSettled(await ask(reader.store, aKey), bytesOf('x'))
    await inRedis(reader, aKey)
    await passes(4_999)
    assertSettled(await ask(reader.store, aKey), bytesOf('x'))
    await passes(1)
    expect(await ask(reader.store, aKey)).toEqual({ is: 'expired' })
  })

  test('however long the question for the time and its answer take, nobody is told an answer that has expired', async () => {
    const pair = await openStore()
    let runs = 0
    const duration = fc.integer({ min: 0, max: 8_000 })
    await fc.assert(
      fc.asyncProperty(duration, duration, fc.integer({ min: 1_000, max: 30_000 }), async (thereMs, backMs, keepMs) => {
        const delays = [thereMs, backMs]
        const begin: typeof pair.database.begin = async (...args) => {
          await passes(delays.shift() ?? 0)
          const began = await pair.database.begin(...args)
          await passes(delays.shift() ?? 0)
          return began
        }
        const store = redisPostgresStore({
          redis: pair.watched.redis(pair.connected.client),
          postgres: pair.watched.postgres({ ...pair.database, begin }),
          redisTimeoutMs: 1_000,
          clock: time,
        })
        await warmUp(store, pair.watched)
        const kept = { retention: { keepMs, tombstoneMs: 3_600_000 } }
        const subjects = [store, pair.store].map((writer) => ({ writer, subject: key('lies', `slow ${runs++}`) }))
        for (const { writer, subject } of subjects) await finish(writer, subject, bytesOf('x'), kept)
        for (const stepMs of [0, keepMs - 500, 499, 1]) {
          await pair.watched.quiet()
          await passes(stepMs)
          for (const { subject } of subjects) {
            const right = await ask(pair.database, subject)
            for (const reader of [store, pair.store]) expect(await ask(reader, subject)).toEqual(right)
          }
        }
        for (const { subject } of subjects) expect(await ask(store, subject)).toEqual({ is: 'expired' })
      }),
      { numRuns: 40 },
    )
  })

  test.each([
    { what: 'a machine that was suspended', here: { wall: 10_000 } },
    { what: 'a wall clock that was set back', here: { wall: -3_600_000, elapsed: 10_000 } },
    { what: 'a wall clock that was set ahead', here: { wall: 3_600_000, elapsed: 10_000 } },
  ])('$what is told no answer that has expired', async ({ here }) => {
    const pair = await openStore()
    await finish(pair.store, aKey, bytesOf('x'), { retention: { keepMs: 10_000, tombstoneMs: 1_000 } })
    await inRedis(pair, aKey)
    await ground.postgres.advance(10_000)
    time.shift(here)
    expect(await ask(pair.store, aKey)).toEqual({ is: 'expired' })
  })

  test('processes whose clocks differ by years answer alike', async () => {
    const years = 3 * 365 * 86_400_000
    const stores: Opened[] = []
    for (const ms of [0, years, -years]) stores.push(await openStore({ clock: time.skewed(ms) }))
    for (const [index, { store }] of stores.entries()) {
      const subject = key('lies', `written by ${index}`)
      await finish(store, subject, bytesOf('x'), { retention: { keepMs: 10_000, tombstoneMs: 5_000 } })
      for (const each of stores) {
        each.watched.calls.length = 0
        assertSettled(await ask(each.store, subject), bytesOf('x'))
        expect(each.watched.calls).toEqual([])
      }
      await passes(10_000)
      for (const each of stores) expect(await ask(each.store, subject)).toEqual({ is: 'expired' })
    }
  })

  test('a database whose clock is set back has its answers remembered no longer than ageMaxMs', async () => {
    const pair = await openStore()
    await finish(pair.store, aKey, bytesOf('old'))
    const old = await inRedis(pair, aKey)
    await pair.database.mend(aKey, 'forget', 'behind the back of the store')
    await ground.postgres.advance(-3_600_000)
    time.advance(ageMaxMs)
    await ask(pair.store, key('lies', 'another')) // learns the time
    await put(pair, aKey, old)
    assertGranted(await ask(pair.store, aKey), 'fresh', 1)
    await ground.postgres.advance(3_600_000)
  })

  test('a settle that was lost is not remembered', async () => {
    const pair = await openStore()
    const zombie = await take(pair.store, aKey, { leaseMs: 1_000 })
    await passes(1_000)
    const winner = await take(pair.store, aKey)
    expect(await pair.store.settle(zombie, bytesOf('zombie'), retention)).toBe('lost')
    expect(await redisCommand(ground.redis.url, 'DBSIZE')).toBe(0)
    expect(await pair.store.settle(winner, bytesOf('winner'), retention)).toBe('done')
    expect(await ask(pair.store, aKey)).toEqual({ is: 'settled', outcome: bytesOf('winner'), version: 1, attempt: 2 })
    expect(await redisCommand(ground.redis.url, 'DBSIZE')).toBe(1)
  })

  test('only the first settle of a token is remembered, whoever sends a second with other bytes', async () => {
    const pair = await openStore()
    const token = '01234567-89ab-4def-8123-456789abcdef'
    const [first, again] = [await take(pair.store, aKey, { token }), await take(pair.store, aKey, { token })]
    expect(await pair.store.settle(first, bytesOf('first'), { keepMs: 60_000, tombstoneMs: 0 })).toBe('done')
    await pair.connected.send('FLUSHALL')
    expect(await pair.store.settle(again, bytesOf('second'), { keepMs: 60_000, tombstoneMs: 0 })).toBe('done')
    assertSettled(await ask(pair.store, aKey), bytesOf('first'))
  })
})

// What happens when Redis loses what it has acknowledged: it is found by evidence, told, and nobody new is let in. And what
// Redis cannot promise, as a reproduction.

import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { once } from 'node:events'
import { connect as connectTo, createServer } from 'node:net'
import type { AddressInfo } from 'node:net'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { connect, drivers, testClock, withClock } from '../../../test/subjects/redis.ts'
import type { Connected, Driver } from '../../../test/subjects/redis.ts'
import { needs } from '../../../test/servers/needs.ts'
import { pollUntil } from '../../../test/servers/poll.ts'
import { redisCommand } from '../../../test/servers/redis/command.ts'
import { startRedis, startReplica } from '../../../test/servers/redis.ts'
import type { Running } from '../../../test/servers/server.ts'
import { systemClock } from '../../core/clock.ts'
import type { Clock } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { key } from '../../core/key.ts'
import type { Store } from '../../core/store.ts'
import {
  ask,
  assertGranted,
  assertSettled,
  bytesOf,
  eventually,
  failureOf,
  finish,
  hourMs,
  retention,
  take,
  times,
} from '../../testing/store-contract.ts'
import { dataLossChannel, redisStore } from '../redis.ts'
import type { DataLoss, RedisStore, RedisStoreOptions } from '../redis.ts'

const opened: Connected[] = []
const servers: Running[] = []
let losses: DataLoss[] = []
const onLoss = (loss: unknown): void => void losses.push(loss as DataLoss)

beforeEach(() => {
  losses = []
  subscribe(dataLossChannel, onLoss)
})
afterEach(async () => {
  unsubscribe(dataLossChannel, onLoss)
  await Promise.all(opened.splice(0).map((each) => each.close()))
  await Promise.all(servers.splice(0).map((each) => each.stop()))
})

/** What the tests run on now. */
let program: 'valkey' | undefined
const other = (): { program?: 'valkey' } => (program ? { program } : {})

async function server(config: Record<string, string> = {}): Promise<Running> {
  servers.push(await startRedis({ config, ...other() }))
  return servers.at(-1)!
}

async function store(
  url: string,
  options: Partial<RedisStoreOptions> = {},
  driver: Driver = 'node-redis',
): Promise<RedisStore> {
  opened.push(await connect(driver, url))
  return redisStore({ client: opened.at(-1)!.client, durability: 'relaxed', ...options })
}

/** The system's clock, and as much later as the test says. */
function idleClock(): Clock & { advance(ms: number): void } {
  let aheadMs = 0
  return {
    ...systemClock,
    elapsed: () => systemClock.elapsed() + aheadMs,
    advance: (ms) => void (aheadMs += ms),
  }
}

async function removeMarks(url: string): Promise<void> {
  const marks = (await redisCommand(url, 'KEYS', 'onceonly:mark:*')) as string[]
  expect(marks).toHaveLength(1)
  await redisCommand(url, 'DEL', ...marks)
}

const keys = times(40).map((index) => key('loss', `key ${index}`))

/** Everything that may be wrong with the network is tried again; what the store says is not. */
async function assertRefused(refusing: Store, id: string): Promise<void> {
  const error = await pollUntil('the store to answer', async () => {
    const found = await failureOf(ask(refusing, key('loss', id)))
    return found.message.includes('has lost data') && found
  })
  expect([error.code, error.executed, error.retryable]).toEqual(['STORE_UNAVAILABLE', 'no', true])
}

/** A caller that asks for all keys in turn, and counts the effects that it was let run. */
function load(through: Store, ledger: Map<string, number>): { stop(): Promise<void>; refused(): number } {
  let stopped = false
  let refused = 0
  const caller = async (offset: number): Promise<void> => {
    for (let turn = offset; !stopped; turn++) {
      const each = keys[turn % keys.length]!
      try {
        const verdict = await ask(through, each)
        if (verdict.is !== 'granted') continue
        ledger.set(each.id, (ledger.get(each.id) ?? 0) + 1)
        await through.settle(verdict.claim, bytesOf('done'), retention)
      } catch (error) {
        if (!(error instanceof OnceError) || error.code !== 'STORE_UNAVAILABLE') throw error
        if (error.message.includes('has lost data')) refused++
      }
    }
  }
  const callers = Promise.all(times(8).map((index) => caller(index * 5)))
  return {
    async stop() {
      stopped = true
      await callers
    },
    refused: () => refused,
  }
}

needs('redis', { ours: true }).describe('the Redis store, when Redis loses data', () => {
  beforeEach(() => void (program = undefined))
  findsLosses(drivers)
})

needs('redis', { ours: true }).test('a quarantine that cannot be looked at, or ended, is an error', async () => {
  const redis = await server()
  const held = await store(redis.url, { timeoutMs: 300 })
  await take(held, key('data-loss', 'first'))
  await redis.crash()
  const unavailable = { code: 'STORE_UNAVAILABLE' }
  await expect(held.quarantine()).rejects.toMatchObject(unavailable)
  await expect(held.quarantine()).rejects.toThrow('Redis could not look for a quarantine: ')
  await expect(held.endQuarantine('a test')).rejects.toMatchObject(unavailable)
  await expect(held.endQuarantine('a test')).rejects.toThrow('Redis could not end the quarantine: ')
})

// By native commands alone, as far as they go.
needs('valkey', { ours: true }).describe('the Redis store, when Valkey loses data', () => {
  beforeEach(() => void (program = 'valkey'))
  findsLosses(['node-redis'])
})

function findsLosses(on: readonly Driver[]): void {
  for (const driver of on) {
    test(`${driver}: killed and restarted empty under load, it runs no effect twice, tells, and refuses until a person decides`, async () => {
      const redis = await server()
      const ledger = new Map<string, number>()
      const [first, second] = [await store(redis.url, {}, driver), await store(redis.url, {}, driver)]
      const loads = [load(first, ledger), load(second, ledger)]
      await pollUntil('all keys to be done', () => ledger.size === keys.length)
      await redis.crash()
      await redis.restart()
      await pollUntil('both to be refused', () => loads.every((each) => each.refused() > 0))
      await Promise.all(loads.map((each) => each.stop()))

      expect([...ledger.values()].every((count) => count === 1)).toBe(true)
      expect(losses[0]).toMatchObject({ store: 'redis', evidence: 'emptied', quarantined: true })
      await assertRefused(first, 'never seen')
      // An instance that knew nothing finds the quarantine, too.
      await assertRefused(await store(redis.url), 'never seen')
      expect(await second.quarantine()).toMatchObject({ evidence: 'emptied' })

      expect(await second.endQuarantine('looked: the provider has no charges of that hour')).toBe(true)
      expect(await first.quarantine()).toBeUndefined()
      expect(await first.endQuarantine('again')).toBe(false)
      for (const each of [first, second])
        assertGranted(await ask(each, key('loss', each === first ? '1' : '2')), 'fresh', 1)
      expect(losses).toHaveLength(1)
    })
  }

  test('a crash and a restart with all data is no evidence', async () => {
    const redis = await server({ appendonly: 'yes', appendfsync: 'always' })
    const mine = await store(redis.url)
    await finish(mine, key('loss', 'kept'), bytesOf('kept'))
    await redis.crash()
    await redis.restart()
    assertSettled(await eventually(() => ask(mine, key('loss', 'kept'))), bytesOf('kept'))
    assertGranted(await eventually(() => ask(mine, key('loss', 'new'))), 'fresh', 1)
    expect(losses).toEqual([])
  })

  test('a server that came back with an older dataset is found by the writes that are missing; what it knows is replayed', async () => {
    const redis = await server()
    const mine = await store(redis.url)
    await finish(mine, key('loss', 'old'), bytesOf('old'))
    const abandoned = await take(mine, key('loss', 'abandoned'), { leaseMs: 1 })
    await redisCommand(redis.url, 'SAVE')
    expect(await mine.settle(abandoned, bytesOf('lost'), retention)).toBe('done')
    await redis.crash()
    await redis.restart()
    assertSettled(await eventually(() => ask(mine, key('loss', 'old'))), bytesOf('old'))
    expect(losses).toMatchObject([{ evidence: 'went-back' }])
    // Its outcome is what was lost: a takeover would run it a second time.
    await assertRefused(mine, 'abandoned')
    // Its holder is still the holder.
    expect(await mine.settle(abandoned, bytesOf('lost'), retention)).toBe('done')
    assertSettled(await ask(mine, key('loss', 'abandoned')), bytesOf('lost'))
  })

  test('FLUSHALL is a loss', async () => {
    const redis = await server()
    const mine = await store(redis.url)
    await finish(mine, key('loss', 'flushed'), bytesOf('flushed'))
    await redisCommand(redis.url, 'FLUSHALL')
    await assertRefused(mine, 'flushed')
    expect(losses).toMatchObject([{ evidence: 'emptied' }])
  })

  test('an instance without a memory cannot know of a loss, runs the key again, and is stopped by the first that remembers', async () => {
    const redis = await server()
    const [witness, other] = [await store(redis.url), await store(redis.url)]
    await finish(witness, key('loss', 'twice'), bytesOf('first'))
    await ask(other, key('loss', 'twice'))
    await redisCommand(redis.url, 'FLUSHALL')
    const newcomer = await store(redis.url)
    assertGranted(await ask(newcomer, key('loss', 'twice')), 'fresh', 1)
    expect(losses).toEqual([])
    // It never wrote, but it has seen the dataset that is gone.
    await assertRefused(other, 'unseen')
    expect(losses).toMatchObject([{ evidence: 'replaced' }])
    await assertRefused(newcomer, 'unseen')
    await assertRefused(witness, 'unseen')
    expect(losses).toHaveLength(1)
  })

  test('a loss that was dealt with is not found again by an instance that slept through it', async () => {
    const redis = await server()
    const [awake, asleep] = [await store(redis.url), await store(redis.url)]
    for (const each of [awake, asleep]) await take(each, key('loss', each === awake ? '1' : '2'))
    await redisCommand(redis.url, 'FLUSHALL')
    await assertRefused(awake, 'unseen')
    await awake.endQuarantine('a test')
    assertGranted(await ask(asleep, key('loss', 'unseen')), 'fresh', 1)
    expect(losses).toHaveLength(1)
  })

  // A week passes on the process's clock, and the mark goes as its time to live makes it go.
  test('a process that was idle for a week has lost nothing, and stops nobody', async () => {
    const redis = await server()
    const clock = idleClock()
    const idle = await store(redis.url, { clock })
    await finish(idle, key('loss', 'before'), bytesOf('before'))
    clock.advance(7 * 24 * hourMs)
    await removeMarks(redis.url)
    assertGranted(await ask(idle, key('loss', 'after')), 'fresh', 1)
    assertSettled(await ask(idle, key('loss', 'before')), bytesOf('before'))
    expect([losses, await idle.quarantine()]).toEqual([[], undefined])
  })

  test('a mark that is gone while its process counts on it is a loss', async () => {
    const redis = await server()
    const clock = idleClock()
    const busy = await store(redis.url, { clock })
    await finish(busy, key('loss', 'before'), bytesOf('before'))
    clock.advance(3 * 24 * hourMs)
    await removeMarks(redis.url)
    await assertRefused(busy, 'after')
    expect(losses).toMatchObject([{ evidence: 'went-back', quarantined: true }])
  })

  test('every loss counts, also the second', async () => {
    const redis = await server()
    const mine = await store(redis.url)
    for (const round of [1, 2]) {
      await take(mine, key('loss', 'again'))
      await redisCommand(redis.url, 'FLUSHALL')
      await assertRefused(mine, 'again')
      expect(losses).toHaveLength(round)
      await mine.endQuarantine('a test')
    }
  })

  test('with quarantineMs the quarantine ends by itself', async () => {
    const redis = await server()
    const clock = testClock()
    opened.push(await connect('node-redis', redis.url))
    const client = withClock(opened.at(-1)!.client, clock)
    const mine = redisStore({ client, durability: 'relaxed', quarantineMs: hourMs })
    await take(mine, key('loss', 'over'))
    await redisCommand(redis.url, 'FLUSHALL')
    await assertRefused(mine, 'over')
    const { sinceMs, untilMs } = (await mine.quarantine())!
    expect(untilMs! - sinceMs).toBe(hourMs)
    clock.advance(hourMs - 1)
    await assertRefused(mine, 'over')
    clock.advance(1)
    assertGranted(await ask(mine, key('loss', 'over')), 'fresh', 1)
  })

  test("with onDataLoss 'report' a loss is told and claims go on", async () => {
    const redis = await server()
    const mine = await store(redis.url, { onDataLoss: 'report' })
    await take(mine, key('loss', 'reported'))
    await redisCommand(redis.url, 'FLUSHALL')
    assertGranted(await ask(mine, key('loss', 'reported')), 'fresh', 1)
    expect(losses).toMatchObject([{ evidence: 'emptied', quarantined: false }])
  })

  // What Redis cannot promise: it acknowledges before its replicas have heard.
  test('a lagging replica that is promoted lets a second claim through; the first writer finds it out and stops everybody', async () => {
    const primary = await server()
    const replica = await startReplica(primary, other())
    servers.push(replica)
    const route = await startRoute(primary.port)
    const witness = await store(route.url)
    await take(witness, key('loss', 'before'))
    const caughtUp = async (): Promise<boolean> => Number(await redisCommand(replica.url, 'DBSIZE')) === 3
    await pollUntil('the replica to have the entry, the register and the mark', caughtUp)
    // Promoted while the primary still acknowledges: whatever that is told from now on is lost.
    await redisCommand(replica.url, 'REPLICAOF', 'NO', 'ONE')
    assertGranted(await ask(witness, key('loss', 'both')), 'fresh', 1)
    route.lead(replica.port)
    await primary.crash()

    const second = await store(replica.url)
    assertGranted(await ask(second, key('loss', 'both')), 'fresh', 1)
    expect(losses).toEqual([])
    await assertRefused(witness, 'after')
    expect(losses).toMatchObject([{ evidence: 'went-back' }])
    await assertRefused(second, 'after')
    route.close()
  })
}

interface Route {
  readonly url: string
  /** Where new connections lead from now on. */
  lead(port: number): void
  close(): void
}

/** The address of a primary, whichever server that is at the moment. */
async function startRoute(first: number): Promise<Route> {
  let target = first
  const listener = createServer((client) => {
    const upstream = connectTo(target, '127.0.0.1')
    for (const [from, to] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      from.pipe(to)
      from.on('error', () => to.destroy()).on('close', () => to.destroy())
    }
  })
  listener.listen(0, '127.0.0.1')
  await once(listener, 'listening')
  return {
    url: `redis://127.0.0.1:${(listener.address() as AddressInfo).port}`,
    lead(port) {
      target = port
    },
    close: () => void listener.close(),
  }
}

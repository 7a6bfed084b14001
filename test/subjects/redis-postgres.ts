// What the Redis over PostgreSQL store lends to the contract: the PostgreSQL store's own subject, with a real Redis in front.
// Time passes everywhere at once: `advance` moves the database's clock and every process's. Each call waits until what the
// store does in the background has ended, so that the next one finds in Redis whatever could be there.
import { setImmediate } from 'node:timers/promises'
import type pg from 'pg'
import { type Key, key as keyOf } from '../../src/core/key.ts'
import type { Clock } from '../../src/core/clock.ts'
import type { Store } from '../../src/core/store.ts'
import { isOwn } from '../../src/stores/redis-postgres/names.ts'
import { type RedisPostgresStoreOptions, redisPostgresStore } from '../../src/stores/redis-postgres.ts'
import { type PostgresStore, postgresStore } from '../../src/stores/postgres.ts'
import type { RedisClient } from '../../src/clients/redis.ts'
import { request } from '../../src/testing/store-contract.ts'
import type { ContractSubject } from '../../src/testing/store-contract.ts'
import { createPool, type PostgresGround, startPostgresGround } from './postgres.ts'
import { type Connected, connect, type Driver } from './redis.ts'
import { type FaultProxy, startFaultProxy } from '../servers/fault-proxy.ts'
import { pollUntil } from '../servers/poll.ts'
import { redisCommand } from '../servers/redis/command.ts'
import { startRedis } from '../servers/redis.ts'
import type { Running } from '../servers/server.ts'

export interface TestTime extends Clock {
  advance(ms: number): void
  /** One clock alone: the wall clock is set, or the monotonic one stood still while the machine was suspended. */
  shift(ms: { readonly wall?: number; readonly elapsed?: number }): void
  /** The same time on a machine whose clock is wrong. */
  skewed(ms: number): Clock
}

/** Stands still, except for timers: a time-out is a real one. */
export function testTime(): TestTime {
  let wallMs = Date.now()
  let elapsedMs = wallMs
  const shift: TestTime['shift'] = ({ wall = 0, elapsed = 0 }) => {
    wallMs += wall
    elapsedMs += elapsed
  }
  const at = (skewMs: number): Clock => ({
    now: () => wallMs + skewMs,
    elapsed: () => elapsedMs + skewMs,
    schedule(run, delayMs) {
      const timer = setTimeout(run, delayMs)
      return () => clearTimeout(timer)
    },
  })
  return { ...at(0), advance: (ms) => shift({ wall: ms, elapsed: ms }), shift, skewed: at }
}

/** What a store has under way although nobody waits for it, and what it has asked of whom. */
export interface Watch {
  /** Sent to Redis, by name. */
  readonly commands: string[]
  /** Of the PostgreSQL store: claim, begin, show. */
  readonly calls: string[]
  redis(client: RedisClient): RedisClient
  postgres<Client>(store: PostgresStore<Client>): PostgresStore<Client>
  quiet(): Promise<void>
}

export function watch(): Watch {
  const commands: string[] = []
  const calls: string[] = []
  let underWay = 0
  const counted = async <T>(work: Promise<T>): Promise<T> => {
    underWay++
    try {
      return await work
    } finally {
      underWay--
    }
  }
  const background = <T>(key: Key, work: Promise<T>): Promise<T> => (isOwn(key) ? counted(work) : work)
  const called = <T>(name: string, work: Promise<T>): Promise<T> => {
    calls.push(name)
    return work
  }
  return {
    commands,
    calls,
    redis: (client) =>
      new Proxy(client, {
        get(target, name) {
          const own: unknown = Reflect.get(target, name, target)
          if (typeof own !== 'function') return own
          const method = (own as (...args: unknown[]) => Promise<unknown>).bind(target)
          if (name !== 'sendCommand' && name !== 'callBuffer') return method
          return (...args: unknown[]) => {
            const list = args.find(Array.isArray) as unknown[]
            commands.push(String(name === 'sendCommand' ? list[0] : args[0]))
            return counted(method(...args))
          }
        },
      }),
    postgres: (store) => ({
      ...store,
      show: (key) => counted(called('show', store.show(key))),
      claim: (key, asked) => background(key, called('claim', store.claim(key, asked))),
      begin: (key, asked) => background(key, called('begin', store.begin(key, asked))),
      settle: (claim, ...rest) => background(claim.key, store.settle(claim, ...rest)),
    }),
    async quiet() {
      for (let calm = 0; calm < 3; calm = underWay === 0 ? calm + 1 : 0) await setImmediate()
    },
  }
}

/** Asks until the store knows the database's time and secret, and so looks into Redis. Leaves no entry behind. */
export async function warmUp(store: Store, { commands, calls, quiet }: Watch): Promise<void> {
  await pollUntil('the store to look into Redis', async () => {
    const verdict = await store.claim(keyOf('warm', 'up'), request())
    if (verdict.is === 'granted') await store.release(verdict.claim, 'forget')
    await quiet()
    return commands.includes('MGET') || commands.includes('GET')
  })
  commands.length = 0
  calls.length = 0
}

export interface RedisPostgresGround extends AsyncDisposable {
  readonly postgres: PostgresGround
  readonly redis: Running
  readonly redisProxy: FaultProxy
  createSubject(driver: Driver): Promise<ContractSubject>
}

export async function startRedisPostgresGround(): Promise<RedisPostgresGround> {
  const [postgres, redis] = await Promise.all([startPostgresGround(), startRedis({ config: { appendonly: 'no' } })])
  const redisProxy = await startFaultProxy({ target: redis, framer: 'redis' })
  return {
    postgres,
    redis,
    redisProxy,
    async createSubject(driver) {
      await redisCommand(redis.url, 'FLUSHALL')
      return createSubject(await postgres.createSubject(), redis, redisProxy, driver)
    },
    async [Symbol.asyncDispose]() {
      await redisProxy.close()
      await Promise.all([postgres[Symbol.asyncDispose](), redis.stop()])
    },
  }
}

async function createSubject(
  inner: ContractSubject,
  redis: Running,
  proxy: FaultProxy,
  driver: Driver,
): Promise<ContractSubject> {
  const time = testTime()
  const opened: Connected[] = []
  const reach = { cut: false }
  const create = async (postgres: Store, clock: Clock): Promise<PostgresStore> => {
    opened.push(await connect(driver, proxy.url))
    const watched = watch()
    const options: RedisPostgresStoreOptions<never> = {
      redis: watched.redis(opened.at(-1)!.client),
      postgres: watched.postgres(postgres as PostgresStore<never>),
      // A busy machine must not turn hits into misses: what is asked here is whether hits are right.
      redisTimeoutMs: 1_000,
      clock,
    }
    const store = redisPostgresStore(options)
    await warmUp(store, watched)
    return settledFirst(store, () => (reach.cut ? Promise.resolve() : watched.quiet()))
  }
  return {
    ...inner,
    store: await create(inner.store, time),
    another: async ({ clockSkewMs = 0 } = {}) => create(await inner.another(), time.skewed(clockSkewMs)),
    async advance(ms) {
      await inner.advance(ms)
      time.advance(ms)
    },
    // What is unreadable in the database; what Redis has of it is another matter, and has its own tests.
    async corrupt(key, bytes) {
      await inner.corrupt(key, bytes)
      await redisCommand(redis.url, 'FLUSHALL')
    },
    faults: faultsOfBoth(inner.faults!, redis, proxy, reach),
    async destroy() {
      await proxy.setMode('pass')
      await Promise.all(opened.map((each) => each.close()))
      await inner.destroy()
    },
  }
}

/** The same store, whose calls end when the background has. */
function settledFirst<Client>(store: PostgresStore<Client>, quiet: () => Promise<void>): PostgresStore<Client> {
  const after = async <T>(work: Promise<T>): Promise<T> => {
    try {
      return await work
    } finally {
      await quiet()
    }
  }
  return {
    ...store,
    claim: (...args) => after(store.claim(...args)),
    settle: (...args) => after(store.settle(...args)),
    mend: (...args) => after(store.mend(...args)),
    begin: async (...args) => {
      const began = await after(store.begin(...args))
      if (!began.granted) return began
      const { granted } = began
      return { ...began, granted: { ...granted, commit: (...rest) => after(granted.commit(...rest)) } }
    },
  }
}

// Both fail at once. Redis comes back empty: it has no file.
function faultsOfBoth(
  inner: NonNullable<ContractSubject['faults']>,
  redis: Running,
  proxy: FaultProxy,
  reach: { cut: boolean },
): NonNullable<ContractSubject['faults']> {
  return {
    ...inner,
    async crashServer() {
      reach.cut = true
      await redis.crash()
      await Promise.all([inner.crashServer(), redis.restart()])
      reach.cut = false
    },
    async cutOff() {
      reach.cut = true
      await proxy.setMode('refuse')
      proxy.resetConnections()
      await inner.cutOff()
    },
    async heal() {
      await Promise.all([inner.heal(), proxy.setMode('pass')])
      reach.cut = false
    },
  }
}

/** A store for the tests of this store alone, with what is around it in the test's hand. */
export interface Opened extends AsyncDisposable {
  readonly store: PostgresStore
  /** The same without waiting for the background: while a server is down, that does not end. */
  readonly bare: PostgresStore
  /** The database's own word, past Redis. */
  readonly database: PostgresStore
  readonly watched: Watch
  readonly connected: Connected
  readonly pool: pg.Pool
}

export interface OpenOptions extends Partial<RedisPostgresStoreOptions<never>> {
  readonly postgresUrl?: string
  readonly driver?: Driver
  /** Instead of a client of the ground's own Redis. */
  readonly connected?: Connected
  readonly table?: string
  /** Between the store and its client. */
  wrap?(client: RedisClient): RedisClient
}

export async function open(ground: RedisPostgresGround, options: OpenOptions = {}): Promise<Opened> {
  const {
    postgresUrl = ground.postgres.url,
    driver = 'node-redis',
    connected = await connect(driver, ground.redis.url),
    table,
    wrap,
    ...rest
  } = options
  const pool = createPool(postgresUrl)
  const database = postgresStore({ pool, ...(table !== undefined && { table }) }) as PostgresStore
  await database.migrate()
  const watched = watch()
  const client = watched.redis(connected.client)
  const store = redisPostgresStore({
    redis: wrap ? wrap(client) : client,
    postgres: watched.postgres(database),
    redisTimeoutMs: 1_000,
    ...rest,
  }) as PostgresStore
  await warmUp(store, watched)
  return {
    store: settledFirst(store, watched.quiet),
    bare: store,
    database,
    watched,
    connected,
    pool,
    async [Symbol.asyncDispose]() {
      await connected.close()
      await pool.end()
    },
  }
}

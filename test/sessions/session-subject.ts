// What sessions are tried on: servers of one service on one database, and effects that nothing keeps from taking place twice.
import { type Clock, systemClock } from '../../src/index.ts'
import { createSessions, type Sessions, type SessionsOptions } from '../../src/sessions/sessions.ts'
import { memoryData, memoryStore } from '../../src/stores/memory.ts'
import { redisStore } from '../../src/stores/redis.ts'
import type { Inspectable, Store } from '../../src/core/store.ts'
import { type FaultProxy, startFaultProxy } from '../servers/fault-proxy.ts'
import { startRedis } from '../servers/redis.ts'
import { connect, drivers, durable } from '../subjects/redis.ts'
import { grounds, insertEffect, type MessagesGround, type OpenStore } from '../messages/grounds.ts'

export interface SessionServer {
  readonly sessions: Sessions
  readonly store: Store & Inspectable
  // What an effect of this server does.
  effect(tx: unknown, name: string): Promise<void>
  // Its timers stop, and nothing else: no heartbeat goes out, and what runs goes on.
  stall(): void
  // What the death of its process is to the database: its connections end, and so do its timers.
  die(): Promise<void>
}

export interface SessionSubject {
  // Of the service. Its sessions are in this scope and '/sessions'.
  readonly scope: string
  // Another process of the same service, unless the options name another one.
  server(options?: Partial<SessionsOptions>): Promise<SessionServer>
  // The names of all effects, in their order.
  effects(): Promise<string[]>
  // A database with one writer runs one effect after the other.
  readonly isSerial: boolean
  // Between servers and database. Missing where no network is in between.
  readonly proxy: FaultProxy | undefined
  close(): Promise<void>
}

// A place where sessions are kept, for a test file.
export interface SessionsGround extends AsyncDisposable {
  readonly isSerial: boolean
  open(): Promise<{
    readonly store: Store & Inspectable
    die(): Promise<void>
    close(): Promise<void>
    effect(tx: unknown, name: string): Promise<void>
  }>
  // Of one subject: what was there before is gone.
  begin(): Promise<void>
  effects(): Promise<string[]>
  readonly proxy?: SessionSubject['proxy']
  end(): Promise<void>
}

// Its timers end with its process: no heartbeat of a dead one.
function mortalClock(): { readonly clock: Clock; die(): void } {
  let isDead = false
  return {
    clock: {
      ...systemClock,
      schedule: (callback, ms, ...rest) => systemClock.schedule(() => (isDead ? undefined : callback()), ms, ...rest),
    },
    die() {
      isDead = true
    },
  }
}

// A busy machine is no failure of a store.
const patienceMs = 30_000

let run = 0

export async function sessionSubject(
  ground: SessionsGround,
  create: typeof createSessions = createSessions,
): Promise<SessionSubject> {
  const closing: (() => Promise<void>)[] = []
  // A scope of its own for every case: what one leaves is not seen by another.
  const scope = `tills-${process.pid}-${++run}`
  let isMigrated = false
  await ground.begin()
  return {
    scope,
    isSerial: ground.isSerial,
    proxy: ground.proxy,
    effects: () => ground.effects(),
    async server(options) {
      const { store, die, close, effect } = await ground.open()
      closing.push(close)
      const { clock, die: stopTimers } = mortalClock()
      const sessions = create({ store, scope, clock, storeTimeoutMs: patienceMs, ...options }) as Sessions
      if (!isMigrated) await sessions.migrate()
      isMigrated = true
      return {
        sessions,
        store,
        effect,
        stall: stopTimers,
        async die() {
          stopTimers()
          await die()
        },
      }
    },
    async close() {
      for (const close of closing) await close()
      await ground.end()
    },
  }
}

export function memorySessions(): SessionsGround {
  let data = memoryData()
  let effects: string[] = []
  return {
    isSerial: false,
    async begin() {
      data = memoryData()
      effects = []
    },
    async open() {
      const nothing = async (): Promise<void> => {}
      return {
        store: memoryStore({ data }),
        die: nothing,
        close: nothing,
        effect: async (_tx, name) => void effects.push(name),
      }
    },
    effects: async () => effects,
    end: async () => {},
    [Symbol.asyncDispose]: async () => {},
  }
}

export function sqlSessions(ground: MessagesGround): SessionsGround {
  return {
    isSerial: ground.dialect === 'sqlite',
    begin: async () => void (await ground.ask('delete from effects')),
    async open() {
      const opened: OpenStore = await ground.openStore()
      return {
        store: opened.store,
        die: () => opened.die(),
        // A connection that was struck may have nothing to end.
        close: async () => Promise.resolve(opened[Symbol.asyncDispose]()).catch(() => {}),
        effect: (tx, name) => insertEffect(ground, opened.database, tx, name),
      }
    },
    effects: () => ground.effects(),
    proxy: ground.proxy,
    end: async () => ground.proxy?.setMode('pass'),
    [Symbol.asyncDispose]: async () => ground[Symbol.asyncDispose](),
  }
}

// Each server has a client of its own, of either library.
export async function redisSessions(): Promise<SessionsGround> {
  const server = await startRedis({ config: durable })
  const proxy = await startFaultProxy({ target: server, framer: 'redis' })
  let effects: string[] = []
  let opened = 0
  return {
    isSerial: false,
    // The first server of a case has node-redis, which does not repeat by itself what had no reply.
    async begin() {
      effects = []
      opened = 0
    },
    async open() {
      const { client, close } = await connect(drivers[opened++ % drivers.length]!, proxy.url)
      return {
        store: redisStore({ client, timeoutMs: patienceMs }),
        die: close,
        close: async () => close().catch(() => {}),
        effect: async (_tx, name) => void effects.push(name),
      }
    },
    effects: async () => effects,
    proxy,
    end: () => proxy.setMode('pass'),
    async [Symbol.asyncDispose]() {
      await proxy.close()
      await server.stop()
    },
  }
}

// Memory and SQLite are tried where the source is. These need a server.
export const serverGrounds: readonly {
  readonly name: string
  readonly server: 'postgres' | 'mariadb' | 'mysql' | 'redis'
  start(): Promise<SessionsGround>
}[] = [
  ...grounds.flatMap(({ name, server, start }) =>
    server === undefined ? [] : [{ name, server, start: async () => sqlSessions(await start()) }],
  ),
  { name: 'redis', server: 'redis', start: redisSessions },
]

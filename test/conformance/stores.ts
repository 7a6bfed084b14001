// The stores that the cases run on: each lends an empty store, a second instance on the same data, everything that is
// stored as text, and a hand on the store's own clock.
import { randomUUID } from 'node:crypto'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import type { ManualClock } from '../../src/testing/manual-clock.ts'
import type { Store } from '../../src/core/store.ts'
import { memoryData, memoryStore } from '../../src/stores/memory.ts'
import { postgresStore } from '../../src/stores/postgres.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import { redisStore } from '../../src/stores/redis.ts'
import { createPool, type PostgresGround } from '../subjects/postgres.ts'
import { connect, type Connected, testClock, withClock } from '../subjects/redis.ts'
import type { Running } from '../servers/server.ts'

export interface Place {
  readonly store: Store
  /** As another process on the same data would have it. */
  another(): Promise<Store>
  /** How a process of its own finds the same data; undefined for what lives in this one. */
  readonly address: StoreAddress | undefined
  /** Moves the store's own clock, where it is not the clock of the world. */
  advance(ms: number): Promise<void>
  /** Effects that were written with the store's transactions. */
  countEffects(tag: string): Promise<number>
  dump(): Promise<string>
  close(): Promise<void>
}

export type StoreAddress =
  | { readonly kind: 'sqlite'; readonly path: string }
  | { readonly kind: 'postgres'; readonly url: string }
  | { readonly kind: 'redis'; readonly url: string; readonly prefix: string }

export interface StoreKind {
  readonly name: string
  open(clock: ManualClock): Promise<Place>
}

export const memory: StoreKind = {
  name: 'memory',
  async open(clock) {
    const data = memoryData(clock)
    return {
      store: memoryStore({ data }),
      another: async () => memoryStore({ data }),
      address: undefined,
      advance: async () => {},
      countEffects: async () => 0,
      dump: async () => JSON.stringify([...data.entries].map(([name, entry]) => [name, readable(entry)])),
      close: async () => {},
    }
  },
}

export const sqlite: StoreKind = {
  name: 'sqlite',
  async open(clock) {
    const folder = mkdtempSync(join(tmpdir(), 'onceonly-conformance-'))
    const path = join(folder, 'store.db')
    // Nobody cuts the power here.
    const options = { path, clock, durability: 'relaxed' } as const
    const opened = [sqliteStore(options)]
    return {
      store: opened[0]!,
      async another() {
        opened.push(sqliteStore(options))
        return opened.at(-1)!
      },
      address: { kind: 'sqlite', path },
      advance: async () => {},
      countEffects: async (tag) => countSqliteEffects(path, tag),
      // The files as they are, with the write-ahead log.
      dump: async () =>
        readdirSync(folder)
          .map((name) => readFileSync(join(folder, name), 'latin1'))
          .join('\n'),
      async close() {
        for (const each of opened) each.close()
        rmSync(folder, { recursive: true, force: true })
      },
    }
  },
}

/** The table is the application's, see server-process.ts. */
function countSqliteEffects(path: string, tag: string): number {
  const database = new DatabaseSync(path)
  try {
    return Number(database.prepare('select count(*) as count from effects where name = ?').get(tag)?.['count'])
  } finally {
    database.close()
  }
}

export function postgresOn(ground: () => PostgresGround): StoreKind {
  return {
    name: 'postgres',
    async open() {
      const { url, admin, reset, advance } = ground()
      await reset()
      const pools = [createPool(url)]
      return {
        store: postgresStore({ pool: pools[0]! }),
        async another() {
          pools.push(createPool(url))
          return postgresStore({ pool: pools.at(-1)! })
        },
        address: { kind: 'postgres', url },
        advance,
        async countEffects(tag) {
          const { rows } = await admin.query<{ count: string }>('select count(*) from effects where name = $1', [tag])
          return Number(rows[0]!.count)
        },
        async dump() {
          const { rows } = await admin.query<Record<string, unknown>>('select * from onceonly')
          return JSON.stringify(rows.map(readable))
        },
        close: async () => void (await Promise.all(pools.map((pool) => pool.end()))),
      }
    },
  }
}

export function redisOn(server: () => Running): StoreKind {
  return {
    name: 'redis',
    async open() {
      const { url } = server()
      const prefix = `conformance-${randomUUID()}`
      const clock = testClock()
      const connected: Connected[] = []
      const another = async (): Promise<Store> => {
        connected.push(await connect('node-redis', url))
        return redisStore({ client: withClock(connected.at(-1)!.client, clock), prefix, clock: clock.local() })
      }
      return {
        store: await another(),
        another,
        address: { kind: 'redis', url, prefix },
        advance: async (ms) => clock.advance(ms),
        countEffects: async () => 0,
        dump: () => dumpRedis(connected[0]!, prefix),
        close: async () => void (await Promise.all(connected.map((each) => each.close()))),
      }
    },
  }
}

async function dumpRedis({ send }: Connected, prefix: string): Promise<string> {
  const names = (await send('KEYS', `${prefix}*`)) as string[]
  const read = { string: ['GET'], hash: ['HGETALL'], zset: ['ZRANGE', '0', '-1'], set: ['SMEMBERS'] }
  const texts = names.map(async (name) => {
    const [command, ...values] = read[(await send('TYPE', name)) as keyof typeof read]
    return `${name} ${JSON.stringify(await send(command!, name, ...values))}`
  })
  return (await Promise.all(texts)).join('\n')
}

/** Octets as text, so that what is in them can be found. */
function readable(row: object): object {
  const shown = Object.entries(row).map(([name, value]) => [
    name,
    value instanceof Uint8Array ? Buffer.from(value).toString('latin1') : (value as unknown),
  ])
  return Object.fromEntries(shown) as object
}

// A store of its own on each database, which can be filled by the million: one entry is made by the store itself, and the server copies it
// under other ids. So what is copied has the form that the store writes today.

import { mkdtempSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import pg from 'pg'
import { createClient } from 'redis'
import { newId } from '../../src/core/key.ts'
import { createOnce } from '../../src/core/once.ts'
import type { OnceRunner } from '../../src/core/once.ts'
import type { Store, Sweepable } from '../../src/core/store.ts'
import { postgresStore } from '../../src/stores/postgres.ts'
import { redisStore } from '../../src/stores/redis.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import type { RunningPostgres } from '../../test/servers/postgres.ts'
import { noteVersion } from '../server-calls.ts'
import { startPostgres, startRedis } from '../servers.ts'

export type Database = 'PostgreSQL' | 'Redis' | 'SQLite'

export interface Place {
  readonly once: OnceRunner
  readonly store: Store & Partial<Sweepable>
  /** So many settled entries more, which live for a day or expired at once. */
  fill(count: number, life?: 'a day' | 'over'): Promise<void>
  /** What the entries take, with their indexes. */
  storedBytes(): Promise<number>
  /** What has ever been written to its log. Undefined where it has none that grows. */
  loggedBytes?(): Promise<number>
  close(): Promise<void>
}

export const outcome = { receipt: 'x'.repeat(280) }
export const fresh = (once: OnceRunner): Promise<unknown> => once.run(newId(), () => outcome, { fingerprint: 'bench' })

const lives = {
  'a day': {},
  over: { keepMs: 1, tombstoneMs: 1 },
} as const

/** Opens stores on one server of each kind, however many are asked for. */
export function places(): { open(on: Database): Promise<Place>; close(): Promise<void> } {
  const opened: Place[] = []
  let postgres: RunningPostgres | undefined
  const open: Readonly<Record<Database, () => Promise<Place>>> = {
    async PostgreSQL() {
      // A checkpoint or a vacuum in the middle of a round would be that round's.
      const settings = { max_wal_size: '8GB', checkpoint_timeout: '1h', autovacuum: 'off' }
      postgres ??= await startPostgres({ settings })
      return onPostgres(await postgres.createDatabase())
    },
    // Redis has one keyspace, so each has a server.
    Redis: onRedis,
    SQLite: onSqlite,
  }
  return {
    async open(on) {
      const place = await open[on]()
      opened.push(place)
      return place
    },
    async close() {
      for (const place of opened) await place.close()
      await postgres?.stop()
    },
  }
}

async function sample(once: OnceRunner, life: keyof typeof lives): Promise<string> {
  const id = newId()
  await once.run(id, () => outcome, { fingerprint: 'bench', ...lives[life] })
  return id
}

// As ids of newId are: ordered by time, with the time first.
const copyId = (column: string): string => `substr(${column}, 1, 14) || '7'`

async function onPostgres(url: string): Promise<Place> {
  const pool = new pg.Pool({ connectionString: url, max: 20 })
  const store = postgresStore({ pool })
  await store.migrate()
  const once = createOnce({ store, scope: 'bench', sweepEveryMs: false })
  return {
    once,
    store,
    async fill(count, life = 'a day') {
      const id = await sample(once, life)
      await pool.query('alter table onceonly set (fillfactor = 90)')
      const found = await pool.query<{ name: string }>(
        `select attname as name from pg_attribute where attrelid = 'onceonly'::regclass and attnum > 0 and not attisdropped`,
      )
      const names = found.rows.map(({ name }) => name)
      const next = `${copyId('id')} || lpad(to_hex(n), 21, '0')`
      const values = names.map((name) => (name === 'id' ? next : name === 'token' ? 'gen_random_uuid()' : name))
      const copied = await pool.query(
        `insert into onceonly (${names.join(', ')})
          select ${values.join(', ')} from onceonly, generate_series(1, ${count}) n where id = '${id}'`,
      )
      check('PostgreSQL', copied.rowCount, count)
      await pool.query('alter table onceonly set (fillfactor = 30)')
      await pool.query('analyze onceonly')
      await pool.query('checkpoint')
    },
    storedBytes: () => numberOf(pool, `select pg_total_relation_size('onceonly')::float as value`),
    loggedBytes: () => numberOf(pool, `select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float as value`),
    async close() {
      await once.close()
      await pool.end()
    },
  }
}

async function numberOf(pool: pg.Pool, sql: string): Promise<number> {
  const { rows } = await pool.query<{ value: number }>(sql)
  return rows[0]!.value
}

async function onRedis(): Promise<Place> {
  // No snapshot and no rewriting of the append-only file in the middle of a round.
  const config = { appendonly: 'yes', appendfsync: 'everysec', save: '', 'auto-aof-rewrite-percentage': 0 }
  const server = await startRedis({ config })
  const client = await createClient({ url: server.url }).connect()
  const store = redisStore({ client })
  const once = createOnce({ store, scope: 'bench', sweepEveryMs: false })
  const copy = `local name, copied = KEYS[1], 0
    for n = tonumber(ARGV[2]), tonumber(ARGV[3]) do
      copied = copied + redis.call('COPY', name, (string.gsub(name, ARGV[1], string.format('%s%012x', string.sub(ARGV[4], 1, 24), n))))
    end
    return copied`
  const copyAll = async (name: string, id: string, count: number): Promise<number> => {
    let copied = 0
    // In steps: a script that runs for seconds stops the server.
    for (let from = 1; from <= count; from += 10_000) {
      const to = Math.min(count, from + 9_999)
      const words = [id.replaceAll('-', '%-'), String(from), String(to), id]
      copied += Number(await client.eval(copy, { keys: [name], arguments: words }))
    }
    return copied
  }
  return {
    once,
    store,
    async fill(count, life = 'a day') {
      const id = await sample(once, life)
      const names = await client.keys(`*${id}*`)
      for (const name of names) check('Redis', await copyAll(name, id, count), count)
      if (names.length === 0) throw new Error(`Redis has no name with ${id}`)
    },
    storedBytes: async () => Number(/used_memory:(\d+)/.exec(await client.info('memory'))![1]),
    loggedBytes: async () => Number(/aof_current_size:(\d+)/.exec(await client.info('persistence'))![1]),
    async close() {
      await once.close()
      client.destroy()
      await server.stop()
    },
  }
}

async function onSqlite(): Promise<Place> {
  noteVersion(`SQLite ${process.versions['sqlite']}`)
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-bench-'))
  const path = join(folder, 'bench.db')
  const store = sqliteStore({ path })
  const once = createOnce({ store, scope: 'bench', sweepEveryMs: false })
  return {
    once,
    store,
    async fill(count, life = 'a day') {
      const id = await sample(once, life)
      const database = new DatabaseSync(path)
      const columns = database.prepare(`pragma table_info(onceonly)`).all() as { name: string }[]
      const names = columns.map(({ name }) => name)
      const next = `${copyId('id')} || printf('%021x', n)`
      const values = names.map((name) => (name === 'id' ? next : name))
      const { changes } = database
        .prepare(
          `with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < ${count})
            insert into onceonly (${names.join(', ')}) select ${values.join(', ')} from numbers, onceonly where id = '${id}'`,
        )
        .run()
      check('SQLite', Number(changes), count)
      database.exec('pragma wal_checkpoint(truncate)')
      database.close()
    },
    storedBytes: async () => statSync(path).size,
    async close() {
      await once.close()
      store.close()
      rmSync(folder, { recursive: true })
    },
  }
}

function check(where: string, copied: number | null, count: number): void {
  if (copied !== count) throw new Error(`${where}: ${copied} entries were copied instead of ${count}`)
}

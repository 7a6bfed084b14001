// A request in a session when 1 session is known to the store, and when 100,000 are.

import pg from 'pg'
import { createClient } from 'redis'
import { createSessions } from '../../src/sessions/sessions.ts'
import type { ClientSession, Sessions } from '../../src/sessions/sessions.ts'
import { postgresStore } from '../../src/stores/postgres.ts'
import { redisStore } from '../../src/stores/redis.ts'
import { compareAll, ratioIn } from '../measure.ts'
import type { Variant } from '../measure.ts'
import { size } from '../plan.ts'
import { report, reportComparison } from '../report.ts'
import { startPostgres, startRedis } from '../servers.ts'

interface Desk {
  readonly sessions: Sessions
  /** Sessions that nobody uses, copied by the server. */
  fill(count: number): Promise<void>
}

/** Clients that send, among those that are only known. */
const sending = 100

export async function benchManySessions(): Promise<void> {
  const many = size(100_000, 10_000)
  for (const [on, openDesk] of Object.entries({ Redis: onRedis, PostgreSQL: onPostgres })) {
    const closing: (() => Promise<unknown>)[] = []
    try {
      const [small, large] = [await openDesk(closing), await openDesk(closing)]
      await large.fill(many - sending)
      const title = `${on}, a request beside ${many.toLocaleString('en')} sessions`
      const variants = [
        await requests('1 session', small, 1),
        await requests(`${many.toLocaleString('en')} sessions`, large, sending),
      ] as const
      const compared = await compareAll(variants, { concurrency: 1, operations: 600, rounds: 7 })
      const p50 = ratioIn(compared, 'p50Ms', variants[1].name, variants[0].name)
      report({ id: 'growth', what: `${title}: p50 to 1 session`, ...p50, atMost: 1.3 })
      reportComparison(title, compared)
    } finally {
      for (const close of closing.toReversed()) await close()
    }
  }
}

async function requests(name: string, { sessions }: Desk, clients: number): Promise<Variant> {
  const all: { session: ClientSession; sequence: number }[] = []
  for (let client = 0; client < clients; client++) {
    all.push({ session: await sessions.register(`client-${client}`), sequence: 0 })
  }
  let turn = 0
  return {
    name,
    async work() {
      const one = all[turn++ % all.length]!
      const sequence = ++one.sequence
      await sessions.apply({ ...one.session, sequence, acknowledged: sequence - 1, fingerprint: sequence }, () => ({
        sequence,
      }))
    },
  }
}

async function onRedis(closing: (() => Promise<unknown>)[]): Promise<Desk> {
  const server = await startRedis({ config: { appendonly: 'yes', appendfsync: 'everysec', save: '' } })
  closing.push(() => server.stop())
  const client = await createClient({ url: server.url }).connect()
  closing.push(async () => client.destroy())
  const sessions = createSessions({ store: redisStore({ client }), scope: 'bench' }) as Sessions
  return {
    sessions,
    async fill(count) {
      await sessions.register('idle')
      const [name] = await client.keys('*/idle')
      const copy = `for n = 1, tonumber(ARGV[1]) do redis.call('COPY', KEYS[1], KEYS[1] .. '-' .. n) end`
      await client.eval(copy, { keys: [name!], arguments: [String(count)] })
    },
  }
}

async function onPostgres(closing: (() => Promise<unknown>)[]): Promise<Desk> {
  const server = await startPostgres()
  closing.push(() => server.stop())
  const pool = new pg.Pool({ connectionString: await server.createDatabase(), max: 10 })
  closing.push(() => pool.end())
  const store = postgresStore({ pool })
  await store.migrate()
  const sessions = createSessions({ store, scope: 'bench' })
  await sessions.migrate()
  return {
    sessions: sessions as unknown as Sessions,
    async fill(count) {
      await sessions.register('idle')
      const found = await pool.query<{ name: string }>(
        `select attname as name from pg_attribute where attrelid = 'onceonly_sessions'::regclass and attnum > 0 and not attisdropped`,
      )
      const names = found.rows.map(({ name }) => name)
      const values = names.map((name) => (name === 'client' ? `client || '-' || n` : name))
      await pool.query(`insert into onceonly_sessions (${names.join(', ')})
        select ${values.join(', ')} from onceonly_sessions, generate_series(1, ${count}) n where client = 'idle'`)
      await pool.query('analyze onceonly_sessions')
    },
  }
}

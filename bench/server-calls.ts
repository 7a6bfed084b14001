// How often a server was called, as the server itself counts: statements in PostgreSQL (pg_stat_statements), reads from the network in
// Redis (a pipeline that arrives in one piece is one). A part names the servers that it measures; nothing is counted without.

import pg from 'pg'
import { redisCommand, redisInfo } from '../test/servers/redis/command.ts'

interface Counter {
  begin(): Promise<void>
  /** Calls since `begin`. */
  end(): Promise<number>
}

const counters = new Map<string, Counter>()
const versions = new Set<string>()

/** Of the servers that were named in this run: PostgreSQL 15.14, Redis 7.0.15. */
export function serverVersions(): string[] {
  return [...versions].toSorted()
}

export function noteVersion(version: string): void {
  versions.add(version)
}

/** The setting that a PostgreSQL needs to be counted. */
export const countedSettings = { shared_preload_libraries: 'pg_stat_statements' } as const

/** From now on its statements are counted, in the rounds that count and in no other. Give it `countedSettings` when it starts. */
export async function countOnPostgres(url: string): Promise<void> {
  const client = await admin(url)
  const { rows } = await client.query<{ server_version: string }>('show server_version')
  versions.add(`PostgreSQL ${rows[0]!.server_version.split(' ')[0]}`)
  await client.query('create extension if not exists pg_stat_statements')
  await client.end()
  await track(url, 'none')
  counters.set(url, {
    begin: () => track(url, 'top', 'select pg_stat_statements_reset()'),
    async end() {
      const calls = await countedBy(url)
      await track(url, 'none')
      return calls
    },
  })
}

async function track(url: string, what: 'top' | 'none', then?: string): Promise<void> {
  const client = await admin(url)
  await client.query(`alter system set pg_stat_statements.track = '${what}'`)
  await client.query('select pg_reload_conf()')
  // A backend hears of it with its next statement, but the signal must have reached it by then.
  await new Promise((resolve) => setTimeout(resolve, 100))
  if (then !== undefined) await client.query(then)
  await client.end()
}

async function countedBy(url: string): Promise<number> {
  const client = await admin(url)
  const { rows } = await client.query<{ calls: number }>(
    `select coalesce(sum(calls), 0)::float as calls from pg_stat_statements where query not like '%pg_stat_statements%'`,
  )
  await client.end()
  return rows[0]!.calls
}

async function admin(url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  return client
}

/** From now on its reads are counted. */
export async function countOnRedis(url: string): Promise<void> {
  const info = await redisInfo(url)
  const [, valkey] = /valkey_version:(\S+)/.exec(info) ?? []
  const [, redis] = /redis_version:(\S+)/.exec(info) ?? []
  versions.add(valkey === undefined ? `Redis ${redis}` : `Valkey ${valkey}`)
  const reads = async (): Promise<number> => {
    const stats = String(await redisCommand(url, 'INFO', 'stats'))
    return Number(/total_reads_processed:(\d+)/.exec(stats)?.[1])
  }
  // The question itself is read, too, and so is what a connection begins with.
  const ofTheQuestion = -(await reads()) + (await reads())
  let before = 0
  counters.set(url, {
    begin: async () => void (before = await reads()),
    end: async () => Math.max(0, (await reads()) - before - ofTheQuestion),
  })
}

/** The server has ended, or is no longer what is measured. */
export function stopCounting(url: string): void {
  counters.delete(url)
}

/** Calls of all counted servers while `run` runs. Undefined when no server is counted. */
export async function countServerCalls(run: () => Promise<unknown>): Promise<number | undefined> {
  const all = [...counters.values()]
  if (all.length === 0) return undefined
  for (const each of all) await each.begin()
  await run()
  let calls = 0
  for (const each of all) calls += await each.end()
  return calls
}

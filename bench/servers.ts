// The servers of the tests, started for the bench: their version is noted and their calls are counted until they stop.

import { startPostgres as startPlainPostgres } from '../test/servers/postgres.ts'
import type { PostgresOptions, RunningPostgres } from '../test/servers/postgres.ts'
import { startRedis as startPlainRedis } from '../test/servers/redis.ts'
import type { RedisOptions } from '../test/servers/redis.ts'
import type { Running } from '../test/servers/server.ts'
import { countedSettings, countOnPostgres, countOnRedis, stopCounting } from './server-calls.ts'

export async function startPostgres(options: PostgresOptions = {}): Promise<RunningPostgres> {
  // A server that the environment names is taken as it is, and cannot be counted.
  if (process.env['ONCEONLY_POSTGRES_URL'] !== undefined) return startPlainPostgres(options)
  const settings = { ...countedSettings, ...options.settings }
  return countedUntilStop(await startPlainPostgres({ ...options, settings }), countOnPostgres)
}

export async function startRedis(options: RedisOptions = {}): Promise<Running> {
  return countedUntilStop(await startPlainRedis(options), countOnRedis)
}

async function countedUntilStop<Server extends Running>(
  server: Server,
  count: (url: string) => Promise<void>,
): Promise<Server> {
  const { url, stop } = server
  await count(url)
  return Object.assign(server, {
    stop: () => {
      stopCounting(url)
      return stop()
    },
  })
}

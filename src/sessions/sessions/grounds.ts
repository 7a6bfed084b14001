// What a store gives sessions to stand on: its SQL database, its memory, or its Redis.

import { memoryOf } from '../../clients/memory-place.ts'
import { redisOf } from '../../clients/redis.ts'
import { databaseOf } from '../../clients/sql-database.ts'
import type { Clock, Random } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import type { Store } from '../../core/store.ts'
import type { ScopedFilter, ScopedSession, SessionGround, SessionSettings } from './ground.ts'
import { listInMemory, sessionsInMemory } from './memory.ts'
import { listOnRedis, sessionsOnRedis } from './redis.ts'
import { listOnSql, sessionsOnSql } from './sql.ts'

export function groundOf(
  store: Store,
  settings: SessionSettings,
  time: { readonly clock: Clock; readonly random: Random },
): SessionGround {
  const database = databaseOf(store)
  if (database) return sessionsOnSql(database, settings, time)
  const memory = memoryOf(store)
  if (memory) return sessionsInMemory(memory, settings)
  const redis = redisOf(store)
  if (redis) return sessionsOnRedis(redis, settings)
  throw keepsNone(store)
}

/** The sessions of all services on a store. */
export async function listedOn(store: Store, filter: ScopedFilter): Promise<readonly ScopedSession[]> {
  const database = databaseOf(store)
  if (database) return listOnSql(database, filter)
  const memory = memoryOf(store)
  if (memory) return listInMemory(memory, filter)
  const redis = redisOf(store)
  if (redis) return listOnRedis(redis, filter)
  throw keepsNone(store)
}

function keepsNone({ name }: Store): OnceError {
  return new OnceError('UNSUPPORTED', {
    message: `The ${name} store keeps no sessions. Use one that does: postgres, mysql, sqlite, redis, redis-postgres, memory.`,
  })
}

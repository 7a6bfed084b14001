// A pool of two connections, and effects that need two each: the wait ends with the cause and the cure, and the pool is whole.

import postgres from 'postgres'
import { afterAll, beforeAll } from 'vitest'
import { needs } from '../../../test/servers/needs.ts'
import { createPool, type PostgresGround, startPostgresGround } from '../../../test/subjects/postgres.ts'
import { impatientClock, type PooledStore, smallPoolCases } from '../../../test/subjects/small-pools.ts'
import { postgresStore } from '../postgres.ts'

needs('postgres', { ours: true }).describe('a small pool', () => {
  let ground: PostgresGround
  let stores: Record<string, PooledStore>
  const closing: (() => Promise<unknown>)[] = []
  beforeAll(async () => {
    ground = await startPostgresGround()
    const pool = createPool(ground.url, { max: 2 })
    const sql = postgres(ground.url, { max: 2, onnotice: () => {} })
    closing.push(
      () => pool.end(),
      () => sql.end(),
    )
    stores = {
      pg: postgresStore({ pool, clock: impatientClock }),
      'postgres.js': postgresStore({ pool: sql, clock: impatientClock }),
    }
  })
  afterAll(async () => {
    for (const close of closing) await close()
    await ground[Symbol.asyncDispose]()
  })

  smallPoolCases(['pg', 'postgres.js'], (name) => stores[name]!)
})

// A pool of two connections, and effects that need two each: the wait ends with the cause and the cure, and the pool is whole.

import { createPool as createCallbackPool } from 'mysql2'
import { createPool } from 'mysql2/promise'
import { afterAll, beforeAll } from 'vitest'
import { needs } from '../../../test/servers/needs.ts'
import { type MysqlGround, startMysqlGround } from '../../../test/subjects/mysql.ts'
import { impatientClock, type PooledStore, smallPoolCases } from '../../../test/subjects/small-pools.ts'
import { mysqlStore } from '../mysql.ts'

needs('mariadb', { ours: true }).describe('a small pool', () => {
  let ground: MysqlGround
  let stores: Record<string, PooledStore>
  const closing: (() => Promise<unknown>)[] = []
  beforeAll(async () => {
    ground = await startMysqlGround()
    const pool = createPool({ uri: ground.url, connectionLimit: 2 })
    const callbacks = createCallbackPool({ uri: ground.url, connectionLimit: 2 })
    closing.push(
      () => pool.end(),
      () => callbacks.promise().end(),
    )
    stores = {
      'mysql2/promise': mysqlStore({ pool, clock: impatientClock }),
      'mysql2 with callbacks': mysqlStore({ pool: callbacks, clock: impatientClock }),
    }
  })
  afterAll(async () => {
    for (const close of closing) await close()
    await ground[Symbol.asyncDispose]()
  })

  smallPoolCases(['mysql2/promise', 'mysql2 with callbacks'], (name) => stores[name]!)
})

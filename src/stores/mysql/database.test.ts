// The database of the store, for tables beside its own.

import type { Pool, PoolConnection, RowDataPacket } from 'mysql2/promise'
import { afterAll, afterEach, beforeAll, beforeEach } from 'vitest'
import { databaseOf } from '../../clients/sql-database.ts'
import { besideTests } from '../../../test/subjects/beside.ts'
import type { BesideGround } from '../../../test/subjects/beside.ts'
import { createMysqlDatabase, createPool } from '../../../test/subjects/mysql.ts'
import { startFaultProxy } from '../../../test/servers/fault-proxy.ts'
import type { FaultProxy } from '../../../test/servers/fault-proxy.ts'
import { startMariadb } from '../../../test/servers/mariadb.ts'
import type { RunningMariadb } from '../../../test/servers/mariadb.ts'
import { startMysql } from '../../../test/servers/mysql.ts'
import { needs } from '../../../test/servers/needs.ts'
import { mysqlStore } from '../mysql.ts'

const forms = [
  { name: 'mariadb', start: startMariadb },
  { name: 'mysql', start: startMysql },
] as const

for (const { name, start } of forms) {
  needs(name, { ours: true }).describe(`the database of the MySQL store, ${name}`, () => {
    let server: RunningMariadb
    let proxy: FaultProxy
    let admin: Pool
    let pool: Pool
    let ground: BesideGround
    beforeAll(async () => {
      server = await start({})
      const url = await createMysqlDatabase(server)
      proxy = await startFaultProxy({ target: { url } })
      admin = createPool(url)
      await admin.query('create table onceonly_beside (n int) engine = InnoDB')
    })
    afterAll(async () => {
      await proxy.close()
      await admin.end()
      await server.stop()
    })
    beforeEach(async () => {
      await admin.query('delete from onceonly_beside')
      pool = createPool(proxy.url, { connectionLimit: 1 })
      const texts = async (statement: string): Promise<readonly string[]> =>
        (await admin.query<RowDataPacket[]>(statement))[0].map((row) => String(row['answer']))
      ground = {
        database: databaseOf(mysqlStore({ pool }))!,
        // The savepoint is released first.
        cutAtCommit: (side) =>
          void proxy.cutAt({ direction: side === 'before' ? 'request' : 'reply', message: 2, side: 'before' }),
        write: (tx, statement) => (tx as PoolConnection).query(statement),
        rows: () => texts('select n as answer from onceonly_beside order by n'),
        serverTime: async () => 1000 * Number((await texts('select unix_timestamp(now(6)) as answer'))[0]),
      }
    })
    afterEach(() => pool.end())
    besideTests(() => ground)
  })
}

// The checks of a server that is fit, on MariaDB and on MySQL: every setting that the table names is known to both.

import { expect, test } from 'vitest'
import { createMysqlDatabase, createPool } from '../../../test/subjects/mysql.ts'
import { startMariadb } from '../../../test/servers/mariadb.ts'
import { startMysql } from '../../../test/servers/mysql.ts'
import { needs } from '../../../test/servers/needs.ts'
import { mysqlFitness, mysqlStore } from '../mysql.ts'

const servers = [
  { server: 'mariadb', start: startMariadb },
  { server: 'mysql', start: startMysql },
] as const

for (const { server, start } of servers) {
  needs(server, { ours: true }).describe(`fitness of ${server}`, () => {
    test('a server with its own defaults is fit, and nothing about it is unknown', async () => {
      await using running = await start()
      const pool = createPool(await createMysqlDatabase(running))
      const { checks, timeMs } = mysqlFitness({ pool, longestMs: 60_000 })
      const found = await checks(0)
      expect(found.filter(({ verdict }) => verdict !== 'ok')).toEqual([])
      expect(found.map(({ name }) => name)).toContain('mysql-innodb-doublewrite')
      expect(await timeMs!()).toBeGreaterThan(Date.UTC(2020))
      await pool.end()
    })

    test('innodb_doublewrite = 0 is violated, and the store refuses the same server', async () => {
      await using running = await start({ settings: { 'innodb-doublewrite': 0 } })
      const pool = createPool(await createMysqlDatabase(running))
      const found = await mysqlFitness({ pool, longestMs: 60_000 }).checks(0)
      const violated = found.filter(({ verdict }) => verdict === 'violated')
      expect(violated.map(({ name }) => name)).toEqual(['mysql-innodb-doublewrite'])
      const refusal = mysqlStore({ pool }).sweep({ limit: 1 })
      await expect(refusal).rejects.toMatchObject({ code: 'STORE_UNSAFE' })
      await expect(refusal).rejects.toThrow(violated[0]!.why)
      await pool.end()
    })
  })
}

// The writes on MariaDB and on MySQL keep the contract.
import { afterAll, beforeAll } from 'vitest'
import { startMariadb } from '../servers/mariadb.ts'
import { startMysql } from '../servers/mysql.ts'
import { needs } from '../servers/needs.ts'
import { writesContract } from './contract.ts'
import { startMysqlWritesGround, type MysqlWritesGround } from './mysql-ground.ts'

const servers = [
  { name: 'MariaDB', server: 'mariadb', start: startMariadb },
  { name: 'MySQL', server: 'mysql', start: startMysql },
] as const

for (const { name, server, start } of servers) {
  needs(server).describe(`the writes on ${name}`, () => {
    let ground: MysqlWritesGround
    beforeAll(async () => void (ground = await startMysqlWritesGround(start)))
    afterAll(() => ground[Symbol.asyncDispose]())

    writesContract({
      ground: () => ground,
      cannot: {},
      once: (event) => ({ table: 'marks', key: { event_id: event } }),
    })
  })
}

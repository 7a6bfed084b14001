// The contract, on a real server through a proxy that can fail, with the server's clock in the test's hand. Three times: on MariaDB,
// on a MariaDB that says it is MySQL, so that the store goes MySQL's ways wherever MySQL cannot be had, and on MySQL itself.

import { afterAll, beforeAll, test } from 'vitest'
import { integersTest } from '../../../test/subjects/integers.ts'
import { type MysqlGround, startMysqlGround } from '../../../test/subjects/mysql.ts'
import { sweptTest } from '../../../test/subjects/swept.ts'
import { unreachableTest } from '../../../test/subjects/unreachable.ts'
import { startMariadb } from '../../../test/servers/mariadb.ts'
import { startMysql } from '../../../test/servers/mysql.ts'
import { needs } from '../../../test/servers/needs.ts'
import { storeContract } from '../../testing/store-contract.ts'

const forms = [
  { name: 'mariadb', server: 'mariadb', start: startMariadb, options: {} },
  { name: 'mariadb as mysql', server: 'mariadb', start: startMariadb, options: { settings: { version: '8.0.40' } } },
  { name: 'mysql itself', server: 'mysql', start: startMysql, options: {} },
] as const

for (const { name, server, start, options } of forms) {
  needs(server, { ours: true }).describe(`the MySQL store, ${name}`, () => {
    let ground: MysqlGround
    beforeAll(async () => {
      ground = await startMysqlGround(options, start)
    })
    afterAll(() => ground[Symbol.asyncDispose]())
    sweptTest(() => ground.createSubject())
    integersTest(() => ground.createSubject())
    unreachableTest('MySQL', 21, () => ground.createSubject())
    storeContract({
      name,
      create: () => ground.createSubject(),
      cannot: { collecting: 'its transactions stay open: nothing has to be collected' },
      test,
    })
  })
}

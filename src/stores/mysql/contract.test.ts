// The contract, on a real server through a proxy that can fail, with the server's clock in the test's hand. Twice: MySQL itself
// cannot be had here, but a MariaDB that says it is MySQL makes the store go MySQL's ways, where waits cannot be forbidden.

import { afterAll, beforeAll, test } from 'vitest'
import { type MysqlGround, startMysqlGround } from '../../../test/subjects/mysql.ts'
import { needs } from '../../../test/servers/needs.ts'
import { storeContract } from '../../testing/store-contract.ts'

const forms = { mariadb: {}, 'mariadb as mysql': { settings: { version: '8.0.40' } } }

for (const [name, options] of Object.entries(forms)) {
  needs('mariadb', { ours: true }).describe(`the MySQL store, ${name}`, () => {
    let ground: MysqlGround
    beforeAll(async () => {
      ground = await startMysqlGround(options)
    })
    afterAll(() => ground[Symbol.asyncDispose]())
    storeContract({ name, create: () => ground.createSubject(), cannot: {}, test })
  })
}

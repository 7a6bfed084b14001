// The contract through PgBouncer in transaction mode, where every transaction may get another session: nothing of ours may
// live longer than a transaction. (Without PgBouncer, postgres/server.test.ts still gives each statement a session of its own.)

import { afterAll, beforeAll } from 'vitest'
import { createPool, type PostgresGround, startPostgresGround } from '../../../test/subjects/postgres.ts'
import { needs } from '../../../test/servers/needs.ts'
import { contractPart } from '../../../test/subjects/contract-part.ts'
import { startPgbouncer } from '../../../test/servers/pgbouncer.ts'
import type { Running } from '../../../test/servers/server.ts'
import type { ContractSubject } from '../../testing/store-contract.ts'
import { storeContractCases } from '../../testing/store-contract.ts'
import { postgresStore } from '../postgres.ts'

needs(['postgres', 'pgbouncer'], { ours: true }).describe('the PostgreSQL store through PgBouncer', () => {
  let ground: PostgresGround
  let bouncer: Running
  beforeAll(async () => {
    ground = await startPostgresGround()
    bouncer = await startPgbouncer(ground.server)
  })
  afterAll(async () => {
    await bouncer.stop()
    await ground[Symbol.asyncDispose]()
  })

  const create = async (): Promise<ContractSubject> => {
    const url = `postgres://postgres@127.0.0.1:${bouncer.port}${new URL(ground.url).pathname}`
    const pools = [createPool(url)]
    const subject = await ground.createSubject()
    return {
      ...(subject as ContractSubject),
      store: postgresStore({ pool: pools[0]! }) as ContractSubject['store'],
      async another() {
        pools.push(createPool(url))
        return postgresStore({ pool: pools.at(-1)! })
      },
      async destroy() {
        await Promise.all(pools.map((pool) => pool.end()))
        await subject.destroy()
      },
    }
  }
  // The faults are on the way to the server, which is not the way through the bouncer. And nothing is collected: transactions stay open.
  const cases = storeContractCases.filter((each) => !/fault|crash|collecting/.test(each.guarantee))
  contractPart({ name: 'behind PgBouncer', cases, create })
})

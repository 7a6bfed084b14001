// The database of the store, for tables beside its own.

import type { PoolClient } from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach } from 'vitest'
import { databaseOf } from '../../clients/sql-database.ts'
import type { ContractSubject } from '../../testing/store-contract.ts'
import { besideTests } from '../../../test/subjects/beside.ts'
import type { BesideGround } from '../../../test/subjects/beside.ts'
import { startPostgresGround } from '../../../test/subjects/postgres.ts'
import type { PostgresGround } from '../../../test/subjects/postgres.ts'
import { needs } from '../../../test/servers/needs.ts'

needs('postgres', { ours: true }).describe('the database of the PostgreSQL store', () => {
  let server: PostgresGround
  let subject: ContractSubject
  let ground: BesideGround
  beforeAll(async () => {
    server = await startPostgresGround()
    await server.admin.query('create table public.onceonly_beside (n int)')
  })
  afterAll(() => server[Symbol.asyncDispose]())
  beforeEach(async () => {
    await server.admin.query('delete from public.onceonly_beside')
    subject = (await server.createSubject({ max: 1 })) as ContractSubject
    const texts = async (statement: string): Promise<readonly string[]> =>
      (await server.admin.query<{ answer: unknown }>(statement)).rows.map(({ answer }) => String(answer))
    ground = {
      database: databaseOf(subject.store)!,
      cutAtCommit: (side) => void subject.faults!.cutAtCommit(side),
      write: (tx, statement) => (tx as PoolClient).query(statement),
      rows: () => texts('select n as answer from public.onceonly_beside order by n'),
      serverTime: async () =>
        Number((await texts('select extract(epoch from at) * 1000 as answer from fake.clock'))[0]),
    }
  })
  afterEach(() => subject.destroy())
  besideTests(() => ground)
})

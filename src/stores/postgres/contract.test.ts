// The contract, on a real server through a proxy that can fail, with the server's clock in the test's hand.

import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import {
  contractName,
  createPool,
  inTransaction,
  type PostgresGround,
  startPostgresGround,
} from '../../../test/subjects/postgres.ts'
import { needs } from '../../../test/servers/needs.ts'
import { integersTest } from '../../../test/subjects/integers.ts'
import { sweptTest } from '../../../test/subjects/swept.ts'
import { unreachableTest } from '../../../test/subjects/unreachable.ts'
import { contractPart } from '../../../test/subjects/contract-part.ts'
import { key } from '../../core/key.ts'
import { bytesOf, grantedOf, leaseMs, minuteMs, request } from '../../testing/store-contract.ts'
import { storeContract, storeContractCases } from '../../testing/store-contract.ts'
import { postgresStore } from '../postgres.ts'

needs('postgres', { ours: true }).describe('the PostgreSQL store', () => {
  let ground: PostgresGround
  beforeAll(async () => {
    ground = await startPostgresGround()
  })
  afterAll(() => ground[Symbol.asyncDispose]())

  sweptTest(() => ground.createSubject())
  integersTest(() => ground.createSubject())
  unreachableTest('PostgreSQL', 21, () => ground.createSubject())
  storeContract({
    name: contractName('postgres'),
    create: () => ground.createSubject(),
    cannot: { collecting: 'its transactions stay open: nothing has to be collected' },
    test,
  })

  test('a rollback that comes after the end of a step does not end the transaction of whoever has the connection now', async () => {
    await ground.reset()
    const pool = createPool(ground.url, { max: 1 })
    const store = postgresStore({ pool })
    const given = await store.enlist(key('late', 'a step'), { ...request(), input: bytesOf('x') })
    const step = (await store.beginStep(grantedOf(given)))!
    await step.tx.query('update onceonly set token = gen_random_uuid()')
    expect(await step.commit({ records: [], becomes: { to: 'running', leaseMs } })).toBe('lost')
    await inTransaction(pool, async (tx) => {
      await tx.query(`insert into effects values ('of others')`)
      await step.rollback()
      await step.abandon()
    })
    const { rows } = await ground.admin.query('select name from public.effects')
    expect(rows).toEqual([{ name: 'of others' }])
    await pool.end()
  })

  // What others do at the same moment is all that an isolation level can change.
  const concurrent = [
    'atomic-claims',
    'fencing',
    'sweep',
    'counted-sweep',
    'transactions',
    'no-waiting',
    'commit-faults',
    'operations',
    'transactional-steps',
  ]
  // Its snapshot cannot see who has the entry now: instead of 'lost' it is told of a conflict, see the test below.
  const otherwise = 'a step whose holder is taken over while it runs is rolled back at its commit'
  const cases = storeContractCases.filter((each) => concurrent.includes(each.guarantee) && each.name !== otherwise)
  for (const isolation of ['repeatable read', 'serializable']) {
    describe(`when ${isolation} is the default of the database's sessions`, () => {
      const options = `-c default_transaction_isolation=${isolation.replace(' ', '\\ ')}`
      contractPart({ name: isolation, cases, create: () => ground.createSubject({ options }) })

      test('a step whose entry was written since it began, by an heir or a heartbeat, is a conflict, with nothing committed', async () => {
        await ground.reset()
        const pool = createPool(ground.url, { options })
        const store = postgresStore({ pool })
        const enlist = async (): Promise<ReturnType<typeof grantedOf>> =>
          grantedOf(await store.enlist(key('isolation', 'a step'), { ...request(), input: bytesOf('x') }))
        const claim = await enlist()
        const others = [() => store.extend(claim, leaseMs), () => ground.advance(leaseMs + minuteMs).then(enlist)]
        for (const other of others) {
          const step = await store.beginStep(claim)
          await step!.tx.query(`insert into effects values ('isolated')`)
          await other()
          const error = await step!
            .commit({ records: [], becomes: { to: 'running', leaseMs } })
            .catch((thrown: unknown) => thrown)
          expect(error).toMatchObject({ code: 'TRANSACTION_CONFLICT', executed: 'no' })
          expect(store.isConflict(error)).toBe(true)
        }
        const { rows } = await ground.admin.query('select * from public.effects')
        expect(rows).toEqual([])
        expect(await store.beginStep(claim)).toBeUndefined()
        await pool.end()
      })
    })
  }
})

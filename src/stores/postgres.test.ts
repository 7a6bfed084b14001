// The contract, on a real server through a proxy that can fail, with the server's clock in the test's hand.

import { afterAll, beforeAll, describe, test } from 'vitest'
import { type PostgresGround, startPostgresGround } from '../../test/postgres-subject.ts'
import { needs } from '../../test/servers/needs.ts'
import { runContractCase, storeContract, storeContractCases } from '../testing/store-contract.ts'

needs('postgres', { ours: true }).describe('the PostgreSQL store', () => {
  let ground: PostgresGround
  beforeAll(async () => {
    ground = await startPostgresGround()
  })
  afterAll(() => ground[Symbol.asyncDispose]())

  storeContract({ name: 'postgres', create: () => ground.createSubject(), cannot: {}, test })

  // What others do at the same moment is all that an isolation level can change.
  const concurrent = [
    'atomic-claims',
    'fencing',
    'sweep',
    'counted-sweep',
    'transactions',
    'no-waiting',
    'commit-faults',
  ]
  const cases = storeContractCases.filter((each) => concurrent.includes(each.guarantee))
  for (const isolation of ['repeatable read', 'serializable']) {
    describe(`when ${isolation} is the default of the database's sessions`, () => {
      const options = `-c default_transaction_isolation=${isolation.replace(' ', '\\ ')}`
      test.each(cases)('$name', (each) => runContractCase(each, () => ground.createSubject({ options })))
    })
  }
})

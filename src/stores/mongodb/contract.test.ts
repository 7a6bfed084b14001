// The MongoDB store keeps the contract, however its claims begin. What is its own is in the other mongodb-*.test.ts files.

import { afterAll, beforeAll, test } from 'vitest'
import { startMongodbGround, type MongodbGround, type StoreOptions } from '../../../test/subjects/mongodb.ts'
import { needs } from '../../../test/servers/needs.ts'
import { sweptOutcomeTest } from '../../../test/subjects/swept.ts'
import { unreachableTest } from '../../../test/subjects/unreachable.ts'
import { storeContract, type Cannot } from '../../testing/store-contract.ts'

const cannot: Cannot = {
  operations: 'operations are for SQL stores; MongoDB keeps no steps',
  transactions: 'transactions of MongoDB want a replica set, and no server that has them can be had for the tests',
  collecting: 'it would need a transaction of MongoDB',
}

needs('mongodb', { ours: true }).describe('the store contract', () => {
  let ground: MongodbGround
  beforeAll(async () => {
    ground = await startMongodbGround()
  })
  afterAll(async () => {
    await ground[Symbol.asyncDispose]()
  })

  const contract = (name: string, options: StoreOptions): void =>
    storeContract({ name, create: () => ground.createSubject(options), cannot, test })

  sweptOutcomeTest(() => ground.createSubject())
  unreachableTest('MongoDB', 12, () => ground.createSubject())
  contract('mongodb', {})
  contract('mongodb, expects replays', { expects: 'replays' })
})

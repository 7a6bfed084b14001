// The DynamoDB store keeps the contract, however its claims begin. What is its own is in the other dynamodb-*.test.ts files.

import { afterAll, beforeAll, test } from 'vitest'
import { startDynamodbGround, type DynamodbGround, type StoreOptions } from '../../../test/subjects/dynamodb.ts'
import { needs } from '../../../test/servers/needs.ts'
import { sweptOutcomeTest } from '../../../test/subjects/swept.ts'
import { unreachableTest } from '../../../test/subjects/unreachable.ts'
import { storeContract, type Cannot } from '../../testing/store-contract.ts'

const cannot: Cannot = {
  operations: 'operations are for SQL stores; DynamoDB keeps no steps',
  transactions:
    'DynamoDB has no transactions that stay open; once.transaction collects writes and commits them with the settle (collecting)',
  'clock-skew':
    'DynamoDB has no clock, so each process goes by its own; dynamodb/fitness.test.ts has the same cases within clockSkewMs, and what happens beyond it',
}

needs('dynamodb', { ours: true }).describe('the store contract', () => {
  let ground: DynamodbGround
  beforeAll(async () => {
    ground = await startDynamodbGround()
  })
  afterAll(async () => {
    await ground[Symbol.asyncDispose]()
  })

  const contract = (name: string, options: StoreOptions, except: Cannot): void =>
    storeContract({ name, create: () => ground.createSubject(options), cannot: { ...cannot, ...except }, test })

  sweptOutcomeTest(() => ground.createSubject())
  unreachableTest('DynamoDB', 12, () => ground.createSubject())
  contract('dynamodb', {}, {})
  contract(
    'dynamodb, expects replays, 5 s of skew allowed',
    { expects: 'replays', clockSkewMs: 5_000 },
    { 'exact-edges': 'with an allowance for skew, edges are later by it; dynamodb/fitness.test.ts has them' },
  )
})

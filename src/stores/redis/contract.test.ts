// The contract, on a real server through a proxy that can fail, with both client libraries and the server's clock in the
// test's hand; and what the contract cannot ask of every store.

import { afterAll, beforeAll, describe, test } from 'vitest'
import { drivers, startRedisGround } from '../../../test/subjects/redis.ts'
import type { RedisGround } from '../../../test/subjects/redis.ts'
import { needs } from '../../../test/servers/needs.ts'
import { unreachableTest } from '../../../test/subjects/unreachable.ts'
import { storeContract } from '../../testing/store-contract.ts'

const noSweep = 'Redis expires outcomes and entries by itself, at the very times; there is nothing to sweep'
const cannot = {
  operations:
    'Redis keeps no steps: an operation needs a store that commits a step with its effect, or at least never loses one',
  transactions: "Redis has no transaction with the user's database",
  collecting: 'Redis has no other writes of the user to settle with',
  sweep: noSweep,
  'counted-sweep': noSweep,
}

// Native commands settle there, too. With ioredis it is by scripts, as above.
needs('valkey', { ours: true }).describe('the Redis store on Valkey', () => {
  let ground: RedisGround
  beforeAll(async () => {
    ground = await startRedisGround('valkey')
  })
  afterAll(() => ground[Symbol.asyncDispose]())

  unreachableTest('Redis', 10, () => ground.createSubject('node-redis'))
  storeContract({ name: 'valkey', create: () => ground.createSubject('node-redis'), cannot, test })
})

needs('redis', { ours: true }).describe('the Redis store', () => {
  let ground: RedisGround
  beforeAll(async () => {
    ground = await startRedisGround()
  })
  afterAll(() => ground[Symbol.asyncDispose]())

  for (const driver of drivers) {
    describe(driver, () => unreachableTest('Redis', 10, () => ground.createSubject(driver)))
    storeContract({ name: driver, create: () => ground.createSubject(driver), cannot, test })
  }
})

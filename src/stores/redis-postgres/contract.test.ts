// The contract, on both real servers through proxies that can fail, with the database's clock in the test's hand; and the
// proof that it was asked of Redis, too.

import { afterAll, beforeAll, expect, test } from 'vitest'
import { startRedisPostgresGround } from '../../../test/subjects/redis-postgres.ts'
import type { RedisPostgresGround } from '../../../test/subjects/redis-postgres.ts'
import { drivers } from '../../../test/subjects/redis.ts'
import { needs } from '../../../test/servers/needs.ts'
import { contractPart } from '../../../test/subjects/contract-part.ts'
import { redisInfo } from '../../../test/servers/redis/command.ts'
import { ask, assertSettled, bytesOf, finish, aKey } from '../../testing/store-contract.ts'
import { storeContract, storeContractCases } from '../../testing/store-contract.ts'

needs(['postgres', 'redis'], { ours: true }).describe('the Redis over PostgreSQL store', () => {
  let ground: RedisPostgresGround
  beforeAll(async () => {
    ground = await startRedisPostgresGround()
  })
  afterAll(() => ground[Symbol.asyncDispose]())

  storeContract({
    name: 'node-redis',
    create: () => ground.createSubject('node-redis'),
    cannot: { collecting: 'its transactions stay open: nothing has to be collected' },
    test,
  })

  // The client only carries bytes: what is asked of it again is whether they arrive as they were, and what happens if not.
  const carried = ['mismatch', 'outcomes', 'expiry', 'keys', 'connection-faults']
  const cases = storeContractCases.filter((each) => carried.includes(each.guarantee))
  contractPart({ name: 'ioredis', cases, create: () => ground.createSubject('ioredis') })

  for (const driver of drivers) {
    test(`${driver}: the contract's subject does answer from Redis`, async () => {
      const subject = await ground.createSubject(driver)
      const another = await subject.another()
      await finish(subject.store, aKey, bytesOf('from Redis'))
      const hits = async (): Promise<number> =>
        Number(/keyspace_hits:(\d+)/.exec(await redisInfo(ground.redis.url))![1])
      const before = await hits()
      for (const store of [subject.store, another]) assertSettled(await ask(store, aKey), bytesOf('from Redis'))
      expect((await hits()) - before).toBe(2)
      await subject.destroy()
    })
  }
})

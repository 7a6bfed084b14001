// In front of PostgreSQL a Redis Cluster: an answer is found wherever its key lives, and a primary that is gone takes nothing
// but its hits with it.

import { afterAll, beforeAll, expect, test } from 'vitest'
import { open, startRedisPostgresGround, testTime } from '../../../test/subjects/redis-postgres.ts'
import type { RedisPostgresGround } from '../../../test/subjects/redis-postgres.ts'
import { connectCluster, drivers } from '../../../test/subjects/redis.ts'
import { needs } from '../../../test/servers/needs.ts'
import { startCluster } from '../../../test/servers/redis/cluster.ts'
import type { RedisCluster } from '../../../test/servers/redis/cluster.ts'
import { redisCommand } from '../../../test/servers/redis/command.ts'
import { key } from '../../core/key.ts'
import { ask, assertSettled, bytesOf, finish, times } from '../../testing/store-contract.ts'

needs(['postgres', 'redis'], { ours: true }).describe('a Redis Cluster over PostgreSQL', () => {
  let ground: RedisPostgresGround
  let cluster: RedisCluster
  beforeAll(async () => {
    ;[ground, cluster] = await Promise.all([startRedisPostgresGround(), startCluster()])
  })
  afterAll(() => Promise.all([ground[Symbol.asyncDispose](), cluster.stop()]))

  test.each(drivers)('%s: answers lie on all primaries and are found there, one command each', async (driver) => {
    await using pair = await open(ground, {
      connected: await connectCluster(driver, cluster.urls),
      clock: testTime(),
      prefix: driver,
    })
    const { store, watched } = pair
    const keys = times(40).map((index) => key('cluster', `${driver} ${index}`))
    for (const each of keys) await finish(store, each, bytesOf(each.id))
    const sizes = await Promise.all(cluster.urls.map((url) => redisCommand(url, 'DBSIZE')))
    expect(sizes.filter((size) => (size as number) > 0)).toHaveLength(3)
    watched.commands.length = 0
    watched.calls.length = 0
    const verdicts = await Promise.all(keys.map((each) => ask(store, each)))
    for (const [index, each] of keys.entries()) assertSettled(verdicts[index]!, bytesOf(each.id))
    expect(watched.calls).toEqual([])
    expect(watched.commands).toEqual(keys.map(() => 'GET'))
  })
})

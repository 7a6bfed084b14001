// Redis as the tests get it: alone, with a replica, under sentinels, and as a cluster.
import { createCluster } from 'redis'
import { expect, test } from 'vitest'
import { needs } from './needs.ts'
import { pollUntil } from './poll.ts'
import { startCluster } from './redis/cluster.ts'
import { redisCommand } from './redis/command.ts'
import { startSentinels } from './redis/sentinel.ts'
import { startRedis, startReplica } from './redis.ts'

needs('redis', { ours: true }).describe('a Redis of our own', () => {
  test('with an append-only file keeps what it acknowledged over a crash', async () => {
    await using server = await startRedis({ config: { appendonly: 'yes', appendfsync: 'always' } })
    await redisCommand(server.url, 'SET', 'kept', '42')
    await server.crash()
    await server.restart()
    expect(await redisCommand(server.url, 'GET', 'kept')).toBe('42')
  })

  test('takes any configuration, a password included', async () => {
    await using server = await startRedis({ config: { requirepass: 'secret', 'maxmemory-policy': 'allkeys-lru' } })
    const answer = await redisCommand(server.url, 'CONFIG', 'GET', 'maxmemory-policy')
    expect(answer).toEqual(['maxmemory-policy', 'allkeys-lru'])
  })

  test('fails over to its replica under sentinels', async () => {
    await using primary = await startRedis()
    await redisCommand(primary.url, 'SET', 'kept', '42')
    await using replica = await startReplica(primary)
    expect(await redisCommand(replica.url, 'GET', 'kept')).toBe('42')
    await using sentinels = await startSentinels(primary)
    expect(await sentinels.primaryUrl()).toBe(primary.url)
    await primary.crash()
    await pollUntil('the failover', async () => (await sentinels.primaryUrl()) === replica.url)
    await pollUntil('the replica to take writes', async () => {
      return (await redisCommand(replica.url, 'SET', 'kept', '43').catch(() => undefined)) === 'OK'
    })
  })

  test('forms a cluster that a cluster client can use', async () => {
    await using cluster = await startCluster({ nodes: 3 })
    const client = createCluster({ rootNodes: cluster.urls.map((url) => ({ url })) })
    await client.connect()
    for (const key of ['a', 'b', 'c', 'd', 'e', 'f']) expect(await client.set(key, key)).toBe('OK')
    const sizes = await Promise.all(cluster.urls.map((url) => redisCommand(url, 'DBSIZE')))
    expect(sizes.reduce((sum: number, size) => sum + Number(size), 0)).toBe(6)
    expect(sizes.filter((size) => Number(size) > 0).length).toBeGreaterThan(1)
    client.destroy()
  })

  test('given by URL is used in an empty database, which is emptied at the end', async () => {
    await using server = await startRedis()
    process.env['ONCEONLY_REDIS_URL'] = server.url
    try {
      const first = await startRedis()
      const second = await startRedis()
      expect([first.url, second.url]).toEqual([`${server.url}/1`, `${server.url}/2`])
      await first.stop()
      expect(await redisCommand(first.url, 'DBSIZE')).toBe(0)
      await expect(second.restart()).rejects.toThrow(/given by ONCEONLY_REDIS_URL and cannot be restarted/)
    } finally {
      delete process.env['ONCEONLY_REDIS_URL']
    }
  })
})

// The contract on a cluster of three primaries, and Sentinel failover, with both client libraries.

import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { Redis } from 'ioredis'
import { createSentinel } from 'redis'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { connectCluster, drivers, durable, startClusterGround } from '../../../test/subjects/redis.ts'
import type { ClusterGround, Driver } from '../../../test/subjects/redis.ts'
import { needs } from '../../../test/servers/needs.ts'
import { pollUntil } from '../../../test/servers/poll.ts'
import { redisCommand } from '../../../test/servers/redis/command.ts'
import { startSentinels } from '../../../test/servers/redis/sentinel.ts'
import type { Sentinels } from '../../../test/servers/redis/sentinel.ts'
import { startRedis, startReplica } from '../../../test/servers/redis.ts'
import { key } from '../../core/key.ts'
import {
  ask,
  assertGranted,
  assertSettled,
  bytesOf,
  eventually,
  failureOf,
  finish,
  take,
  times,
} from '../../testing/store-contract.ts'
import { storeContract } from '../../testing/store-contract.ts'
import { namesUnder } from './names.ts'
import { dataLossChannel, redisStore } from '../redis.ts'
import type { DataLoss, RedisClient } from '../redis.ts'

const noSweep = 'Redis expires outcomes and entries by itself, at the very times; there is nothing to sweep'
const cannot = {
  operations:
    'Redis keeps no steps: an operation needs a store that commits a step with its effect, or at least never loses one',
  transactions: "Redis has no transaction with the user's database",
  collecting: 'Redis has no other writes of the user to settle with',
  sweep: noSweep,
  'counted-sweep': noSweep,
  'crash-recovery': 'asked of one server in redis.test.ts; the cluster is shared by all cases',
  'connection-faults':
    'asked of one server in redis.test.ts; a cluster client goes past the proxy to the nodes themselves',
}

needs('redis', { ours: true }).describe('the Redis store on a cluster', () => {
  let ground: ClusterGround
  beforeAll(async () => {
    ground = await startClusterGround()
  })
  afterAll(() => ground[Symbol.asyncDispose]())

  for (const driver of drivers)
    storeContract({ name: driver, create: () => ground.createSubject(driver), cannot, test })

  test('all names of an entry, and the register and mark that its scripts need, are in one slot', async () => {
    const names = namesUnder('some:prefix')
    for (const each of [key('payments', '42'), key('a/{b}', '}{c}'), key('ü', '%2F')]) {
      const bucket = names.bucketOf(each)
      const all = [...Object.values(names.of(each)), names.register(bucket), names.mark(bucket, 'instance')]
      const slots = all.map((name) => redisCommand(ground.cluster.urls[0]!, 'CLUSTER', 'KEYSLOT', name))
      expect(new Set(await Promise.all(slots)).size).toBe(1)
    }
  })

  test('keys spread over all primaries', async () => {
    const { client, close } = await connectCluster('node-redis', ground.cluster.urls)
    const store = redisStore({ client, prefix: 'spread' })
    await Promise.all(times(300).map((index) => take(store, key('spread', `${index}`))))
    for (const url of ground.cluster.urls) {
      const names = (await redisCommand(url, 'KEYS', 'spread:*:entry:*')) as string[]
      expect(names.length).toBeGreaterThan(50)
    }
    await close()
  })

  for (const driver of drivers) {
    test(`${driver}: one primary that comes back empty puts all of the cluster into quarantine`, async () => {
      const losses: DataLoss[] = []
      const onLoss = (loss: unknown): void => void losses.push(loss as DataLoss)
      subscribe(dataLossChannel, onLoss)
      const { client, close } = await connectCluster(driver, ground.cluster.urls)
      const store = redisStore({ client, prefix: `emptied-${driver}` })
      const keys = times(60).map((index) => key('cluster', `${index}`))
      await Promise.all(keys.map((each) => finish(store, each, bytesOf(each.id))))
      await redisCommand(ground.cluster.urls[1]!, 'FLUSHALL')

      const lost = keys.filter((each) => isOn(ground, 1, each))
      const kept = keys.filter((each) => !isOn(ground, 1, each))
      expect(lost.length * kept.length).toBeGreaterThan(0)
      for (const each of lost) expect((await failureOf(ask(store, each))).message).toContain('has lost data')
      for (const each of kept) assertSettled(await ask(store, each), bytesOf(each.id))
      expect(losses.length).toBeGreaterThan(0)
      // Also where this instance has never been, and where nothing was lost.
      const unseen = times(60).map((index) => key('unseen', `${index}`))
      await pollUntil('the quarantine to be everywhere', async () => {
        const answers = await Promise.allSettled(unseen.map((each) => ask(store, each)))
        return answers.every((each) => each.status === 'rejected')
      })
      expect(await store.endQuarantine('a test')).toBe(true)
      expect(await store.quarantine()).toBeUndefined()
      assertGranted(await ask(store, lost[0]!), 'fresh', 1)
      unsubscribe(dataLossChannel, onLoss)
      await close()
    })
  }
})

// The three primaries share the slots evenly and in order; CRC16 as in the specification of Redis Cluster.
function isOn(_ground: ClusterGround, node: number, each: { scope: string; id: string }): boolean {
  let crc = 0
  for (const byte of Buffer.from(`${namesUnder('x').bucketOf(each)}`)) {
    crc ^= byte << 8
    for (let bit = 0; bit < 8; bit++) crc = (crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1) & 0xffff
  }
  return Math.floor(((crc % 16_384) * 3) / 16_384) === node
}

interface Opened {
  readonly client: RedisClient
  close(): Promise<void>
}

async function connectSentinels(driver: Driver, sentinels: Sentinels): Promise<Opened> {
  const nodes = sentinels.members.map(({ host, port }) => ({ host, port }))
  if (driver === 'ioredis') {
    const client = new Redis({ sentinels: nodes, name: sentinels.primaryName })
    client.on('error', () => {})
    return { client, close: async () => client.disconnect() }
  }
  const client = createSentinel({ name: sentinels.primaryName, sentinelRootNodes: nodes, scanInterval: 200 })
  client.on('error', () => {})
  await client.connect()
  return { client, close: async () => client.destroy() }
}

needs('redis', { ours: true }).describe('the Redis store under Sentinel', () => {
  describe.each(drivers)('%s', (driver) => {
    test('a failover to a replica that has everything goes on as if nothing had been, without a quarantine', async () => {
      await using primary = await startRedis({ config: durable })
      await using replica = await startReplica(primary, { config: durable })
      await using sentinels = await startSentinels(primary)
      const { client, close } = await connectSentinels(driver, sentinels)
      const store = redisStore({ client })
      await finish(store, key('failover', 'settled'), bytesOf('kept'))
      const claim = await take(store, key('failover', 'running'))
      expect(await redisCommand(primary.url, 'WAIT', 1, 60_000)).toBe(1)
      const offset = async (url: string): Promise<string | undefined> =>
        /master_repl_offset:(\d+)/.exec(String(await redisCommand(url, 'INFO', 'replication')))?.[1]
      await pollUntil(
        'the replica to have it all',
        async () => (await offset(primary.url)) === (await offset(replica.url)),
      )
      await primary.crash()
      await pollUntil('the failover', async () => (await sentinels.primaryUrl()).endsWith(`:${replica.port}`))
      assertSettled(await eventually(() => ask(store, key('failover', 'settled'))), bytesOf('kept'))
      expect(await eventually(() => store.extend(claim, 60_000))).toBe('done')
      assertGranted(await eventually(() => ask(store, key('failover', 'new'))), 'fresh', 1)
      expect(await store.quarantine()).toBeUndefined()
      await close()
    })
  })
})

// A server that would void the promise is refused before the first claim, unless the user has said that it is accepted.

import { afterEach, describe, expect, test } from 'vitest'
import { connect, drivers, durable } from '../../../test/subjects/redis.ts'
import type { Connected, Driver } from '../../../test/subjects/redis.ts'
import { needs } from '../../../test/servers/needs.ts'
import { pollUntil } from '../../../test/servers/poll.ts'
import { redisCommand } from '../../../test/servers/redis/command.ts'
import { startRedis } from '../../../test/servers/redis.ts'
import type { Running } from '../../../test/servers/server.ts'
import { key } from '../../core/key.ts'
import { ask, failureOf, take } from '../../testing/store-contract.ts'
import { factsOf, objectionsTo } from './fitness.ts'
import type { RedisFacts } from './fitness.ts'
import { redisStore } from '../redis.ts'
import type { RedisStore, RedisStoreOptions } from '../redis.ts'

const opened: Connected[] = []
const servers: Running[] = []

afterEach(async () => {
  await Promise.all(opened.splice(0).map((each) => each.close()))
  await Promise.all(servers.splice(0).map((each) => each.stop()))
})

async function server(config: Record<string, string>): Promise<Running> {
  servers.push(await startRedis({ config }))
  return servers.at(-1)!
}

async function storeOn(
  url: string,
  options: Partial<RedisStoreOptions> = {},
  driver: Driver = 'node-redis',
): Promise<RedisStore> {
  opened.push(await connect(driver, url))
  return redisStore({ client: opened.at(-1)!.client, ...options })
}

const aKey = key('safety', 'a key')

// What Redis 7 says with key-load-delay set, word for word: it is not without an append-only file, it has not read it yet.
test('a server that is loading its append-only file is not judged by what it says of it', async () => {
  const loading = async (): Promise<string> =>
    'redis_version:7.0.15\r\nloading:1\r\nasync_loading:0\r\naof_enabled:0\r\n'
  await expect(factsOf(loading, [])).rejects.toThrow('LOADING')
})

async function assertRefused(store: RedisStore, reason: string): Promise<void> {
  const error = await failureOf(ask(store, aKey))
  expect([error.code, error.executed, error.retryable]).toEqual(['STORE_UNSAFE', 'no', false])
  expect(error.message).toContain(reason)
}

needs('redis', { ours: true }).describe('the Redis store looks at its server', () => {
  for (const driver of drivers) {
    test(`${driver}: refuses a server that evicts, unless eviction is accepted, and has written nothing`, async () => {
      const { url } = await server({ ...durable, 'maxmemory-policy': 'volatile-lru' })
      await assertRefused(await storeOn(url, {}, driver), 'maxmemory-policy: volatile-lru')
      expect(await redisCommand(url, 'DBSIZE')).toBe(0)
      await take(await storeOn(url, { eviction: 'accept' }, driver), aKey)
    })

    test(`${driver}: refuses a server without an append-only file, unless durability is relaxed`, async () => {
      const { url } = await server({ save: '3600 1' })
      await assertRefused(await storeOn(url, {}, driver), 'no append-only file')
      await take(await storeOn(url, { durability: 'relaxed' }, driver), aKey)
    })
  }

  test('refuses an append-only file that is never synced', async () => {
    const { url } = await server({ appendonly: 'yes', appendfsync: 'no' })
    await assertRefused(await storeOn(url), 'appendfsync no')
  })

  test('accepts everysec and always', async () => {
    for (const appendfsync of ['everysec', 'always']) {
      const { url } = await server({ appendonly: 'yes', appendfsync })
      await take(await storeOn(url), aKey)
    }
  })

  test('what it may not look at is not assumed: the user has to say so', async () => {
    const { url } = await server(durable)
    const limited = new URL(url)
    limited.username = 'limited'
    limited.password = 'secret'
    await redisCommand(url, 'ACL', 'SETUSER', 'limited', 'on', '>secret', '~*', '+@all', '-config')
    await assertRefused(await storeOn(limited.href), 'Allow CONFIG GET')
    await take(await storeOn(limited.href, { durability: 'relaxed' }), aKey)
    await redisCommand(url, 'ACL', 'SETUSER', 'limited', '-info')
    await assertRefused(await storeOn(limited.href, { durability: 'relaxed' }), 'Allow INFO')
    await take(await storeOn(limited.href, { durability: 'relaxed', eviction: 'accept' }), key('safety', 'another'))
  })

  test('a server that was mended is accepted at the next call', async () => {
    const { url } = await server({ ...durable, 'maxmemory-policy': 'allkeys-lru' })
    const store = await storeOn(url)
    await assertRefused(store, 'allkeys-lru')
    await redisCommand(url, 'CONFIG', 'SET', 'maxmemory-policy', 'noeviction')
    await take(store, aKey)
  })

  for (const driver of drivers) {
    test(`${driver}: looks again when the client had to connect again, as it may be another server`, async () => {
      const { url } = await server(durable)
      const store = await storeOn(url, {}, driver)
      await take(store, aKey)
      await redisCommand(url, 'CONFIG', 'SET', 'maxmemory-policy', 'allkeys-lru')
      await redisCommand(url, 'CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes')
      const error = await pollUntil('the refusal', async () => {
        const found = await ask(store, key('safety', 'after')).catch((each: unknown) => each)
        return found instanceof Error && found.message.includes('allkeys-lru') && found
      })
      expect(error).toMatchObject({ code: 'STORE_UNSAFE' })
    })
  }
})

describe('versions', () => {
  const accepted = { eviction: 'refuse', durability: 'aof' } as const
  const factsWith = (version: string): RedisFacts => {
    const fields = new Map([
      ['redis_version', version],
      ['maxmemory_policy', 'noeviction'],
      ['aof_enabled', '1'],
    ])
    return { field: (name) => fields.get(name), setting: () => 'always' }
  }

  test.each(['5.0.14', '6.0.20'])('%s is refused', (version) => {
    expect(objectionsTo(factsWith(version), accepted).join()).toContain(`redis_version: ${version}`)
  })

  test.each(['6.2.0', '7.0.15', '7.2.4', '8.4.0', '10.0.0'])('%s is accepted', (version) => {
    expect(objectionsTo(factsWith(version), accepted)).toEqual([])
  })
})

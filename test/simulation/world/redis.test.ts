// The simulated Redis decides as the real one does: the shipped store passes the same contract on it. What it has besides is a
// way to lose data, which the store must find out.

import { describe, expect, test } from 'vitest'
import { key } from '../../../src/core/key.ts'
import { redisStore } from '../../../src/stores/redis.ts'
import { claimScript, writeScript } from '../../../src/stores/redis/decisions.lua.ts'
import { swapScripts } from '../../../src/stores/redis/native/swap.ts'
import { takeScript } from '../../../src/stores/redis/native/take.ts'
import type { RedisStore } from '../../../src/stores/redis.ts'
import { bytesOf, finish, request } from '../../../src/testing/store-contract.ts'
import type { ContractSubject } from '../../../src/testing/store-contract.ts'
import { manualClock } from '../../../src/testing/manual-clock.ts'
import type { ManualClock } from '../../../src/testing/manual-clock.ts'
import type { RedisWay } from './redis.ts'
import { createRedisServer, infoOf } from './redis/server.ts'
import type { RedisServer } from './redis/server.ts'
import { storeContract } from '../../../src/testing/store-contract.ts'

interface Redis {
  readonly clock: ManualClock
  readonly server: RedisServer
  /** All commands and scripts by their names. */
  readonly sent: readonly string[]
  connect(): RedisStore
}

const scripts = Object.entries({
  take: takeScript,
  ifeq: swapScripts.ifeq,
  swap: swapScripts.script,
  claimScript,
  writeScript,
})

/** A script is named, and how the server was told it. */
function nameOf([verb, text]: readonly (string | Buffer)[]): string {
  const [name] = scripts.find(([, { source, sha }]) => text === source || text === sha) ?? []
  return name === undefined ? String(verb) : `${String(verb)} ${name}`
}

function redis(way: RedisWay = 'scripts'): Redis {
  const clock = manualClock()
  const sent: string[] = []
  const server = createRedisServer({ nowUs: () => clock.now() * 1_000, onChange: () => {} })
  const connect = (): RedisStore => {
    const client = {
      withTypeMapping: () => client,
      sendCommand: async (command: readonly (string | Buffer)[]) => {
        if (way === 'ifeq' && command[0] === 'INFO') return infoOf('valkey_version:8.1.1')
        sent.push(nameOf(command))
        return server.run(command, () => {})
      },
      ...(way !== 'scripts' && { isReady: true, socketEpoch: 1, on: () => client }),
    }
    return redisStore({ client, clock, durability: 'relaxed' })
  }
  return { clock, server, sent, connect }
}

async function subject(way: RedisWay): Promise<ContractSubject> {
  const { clock, connect } = redis(way)
  return {
    store: connect(),
    another: async () => connect(),
    advance: (ms) => clock.advance(ms),
    corrupt: async () => {},
    destroy: async () => {},
  }
}

const ways = {
  scripts: 'simulated redis',
  ifeq: 'simulated redis, native commands',
  swaps: 'simulated redis, native commands without IFEQ',
} as const

for (const way of ['scripts', 'ifeq', 'swaps'] as const)
  storeContract({
    name: ways[way],
    create: () => subject(way),
    cannot: {
      unreadable: 'nothing is ever damaged here',
      inspection: 'names cannot be listed, and no audit is kept',
      sweep: 'Redis forgets by itself',
      transactions: 'Redis has none',
      collecting: 'Redis has none',
      operations: 'the Redis store keeps no steps',
      'crash-recovery': 'what a restart loses is said by `lose`',
      'connection-faults': 'there is no connection here',
    },
    test,
  })

test.each([
  ['ifeq', ['EVALSHA take', 'EVALSHA ifeq']],
  ['swaps', ['EVALSHA take', 'EVALSHA swap']],
  ['scripts', ['EVALSHA claimScript', 'EVALSHA writeScript']],
] as const)('%s: a claim and its settle are %j', async (way, commands) => {
  const { sent, connect } = redis(way)
  const store = connect()
  // The first goes by script, and the second says how long the mark is kept.
  for (const id of ['1', '2']) await finish(store, key('shop', id), bytesOf('paid'))
  const before = sent.length
  await finish(store, key('shop', '3'), bytesOf('paid'))
  expect(sent.slice(before)).toEqual(commands)
})

describe('a simulated Redis that has lost data', () => {
  test.each([
    ['emptied', 'scripts'],
    ['went-back', 'scripts'],
    ['emptied', 'ifeq'],
    ['went-back', 'ifeq'],
    ['emptied', 'swaps'],
    ['went-back', 'swaps'],
  ] as const)('%s, %s: is found out by whoever was told of it, and refuses', async (how, way) => {
    const { server, connect } = redis(way)
    const store = connect()
    server.remember()
    await finish(store, key('shop', '1'), bytesOf('paid'))
    server.lose(how)
    await expect(store.claim(key('shop', '1'), request())).rejects.toThrow('Redis has lost data')
    await expect(connect().claim(key('shop', '1'), request())).rejects.toThrow('Redis has lost data')
    server.endQuarantine()
    expect(await store.claim(key('shop', '1'), request())).toMatchObject({ is: 'granted', how: 'fresh' })
  })

  test('is found out by a process whose last claims, natively, were all of keys that others hold', async () => {
    const { server, connect } = redis('ifeq')
    const [store, other] = [connect(), connect()]
    await other.claim(key('shop', '1'), request())
    await finish(store, key('shop', '2'), bytesOf('paid'))
    await finish(store, key('shop', '3'), bytesOf('paid'))
    server.remember()
    expect(await store.claim(key('shop', '1'), request())).toMatchObject({ is: 'busy' })
    server.lose('went-back')
    await expect(store.claim(key('shop', '4'), request())).rejects.toThrow('Redis has lost data')
  })

  test('lets its marks go after a week, and a process that was idle for it finds no loss', async () => {
    const { clock, connect } = redis()
    const store = connect()
    await finish(store, key('shop', '1'), bytesOf('paid'))
    await clock.advance(8 * 24 * 3_600_000)
    expect(await store.claim(key('shop', '2'), request())).toMatchObject({ is: 'granted' })
    expect(await connect().claim(key('shop', '3'), request())).toMatchObject({ is: 'granted' })
  })

  test('is taken for a new one by somebody who knew nothing, until somebody comes who did', async () => {
    const { server, connect } = redis()
    const store = connect()
    await finish(store, key('shop', '1'), bytesOf('paid'))
    server.lose('emptied')
    expect(await connect().claim(key('shop', '2'), request())).toMatchObject({ is: 'granted' })
    await expect(store.claim(key('shop', '3'), request())).rejects.toThrow('Redis has lost data')
    await expect(connect().claim(key('shop', '4'), request())).rejects.toThrow('Redis has lost data')
  })
})

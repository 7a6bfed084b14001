// What is said of a server in each situation, word for word: at the start of the store, and by the doctor. Some of these take a broken
// disk or a second server to bring about, so here INFO and CONFIG GET are texts. Real servers are looked at in fitness.test.ts and
// test/cli/doctor.test.ts.

import { describe, expect, test } from 'vitest'
import type { IoRedis, IoRedisCluster, Send } from '../../clients/redis.ts'
import type { FitnessCheck, FitnessVerdict } from '../../core/fitness.ts'
import { checkServers, factsOf, redisFitness } from './fitness.ts'

type Says = Readonly<Record<string, string>>

const well: Says = {
  redis_version: '7.0.15',
  maxmemory_policy: 'noeviction',
  used_memory: '1048576',
  maxmemory: '0',
  aof_enabled: '1',
  aof_last_write_status: 'ok',
  aof_last_bgrewrite_status: 'ok',
  role: 'master',
  connected_slaves: '0',
}

const wellSet: Says = { appendfsync: 'always', 'min-replicas-to-write': '0' }

function serverThat(says: Says, settings: Says = wellSet): Send {
  const info = Object.entries({ ...well, ...says }).map(([name, value]) => `${name}:${value}\r\n`)
  return async ([command, , name]) => {
    if (command !== 'CONFIG') return info.join('')
    const value = settings[String(name)]
    if (value === undefined) throw new Error('ERR unknown command `CONFIG`')
    return [name, value]
  }
}

function serverThatRefuses(message: string): Send {
  return async () => {
    throw new Error(message)
  }
}

async function judged(...servers: readonly [Send, ...Send[]]): Promise<readonly FitnessCheck[]> {
  const clientOf = (send: Send): IoRedis => ({
    isCluster: false,
    callBuffer: async (name, values) => send([name, ...values]),
    options: {},
  })
  const one = clientOf(servers[0])
  const cluster: IoRedisCluster = { ...one, isCluster: true, nodes: () => servers.map(clientOf) }
  return redisFitness(servers.length > 1 ? cluster : one, {}).checks(0)
}

async function judgedAs(server: Send, check: string): Promise<(string | undefined)[]> {
  const { verdict, found, mend } = (await judged(server)).find(({ name }) => name === `redis-${check}`)!
  return mend === undefined ? [verdict, found] : [verdict, found, mend]
}

const byScript = 'claims and settles by script'
const byNxGet = 'claims by SET NX GET, settles by script'
const noEviction = 'Run CONFIG SET maxmemory-policy noeviction, and set the same in redis.conf.'
const moreMemory = 'Raise maxmemory, or keep outcomes for a shorter time.'
const appendOnly = 'Run CONFIG SET appendonly yes, and set the same in redis.conf.'
const lastSecond = 'A power cut can lose the last second or two. Where that is too much, set appendfsync to always.'
const readLog = 'Read its log, and look at the free space of its disk.'
const oneReplica =
  'Set min-replicas-to-write 1 and a small min-replicas-max-lag, which bounds what a failover can lose. Where nothing ' +
  'may be lost, use PostgreSQL with Redis as its cache.'

const cases: readonly [check: string, says: Says, settings: Says, ...judgement: [FitnessVerdict, string, string?]][] = [
  ['version', {}, {}, 'ok', '7.0.15'],
  ['version', { redis_version: '6.0.20' }, {}, 'violated', '6.0.20', 'Install Redis 6.2 or later, or any Valkey.'],
  ['commands', { redis_version: '6.2.14' }, {}, 'ok', byScript],
  ['commands', {}, {}, 'ok', byNxGet],
  ['commands', { redis_version: '8.4.0' }, {}, 'ok', 'claims by SET NX GET, settles by SET IFEQ'],
  ['commands', { valkey_version: '8.0.9' }, {}, 'ok', byNxGet],
  ['eviction', {}, {}, 'ok', 'noeviction'],
  ['eviction', { maxmemory_policy: 'allkeys-lru' }, {}, 'violated', 'allkeys-lru', noEviction],
  ['memory', {}, {}, 'ok', '1.0 MiB, without a limit'],
  ['memory', { maxmemory: '1310720' }, {}, 'ok', '1.0 MiB of 1.3 MiB'],
  ['memory', { maxmemory: '1310719' }, {}, 'warning', '1.0 MiB of 1.2 MiB', moreMemory],
  ['memory', { maxmemory: 'hidden' }, {}, 'unknown', 'the server does not say', 'Allow INFO for this user.'],
  ['memory', { used_memory: 'hidden' }, {}, 'unknown', 'the server does not say', 'Allow INFO for this user.'],
  ['persistence', {}, {}, 'ok', 'appendonly yes, appendfsync always'],
  ['persistence', { aof_enabled: '0' }, {}, 'violated', 'no append-only file', appendOnly],
  [
    'persistence',
    {},
    { appendfsync: 'no' },
    'violated',
    'appendonly yes, appendfsync no',
    'Set appendfsync to always or everysec.',
  ],
  ['persistence', {}, { appendfsync: 'everysec' }, 'warning', 'appendonly yes, appendfsync everysec', lastSecond],
  ['disk', {}, {}, 'ok', 'write ok, rewrite ok'],
  ['disk', { aof_last_write_status: 'err' }, {}, 'violated', 'write err, rewrite ok', readLog],
  ['disk', { aof_last_bgrewrite_status: 'err' }, {}, 'warning', 'write ok, rewrite err', readLog],
  ['replication', {}, {}, 'ok', 'a primary without replicas: nothing to fail over to'],
  ['replication', { role: 'slave' }, {}, 'violated', 'this is a replica', 'Give the URL of the primary.'],
  ['replication', { connected_slaves: '2' }, {}, 'warning', 'replicas 2, min-replicas-to-write 0', oneReplica],
  [
    'replication',
    { connected_slaves: '2' },
    { 'min-replicas-to-write': '1' },
    'ok',
    'replicas 2, min-replicas-to-write 1',
  ],
]

describe('what the doctor says of a server', () => {
  test.each(cases)('%s of %j and %j', async (check, says, settings, ...judgement) => {
    expect(await judgedAs(serverThat(says, { ...wellSet, ...settings }), check)).toEqual(judgement)
  })

  test('without CONFIG what is set there is not known', async () => {
    const server = serverThat({ connected_slaves: '1' }, {})
    const mend = 'Allow CONFIG GET for this user.'
    expect(await judgedAs(server, 'persistence')).toEqual(['unknown', 'appendonly yes, appendfsync not told', mend])
    const found = 'replicas 1, min-replicas-to-write not told'
    expect(await judgedAs(server, 'replication')).toEqual(['unknown', found, mend])
  })

  test('without INFO nothing is known', async () => {
    const server = serverThatRefuses("NOPERM User limited has no permissions to run the 'info' command")
    const silent = ['unknown', 'the server does not say']
    for (const check of ['eviction', 'memory', 'persistence', 'disk', 'replication'])
      expect(await judgedAs(server, check)).toEqual([...silent, 'Allow INFO for this user.'])
    expect(await judgedAs(server, 'version')).toEqual(silent)
  })

  test('of several servers each check names its own', async () => {
    const checks = await judged(serverThat({}), serverThat({ role: 'slave' }))
    const replication = checks.filter(({ name }) => name === 'redis-replication')
    expect(replication.map(({ lookedAt, verdict }) => [lookedAt, verdict])).toEqual([
      ['role, connected_slaves, min-replicas-to-write, primary 1 of 2', 'ok'],
      ['role, connected_slaves, min-replicas-to-write, primary 2 of 2', 'violated'],
    ])
    expect((await judged(serverThat({}))).at(-1)!.lookedAt).toBe('role, connected_slaves, min-replicas-to-write')
  })
})

test.each(['NOPERM no', 'ERR unknown command', "ERR the user can't run the 'CONFIG' command", 'err UNKNOWN'])(
  'a server that says "%s" does not tell',
  async (message) => {
    const { setting } = await factsOf(serverThatRefuses(message), ['appendfsync'])
    expect(setting('appendfsync')).toBeUndefined()
  },
)

test('an error of another kind is not taken for a missing right', async () => {
  const misconfigured = serverThatRefuses('MISCONF Errors writing to the AOF file: ERR unknown')
  await expect(factsOf(misconfigured, [])).rejects.toThrow('MISCONF')
})

test('what several primaries lack is said once, with what to pass to accept it', async () => {
  const unfit = serverThat({ maxmemory_policy: 'allkeys-lru', aof_enabled: '0' })
  const link = { isCluster: true, send: async () => undefined, primaries: async () => [unfit, unfit] }
  await expect(checkServers(link, { eviction: 'refuse', durability: 'aof' })).rejects.toMatchObject({
    code: 'STORE_UNSAFE',
    message:
      'Redis is not fit (maxmemory-policy: allkeys-lru). A server that evicts forgets keys that have run when memory is ' +
      `short, and their retries run again. ${noEviction} Or pass eviction: 'accept' to redisStore to accept it. ` +
      'Redis is not fit (appendonly and appendfsync: no append-only file). What is acknowledged and not on disk is gone ' +
      `after a crash, and its retries run again. ${appendOnly} Or pass durability: 'relaxed' to redisStore to accept it.`,
  })
})

test('of several primaries only the commands that all of them have are used', async () => {
  const primaries = async (): Promise<Send[]> => [serverThat({ redis_version: '8.4.0' }), serverThat({})]
  const link = { isCluster: true, send: async () => undefined, primaries }
  const abilities = await checkServers(link, { eviction: 'refuse', durability: 'aof' })
  expect(abilities).toEqual({ nxGet: true, ifEq: false })
})

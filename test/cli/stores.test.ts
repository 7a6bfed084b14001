// Every command on every kind of store, on the real server: from an empty one to a swept one.
import { setTimeout as sleepMs } from 'node:timers/promises'
import { describe, expect, test, vi } from 'vitest'
import { openStore, type OpenedStore } from '../../src/cli/open-store.ts'
import { InDoubtError } from '../../src/core/errors.ts'
import { createOnce } from '../../src/core/once.ts'
import type { Entry } from '../../src/core/store.ts'
import { startDynamodb } from '../servers/dynamodb.ts'
import { startMariadb } from '../servers/mariadb.ts'
import { startMongodb } from '../servers/mongodb.ts'
import { needs } from '../servers/needs.ts'
import { startPostgres } from '../servers/postgres.ts'
import { startCluster } from '../servers/redis/cluster.ts'
import { redisCommand } from '../servers/redis/command.ts'
import { startSentinels } from '../servers/redis/sentinel.ts'
import { startRedis, startReplica } from '../servers/redis.ts'
import { type Ended, makeFolder, onceonly } from './program.ts'

interface Subject extends AsyncDisposable {
  url: string
}

// For the store in this process, too.
vi.stubEnv('AWS_ACCESS_KEY_ID', 'onceonly')
vi.stubEnv('AWS_SECRET_ACCESS_KEY', 'onceonly')

const safeRedis = { config: { appendonly: 'yes' } }

async function openedStore(url: string, cache: string): Promise<OpenedStore & AsyncDisposable> {
  const opened = await openStore(url, { cache })
  return { ...opened, [Symbol.asyncDispose]: () => opened.close() }
}

async function fill(url: string, cache?: string): Promise<void> {
  const opened = await openStore(url, cache === undefined ? {} : { cache })
  try {
    const once = createOnce({ store: opened.store, scope: 'payments' })
    await once.run('settled', async () => ({ card: 'of Ada' }), { fingerprint: 1 })
    const replay = await once.run('settled', async () => ({ card: 'another' }), { fingerprint: 1 })
    expect(replay).toMatchObject({ replayed: true, value: { card: 'of Ada' } })
    await once.run('short', async () => 1, { fingerprint: 1, keepMs: 1, tombstoneMs: 0 })
    const doubt = { fingerprint: 1, leaseMs: 600_000 }
    await once.run('held', () => Promise.reject(new InDoubtError('lost')), doubt).catch(() => undefined)
    await once.close()
  } finally {
    await opened.close()
  }
}

function commandsOn(start: () => Promise<Subject>, about: { schema: boolean; sweeps: boolean }): void {
  test('migrate, keys and sweep do what they say', async () => {
    await using subject = await start()
    const ask = (...args: string[]): Promise<Ended> => onceonly(args, { env: { ONCEONLY_STORE: subject.url } })
    if (about.schema) {
      const missing = await ask('keys', 'list')
      expect(missing).toMatchObject({ code: 1, out: '' })
      expect(missing.error).toMatch(/SCHEMA_MISSING|cannot do operations on a non-existent table/i)
      expect((await ask('migrate', '--print')).out.length).toBeGreaterThan(50)
    }
    expect(await ask('migrate')).toMatchObject({ code: 0, error: '' })
    expect(await ask('migrate', '--json')).toMatchObject({ code: 0, error: '' })
    await fill(subject.url)
    const listed = JSON.parse((await ask('keys', 'list', '--json')).out) as { entries: object[] }
    // DynamoDB goes by the clocks of machines, and lets what is over end some seconds late.
    expect(listed.entries.filter((entry) => (entry as { id: string }).id !== 'short')).toEqual([
      expect.objectContaining({ scope: 'payments', id: 'held', state: 'running' }),
      expect.objectContaining({ scope: 'payments', id: 'settled', state: 'settled' }),
    ])
    const shown = await ask('keys', 'show', 'payments', 'settled')
    expect(shown.out).toMatch(/State +settled[^]*replay the stored outcome/)
    expect(shown.out).not.toContain('of Ada')
    expect((await ask('keys', 'show', 'payments', 'settled', '--reveal')).out).toContain('"card": "of Ada"')
    expect(await ask('keys', 'release', 'payments', 'held', '--reason', 'looked', '--yes')).toMatchObject({ code: 0 })
    expect((await ask('keys', 'show', 'payments', 'held')).out).toMatch(/State +open[^]*release when running: looked/)
    const found = ['--value', '{"receipt":"r1"}', '--reason', 'asked the bank', '--yes']
    expect(await ask('keys', 'resolve', 'payments', 'held', ...found)).toMatchObject({ code: 0, error: '' })
    expect((await ask('keys', 'show', 'payments', 'held', '--reveal')).out).toMatch(
      /State +settled[^]*"receipt": "r1"[^]*resolve when open: asked the bank/,
    )
    const kept = ['keys', 'keep', 'payments', 'held', '--for', '90d', '--reason', 'slow partner', '--yes']
    expect((await ask(...kept)).out).toMatch(/kept until \S+ \(in (90|89\.\d+) d/)
    const held = JSON.parse((await ask('keys', 'show', 'payments', 'held', '--json')).out) as { entry: Entry }
    expect(held.entry.expiresAtMs - held.entry.leaseUntilMs).toBeGreaterThan(89 * 86_400_000)
    expect(await ask('keys', 'forget', 'payments', 'settled', '--reason', 'x', '--yes')).toMatchObject({ code: 0 })
    expect(await ask('keys', 'show', 'payments', 'settled')).toMatchObject({ code: 3 })
    for (let forgotten = 0, tries = 0; ; tries++) {
      const swept = await ask('sweep', '--limit', '1', '--json')
      expect(swept).toMatchObject({ code: 0, error: '' })
      const told = JSON.parse(swept.out) as { swept: boolean; forgotten: number }
      expect(told.swept).toBe(about.sweeps)
      forgotten += told.forgotten
      if (!about.sweeps || forgotten === 1) break
      expect(tries, 'nothing was swept').toBeLessThan(60)
      await sleepMs(200)
    }
  })
}

describe('sqlite', () => {
  commandsOn(
    async () => {
      const folder = makeFolder()
      const url = `sqlite:${folder.path}/a.db`
      // A file that is there and has nothing of ours in it.
      const { DatabaseSync } = await import('node:sqlite')
      const database = new DatabaseSync(`${folder.path}/a.db`)
      database.exec('create table theirs (x)')
      database.close()
      return { url, [Symbol.asyncDispose]: async () => folder[Symbol.dispose]() }
    },
    { schema: true, sweeps: true },
  )
})

needs('postgres').describe('postgres', () => {
  commandsOn(startPostgres, { schema: true, sweeps: true })

  test('tables in a schema and under a name of their own', async () => {
    await using server = await startPostgres()
    const url = `${server.url}?schema=apart&table=keys_of_mine&application_name=mine`
    expect(await onceonly(['migrate', '--store', url])).toMatchObject({ code: 0, error: '' })
    await fill(url)
    expect((await onceonly(['keys', 'list', '--store', url])).out).toContain('settled')
    expect((await onceonly(['keys', 'list', '--store', server.url])).error).toContain('SCHEMA_MISSING')
  })
})

needs(['postgres', 'redis']).describe('postgres with a cache', () => {
  test('answers through both, and closes both', async () => {
    await using database = await startPostgres()
    await using cache = await startRedis()
    await onceonly(['migrate', '--store', database.url])
    await fill(database.url, cache.url)
    // What the cache remembers would be replayed for a minute after the entry is forgotten.
    const forget = ['keys', 'forget', 'payments', 'settled', '--reason', 'x', '--yes', '--cache', cache.url]
    expect(await onceonly([...forget, '--store', database.url])).toMatchObject({ code: 0, error: '' })
    await using opened = await openedStore(database.url, cache.url)
    const once = createOnce({ store: opened.store, scope: 'payments' })
    expect(await once.run('settled', async () => 'anew', { fingerprint: 1 })).toMatchObject({ value: 'anew' })
    await once.close()
  })
})

needs('redis').describe('redis', () => {
  commandsOn(() => startRedis(safeRedis), { schema: false, sweeps: false })

  test('a service refuses a server that can lose keys, unless the URL accepts it; somebody who looks is let in', async () => {
    await using server = await startRedis()
    await expect(fill(server.url)).rejects.toMatchObject({ code: 'STORE_UNSAFE' })
    await fill(`${server.url}?durability=relaxed&prefix=own`)
    expect((await onceonly(['keys', 'list', '--store', `${server.url}?prefix=own`])).out).toContain('settled')
    expect((await onceonly(['keys', 'list', '--store', server.url])).out).toBe('No such entries.\n')
  })

  test('a damaged entry is forgotten by the command that its error names', async () => {
    await using server = await startRedis(safeRedis)
    await fill(server.url)
    const names = (await redisCommand(server.url, 'KEYS', '*:entry:*')) as string[]
    await redisCommand(server.url, 'SET', names[0]!, 'garbage')
    const [scope, id] = names[0]!.slice(names[0]!.indexOf(':entry:') + ':entry:'.length).split('/') as [string, string]
    const shown = await onceonly(['keys', 'show', scope, id, '--store', server.url])
    expect(shown.error).toContain('onceonly keys forget')
    const words = ['keys', 'forget', scope, id, '--reason', 'damaged, ticket 7', '--yes', '--store', server.url]
    expect(await onceonly(words)).toMatchObject({ code: 0, out: expect.stringContaining('Its entry was damaged.') })
    const after = await onceonly(['keys', 'show', scope, id, '--store', server.url])
    expect(after.code).toBe(3)
    expect(after.out).toContain('forget when abandoned: damaged, ticket 7')
  })

  test('a server that goes away is told, and the store works again when it is back', async () => {
    await using server = await startRedis(safeRedis)
    const opened = await openStore(server.url)
    const entry = { scope: 'payments', id: '1' }
    expect(await opened.store.show!(entry)).toBeUndefined()
    await server.crash()
    await expect(opened.store.show!(entry)).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
    await server.restart()
    // The client looks for it again every two seconds at the most.
    for (let tries = 0; ; tries++) {
      const answer = await opened.store.show!(entry).catch((error: unknown) => error)
      if (answer === undefined) break
      expect(tries, 'the store did not come back').toBeLessThan(60)
      await sleepMs(100)
    }
    await opened.close()
  })
})

const placeOf = ({ host, port }: { host: string; port: number }): string => `${host}:${port}`

needs('redis', { ours: true }).describe('redis-cluster', () => {
  commandsOn(
    async () => {
      const cluster = await startCluster(safeRedis)
      // The others are learnt from those that are named.
      const url = `redis-cluster://${cluster.nodes.slice(0, 2).map(placeOf).join(',')}`
      return { url, [Symbol.asyncDispose]: () => cluster.stop() }
    },
    { schema: false, sweeps: false },
  )

  test('doctor looks at every primary, and one that can lose keys is enough', async () => {
    await using cluster = await startCluster(safeRedis)
    const url = `redis-cluster://${placeOf(cluster.nodes[0]!)}`
    await redisCommand(cluster.urls[2]!, 'CONFIG', 'SET', 'maxmemory-policy', 'allkeys-lru')
    const ended = await onceonly(['doctor', '--store', url, '--json'])
    const { checks } = JSON.parse(ended.out) as { checks: { name: string; verdict: string; lookedAt: string }[] }
    const eviction = checks.filter(({ name }) => name === 'redis-eviction')
    expect(eviction.map(({ verdict }) => verdict).toSorted()).toEqual(['ok', 'ok', 'violated'])
    expect(eviction[0]!.lookedAt).toContain('primary 1 of 3')
    expect(ended.code).toBe(1)
  })
})

needs('redis', { ours: true }).describe('redis-sentinel', () => {
  commandsOn(
    async () => {
      const primary = await startRedis(safeRedis)
      const replica = await startReplica(primary, safeRedis)
      const sentinels = await startSentinels(primary)
      const url = `redis-sentinel://${sentinels.members.map(placeOf).join(',')}/${sentinels.primaryName}`
      const stop = async (): Promise<void> => {
        await sentinels.stop()
        await replica.stop()
        await primary.stop()
      }
      return { url, [Symbol.asyncDispose]: stop }
    },
    { schema: false, sweeps: false },
  )

  test('none that answers, or a name that they do not know, ends with 1 in time', async () => {
    await using alone = await startRedis()
    for (const url of [
      `redis-sentinel://127.0.0.1:1/main`,
      `redis-sentinel://${placeOf(alone)}/main`,
      'redis-cluster://127.0.0.1:1',
    ]) {
      const ended = await onceonly(['keys', 'list', '--store', url])
      expect(ended).toMatchObject({ code: 1, out: '' })
      expect(ended.error).toMatch(/The Redis (?:sentinel|cluster) at redis-\S+ cannot be reached/)
    }
  })
})

needs(['postgres', 'redis', 'mariadb']).describe('a server that takes connections and says nothing', () => {
  test.each([
    ['postgres', () => startPostgres()],
    ['redis', () => startRedis()],
    ['mariadb', () => startMariadb()],
  ] as const)('%s: every command ends, and says so', async (_name, start) => {
    await using server = await start()
    server.pause()
    try {
      const asked = ['keys list', 'doctor'].map((command) => onceonly([...command.split(' '), '--store', server.url]))
      for (const ended of await Promise.all(asked)) {
        expect(ended).toMatchObject({ code: 1, out: '', error: expect.stringContaining('STORE_UNAVAILABLE') as string })
      }
    } finally {
      server.resume()
    }
  })
})

needs('mariadb').describe('mysql', () => {
  commandsOn(
    async () => {
      const server = await startMariadb()
      const url = (await server.createDatabase()).replace('mysql:', 'mariadb:')
      return { url, [Symbol.asyncDispose]: () => server.stop() }
    },
    { schema: true, sweeps: true },
  )
})

needs('mongodb').describe('mongodb', () => {
  commandsOn(
    async () => {
      const server = await startMongodb()
      const url = server.url.replace('/?', '/app?').concat('&collection=keys')
      return { url, [Symbol.asyncDispose]: () => server.stop() }
    },
    { schema: true, sweeps: true },
  )
})

needs('dynamodb').describe('dynamodb', () => {
  commandsOn(
    async () => {
      const server = await startDynamodb()
      const url = `dynamodb:onceonly-keys?region=local&endpoint=${encodeURIComponent(server.url)}`
      return { url, [Symbol.asyncDispose]: () => server.stop() }
    },
    { schema: true, sweeps: true },
  )
})

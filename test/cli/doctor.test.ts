// The doctor on real servers: one that is as it should be is found well, and each setting that breaks the promise is found out.
import { chmodSync, existsSync, mkdtempSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { MongoClient } from 'mongodb'
import mysql from 'mysql2/promise'
import pg from 'pg'
import { describe, expect, test, vi } from 'vitest'
import type { FitnessCheck } from '../../src/core/fitness.ts'
import { openStore } from '../../src/cli/open-store.ts'
import { InDoubtError } from '../../src/core/errors.ts'
import { createOnce } from '../../src/core/once.ts'
import { startDynamodb } from '../servers/dynamodb.ts'
import { startMariadb } from '../servers/mariadb.ts'
import { startMongodb } from '../servers/mongodb.ts'
import { needs, needsTool } from '../servers/needs.ts'
import { startPostgres } from '../servers/postgres.ts'
import { redisCommand } from '../servers/redis/command.ts'
import { startRedis, startReplica } from '../servers/redis.ts'
import { type Ended, makeFolder, onceonly } from './program.ts'

vi.stubEnv('AWS_ACCESS_KEY_ID', 'onceonly')
vi.stubEnv('AWS_SECRET_ACCESS_KEY', 'onceonly')

interface Diagnosis {
  code: number | null
  checks: Record<string, FitnessCheck>
  verdicts(verdict: FitnessCheck['verdict']): string[]
}

async function diagnose(url: string, ...args: string[]): Promise<Diagnosis> {
  const { code, out, error } = await onceonly(['doctor', '--json', ...args], { env: { ONCEONLY_STORE: url } })
  expect(error).toBe('')
  const { checks, store } = JSON.parse(out) as { checks: FitnessCheck[]; store: string }
  for (const { name, lookedAt, found, why, verdict, mend } of checks) {
    for (const said of [lookedAt, found]) expect(said, name).toMatch(/\S/)
    // What is well needs no explanation of a failure.
    if (verdict === 'ok') expect([why, mend], name).toEqual([undefined, undefined])
    else expect(why, name).toMatch(/\S/)
    if (verdict === 'violated' || verdict === 'warning') expect(mend, name).toMatch(/\S/)
    // A command that is suggested can be pasted: it names the store. Where the URL cannot be shown, the environment names it.
    for (const [command] of mend?.matchAll(/onceonly (?:keys|operations|migrate|sweep|quarantine).*/g) ?? [])
      expect(command.includes(' --store '), `${name}: ${command}`).toBe(store === url)
  }
  const verdicts = (verdict: FitnessCheck['verdict']): string[] =>
    checks.filter((check) => check.verdict === verdict).map(({ name }) => name)
  expect(code).toBe(verdicts('violated').length > 0 ? 1 : 0)
  return { code, checks: Object.fromEntries(checks.map((check) => [check.name, check])), verdicts }
}

const horizons = ['--retry-horizon', '6h', '--webhook-horizon', '12h']

async function fill(url: string): Promise<void> {
  const opened = await openStore(url, { settings: 'as-they-are' })
  const once = createOnce({ store: opened.store, scope: 'payments' })
  await once.run('1', async () => 1, { fingerprint: 1 })
  await once.close()
  await opened.close()
}

async function migrated(url: string): Promise<string> {
  expect(await onceonly(['migrate', '--store', url])).toMatchObject({ code: 0 })
  return url
}

describe('any store', () => {
  test('a healthy one is told line by line, with exit code 0; a violated promise is told at length, with 1', async () => {
    using folder = makeFolder()
    const url = await migrated(`sqlite:${folder.path}/a.db`)
    await fill(url)
    const well = await onceonly(['doctor', ...horizons, '--store', url])
    expect(well).toMatchObject({ code: 0, error: '' })
    expect(well.out).toMatch(/^ok +lease +the slowest of 1 took \d+ ms, the lease is 30 s$/m)
    expect(well.out).toMatch(/^0 violated, 0 warnings, 0 unknown, \d+ ok$/m)
    const ill = await onceonly(['doctor', '--keep', '1h', '--tombstone', '1h', '--retry-horizon', '6h', '--store', url])
    expect(ill.code).toBe(1)
    expect(ill.out).toMatch(
      /^violated client-horizon +kept for 1 h and 1 h more.*\n +looked at: .*\n +why: .*\n +mend: A late retry would run again\./m,
    )
  })

  test('what is in doubt, stuck and late is found in the entries', async () => {
    using folder = makeFolder()
    const url = `sqlite:${folder.path}/a.db`
    const opened = await openStore(url)
    const once = createOnce({ store: opened.store, scope: 'payments' })
    const doubt = { fingerprint: 1, leaseMs: 1 }
    await once.run('--lost', () => Promise.reject(new InDoubtError('lost')), doubt).catch(() => undefined)
    await once.close()
    await opened.close()
    const { checks } = await diagnose(url, '--lease', '1ms')
    expect(checks['in-doubt']).toMatchObject({ verdict: 'warning', found: '1: payments / --lost' })
    expect(checks['client-horizon']).toMatchObject({ verdict: 'unknown' })
    expect(checks['in-doubt']!.mend).toMatch(/where the service says onTakeover: 'refuse', get IN_DOUBT\./)
    const npx = await onceonly(['doctor', '--store', url], { env: { npm_command: 'exec' } })
    expect(npx.out).toMatch(/^ {4}npx onceonly keys show --store .* -- payments --lost$/m)
    expect(npx.out).toMatch(/^0 violated, 1 warning, /m)
    // The command can be pasted as it stands, and so can those that it prints.
    const [, first] = /: onceonly (.*)$/.exec(checks['in-doubt']!.mend!)!
    expect(first).toBe(`keys show --store ${url} -- payments --lost`)
    const shown = await onceonly(first!.split(' '))
    expect(shown).toMatchObject({ code: 0, error: '' })
    const [, next] = /onceonly (keys release .*)$/m.exec(shown.out)!
    expect(await onceonly(next!.replace("'TEXT'", 'lost --yes').split(' '))).toMatchObject({ code: 0, error: '' })
  })

  test('the memory of a process is no place for a promise', async () => {
    expect((await diagnose('memory:')).verdicts('violated')).toEqual(['memory'])
  })
})

describe('sqlite', () => {
  test('synchronous below FULL, and a rollback journal, are found', async () => {
    using folder = makeFolder()
    const path = join(folder.path, 'a.db')
    await migrated(`sqlite:${path}`)
    expect((await diagnose(`sqlite:${path}?durability=relaxed`)).checks['sqlite-synchronous']).toMatchObject({
      verdict: 'violated',
      found: 'NORMAL (durability=relaxed)',
    })
    const database = new DatabaseSync(path)
    database.exec('PRAGMA journal_mode = DELETE')
    expect((await diagnose(`sqlite:${path}`)).checks['sqlite-journal']).toMatchObject({
      verdict: 'warning',
      found: 'delete',
    })
    // Looking has not changed it.
    expect(database.prepare('PRAGMA journal_mode').get()).toEqual({ journal_mode: 'delete' })
    database.close()
  })

  test('a file that others may read is found', async () => {
    using folder = makeFolder()
    const path = join(folder.path, 'a.db')
    await migrated(`sqlite:${path}`)
    expect((await diagnose(`sqlite:${path}`)).checks['sqlite-mode']).toMatchObject({
      verdict: 'ok',
      found: 'mode 0600',
    })
    chmodSync(path, 0o644)
    expect((await diagnose(`sqlite:${path}`)).checks['sqlite-mode']).toMatchObject({
      verdict: 'warning',
      found: 'mode 0644',
    })
  })

  test('a time in the file that is ahead of this machine, and entries that nobody sweeps, are found', async () => {
    using folder = makeFolder()
    const path = join(folder.path, 'a.db')
    await migrated(`sqlite:${path}`)
    await fill(`sqlite:${path}`)
    const database = new DatabaseSync(path)
    database.exec(`UPDATE onceonly SET sweep_at = sweep_at - 3 * 86400000; UPDATE onceonly_clock SET at = at + 3600000`)
    database.close()
    const { checks } = await diagnose(`sqlite:${path}`)
    expect(checks['unswept']).toMatchObject({
      verdict: 'warning',
      found: expect.stringMatching(/^1, the oldest for [12] d/) as string,
    })
    expect(checks['clock']).toMatchObject({
      verdict: 'warning',
      found: expect.stringMatching(/^the file is (59|1 h).* ahead$/) as string,
    })
  })

  const noMemoryFolder = { reason: 'this system has no such folder', cure: 'mount a tmpfs there' }
  needsTool('/dev/shm', existsSync('/dev/shm') ? undefined : noMemoryFolder).test(
    'a file in memory is found',
    async () => {
      const folder = mkdtempSync('/dev/shm/onceonly-cli-')
      try {
        const url = await migrated(`sqlite:${folder}/a.db`)
        expect((await diagnose(url)).checks['sqlite-place']).toMatchObject({
          verdict: 'violated',
          found: 'tmpfs, in memory',
        })
      } finally {
        rmSync(folder, { recursive: true, force: true })
      }
    },
  )
})

needs('redis').describe('redis', () => {
  test('one that syncs every write and evicts nothing is well', async () => {
    await using server = await startRedis({ config: { appendonly: 'yes', appendfsync: 'always' } })
    await fill(server.url)
    const { verdicts } = await diagnose(server.url, ...horizons)
    expect([verdicts('violated'), verdicts('warning'), verdicts('unknown')]).toEqual([[], [], []])
  })

  test('eviction, missing persistence, a full memory and replicas that nobody waits for are found', async () => {
    await using server = await startRedis()
    await using replica = await startReplica(server)
    const first = await diagnose(server.url)
    expect(first.checks['redis-persistence']).toMatchObject({ verdict: 'violated', found: 'no append-only file' })
    expect(first.checks['redis-eviction']).toMatchObject({ verdict: 'ok' })
    expect(first.checks['redis-replication']).toMatchObject({
      verdict: 'warning',
      found: 'replicas 1, min-replicas-to-write 0',
    })
    expect((await diagnose(replica.url)).checks['redis-replication']).toMatchObject({
      verdict: 'violated',
      found: 'this is a replica',
    })
    const set = (...words: string[]): Promise<unknown> => redisCommand(server.url, 'CONFIG', 'SET', ...words)
    await set('maxmemory-policy', 'allkeys-lru')
    await set('appendonly', 'yes')
    await set('appendfsync', 'no')
    await set('min-replicas-to-write', '1')
    const used = /used_memory:(\d+)/.exec(String(await redisCommand(server.url, 'INFO', 'memory')))![1]!
    await set('maxmemory', used)
    const second = await diagnose(server.url)
    expect(second.verdicts('violated')).toEqual(['redis-eviction', 'redis-persistence'])
    expect(second.checks['redis-eviction']).toMatchObject({ found: 'allkeys-lru' })
    expect(second.checks['redis-persistence']).toMatchObject({ found: 'appendonly yes, appendfsync no' })
    expect(second.checks['redis-memory']).toMatchObject({ verdict: 'warning' })
    expect(second.checks['redis-replication']).toMatchObject({ verdict: 'ok' })
    await set('appendfsync', 'everysec')
    expect((await diagnose(server.url)).checks['redis-persistence']).toMatchObject({ verdict: 'warning' })
  })

  test('a loss of data is found, and its quarantine can be ended', async () => {
    await using server = await startRedis({ config: { appendonly: 'yes', appendfsync: 'always' } })
    const ask = (...args: string[]): Promise<Ended> => onceonly(['quarantine', '--store', server.url, ...args])
    const opened = await openStore(server.url)
    const once = createOnce({ store: opened.store, scope: 'payments' })
    await once.run('1', async () => 1, { fingerprint: 1 })
    expect(await ask()).toMatchObject({ code: 0, out: 'No quarantine.\n' })
    await redisCommand(server.url, 'FLUSHALL')
    await expect(once.run('2', async () => 2, { fingerprint: 1 })).rejects.toMatchObject({ executed: 'no' })
    expect((await diagnose(server.url)).verdicts('violated')).toEqual(['redis-data-loss'])
    expect(await ask()).toMatchObject({ code: 1, out: expect.stringMatching(/^Quarantine since /) as string })
    const ended = await ask('--end', '--reason', 'a test')
    expect(ended).toMatchObject({ code: 0, out: expect.stringContaining('new keys are let in again') as string })
    expect(await once.run('2', async () => 2, { fingerprint: 1 })).toMatchObject({ value: 2 })
    await once.close()
    await opened.close()
    expect((await diagnose(server.url)).verdicts('violated')).toEqual([])
  })

  test('a user who may not look is told so, and nothing is taken for well', async () => {
    await using server = await startRedis({ config: { appendonly: 'yes' } })
    await redisCommand(server.url, 'ACL', 'SETUSER', 'limited', 'on', '>pass', '~*', '&*', '+@all', '-config', '-info')
    const url = server.url.replace('redis://', 'redis://limited:pass@')
    const { checks } = await diagnose(url)
    for (const name of ['redis-eviction', 'redis-persistence', 'redis-replication', 'redis-memory']) {
      expect(checks[name], name).toMatchObject({ verdict: 'unknown' })
    }
  })
})

needs('postgres').describe('postgres', () => {
  test('one that is set up as it comes is well', async () => {
    await using server = await startPostgres()
    await migrated(server.url)
    await fill(server.url)
    const { verdicts } = await diagnose(server.url, ...horizons)
    expect([verdicts('violated'), verdicts('warning'), verdicts('unknown')]).toEqual([[], [], []])
  })

  test('every setting that loses commits is found', async () => {
    await using server = await startPostgres({
      settings: { fsync: 'off', full_page_writes: 'off', synchronous_commit: 'off' },
    })
    await migrated(server.url)
    const { verdicts } = await diagnose(server.url)
    expect(verdicts('violated')).toEqual(['postgres-fsync', 'postgres-full-page-writes', 'postgres-synchronous-commit'])
  })

  test('what is wrong with the tables is found: missing, unlogged, another version, no index, no vacuum, no sweep', async () => {
    await using server = await startPostgres()
    const { checks, verdicts } = await diagnose(server.url)
    expect(verdicts('violated')).toContain('postgres-table')
    // The URL has a user, which is not shown.
    expect(checks['postgres-table']!.mend).toContain('onceonly migrate')
    expect(checks['postgres-table']!.mend).not.toContain('--store')
    await migrated(server.url)
    await fill(server.url)
    await using client = await connected(server.url)
    await client.query('drop index onceonly_sweep_at')
    await client.query('alter table onceonly set (autovacuum_enabled = false)')
    await client.query('update onceonly set sweep_at_ms = sweep_at_ms - 3 * 86400000')
    const worn = await diagnose(server.url)
    expect(worn.verdicts('warning')).toEqual(expect.arrayContaining(['postgres-indexes', 'postgres-bloat', 'unswept']))
    await client.query('alter table onceonly set unlogged')
    await client.query(`comment on table onceonly is 'onceonly schema version 0'`)
    const wrong = await diagnose(server.url)
    expect(wrong.verdicts('violated')).toEqual(['postgres-table', 'postgres-schema'])
  })

  test('a table in periods is looked at in all of its parts', async () => {
    await using server = await startPostgres()
    await migrated(`${server.url}?period=6h`)
    await fill(server.url)
    const well = await diagnose(server.url, ...horizons)
    expect([well.verdicts('violated'), well.verdicts('warning'), well.verdicts('unknown')]).toEqual([[], [], []])
    await using client = await connected(server.url)
    await client.query('alter table onceonly_2 set unlogged')
    await client.query('alter table onceonly_3 drop constraint onceonly_3_pkey')
    await client.query('update onceonly_periods set ends_at_ms = ends_at_ms - 7 * 86400000')
    const ill = await diagnose(server.url)
    expect(ill.checks['postgres-table']).toMatchObject({ verdict: 'violated', found: 'unlogged: onceonly_2' })
    expect(ill.checks['postgres-indexes']).toMatchObject({ verdict: 'violated', found: 'no primary key: onceonly_3' })
    expect(ill.checks['unswept']).toMatchObject({ verdict: 'warning' })
  })

  test('a transaction that is left open is found, and what a user may not see is unknown', async () => {
    await using server = await startPostgres()
    await migrated(server.url)
    await using client = await connected(server.url)
    await client.query('begin')
    await client.query('select 1')
    expect((await diagnose(server.url)).checks['postgres-old-snapshots']).toMatchObject({ verdict: 'ok' })
    // Twenty leases of a millisecond are over before the program has started.
    expect((await diagnose(server.url, '--lease', '1ms')).checks['postgres-old-snapshots']).toMatchObject({
      verdict: 'warning',
      found: expect.stringMatching(/^the oldest transaction is open for \d/) as string,
    })
    await using admin = await connected(server.url)
    await admin.query(`create role limited login; grant select on all tables in schema public to limited`)
    const url = server.url.replace('postgres@', 'limited@')
    const { checks } = await diagnose(url)
    expect(checks['postgres-old-snapshots']).toMatchObject({ verdict: 'unknown' })
  })
})

async function connected(url: string): Promise<pg.Client & AsyncDisposable> {
  const client = new pg.Client({ connectionString: url })
  // The server is stopped before the client is closed.
  client.on('error', () => undefined)
  await client.connect()
  return Object.assign(client, { [Symbol.asyncDispose]: () => client.end() })
}

needs('mariadb').describe('mysql', () => {
  test('every setting that loses commits is found, and none on a server that is well', async () => {
    await using server = await startMariadb({ settings: { 'log-bin': 'log', 'server-id': 1, 'sync-binlog': 1 } })
    const url = await server.createDatabase()
    expect((await diagnose(url)).verdicts('violated')).toEqual(['mysql-schema'])
    await migrated(url)
    await fill(url)
    const well = await diagnose(url, ...horizons)
    expect([well.verdicts('violated'), well.verdicts('warning'), well.verdicts('unknown')]).toEqual([[], [], []])
    const connection = await mysql.createConnection(url)
    await connection.query(
      'set global innodb_flush_log_at_trx_commit = 2, global sync_binlog = 0, global binlog_format = STATEMENT',
    )
    await connection.query('update onceonly set sweep_at_ms = sweep_at_ms - 3 * 86400000')
    await connection.end()
    const ill = await diagnose(url)
    expect(ill.verdicts('violated')).toEqual(['mysql-innodb-flush-log-at-trx-commit', 'mysql-binlog-format'])
    expect(ill.verdicts('warning')).toEqual(['mysql-sync-binlog', 'unswept'])
  })
})

needs('mongodb').describe('mongodb', () => {
  test('a server alone, missing indexes and a clock that is off are found', async () => {
    await using server = await startMongodb()
    const url = server.url.replace('/?', '/app?')
    await migrated(url)
    const { checks } = await diagnose(url)
    expect(checks['mongodb-topology']).toMatchObject({ verdict: 'warning' })
    expect(checks['mongodb-indexes']).toMatchObject({ verdict: 'ok' })
    expect(checks['mongodb-collection']).toMatchObject({ verdict: 'ok' })
    expect(checks['clock']).toMatchObject({ verdict: 'ok' })
    const client = new MongoClient(url)
    await client.db().command({ onceonlyTest: 1, nowMs: Date.now() - 3_600_000, helloMessage: 'isdbgrid' })
    await client.close()
    const ill = await diagnose(`${url}&sharding=accept`)
    expect(ill.checks['mongodb-topology']).toMatchObject({ verdict: 'violated', found: 'a mongos' })
    expect(ill.checks['clock']).toMatchObject({
      verdict: 'warning',
      found: expect.stringMatching(/^(1 h|59 min).* ahead of the store/) as string,
    })
    const other = `${url}&collection=other`
    const missing = await diagnose(other)
    expect(missing.checks['entries']).toMatchObject({ verdict: 'unknown' })
    expect(missing.checks['mongodb-collection']).toMatchObject({ verdict: 'violated', found: 'there is none' })
  })
})

needs('dynamodb').describe('dynamodb', () => {
  test('a table without time to live is found, a missing one is an error', async () => {
    await using server = await startDynamodb()
    const endpoint = encodeURIComponent(server.url)
    const url = `dynamodb:onceonly-doctor?region=local&endpoint=${endpoint}`
    expect(await onceonly(['doctor', '--store', url])).toMatchObject({
      code: 1,
      out: '',
      error: expect.stringMatching(/non-existent table/) as string,
    })
    await migrated(url)
    await fill(url)
    const well = await diagnose(url, ...horizons)
    expect(well.verdicts('violated')).toEqual([])
    expect(well.checks['dynamodb-time-to-live']).toMatchObject({ verdict: 'ok' })
    const { DynamoDB } = await import('@aws-sdk/client-dynamodb')
    const client = new DynamoDB({ region: 'local', endpoint: server.url })
    await client.updateTimeToLive({
      TableName: 'onceonly-doctor',
      TimeToLiveSpecification: { AttributeName: 'removeAt', Enabled: false },
    })
    client.destroy()
    expect((await diagnose(url)).checks['dynamodb-time-to-live']).toMatchObject({ verdict: 'warning' })
  })
})

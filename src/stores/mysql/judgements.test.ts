// What is said of a server in each situation, word for word: at the start of the store, and by the doctor. What only another start of
// the server changes is in fitness.test.ts, and so is what MySQL and MariaDB do not share.

import type { Pool, RowDataPacket } from 'mysql2/promise'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { createMysqlDatabase, createPool } from '../../../test/subjects/mysql.ts'
import { type RunningMariadb, startMariadb } from '../../../test/servers/mariadb.ts'
import { needs } from '../../../test/servers/needs.ts'
import { pollUntil } from '../../../test/servers/poll.ts'
import { warningsOf } from '../../../test/warnings.ts'
import { connectionsOf } from '../../clients/mysql.ts'
import type { FitnessCheck, FitnessVerdict } from '../../core/fitness.ts'
import { key } from '../../core/key.ts'
import { request } from '../../testing/store-contract.ts'
import { mysqlFitness, mysqlStore } from '../mysql.ts'
import type { MysqlFitnessOptions, MysqlStoreOptions } from '../mysql.ts'
import { readiness } from './fitness.ts'
import { procedureName } from './names.ts'
import { clockSql } from './pieces.sql.ts'
import { procedureNames } from './schema.ts'

type More = Partial<MysqlFitnessOptions>

function checksOf(pool: Pool, more: More = {}): Promise<readonly FitnessCheck[]> {
  return mysqlFitness({ pool, longestMs: 60_000, ...more }).checks(0)
}

async function judgedAs(pool: Pool, check: string, more: More = {}): Promise<(string | undefined)[]> {
  const { verdict, found, mend } = (await checksOf(pool, more)).find(({ name }) => name === check)!
  return mend === undefined ? [verdict, found] : [verdict, found, mend]
}

/** The first call of a store, which looks at the server before. */
async function start(pool: Pool, options: Partial<MysqlStoreOptions> = {}): Promise<void> {
  await mysqlStore({ pool, ...options }).sweep({ limit: 1 })
}

const whys = {
  innodb_flush_log_at_trx_commit:
    'With any value but 1 (or MariaDB 3, which syncs more often) a crash can lose an acknowledged commit, and its retries run again.',
  innodb_doublewrite: 'Without it the server cannot repair a page that is half written in a power cut.',
  innodb_rollback_on_timeout:
    "With ON the claim of a busy key rolls back the caller's whole transaction, and the caller is not told.",
  sync_binlog:
    'A power cut can lose acknowledged commits with a binary log that is not synced, or leave replicas without them.',
  binlog_format: 'With STATEMENT the server refuses what this store writes.',
  read_only: 'A read-only server is a replica, whose data is behind, or one that takes no writes.',
} as const
const mends = {
  innodb_flush_log_at_trx_commit: 'set global innodb_flush_log_at_trx_commit = 1, and the same in my.cnf.',
  sync_binlog: 'set global sync_binlog = 1, and the same in my.cnf.',
  binlog_format: 'set global binlog_format = ROW.',
  read_only: 'Give the URL of the primary.',
} as const
const allow = 'Grant this user the right to read it, or run the doctor as a user who has it.'
const migrate = 'onceonly migrate'
const byMigration =
  'Run "await store.migrate()" or "onceonly migrate --store URL" once, or give the SQL of store.schema() to your own migrations.'
const openFor = expect.stringMatching(/^the oldest transaction has been open for \d+ m?s$/) as string
const seen = (table: string, count: number): string =>
  `The table ${table} has ${count} of ${procedureNames.length} procedures of this version that this user may see (EXECUTE).`

const values: Readonly<Record<keyof typeof whys, string>> = {
  innodb_flush_log_at_trx_commit: '1',
  innodb_doublewrite: 'ON',
  innodb_rollback_on_timeout: 'OFF',
  sync_binlog: '1',
  binlog_format: 'MIXED',
  read_only: 'OFF',
}

/** The checks of a server that is set up well, and has a binary log. */
const fit: readonly FitnessCheck[] = [
  ...(Object.keys(values) as (keyof typeof values)[]).map((setting): FitnessCheck => {
    const name = `mysql-${setting.replaceAll('_', '-')}`
    return { name, lookedAt: setting, why: whys[setting], verdict: 'ok', found: values[setting] }
  }),
  {
    name: 'mysql-schema',
    lookedAt: 'the table onceonly and its procedures',
    why: 'The decisions are procedures in the database, and only InnoDB has transactions.',
    verdict: 'ok',
    found: `InnoDB, ${procedureNames.length} procedures`,
  },
  {
    name: 'unswept',
    lookedAt: 'entries of onceonly due for a sweep',
    why: 'Expired entries stay on disk until a sweep deletes them: the table grows, and keeps everything that it holds.',
    verdict: 'ok',
    found: 'none',
  },
  {
    name: 'mysql-old-transactions',
    lookedAt: 'information_schema.innodb_trx',
    why: 'While an old transaction is open, old versions of rows pile up, and a claim that it holds stays busy.',
    verdict: 'ok',
    found: openFor,
  },
]

needs('mariadb', { ours: true }).describe('what is said of a MariaDB server', () => {
  let server: RunningMariadb
  let url: string
  let pool: Pool
  const others: Pool[] = []
  beforeAll(async () => {
    server = await startMariadb({ settings: { 'log-bin': 'log', 'server-id': 1, 'sync-binlog': 1 } })
    url = await createMysqlDatabase(server)
    pool = createPool(url)
  })
  afterEach(async () => {
    await pool.query('delete from onceonly')
    await Promise.all(others.splice(0).map((other) => other.end()))
  })
  afterAll(async () => {
    await pool.end()
    await server.stop()
  })

  const open = (other: string): Pool => {
    others.push(createPool(other))
    return others.at(-1)!
  }
  // The value comes back at the end.
  const set = async (name: string, value: string): Promise<AsyncDisposable> => {
    const [rows] = await pool.query<RowDataPacket[]>(`select @@global.${name} as value`)
    const before = rows[0]!['value'] as string | number
    await pool.query(`set global ${name} = ${value}`)
    return {
      async [Symbol.asyncDispose]() {
        await pool.query(`set global ${name} = ?`, [before])
      },
    }
  }

  test('one that is set up well is fit: every check, with what was looked at and why', async () => {
    expect(await checksOf(pool)).toEqual(fit)
    expect(await warningsOf(() => start(pool))).toEqual([])
    expect(await readiness('onceonly', 'full')(connectionsOf(pool))).toEqual({ packetBytesMax: 16 * 2 ** 20 })
  })

  test('the time is that of the server, in milliseconds', async () => {
    const before = Date.now()
    const time = await mysqlFitness({ pool, longestMs: 0 }).timeMs!()
    expect(time).toBeGreaterThanOrEqual(before)
    expect(time).toBeLessThanOrEqual(Date.now() + 1)
  })

  test('of a server that does not answer nothing is known', async () => {
    const nobody = open('mysql://127.0.0.1:1/none')
    const refused = 'connect ECONNREFUSED 127.0.0.1:1'
    const unknown = { verdict: 'unknown', found: `the check failed: ${refused}`, mend: allow }
    expect(await checksOf(nobody)).toEqual(fit.map((check) => ({ ...check, ...unknown })))
    await expect(start(nobody)).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
      message: `MySQL could not read its settings: ${refused}. Retry.`,
    })
  })

  test('a server without InnoDB lacks its settings, and without a log it does not matter how that is written', async () => {
    const none = { innodb: 'OFF', 'default-storage-engine': 'MyISAM' }
    await using without = await startMariadb({ settings: { ...none, 'sync-binlog': 0, 'binlog-format': 'STATEMENT' } })
    const asked = createPool(without.url)
    const lacking = { verdict: 'unknown', found: 'the server does not have this setting' }
    expect((await checksOf(asked)).slice(0, 6)).toEqual([
      ...fit.slice(0, 3).map((check) => ({ ...check, ...lacking })),
      { ...fit[3], found: '0' },
      { ...fit[4], found: 'STATEMENT' },
      fit[5],
    ])
    await asked.end()
  })

  const settings: readonly [keyof typeof mends, value: string, verdict: FitnessVerdict, found?: string][] = [
    ['innodb_flush_log_at_trx_commit', '0', 'violated'],
    ['innodb_flush_log_at_trx_commit', '2', 'violated'],
    ['innodb_flush_log_at_trx_commit', '3', 'ok'],
    ['sync_binlog', '0', 'warning'],
    ['sync_binlog', '2', 'warning'],
    ['binlog_format', 'STATEMENT', 'violated'],
    ['binlog_format', 'ROW', 'ok'],
    ['read_only', '1', 'warning', 'ON'],
  ]
  test.each(settings)('%s = %s is judged %s', async (name, value, verdict, found = value) => {
    await using _ = await set(name, value)
    const judgement = verdict === 'ok' ? { verdict, found } : { verdict, found, mend: mends[name] }
    expect(await checksOf(pool)).toEqual(
      fit.map((check) => (check.lookedAt === name ? { ...check, ...judgement } : check)),
    )
  })

  const said = (name: keyof typeof mends, value: string): string => `${name} is ${value}. ${whys[name]} ${mends[name]}`
  const warning = (message: string): object => ({ name: 'OnceonlyWarning', code: 'STORE_UNSAFE', message })

  test('what loses commits is refused at the start, or a warning when that is asked for', async () => {
    await using _flush = await set('innodb_flush_log_at_trx_commit', '2')
    const [flush, sync] = [said('innodb_flush_log_at_trx_commit', '2'), said('sync_binlog', '0')]
    await expect(start(pool)).rejects.toMatchObject({
      code: 'STORE_UNSAFE',
      message: `${flush} Or set durability: 'relaxed' to accept the loss.`,
    })
    expect(await warningsOf(() => start(pool, { durability: 'relaxed' }))).toEqual([warning(flush)])
    await using _sync = await set('sync_binlog', '0')
    expect(await warningsOf(() => start(pool, { durability: 'relaxed' }))).toEqual([warning(flush), warning(sync)])
  })

  test('a log that is not synced is a warning at the start, and one of statements is refused, whatever is asked for', async () => {
    await using _sync = await set('sync_binlog', '0')
    expect(await warningsOf(() => start(pool))).toEqual([warning(said('sync_binlog', '0'))])
    await using _format = await set('binlog_format', 'STATEMENT')
    const refused = { code: 'STORE_UNSAFE', message: said('binlog_format', 'STATEMENT') }
    for (const durability of ['full', 'relaxed'] as const)
      await expect(start(pool, { durability })).rejects.toMatchObject(refused)
  })

  test('a server that is read-only is let in at the start: whoever may write there all the same does', async () => {
    await using _ = await set('read_only', '1')
    expect(await warningsOf(() => start(pool))).toEqual([])
  })

  test('a store that was refused asks again, and one that was let in does not', async () => {
    const ready = readiness('onceonly', 'full')
    {
      await using _ = await set('innodb_flush_log_at_trx_commit', '2')
      await expect(ready(connectionsOf(pool))).rejects.toMatchObject({ code: 'STORE_UNSAFE' })
    }
    await ready(connectionsOf(pool))
    await using _ = await set('innodb_flush_log_at_trx_commit', '2')
    await ready(connectionsOf(pool))
  })

  test('a table that is missing, without transactions, and without one of its procedures', async () => {
    const own = open(await server.createDatabase())
    const table = 'kept'
    const expectFault = async (code: string, found: string, mend: string, cure: string): Promise<void> => {
      const [schema, sweep] = (await checksOf(own, { table })).slice(6)
      expect(schema).toMatchObject({ lookedAt: 'the table kept and its procedures', verdict: 'violated', found, mend })
      expect(sweep!.lookedAt).toBe('entries of kept due for a sweep')
      const message = `${found} ${cure}`
      await expect(start(own, { table, durability: 'relaxed' })).rejects.toMatchObject({ code, message })
    }
    await expectFault('SCHEMA_MISSING', 'There is no table kept.', migrate, byMigration)
    await mysqlStore({ pool: own, table }).migrate()
    for (const each of ['kept', 'kept_operations', 'kept_steps', 'kept_audit']) {
      await own.query(`alter table ${each} engine = MyISAM`)
      const engine = `The table ${each} is of the engine MyISAM, which has no transactions.`
      const alter = `alter table ${each} engine = InnoDB`
      await expectFault('STORE_UNSAFE', engine, alter, `Run "${alter}".`)
      await own.query(alter)
    }
    await start(own, { table })
    await own.query(`drop procedure ${procedureName(table, 'claim')}`)
    await expectFault('SCHEMA_MISSING', seen(table, procedureNames.length - 1), migrate, byMigration)
  })

  test('what a user may not see is told as that', async () => {
    await pool.query(`create user limited@'%' identified by 'secret'`)
    await pool.query(`grant select on ${new URL(url).pathname.slice(1)}.* to limited@'%'`)
    const limited = open(url.replace('root@', 'limited:secret@'))
    expect(await judgedAs(limited, 'mysql-schema')).toEqual(['violated', seen('onceonly', 0), migrate])
    expect(await judgedAs(limited, 'mysql-old-transactions')).toEqual([
      'unknown',
      'the check failed: Access denied; you need (at least one of) the PROCESS privilege(s) for this operation',
      allow,
    ])
  })

  test('entries that nobody sweeps', async () => {
    const judged = (): Promise<(string | undefined)[]> => judgedAs(pool, 'unswept')
    for (const id of ['one', 'two']) await mysqlStore({ pool }).claim(key('judged', id), request())
    expect(await judged()).toEqual(['ok', 'none'])
    const makeDue = (id: string, agoMs: number): Promise<unknown> =>
      pool.query(`update onceonly set sweep_at_ms = ${clockSql} div 1000 - ${agoMs} where id = '${id}'`)
    // Minutes beside hours, and hours beside days, so that the seconds of a slow machine are not seen.
    const [someHoursMs, dayMs] = [9_000_000, 86_400_000]
    await makeDue('one', someHoursMs)
    expect(await judged()).toEqual(['ok', '1, the oldest for 2 h 30 min'])
    await makeDue('two', 3 * dayMs + someHoursMs)
    const sweepNow =
      'Services sweep unless they set sweepEveryMs: false or run for less than a minute. Run onceonly sweep from cron.'
    expect(await judged()).toEqual(['warning', '2, the oldest for 3 d 2 h', sweepNow])
  })

  test('a transaction that is open for longer than an attempt may take', async () => {
    const listed = 'select * from information_schema.innodb_trx'
    const isOpen = async (count: number): Promise<boolean> =>
      (await pool.query<RowDataPacket[]>(listed))[0].length === count
    // The server makes a new list only when nobody has asked for a tenth of a second.
    const untilOpen = (count: number): Promise<unknown> =>
      pollUntil(`${count} open transactions`, () => isOpen(count), { intervalMs: 150 })
    const judged = (longestMs: number): Promise<(string | undefined)[]> =>
      judgedAs(pool, 'mysql-old-transactions', { longestMs })
    await untilOpen(0)
    expect(await judged(0)).toEqual(['ok', 'the oldest transaction has been open for 0 ms'])
    const other = await pool.getConnection()
    try {
      await other.query('start transaction')
      await other.query(`insert into effects values ('open')`)
      await untilOpen(1)
      expect(await judged(60_000)).toEqual(['ok', openFor])
      expect(await judged(0)).toEqual(['warning', openFor, 'End it (kill), and bound transactions in the service.'])
    } finally {
      await other.query('rollback')
      other.release()
    }
  })
})

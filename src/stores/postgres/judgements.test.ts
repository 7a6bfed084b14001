// What is said of a database in each situation, word for word: at the start of the store, and by the doctor. Standbys and slots are in
// fitness.test.ts.

import type pg from 'pg'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { needs } from '../../../test/servers/needs.ts'
import { pollUntil } from '../../../test/servers/poll.ts'
import { type RunningPostgres, startPostgres } from '../../../test/servers/postgres.ts'
import { createPool } from '../../../test/subjects/postgres.ts'
import { warningsOf } from '../../../test/warnings.ts'
import { connectionsOf } from '../../clients/postgres.ts'
import { systemClock } from '../../core/clock.ts'
import type { FitnessCheck } from '../../core/fitness.ts'
import { key } from '../../core/key.ts'
import { request } from '../../testing/store-contract.ts'
import { postgresFitness, postgresStore } from '../postgres.ts'
import type { PostgresFitnessOptions, PostgresStoreOptions } from '../postgres.ts'
import { readiness } from './fitness.ts'
import { clockMs, schemaVersion } from './names.ts'

type More = Partial<PostgresFitnessOptions>

function checksOf(pool: pg.Pool, more: More = {}): Promise<readonly FitnessCheck[]> {
  return postgresFitness({ pool, longestMs: 60_000, ...more }).checks(0)
}

async function judgedAs(pool: pg.Pool, check: string, more: More = {}): Promise<(string | undefined)[]> {
  const { verdict, found, mend } = (await checksOf(pool, more)).find(({ name }) => name === check)!
  return mend === undefined ? [verdict, found] : [verdict, found, mend]
}

/** The first call of a store, which looks at the database before. */
async function start(pool: pg.Pool, options: Partial<PostgresStoreOptions> = {}): Promise<void> {
  await postgresStore({ pool, ...options }).sweep({ limit: 1 })
}

const text = (pattern: RegExp): string => expect.stringMatching(pattern) as string

const migrate = 'onceonly migrate'
const migrateThere = 'onceonly migrate, of the version that the services have'
const allow = 'Grant this user the right to read it, or run the doctor as a user who has it.'
const byMigration =
  'Run "await store.migrate()" or "onceonly migrate --store URL" once, or give the SQL of store.schema() to your own migrations.'
const lossy = 'A crash of the database would lose acknowledged outcomes, and their effects would run twice: '
const turnOn = (setting: string): string => `alter system set ${setting} = on; select pg_reload_conf();`
const commitOn = 'Set synchronous_commit = on for the server, the database and the user (alter role … set …).'
const accept = `Or accept it with durability: 'relaxed'.`
const sweepNow =
  'Services sweep unless they set sweepEveryMs: false or run for less than a minute. Run onceonly sweep from cron.'
const dayMs = 86_400_000

const versionComment = (version: number): string => `onceonly schema version ${version}`
const functionsAre = (what: 'there' | 'missing'): string => `functions of version ${schemaVersion} ${what}`

/** The checks of a table that is as it should be. */
function well(table: string, server: string): readonly FitnessCheck[] {
  const questions = [
    [
      'postgres-primary',
      'pg_is_in_recovery()',
      'A standby takes no writes, and its data is behind.',
      `a primary, PostgreSQL ${server}`,
    ],
    ['postgres-fsync', 'fsync', 'Without it a power cut corrupts or loses what was committed.', 'on'],
    [
      'postgres-full-page-writes',
      'full_page_writes',
      'A page that is half written in a power cut cannot be repaired.',
      'on',
    ],
    [
      'postgres-synchronous-commit',
      'synchronous_commit, as this user gets it',
      'With off, the server confirms a COMMIT before it is on disk: a crash loses confirmed outcomes, and their retries run again.',
      'on',
    ],
    [
      'postgres-encoding',
      'server_encoding',
      'A key is any Unicode text, and a database in another encoding refuses some of them.',
      'UTF8',
    ],
    [
      'postgres-failover',
      'pg_stat_replication, synchronous_standby_names',
      'A standby that is promoted without having been waited for lacks the last commits, and their retries run again.',
      'no standby is connected: nothing to fail over to',
    ],
    [
      'postgres-table',
      `the table ${table} and those beside it`,
      'An unlogged table is emptied after a crash: every key, or every step, would be new again.',
      'logged',
    ],
    [
      'postgres-schema',
      `the comment on ${table}, its functions`,
      'The decisions are functions in the database; a service of another version refuses to work.',
      `${versionComment(schemaVersion)}, ${functionsAre('there')}`,
    ],
    [
      'postgres-indexes',
      `the indexes of ${table}`,
      'Without its primary key nothing keeps two claims apart; without its index a sweep reads the whole table.',
      'all there',
    ],
    [
      'unswept',
      `entries of ${table} due for a sweep`,
      'What has expired stays on disk until it is swept: the table grows for ever, and with it everything it holds.',
      'none',
    ],
    [
      'postgres-bloat',
      'pg_stat_user_tables, autovacuum',
      'Dead rows that are not vacuumed make every look-up slower, and the table larger.',
      'rows: 0 live, 0 dead, autovacuum on',
    ],
    [
      'postgres-old-snapshots',
      'pg_stat_activity, pg_prepared_xacts',
      'While an old transaction is open, no dead row of any table can be removed; a claim it holds is busy for as long.',
      'the oldest transaction is open for 0 ms',
    ],
    [
      'postgres-slots',
      'pg_replication_slots',
      'The server keeps its log from where the slowest slot stands. A slot that nobody reads fills the disk, and the database stops.',
      'there is no replication slot',
    ],
  ] as const
  return questions.map(([name, lookedAt, why, found]) => ({ name, lookedAt, why, verdict: 'ok', found }))
}

needs('postgres', { ours: true }).describe('what is said of a PostgreSQL database', () => {
  let server: RunningPostgres
  let url: string
  let pool: pg.Pool
  const others: pg.Pool[] = []
  beforeAll(async () => {
    // No vacuum comes in between.
    server = await startPostgres({ settings: { autovacuum_naptime: '1h', max_prepared_transactions: 5 } })
    url = await server.createDatabase()
    pool = createPool(url, { max: 1 })
    await postgresStore({ pool }).migrate()
  })
  afterEach(async () => {
    await Promise.all(others.splice(0).map((other) => other.end()))
  })
  afterAll(async () => {
    await pool.end()
    await server.stop()
  })

  const open = (other: string, options: pg.PoolConfig = {}): pg.Pool => {
    others.push(createPool(other, { max: 1, ...options }))
    return others.at(-1)!
  }
  // A session knows of it a moment after the server.
  const alter = async (name: string, value: string): Promise<void> => {
    await pool.query(`alter system set ${name} = ${value}`)
    await pool.query('select pg_reload_conf()')
    const current = (): Promise<pg.QueryResult<Record<string, string>>> => pool.query(`show ${name}`)
    await pollUntil(`${name} to be ${value}`, async () => (await current()).rows[0]![name] === value)
  }
  // It is on again at the end.
  const turnOff = async (name: string): Promise<AsyncDisposable> => {
    await alter(name, 'off')
    return { [Symbol.asyncDispose]: () => alter(name, 'on') }
  }

  test('one that is as it comes is fit: every check, with what was looked at and why', async () => {
    const { rows } = await pool.query<{ server_version: string }>('show server_version')
    const version = rows[0]!.server_version
    expect(await checksOf(pool)).toEqual(well('"onceonly"', version))
    const elsewhere = { schema: 'elsewhere', table: 'kept' }
    await postgresStore({ pool, ...elsewhere, periodMs: dayMs }).migrate()
    expect(await checksOf(pool, elsewhere)).toEqual(well('"elsewhere"."kept"', version))
    expect(await warningsOf(() => start(pool))).toEqual([])
    const connections = connectionsOf(pool, { clock: systemClock })
    expect(await readiness({ table: 'onceonly', schema: undefined }, 'full')(connections)).toEqual({
      fsync: 'on',
      fullPageWrites: 'on',
      synchronousCommit: 'on',
      encoding: 'UTF8',
      isolation: 'read committed',
      there: true,
      unlogged: [],
      migrated: true,
    })
  })

  test('the time is that of the server, in milliseconds', async () => {
    const before = Date.now()
    const time = await postgresFitness({ pool, longestMs: 0 }).timeMs!()
    expect(time).toBeGreaterThanOrEqual(before)
    expect(time).toBeLessThanOrEqual(Date.now() + 1)
  })

  test('of a server that does not answer nothing is known', async () => {
    const nobody = open('postgres://127.0.0.1:1/none')
    const refused = 'connect ECONNREFUSED 127.0.0.1:1'
    const unknown = { verdict: 'unknown', found: `the check failed: ${refused}`, mend: allow }
    expect(await checksOf(nobody)).toEqual(well('"onceonly"', '').map((check) => ({ ...check, ...unknown })))
    await expect(start(nobody)).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
      message: `PostgreSQL could not read its settings: ${refused}. Retry.`,
    })
  })

  test('a table that is missing', async () => {
    const checks = await checksOf(pool, { table: 'absent' })
    expect(checks.slice(6, 11).map(({ verdict, found, mend }) => [verdict, found, mend])).toEqual([
      ['violated', 'the table is missing', migrate],
      ['violated', `no version, ${functionsAre('missing')}`, migrateThere],
      ['violated', 'there is no table', migrate],
      ['unknown', 'the check failed: relation "absent" does not exist', allow],
      ['unknown', 'there are no statistics of it', undefined],
    ])
    await expect(start(pool, { table: 'absent' })).rejects.toMatchObject({
      code: 'SCHEMA_MISSING',
      message: `There is no table "absent". ${byMigration}`,
    })
  })

  test.each(['fsync', 'full_page_writes'])('%s that is off', async (setting) => {
    {
      await using _ = await turnOff(setting)
      const unwell = (await checksOf(pool)).filter(({ verdict }) => verdict !== 'ok')
      expect(unwell).toMatchObject([{ lookedAt: setting, verdict: 'violated', found: 'off', mend: turnOn(setting) }])
      await expect(start(pool)).rejects.toMatchObject({
        code: 'STORE_UNSAFE',
        message: `${lossy}${setting} is off. ${turnOn(setting)} ${accept}`,
      })
    }
    await start(pool)
  })

  test('synchronous_commit that is off for this user, and one that is local, which is enough', async () => {
    const [off, local] = ['off', 'local'].map((value) => open(url, { options: `-c synchronous_commit=${value}` }))
    const check = 'postgres-synchronous-commit'
    expect(await judgedAs(off!, check)).toEqual(['violated', 'off', commitOn])
    expect(await judgedAs(local!, check)).toEqual(['ok', 'local'])
    const message = `${lossy}synchronous_commit is off.`
    const refused = { code: 'STORE_UNSAFE', message: `${message} ${commitOn} ${accept}` }
    await expect(start(off!)).rejects.toMatchObject(refused)
    expect(await warningsOf(() => start(local!))).toEqual([])
    const warning = { name: 'OnceonlyWarning', code: 'STORE_UNSAFE', message }
    expect(await warningsOf(() => start(off!, { durability: 'relaxed' }))).toEqual([warning])
  })

  test('all that loses commits is said at once', async () => {
    const table = 'lossy'
    await postgresStore({ pool, table }).migrate()
    await pool.query('alter table lossy set unlogged')
    await using _fsync = await turnOff('fsync')
    await using _pages = await turnOff('full_page_writes')
    const off = open(url, { options: '-c synchronous_commit=off' })
    const settings = 'fsync is off, full_page_writes is off, synchronous_commit is off'
    const message = `${lossy}${settings}, the table "lossy" is unlogged: lossy.`
    const cures = `${turnOn('fsync')} ${turnOn('full_page_writes')} ${commitOn} alter table lossy set logged;`
    await expect(start(off, { table })).rejects.toMatchObject({ message: `${message} ${cures} ${accept}` })
    expect(await warningsOf(() => start(off, { table, durability: 'relaxed' }))).toMatchObject([{ message }])
  })

  test('another encoding, whatever is accepted', async () => {
    await pool.query(`create database latin encoding 'LATIN1' template template0 locale 'C'`)
    const latin = open(server.url.replace(/postgres$/, 'latin'))
    await postgresStore({ pool: latin }).migrate()
    const mend = 'Not every key can be stored in it. Use a database in UTF8.'
    expect(await judgedAs(latin, 'postgres-encoding')).toEqual(['violated', 'LATIN1', mend])
    await expect(start(latin, { durability: 'relaxed' })).rejects.toMatchObject({
      code: 'STORE_UNSAFE',
      message: `The database is encoded in LATIN1. ${mend}`,
    })
  })

  test('tables that a crash empties are named one by one, of periods and of steps, too', async () => {
    const table = 'emptied'
    await postgresStore({ pool, table, periodMs: dayMs }).migrate()
    await pool.query('alter table emptied_2 set unlogged')
    const one = ['violated', 'unlogged: emptied_2', 'alter table emptied_2 set logged;']
    expect(await judgedAs(pool, 'postgres-table', { table })).toEqual(one)
    await pool.query('alter table emptied_steps set unlogged')
    const found = 'unlogged: emptied_2, emptied_steps'
    const mend = 'alter table emptied_2 set logged; alter table emptied_steps set logged;'
    expect(await judgedAs(pool, 'postgres-table', { table })).toEqual(['violated', found, mend])
    await expect(start(pool, { table })).rejects.toMatchObject({
      message: `${lossy}the table "emptied" is ${found}. ${mend} ${accept}`,
    })
  })

  test('another version, in the comment or in the functions', async () => {
    const table = 'versioned'
    await postgresStore({ pool, table, periodMs: dayMs }).migrate()
    const judged = async (of: string, comment: string): Promise<(string | undefined)[]> => {
      await pool.query(`comment on table ${of} is ${comment}`)
      return judgedAs(pool, 'postgres-schema', { table })
    }
    const there = functionsAre('there')
    const [before, own] = [schemaVersion - 1, schemaVersion].map(versionComment)
    const longer = versionComment(10 ** String(schemaVersion).length)
    const another = `not ${own}`
    expect(await judged(table, `'${before}'`)).toEqual(['violated', `${before}, ${there}`, migrateThere])
    expect(await judged(table, `'${longer}'`)).toEqual(['ok', `${longer}, ${there}`])
    expect(await judged(table, `'${another}'`)).toEqual(['violated', `${another}, ${there}`, migrateThere])
    // What was the whole table before there were periods has it as well.
    expect(await judged(table, 'null')).toEqual(['ok', `${own}, ${there}`])
    expect(await judged('versioned_rest', 'null')).toEqual(['violated', `no version, ${there}`, migrateThere])
    await pool.query(`drop function versioned_claim_v${schemaVersion}`)
    const lacking = ['violated', `${own}, ${functionsAre('missing')}`, migrateThere]
    expect(await judged(table, `'${own}'`)).toEqual(lacking)
    await expect(start(pool, { table })).rejects.toMatchObject({
      code: 'SCHEMA_MISSING',
      message: `The table "versioned" is of another version than this code. ${byMigration}`,
    })
  })

  test('indexes that are missing', async () => {
    const table = 'indexed'
    await postgresStore({ pool, table, periodMs: dayMs }).migrate()
    const mend = 'onceonly migrate makes the index; a primary key that is missing was dropped by hand: (scope, id).'
    const judged = (): Promise<(string | undefined)[]> => judgedAs(pool, 'postgres-indexes', { table })
    await pool.query('drop index indexed_sweep_at')
    expect(await judged()).toEqual(['warning', 'indexed_sweep_at is missing', mend])
    await pool.query('alter table indexed_3 drop constraint indexed_3_pkey')
    expect(await judged()).toEqual(['violated', 'no primary key: indexed_3', mend])
    await pool.query('alter table indexed_5 drop constraint indexed_5_pkey')
    expect(await judged()).toEqual(['violated', text(/^no primary key: indexed_(3, indexed_5|5, indexed_3)$/), mend])
  })

  test('entries and periods that nobody sweeps', async () => {
    const table = 'unswept'
    await postgresStore({ pool, table }).migrate()
    await postgresStore({ pool, table }).claim(key('judged', 'one'), request())
    const judged = (): Promise<(string | undefined)[]> => judgedAs(pool, 'unswept', { table })
    const makeDue = (what: string, agoMs: number): Promise<unknown> =>
      pool.query(`update ${what} = ${clockMs} - ${agoMs}`)
    expect(await judged()).toEqual(['ok', 'none'])
    // Minutes beside hours, and hours beside days, so that the seconds of a slow machine are not seen.
    const someHoursMs = 9_000_000
    await makeDue('unswept set sweep_at_ms', someHoursMs)
    expect(await judged()).toEqual(['ok', '1, the oldest for 2 h 30 min'])
    await makeDue('unswept set sweep_at_ms', 3 * dayMs + someHoursMs)
    const late = ['warning', '1, the oldest for 3 d 2 h', sweepNow]
    expect(await judged()).toEqual(late)
    await postgresStore({ pool, table, periodMs: dayMs }).migrate()
    expect(await judged()).toEqual(late)
    await makeDue('unswept_periods set ends_at_ms', 9 * dayMs + someHoursMs)
    expect(await judged()).toEqual(['warning', '6, the oldest for 9 d 2 h', sweepNow])
  })

  test('dead rows: more than ten thousand of them, and more than half of all', async () => {
    await pool.query('create table worn (n int)')
    const judged = (): Promise<(string | undefined)[]> => judgedAs(pool, 'postgres-bloat', { table: 'worn' })
    // What a session has written is counted when it ends.
    const judgedAfter = async (change: string, live: number, dead: number): Promise<(string | undefined)[]> => {
      const writing = createPool(url)
      await writing.query(change)
      await writing.end()
      const counted = `select from pg_stat_user_tables where (relname, n_live_tup, n_dead_tup) = ('worn', ${live}, ${dead})`
      await pollUntil(`${dead} dead rows`, async () => (await pool.query(counted)).rowCount === 1)
      return judged()
    }
    const mend = 'Turn autovacuum on, and once: vacuum "worn";'
    const insert = 'insert into worn select generate_series(1, 10001)'
    expect(await judgedAfter(insert, 10_001, 0)).toEqual(['ok', 'rows: 10001 live, 0 dead, autovacuum on'])
    const few = 'rows: 1 live, 10000 dead, autovacuum on'
    expect(await judgedAfter('delete from worn where n > 1', 1, 10_000)).toEqual(['ok', few])
    const all = 'rows: 0 live, 10001 dead, autovacuum on'
    expect(await judgedAfter('delete from worn', 0, 10_001)).toEqual(['warning', all, mend])
    const half = 'rows: 10001 live, 10001 dead, autovacuum'
    expect(await judgedAfter(insert, 10_001, 10_001)).toEqual(['ok', `${half} on`])
    const refused = ['warning', `${half} off`, mend]
    for (const off of ['false', 'off']) {
      await pool.query(`alter table worn set (autovacuum_enabled = ${off})`)
      expect(await judged()).toEqual(refused)
    }
    await pool.query('alter table worn reset (autovacuum_enabled)')
    expect(await judged()).toEqual(['ok', `${half} on`])
    await using _ = await turnOff('autovacuum')
    expect(await judged()).toEqual(refused)
  })

  const openFor = 'the oldest transaction is open for \\d+ m?s'
  const endIt = 'End it (pg_terminate_backend, rollback prepared), and set idle_in_transaction_session_timeout.'

  test.each([
    ['open', 'select 1', 'rollback'],
    ['prepared', `prepare transaction 'left'`, `rollback prepared 'left'`],
  ])('a transaction that is %s for longer than an attempt may take', async (_, leave, end) => {
    const other = open(url)
    const judged = (longestMs: number): Promise<(string | undefined)[]> =>
      judgedAs(pool, 'postgres-old-snapshots', { longestMs })
    expect(await judged(0)).toEqual(['ok', 'the oldest transaction is open for 0 ms'])
    await other.query('begin')
    await other.query('create table held (n int)')
    await other.query(leave)
    try {
      expect(await judged(60_000)).toEqual(['ok', text(new RegExp(`^${openFor}$`))])
      expect(await judged(0)).toEqual(['warning', text(new RegExp(`^${openFor}$`)), endIt])
    } finally {
      await other.query(end)
    }
  })

  test('a transaction that is left in another database keeps no row of this one', async () => {
    const other = open(await server.createDatabase())
    await other.query('begin')
    await other.query(`prepare transaction 'elsewhere'`)
    const judged = await judgedAs(pool, 'postgres-old-snapshots', { longestMs: 0 })
    await other.query(`rollback prepared 'elsewhere'`)
    expect(judged).toEqual(['ok', 'the oldest transaction is open for 0 ms'])
  })

  test('sessions that a user may not see leave the age of the oldest transaction unknown', async () => {
    const own = await server.createDatabase()
    const admin = open(own)
    await admin.query('create role limited login')
    const asLimited = own.replace('postgres@', 'limited@')
    const [limited, other] = [open(asLimited), open(asLimited)]
    const judged = (longestMs: number): Promise<(string | undefined)[]> =>
      judgedAs(limited, 'postgres-old-snapshots', { longestMs })
    const unseen = 'the oldest transaction is open for 0 ms; sessions that cannot be seen: 1'
    expect(await judged(0)).toEqual(['unknown', unseen, 'grant pg_read_all_stats to this user.'])
    await other.query('begin')
    expect(await judged(0)).toEqual([
      'warning',
      text(new RegExp(`^${openFor}; sessions that cannot be seen: 1$`)),
      endIt,
    ])
    await admin.query('grant pg_read_all_stats to limited')
    expect(await judged(60_000)).toEqual(['ok', text(new RegExp(`^${openFor}$`))])
  })
})

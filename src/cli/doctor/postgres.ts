// What a PostgreSQL server must be like: an acknowledged commit is on its disk, the tables are ours and logged, and nobody keeps
// old rows alive.

import type { PgPool } from '../../clients/postgres.ts'
import { clockMs, functionName, qualified, schemaVersion } from '../../stores/postgres/names.ts'
import type { SchemaNames } from '../../stores/postgres/names.ts'
import { check, judge, judgeUnswept, unsweptMax } from '../../core/fitness.ts'
import type { FitnessCheck } from '../../core/fitness.ts'
import { span } from '../words.ts'

type Row = Readonly<Record<string, string | number | boolean | null>>

async function rows(pool: PgPool, sql: string): Promise<readonly Row[]> {
  return ((await pool.query(sql)) as { rows: Row[] }).rows
}

export async function postgresTimeMs(pool: PgPool): Promise<number> {
  const [row] = await rows(pool, 'select (extract(epoch from clock_timestamp()) * 1000)::float8 as ms')
  return Number(row!['ms'])
}

/** `longestMs`: how long an attempt may take, and so a transaction that serves one. */
export async function postgresChecks(pool: PgPool, names: SchemaNames, longestMs: number): Promise<FitnessCheck[]> {
  return [
    await primaryCheck(pool),
    await settingCheck(
      pool,
      'fsync',
      'The server does not sync its files: a power cut corrupts or loses what was committed.',
    ),
    await settingCheck(pool, 'full_page_writes', 'A page that is half written in a power cut cannot be repaired.'),
    await commitCheck(pool),
    await standbyCheck(pool),
    await tableCheck(pool, names),
    await schemaCheck(pool, names),
    await indexCheck(pool, names),
    await sweepCheck(pool, names),
    await bloatCheck(pool, names),
    await snapshotCheck(pool, longestMs),
  ]
}

function primaryCheck(pool: PgPool): Promise<FitnessCheck> {
  const why = 'A standby takes no writes, and its data is behind.'
  return check({ name: 'postgres-primary', lookedAt: 'pg_is_in_recovery()', why }, async () => {
    const [row] = await rows(
      pool,
      `select pg_is_in_recovery() as standby, current_setting('server_version') as version`,
    )
    const found = `${row!['standby'] ? 'a standby' : 'a primary'}, PostgreSQL ${row!['version']}`
    return judge(row!['standby'] ? 'violated' : 'ok', found, 'Give the URL of the primary.')
  })
}

async function current(pool: PgPool, name: string): Promise<string> {
  const [row] = await rows(pool, `select current_setting('${name}') as value`)
  return String(row!['value'])
}

function settingCheck(pool: PgPool, name: 'fsync' | 'full_page_writes', why: string): Promise<FitnessCheck> {
  const question = { name: `postgres-${name.replaceAll('_', '-')}`, lookedAt: name, why }
  return check(question, async () => {
    const value = await current(pool, name)
    return judge(value === 'on' ? 'ok' : 'violated', value, `alter system set ${name} = on; select pg_reload_conf();`)
  })
}

function commitCheck(pool: PgPool): Promise<FitnessCheck> {
  const why =
    'With off, COMMIT is answered before it is on disk: a crash loses outcomes that were told, and their retries run again.'
  const lookedAt = 'synchronous_commit, as this user gets it'
  return check({ name: 'postgres-synchronous-commit', lookedAt, why }, async () => {
    const value = await current(pool, 'synchronous_commit')
    const mend = 'Set synchronous_commit = on for the server, the database and the user (alter role … set …).'
    return judge(value === 'off' ? 'violated' : 'ok', value, mend)
  })
}

function standbyCheck(pool: PgPool): Promise<FitnessCheck> {
  const why =
    'A standby that is promoted without having been waited for lacks the last commits, and their retries run again.'
  const lookedAt = 'pg_stat_replication, synchronous_standby_names'
  return check({ name: 'postgres-failover', lookedAt, why }, async () => {
    const [row] = await rows(
      pool,
      `select count(*)::int as standbys, current_setting('synchronous_standby_names') as waited,
        current_setting('synchronous_commit') as commits from pg_stat_replication`,
    )
    const standbys = Number(row!['standbys'])
    if (standbys === 0) return { verdict: 'ok', found: 'no standby is connected: nothing to fail over to' }
    const waits = row!['waited'] !== '' && row!['commits'] !== 'local'
    const found = `${standbys} standbys, ${waits ? `waits for ${row!['waited']}` : 'commits wait for none of them'}`
    return judge(waits ? 'ok' : 'warning', found, 'Set synchronous_standby_names, or accept the loss at a failover.')
  })
}

const regclass = (names: SchemaNames): string => `to_regclass('${qualified(names)}')`

/** The table itself, or, when it is in periods, those that it consists of. */
const tablesOf = (names: SchemaNames): string =>
  `(select case when c.relkind = 'p' then t.relid::oid else c.oid end as oid
      from pg_class c left join pg_partition_tree(c.oid) t on t.isleaf where c.oid = ${regclass(names)})`

function tableCheck(pool: PgPool, names: SchemaNames): Promise<FitnessCheck> {
  const why = 'An unlogged table is emptied after a crash: every key would be new again.'
  return check({ name: 'postgres-table', lookedAt: `the table ${qualified(names)}`, why }, async () => {
    const tables = await rows(
      pool,
      `select c.relname as name, c.relpersistence = 'p' as logged from pg_class c join ${tablesOf(names)} t on t.oid = c.oid`,
    )
    if (tables.length === 0) return judge('violated', 'it is not there', 'onceonly migrate')
    const unlogged = tables.filter((each) => each['logged'] !== true).map((each) => String(each['name']))
    const found = unlogged.length === 0 ? 'logged' : `unlogged: ${unlogged.join(', ')}`
    const mend = unlogged.map((name) => `alter table "${name}" set logged;`).join(' ')
    return judge(unlogged.length === 0 ? 'ok' : 'violated', found, mend)
  })
}

function schemaCheck(pool: PgPool, names: SchemaNames): Promise<FitnessCheck> {
  const why = 'The decisions are functions in the database; a service of another version refuses to work.'
  return check(
    { name: 'postgres-schema', lookedAt: `the comment on ${qualified(names)}, its functions`, why },
    async () => {
      const [row] = await rows(
        pool,
        `select coalesce(obj_description(${regclass(names)}, 'pg_class'),
          obj_description(to_regclass('${qualified(names, '_rest')}'), 'pg_class')) as comment,
        to_regproc('${functionName(names, 'claim')}') is not null as callable`,
      )
      const comment = String(row!['comment'] ?? 'no version')
      const version = Number(/^onceonly schema version (\d+)/.exec(comment)?.[1] ?? -1)
      const fit = version >= schemaVersion && row!['callable'] === true
      const found = `${comment}, functions of version ${schemaVersion} ${row!['callable'] === true ? 'there' : 'missing'}`
      return judge(fit ? 'ok' : 'violated', found, 'onceonly migrate, of the version that the services have')
    },
  )
}

function indexCheck(pool: PgPool, names: SchemaNames): Promise<FitnessCheck> {
  const why = 'Without its primary key nothing keeps two claims apart; without its index a sweep reads the whole table.'
  return check({ name: 'postgres-indexes', lookedAt: `the indexes of ${qualified(names)}`, why }, async () => {
    const found = await rows(
      pool,
      `select c.relname as name, bool_or(coalesce(i.indisprimary, false)) as primary,
        bool_or(coalesce(x.relname = '${names.table}_sweep_at', false)) as sweep
      from ${tablesOf(names)} t join pg_class c on c.oid = t.oid
        left join pg_index i on i.indrelid = t.oid and i.indisvalid left join pg_class x on x.oid = i.indexrelid
      group by c.relname`,
    )
    const lacking = found.filter((row) => row['primary'] !== true).map((row) => String(row['name']))
    const mend = 'onceonly migrate makes the index; a primary key that is missing was dropped by hand: (scope, id).'
    if (found.length === 0) return judge('violated', 'there is no table', 'onceonly migrate')
    if (lacking.length > 0) return judge('violated', `no primary key: ${lacking.join(', ')}`, mend)
    const sweep = found.some((row) => row['sweep'] === true)
    return judge(sweep ? 'ok' : 'warning', sweep ? 'all there' : `${names.table}_sweep_at is missing`, mend)
  })
}

function sweepCheck(pool: PgPool, names: SchemaNames): Promise<FitnessCheck> {
  const why =
    'What has expired stays on disk until it is swept: the table grows for ever, and with it everything it holds.'
  return check({ name: 'unswept', lookedAt: `entries of ${qualified(names)} due for a sweep`, why }, async () => {
    // Entries in periods go with their table, which is due when its period is over.
    const [row] = await rows(
      pool,
      `select count(*)::int as due, (${clockMs} - min(at_ms))::float8 as age_ms from (
        (select sweep_at_ms as at_ms from ${qualified(names)}
          where slot = 0 and sweep_at_ms <= ${clockMs} order by sweep_at_ms limit ${unsweptMax})
        union all select ends_at_ms from ${qualified(names, '_periods')} where ends_at_ms <= ${clockMs}) e`,
    )
    return judgeUnswept(Number(row!['due']), Number(row!['age_ms'] ?? 0))
  })
}

// Every claim and settle leaves one dead row, and autovacuum begins at a fifth of the table: more than half is a vacuum that
// cannot keep up or is not allowed to. Small tables do not matter.
const deadShareMax = 0.5
const deadRowsMin = 10_000

function bloatCheck(pool: PgPool, names: SchemaNames): Promise<FitnessCheck> {
  const why = 'Dead rows that are not vacuumed make every look-up slower, and the table larger.'
  return check({ name: 'postgres-bloat', lookedAt: 'pg_stat_user_tables, autovacuum', why }, async () => {
    const [row] = await rows(
      pool,
      `select sum(n_live_tup)::float8 as live, sum(n_dead_tup)::float8 as dead, current_setting('autovacuum') as autovacuum,
        bool_or(exists (select from unnest(c.reloptions) o where o = 'autovacuum_enabled=false')) as refused
      from pg_stat_user_tables s join pg_class c on c.oid = s.relid join ${tablesOf(names)} t on t.oid = s.relid`,
    )
    if (!row || row['live'] === null) return { verdict: 'unknown', found: 'there are no statistics of it' }
    const [live, dead] = [Number(row['live']), Number(row['dead'])]
    const vacuums = row['autovacuum'] === 'on' && row['refused'] !== true
    const bloated = dead > deadRowsMin && dead > (live + dead) * deadShareMax
    const found = `${live} live rows, ${dead} dead, autovacuum ${vacuums ? 'on' : 'off'}`
    return judge(
      vacuums && !bloated ? 'ok' : 'warning',
      found,
      `Turn autovacuum on, and once: vacuum ${qualified(names)};`,
    )
  })
}

function snapshotCheck(pool: PgPool, longestMs: number): Promise<FitnessCheck> {
  const why =
    'While an old transaction is open, no dead row of any table can be removed; a claim it holds is busy for as long.'
  return check({ name: 'postgres-old-snapshots', lookedAt: 'pg_stat_activity, pg_prepared_xacts', why }, async () => {
    const [row] = await rows(
      pool,
      `select (select coalesce(max(extract(epoch from clock_timestamp() - xact_start)), 0) * 1000 from pg_stat_activity
          where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend')::float8 as open_ms,
        (select coalesce(max(extract(epoch from clock_timestamp() - prepared)), 0) * 1000 from pg_prepared_xacts)::float8
          as prepared_ms,
        (select count(*) from pg_stat_activity where datname = current_database() and query = '<insufficient privilege>')::int
          as hidden`,
    )
    const oldestMs = Math.max(Number(row!['open_ms']), Number(row!['prepared_ms']))
    const hidden = Number(row!['hidden'])
    const found = `the oldest transaction is open for ${span(oldestMs)}${hidden > 0 ? `; ${hidden} sessions cannot be seen` : ''}`
    const mend = 'End it (pg_terminate_backend, rollback prepared), and set idle_in_transaction_session_timeout.'
    if (oldestMs > longestMs) return judge('warning', found, mend)
    return hidden > 0
      ? { verdict: 'unknown', found, mend: 'grant pg_read_all_stats to this user.' }
      : { verdict: 'ok', found }
  })
}

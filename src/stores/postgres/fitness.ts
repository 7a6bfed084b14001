// Is this a database on which the promise can be kept? An acknowledged commit must be on its disk, the tables must be ours and
// logged, and no transaction may keep old rows alive. The store asks before its first call, with one query, and again only while
// the answer is no. The doctor prints every check.

import { span } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { check, checkedOnce, judge, judgeUnswept, unsweptMax } from '../../core/fitness.ts'
import type { Fitness, FitnessCheck, Judgement } from '../../core/fitness.ts'
import type { PgPool, PostgresSession } from '../../clients/postgres.ts'
import { schemaMissing } from '../sql-answers.ts'
import { storeError } from './errors.ts'
import { clockMs, functionName, qualified, schemaVersion } from './names.ts'
import type { SchemaNames } from './names.ts'
import { literal } from './statements.ts'

/** What the store reads of its server before the first call. */
export interface PostgresFacts {
  readonly fsync: string
  readonly fullPageWrites: string
  readonly synchronousCommit: string
  readonly encoding: string
  /** The default of the sessions: 'read committed', or stricter. */
  readonly isolation: string
  readonly there: boolean
  /** Those of our tables that a crash would empty. */
  readonly unlogged: readonly string[]
  readonly migrated: boolean
}

const settings = {
  fsync: 'fsync',
  fullPageWrites: 'full_page_writes',
  synchronousCommit: 'synchronous_commit',
  encoding: 'server_encoding',
  isolation: 'default_transaction_isolation',
} as const

function factsStatement(names: SchemaNames): string {
  const current = Object.entries(settings).map(([fact, setting]) => `'${fact}', current_setting('${setting}')`)
  return `select json_build_object(
    ${current.join(', ')}, 'there', ${isThere(names)}, 'unlogged', ${unloggedTables(names)},
    'migrated', to_regproc(${literal(functionName(names, 'claim'))}) is not null
  )::text as answer`
}

const regclass = (names: SchemaNames): string => `to_regclass(${literal(qualified(names))})`
const isThere = (names: SchemaNames): string => `${regclass(names)} is not null`

/** The table itself, or the tables that it consists of when it is in periods. */
const tablesOf = (names: SchemaNames): string =>
  `(select case when c.relkind = 'p' then t.relid::oid else c.oid end as oid
      from pg_class c left join pg_partition_tree(c.oid) t on t.isleaf where c.oid = ${regclass(names)})`

const besideEntries = ['_operations', '_steps', '_audit', '_periods'] as const

const unloggedTables = (names: SchemaNames): string => {
  const others = besideEntries.map((suffix) => literal(qualified(names, suffix))).join(', ')
  return `(select coalesce(json_agg(c.oid::regclass::text order by c.oid::regclass::text), '[]'::json) from pg_class c
      where c.relpersistence <> 'p' and (c.oid in (select oid from ${tablesOf(names)} t)
        or c.oid in (select to_regclass(other) from unnest(array[${others}]) other)))`
}

/** Refuses a database that is not fit, and resolves to the facts of one that is. */
export function readiness(
  names: SchemaNames,
  durability: 'full' | 'relaxed',
): (session: PostgresSession) => Promise<PostgresFacts> {
  return checkedOnce(async (session) => {
    const facts = await factsOf(names, session)
    refuseUnfit(names, durability, facts)
    return facts
  })
}

async function factsOf(names: SchemaNames, session: PostgresSession): Promise<PostgresFacts> {
  try {
    const [result] = await session.run([factsStatement(names)])
    return JSON.parse(result!.answers[0]!) as PostgresFacts
  } catch (error) {
    throw storeError(error, 'read its settings', 'no')
  }
}

function refuseUnfit(names: SchemaNames, durability: 'full' | 'relaxed', facts: PostgresFacts): void {
  if (!facts.there) throw schemaMissing(`There is no table ${qualified(names)}.`)
  if (!facts.migrated) throw schemaMissing(`The table ${qualified(names)} is of another version than this code.`)
  const encoding = judgeEncoding(facts.encoding)
  if (encoding.verdict !== 'ok') {
    throw new OnceError('STORE_UNSAFE', { message: `The database is encoded in ${encoding.found}. ${encoding.mend}` })
  }
  const dangers = [
    { what: 'fsync', ...judgeSetting('fsync', facts.fsync) },
    { what: 'full_page_writes', ...judgeSetting('full_page_writes', facts.fullPageWrites) },
    { what: 'synchronous_commit', ...judgeCommit(facts.synchronousCommit) },
    { what: `the table ${qualified(names)}`, ...judgeTables(facts.unlogged) },
  ].filter(({ verdict }) => verdict !== 'ok')
  if (dangers.length === 0) return
  const found = dangers.map((danger) => `${danger.what} is ${danger.found}`).join(', ')
  const message = `A crash of the database would lose acknowledged outcomes, and their effects would run twice: ${found}.`
  if (durability === 'full') {
    const cures = dangers.map(({ mend }) => mend).join(' ')
    throw new OnceError('STORE_UNSAFE', { message: `${message} ${cures} Or accept it with durability: 'relaxed'.` })
  }
  process.emitWarning(message, { type: 'OnceonlyWarning', code: 'STORE_UNSAFE' })
}

function judgeSetting(name: 'fsync' | 'full_page_writes', value: string): Judgement {
  return judge(value === 'on' ? 'ok' : 'violated', value, `alter system set ${name} = on; select pg_reload_conf();`)
}

function judgeCommit(value: string): Judgement {
  const mend = 'Set synchronous_commit = on for the server, the database and the user (alter role … set …).'
  return judge(value === 'off' ? 'violated' : 'ok', value, mend)
}

function judgeTables(unlogged: readonly string[]): Judgement {
  if (unlogged.length === 0) return { verdict: 'ok', found: 'logged' }
  const mend = unlogged.map((name) => `alter table ${name} set logged;`).join(' ')
  return judge('violated', `unlogged: ${unlogged.join(', ')}`, mend)
}

function judgeEncoding(encoding: string): Judgement {
  return judge(
    encoding === 'UTF8' ? 'ok' : 'violated',
    encoding,
    'Not every key can be stored in it. Use a database in UTF8.',
  )
}

type Look = (sql: string) => Promise<readonly FoundRow[]>
type FoundRow = Readonly<Record<string, string | number | boolean | null | readonly string[]>>

export interface PostgresFitnessOptions {
  readonly pool: PgPool
  /** 'onceonly' unless given. */
  readonly table?: string
  readonly schema?: string | undefined
  /** How long an attempt may take, and so a transaction that serves one: 20 leases unless an attempt has its own limit. */
  readonly longestMs: number
}

/**
 * What `onceonly doctor` checks of a PostgreSQL server.
 *
 * @example
 * import { postgresFitness } from 'onceonly/postgres'
 * import pg from 'pg'
 *
 * const pool = new pg.Pool({ connectionString: process.env['DATABASE_URL'] })
 * const checks = await postgresFitness({ pool, longestMs: 600_000 }).checks(0)
 * const violated = checks.filter(({ verdict }) => verdict === 'violated')
 */
export function postgresFitness({ pool, table = 'onceonly', schema, longestMs }: PostgresFitnessOptions): Fitness {
  const names = { table, schema }
  const look: Look = async (sql) => ((await pool.query(sql)) as { rows: FoundRow[] }).rows
  return {
    async timeMs() {
      const [row] = await look('select (extract(epoch from clock_timestamp()) * 1000)::float8 as ms')
      return Number(row!['ms'])
    },
    checks: async () => [
      await primaryCheck(look),
      await settingCheck(look, 'fsync', 'Without it a power cut corrupts or loses what was committed.'),
      await settingCheck(look, 'full_page_writes', 'A page that is half written in a power cut cannot be repaired.'),
      await commitCheck(look),
      await encodingCheck(look),
      await standbyCheck(look),
      await tableCheck(look, names),
      await schemaCheck(look, names),
      await indexCheck(look, names),
      await sweepCheck(look, names),
      await bloatCheck(look, names),
      await snapshotCheck(look, longestMs),
      await slotCheck(look),
    ],
  }
}

function primaryCheck(look: Look): Promise<FitnessCheck> {
  const why = 'A standby takes no writes, and its data is behind.'
  return check({ name: 'postgres-primary', lookedAt: 'pg_is_in_recovery()', why }, async () => {
    const [row] = await look(`select pg_is_in_recovery() as standby, current_setting('server_version') as version`)
    const found = `${row!['standby'] ? 'a standby' : 'a primary'}, PostgreSQL ${row!['version']}`
    return judge(row!['standby'] ? 'violated' : 'ok', found, 'Give the URL of the primary.')
  })
}

async function current(look: Look, name: string): Promise<string> {
  const [row] = await look(`select current_setting('${name}') as value`)
  return String(row!['value'])
}

function settingCheck(look: Look, name: 'fsync' | 'full_page_writes', why: string): Promise<FitnessCheck> {
  const question = { name: `postgres-${name.replaceAll('_', '-')}`, lookedAt: name, why }
  return check(question, async () => judgeSetting(name, await current(look, name)))
}

function commitCheck(look: Look): Promise<FitnessCheck> {
  const why =
    'With off, the server confirms a COMMIT before it is on disk: a crash loses confirmed outcomes, and their retries run again.'
  const lookedAt = 'synchronous_commit, as this user gets it'
  return check({ name: 'postgres-synchronous-commit', lookedAt, why }, async () =>
    judgeCommit(await current(look, 'synchronous_commit')),
  )
}

function encodingCheck(look: Look): Promise<FitnessCheck> {
  const why = 'A key is any Unicode text, and a database in another encoding refuses some of them.'
  return check({ name: 'postgres-encoding', lookedAt: 'server_encoding', why }, async () =>
    judgeEncoding(await current(look, 'server_encoding')),
  )
}

function standbyCheck(look: Look): Promise<FitnessCheck> {
  const why =
    'A standby that is promoted without having been waited for lacks the last commits, and their retries run again.'
  const lookedAt = 'pg_stat_replication, synchronous_standby_names'
  return check({ name: 'postgres-failover', lookedAt, why }, async () => {
    const [row] = await look(
      `select count(*)::int as standbys, current_setting('synchronous_standby_names') as waited,
        current_setting('synchronous_commit') as commits from pg_stat_replication r
      where not exists (select from pg_replication_slots s where s.active_pid = r.pid and s.slot_type = 'logical')`,
    )
    const standbys = Number(row!['standbys'])
    if (standbys === 0) return { verdict: 'ok', found: 'no standby is connected: nothing to fail over to' }
    const waits = row!['waited'] !== '' && !['local', 'off'].includes(String(row!['commits']))
    const found = `standbys ${standbys}, ${waits ? `waits for ${row!['waited']}` : 'commits wait for none of them'}`
    return judge(waits ? 'ok' : 'warning', found, 'Set synchronous_standby_names, or accept the loss at a failover.')
  })
}

function tableCheck(look: Look, names: SchemaNames): Promise<FitnessCheck> {
  const why = 'An unlogged table is emptied after a crash: every key, or every step, would be new again.'
  return check(
    { name: 'postgres-table', lookedAt: `the table ${qualified(names)} and those beside it`, why },
    async () => {
      const [row] = await look(`select ${isThere(names)} as there, ${unloggedTables(names)} as unlogged`)
      if (row!['there'] !== true) return judge('violated', 'the table is missing', 'onceonly migrate')
      return judgeTables(row!['unlogged'] as string[])
    },
  )
}

function schemaCheck(look: Look, names: SchemaNames): Promise<FitnessCheck> {
  const why = 'The decisions are functions in the database; a service of another version refuses to work.'
  return check(
    { name: 'postgres-schema', lookedAt: `the comment on ${qualified(names)}, its functions`, why },
    async () => {
      const [row] = await look(
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

function indexCheck(look: Look, names: SchemaNames): Promise<FitnessCheck> {
  const why = 'Without its primary key nothing keeps two claims apart; without its index a sweep reads the whole table.'
  return check({ name: 'postgres-indexes', lookedAt: `the indexes of ${qualified(names)}`, why }, async () => {
    const found = await look(
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

function sweepCheck(look: Look, names: SchemaNames): Promise<FitnessCheck> {
  const why =
    'What has expired stays on disk until it is swept: the table grows for ever, and with it everything it holds.'
  return check({ name: 'unswept', lookedAt: `entries of ${qualified(names)} due for a sweep`, why }, async () => {
    // Entries in periods go with their table, which is due when its period has ended.
    const [row] = await look(
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

function bloatCheck(look: Look, names: SchemaNames): Promise<FitnessCheck> {
  const why = 'Dead rows that are not vacuumed make every look-up slower, and the table larger.'
  return check({ name: 'postgres-bloat', lookedAt: 'pg_stat_user_tables, autovacuum', why }, async () => {
    const [row] = await look(
      `select sum(n_live_tup)::float8 as live, sum(n_dead_tup)::float8 as dead, current_setting('autovacuum') as autovacuum,
        bool_or(exists (select from pg_options_to_table(c.reloptions)
          where option_name = 'autovacuum_enabled' and not option_value::boolean)) as refused
      from pg_stat_user_tables s join pg_class c on c.oid = s.relid join ${tablesOf(names)} t on t.oid = s.relid`,
    )
    if (!row || row['live'] === null) return { verdict: 'unknown', found: 'there are no statistics of it' }
    const [live, dead] = [Number(row['live']), Number(row['dead'])]
    const vacuums = row['autovacuum'] === 'on' && row['refused'] !== true
    const bloated = dead > deadRowsMin && dead > (live + dead) * deadShareMax
    const found = `rows: ${live} live, ${dead} dead, autovacuum ${vacuums ? 'on' : 'off'}`
    return judge(
      vacuums && !bloated ? 'ok' : 'warning',
      found,
      `Turn autovacuum on, and once: vacuum ${qualified(names)};`,
    )
  })
}

function snapshotCheck(look: Look, longestMs: number): Promise<FitnessCheck> {
  const why =
    'While an old transaction is open, no dead row of any table can be removed; a claim it holds is busy for as long.'
  return check({ name: 'postgres-old-snapshots', lookedAt: 'pg_stat_activity, pg_prepared_xacts', why }, async () => {
    const [row] = await look(
      `select (select coalesce(max(extract(epoch from clock_timestamp() - xact_start)), 0) * 1000 from pg_stat_activity
          where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend')::float8 as open_ms,
        (select coalesce(max(extract(epoch from clock_timestamp() - prepared)), 0) * 1000 from pg_prepared_xacts
          where database = current_database())::float8 as prepared_ms,
        (select count(*) from pg_stat_activity where datname = current_database() and query = '<insufficient privilege>')::int
          as hidden`,
    )
    const oldestMs = Math.max(Number(row!['open_ms']), Number(row!['prepared_ms']))
    const hidden = Number(row!['hidden'])
    const found = `the oldest transaction is open for ${span(oldestMs)}${hidden > 0 ? `; sessions that cannot be seen: ${hidden}` : ''}`
    const mend = 'End it (pg_terminate_backend, rollback prepared), and set idle_in_transaction_session_timeout.'
    if (oldestMs > longestMs) return judge('warning', found, mend)
    return hidden > 0
      ? { verdict: 'unknown', found, mend: 'grant pg_read_all_stats to this user.' }
      : { verdict: 'ok', found }
  })
}

// A server writes a gigabyte of log within minutes of a bulk load, and has room for it. A reader that is that far behind has stopped, or
// cannot keep up. Where the server drops slots by itself, half of its own limit is late enough.
const slotBytesMax = 2 ** 30

function slotCheck(look: Look): Promise<FitnessCheck> {
  const why =
    'The server keeps its log from where the slowest slot stands. A slot that nobody reads fills the disk, and the database stops.'
  return check({ name: 'postgres-slots', lookedAt: 'pg_replication_slots', why }, async () => {
    const slots = await look(
      `select slot_name as name, active, coalesce(wal_status, 'reserved') as status,
        coalesce(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn), 0)::float8 as bytes,
        (select setting::float8 * 1048576 from pg_settings where name = 'max_slot_wal_keep_size') as limit_bytes
      from pg_replication_slots order by bytes desc`,
    )
    if (slots.length === 0) return { verdict: 'ok', found: 'there is no replication slot' }
    const ill = slots.filter(isBehind)
    const found = (ill.length > 0 ? ill : slots).map(describeSlot).join('; ')
    return judge(ill.length > 0 ? 'warning' : 'ok', found, ill.map(slotCure).join(' '))
  })
}

function isBehind(slot: FoundRow): boolean {
  const limit = Number(slot['limit_bytes'])
  const most = limit > 0 ? Math.min(slotBytesMax, limit / 2) : slotBytesMax
  return slot['status'] === 'lost' || slot['status'] === 'unreserved' || Number(slot['bytes']) > most
}

function describeSlot({ name, active, status, bytes }: FoundRow): string {
  const kept =
    status === 'lost' ? 'has lost what it had not read' : `keeps ${Math.round(Number(bytes) / 2 ** 20)} MB of log`
  return `${name} ${kept}, is ${active === true ? 'read' : 'read by nobody'} (${status})`
}

function slotCure({ name, active, status }: FoundRow): string {
  const drop = `select pg_drop_replication_slot('${name}');`
  if (status === 'lost') return `${drop} then create it anew (decoding.create() for a relay of an outbox).`
  if (active === true)
    return `${name}: see why its reader is slow, and bound what it may keep with max_slot_wal_keep_size.`
  return `Start what reads ${name}, or if that is gone: ${drop}`
}

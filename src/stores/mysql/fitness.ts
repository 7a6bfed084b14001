// Is this server fit to hold entries? The facts are read with two queries and judged by one table, for two readers: the store's
// start, which refuses a server that would break the promise, and `onceonly doctor`, which prints every check.

import { span } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { check, checkedOnce, judge, judgeUnswept, unsweptMax } from '../../core/fitness.ts'
import type { Fitness, FitnessCheck, FitnessVerdict } from '../../core/fitness.ts'
import type { MysqlSession } from '../../clients/mysql.ts'
import { schemaMissing } from '../sql-answers.ts'
import { storeError } from './errors.ts'
import { clockSql } from './pieces.sql.ts'
import { findSchema, procedureNames } from './schema.ts'
import type { FoundSchema } from './schema.ts'

type Settings = Readonly<Record<string, string | undefined>>

interface SettingRule {
  readonly name: string
  readonly why: string
  judge(value: string, settings: Settings): FitnessVerdict
  readonly mend: string
  /** What the store's start does when the verdict is not `ok`. `durability` refuses unless the option says 'relaxed'. */
  readonly atStart: 'refuse' | 'durability' | 'warn' | 'go-on'
}

const logsBinary = (settings: Settings): boolean => settings['log_bin'] === 'ON'

const settingRules: readonly SettingRule[] = [
  {
    name: 'innodb_flush_log_at_trx_commit',
    why: 'With any value but 1 (or MariaDB 3, which syncs more often) a crash can lose an acknowledged commit, and its retries run again.',
    judge: (value) => (['1', '3'].includes(value) ? 'ok' : 'violated'),
    mend: 'set global innodb_flush_log_at_trx_commit = 1, and the same in my.cnf.',
    atStart: 'durability',
  },
  {
    name: 'innodb_doublewrite',
    why: 'Without it the server cannot repair a page that is half written in a power cut.',
    judge: (value) => (['OFF', 'DETECT_ONLY', '0'].includes(value) ? 'violated' : 'ok'),
    mend: 'Set innodb_doublewrite = ON in my.cnf and restart.',
    atStart: 'durability',
  },
  {
    name: 'innodb_rollback_on_timeout',
    why: "With ON the claim of a busy key rolls back the caller's whole transaction, and the caller is not told.",
    judge: (value) => (value === 'ON' ? 'violated' : 'ok'),
    mend: 'Set innodb_rollback_on_timeout = OFF in my.cnf and restart.',
    atStart: 'refuse',
  },
  {
    name: 'sync_binlog',
    why: 'A power cut can lose acknowledged commits with a binary log that is not synced, or leave replicas without them.',
    judge: (value, settings) => (logsBinary(settings) && value !== '1' ? 'warning' : 'ok'),
    mend: 'set global sync_binlog = 1, and the same in my.cnf.',
    atStart: 'warn',
  },
  {
    name: 'binlog_format',
    why: 'With STATEMENT the server refuses what this store writes.',
    judge: (value, settings) => (logsBinary(settings) && value === 'STATEMENT' ? 'violated' : 'ok'),
    mend: 'set global binlog_format = ROW.',
    atStart: 'refuse',
  },
  {
    name: 'read_only',
    why: 'A read-only server is a replica, whose data is behind, or one that takes no writes.',
    judge: (value) => (value === 'OFF' ? 'ok' : 'warning'),
    mend: 'Give the URL of the primary.',
    atStart: 'go-on',
  },
]

async function readSettings(session: MysqlSession): Promise<Settings> {
  const names = [...settingRules.map(({ name }) => name), 'log_bin', 'max_allowed_packet']
  const rows = await session.run(
    `show global variables where variable_name in (${names.map((name) => `'${name}'`).join(', ')})`,
  )
  return Object.fromEntries(rows.map(([name, value]) => [name!, value ?? undefined]))
}

interface SchemaFault {
  readonly code: 'SCHEMA_MISSING' | 'STORE_UNSAFE'
  readonly found: string
  readonly mend: string
}

function schemaFault(table: string, { isThere, other, procedures }: FoundSchema): SchemaFault | undefined {
  if (!isThere) {
    return { code: 'SCHEMA_MISSING', found: `There is no table ${table}.`, mend: 'onceonly migrate' }
  }
  if (procedures < procedureNames.length) {
    const found = `The table ${table} has ${procedures} of ${procedureNames.length} procedures of this version that this user may see (EXECUTE).`
    return { code: 'SCHEMA_MISSING', found, mend: 'onceonly migrate' }
  }
  if (!other) return undefined
  const found = `The table ${other.table} is of the engine ${other.engine}, which has no transactions.`
  return { code: 'STORE_UNSAFE', found, mend: `alter table ${other.table} engine = InnoDB` }
}

/** What the store needs to know of a server that is fit. */
export interface ServerLimits {
  /** max_allowed_packet: the server does not take a longer statement. */
  readonly packetBytesMax: number
}

export type MysqlReadiness = (session: MysqlSession) => Promise<ServerLimits>

/** Refuses a server on which the promise would not hold. Asks once per store, and again only while the answer is no. */
export function readiness(table: string, durability: 'full' | 'relaxed'): MysqlReadiness {
  return checkedOnce(async (session: MysqlSession) => {
    const [schema, settings] = await facts(table, session)
    const fault = schemaFault(table, schema)
    if (fault?.code === 'SCHEMA_MISSING') throw schemaMissing(fault.found)
    if (fault) throw new OnceError('STORE_UNSAFE', { message: `${fault.found} Run "${fault.mend}".` })
    for (const rule of settingRules) applyAtStart(rule, settings, durability)
    return { packetBytesMax: Number(settings['max_allowed_packet']) }
  })
}

async function facts(table: string, session: MysqlSession): Promise<[FoundSchema, Settings]> {
  try {
    return [await findSchema(table, session), await readSettings(session)]
  } catch (error) {
    throw storeError(error, 'read its settings', 'no')
  }
}

function applyAtStart(rule: SettingRule, settings: Settings, durability: 'full' | 'relaxed'): void {
  const value = settings[rule.name]
  if (value === undefined || rule.judge(value, settings) === 'ok' || rule.atStart === 'go-on') return
  const message = `${rule.name} is ${value}. ${rule.why} ${rule.mend}`
  if (rule.atStart === 'refuse') throw new OnceError('STORE_UNSAFE', { message })
  if (rule.atStart === 'durability' && durability === 'full') {
    throw new OnceError('STORE_UNSAFE', { message: `${message} Or set durability: 'relaxed' to accept the loss.` })
  }
  process.emitWarning(message, { type: 'OnceonlyWarning', code: 'STORE_UNSAFE' })
}

/** `longestMs`: how long an attempt may take, and so a transaction that serves one. */
export function fitness(session: MysqlSession, table: string, longestMs: number): Fitness {
  return {
    async timeMs() {
      const [row] = await session.run(`select ${clockSql}`)
      return Number(row![0]) / 1_000
    },
    async checks() {
      // Asked once for all rules. When it fails, each rule says so.
      const settings = readSettings(session)
      return [
        ...(await Promise.all(settingRules.map((rule) => settingCheck(rule, settings)))),
        await schemaCheck(session, table),
        await sweepCheck(session, table),
        await transactionCheck(session, longestMs),
      ]
    },
  }
}

function settingCheck(rule: SettingRule, settings: Promise<Settings>): Promise<FitnessCheck> {
  const question = { name: `mysql-${rule.name.replaceAll('_', '-')}`, lookedAt: rule.name, why: rule.why }
  return check(question, async () => {
    const found = await settings
    const value = found[rule.name]
    if (value === undefined) return { verdict: 'unknown', found: 'the server does not have this setting' }
    return judge(rule.judge(value, found), value, rule.mend)
  })
}

function schemaCheck(session: MysqlSession, table: string): Promise<FitnessCheck> {
  const why = 'The decisions are procedures in the database, and only InnoDB has transactions.'
  return check({ name: 'mysql-schema', lookedAt: `the table ${table} and its procedures`, why }, async () => {
    const fault = schemaFault(table, await findSchema(table, session))
    if (fault) return { verdict: 'violated', found: fault.found, mend: fault.mend }
    return { verdict: 'ok', found: `InnoDB, ${procedureNames.length} procedures` }
  })
}

function sweepCheck(session: MysqlSession, table: string): Promise<FitnessCheck> {
  const why =
    'Expired entries stay on disk until a sweep deletes them: the table grows, and keeps everything that it holds.'
  return check({ name: 'unswept', lookedAt: `entries of ${table} due for a sweep`, why }, async () => {
    const now = `(${clockSql} / 1000)`
    const [row] = await session.run(
      `select count(*) as due, ${now} - min(sweep_at_ms) as age_ms
        from (select sweep_at_ms from \`${table}\` where sweep_at_ms <= ${now} order by sweep_at_ms limit ${unsweptMax}) e`,
    )
    return judgeUnswept(Number(row![0]), Number(row![1] ?? 0))
  })
}

function transactionCheck(session: MysqlSession, longestMs: number): Promise<FitnessCheck> {
  const why = 'While an old transaction is open, old versions of rows pile up, and a claim that it holds stays busy.'
  return check({ name: 'mysql-old-transactions', lookedAt: 'information_schema.innodb_trx', why }, async () => {
    const [row] = await session.run(
      'select coalesce(max(timestampdiff(microsecond, trx_started, now(6))), 0) / 1000 from information_schema.innodb_trx',
    )
    const ms = Number(row![0])
    const found = `the oldest transaction has been open for ${span(ms)}`
    return judge(ms > longestMs ? 'warning' : 'ok', found, 'End it (kill), and bound transactions in the service.')
  })
}

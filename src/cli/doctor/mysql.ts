// What a MySQL or MariaDB server must be like: an acknowledged commit is on its disk, with its binary log.

import type { MysqlPool } from '../../clients/mysql.ts'
import { clockSql } from '../../stores/mysql/names.ts'
import { procedureNames } from '../../stores/mysql/schema.ts'
import { foundStatement } from '../../stores/mysql/statements.ts'
import { check, judge, judgeUnswept } from '../../core/fitness.ts'
import type { FitnessCheck, FitnessVerdict } from '../../core/fitness.ts'
import { span } from '../words.ts'

type Row = Readonly<Record<string, unknown>>

async function rows(pool: MysqlPool, sql: string): Promise<readonly Row[]> {
  const [found] = (await pool.query(sql as never)) as unknown as [Row[]]
  return found
}

export async function mysqlTimeMs(pool: MysqlPool): Promise<number> {
  const [row] = await rows(pool, `select ${clockSql} as us`)
  return Number(row!['us']) / 1_000
}

/** `longestMs`: how long an attempt may take, and so a transaction that serves one. */
export async function mysqlChecks(pool: MysqlPool, table: string, longestMs: number): Promise<FitnessCheck[]> {
  const setting = (
    name: string,
    why: string,
    judgement: (value: string) => FitnessVerdict,
    mend: string,
  ): Promise<FitnessCheck> =>
    check({ name: `mysql-${name.replaceAll('_', '-')}`, lookedAt: name, why }, async () => {
      const [row] = await rows(pool, `show global variables where variable_name = '${name}'`)
      if (!row) return { verdict: 'unknown', found: 'the server does not know it' }
      const value = String(row['Value'])
      return judge(judgement(value), value, mend)
    })
  const binary = await rows(pool, `show global variables where variable_name = 'log_bin'`).catch(() => [])
  const logs = binary[0]?.['Value'] === 'ON'
  return [
    await setting(
      'innodb_flush_log_at_trx_commit',
      'With anything but 1 (or MariaDB 3) an acknowledged commit can be lost in a crash, and its retries run again.',
      (value) => (['1', '3'].includes(value) ? 'ok' : 'violated'),
      'set global innodb_flush_log_at_trx_commit = 1, and the same in my.cnf.',
    ),
    await setting(
      'innodb_doublewrite',
      'A page that is half written in a power cut cannot be repaired.',
      (value) => (['OFF', 'DETECT_ONLY', '0'].includes(value) ? 'violated' : 'ok'),
      'Set innodb_doublewrite = ON in my.cnf and restart.',
    ),
    await setting(
      'innodb_rollback_on_timeout',
      "A claim of a key that is busy would take the caller's whole transaction back, without anybody being told.",
      (value) => (value === 'ON' ? 'violated' : 'ok'),
      'Set innodb_rollback_on_timeout = OFF in my.cnf and restart.',
    ),
    await setting(
      'sync_binlog',
      'With a binary log that is not synced, a power cut can lose acknowledged commits, or leave replicas without them.',
      (value) => (logs && value !== '1' ? 'warning' : 'ok'),
      'set global sync_binlog = 1, and the same in my.cnf.',
    ),
    await setting(
      'binlog_format',
      'With STATEMENT the server refuses what this store writes.',
      (value) => (logs && value === 'STATEMENT' ? 'violated' : 'ok'),
      'set global binlog_format = ROW.',
    ),
    await setting(
      'read_only',
      'A server that is read only is a replica, whose data is behind, or one that takes no writes.',
      (value) => (value === 'OFF' ? 'ok' : 'warning'),
      'Give the URL of the primary.',
    ),
    await schemaCheck(pool, table),
    await sweepCheck(pool, table),
    await transactionCheck(pool, longestMs),
  ]
}

function schemaCheck(pool: MysqlPool, table: string): Promise<FitnessCheck> {
  const why = 'The decisions are procedures in the database, and only InnoDB has transactions.'
  return check({ name: 'mysql-schema', lookedAt: `the table ${table} and its procedures`, why }, async () => {
    const [row] = await rows(pool, foundStatement(table))
    const [engine, count] = Object.values(row ?? {})
    if (engine === null || engine === undefined) return judge('violated', 'it is not there', 'onceonly migrate')
    const found = `${String(engine)}, ${String(count)} of ${procedureNames.length} procedures`
    const fit = engine === 'InnoDB' && Number(count) === procedureNames.length
    const mend =
      engine === 'InnoDB' ? 'onceonly migrate' : `alter table ${table} engine = InnoDB; then onceonly migrate`
    return judge(fit ? 'ok' : 'violated', found, mend)
  })
}

function sweepCheck(pool: MysqlPool, table: string): Promise<FitnessCheck> {
  const why =
    'What has expired stays on disk until it is swept: the table grows for ever, and with it everything it holds.'
  return check({ name: 'unswept', lookedAt: `entries of ${table} due for a sweep`, why }, async () => {
    const now = `(${clockSql} / 1000)`
    const [row] = await rows(
      pool,
      `select count(*) as due, ${now} - min(sweep_at_ms) as age_ms
        from (select sweep_at_ms from ${table} where sweep_at_ms <= ${now} order by sweep_at_ms limit 100000) e`,
    )
    return judgeUnswept(Number(row!['due']), Number(row!['age_ms'] ?? 0))
  })
}

function transactionCheck(pool: MysqlPool, longestMs: number): Promise<FitnessCheck> {
  const why = 'While an old transaction is open, old versions of rows pile up; a claim it holds is busy for as long.'
  return check({ name: 'mysql-old-transactions', lookedAt: 'information_schema.innodb_trx', why }, async () => {
    const [row] = await rows(
      pool,
      'select coalesce(max(timestampdiff(microsecond, trx_started, now(6))), 0) / 1000 as ms from information_schema.innodb_trx',
    )
    const ms = Number(row!['ms'])
    const found = `the oldest transaction is open for ${span(ms)}`
    return judge(ms > longestMs ? 'warning' : 'ok', found, 'End it (kill), and bound transactions in the service.')
  })
}

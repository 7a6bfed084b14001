// The checks of a server that is fit, on MariaDB and on MySQL: every setting that the table names is known to both. And of settings for
// which one of them has its own values, or that only a start of the server changes. All others are in judgements.test.ts.

import type { Pool } from 'mysql2/promise'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createMysqlDatabase, createPool } from '../../../test/subjects/mysql.ts'
import { type RunningMariadb, startMariadb } from '../../../test/servers/mariadb.ts'
import { startMysql } from '../../../test/servers/mysql.ts'
import { needs } from '../../../test/servers/needs.ts'
import type { FitnessVerdict } from '../../core/fitness.ts'
import { mysqlFitness, mysqlStore } from '../mysql.ts'

type Set = readonly [setting: string, value: string, verdict: FitnessVerdict, mend?: string]

const doublewriteOn = 'Set innodb_doublewrite = ON in my.cnf and restart.'

const servers: readonly { server: 'mariadb' | 'mysql'; start: typeof startMariadb; sets: readonly Set[] }[] = [
  {
    server: 'mariadb',
    start: startMariadb,
    // It has no binary log unless it is told to.
    sets: [
      ['sync_binlog', '0', 'ok'],
      ['binlog_format', 'STATEMENT', 'ok'],
    ],
  },
  {
    server: 'mysql',
    start: startMysql,
    sets: [
      ['innodb_doublewrite', 'DETECT_ONLY', 'violated', doublewriteOn],
      ['sync_binlog', '0', 'warning', 'set global sync_binlog = 1, and the same in my.cnf.'],
      ['binlog_format', 'STATEMENT', 'violated', 'set global binlog_format = ROW.'],
    ],
  },
]

for (const { server, start, sets } of servers) {
  needs(server, { ours: true }).describe(`fitness of ${server}`, () => {
    let running: RunningMariadb
    let pool: Pool
    beforeAll(async () => {
      running = await start()
      pool = createPool(await createMysqlDatabase(running))
    })
    afterAll(async () => {
      await pool.end()
      await running.stop()
    })

    test('a server with its own defaults is fit, and nothing about it is unknown', async () => {
      const { checks, timeMs } = mysqlFitness({ pool, longestMs: 60_000 })
      const found = await checks(0)
      expect(found.filter(({ verdict }) => verdict !== 'ok')).toEqual([])
      expect(found.map(({ name }) => name)).toContain('mysql-innodb-doublewrite')
      expect(await timeMs!()).toBeGreaterThan(Date.UTC(2020))
    })

    test.each(sets)('%s = %s is judged %s', async (setting, value, verdict, mend) => {
      await pool.query(`set global ${setting} = ${value}`)
      try {
        const found = await mysqlFitness({ pool, longestMs: 60_000 }).checks(0)
        const asked = found.find(({ lookedAt }) => lookedAt === setting)
        expect([asked!.verdict, asked!.found, asked!.mend]).toEqual([verdict, value, mend])
      } finally {
        await pool.query(`set global ${setting} = default`)
      }
    })

    test('innodb_doublewrite = 0 and innodb_rollback_on_timeout = 1 are violated, and the store refuses the same server', async () => {
      const settings = { 'innodb-doublewrite': 0, 'innodb-rollback-on-timeout': 1 }
      await using unfit = await start({ settings })
      const unsafe = createPool(await createMysqlDatabase(unfit))
      const found = await mysqlFitness({ pool: unsafe, longestMs: 60_000 }).checks(0)
      const [doublewrite, rollback, ...others] = found.filter(({ verdict }) => verdict !== 'ok')
      expect(others).toEqual([])
      expect(doublewrite).toEqual({
        name: 'mysql-innodb-doublewrite',
        lookedAt: 'innodb_doublewrite',
        why: 'Without it the server cannot repair a page that is half written in a power cut.',
        verdict: 'violated',
        found: 'OFF',
        mend: doublewriteOn,
      })
      expect(rollback).toEqual({
        name: 'mysql-innodb-rollback-on-timeout',
        lookedAt: 'innodb_rollback_on_timeout',
        why: "With ON the claim of a busy key rolls back the caller's whole transaction, and the caller is not told.",
        verdict: 'violated',
        found: 'ON',
        mend: 'Set innodb_rollback_on_timeout = OFF in my.cnf and restart.',
      })
      const refusal = (durability: 'full' | 'relaxed'): Promise<unknown> =>
        mysqlStore({ pool: unsafe, durability }).sweep({ limit: 1 })
      const lossy = `innodb_doublewrite is OFF. ${doublewrite!.why} ${doublewrite!.mend}`
      await expect(refusal('full')).rejects.toMatchObject({
        code: 'STORE_UNSAFE',
        message: `${lossy} Or set durability: 'relaxed' to accept the loss.`,
      })
      const warning = new Promise<Error>((resolve) => process.once('warning', resolve))
      await expect(refusal('relaxed')).rejects.toMatchObject({
        code: 'STORE_UNSAFE',
        message: `innodb_rollback_on_timeout is ON. ${rollback!.why} ${rollback!.mend}`,
      })
      expect(await warning).toMatchObject({ name: 'OnceonlyWarning', code: 'STORE_UNSAFE', message: lossy })
      await unsafe.end()
    })
  })
}

// Is this SQLite file fit to hold entries, and does a connection to it survive a power cut? Judged once, for two readers: the
// store's start, which refuses a connection that could lose an acknowledged commit, and `onceonly doctor`, which prints every check.

import { statfsSync, statSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import type { DatabaseSync } from 'node:sqlite'
import { prepare } from '../../clients/sqlite.ts'
import type { SqliteDatabase } from '../../clients/sqlite.ts'
import { span } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { check, judge, judgeUnswept } from '../../core/fitness.ts'
import type { Fitness, FitnessCheck, FitnessVerdict } from '../../core/fitness.ts'

/** 'full': every acknowledged commit is on the disk. 'relaxed': the last ones may be lost in a power cut, not in a crash. */
export type Durability = 'full' | 'relaxed'

const synchronousLevels = ['OFF', 'NORMAL', 'FULL', 'EXTRA'] as const

// EXTRA is FULL, and with a rollback journal it also syncs the folder after the journal was deleted.
const synchronousOf: Readonly<Record<Durability, (typeof synchronousLevels)[number]>> = {
  full: 'EXTRA',
  relaxed: 'NORMAL',
}

function judgeJournal(mode: string): FitnessVerdict {
  if (mode === 'wal') return 'ok'
  return mode === 'off' || mode === 'memory' ? 'violated' : 'warning'
}

/**
 * With less than FULL a commit that was acknowledged can be gone after a power cut. With a deleted journal even FULL can lose one:
 * the deletion itself is not synced.
 */
function judgeSynchronous(level: number, journal: string): FitnessVerdict {
  return level >= synchronousLevels.indexOf(journal === 'delete' ? 'EXTRA' : 'FULL') ? 'ok' : 'violated'
}

/** Settings of the store's own connection. The journal mode belongs to the file, so it is changed only where the file is ours. */
export function configure(database: SqliteDatabase, journal: 'wal' | 'as it is', durability: Durability): void {
  // A time-out inside SQLite blocks the event loop. The store waits for locks outside, see sqlite/turns.ts.
  database.exec('PRAGMA busy_timeout = 0')
  if (journal === 'wal') database.exec('PRAGMA journal_mode = WAL')
  database.exec(`PRAGMA synchronous = ${synchronousOf[durability]}`)
  // On macOS fsync leaves the data in the drive's cache. Elsewhere these two do nothing.
  if (durability === 'full') database.exec('PRAGMA fullfsync = 1; PRAGMA checkpoint_fullfsync = 1')
  checkDurability(database, durability)
}

/** Looks at what is really in force: better-sqlite3 opens a WAL database at NORMAL. */
export function checkDurability(database: SqliteDatabase, durability: Durability): void {
  if (durability === 'relaxed') return
  const journal = journalOf(database)
  const { synchronous } = prepare(database, 'PRAGMA synchronous').get() as { synchronous: number }
  if (judgeJournal(journal) !== 'violated' && judgeSynchronous(synchronous, journal) === 'ok') return
  throw new OnceError('STORE_UNSAFE', {
    message:
      `The SQLite connection has journal_mode ${journal} and synchronous ${synchronousLevels[synchronous] ?? synchronous}, so a commit ` +
      `that was acknowledged can be lost in a power cut and its effect run twice. Run "PRAGMA journal_mode = WAL" and ` +
      `"PRAGMA synchronous = FULL" on it first, or accept the risk with durability: 'relaxed'.`,
  })
}

function journalOf(database: SqliteDatabase): string {
  return (prepare(database, 'PRAGMA journal_mode').get() as { journal_mode: string }).journal_mode
}

export interface SqliteFitnessOptions {
  readonly path: string
  readonly table?: string
  readonly durability?: Durability
}

/**
 * The checks that `onceonly doctor` prints for a SQLite file. They read through a separate connection, because opening a store
 * would change what is looked at.
 *
 * @example
 * ```ts
 * import { sqliteFitness } from 'onceonly/sqlite'
 *
 * const checks = await sqliteFitness({ path: 'onceonly.db' }).checks(Date.now())
 * const violated = checks.filter((check) => check.verdict === 'violated')
 * ```
 */
export function sqliteFitness({ path, table = 'onceonly', durability = 'full' }: SqliteFitnessOptions): Fitness {
  return {
    async checks(nowMs) {
      const { DatabaseSync } = process.getBuiltinModule('node:sqlite')
      const database = new DatabaseSync(path, { readOnly: true })
      try {
        return [
          await journalCheck(database),
          await synchronousCheck(database, durability),
          await placeCheck(path),
          await modeCheck(path),
          await markCheck(database, table, nowMs),
          await sweepCheck(database, table, nowMs),
        ]
      } finally {
        database.close()
      }
    },
  }
}

function journalCheck(database: DatabaseSync): Promise<FitnessCheck> {
  const why =
    'In WAL mode readers wait for nobody and a commit is one sync. A journal in memory or none loses the file in a crash.'
  return check({ name: 'sqlite-journal', lookedAt: 'PRAGMA journal_mode', why }, () => {
    const mode = journalOf(database)
    return judge(
      judgeJournal(mode),
      mode,
      'A service that opens the file with { path } sets it; with a database of yours: PRAGMA journal_mode = WAL.',
    )
  })
}

function synchronousCheck(database: DatabaseSync, durability: Durability): Promise<FitnessCheck> {
  const why = 'With less than FULL a power cut takes back commits that were acknowledged, and their retries run again.'
  const lookedAt = 'synchronous, which each connection has for itself: what this URL asks for'
  return check({ name: 'sqlite-synchronous', lookedAt, why }, () => {
    const level = synchronousOf[durability]
    const told =
      durability === 'full' ? '; a connection below FULL is refused by the store' : ` (durability=${durability})`
    return judge(
      judgeSynchronous(synchronousLevels.indexOf(level), journalOf(database)),
      `${level}${told}`,
      'Leave durability out of the URL and of the options of every service.',
    )
  })
}

/** By the magic number of the file system (statfs, Linux). Others are not known to be unfit. */
const fileSystems: Readonly<Record<number, readonly [name: string, verdict: FitnessVerdict]>> = {
  0x6969: ['NFS', 'violated'],
  0x517b: ['SMB', 'violated'],
  0xff534d42: ['CIFS', 'violated'],
  0xfe534d42: ['SMB2', 'violated'],
  0x01021997: ['9p', 'violated'],
  0x00c36400: ['Ceph', 'violated'],
  0x65735546: ['FUSE', 'unknown'],
  0x01021994: ['tmpfs, in memory', 'violated'],
  0x858458f6: ['ramfs, in memory', 'violated'],
  0x794c7630: ['overlayfs, the layer of a container', 'warning'],
}

function placeCheck(path: string): Promise<FitnessCheck> {
  const why =
    'Locks and shared memory do not work over a network: two machines can write at once. What is in memory, or in the layer of ' +
    'a container, goes with it.'
  const folder = dirname(resolve(path))
  return check({ name: 'sqlite-place', lookedAt: `the file system of ${folder}`, why }, () => {
    // A signed number on some systems.
    const type = statfsSync(folder).type >>> 0
    const [name, verdict] = fileSystems[type] ?? [`type 0x${type.toString(16)}, not known to be unfit`, 'ok' as const]
    return judge(
      verdict,
      name,
      'Put the file on a disk of this machine (in a container: a volume). For several machines use a server.',
    )
  })
}

function modeCheck(path: string): Promise<FitnessCheck> {
  const why = 'The file holds keys and the answers to customers.'
  return check({ name: 'sqlite-mode', lookedAt: 'who may read the file', why }, () => {
    const mode = statSync(path).mode & 0o777
    const found = `mode ${mode.toString(8).padStart(4, '0')}`
    const mend =
      'chmod 600 the file and those beside it (-wal, -shm), if nobody else on this machine is meant to read it.'
    return judge((mode & 0o077) === 0 ? 'ok' : 'warning', found, mend)
  })
}

/** Beyond what a clock that is being adjusted can explain. */
const markAheadMsMax = 5_000

function markCheck(database: DatabaseSync, table: string, nowMs: number): Promise<FitnessCheck> {
  const why =
    'The time in the file never goes back: while it is ahead, leases and keep times end at its time, not at yours.'
  return check({ name: 'clock', lookedAt: `the time in the file (${table}_clock) and this machine's`, why }, () => {
    const { at } = prepare(database, `SELECT at FROM ${table}_clock`).get() as { at: number }
    const aheadMs = at - nowMs
    const found = aheadMs > 0 ? `the file is ${span(aheadMs)} ahead` : 'the file is not ahead of this machine'
    return judge(
      aheadMs > markAheadMsMax ? 'warning' : 'ok',
      found,
      'Set the clock of this machine (NTP). It was once ahead, or now is behind.',
    )
  })
}

function sweepCheck(database: DatabaseSync, table: string, nowMs: number): Promise<FitnessCheck> {
  const why =
    'What has expired stays in the file until it is swept: it grows for ever, and with it everything it holds.'
  return check({ name: 'unswept', lookedAt: `entries of ${table} due for a sweep`, why }, () => {
    const sql = `SELECT count(*) AS due, min(sweep_at) AS oldest FROM ${table} WHERE sweep_at <= ?`
    const { due, oldest } = prepare(database, sql).get(nowMs) as { due: number; oldest: number | null }
    return judgeUnswept(due, nowMs - (oldest ?? nowMs))
  })
}

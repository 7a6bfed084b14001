// What a SQLite file must be like: on a disk of this machine, with a journal that survives a power cut. Looked at through a
// connection of our own that only reads, as opening a store would set what is to be looked at.

import { statfsSync, statSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import type { DatabaseSync } from 'node:sqlite'
import { check, judge, judgeUnswept } from '../../core/fitness.ts'
import type { FitnessCheck, FitnessVerdict } from '../../core/fitness.ts'
import { span } from '../words.ts'

export interface SqliteFile {
  readonly path: string
  readonly table: string
  readonly durability: 'full' | 'relaxed'
}

export async function sqliteChecks(file: SqliteFile, nowMs: number): Promise<FitnessCheck[]> {
  const { DatabaseSync } = await import('node:sqlite')
  const database = new DatabaseSync(file.path, { readOnly: true })
  try {
    return [
      await journalCheck(database),
      await synchronousCheck(file),
      await placeCheck(file),
      await modeCheck(file),
      await markCheck(database, file, nowMs),
      await sweepCheck(database, file, nowMs),
    ]
  } finally {
    database.close()
  }
}

function journalCheck(database: DatabaseSync): Promise<FitnessCheck> {
  const why =
    'In WAL mode readers wait for nobody and a commit is one sync. A journal in memory or none loses the file in a crash.'
  return check({ name: 'sqlite-journal', lookedAt: 'PRAGMA journal_mode', why }, () => {
    const mode = String(database.prepare('PRAGMA journal_mode').get()!['journal_mode'])
    const bad: FitnessVerdict = mode === 'wal' ? 'ok' : ['off', 'memory'].includes(mode) ? 'violated' : 'warning'
    return judge(
      bad,
      mode,
      'A service that opens the file with { path } sets it; with a database of yours: PRAGMA journal_mode = WAL.',
    )
  })
}

function synchronousCheck({ durability }: SqliteFile): Promise<FitnessCheck> {
  const why = 'With less than FULL a power cut takes back commits that were acknowledged, and their retries run again.'
  const lookedAt = 'synchronous, which each connection has for itself: what this URL asks for'
  return check({ name: 'sqlite-synchronous', lookedAt, why }, () => {
    const full = durability === 'full'
    const found = full ? 'EXTRA; a connection below FULL is refused by the store' : 'NORMAL (durability=relaxed)'
    return judge(
      full ? 'ok' : 'violated',
      found,
      'Leave durability out of the URL and of the options of every service.',
    )
  })
}

/** By the magic number of the file system (statfs, Linux); others are not known to be unfit. */
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

function placeCheck({ path }: SqliteFile): Promise<FitnessCheck> {
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

/** Beyond what a clock that is being adjusted can explain. */
const markAheadMsMax = 5_000

function markCheck(database: DatabaseSync, { table }: SqliteFile, nowMs: number): Promise<FitnessCheck> {
  const why =
    'The time in the file never goes back: while it is ahead, leases and keep times end at its time, not at yours.'
  return check({ name: 'clock', lookedAt: `the time in the file (${table}_clock) and this machine's`, why }, () => {
    const aheadMs = Number(database.prepare(`SELECT at FROM ${table}_clock`).get()!['at']) - nowMs
    const found = aheadMs > 0 ? `the file is ${span(aheadMs)} ahead` : 'the file is not ahead of this machine'
    return judge(
      aheadMs > markAheadMsMax ? 'warning' : 'ok',
      found,
      'Set the clock of this machine (NTP). It was once ahead, or now is behind.',
    )
  })
}

function sweepCheck(database: DatabaseSync, { table }: SqliteFile, nowMs: number): Promise<FitnessCheck> {
  const why =
    'What has expired stays in the file until it is swept: it grows for ever, and with it everything it holds.'
  return check({ name: 'unswept', lookedAt: `entries of ${table} due for a sweep`, why }, () => {
    const sql = `SELECT count(*) AS due, min(sweep_at) AS oldest FROM ${table} WHERE sweep_at <= ?`
    const { due, oldest } = database.prepare(sql).get(nowMs) as { due: number; oldest: number | null }
    return judgeUnswept(due, nowMs - (oldest ?? nowMs))
  })
}

function modeCheck({ path }: SqliteFile): Promise<FitnessCheck> {
  const why = 'The file holds keys and the answers to customers.'
  return check({ name: 'sqlite-mode', lookedAt: 'who may read the file', why }, () => {
    const mode = statSync(path).mode & 0o777
    const found = `mode ${mode.toString(8).padStart(4, '0')}`
    const mend =
      'chmod 600 the file and those beside it (-wal, -shm), if nobody else on this machine is meant to read it.'
    return judge((mode & 0o077) === 0 ? 'ok' : 'warning', found, mend)
  })
}

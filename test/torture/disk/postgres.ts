// PostgreSQL on a full disk, in both ways that it can be: a table that cannot grow fails the statement, and a log that cannot
// fails the server, in the middle of whatever it was committing. Each round ends the log a little further on.
import { readdirSync, unlinkSync } from 'node:fs'
import { join } from 'node:path'
import { pollUntil } from '../../servers/poll.ts'
import type { Running } from '../../servers/server.ts'
import { type DiskFull, diskJobs, giveBackPage, refusalIn, writeToTheLastByte } from '../disk.ts'
import { judge } from '../judge.ts'
import { startTorturedPostgres } from '../postgres-server.ts'
import { prepare, type Supervisor, supervise } from '../supervisor.ts'

/** An empty cluster has some 40 MiB. */
const diskKib = 80 * 1_024
const segmentBytes = 1_024 * 1_024
/** About what one write of a flow takes in the log, so that another one is the last that fits in each round. */
const stepBytes = 2_500
const asksInRound = 6

export interface PostgresDiskFull extends DiskFull {
  /** How often the server went down because its log could not grow. */
  readonly crashes: number
}

export async function fillDiskOfPostgres(rounds: number): Promise<PostgresDiskFull> {
  // It ends at once, and not in a recovery that has no room either. Its log is not made ahead of need.
  const settings = { restart_after_crash: 'off', wal_recycle: 'off', min_wal_size: '2MB', max_wal_size: '8MB' }
  let server: Running
  try {
    server = await startTorturedPostgres({ diskKib, settings })
  } catch (error) {
    return { skipped: refusalIn(error), refused: 0, crashes: 0 }
  }
  try {
    const place = { store: 'postgres', url: server.url } as const
    await prepare(place)
    const supervisor = await supervise(place)
    let [refused, crashes] = [0, 0]
    for (let round = 0; round < rounds; round++) {
      refused += await fillOnce(server, supervisor, (round % 16) * stepBytes)
      crashes += await bringBack(server, supervisor)
    }
    await supervisor.converge()
    const judged = await judge(place, supervisor.folder, supervisor.asker.opened, 'true')
    await supervisor.close()
    return { refused, crashes, judged }
  } finally {
    await server.stop()
  }
}

/** Returns whether it had gone down, 1 or 0. A server that fails takes a moment to end. */
async function bringBack(server: Running, { asker }: Supervisor): Promise<number> {
  let crashes = 0
  await pollUntil('PostgreSQL to answer', async () => {
    if (server.pid === undefined) {
      crashes = 1
      await server.restart()
    }
    return asker.opened.sql('select 1').catch(() => undefined)
  })
  return crashes
}

/** Returns how many calls were refused. */
async function fillOnce(server: Running, supervisor: Supervisor, roomBytes: number): Promise<number> {
  const filler = join(server.dataDir!, 'filler')
  await leaveRoomInLog(server, supervisor, roomBytes)
  writeToTheLastByte(filler)
  let refused = 0
  for (let asked = 0; asked < asksInRound; asked++) {
    const answers = await Promise.all(diskJobs().map((job) => supervisor.asker.ask(job)))
    refused += answers.filter(({ is }) => is === 'refused').length
    giveBackPage(filler)
  }
  unlinkSync(filler)
  return refused
}

/** Writes on until so many bytes are left of the segments that are there. */
async function leaveRoomInLog(server: Running, { asker }: Supervisor, roomBytes: number): Promise<void> {
  const query = `select pg_walfile_name(pg_current_wal_insert_lsn()) as segment,
    pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0') % ${segmentBytes} as used`
  const [at] = await asker.opened.sql(query)
  const ahead = readdirSync(join(server.dataDir!, 'pg_wal')).filter(
    (name) => /^[0-9A-F]{24}$/.test(name) && name > String(at!['segment']),
  )
  const leftBytes = segmentBytes * (ahead.length + 1) - Number(at!['used'])
  // Each page of the log has a head, and so has the record.
  const writtenBytes = Math.floor((leftBytes - roomBytes) * (1 - 24 / 8_192)) - 64
  if (writtenBytes > 0)
    await asker.opened.sql(`select pg_logical_emit_message(false, 'torture', repeat('x', ${writtenBytes}))`)
}

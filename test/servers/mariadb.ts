// MariaDB, for whatever speaks MySQL. MySQL itself (mysql.ts) is only in Debian sid, so most tests run here, with SQL that both
// take. Invariant: each start has its own data folder, copied from one that is made once a run.
import { randomBytes } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { createConnection } from 'mysql2/promise'
import { findProgram } from './find-program.ts'
import { runCommand } from './run-command.ts'
import { builtOnce } from './run-folder.ts'
import { givenServer, type Running, type Server } from './server.ts'
import { startServer, type Surroundings } from './server/process.ts'

export interface MariadbOptions {
  // Any server setting: { 'innodb-flush-log-at-trx-commit': 2 }.
  settings?: Record<string, string | number>
  surroundings?: Surroundings
  startTimeoutMs?: number
}

export interface RunningMariadb extends Running {
  // The URL of a fresh, empty database on this server.
  createDatabase(): Promise<string>
}

const urlVariable = 'ONCEONLY_MYSQL_URL'
const missing = 'mariadbd and mariadb-install-db were not found'

export const mariadb: Server<MariadbOptions, RunningMariadb> = {
  name: 'mariadb',
  aptPackages: ['mariadb-server'],
  urlVariable,
  find() {
    const url = process.env[urlVariable]
    if (url) return { found: true, where: url, ours: false }
    const programs = findPrograms()
    if (programs) return { found: true, where: programs.server, ours: true }
    return { found: false, reason: missing, cure: `npm run servers, or set ${urlVariable}` }
  },
  start: startMariadb,
}

export async function startMariadb(options: MariadbOptions = {}): Promise<RunningMariadb> {
  const url = process.env[urlVariable]
  if (url) return useGiven(url, options)
  const programs = findPrograms()
  if (!programs) throw new Error(`${missing}; cure: npm run servers`)
  const server = await startServer({
    name: 'mariadb',
    surroundings: options.surroundings,
    prepare: async ({ folder, dataDir }) => {
      await runCommand(folder, 'cp', ['-R', '-p', '-T', await pristine(programs.install), dataDir])
    },
    command: ({ folder, dataDir, port }) => ({
      file: programs.server,
      args: commandLine(folder, dataDir, port, options),
    }),
    // It writes its pid file when it is ready, into its own folder: a connection might reach another server.
    ready: ({ dataDir }, pid) => readPid(dataDir) === pid,
    url: ({ port }) => `mysql://root@127.0.0.1:${port}/test`,
    shutDownSignal: 'SIGTERM',
    portTaken: /Can't start server: Bind on TCP\/IP port/,
    startTimeoutMs: options.startTimeoutMs,
  })
  return Object.assign(server, { createDatabase: () => createDatabase(server.url) })
}

function commandLine(folder: string, dataDir: string, port: number, options: MariadbOptions): string[] {
  const all = {
    datadir: dataDir,
    port,
    'bind-address': '127.0.0.1',
    socket: join(folder, 'socket'),
    'pid-file': join(dataDir, 'mariadb.pid'),
    'innodb-buffer-pool-size': '32M',
    'character-set-server': 'utf8mb4',
    'collation-server': 'utf8mb4_unicode_ci',
    ...options.settings,
  }
  const settings = Object.entries(all).map(([name, value]) => `--${name}=${value}`)
  return ['--no-defaults', ...asRoot(), '--skip-name-resolve', ...settings]
}

export function readPid(dataDir: string): number | undefined {
  try {
    return Number(readFileSync(join(dataDir, 'mariadb.pid'), 'utf8'))
  } catch {
    return undefined
  }
}

function pristine(install: string): Promise<string> {
  return builtOnce('pristine-mariadb', async (path, run) => {
    // `normal` gives root a login without a password on loopback; the default asks for the socket.
    const form = ['--auth-root-authentication-method=normal', '--skip-name-resolve']
    // A server that starts removes what looks like its own temporary tables, also those of another installation.
    const temporary = mkdtempSync(join(run, 'mariadb-'))
    const folders = [`--datadir=${path}`, `--tmpdir=${temporary}`]
    await runCommand(run, install, ['--no-defaults', ...folders, ...asRoot(), ...form])
    rmSync(temporary, { recursive: true })
  })
}

// Unlike PostgreSQL it runs as root, but only when told so.
function asRoot(): string[] {
  return process.getuid?.() === 0 ? ['--user=root'] : []
}

function findPrograms(): { server: string; install: string } | undefined {
  const server = findProgram('mariadbd')
  const install = findProgram('mariadb-install-db')
  return server && install ? { server, install } : undefined
}

async function useGiven(url: string, options: MariadbOptions): Promise<RunningMariadb> {
  if (options.settings || options.surroundings)
    throw new Error(`the server given by ${urlVariable} cannot be started with other settings`)
  const created: string[] = []
  const create = async (): Promise<string> => {
    const fresh = await createDatabase(url)
    created.push(fresh)
    return fresh
  }
  const stop = async (): Promise<void> => {
    for (const database of created.splice(0)) {
      await query(url, `DROP DATABASE IF EXISTS ${new URL(database).pathname.slice(1)}`)
    }
  }
  const server = givenServer({ name: 'mariadb', url: await create(), urlVariable, stop })
  return Object.assign(server, { createDatabase: create })
}

export async function createDatabase(url: string): Promise<string> {
  const name = `onceonly_${randomBytes(6).toString('hex')}`
  await query(url, `CREATE DATABASE ${name}`)
  const fresh = new URL(url)
  fresh.pathname = `/${name}`
  return fresh.href
}

async function query(url: string, sql: string): Promise<void> {
  const connection = await createConnection(url)
  try {
    await connection.query(sql)
  } finally {
    await connection.end()
  }
}

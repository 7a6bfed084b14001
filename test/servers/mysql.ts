// MySQL itself, unpacked from Debian sid, where it may be absent some day: its tests are then skipped even if all servers are
// required. MariaDB stands in for it in all other tests. Invariant: each start has its own data folder, copied from one that is made
// once a run.
import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { listensOn } from './listens-on.ts'
import { createDatabase, type MariadbOptions, readPid, type RunningMariadb } from './mariadb.ts'
import { runCommand } from './run-command.ts'
import { builtOnce } from './run-folder.ts'
import type { Server } from './server.ts'
import { startServer } from './server/process.ts'
import { suiteCommand, suiteFolder, type SuitePackages } from './suite-folder.ts'

const suitePackages: SuitePackages = { suite: 'sid', packages: ['mysql-server-core'] }
const folder = suiteFolder(suitePackages)
const missing = 'MySQL was not found in .servers'

export const mysql: Server<MariadbOptions, RunningMariadb> = {
  name: 'mysql',
  aptPackages: [],
  suitePackages,
  optional: 'sid changes daily, and may not have it',
  find() {
    if (existsSync(folder)) return { found: true, where: join(folder, program), ours: true }
    return { found: false, reason: missing, cure: 'npm run servers' }
  },
  start: startMysql,
}

const program = 'usr/sbin/mysqld'

/** "9.7.4". */
export function mysqlVersion(): string | undefined {
  const { file, args } = command(folder, ['--version'])
  return /Ver (\d[\d.]*)/.exec(spawnSync(file, args, { encoding: 'utf8' }).stdout ?? '')?.[1]
}

export async function startMysql(options: MariadbOptions = {}): Promise<RunningMariadb> {
  if (!existsSync(folder)) throw new Error(`${missing}; cure: npm run servers`)
  const server = await startServer({
    name: 'mysql',
    prepare: async (place) => {
      await runCommand(place.folder, 'cp', ['-R', '-p', await pristine(), place.dataDir])
    },
    command: (place) => command(place.dataDir, settingsOf(place, options)),
    // It writes its pid file when it is ready, into its own folder: a connection might reach another server.
    ready: ({ dataDir, port }, pid) => readPid(dataDir) === pid && listensOn(pid, port),
    url: ({ port }) => `mysql://root@127.0.0.1:${port}/mysql`,
    shutDownSignal: 'SIGTERM',
    portTaken: /Can't start server: Bind on TCP\/IP port/,
    startTimeoutMs: options.startTimeoutMs,
  })
  return Object.assign(server, { createDatabase: () => createDatabase(server.url) })
}

function settingsOf(place: { folder: string; dataDir: string; port: number }, options: MariadbOptions): string[] {
  const all = {
    port: place.port,
    'bind-address': '127.0.0.1',
    socket: join(place.folder, 'socket'),
    'pid-file': join(place.dataDir, 'mariadb.pid'),
    mysqlx: 'OFF',
    'secure-file-priv': '',
    'performance-schema': 'OFF',
    'innodb-buffer-pool-size': '32M',
    ...options.settings,
  }
  return Object.entries(all).map(([name, value]) => `--${name}=${value}`)
}

// It runs as root, but only when told so.
function command(dataDir: string, args: string[]): { file: string; args: string[] } {
  const own = [
    '--no-defaults',
    ...(process.getuid?.() === 0 ? ['--user=root'] : []),
    `--datadir=${dataDir}`,
    `--basedir=${join(folder, 'usr')}`,
    `--lc-messages-dir=${join(folder, 'usr/share/mysql')}`,
  ]
  return suiteCommand(folder, program, [...own, ...args], ['usr/lib/mysql/private'])
}

// Root has no password, and logs in from this machine only.
function pristine(): Promise<string> {
  return builtOnce('pristine-mysql', async (path, run) => {
    const { file, args } = command(path, ['--initialize-insecure'])
    await runCommand(run, file, args)
  })
}

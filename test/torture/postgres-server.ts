// A PostgreSQL as test/servers/postgres.ts starts it, with a separate clock for all of its processes, or on a separate disk.
import { chownSync, existsSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { findPostgresPrograms, postgresOwner, usablePrograms } from '../servers/postgres/programs.ts'
import { removeSegments } from '../servers/postgres/segments.ts'
import { runCommand } from '../servers/run-command.ts'
import type { Running } from '../servers/server.ts'
import { startServer, type Surroundings } from '../servers/server/process.ts'

/** On a separate disk a log segment has 1 MiB. */
export interface TorturedPostgres extends Surroundings {
  readonly settings?: Readonly<Record<string, string | number>>
}

export async function startTorturedPostgres({ settings, ...surroundings }: TorturedPostgres): Promise<Running> {
  const programs = findPostgresPrograms()
  if (!programs) throw new Error('no PostgreSQL was found; cure: npm ci, or npm run servers')
  const owner = postgresOwner()
  const bin = await usablePrograms(programs, owner)
  const all = {
    listen_addresses: '127.0.0.1',
    unix_socket_directories: '',
    dynamic_shared_memory_type: 'mmap',
    ...settings,
  }
  return startServer({
    name: 'postgres',
    owner,
    surroundings,
    async prepare({ folder, dataDir }) {
      mkdirSync(dataDir, { mode: 0o700, recursive: true })
      if (owner) chownSync(dataDir, owner.uid, owner.gid)
      const form = ['--username=postgres', '--auth=trust', '--encoding=UTF8', '--no-locale', '--no-sync']
      if (surroundings.diskKib !== undefined) form.push('--wal-segsize=1')
      await runCommand(folder, join(bin, 'initdb'), ['-D', dataDir, ...form], owner)
    },
    command: ({ dataDir, port }) => ({
      file: join(bin, 'postgres'),
      args: ['-D', dataDir, ...Object.entries({ port, ...all }).flatMap(([name, value]) => ['-c', `${name}=${value}`])],
    }),
    ready: ({ dataDir }, pid) => {
      const file = join(dataDir, 'postmaster.pid')
      const lines = existsSync(file) ? readFileSync(file, 'utf8').split('\n') : []
      return Number(lines[0]) === pid && lines[7]?.trim() === 'ready'
    },
    url: ({ port }) => `postgres://postgres@127.0.0.1:${port}/postgres`,
    shutDownSignal: 'SIGINT',
    portTaken: /could not bind|could not create any TCP\/IP sockets/,
    afterKill: removeSegments,
  })
}

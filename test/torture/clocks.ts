// Clocks that are set while work goes on (libfaketime): those of the processes, for SQLite and PostgreSQL, and that of a
// PostgreSQL server, whose clock decides. Hours forward and back. The journals are written by the monotonic clock, which is left alone.
import { spawnSync } from 'node:child_process'
import { chownSync, existsSync, globSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pollUntil } from '../servers/poll.ts'
import { findPostgresPrograms, postgresOwner, usablePrograms } from '../servers/postgres-programs.ts'
import { removeSegments } from '../servers/postgres-segments.ts'
import { runCommand } from '../servers/run-command.ts'
import type { Running } from '../servers/server.ts'
import { startServer } from '../servers/server-process.ts'
import type { Flow } from './asking.ts'
import { type Judged, judge } from './judge.ts'
import type { Place } from './place.ts'
import { endOf, prepare, type Supervisor, supervise, tortureFolder, type Worker } from './supervisor.ts'

const libraries = globSync('/usr/lib/*/faketime/libfaketime.so.1')

/** Why clocks cannot be moved here; undefined when they can. */
export function clocksMissing(): string | undefined {
  if (libraries.length === 0) return 'libfaketime was not found; cure: npm run servers'
  const env = { PATH: process.env['PATH'], ...environment('/nonexistent'), FAKETIME: '-7200' }
  const told = Number(spawnSync(process.execPath, ['-p', 'Date.now()'], { encoding: 'utf8', env }).stdout)
  return Math.abs(Date.now() - told) > 3_600_000 ? undefined : 'libfaketime does not move the clock of this Node.js'
}

function environment(clock: string): Record<string, string> {
  return {
    LD_PRELOAD: libraries[0]!,
    FAKETIME_NO_CACHE: '1',
    // A process that is killed would leave its segment behind.
    FAKETIME_DISABLE_SHM: '1',
    FAKETIME_DONT_FAKE_MONOTONIC: '1',
    DONT_FAKE_MONOTONIC: '1',
    FAKETIME_TIMESTAMP_FILE: clock,
  }
}

/** In one step: a clock that is half written would be no clock. */
function setClock(file: string, offset: string): void {
  writeFileSync(`${file}.next`, `${offset}\n`)
  renameSync(`${file}.next`, file)
}

const offsets = ['+3600', '-7200', '+0', '-30', '+7200', '+5']

export interface Jumped {
  readonly jumps: number
  readonly judged: Judged
  readonly place: Place
}

export async function moveClocksOfProcesses(place: Place, flows: readonly Flow[], jumps: number): Promise<Jumped> {
  await prepare(place)
  const supervisor = await supervise(place)
  const clocks = [1, 2].map((number) => join(supervisor.folder, `clock-${number}`))
  for (const clock of clocks) setClock(clock, '+0')
  const workers = clocks.map((clock) => supervisor.start({ mode: 'load', flows }, environment(clock)))
  // Each has a clock of its own, so that they also differ.
  await jumpUnderLoad(workers, jumps, (number) => setClock(clocks[number % 2]!, offsets[number % offsets.length]!))
  return finish(supervisor, workers, jumps, place.store === 'sqlite' ? 'moved' : 'true')
}

export async function moveClockOfPostgres(jumps: number): Promise<Jumped> {
  const clock = join((await tortureFolder()).path, 'clock-of-postgres')
  setClock(clock, '+0')
  const server = await startPostgresWithClock(clock)
  try {
    const place: Place = { store: 'postgres', url: server.url }
    await prepare(place)
    const supervisor = await supervise(place)
    const workers = [1, 2].map(() => supervisor.start({ mode: 'load', flows: ['run', 'transaction', 'operation'] }))
    await jumpUnderLoad(workers, jumps, (number) => setClock(clock, offsets[number % offsets.length]!))
    setClock(clock, '+0')
    return await finish(supervisor, workers, jumps, 'moved')
  } finally {
    await server.stop()
  }
}

async function jumpUnderLoad(workers: readonly Worker[], jumps: number, jump: (number: number) => void): Promise<void> {
  const answersOf = (worker: Worker): number => worker.lines().filter(({ is }) => is === 'answer').length
  for (let number = 0; number < jumps; number++) {
    const before = workers.map(answersOf)
    await pollUntil('answers between two jumps', () =>
      workers.every((worker, index) => answersOf(worker) >= before[index]! + 4),
    )
    jump(number)
  }
}

async function finish(
  supervisor: Supervisor,
  workers: readonly Worker[],
  jumps: number,
  clocks: 'true' | 'moved',
): Promise<Jumped> {
  writeFileSync(join(supervisor.folder, 'enough'), '')
  for (const worker of workers) await endOf(worker)
  await supervisor.converge()
  const judged = await judge(supervisor.place, supervisor.folder, supervisor.asker.opened, clocks)
  await supervisor.close()
  return { jumps, judged, place: supervisor.place }
}

/** As test/servers/postgres.ts starts it, with a clock of its own for all of its processes. */
function startPostgresWithClock(clock: string): Promise<Running> {
  const programs = findPostgresPrograms()
  if (!programs) throw new Error('no PostgreSQL was found; cure: npm ci, or npm run servers')
  const owner = postgresOwner()
  const settings = {
    listen_addresses: '127.0.0.1',
    unix_socket_directories: '',
    dynamic_shared_memory_type: 'mmap',
  }
  const assignments = Object.entries(environment(clock)).map(([name, value]) => `${name}=${value}`)
  return startServer({
    name: 'postgres',
    owner,
    async prepare({ folder, dataDir }) {
      mkdirSync(dataDir, { mode: 0o700 })
      if (owner) chownSync(dataDir, owner.uid, owner.gid)
      const form = ['--username=postgres', '--auth=trust', '--encoding=UTF8', '--no-locale', '--no-sync']
      await runCommand(folder, join(await usablePrograms(programs, owner), 'initdb'), ['-D', dataDir, ...form], owner)
    },
    command: ({ dataDir, port }) => ({
      file: '/usr/bin/env',
      args: [
        ...assignments,
        join(programs.bin, 'postgres'),
        '-D',
        dataDir,
        '-c',
        `port=${port}`,
        ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]),
      ],
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

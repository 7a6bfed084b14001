// Clocks that are set while work goes on (libfaketime): those of the processes, for every store, and those of the servers whose
// clock decides. Hours forward and back. The journals are written by the monotonic clock, which is left alone.
import { spawnSync } from 'node:child_process'
import { globSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pollUntil } from '../servers/poll.ts'
import type { Running } from '../servers/server.ts'
import type { Flow } from './asking.ts'
import { type Judged, judge } from './judge.ts'
import type { Place } from './place.ts'
import { endOf, type Worker } from './processes.ts'
import { prepare, type Supervisor, supervise, tortureFolder } from './supervisor.ts'

const libraries = globSync('/usr/lib/*/faketime/libfaketime.so.1')

/** Why clocks cannot be moved here. Undefined when they can. */
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

/** Stores that judge a lease by the clock of the process. */
const machineDecides: readonly string[] = ['sqlite', 'dynamodb']

export async function moveClocksOfProcesses(place: Place, flows: readonly Flow[], jumps: number): Promise<Jumped> {
  await prepare(place)
  const supervisor = await supervise(place)
  const clocks = [1, 2].map((number) => join(supervisor.folder, `clock-${number}`))
  for (const clock of clocks) setClock(clock, '+0')
  const workers = clocks.map((clock) => supervisor.start({ mode: 'load', flows }, environment(clock)))
  // Each has its own clock, so that they also differ.
  await jumpUnderLoad(workers, jumps, (number) => setClock(clocks[number % 2]!, offsets[number % offsets.length]!))
  return finish(supervisor, workers, jumps, machineDecides.includes(place.store) ? 'moved' : 'true')
}

/** Starts a server under this environment, and returns where it is. */
export type WithClock = (env: Readonly<Record<string, string>>) => Promise<[Place, Running]>

export async function moveClockOf(start: WithClock, flows: readonly Flow[], jumps: number): Promise<Jumped> {
  const clock = join((await tortureFolder()).path, `clock-of-server-${++servers}`)
  setClock(clock, '+0')
  const [place, server] = await start(environment(clock))
  try {
    await prepare(place)
    const supervisor = await supervise(place)
    const workers = [1, 2].map(() => supervisor.start({ mode: 'load', flows }))
    await jumpUnderLoad(workers, jumps, (number) => setClock(clock, offsets[number % offsets.length]!))
    setClock(clock, '+0')
    return await finish(supervisor, workers, jumps, 'moved')
  } finally {
    await server.stop()
  }
}

let servers = 0

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

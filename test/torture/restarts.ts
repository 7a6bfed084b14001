// Servers that are killed, all their processes at once, and come back on what they had on disk, in the middle of a load that
// goes on. Between two crashes there are answers again: a server that never came back would be seen.
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pollUntil } from '../servers/poll.ts'
import type { Running } from '../servers/server.ts'
import type { Flow } from './asking.ts'
import { endOf, type Worker } from './processes.ts'
import type { Supervisor } from './supervisor.ts'

export interface Loaded {
  readonly supervisor: Supervisor
  readonly flows: readonly Flow[]
}

/** So many answers with a value between two crashes, from each process. */
const answersBetween = 4

export async function crashUnderLoad(server: Running, loads: readonly Loaded[], times: number): Promise<number> {
  const workers = loads.flatMap(({ supervisor, flows }) => [supervisor.start({ mode: 'load', flows })])
  let restarts = 0
  for (; restarts < times; restarts++) {
    const before = workers.map(valuesOf)
    await pollUntil(`answers from ${server.name}`, () =>
      workers.every((worker, index) => valuesOf(worker) >= before[index]! + answersBetween),
    )
    for (const { supervisor } of loads) supervisor.journal.write({ is: 'incident', text: `${server.name} is killed` })
    await server.crash()
    await server.restart()
  }
  for (const { supervisor } of loads) writeFileSync(join(supervisor.folder, 'enough'), '')
  for (const worker of workers) await endOf(worker)
  return restarts
}

function valuesOf(worker: Worker): number {
  return worker.lines().filter((line) => line.is === 'answer' && line.answer.is === 'value').length
}

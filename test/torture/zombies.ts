// SIGSTOP past the lease, then SIGCONT. A process stops itself at a point, another process takes its key over and ends it, and
// only then the first goes on: whatever it writes now must be refused. Nothing here depends on time, as the supervisor waits for
// the takeover.
import { pollUntil } from '../servers/poll.ts'
import { type Ask, type Flow, isRefusing, isServed, type Job } from './asking.ts'
import { askByHttp } from './http-asking.ts'
import type { ToldAnswer } from './journal.ts'
import type { Point } from './points.ts'
import { endOf, portOf, type Worker } from './processes.ts'
import type { Supervisor } from './supervisor.ts'

export interface Zombie {
  readonly flow: Flow
  readonly ask: Ask
  readonly stop: Point
}

const at = (flow: Flow, ask: Ask, call: string, side: Point['side'] = 'before'): Zombie => ({
  flow,
  ask,
  stop: { call, nth: 1, side },
})

const zombies: readonly Zombie[] = [
  at('run', 'value', 'settle'),
  at('run', 'slow', 'settle'),
  at('http', 'slow', 'settle'),
  at('run', 'value', 'effect'),
  at('http', 'value', 'settle'),
  at('run', 'throws', 'release'),
  at('run', 'final', 'effect', 'after'),
  at('gateway', 'value', 'settle'),
  at('gateway', 'slow', 'settle'),
  at('gateway', 'throws', 'release'),
  // Claimed and not yet passed on: when it is woken, it sends what another gateway has sent by then, and may store nothing of it.
  at('gateway', 'value', 'claim', 'after'),
  at('gatewayRefuse', 'value', 'settle'),
  at('gatewayRefuse', 'value', 'claim', 'after'),
  at('operation', 'value', 'advance'),
  at('operation', 'value', 'effect'),
]

export function zombiesOf(flows: readonly Flow[]): Zombie[] {
  return zombies.filter(({ flow }) => flows.includes(flow))
}

let keys = 0

/** Returns how often the process was stopped, taken over and woken. */
export async function raise(supervisor: Supervisor, { flow, ask, stop }: Zombie, times: number): Promise<number> {
  const jobs = Array.from({ length: times }, (): Job => ({
    flow,
    id: `z${++keys}-${flow}-${ask}`,
    asked: ask,
    phase: 'first',
  }))
  const worker = isServed(flow)
    ? await supervisor.serve(flow, { stop })
    : supervisor.start({ mode: 'one-by-one', fate: { stop }, jobs })
  const clients = isServed(flow) ? askOneByOne(supervisor, worker, jobs) : undefined
  const woken = await attend(supervisor, worker, jobs, clients)
  await clients
  worker.child.kill('SIGTERM')
  const ended = await endOf(worker)
  if (ended !== 0 && ended !== 'SIGTERM') throw new Error(`${worker.name} ended with ${ended}`)
  return woken
}

async function askOneByOne(supervisor: Supervisor, worker: Worker, jobs: readonly Job[]): Promise<void> {
  const port = await portOf(worker)
  for (const job of jobs) await askByHttp(supervisor.journal, port, job)
}

/** Wakes the process whenever it has stopped, after its key was taken over, until it, or its clients, have ended. */
async function attend(
  supervisor: Supervisor,
  worker: Worker,
  jobs: readonly Job[],
  clients: Promise<void> | undefined,
): Promise<number> {
  let isOver = false
  void (clients ?? worker.ended).then(() => (isOver = true))
  const taken = new Set<string>()
  let seen = 0
  for (;;) {
    const stopped = await pollUntil('the process to stop or to end', () => {
      const stops = worker.lines().filter((line) => line.is === 'stopping')
      return stops.length > seen ? stops[seen]! : isOver && 'over'
    })
    if (stopped === 'over') return taken.size
    seen++
    const { token } = stopped as { token: string }
    // An operation stops many times under one token. It is taken over at the first.
    const job = jobs.find(({ id }) => id === idOf(worker, token)) ?? jobs[Math.min(taken.size, jobs.length - 1)]!
    if (!taken.has(token) && (await takeOver(supervisor, job, token))) taken.add(token)
    worker.child.kill('SIGCONT')
  }
}

/** The id of the key that a token holds. Those of operations are not in the journal: they come in their order. */
function idOf(worker: Worker, token: string): string | undefined {
  for (const line of worker.lines()) {
    if (line.is !== 'operation' || !('request' in line.sent)) continue
    const { request, key } = line.sent as { request: { token: string }; key: string }
    if (request.token === token) return key.split('\n').at(-1)
  }
  return undefined
}

/**
 * Until the key has ended, or, where the effect is slow, until another effect runs: a store that looks at the state alone would
 * take the old holder for the new one. A key that must not be run again is in doubt instead, and stays its holder's.
 */
async function takeOver(supervisor: Supervisor, job: Job, token: string): Promise<boolean> {
  const begun = supervisor.begunHere(job.id)
  let isOver = false
  const ended = pollUntil(
    `${job.id} to be taken over`,
    async () => {
      const answer = (await supervisor.ask(job)) as ToldAnswer | undefined
      if (isRefusing(job.flow)) return answer?.is === 'refused' && answer.code === 'IN_DOUBT'
      return answer?.is === 'value' || answer?.is === 'failure'
    },
    { timeoutMs: 40_000, intervalMs: 50 },
  )
    .catch(() => false)
    .finally(() => (isOver = true))
  const isRunning = (): boolean => supervisor.begunHere(job.id) > begun
  if (job.asked === 'slow') await pollUntil(`${job.id} to run`, () => isRunning() || isOver)
  const isTaken = job.asked === 'slow' ? isRunning() : await ended
  if (isTaken && !isRefusing(job.flow)) supervisor.journal.write({ is: 'taken-over', token })
  return isTaken
}

// kill -9 before and after every call of the store, in every flow that the store has. A process is given some new keys, those
// that dead processes left behind, and the point at which it kills itself; the next one takes over.
import { askByHttp, type Ask, type Flow, type Job } from './asking.ts'
import type { StoreName } from './place.ts'
import type { Point } from './points.ts'
import { endOf, portOf, type Supervisor, type Worker } from './supervisor.ts'

export interface Kill {
  readonly flow: Flow
  readonly die: Point
  /** What must be asked for, so that the point is reached. */
  readonly ask: Ask
}

type PointName = readonly [call: string, ask: Ask, nth?: number]

const ofRun: readonly PointName[] = [
  ['claim', 'value'],
  ['effect', 'value'],
  ['settle', 'value'],
  ['settle', 'final'],
  ['release', 'throws'],
  ['extend', 'slow'],
]
const points: Readonly<Record<Flow, readonly PointName[]>> = {
  run: ofRun,
  refuse: [
    ['effect', 'value'],
    ['settle', 'value'],
  ],
  http: ofRun.filter(([call]) => call !== 'extend'),
  transaction: [
    ['begin', 'value'],
    ['effect', 'value'],
    ['commit', 'value'],
    ['commit', 'final'],
    ['rollback', 'throws'],
  ],
  // The first operation of a process has two steps in transactions and two outside, each with two records.
  operation: [
    ['enlist', 'value'],
    ['ledger', 'value'],
    ['beginStep', 'value'],
    ['step-commit', 'value', 1],
    ['advance', 'value', 1],
    ['effect', 'value'],
    ['advance', 'value', 2],
    ['step-commit', 'value', 3],
    ['advance', 'final', 3],
    ['advance', 'value', 5],
    ['advance', 'final', 6],
  ],
}

const transactional: readonly StoreName[] = ['sqlite', 'postgres', 'mysql', 'redis-postgres']

/** Every point of a store, before and after. */
export function killsOf(store: StoreName, hasOperations: boolean): Kill[] {
  const flows: Flow[] = ['run', 'refuse', 'http']
  if (transactional.includes(store)) flows.push('transaction')
  if (hasOperations) flows.push('operation')
  return flows.flatMap((flow) =>
    points[flow].flatMap(([call, ask, nth = 1]) =>
      (['before', 'after'] as const).map((side) => ({ flow, ask, die: { call, nth, side } })),
    ),
  )
}

/** Keys that were left by the dead, by flow. */
export type Left = Map<Flow, Job[]>

const leftMax = 3

let keys = 0

function jobsFor({ flow, ask }: Kill, left: Left): Job[] {
  const job = (asked: Job['asked'], id = `k${++keys}-${flow}-${asked}`): Job => ({ flow, id, asked, phase: 'first' })
  const fresh = [job(ask), job(ask)]
  const waiting = left.get(flow) ?? []
  const taken = waiting.splice(0, leftMax)
  // Another request under a key that is used: it must be refused, whatever state the key is in.
  const rogue = keys % 4 === 0 && flow !== 'operation' ? [job('other', fresh[0]!.id)] : []
  left.set(flow, [...waiting, ...fresh])
  return [...taken, ...fresh, ...rogue]
}

/** Answers the point at which it died; undefined when it ended before that. */
export async function kill(supervisor: Supervisor, plan: Kill, left: Left): Promise<string | undefined> {
  const jobs = jobsFor(plan, left)
  const worker = supervisor.start({ mode: plan.flow === 'http' ? 'serve' : 'jobs', fate: { die: plan.die }, jobs })
  if (plan.flow === 'http') await askServer(supervisor, worker, jobs)
  const ended = await endOf(worker)
  if (ended === 'SIGKILL') return `${plan.flow}: ${plan.die.call} ${plan.die.side}`
  if (ended !== 0 && ended !== 'SIGTERM')
    throw new Error(`${worker.name} of ${supervisor.place.store} ended with ${ended} instead: ${worker.said()}`)
  return undefined
}

async function askServer(supervisor: Supervisor, worker: Worker, jobs: readonly Job[]): Promise<void> {
  const port = await portOf(worker)
  const ask = (job: Job): Promise<unknown> => askByHttp(supervisor.journal, port, job)
  await Promise.all(jobs.map(ask))
  // One that is released is asked for again; a server that has not met its point ends here.
  await Promise.all(jobs.map(ask))
  worker.child.kill('SIGTERM')
}

// kill -9 before and after every call of the store, in every flow that the store has. A process is given some new keys, those
// that dead processes left behind, and the point at which it kills itself. The next process takes over.
import { type Ask, type Flow, isServed, type Job } from './asking.ts'
import { askByHttp } from './http-asking.ts'
import type { Point } from './points.ts'
import { endOf, portOf, type Worker } from './processes.ts'
import type { Supervisor } from './supervisor.ts'

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
const ofRefuse: readonly PointName[] = [
  ['effect', 'value'],
  ['settle', 'value'],
]
const points: Readonly<Record<Flow, readonly PointName[]>> = {
  run: ofRun,
  refuse: ofRefuse,
  http: ofRun.filter(([call]) => call !== 'extend'),
  // Its effect is that of the service behind it.
  gateway: ofRun,
  gatewayRefuse: ofRefuse,
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

/** Every point of these flows, before and after. */
export function killsOf(flows: readonly Flow[]): Kill[] {
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

/** A process reads from the ledger only what another has begun: one that dies then goes before. */
const begun: Point = { call: 'enlist', nth: 1, side: 'after' }

/** Returns the point at which it died. Undefined when it ended before that. */
export async function kill(supervisor: Supervisor, plan: Kill, left: Left): Promise<string | undefined> {
  const jobs = jobsFor(plan, left)
  const { flow, die } = plan
  if (die.call === 'ledger') await endOf(supervisor.start({ mode: 'jobs', fate: { die: begun }, jobs }))
  const worker = isServed(flow)
    ? await supervisor.serve(flow, { die })
    : supervisor.start({ mode: 'jobs', fate: { die }, jobs })
  if (isServed(flow)) await askServer(supervisor, worker, plan, jobs)
  const ended = await endOf(worker)
  if (ended === 'SIGKILL') return `${flow}: ${die.call} ${die.side}`
  if (ended !== 0 && ended !== 'SIGTERM')
    throw new Error(`${worker.name} of ${supervisor.place.store} ended with ${ended} instead: ${worker.said()}`)
  return undefined
}

async function askServer(
  supervisor: Supervisor,
  worker: Worker,
  { flow, die }: Kill,
  jobs: readonly Job[],
): Promise<void> {
  const port = await portOf(worker)
  if (flow !== 'http' && die.call === 'effect') {
    const { upstream } = await supervisor.gateways()
    for (const { id } of jobs) upstream.killAt(id, die.side, worker)
  }
  const ask = (job: Job): Promise<unknown> => askByHttp(supervisor.journal, port, job)
  await Promise.all(jobs.map(ask))
  // A key that is released is asked for again. A server that has not met its point ends here.
  await Promise.all(jobs.map(ask))
  worker.child.kill('SIGTERM')
}

// A schedule of operations as data: what each consists of, who asks for it, how its steps and undos behave, and what goes
// wrong. As with plan.ts, everything follows from the seed, and a plan from which things are left out is still a plan.

import type { MessageFault } from '../../src/testing/simulation-network.ts'
import { seededRandom } from '../../src/testing/simulation-random.ts'
import type { SeededRandom } from '../../src/testing/simulation-random.ts'
import type { PlannedProcess, WorldFault } from './plan.ts'

export interface OperationPlan {
  readonly seed: number
  readonly leaseMs: number
  readonly attemptMs: number
  readonly storeTimeoutMs: number
  readonly latencyMs: readonly [number, number]
  readonly healAtMs: number
  /** How many attempts may fail before an operation goes back. */
  readonly attempts: number
  /** The outside system that can be asked stands by a "not found". */
  readonly refusesOvertaken: boolean
  readonly processes: readonly (Pick<PlannedProcess, 'name' | 'skewMs' | 'rate'> & { readonly isWorker: boolean })[]
  readonly operations: readonly PlannedOperation[]
  readonly requests: readonly PlannedRequest[]
  readonly messageFaults: readonly MessageFault[]
  readonly worldFaults: readonly OperationFault[]
  readonly conflictChance: number
}

export type OperationFault = Extract<WorldFault, { kind: 'crash' | 'pause' | 'jump' | 'outage' }>

/** Steps of one stage run at once; a stage begins when the one before it has ended. */
export interface PlannedOperation {
  readonly stages: readonly (readonly PlannedStep[])[]
}

/**
 * `keyed`: another system that honours the key. `asked`: one that can be asked and deduplicates nothing. `deaf`: one that can do
 * neither, with inDoubt 'stop'. `transaction`: in the store's own transaction.
 */
export type StepKind = 'keyed' | 'asked' | 'deaf' | 'transaction'

export interface PlannedStep {
  readonly name: string
  readonly kind: StepKind
  readonly undoable: boolean
  readonly pivot: boolean
  readonly tries: number
  readonly timeoutMs?: number
  /** For the first time it is run, the second, and so on; after the last one it works. */
  readonly runs: readonly Behaviour[]
  readonly undos: readonly Behaviour[]
  /** How many of the first lookups cannot tell. */
  readonly unknowns: number
}

export interface Behaviour {
  readonly beforeMs: number
  readonly afterMs: number
  readonly does:
    | 'works'
    /** Nothing is sent. */
    | 'throws'
    | 'final'
    | 'not-begun'
    /** Something is sent, and its fate differs from what is heard. */
    | 'throws-after'
    | 'lose-request'
    | 'lose-reply'
    | 'late-request'
    /** It never comes back, having done its work. */
    | 'hangs'
}

export interface PlannedRequest {
  readonly process: number
  readonly atMs: number
  readonly operation: number
  readonly how: 'run' | 'start' | 'cancel'
  readonly retries: number
  readonly retryMs: number
  readonly waitMs: number
}

const hourMs = 3_600_000

export function operationPlanFor(seed: number): OperationPlan {
  const random = seededRandom(seed)
  const leaseMs = random.pick([600, 1_500, 4_000])
  const isCalm = random.chance(0.05)
  const ground = {
    seed,
    leaseMs,
    attemptMs: Math.ceil(leaseMs * random.pick([1, 2, 6])),
    storeTimeoutMs: random.pick([250, 700]),
    latencyMs: [1, random.pick([5, 30, 120])] as const,
    healAtMs: leaseMs * 5,
    attempts: random.pick([2, 3, 5]),
    refusesOvertaken: random.chance(0.7),
  }
  const processes = Array.from({ length: random.integer(2, 3) }, (_, index) => ({
    name: `process ${index + 1}`,
    skewMs: random.chance(0.4) ? random.integer(-hourMs, hourMs) : 0,
    rate: random.chance(0.3) ? 0.999 + random.fraction() * 0.002 : 1,
    isWorker: index < 2,
  }))
  const operations = Array.from({ length: random.integer(1, 2) }, () => planOperation(random, leaseMs, isCalm))
  const requests = planRequests(random, leaseMs, operations.length, processes.length, isCalm)
  const calm = { messageFaults: [], worldFaults: [], conflictChance: 0 }
  const faults = isCalm ? calm : planFaults(random, ground, processes)
  return { ...ground, processes, operations, requests, ...faults }
}

function planOperation(random: SeededRandom, leaseMs: number, isCalm: boolean): PlannedOperation {
  const count = random.integer(2, 4)
  // From the pivot on nothing is undone, so it stands in the second half.
  const pivotAt = random.chance(0.2) ? random.integer(Math.floor(count / 2), count - 1) : Infinity
  const stages: PlannedStep[][] = []
  for (let index = 0; index < count; index++) {
    const step = planStep(random, leaseMs, index, pivotAt, isCalm)
    if (index > 0 && index < pivotAt && random.chance(0.2)) stages.at(-1)!.push(step)
    else stages.push([step])
  }
  return { stages }
}

function planStep(random: SeededRandom, leaseMs: number, index: number, pivotAt: number, isCalm: boolean): PlannedStep {
  const kind = random.weighted({ keyed: 4, asked: 3, deaf: 2, transaction: 3 })
  const behaviours = (most: number): Behaviour[] =>
    isCalm ? [] : Array.from({ length: random.integer(0, most) }, () => planBehaviour(random, leaseMs, kind))
  return {
    name: `step ${index + 1}`,
    kind,
    undoable: index < pivotAt && random.chance(0.85),
    pivot: index === pivotAt,
    tries: random.pick([1, 1, 2]),
    ...(random.chance(0.15) && { timeoutMs: Math.ceil(leaseMs * random.pick([0.3, 1.2])) }),
    runs: behaviours(3),
    undos: behaviours(2),
    unknowns: isCalm ? 0 : random.pick([0, 0, 0, 1, 2]),
  }
}

function planBehaviour(random: SeededRandom, leaseMs: number, kind: StepKind): Behaviour {
  const durationMs = (): number => {
    const length = random.weighted({ none: 5, short: 4, long: 2, longer: 1 })
    if (length === 'none') return 0
    if (length === 'short') return random.fraction() * 60
    return leaseMs * random.fraction() * (length === 'long' ? 1 : 2)
  }
  const inside = { works: 8, throws: 3, final: 3, 'not-begun': 0, 'throws-after': 2, hangs: 1 }
  const outside = { ...inside, 'not-begun': 2, 'lose-request': 1, 'lose-reply': 2, 'late-request': 1 }
  const does = random.weighted(kind === 'transaction' ? inside : outside)
  return { beforeMs: durationMs(), afterMs: durationMs(), does }
}

function planRequests(
  random: SeededRandom,
  leaseMs: number,
  operations: number,
  processes: number,
  isCalm: boolean,
): PlannedRequest[] {
  const request = (operation: number, how: PlannedRequest['how'], fromMs: number): PlannedRequest => ({
    process: random.integer(0, processes - 1),
    atMs: fromMs + random.fraction() * random.pick([5, leaseMs, leaseMs * 3]),
    operation,
    how,
    retries: random.integer(0, 2),
    retryMs: random.pick([10, 200, leaseMs]),
    waitMs: random.chance(0.3) ? leaseMs : 0,
  })
  const indexes = Array.from({ length: operations }, (_, index) => index)
  return [
    ...indexes.map((index) => request(index, random.chance(0.8) ? 'run' : 'start', 0)),
    ...indexes.flatMap((index) => (random.chance(0.5) ? [request(index, 'run', random.fraction() * leaseMs)] : [])),
    ...indexes.flatMap((index) => (!isCalm && random.chance(0.2) ? [request(index, 'cancel', 20)] : [])),
  ]
}

function planFaults(
  random: SeededRandom,
  { leaseMs }: { readonly leaseMs: number },
  processes: readonly { readonly name: string }[],
): Pick<OperationPlan, 'messageFaults' | 'worldFaults' | 'conflictChance'> {
  const count = (most: number): undefined[] => Array.from({ length: random.integer(0, most) }, () => undefined)
  return {
    messageFaults: count(5).map(() => planMessageFault(random, leaseMs, random.pick(processes).name)),
    worldFaults: count(4).map(() => planWorldFault(random, leaseMs, processes.length)),
    conflictChance: random.chance(0.2) ? 0.3 : 0,
  }
}

function planMessageFault(random: SeededRandom, leaseMs: number, process: string): MessageFault {
  const does = random.weighted({
    'lose-request': 2,
    'lose-reply': 4,
    'delay-request': 2,
    'delay-reply': 2,
    duplicate: 4,
    refuse: 1,
    'crash-on-decision': 5,
  })
  const delayMs = random.pick([0, 30, 500, leaseMs * (0.5 + random.fraction() * 2)])
  const isSilent = (does === 'lose-request' || does === 'lose-reply') && random.chance(0.5)
  // A process sends some three messages a step, and workers ask for what is due in between.
  return { process, message: random.integer(0, 24), does, ...(!isSilent && { delayMs }) }
}

function planWorldFault(random: SeededRandom, leaseMs: number, processes: number): OperationFault {
  const process = random.integer(0, processes - 1)
  const atMs = random.fraction() * leaseMs * 3.5
  const kind = random.weighted({ crash: 8, pause: 7, jump: 1, outage: 2 })
  switch (kind) {
    case 'crash':
      return { kind, process, atMs, downMs: random.pick([10, leaseMs / 2, leaseMs * 2]) }
    case 'pause':
      return { kind, process, atMs, forMs: leaseMs * random.pick([0.3, 1.1, 2]), how: random.pick(['stop', 'suspend']) }
    case 'jump':
      return { kind, process, atMs, byMs: random.integer(-hourMs, hourMs) }
    case 'outage':
      return { kind, atMs, forMs: random.pick([50, 700, leaseMs * 1.2]) }
  }
}

export function* smallerOperationPlans(plan: OperationPlan): Generator<OperationPlan> {
  for (const list of ['worldFaults', 'messageFaults', 'requests'] as const) {
    for (const index of plan[list].keys()) yield { ...plan, [list]: plan[list].filter((_, other) => other !== index) }
  }
  if (plan.conflictChance > 0) yield { ...plan, conflictChance: 0 }
  for (const [index, { name, skewMs, rate, isWorker }] of plan.processes.entries()) {
    if (skewMs === 0 && rate === 1) continue
    yield { ...plan, processes: plan.processes.with(index, { name, skewMs: 0, rate: 1, isWorker }) }
  }
  for (const [index, operation] of plan.operations.entries()) {
    for (const stages of smallerStages(operation.stages)) {
      yield { ...plan, operations: plan.operations.with(index, { stages }) }
    }
  }
}

function* smallerStages(stages: PlannedOperation['stages']): Generator<PlannedOperation['stages']> {
  for (const [at, stage] of stages.entries()) {
    if (stages.length > 1) yield stages.toSpliced(at, 1)
    for (const [index, step] of stage.entries()) {
      const put = (smaller: PlannedStep): PlannedOperation['stages'] => stages.with(at, stage.with(index, smaller))
      if (step.runs.length > 0) yield put({ ...step, runs: step.runs.slice(0, -1) })
      if (step.undos.length > 0) yield put({ ...step, undos: step.undos.slice(0, -1) })
      if (step.tries > 1) yield put({ ...step, tries: 1 })
      if (step.unknowns > 0) yield put({ ...step, unknowns: 0 })
    }
  }
}

// A schedule of operations as data: what each consists of, which client asks for it, how its steps and undos behave, and what
// goes wrong. As with plan.ts, everything follows from the seed, and a plan from which things are left out is still a plan.

import type { MessageFault } from './world/network.ts'
import { mixed, seededRandom } from '../../src/testing/seeded-random.ts'
import type { SeededRandom } from '../../src/testing/seeded-random.ts'
import { planRevival, revivalOf } from './plan.ts'
import type { Deploy, PlannedProcess, WorldFault } from './plan.ts'

export interface OperationPlan {
  readonly seed: number
  readonly theme: Theme
  readonly leaseMs: number
  /** Of the result of an operation. An operation that is not finished is kept. */
  readonly keepMs: number
  readonly tombstoneMs: number
  readonly onExpired: 'refuse' | 'run'
  readonly attemptMs: number
  readonly storeTimeoutMs: number
  readonly latencyMs: readonly [number, number]
  readonly healAtMs: number
  /** How many attempts may fail before an operation goes back. */
  readonly attempts: number
  /** The outside system that can be asked stands by a "not found". */
  readonly refusesOvertaken: boolean
  readonly processes: readonly PlannedOperator[]
  /** How version 2 of the code, which a process has after a crash, differs from version 1. */
  readonly drift: Drift | undefined
  readonly operations: readonly PlannedOperation[]
  readonly requests: readonly PlannedRequest[]
  readonly messageFaults: readonly MessageFault[]
  readonly worldFaults: readonly OperationFault[]
  readonly deploys: readonly Deploy[]
  readonly conflictChance: number
  /** The function reads from the store before it asks for its first step. */
  readonly loads: boolean
  /** Values are stored by a codec that encodes the same value differently each time, as encryption does. */
  readonly isSealed: boolean
}

export interface PlannedOperator extends PlannedProcess {
  readonly isWorker: boolean
  readonly version: number
  /** Options that this process has otherwise than the others, on the same keys. */
  readonly own?: OwnOptions
}

export interface OwnOptions {
  readonly attempts: number
  readonly onExpired: 'refuse' | 'run'
  readonly waitMs: number
}

/** Of each operation the step at this place (counted round) is new, is not asked for any more, or is asked for otherwise. */
export interface Drift {
  readonly kind: 'added' | 'dropped' | 'asked-otherwise'
  readonly step: number
}

/** A `mend` is of the operation with this number. */
export type OperationFault = Exclude<WorldFault, { kind: 'loss' }>

/**
 * What a schedule is mostly about, as in plan.ts: results of operations expire under retries and workers (expiry), a person
 * releases or forgets operations manually while they are under way (mended), the code changes under them (drift), people cancel
 * and resume all the time (people).
 */
type Theme = 'mixed' | 'expiry' | 'mended' | 'drift' | 'people'

/** Steps of one stage run at once. A stage begins when the stage before it has ended. */
export interface PlannedOperation {
  readonly stages: readonly (readonly PlannedStep[])[]
}

/**
 * `keyed`: another system that honours the key. `asked`: one that can be asked and deduplicates nothing. `deaf`: one that can do
 * neither, with inDoubt 'park'. `transaction`: in the store's own transaction.
 */
export type StepKind = 'keyed' | 'asked' | 'deaf' | 'transaction'

export interface PlannedStep {
  readonly name: string
  readonly kind: StepKind
  readonly undoable: boolean
  readonly pivot: boolean
  readonly tries: number
  readonly timeoutMs?: number
  /** For the first time it is run, the second, and so on. After the last one it works. */
  readonly runs: readonly Behaviour[]
  readonly undos: readonly Behaviour[]
  /** How many of the first lookups return `unknown`. */
  readonly unknowns: number
  /** How many lookups fail before that. */
  readonly failedLookups?: number
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
    /** Something is sent, and its fate differs from what the operation sees. */
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
  readonly how: 'run' | 'start' | 'cancel' | 'resume'
  readonly retries: number
  readonly retryMs: number
  readonly waitMs: number
}

const hourMs = 3_600_000

export function operationPlanFor(seed: number): OperationPlan {
  const random = seededRandom(seed)
  const leaseMs = random.pick([600, 1_500, 4_000])
  const isCalm = random.chance(0.05)
  const theme = isCalm ? 'mixed' : random.weighted({ mixed: 50, expiry: 14, mended: 12, drift: 12, people: 12 })
  const isShort = theme === 'expiry' || random.chance(0.1)
  const ground = {
    seed,
    theme,
    leaseMs,
    keepMs: isShort ? Math.ceil(leaseMs * (0.1 + random.fraction())) : hourMs,
    tombstoneMs: random.pick([0, 50, leaseMs, hourMs]),
    onExpired: random.pick(['refuse', 'refuse', 'run'] as const),
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
    version: theme === 'drift' && random.chance(0.4) ? 2 : 1,
    ...(isShort && random.chance(0.3) && { sweepEveryMs: leaseMs }),
  }))
  const kinds = ['added', 'dropped', 'asked-otherwise'] as const
  const drift = theme === 'drift' ? { kind: random.pick(kinds), step: random.integer(0, 3) } : undefined
  const planned = Array.from({ length: random.integer(1, 2) }, () => planOperation(random, leaseMs, isCalm))
  const requests = planRequests(random, ground, planned.length, processes.length, isCalm)
  const calm = { messageFaults: [], worldFaults: [], conflictChance: 0 }
  const faults = isCalm ? calm : planFaults(random, ground, processes, requests)
  const plan = { ...ground, processes, drift, operations: planned, requests, ...faults, deploys: [] }
  const plain = { ...plan, loads: false, isSealed: false }
  return isCalm ? plain : widened(plain)
}

/** What was added to schedules later is drawn by itself, so that a seed from before still means what it meant, and more. */
const widenedBy = 0x5eed

function widened(plan: OperationPlan): OperationPlan {
  const random = seededRandom(mixed(plan.seed, widenedBy))
  const { leaseMs } = plan
  const refused: Behaviour = { beforeMs: 0, afterMs: 0, does: 'final' }
  const refuse = (step: PlannedStep): PlannedStep =>
    step.pivot && random.chance(0.4) ? { ...step, runs: [refused, ...step.runs] } : step
  const own = (): OwnOptions => ({
    attempts: random.pick([1, 2, 5]),
    onExpired: random.pick(['refuse', 'run']),
    waitMs: random.pick([0, leaseMs / 2]),
  })
  const mend = (action: 'resolve' | 'keep'): OperationFault => ({
    kind: 'mend',
    process: random.integer(0, plan.processes.length - 1),
    atMs: random.fraction() * leaseMs * 3.5,
    key: random.integer(0, 1),
    action,
  })
  // A server that crashes again and again. Between two crashes some things get through, and others do not.
  const crashing = (): OperationFault[] => {
    const firstMs = random.fraction() * leaseMs * 2
    const everyMs = random.pick([100, 200, 400])
    return Array.from({ length: random.integer(1, 12) }, (_, number) => ({
      kind: 'outage',
      atMs: firstMs + number * everyMs,
      forMs: everyMs * (0.3 + random.fraction() * 0.6),
      isHeard: true,
    }))
  }
  const wide = {
    ...plan,
    isSealed: random.chance(0.3),
    processes: plan.processes.map((each) => (random.chance(0.3) ? { ...each, own: own() } : each)),
    operations: plan.operations.map(({ stages }) => ({ stages: stages.map((stage) => stage.map(refuse)) })),
    deploys: random.chance(0.2)
      ? [
          {
            process: random.integer(0, plan.processes.length - 1),
            atMs: random.fraction() * leaseMs * 3,
            downMs: random.pick([10, leaseMs]),
          },
        ]
      : [],
    worldFaults: [
      ...plan.worldFaults,
      ...(random.chance(0.1) ? [mend('keep')] : []),
      ...(random.chance(0.1) ? [mend('resolve')] : []),
      ...(random.chance(0.2) ? crashing() : []),
    ],
  }
  const isCrashing = wide.worldFaults.some((fault) => fault.kind === 'outage' && fault.isHeard)
  return isCrashing ? hurried(wide, random) : wide
}

/**
 * Under a server that crashes again and again, clients without patience ask at once again, functions cannot load what they need, and
 * the other side is down, too.
 */
function hurried(plan: OperationPlan, random: SeededRandom): OperationPlan {
  const hurry = (operation: number): PlannedRequest => ({
    process: random.integer(0, plan.processes.length - 1),
    atMs: random.fraction() * plan.leaseMs,
    operation,
    how: 'run',
    retries: 100,
    retryMs: 20,
    waitMs: 0,
  })
  const fail = (step: PlannedStep): PlannedStep =>
    step.kind === 'asked' && random.chance(0.6) ? { ...step, failedLookups: random.integer(1, 8) } : step
  return {
    ...plan,
    operations: plan.operations.map(({ stages }) => ({ stages: stages.map((stage) => stage.map(fail)) })),
    requests: [...plan.requests, ...(random.chance(0.7) ? [...plan.operations.keys()].map(hurry) : [])],
    loads: random.chance(0.4),
  }
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

type Ground = Pick<OperationPlan, 'leaseMs' | 'latencyMs' | 'theme' | 'keepMs'>

function planRequests(
  random: SeededRandom,
  { leaseMs, theme }: Ground,
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
  const some = (how: PlannedRequest['how'], chance: number, fromMs: number): PlannedRequest[] =>
    indexes.flatMap((index) => (random.chance(chance) ? [request(index, how, random.fraction() * fromMs)] : []))
  const isPeople = theme === 'people'
  return [
    ...indexes.map((index) => request(index, random.chance(0.8) ? 'run' : 'start', 0)),
    ...some('run', 0.5, leaseMs),
    ...(theme === 'expiry' || theme === 'mended' ? some('run', 0.9, leaseMs * 3) : []),
    ...(isCalm ? [] : some('cancel', isPeople ? 0.6 : 0.2, isPeople ? leaseMs * 3 : 40)),
    ...(isPeople ? [...some('resume', 0.8, leaseMs * 3), ...some('resume', 0.5, leaseMs * 3)] : []),
  ]
}

function planFaults(
  random: SeededRandom,
  ground: Ground,
  processes: readonly { readonly name: string }[],
  requests: readonly PlannedRequest[],
): Pick<OperationPlan, 'messageFaults' | 'worldFaults' | 'conflictChance'> {
  const { leaseMs } = ground
  const revival = ground.theme === 'mended' && random.chance(0.5) ? [planRevival(random, ground, requests)] : []
  const count = (most: number): undefined[] => Array.from({ length: random.integer(0, most) }, () => undefined)
  return {
    messageFaults: [
      ...count(5).map(() => planMessageFault(random, leaseMs, random.pick(processes).name)),
      ...revival.map(({ process, delayMs }) => revivalOf(random, processes[process]!.name, delayMs)),
    ],
    worldFaults: [
      ...count(4).map(() => planWorldFault(random, ground, processes.length)),
      ...revival.map(({ forget }) => forget),
    ],
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
  // A process sends some three messages per step, and workers ask for what is due in between.
  return { process, message: random.integer(0, 24), does, ...(!isSilent && { delayMs }) }
}

function planWorldFault(random: SeededRandom, { leaseMs, theme, keepMs }: Ground, processes: number): OperationFault {
  const process = random.integer(0, processes - 1)
  const atMs = random.fraction() * leaseMs * 3.5
  const [sweep, mend] = [theme === 'expiry' ? 8 : 0.3, theme === 'mended' ? 8 : 0.3]
  const kind = random.weighted({ crash: 8, pause: 7, jump: 1, outage: 2, sweep, mend })
  switch (kind) {
    case 'crash':
      return { kind, process, atMs, downMs: random.pick([10, leaseMs / 2, leaseMs * 2]) }
    case 'pause':
      return { kind, process, atMs, forMs: leaseMs * random.pick([0.3, 1.1, 2]), how: random.pick(['stop', 'suspend']) }
    case 'jump':
      return { kind, process, atMs, byMs: random.integer(-hourMs, hourMs) }
    case 'outage':
      return { kind, atMs, forMs: random.pick([50, 700, leaseMs * 1.2]) }
    case 'sweep':
      return { kind, process, atMs: Math.min(atMs + (keepMs < hourMs ? keepMs : 0), leaseMs * 5) }
    case 'mend':
      return { kind, process, atMs, key: random.integer(0, 1), action: random.pick(['release', 'forget']) }
  }
}

export function* smallerOperationPlans(plan: OperationPlan): Generator<OperationPlan> {
  for (const list of ['worldFaults', 'deploys', 'messageFaults', 'requests'] as const) {
    for (const index of plan[list].keys()) yield { ...plan, [list]: plan[list].filter((_, other) => other !== index) }
  }
  if (plan.isSealed) yield { ...plan, isSealed: false }
  if (plan.loads) yield { ...plan, loads: false }
  if (plan.conflictChance > 0) yield { ...plan, conflictChance: 0 }
  if (plan.drift) {
    yield { ...plan, drift: undefined, processes: plan.processes.map((each) => ({ ...each, version: 1 })) }
  }
  for (const [index, { name, skewMs, rate, isWorker, version, sweepEveryMs }] of plan.processes.entries()) {
    const isPlain = skewMs === 0 && rate === 1 && sweepEveryMs === undefined
    if (!isPlain)
      yield { ...plan, processes: plan.processes.with(index, { name, skewMs: 0, rate: 1, isWorker, version }) }
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
      const { failedLookups, ...sound } = step
      if (failedLookups !== undefined) yield put(sound)
    }
  }
}

/** The stages as this version of the code has them. */
export function stagesOf(plan: OperationPlan, operation: number, version: number): PlannedOperation['stages'] {
  return plan.operations[operation]!.stages.map((stage) =>
    stage.filter(({ name }) => versionsOf(plan, operation, name).includes(version)),
  )
}

const both = [1, 2] as const

export function versionsOf({ drift, operations }: OperationPlan, operation: number, step: string): readonly number[] {
  if (!drift || drift.kind === 'asked-otherwise') return both
  if (step !== driftingStep(operations[operation]!, drift)) return both
  return drift.kind === 'added' ? [2] : [1]
}

/** What this version asks for the step with, if with anything. */
export function askedWith(plan: OperationPlan, operation: number, step: string, version: number): string | undefined {
  const { drift, operations } = plan
  if (drift?.kind !== 'asked-otherwise' || step !== driftingStep(operations[operation]!, drift)) return undefined
  return `version ${version}`
}

function driftingStep({ stages }: PlannedOperation, drift: Drift): string {
  const steps = stages.flat()
  return steps[drift.step % steps.length]!.name
}

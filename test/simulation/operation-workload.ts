// Runs one plan of operations: the shipped core in several processes with workers, on simulated rows and beside simulated outside
// systems. Faults come first. Then everything is healed, workers finish what they find without any client, a person decides what
// is parked by the ledger, and every operation must end.

import { sleep } from '../../src/core/clock.ts'
import { FinalError, NotBegunError, OnceError } from '../../src/core/errors.ts'
import { key, keyString } from '../../src/core/key.ts'
import type { Key } from '../../src/core/key.ts'
import { createOnce } from '../../src/core/once.ts'
import type { Once } from '../../src/core/once.ts'
import type { Operation } from '../../src/core/operations.ts'
import type { OperationStatus } from '../../src/core/operations.ts'
import type { OperationOp, Step, StepContext, TransactionStep } from '../../src/core/operations.ts'
import { decodeOutcome } from '../../src/core/outcome.ts'
import type { Codec, Outcome } from '../../src/core/outcome.ts'
import { emptyHistory } from '../../src/testing/history-checker.ts'
import { subjectOf } from './world/operations/checker.ts'
import type {
  Invocation,
  OperationAnswer,
  OperationEnd,
  OperationHistory,
  OperationRecord,
} from './world/operations/checker.ts'
import { createNetwork } from './world/network.ts'
import type { Network } from './world/network.ts'
import { stepsLeftOpen } from './world/operations.ts'
import type { SimulatedStep } from './world/operations.ts'
import { createOutside } from './world/outside.ts'
import type { Outside, OutsideFate } from './world/outside.ts'
import { createServer } from './world/server.ts'
import type { OperationChange, SimulatedServer } from './world/server.ts'
import { connectStore } from './world/store.ts'
import type { SimulatedStore } from './world/store.ts'
import { createWorld } from './world/world.ts'
import type { Drain, Life, Process, World } from './world/world.ts'
import { sealedBy, unseal } from './sealed.ts'
import { noOperationCounts } from './operation-counts.ts'
import type { OperationCounts } from './operation-counts.ts'
import { askedWith, stagesOf, versionsOf } from './operation-plan.ts'
import type { Deploy } from './plan.ts'
import type {
  Behaviour,
  OperationFault,
  OperationPlan,
  PlannedOperator,
  PlannedRequest,
  PlannedStep,
} from './operation-plan.ts'

type Op = OperationOp<SimulatedStep>
type Input = { readonly operation: number }

export interface OperationRun {
  readonly plan: OperationPlan
  readonly history: OperationHistory
  readonly counts: OperationCounts
  readonly traceHash: number
  readonly rested: boolean
  readonly unclosed: readonly string[]
  /** What was still stored after all retention and a sweep, unless something is parked forever. */
  readonly leftovers: number
  /** Transactions of steps that were still open when everything was closed. */
  readonly leftOpen: number
}

interface Running {
  readonly life: Life
  readonly version: number
  readonly once: Once<SimulatedStore>
  readonly checkout: Operation<Input, unknown>
}

interface Stage {
  readonly plan: OperationPlan
  readonly world: World
  readonly network: Network
  readonly server: SimulatedServer
  readonly outside: Outside
  readonly history: OperationHistory
  readonly counts: OperationCounts
  readonly processes: readonly Process[]
  readonly services: Map<Process, Running>
  readonly closing: Set<string>
  /** How often each step, undo and lookup was called. */
  readonly called: Map<string, number>
  /** Functions of steps outside of transactions that are under way in a life that has not ended. */
  active: number
  /** Given out to what is written in transactions. */
  tickets: number
}

export async function runOperationPlan(
  plan: OperationPlan,
  { drain = 'quick' }: { readonly drain?: Drain } = {},
): Promise<OperationRun> {
  const stage = setStage(plan, drain)
  const { world, history, counts } = stage
  for (const [index, process] of stage.processes.entries()) start(stage, process, plan.processes[index]!)
  for (const request of plan.requests) world.after(request.atMs, () => ask(stage, request, 0))
  for (const fault of plan.worldFaults) world.after(fault.atMs, () => happen(stage, fault))
  for (const planned of plan.deploys) world.after(planned.atMs, () => deploy(stage, planned))
  world.after(plan.healAtMs, () => heal(stage))
  const rested = await world.run(plan.healAtMs + restMs)
  const leftOpen = stepsLeftOpen(stage.server)
  const leftovers = await sweepAll(stage)
  if (plan.isSealed) counts.sealed++
  Object.assign(counts, stage.network.counts)
  for (const { is } of history.answers) world.note(is?.length ?? 1)
  for (const { end } of history.operations) world.note(end?.text.length ?? 1)
  return {
    plan,
    history,
    counts,
    traceHash: world.traceHash(),
    rested,
    unclosed: [...stage.closing],
    leftovers,
    leftOpen,
  }
}

/** Ten times what the longest chain of attempts, holds of workers and decisions takes. */
const restMs = 3_600_000

function setStage(plan: OperationPlan, drain: Drain): Stage {
  const counts = noOperationCounts()
  counts.schedules = 1
  const world = createWorld({ seed: plan.seed, drain })
  const { latencyMs, refusesOvertaken, leaseMs, healAtMs } = plan
  const outside = createOutside(world, { latencyMs, refusesOvertaken, lateMs: leaseMs * 1.7 })
  const history: OperationHistory = {
    store: emptyHistory(),
    operations: [],
    invocations: [],
    ledger: outside.ledger,
    records: [],
    answers: [],
  }
  const outages = plan.worldFaults
    .filter((fault) => fault.kind === 'outage')
    .map(({ atMs, forMs, isHeard }) => ({ fromMs: atMs, untilMs: Math.min(atMs + forMs, healAtMs), isHeard }))
  const network = createNetwork(world, history.store, {
    faults: plan.messageFaults,
    faultsUntilMs: healAtMs,
    outages,
    latencyMs,
    crash: (process) => crash(stage, process, crashedOnDecisionMs),
  })
  const server = createServer(world, network, history.store, {
    conflictChance: plan.conflictChance,
    onRecords(change) {
      history.records.push(change)
      registerLife(stage, change)
    },
  })
  const processes = plan.processes.map(({ name, skewMs, rate }) => world.createProcess(name, { skewMs, rate }))
  const services = new Map<Process, Running>()
  const told = { closing: new Set<string>(), called: new Map<string, number>(), active: 0, tickets: 0 }
  const stage: Stage = { plan, world, network, server, outside, history, counts, processes, services, ...told }
  return stage
}

const crashedOnDecisionMs = 200

/** A claim that found nothing of the operation begins another life of it. */
function registerLife({ plan, history }: Stage, { key: name, after }: OperationChange): void {
  if (!after || history.operations.some((each) => each.key === name && each.lifeFence === after.lifeFence)) return
  const index = plan.operations.findIndex((_, each) => keyString(keyFor(each)) === name)
  const life = 1 + history.operations.filter((each) => each.key === name).length
  const steps = plan.operations[index]!.stages.flatMap((stage, stageAt) =>
    stage.map(({ name: step, kind, undoable, pivot }) => {
      return { name: step, kind, undoable, pivot, stage: stageAt, versions: versionsOf(plan, index, step) }
    }),
  )
  history.operations.push({ key: name, life, lifeFence: after.lifeFence, steps })
}

/** The life that an attempt with this fence belongs to: a zombie belongs to its own. */
function lifeOf({ history }: Stage, operation: number, fence: number): OperationRecord {
  const name = keyString(keyFor(operation))
  return history.operations.findLast((each) => each.key === name && each.lifeFence <= fence)!
}

function keyFor(operation: number): Key {
  return key('shop/operations/checkout', `${operation}`)
}

type Started = Pick<PlannedOperator, 'isWorker' | 'version' | 'own' | 'sweepEveryMs'>

function codecOf({ plan }: Stage): Codec | undefined {
  return plan.isSealed ? { encode: () => expectNoEncoding(), decode: unseal } : undefined
}

function expectNoEncoding(): never {
  throw new Error('Bug! The judge only reads.')
}

function start(stage: Stage, process: Process, { isWorker, version, own, sweepEveryMs }: Started): void {
  const { plan, server } = stage
  const life = process.start()
  const { leaseMs, keepMs, tombstoneMs, onExpired, attemptMs, storeTimeoutMs, attempts } = plan
  const store = connectStore(server, life)
  const ground = { store, scope: 'shop', clock: life.clock, random: life.random, storeTimeoutMs, keepMs, tombstoneMs }
  const codec = plan.isSealed ? { codec: sealedBy(life) } : {}
  const once = createOnce({ ...ground, ...codec, sweepEveryMs: sweepEveryMs ?? false })
  const backoff = { firstMs: 50, factor: 2, maxMs: leaseMs }
  const checkout = once.operation(
    'checkout',
    {
      version,
      leaseMs,
      keepMs,
      tombstoneMs,
      onExpired,
      attemptMs,
      attempts,
      backoff,
      // A request that waits past the retention begins a new life, and its answer is then another one.
      waitMs: 0,
      ...own,
    },
    (given: OperationOp<never>, { operation }: Input) => {
      // The store's transactions of calls are others than those of steps, and `createOnce` knows the type of the former.
      const op = given as OperationOp<unknown> as Op
      return perform(stage, running, op, operation)
    },
  )
  const running: Running = { life, version, once, checkout }
  if (isWorker) once.recover([checkout], { everyMs: leaseMs })
  stage.services.set(process, running)
}

function tell(stage: Stage, text: string): void {
  stage.history.store.incidents.push({ atMs: stage.world.now(), text })
}

function crash(stage: Stage, process: Process, downMs: number): void {
  const { world, counts, plan, services } = stage
  if (!process.life || world.now() >= plan.healAtMs) return
  counts.crashes++
  tell(stage, `${process.name} crashes`)
  services.delete(process)
  process.crash()
  world.after(Math.min(downMs, plan.healAtMs - world.now()), () => {
    if (process.life) return
    tell(stage, `${process.name} starts again`)
    start(stage, process, { isWorker: true, version: newestOf(plan) })
  })
}

/** The process closes what it has, then ends, and starts again. What runs is cut off, as a time limit for the closing would. */
function deploy(stage: Stage, { process: index, downMs }: Deploy): void {
  const process = stage.processes[index]!
  const running = stage.services.get(process)
  if (!running || !process.life || stage.world.now() >= stage.plan.healAtMs) return
  const { life, once } = running
  const name = `${process.name}, deployed`
  stage.counts.deploys++
  tell(stage, `${process.name} closes`)
  stage.services.delete(process)
  stage.closing.add(name)
  life.whenOver(() => stage.closing.delete(name))
  life.arrive(0, () => {
    void once.close().then(() => {
      stage.closing.delete(name)
      // What else happens in this turn happens before the process has ended.
      stage.world.after(0, () => process.life === life && crash(stage, process, downMs))
    })
  })
}

/** A process that starts again has the code of the day. */
function newestOf({ drift }: OperationPlan): number {
  return drift ? 2 : 1
}

function happen(stage: Stage, fault: OperationFault): void {
  const { counts, processes } = stage
  if (fault.kind === 'outage') {
    counts.outages++
    return tell(stage, `nothing reaches the store for ${Math.round(fault.forMs)} ms`)
  }
  const process = processes[fault.process]!
  switch (fault.kind) {
    case 'sweep':
    case 'mend':
      return intervene(stage, process, fault)
    case 'crash':
      return crash(stage, process, fault.downMs)
    case 'pause':
      if (process.life) counts.pauses++
      tell(stage, `${process.name} stands still for ${Math.round(fault.forMs)} ms (${fault.how})`)
      return process.pause(fault.forMs, fault.how)
    case 'jump':
      process.skewMs += fault.byMs
      return tell(stage, `the wall clock of ${process.name} jumps by ${fault.byMs} ms`)
  }
}

/** What a person does, or a machine in the night. */
function intervene(stage: Stage, process: Process, fault: OperationFault & { kind: 'sweep' | 'mend' }): void {
  const running = stage.services.get(process)
  if (!running || (fault.kind === 'mend' && !stage.plan.operations[fault.key])) return
  const { life, once } = running
  if (fault.kind === 'sweep') {
    stage.counts.sweeps++
    tell(stage, `${process.name} sweeps`)
    return life.arrive(0, () => void once.store.sweep({ limit: 100 }).catch(() => {}))
  }
  stage.counts.mends++
  tell(stage, `somebody at ${process.name} wants to ${fault.action} operation ${fault.key}`)
  const subject = keyFor(fault.key)
  const { action } = fault
  const work = (): Promise<unknown> => {
    if (action === 'keep') return once.keep(subject, 2 * stage.plan.leaseMs, 'by plan')
    if (action === 'resolve') return once.resolve(subject, { value: resolved }, 'by plan')
    return once[action](subject, 'by plan')
  }
  life.arrive(0, () => void work().catch(() => {}))
}

/** The result that a person gives to an operation. */
const resolved = { results: { by: 'hand' } }

/** A client asks a process. When that fails or dies, the client asks another one, as often as planned. */
function ask(stage: Stage, planned: PlannedRequest, tries: number): void {
  const { world, processes, services, plan } = stage
  const running = services.get(processes[(planned.process + tries) % processes.length]!)
  const again = (): void => {
    const isLate = world.now() + planned.retryMs >= plan.healAtMs
    if (tries < planned.retries && !isLate) world.after(planned.retryMs, () => ask(stage, planned, tries + 1))
  }
  if (!running) return again()
  running.life.arrive(0, () => askNow(stage, running, planned, again))
}

function askNow(stage: Stage, { life, checkout }: Running, planned: PlannedRequest, again: () => void): void {
  const { world, history, counts } = stage
  const { operation, how } = planned
  const answer: OperationAnswer = {
    operation: keyString(keyFor(operation)),
    how,
    process: life.process.name,
    startedAtMs: world.now(),
  }
  history.answers.push(answer)
  life.whenOver(() => {
    if (answer.is !== undefined) return
    answer.died = true
    again()
  })
  const id = `${operation}`
  const work: Promise<unknown> =
    how === 'run'
      ? checkout.run(id, { operation }).then(({ value }) => value)
      : how === 'start'
        ? checkout.start(id, { operation })
        : how === 'cancel'
          ? checkout.cancel(id, 'by plan')
          : checkout.resume(id)
  if (how === 'cancel') counts.cancels++
  if (how === 'resume') counts.resumes++
  const ended = ({ is, text }: Pick<OperationAnswer, 'is' | 'text'>): void => {
    Object.assign(answer, { is, text, endedAtMs: world.now() })
    if (is !== 'value' && is !== 'failure') again()
  }
  work.then(
    (value) => ended({ is: 'value', text: JSON.stringify(value) }),
    (error: unknown) => ended(refusalOf(error)),
  )
}

function refusalOf(error: unknown): Required<Pick<OperationAnswer, 'is' | 'text'>> {
  if (!(error instanceof Error)) return { is: 'stray', text: String(error) }
  const { message: text } = error
  if (error instanceof FinalError) return { is: 'failure', text }
  if (error instanceof OnceError) return { is: 'refused', text: error.code }
  return { is: expectedErrors.some((pattern) => pattern.test(text)) ? 'threw' : 'stray', text }
}

const expectedErrors = [
  /^planned: /,
  /^the connection is gone$/,
  /was (undone before it came|overtaken)$/,
  /did not end within its timeoutMs of/,
  /is in doubt, and its lookup cannot tell yet\.$/,
  /^could not serialize access$/,
  /^no answer within \d+ ms$/,
]

/** The function of the operation, as it was planned. */
async function perform(stage: Stage, running: Running, op: Op, operation: number): Promise<unknown> {
  if (stage.plan.loads) await load(running, operation)
  const results: Record<string, unknown> = {}
  for (const steps of stagesOf(stage.plan, operation, running.version)) {
    await Promise.all(
      steps.map(async (planned) => {
        const { name, kind } = planned
        results[name] =
          kind === 'transaction'
            ? await op.transaction(name, transactionStep(stage, running, operation, planned))
            : await op.step(name, outsideStep(stage, running, operation, planned, kind))
      }),
    )
  }
  return { operation, results }
}

async function load({ checkout }: Running, operation: number): Promise<void> {
  await checkout.status(`${operation}`).catch((cause: unknown) => {
    throw new Error('planned: it could not load', { cause })
  })
}

function outsideStep(
  stage: Stage,
  running: Running,
  operation: number,
  planned: PlannedStep,
  system: Exclude<PlannedStep['kind'], 'transaction'>,
): Step<number> {
  const { outside } = stage
  const { name, undoable, pivot, tries, timeoutMs } = planned
  const { life } = running
  // An operation that was forgotten, or has expired, is asked for anew: the other side has forgotten it, too.
  const requestOf = ({ key: derived, fence }: StepContext) => {
    const record = lifeOf(stage, operation, fence)
    return { system, subject: subjectOf(record, name), key: `${derived}, life ${record.life}`, fence }
  }
  const does = (which: 'run' | 'undo') => (context: StepContext) =>
    behave(stage, running, operation, planned, which, context, (fate) =>
      outside.send(life, { ...requestOf(context), does: which }, fate),
    )
  const lookup: Step<number>['lookup'] = (context) => {
    const { nth } = invoke(stage, running, operation, name, 'lookup', context)
    stage.counts.lookups++
    const { unknowns, failedLookups = 0 } = planned
    const isHealed = stage.world.now() >= stage.plan.healAtMs
    if (nth < failedLookups && !isHealed) throw new Error('planned: the lookup failed')
    const isUnknown = nth < failedLookups + unknowns && !isHealed
    return outside.lookup(life, requestOf(context), isUnknown)
  }
  return {
    run: does('run'),
    ...(undoable && { undo: does('undo') }),
    ...(system === 'asked' && { lookup }),
    ...(system === 'deaf' && { inDoubt: 'park' as const }),
    ...(pivot && { pivot: true as const }),
    ...(tries > 1 && { retry: { attempts: tries, firstMs: 20 } }),
    ...(timeoutMs !== undefined && { timeoutMs }),
    ...fingerprintOf(stage, running, operation, name),
  }
}

function fingerprintOf(
  { plan }: Stage,
  { version }: Running,
  operation: number,
  step: string,
): { readonly fingerprint?: string } {
  const asked = askedWith(plan, operation, step, version)
  return asked === undefined ? {} : { fingerprint: asked }
}

function transactionStep(
  stage: Stage,
  running: Running,
  operation: number,
  planned: PlannedStep,
): TransactionStep<number, SimulatedStep> {
  const { outside } = stage
  const does = (which: 'run' | 'undo') => (tx: SimulatedStep, context: StepContext) =>
    behave(stage, running, operation, planned, which, context, async (fate) => {
      if (fate === 'declined') throw new FinalError('planned: it was declined')
      // The result of a step must be known before it commits, and its place in the ledger is not.
      const ticket = stage.tickets++
      const subject = subjectOf(lifeOf(stage, operation, context.fence), planned.name)
      await tx.writeLine(() => outside.commit(subject, which, ticket))
      return -1 - ticket
    })
  return {
    run: does('run'),
    ...(planned.undoable && { undo: does('undo') }),
    ...(planned.pivot && { pivot: true as const }),
    ...fingerprintOf(stage, running, operation, planned.name),
  }
}

/** Writes down that a function was called, and how often it was before. */
function invoke(
  stage: Stage,
  { life, version }: Running,
  operation: number,
  step: string,
  does: Invocation['does'],
  { token, fence }: StepContext,
): { readonly invocation: Invocation; readonly nth: number } {
  const { history, world, server, called, plan } = stage
  const name = keyString(keyFor(operation))
  const row = server.data.entries.get(name)
  const invocation: Invocation = {
    operation: name,
    life: lifeOf(stage, operation, fence).life,
    version,
    asked: askedWith(plan, operation, step, version),
    step,
    does,
    process: life.process.name,
    token,
    atMs: world.now(),
    recordsSeen: history.records.length,
    isHolder: row?.token === token && row.fence === fence && row.wrote === 'claim',
  }
  history.invocations.push(invocation)
  const nth = called.get(`${name} ${step} ${does}`) ?? 0
  called.set(`${name} ${step} ${does}`, nth + 1)
  return { invocation, nth }
}

const works: Behaviour = { beforeMs: 0, afterMs: 0, does: 'works' }

/** One call of a step or its undo, as it was planned. */
async function behave(
  stage: Stage,
  running: Running,
  operation: number,
  planned: PlannedStep,
  which: 'run' | 'undo',
  context: StepContext,
  send: (fate: OutsideFate) => Promise<number>,
): Promise<number> {
  const { life } = running
  // Where nothing is deduplicated, code that goes on after its time limit does twice what is tried again.
  const mayGoOn = (): boolean => planned.kind !== 'asked' || !context.signal.aborted
  const { invocation, nth } = invoke(stage, running, operation, planned.name, which, context)
  const behaviour = (which === 'run' ? planned.runs : planned.undos)[nth] ?? works
  if (which === 'undo') stage.counts.undos++
  // What a transaction has not committed by then never becomes visible.
  let isActive = planned.kind !== 'transaction'
  if (isActive) stage.active++
  const end = (how: string): void => {
    invocation.ended = how
    if (isActive) stage.active--
    isActive = false
  }
  life.whenOver(() => end('died'))
  try {
    const value = await carryOut(life, behaviour, mayGoOn, send, () => end('hangs'))
    end('returned')
    return value
  } catch (error) {
    end(String(error))
    throw error
  }
}

async function carryOut(
  life: Life,
  { beforeMs, afterMs, does }: Behaviour,
  mayGoOn: () => boolean,
  send: (fate: OutsideFate) => Promise<number>,
  onHang: () => void,
): Promise<number> {
  if (beforeMs > 0) await sleep(life.clock, beforeMs)
  if (does === 'throws' || !mayGoOn()) throw new Error('planned: it failed')
  if (does === 'not-begun') throw new NotBegunError('planned: it never began')
  const isFate = does === 'lose-request' || does === 'lose-reply' || does === 'late-request'
  const value = await send(does === 'final' ? 'declined' : isFate ? does : 'arrives')
  if (afterMs > 0) await sleep(life.clock, afterMs)
  if (does === 'throws-after') throw new Error('planned: it failed after it was done')
  if (does !== 'hangs') return value
  onHang()
  return new Promise(() => {})
}

/** After the last fault, workers finish what they can, a person decides the rest, and then everything is closed. */
function heal(stage: Stage): void {
  tell(stage, 'all faults are over')
  const judge = stage.world.createProcess('judge')
  start(stage, judge, { isWorker: true, version: newestOf(stage.plan) })
  void finishAll(stage, stage.services.get(judge)!).then(() => {
    for (const [{ name }, { once }] of stage.services) {
      stage.closing.add(name)
      void once.close().then(() => stage.closing.delete(name))
    }
  })
}

/**
 * An operation that the store handed to a worker, and that the worker could not resume, is not handed out again for ten seconds,
 * a few times over.
 */
const patienceMs = 600_000

async function finishAll(stage: Stage, running: Running): Promise<void> {
  const { plan, server } = stage
  const { clock } = running.life
  const untilMs = clock.elapsed() + patienceMs
  for (let isOver = false; !isOver && clock.elapsed() <= untilMs;) {
    await sleep(clock, plan.leaseMs)
    isOver = !isUnderWay(stage)
    for (const index of plan.operations.keys()) {
      const name = keyString(keyFor(index))
      const entry = server.data.entries.get(name)
      if (entry?.wrote === 'settle' || presentOf(stage, index)?.isLeft) continue
      // A claim that was taken back unheard leaves what was recorded with it to the next worker, which dismisses it.
      if (!entry && !server.data.operations.has(name)) continue
      isOver = false
      if (entry) await decideParked(stage, running, index)
    }
  }
  for (const operation of stage.history.operations) tellEnd(stage, operation)
  for (const index of plan.operations.keys()) {
    const present = presentOf(stage, index)
    if (!present || present.end) continue
    const status = await running.checkout.status(`${index}`).catch(() => undefined)
    if (status) present.end = { state: status.state, text: '', results: {}, atMs: Infinity }
  }
}

/**
 * A request that comes late, or that the network delivers once more, may begin a life after everything else has ended, and a
 * worker must be there.
 */
function isUnderWay({ history, plan, world }: Stage): boolean {
  return (
    plan.requests.some(({ atMs }) => atMs >= world.now()) ||
    history.answers.some(({ is, died }) => is === undefined && !died) ||
    history.store.operations.some(({ failed, decidedAtMs }) => failed === undefined && decidedAtMs === undefined)
  )
}

/** The last life of the operation. */
function presentOf({ history }: Stage, index: number): OperationRecord | undefined {
  return history.operations.findLast(({ key: name }) => name === keyString(keyFor(index)))
}

/** What became of a life, by the audit trail of the entry. */
function tellEnd(stage: Stage, operation: OperationRecord): void {
  const { changes, operations } = stage.history.store
  const { key: name, life, lifeFence } = operation
  const next = stage.history.operations.find((each) => each.key === name && each.life === life + 1)
  const untilFence = next?.lifeFence ?? Infinity
  for (const { key: changed, before, after, atMs, by } of changes) {
    const fence = (after ?? before)!.fence
    if (changed !== name || fence < lifeFence || fence >= untilFence) continue
    const cause = by === undefined ? undefined : operations[by]
    if (!after && cause?.call === 'mend') operation.isForgotten = true
    if (after?.wrote !== 'settle' || !after.outcome || operation.end) continue
    if (after.keepMs + after.tombstoneMs === 0) {
      operation.isDiscarded = true
      continue
    }
    if (cause?.call === 'mend') operation.isResolved = true
    operation.end = endOf(stage, decodeOutcome(after.outcome, codecOf(stage), key('shop', 'any')), atMs)
  }
}

function endOf(stage: Stage, outcome: Outcome, atMs: number): OperationEnd {
  if (outcome.kind === 'failure') return { state: 'failed', text: outcome.error.message, results: {}, atMs }
  const value = outcome.kind === 'value' ? outcome.value : undefined
  const results = (value as { results?: Record<string, unknown> } | undefined)?.results ?? {}
  return { state: 'completed', text: JSON.stringify(value), results: placesOf(stage, results), atMs }
}

/** The place of a transaction's line in the ledger was not known beforehand. */
function placesOf({ outside }: Stage, results: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(results).map(([name, at]) => [name, Number(at) < 0 ? outside.placeOf(-1 - Number(at)) : at]),
  )
}

/** A person looks into the ledger of the other side when nothing is under way any more, and decides. */
async function decideParked(stage: Stage, { checkout }: Running, index: number): Promise<void> {
  const { server, outside, counts, plan } = stage
  const operation = presentOf(stage, index)
  const recorded = operation && server.data.operations.get(operation.key)
  const row = operation && server.data.entries.get(operation.key)
  const isHeld = row?.wrote === 'claim' && row.leaseUntilMs > server.data.now()
  if (!recorded || recorded.dueAtMs !== undefined || isHeld || stage.active > 0 || outside.underWay() > 0) return
  const status = await checkout.status(`${index}`).catch(() => undefined)
  if (!status) return
  // Somebody may have cancelled it while it was looked at.
  const isStill =
    server.data.entries.get(operation.key)?.attempt === row?.attempt &&
    server.data.operations.get(operation.key)?.dueAtMs === undefined
  if (status.state !== 'parked' && status.state !== 'running' && isStill) operation.shownAs = status.state
  if (status.state !== 'parked') return
  counts.parks++
  if (plan.drift && isBeyondHelp(status)) {
    operation.isLeft = true
    counts.left++
    return tell(stage, `a person finds that the code of ${index} has changed, and leaves it`)
  }
  const deaf = plan.operations[index]!.stages.flat().filter(({ kind }) => kind === 'deaf')
  const decide = Object.fromEntries(
    deaf
      .filter(({ name }) => status.inDoubt.includes(name))
      .map(({ name }) => {
        const found = outside.find(subjectOf(operation, name))
        return [name, found === undefined ? ('not-found' as const) : { found }]
      }),
  )
  outside.reconsider()
  tell(stage, `a person resumes ${index}: ${JSON.stringify(decide)}`)
  await checkout.resume(`${index}`, { decide }).catch(() => {})
}

/** Only the old code could undo the step that is not asked for any more, or go on with one that is asked for otherwise. */
function isBeyondHelp({ steps, lastError = '' }: OperationStatus): boolean {
  const stuck = steps.filter(({ state }) => state === 'stuck')
  const isUnknown = stuck.some(({ error = '' }) => error.includes('so its undo is not known'))
  return isUnknown || (stuck.length === 0 && lastError.includes('asked for before with another fingerprint'))
}

async function sweepAll({ world, server, plan, history }: Stage): Promise<number> {
  let leftovers = 0
  // A person may have kept it for two leases.
  const afterMs = plan.leaseMs + Math.max(plan.keepMs, 2 * plan.leaseMs) + plan.tombstoneMs
  world.after(afterMs, () => {
    void server
      .open()
      .sweep({ limit: Number.MAX_SAFE_INTEGER })
      .then(() => (leftovers = server.data.entries.size + server.data.operations.size))
  })
  await world.run(world.now() + afterMs)
  return history.operations.some(({ isLeft }) => isLeft) ? 0 : leftovers
}

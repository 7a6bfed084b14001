// Runs one plan of operations: the shipped core in several processes with workers, on simulated rows and beside simulated
// outside systems. Faults first; then everything is healed, workers finish what they find without any client, a person decides
// what is parked by the ledger, and every operation must end.

import { sleep } from '../../src/core/clock.ts'
import { FinalError, NotBegunError, OnceError } from '../../src/core/errors.ts'
import { key, keyString } from '../../src/core/key.ts'
import type { Key } from '../../src/core/key.ts'
import { createOnce } from '../../src/core/once.ts'
import type { Once } from '../../src/core/once.ts'
import type { Operation } from '../../src/core/operation.ts'
import type { OperationOp, Step, StepContext, TransactionStep } from '../../src/core/operation-steps.ts'
import { emptyHistory } from '../../src/testing/history-checker-history.ts'
import { subjectOf } from '../../src/testing/history-checker-operations.ts'
import type { Invocation, OperationAnswer, OperationHistory } from '../../src/testing/history-checker-operations.ts'
import { createNetwork } from '../../src/testing/simulation-network.ts'
import type { Network } from '../../src/testing/simulation-network.ts'
import type { SimulatedStep } from '../../src/testing/simulation-operations.ts'
import { createOutside } from '../../src/testing/simulation-outside.ts'
import type { Outside, OutsideFate } from '../../src/testing/simulation-outside.ts'
import { createServer } from '../../src/testing/simulation-server.ts'
import type { SimulatedServer, WrongStore } from '../../src/testing/simulation-server.ts'
import { connectStore } from '../../src/testing/simulation-store.ts'
import type { SimulatedStore } from '../../src/testing/simulation-store.ts'
import { createWorld } from '../../src/testing/simulation-world.ts'
import type { Life, Process, World } from '../../src/testing/simulation-world.ts'
import { noOperationCounts } from './operation-counts.ts'
import type { OperationCounts } from './operation-counts.ts'
import type { Behaviour, OperationFault, OperationPlan, PlannedRequest, PlannedStep } from './operation-plan.ts'

type Op = OperationOp<SimulatedStep>
type Input = { readonly operation: number }

/** What can be made wrong, to see whether the checker notices. */
export interface WrongOperation {
  readonly store?: WrongStore
  /** Replaces what the function of the operation is given. */
  readonly op?: (op: Op) => Op
  /** Replaces the store as a process sees it. */
  readonly connection?: (store: SimulatedStore, server: SimulatedServer) => SimulatedStore
}

export interface OperationRun {
  readonly plan: OperationPlan
  readonly history: OperationHistory
  readonly counts: OperationCounts
  readonly traceHash: number
  readonly rested: boolean
  readonly unclosed: readonly string[]
}

interface Running {
  readonly life: Life
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
  readonly wrong: WrongOperation
  readonly processes: readonly Process[]
  readonly services: Map<Process, Running>
  readonly closing: Set<string>
  /** How often each step, undo and lookup was called. */
  readonly called: Map<string, number>
  /** Functions of steps outside of transactions that are under way in a life that is not over. */
  active: number
  /** Given out to what is written in transactions. */
  tickets: number
}

export async function runOperationPlan(
  plan: OperationPlan,
  options: { readonly wrong?: WrongOperation; readonly drain?: 'quick' | 'thorough' } = {},
): Promise<OperationRun> {
  const stage = setStage(plan, options.wrong ?? {}, options.drain ?? 'quick')
  const { world, history, counts } = stage
  for (const [index, process] of stage.processes.entries()) start(stage, process, plan.processes[index]!.isWorker)
  for (const request of plan.requests) world.after(request.atMs, () => ask(stage, request, 0))
  for (const fault of plan.worldFaults) world.after(fault.atMs, () => happen(stage, fault))
  world.after(plan.healAtMs, () => heal(stage))
  const rested = await world.run(plan.healAtMs + restMs)
  Object.assign(counts, stage.network.counts)
  for (const { is } of history.answers) world.note(is?.length ?? 1)
  for (const { end } of history.operations) world.note(end?.text.length ?? 1)
  return { plan, history, counts, traceHash: world.traceHash(), rested, unclosed: [...stage.closing] }
}

/** Ten times what the longest chain of attempts, holds of workers and decisions takes. */
const restMs = 3_600_000

function setStage(plan: OperationPlan, wrong: WrongOperation, drain: 'quick' | 'thorough'): Stage {
  const counts = noOperationCounts()
  counts.schedules = 1
  const world = createWorld({ seed: plan.seed, drain })
  const { latencyMs, refusesOvertaken, leaseMs, healAtMs } = plan
  const outside = createOutside(world, { latencyMs, refusesOvertaken, lateMs: leaseMs * 1.7 })
  const history: OperationHistory = {
    store: emptyHistory(),
    operations: plan.operations.map(({ stages }, index) => ({
      key: keyString(keyFor(index)),
      steps: stages.flatMap((steps, stageAt) =>
        steps.map(({ name, kind, undoable, pivot }) => ({ name, kind, undoable, pivot, stage: stageAt })),
      ),
    })),
    invocations: [],
    ledger: outside.ledger,
    records: [],
    answers: [],
  }
  const outages = plan.worldFaults
    .filter((fault) => fault.kind === 'outage')
    .map(({ atMs, forMs }) => ({ fromMs: atMs, untilMs: Math.min(atMs + forMs, healAtMs) }))
  const network = createNetwork(world, history.store, {
    faults: plan.messageFaults,
    faultsUntilMs: healAtMs,
    outages,
    latencyMs,
    crash: (process) => crash(stage, process, crashedOnDecisionMs),
  })
  const server = createServer(world, network, history.store, {
    conflictChance: plan.conflictChance,
    wrong: wrong.store,
    onRecords: (change) => history.records.push(change),
  })
  const processes = plan.processes.map(({ name, skewMs, rate }) => world.createProcess(name, { skewMs, rate }))
  const services = new Map<Process, Running>()
  const told = { closing: new Set<string>(), called: new Map<string, number>(), active: 0, tickets: 0 }
  const stage: Stage = { plan, world, network, server, outside, history, counts, wrong, processes, services, ...told }
  return stage
}

const crashedOnDecisionMs = 200

function keyFor(operation: number): Key {
  return key('shop/operations/checkout', `${operation}`)
}

function start(stage: Stage, process: Process, isWorker: boolean): void {
  const { plan, server, wrong } = stage
  const life = process.start()
  const { leaseMs, attemptMs, storeTimeoutMs, attempts } = plan
  const connected = connectStore(server, life)
  const store = wrong.connection?.(connected, server) ?? connected
  const once = createOnce({ store, scope: 'shop', clock: life.clock, random: life.random, storeTimeoutMs })
  const backoff = { firstMs: 50, factor: 2, maxMs: leaseMs }
  const checkout = once.operation(
    'checkout',
    { leaseMs, attemptMs, attempts, backoff },
    (given: OperationOp<never>, { operation }: Input) => {
      // The store's transactions of calls are others than those of steps, and `createOnce` knows the type of the former.
      const op = given as OperationOp<unknown> as Op
      return perform(stage, life, wrong.op?.(op) ?? op, operation)
    },
  )
  if (isWorker) once.recover([checkout], { everyMs: leaseMs })
  stage.services.set(process, { life, once, checkout })
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
    start(stage, process, true)
  })
}

function happen(stage: Stage, fault: OperationFault): void {
  const { counts, processes } = stage
  if (fault.kind === 'outage') {
    counts.outages++
    return tell(stage, `nothing reaches the store for ${Math.round(fault.forMs)} ms`)
  }
  const process = processes[fault.process]!
  switch (fault.kind) {
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

/** A client asks a process; when that fails or dies, it asks another one, as often as planned. */
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
  life.whenOver(() => answer.is === undefined && again())
  const id = `${operation}`
  const work: Promise<unknown> =
    how === 'run'
      ? checkout.run(id, { operation }).then(({ value }) => value)
      : how === 'start'
        ? checkout.start(id, { operation })
        : checkout.cancel(id, 'by plan')
  if (how === 'cancel') counts.cancels++
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
async function perform(stage: Stage, life: Life, op: Op, operation: number): Promise<unknown> {
  const results: Record<string, unknown> = {}
  for (const steps of stage.plan.operations[operation]!.stages) {
    await Promise.all(
      steps.map(async (planned) => {
        const { name, kind } = planned
        results[name] =
          kind === 'transaction'
            ? await op.transaction(name, transactionStep(stage, life, operation, planned))
            : await op.step(name, outsideStep(stage, life, operation, planned, kind))
      }),
    )
  }
  return { operation, results }
}

function outsideStep(
  stage: Stage,
  life: Life,
  operation: number,
  planned: PlannedStep,
  system: Exclude<PlannedStep['kind'], 'transaction'>,
): Step<number> {
  const { outside } = stage
  const { name, undoable, pivot, tries, timeoutMs } = planned
  const subject = subjectOf(keyString(keyFor(operation)), name)
  const does = (which: 'run' | 'undo') => (context: StepContext) =>
    behave(stage, life, operation, planned, which, context, (fate) =>
      outside.send(life, { system, subject, does: which, key: context.key, fence: context.fence }, fate),
    )
  const lookup: Step<number>['lookup'] = ({ key: asked, fence, token }) => {
    const { nth } = invoke(stage, life, operation, name, 'lookup', token)
    stage.counts.lookups++
    const isUnknown = nth < planned.unknowns && stage.world.now() < stage.plan.healAtMs
    return outside.lookup(life, { system, subject, key: asked, fence }, isUnknown)
  }
  return {
    run: does('run'),
    ...(undoable && { undo: does('undo') }),
    ...(system === 'asked' && { lookup }),
    ...(system === 'deaf' && { inDoubt: 'stop' as const }),
    ...(pivot && { pivot: true as const }),
    ...(tries > 1 && { retry: { attempts: tries, firstMs: 20 } }),
    ...(timeoutMs !== undefined && { timeoutMs }),
  }
}

function transactionStep(
  stage: Stage,
  life: Life,
  operation: number,
  planned: PlannedStep,
): TransactionStep<number, SimulatedStep> {
  const { outside } = stage
  const subject = subjectOf(keyString(keyFor(operation)), planned.name)
  const does = (which: 'run' | 'undo') => (tx: SimulatedStep, context: StepContext) =>
    behave(stage, life, operation, planned, which, context, async (fate) => {
      if (fate === 'declined') throw new FinalError('planned: it was declined')
      // What a step comes to must be known before it commits, and where it will stand in the ledger is not.
      const ticket = stage.tickets++
      await tx.writeLine(() => outside.commit(subject, which, ticket))
      return -1 - ticket
    })
  return {
    run: does('run'),
    ...(planned.undoable && { undo: does('undo') }),
    ...(planned.pivot && { pivot: true as const }),
  }
}

/** Writes down that a function was called, and how often it was before. */
function invoke(
  stage: Stage,
  life: Life,
  operation: number,
  step: string,
  does: Invocation['does'],
  token: string,
): { readonly invocation: Invocation; readonly nth: number } {
  const { history, world, server, called } = stage
  const name = keyString(keyFor(operation))
  const row = server.data.entries.get(name)
  const invocation: Invocation = {
    operation: name,
    step,
    does,
    process: life.process.name,
    token,
    atMs: world.now(),
    recordsSeen: history.records.length,
    isHolder: row?.token === token && row.wrote === 'claim',
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
  life: Life,
  operation: number,
  planned: PlannedStep,
  which: 'run' | 'undo',
  context: StepContext,
  send: (fate: OutsideFate) => Promise<number>,
): Promise<number> {
  const { token } = context
  // Where nothing is deduplicated, code that goes on after its time is over does twice what is tried again.
  const mayGoOn = (): boolean => planned.kind !== 'asked' || !context.signal.aborted
  const { invocation, nth } = invoke(stage, life, operation, planned.name, which, token)
  const behaviour = (which === 'run' ? planned.runs : planned.undos)[nth] ?? works
  if (which === 'undo') stage.counts.undos++
  // What a transaction has not committed by then, nobody will ever see.
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

/** Faults are over: workers finish what they can, a person decides the rest, and then everything is closed. */
function heal(stage: Stage): void {
  tell(stage, 'all faults are over')
  const judge = stage.world.createProcess('judge')
  start(stage, judge, true)
  void finishAll(stage, stage.services.get(judge)!).then(() => {
    for (const [{ name }, { once }] of stage.services) {
      stage.closing.add(name)
      void once.close().then(() => stage.closing.delete(name))
    }
  })
}

/** What a worker was told of and could not take up is not told again for ten seconds, and that a few times over. */
const patienceMs = 600_000

async function finishAll(stage: Stage, running: Running): Promise<void> {
  const { plan, history } = stage
  const { clock } = running.life
  const untilMs = clock.elapsed() + patienceMs
  for (;;) {
    await sleep(clock, plan.leaseMs)
    let isOver = true
    for (const [index, { key: name }] of history.operations.entries()) {
      const entry = stage.server.data.entries.get(name)
      if (!entry || entry.wrote === 'settle') continue
      isOver = false
      await decideParked(stage, running, index)
    }
    if (isOver || clock.elapsed() > untilMs) break
  }
  for (const [index, operation] of history.operations.entries()) {
    const status = await running.checkout.status(`${index}`).catch(() => undefined)
    if (!status) continue
    const { state, outcome } = status
    const value = outcome?.kind === 'value' ? outcome.value : undefined
    const text = outcome?.kind === 'failure' ? outcome.error.message : JSON.stringify(value)
    const results = (value as { results?: Record<string, unknown> } | undefined)?.results ?? {}
    operation.end = { state, text: text ?? '', results: placesOf(stage, results) }
  }
}

/** A transaction's line came into the ledger where nobody could tell beforehand. */
function placesOf({ outside }: Stage, results: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(results).map(([name, at]) => [name, Number(at) < 0 ? outside.placeOf(-1 - Number(at)) : at]),
  )
}

/** A person looks into the ledger of the other side when nothing is under way any more, and decides. */
async function decideParked(stage: Stage, { checkout }: Running, index: number): Promise<void> {
  const { server, outside, history, counts, plan } = stage
  const operation = history.operations[index]!
  const recorded = server.data.operations.get(operation.key)
  const row = server.data.entries.get(operation.key)
  const isHeld = row?.wrote === 'claim' && row.leaseUntilMs > server.data.now()
  if (!recorded || recorded.dueAtMs !== undefined || isHeld || stage.active > 0 || outside.underWay > 0) return
  const status = await checkout.status(`${index}`).catch(() => undefined)
  if (!status) return
  if (status.state !== 'parked' && status.state !== 'running') operation.shownAs = status.state
  if (status.state !== 'parked') return
  counts.parks++
  const deaf = plan.operations[index]!.stages.flat().filter(({ kind }) => kind === 'deaf')
  const decide = Object.fromEntries(
    deaf
      .filter(({ name }) => status.inDoubt.includes(name))
      .map(({ name }) => {
        const found = outside.find(subjectOf(operation.key, name))
        return [name, found === undefined ? ('not-found' as const) : { found }]
      }),
  )
  outside.reconsider()
  tell(stage, `a person resumes ${index}: ${JSON.stringify(decide)}`)
  await checkout.resume(`${index}`, { decide }).catch(() => {})
}

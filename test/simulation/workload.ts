// Runs one plan: the shipped core in several processes, on a simulated network in front of simulated rows. Faults come first.
// Then everything is healed, every key is asked for once more, and all must reach an end that the checker finds no fault with.

import { sleep } from '../../src/core/clock.ts'
import { FinalError, InDoubtError, NotBegunError, OnceError } from '../../src/core/errors.ts'
import type { Op, Result } from '../../src/core/call.ts'
import { keyString } from '../../src/core/key.ts'
import { createOnce } from '../../src/core/once.ts'
import type { Once } from '../../src/core/once.ts'
import type { OnceOptions, RunOptions } from '../../src/core/settings.ts'
import { emptyHistory } from '../../src/testing/history-checker.ts'
import type { CallAnswer, CallRecord, ExecutionRecord, History } from '../../src/testing/history-checker.ts'
import { createNetwork } from './world/network.ts'
import type { Network } from './world/network.ts'
import { createRedis } from './world/redis.ts'
import type { SimulatedRedis } from './world/redis.ts'
import { createServer } from './world/server.ts'
import type { SimulatedServer } from './world/server.ts'
import { connectStore } from './world/store.ts'
import type { SimulatedStore } from './world/store.ts'
import type { SimulatedTransaction } from './world/transactions.ts'
import { createWorld } from './world/world.ts'
import type { Drain, Life, Process, World } from './world/world.ts'
import { noCounts } from './counts.ts'
import type { Counts } from './counts.ts'
import { keys } from './plan.ts'
import type { Deploy, Plan, PlannedCall, PlannedEffect, PlannedProcess, WorldFault } from './plan.ts'
import { sealedBy } from './sealed.ts'

export interface Run {
  readonly plan: Plan
  readonly history: History
  readonly counts: Counts
  readonly traceHash: number
  /** Whether everything was at rest when all that ran had been closed. */
  readonly rested: boolean
  /** Processes whose `close` never came back. */
  readonly unclosed: readonly string[]
  /** What was still stored after all retention and a sweep. */
  readonly leftovers: number
  /** Keys that a Redis which had lost writes gave to a process that knew of those writes. */
  readonly givenBlindly: readonly string[]
}

export type Service = Once<SimulatedStore>

interface Running {
  readonly life: Life
  readonly once: Service
}

interface Stage {
  readonly plan: Plan
  readonly world: World
  readonly network: Network
  readonly server: SimulatedServer
  /** Instead of the rows of the server, where the plan is about a Redis. */
  readonly redis: SimulatedRedis | undefined
  readonly history: History
  readonly counts: Counts
  readonly processes: readonly Process[]
  readonly services: Map<Process, Running>
  /** Processes that were asked to close and have not reported that they did. */
  readonly closing: Set<string>
}

export async function runPlan(plan: Plan, { drain = 'quick' }: { readonly drain?: Drain } = {}): Promise<Run> {
  const stage = setStage(plan, drain)
  const { world, processes, history, counts } = stage
  for (const [index, process] of processes.entries()) start(stage, process, plan.processes[index]!)
  for (const call of plan.calls) world.after(call.atMs, () => ask(stage, call, 0))
  for (const planned of plan.deploys) world.after(planned.atMs, () => deploy(stage, planned))
  for (const fault of plan.worldFaults) {
    world.after(fault.atMs, () => happen(stage, fault))
    if (fault.kind === 'loss') world.after(fault.rememberedAtMs, () => stage.redis?.remember())
  }
  world.after(plan.healAtMs, () => heal(stage))
  const rested = await world.run(plan.healAtMs + restMs)
  const leftovers = await sweepAll(stage)
  Object.assign(counts, stage.network.counts)
  for (const { answer } of history.calls)
    world.note(answer ? answer.is.length + (answer.is === 'refused' ? answer.code.length : 0) : 1)
  stage.redis?.markUntold()
  const left = { unclosed: [...stage.closing], leftovers, givenBlindly: stage.redis?.givenBlindly ?? [] }
  return { plan, history, counts, traceHash: world.traceHash(), rested, ...left }
}

/** Whatever goes on for so long after the last fault will go on forever: it is ten times the longest deadline. */
const restMs = 1_200_000

function setStage(plan: Plan, drain: Drain): Stage {
  const history = emptyHistory()
  const counts = noCounts()
  counts.schedules = 1
  if (plan.weather === 'calm') counts.calm = 1
  if (plan.isSealed) counts.sealed = 1
  if (plan.processes.some(({ times }) => times)) counts.mixed = 1
  if (plan.healAtMs > weekMs) counts.idle = 1
  if (plan.processes.some(({ isNative }) => isNative)) counts.native = 1
  const world = createWorld({ seed: plan.seed, drain })
  const outages = plan.worldFaults
    .filter((fault) => fault.kind === 'outage')
    .map(({ atMs, forMs }) => ({ fromMs: atMs, untilMs: Math.min(atMs + forMs, plan.healAtMs) }))
  const network = createNetwork(world, history, {
    faults: plan.messageFaults,
    faultsUntilMs: plan.healAtMs,
    outages,
    latencyMs: plan.latencyMs,
    crash: (process) => crash(stage, process, crashedOnDecisionMs),
  })
  const server = createServer(world, network, history, { conflictChance: plan.conflictChance })
  const processes = plan.processes.map(({ name, skewMs, rate }) => world.createProcess(name, { skewMs, rate }))
  const stage: Stage = {
    plan,
    world,
    network,
    server,
    redis: plan.core === 'redis' ? createRedis(world, network, history) : undefined,
    history,
    counts,
    processes,
    services: new Map(),
    closing: new Set(),
  }
  return stage
}

const crashedOnDecisionMs = 200
const weekMs = 7 * 24 * 3_600_000

function start(stage: Stage, process: Process, planned: Partial<PlannedProcess>): void {
  const { plan, server } = stage
  const life = process.start()
  const { leaseMs, keepMs, tombstoneMs, attemptMs, storeTimeoutMs } = plan
  const options: OnceOptions<SimulatedStore> = {
    store: stage.redis ? redisStoreOf(stage.redis, life, plan) : connectStore(server, life),
    scope: 'shop',
    clock: life.clock,
    random: life.random,
    leaseMs,
    keepMs,
    tombstoneMs,
    attemptMs,
    storeTimeoutMs,
    sweepEveryMs: planned.sweepEveryMs ?? false,
    ...planned.times,
    ...(plan.isSealed && { codec: sealedBy(life) }),
  }
  stage.services.set(process, { life, once: createOnce(options) })
}

/** Its own patience ends before that of the core. It has no transactions, and no plan for it asks for one. */
function redisStoreOf(redis: SimulatedRedis, life: Life, { storeTimeoutMs, processes, hasIfEq }: Plan): SimulatedStore {
  const isNative = processes.find(({ name }) => name === life.process.name)?.isNative
  const way = hasIfEq ? 'ifeq' : 'swaps'
  return redis.connect(life, storeTimeoutMs - 5, isNative ? way : 'scripts') as unknown as SimulatedStore
}

function tell(stage: Stage, text: string): void {
  stage.history.incidents.push({ atMs: stage.world.now(), text })
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
    start(stage, process, {})
  })
}

/** The process closes what it has, then ends, and starts again. */
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

function happen(stage: Stage, fault: WorldFault): void {
  const { counts, processes, services } = stage
  if (fault.kind === 'outage') {
    counts.outages++
    return tell(stage, `nothing reaches the store for ${Math.round(fault.forMs)} ms`)
  }
  if (fault.kind === 'loss') {
    counts.losses++
    stage.redis?.lose(fault.how)
    return tell(stage, `Redis is restarted and has lost data: ${fault.how}`)
  }
  const process = processes[fault.process]!
  const service = services.get(process)
  if (!service) return
  switch (fault.kind) {
    case 'crash':
      return crash(stage, process, fault.downMs)
    case 'pause':
      counts.pauses++
      tell(stage, `${process.name} stands still for ${Math.round(fault.forMs)} ms (${fault.how})`)
      return process.pause(fault.forMs, fault.how)
    case 'jump':
      counts.clockJumps++
      process.skewMs += fault.byMs
      return tell(stage, `the wall clock of ${process.name} jumps by ${fault.byMs} ms`)
    case 'sweep':
      tell(stage, `${process.name} sweeps`)
      return service.life.arrive(0, () => void service.once.store.sweep({ limit: 100 }).catch(() => {}))
    case 'mend':
      return mend(stage, service, fault)
  }
}

/** What a person does manually. A person who resolves a key has found out which execution took effect. */
function mend(stage: Stage, { life, once }: Running, { key: index, action }: WorldFault & { kind: 'mend' }): void {
  const key = keys[index]!
  const found = action === 'resolve' ? lastEffectOf(stage, keyString(key)) : undefined
  if (action === 'resolve' && !found) return
  tell(stage, `somebody at ${life.process.name} wants to ${action} ${key.scope}/${key.id}`)
  const work = (): Promise<unknown> => {
    if (action === 'keep') return once.keep(key, 2 * stage.plan.leaseMs, 'by plan')
    return action === 'resolve' ? once.resolve(key, { value: found! }, 'by plan') : once[action](key, 'by plan')
  }
  life.arrive(0, () => void work().catch(() => {}))
}

/** What an effect returns. */
interface Effected {
  readonly key: string
  readonly asked: string
  readonly execution: number
}

/** What the last execution of this key would have returned, when its claim is the last one and its effect took place. */
function lastEffectOf({ history }: Stage, key: string): Effected | undefined {
  const row = history.changes.findLast((each) => each.key === key)?.after
  const execution = history.executions.findIndex(({ token }) => token === row?.token)
  if (!row || row.wrote === 'settle' || !history.effects.some((each) => each.execution === execution)) return undefined
  return { key, asked: history.executions[execution]!.call.asked, execution }
}

/** A client asks a process. When that fails or dies, the client asks another one, as often as planned. */
function ask(stage: Stage, planned: PlannedCall, tries: number): void {
  const { world, processes, services, plan } = stage
  const process = processes[(planned.process + tries) % processes.length]!
  const service = services.get(process)
  const again = (): void => {
    const isLate = world.now() + planned.retryMs >= plan.healAtMs
    if (tries < planned.retries && !isLate) world.after(planned.retryMs, () => ask(stage, planned, tries + 1))
  }
  if (!service) return again()
  service.life.arrive(0, () => askNow(stage, service, planned, tries, again))
}

function askNow(stage: Stage, running: Running, planned: PlannedCall, tries: number, again: () => void): void {
  const { waitMs, onTakeover, onExpired, onThrow, asked, how } = planned
  const effect = planned.effects[Math.min(tries, planned.effects.length - 1)]!
  const call = { key: keys[planned.key]!, asked, how, phase: 'first', waitMs } as const
  const { record, answered } = makeCall(stage, running, call, effect, { onTakeover, onExpired, onThrow })
  running.life.whenOver(() => {
    if (record.answer) return
    record.died = true
    again()
  })
  void answered.then((answer) => {
    if (answer.is === 'threw' || answer.is === 'stray' || (answer.is === 'refused' && isRetryable(answer.code))) again()
  })
}

function isRetryable(code: string): boolean {
  return code !== 'MISMATCH' && code !== 'EXPIRED' && code !== 'IN_DOUBT'
}

function makeCall(
  stage: Stage,
  { life, once }: Running,
  call: Pick<CallRecord, 'key' | 'asked' | 'how' | 'phase' | 'waitMs'>,
  effect: PlannedEffect,
  options: RunOptions,
): { readonly record: CallRecord; readonly answered: Promise<CallAnswer> } {
  const { world, history } = stage
  const record: CallRecord = { ...call, process: life.process.name, startedAtMs: world.now() }
  history.calls.push(record)
  const all = { ...options, fingerprint: call.asked, waitMs: call.waitMs }
  const result: Promise<Result<unknown>> =
    call.how === 'run'
      ? once.run(call.key, (op) => perform(stage, life, record, effect, op, undefined), all)
      : once.transaction(call.key, (tx, op) => perform(stage, life, record, effect, op, tx), all)
  const answered = result
    .then(({ value, replayed }) => answerOf(value, replayed), refusalOf)
    .then((answer) => {
      record.endedAtMs = world.now()
      return (record.answer = answer)
    })
  return { record, answered }
}

function answerOf(value: unknown, replayed: boolean): CallAnswer {
  return { is: 'value', text: JSON.stringify(value), execution: (value as { execution: number }).execution, replayed }
}

function refusalOf(error: unknown): CallAnswer {
  if (!(error instanceof Error)) return { is: 'stray', message: String(error) }
  const { message } = error
  const execution = Number(/execution (\d+)/.exec(message)?.[1] ?? -1)
  if (error instanceof FinalError) return { is: 'failure', text: message, execution, replayed: false }
  if (error instanceof OnceError) return { is: 'refused', code: error.code, executed: error.executed, message }
  return execution >= 0 ? { is: 'threw', message, execution } : { is: 'stray', message }
}

/** The effect, under the eyes of the history. */
async function perform(
  stage: Stage,
  life: Life,
  call: CallRecord,
  planned: PlannedEffect,
  op: Op,
  tx: SimulatedTransaction | undefined,
): Promise<unknown> {
  const { history, world } = stage
  const { attempt, token, fence } = op
  const derivedKey = op.keyFor('charge')
  const record: ExecutionRecord = { call, token, attempt, fence, derivedKey, startedAtMs: world.now() }
  const execution = history.executions.push(record) - 1
  op.signal.addEventListener('abort', () => (record.abortedAtMs = world.now()), { once: true })
  const write = async (): Promise<void> => {
    if (tx) await tx.write(execution)
    else history.effects.push({ execution, atMs: world.now(), transactional: false })
  }
  try {
    await carryOut(life, planned, op, `execution ${execution}`, write)
    record.ended = 'returned'
    return { key: keyString(op.key), asked: call.asked, execution }
  } catch (error) {
    record.ended = endOf(error)
    throw error
  } finally {
    record.endedAtMs = world.now()
  }
}

function endOf(error: unknown): NonNullable<ExecutionRecord['ended']> {
  if (error instanceof FinalError) return 'final'
  if (error instanceof NotBegunError) return 'not-begun'
  return error instanceof InDoubtError ? 'doubt' : 'threw'
}

/** The effect, as it was planned. */
async function carryOut(
  life: Life,
  { beforeMs, afterMs, ends }: PlannedEffect,
  op: Op,
  name: string,
  write: () => Promise<void>,
): Promise<void> {
  if (beforeMs > 0) await sleep(life.clock, beforeMs)
  if (ends === 'not-begun') throw new NotBegunError(`${name} never began`)
  await write()
  if (afterMs > 0) await sleep(life.clock, afterMs)
  switch (ends) {
    case 'returns':
      return
    case 'throws':
      throw new Error(`${name} failed`)
    case 'final':
      throw new FinalError(`${name} was declined`)
    case 'doubt':
      throw new InDoubtError(`${name} is in doubt`)
    case 'hangs':
      return new Promise(() => {})
    case 'hangs-until-told':
      await new Promise((resolve) => op.signal.addEventListener('abort', resolve))
      throw new Error(`${name} was told to stop`, { cause: op.signal.reason })
  }
}

function heal(stage: Stage): void {
  tell(stage, 'all faults are over')
  const judge = stage.world.createProcess('judge')
  start(stage, judge, {})
  endQuarantines(stage)
  void askForAll(stage, stage.services.get(judge)!).then(() => {
    for (const [{ name }, { once }] of stage.services) {
      stage.closing.add(name)
      void once.close().then(() => stage.closing.delete(name))
    }
  })
}

/** A person ends a quarantine, and does it again when another process comes that knew of what was lost. */
function endQuarantines({ redis, world, plan }: Stage): void {
  const times = plan.worldFaults.some(({ kind }) => kind === 'loss') ? [0, 1, 2, 4, 6, 8] : []
  for (const leases of times) world.after(leases * plan.leaseMs, () => redis?.endQuarantine())
}

const plainEffect: PlannedEffect = { beforeMs: 0, afterMs: 0, ends: 'returns' }

async function askForAll(stage: Stage, running: Running): Promise<void> {
  const { plan } = stage
  for (const index of new Set(plan.calls.map(({ key }) => key))) {
    // In a transaction if a call used one for this key, so that both ways are seen to end.
    const how = plan.calls.find(({ key }) => key === index)!.how
    for (let asks = 0; asks < 2; asks++) await askUntilEnd(stage, running, index, how)
  }
}

async function askUntilEnd(stage: Stage, running: Running, index: number, how: 'run' | 'transaction'): Promise<void> {
  const { plan } = stage
  const { clock } = running.life
  const untilMs = clock.elapsed() + wedgedMs(plan)
  for (let asked = 'this'; ;) {
    const call = { key: keys[index]!, asked, how, phase: 'last', waitMs: 0 } as const
    const answer = await makeCall(stage, running, call, plainEffect, {}).answered
    if (answer.is === 'value' || answer.is === 'failure') return
    if (answer.is === 'refused' && answer.code === 'EXPIRED') return
    if (answer.is === 'refused' && answer.code === 'MISMATCH') asked = asked === 'this' ? 'that' : 'this'
    if (clock.elapsed() >= untilMs) return
    await sleep(clock, plan.leaseMs / 2)
  }
}

/** The longest that a key may stay out of reach: a duplicate that waits, hangs and leaves its lease, and messages that are late. */
function wedgedMs({ leaseMs: usualMs, attemptMs, storeTimeoutMs }: Plan): number {
  const leaseMs = 2 * usualMs // that of a process may be twice as long
  const [waitMs, graceMs, lateMs, noticeMs] = [4 * leaseMs, leaseMs, 3 * leaseMs, 4_000]
  return waitMs + attemptMs + graceMs + leaseMs + lateMs + 4 * storeTimeoutMs + noticeMs
}

async function sweepAll(stage: Stage): Promise<number> {
  const { world, server, redis, plan } = stage
  let leftovers = 0
  const longest = (name: 'leaseMs' | 'keepMs'): number =>
    Math.max(plan[name], ...plan.processes.map(({ times }) => times?.[name] ?? 0))
  // A person may have kept a key for two leases.
  const afterMs = longest('leaseMs') + Math.max(longest('keepMs'), 2 * plan.leaseMs) + plan.tombstoneMs
  world.after(afterMs, () => {
    // What a Redis keeps goes by itself.
    if (redis) return void (leftovers = redis.server.leftovers().length)
    void server
      .open()
      .sweep({ limit: Number.MAX_SAFE_INTEGER })
      .then(() => (leftovers = server.data.entries.size))
  })
  await world.run(world.now() + afterMs)
  return leftovers
}

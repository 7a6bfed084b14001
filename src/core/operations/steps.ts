// The steps of an operation, forward. A step that is done is never run again: its stored result is given. One that began and
// never reported is in doubt, and is looked up, run again or stopped at, as its author chose. Steps are found by name, never
// by their order, so the code between them may change.

import type { RunContext } from '../once/attempt.ts'
import { backoffMs } from '../backoff.ts'
import type { Backoff } from '../backoff.ts'
import { sleep } from '../clock.ts'
import type { Op } from '../once/effect.ts'
import { FinalError, invalidArgument, NotBegunError, OnceError } from '../errors.ts'
import { fingerprint } from '../fingerprint.ts'
import { deriveKey, describeKey } from '../key.ts'
import type { Key } from '../key.ts'
import { createAsked } from './asked.ts'
import type { Answer, Asked } from './asked.ts'
import type { Journal } from './journal.ts'
import { messageOf, storable } from './records.ts'
import type { StepRecord } from './records.ts'
import { Rewind, Stopped } from './signals.ts'
import { createTransactionSteps } from './transaction-steps.ts'
import type { Transact } from './transaction-steps.ts'
import { aFunction, checkGiven, checkOptions, oneOf, optional, positiveInteger, positiveMs } from '../options.ts'
import type { Rule } from '../options.ts'
import { decodeOutcome } from '../outcome.ts'
import type { Codec } from '../outcome.ts'
import { valueOf } from '../once/call.ts'
import type { Settings } from '../settings.ts'

export interface StepContext {
  /** The idempotency key for the outside system: the same on every attempt. */
  readonly key: string
  readonly token: string
  readonly fence: number
  /** Of the operation. */
  readonly attempt: number
  /** Aborts when the claim is lost, the attempt's deadline passes or the step's time is over. */
  readonly signal: AbortSignal
}

export interface UndoContext<T> extends StepContext {
  /** Whether the step is known to have taken effect. */
  readonly forward: 'done' | 'unknown'
  /** What the step came to, when that is known. */
  readonly result: T | undefined
}

/** What the outside system says about a step that is in doubt. */
export type Found<T> = { readonly found: T } | 'not-found' | 'unknown'

export interface Retry extends Partial<Backoff> {
  /** How often it is tried within one attempt of the operation. */
  readonly attempts: number
}

export interface Step<T> {
  run(step: StepContext): T | Promise<T>
  /** Takes the effect back when the operation fails for good. Must bear being called again, as its key does. */
  undo?(step: UndoContext<T>): unknown
  /** Asks the outside system what became of it, before it would be run again. */
  lookup?(step: StepContext): Found<T> | Promise<Found<T>>
  /** Without a lookup: run a step in doubt again (its key makes that safe where the other side honours it), or park the operation. Default run. */
  readonly inDoubt?: 'run' | 'park'
  readonly retry?: Retry
  readonly timeoutMs?: number
  /** From here on there is no way back, only forward. */
  readonly pivot?: true
  /** What the step is asked with: the same step with another fingerprint is a MISMATCH. */
  readonly fingerprint?: unknown
}

export interface TransactionStep<T, Tx> {
  run(tx: Tx, step: StepContext): T | Promise<T>
  undo?(tx: Tx, step: UndoContext<T>): unknown
  readonly pivot?: true
  readonly fingerprint?: unknown
}

/** What the function of an operation is given. */
export interface OperationOp<Tx = unknown> extends Op {
  step<T>(name: string, step: Step<T> | Step<T>['run']): Promise<T>
  /** What the step writes with `tx`, its record and the fence check commit together. */
  transaction<T>(name: string, step: TransactionStep<T, Tx> | TransactionStep<T, Tx>['run']): Promise<T>
}

export interface StepsGround {
  readonly ground: RunContext
  readonly journal: Journal
  readonly settings: Settings
  readonly codec: Codec | undefined
  readonly op: Op
}

/** The same while the function runs. */
interface InFunction extends StepsGround {
  readonly asked: Asked<AskedStep>
}

/** A step as the code asked for it in this attempt. */
export type AskedStep =
  | { readonly kind: 'outside'; readonly step: Step<unknown> }
  | { readonly kind: 'transaction'; readonly step: TransactionStep<unknown, unknown> }

export interface Steps {
  /** Runs the function, to what it came to. */
  perform(run: (op: OperationOp) => unknown): Promise<Answer>
  /** Everything the code has asked for, by name. */
  readonly asked: ReadonlyMap<string, AskedStep>
  readonly transact: Transact
  /** What a step has left the function by, whatever the function then made of it. */
  readonly left: Rewind | Stopped | undefined
  /** No step begins any more; resolves when those that run have ended, to the failure of one that nobody waited for. */
  close(): Promise<{ readonly failure: unknown } | undefined>
  /** Take back every transaction that is still open, under code that still runs. */
  abandon(): Promise<void>
}

const stepRules: Readonly<Record<keyof Step<unknown>, Rule>> = {
  run: aFunction,
  undo: optional(aFunction),
  lookup: optional(aFunction),
  inDoubt: optional(oneOf('run', 'park')),
  retry: optional((value) => (typeof value === 'object' && value !== null ? undefined : 'an object with attempts')),
  timeoutMs: optional(positiveMs),
  pivot: optional((value) => (value === true ? undefined : 'true, or absent')),
  fingerprint: () => undefined,
}

export const backoffRules: Readonly<Record<keyof Backoff, Rule>> = {
  firstMs: optional(positiveMs),
  factor: optional((value) => (typeof value === 'number' && value >= 1 ? undefined : 'a number of at least 1')),
  maxMs: optional(positiveMs),
}

const retryRules: Readonly<Record<keyof Retry, Rule>> = { attempts: positiveInteger, ...backoffRules }

const transactionRules: Readonly<Record<keyof TransactionStep<unknown, unknown>, Rule>> = {
  run: aFunction,
  undo: optional(aFunction),
  pivot: stepRules.pivot,
  fingerprint: () => undefined,
}

const retryBackoff: Backoff = { firstMs: 100, factor: 2, maxMs: 10_000 }

export function createSteps(ground: StepsGround): Steps {
  const asked = createAsked<AskedStep>(ground.journal)
  const context: InFunction = { ...ground, asked }
  const { transact, abandon } = createTransactionSteps(context)
  const op = new FunctionOp(ground.op, {
    step: (name, given) =>
      asked.handOut(name, async () => {
        const step = readStep(name, given)
        return asked.begin(name, { kind: 'outside', step: step as Step<unknown> }, () => outside(context, name, step))
      }),
    transaction: (name, given) =>
      asked.handOut(name, async () => {
        const step = readTransactionStep(name, given)
        const as: AskedStep = { kind: 'transaction', step: step as TransactionStep<unknown, unknown> }
        return asked.begin(name, as, () => inTransaction(context, transact, name, step))
      }),
  })
  return {
    perform: (run) => asked.perform(() => run(op)),
    asked: asked.steps,
    transact,
    get left() {
      return asked.left
    },
    async close() {
      asked.close()
      return asked.ended()
    },
    async abandon() {
      asked.close()
      await abandon()
    },
  }
}

function readStep<T>(name: string, given: Step<T> | Step<T>['run']): Step<T> {
  checkStepName(name)
  const step: Step<T> = typeof given === 'function' ? { run: given } : given
  checkGiven(`step "${name}"`, step, stepRules)
  if (typeof step.run !== 'function') throw invalidArgument(`step "${name}": expected run to be a function`)
  if (step.retry) checkOptions(`step "${name}", retry`, step.retry, retryRules)
  return step
}

function readTransactionStep<T>(
  name: string,
  given: TransactionStep<T, unknown> | TransactionStep<T, unknown>['run'],
): TransactionStep<T, unknown> {
  checkStepName(name)
  const step: TransactionStep<T, unknown> = typeof given === 'function' ? { run: given } : given
  checkOptions(`transaction "${name}"`, step, transactionRules)
  return step
}

/** A class for its getter, as in effect.ts. Without private members: people wrap what they are given with Object.create. */
class FunctionOp implements OperationOp {
  readonly key: Key
  readonly attempt: number
  readonly token: string
  readonly fence: number
  readonly keyFor: Op['keyFor']
  readonly step: OperationOp['step']
  readonly transaction: OperationOp['transaction']
  readonly given: Op

  constructor(given: Op, { step, transaction }: Pick<OperationOp, 'step' | 'transaction'>) {
    this.key = given.key
    this.attempt = given.attempt
    this.token = given.token
    this.fence = given.fence
    this.keyFor = given.keyFor
    this.step = step
    this.transaction = transaction
    this.given = given
  }

  get signal(): AbortSignal {
    return this.given.signal
  }
}

/** Leaves room for what is put in front of it in derived keys. */
const stepNameBytesMax = 200

function checkStepName(name: unknown): asserts name is string {
  // Its length first: a hostile megabyte must cost nothing.
  const fits = typeof name === 'string' && name !== '' && name.length <= stepNameBytesMax
  if (fits && Buffer.byteLength(name) <= stepNameBytesMax && name.isWellFormed() && !/\p{Cc}/u.test(name)) return
  throw invalidArgument(
    `expected the name of a step to be 1 to ${stepNameBytesMax} bytes of text without control characters, ` +
      `got ${typeof name === 'string' ? JSON.stringify(name.slice(0, 80)) : typeof name}`,
  )
}

/** What is stored of the step, if it can be answered with that; in an operation that goes back nothing else is answered. */
function stored<T>(
  { journal, codec, asked: { left } }: InFunction,
  name: string,
  asked: string | undefined,
): { value: T } | undefined {
  const record = journal.step(name)
  checkFingerprint(journal, record, asked)
  const isDone = record?.state === 'done' || record?.forward === 'done'
  if (isDone) return { value: resultOf<T>(journal, codec, record) }
  // No step begins any more, also when the function caught that.
  if (left) throw left
  if (journal.course.direction === 'backward') throw new Rewind()
  if (journal.cancelReason !== undefined && !isPastPivot(journal)) throw new Rewind()
  return undefined
}

export function resultOf<T>(journal: Journal, codec: Codec | undefined, record: StepRecord): T {
  const { key } = journal.claim
  return record.result ? (valueOf(key, decodeOutcome(record.result, codec, key)) as T) : (undefined as T)
}

export function isPastPivot(journal: Journal): boolean {
  return journal.steps().some((step) => step.pivot && step.state !== 'failed' && step.state !== 'absent')
}

function checkFingerprint(journal: Journal, record: StepRecord | undefined, asked: string | undefined): void {
  // One that took no effect may well become another.
  const tookNoEffect = record?.state === 'failed' || record?.state === 'absent'
  if (!record || tookNoEffect || record.fingerprint === asked) return
  throw new OnceError('MISMATCH', {
    executed: 'unknown',
    message:
      `Step "${record.name}" of ${describeKey(journal.claim.key)} was asked for before with another fingerprint, and is ` +
      `${record.state}. Nothing was run. Give a step that does something else another name.`,
  })
}

async function outside<T>(context: InFunction, name: string, step: Step<T>): Promise<T> {
  const { ground, op } = context
  const backoff = { ...retryBackoff, ...step.retry }
  for (let tries = 1; ; tries++) {
    try {
      return await tryOutside(context, name, step)
    } catch (error) {
      const goesOn = !(
        error instanceof FinalError ||
        error instanceof OnceError ||
        error instanceof Rewind ||
        error instanceof Stopped
      )
      if (!goesOn || tries >= (step.retry?.attempts ?? 1) || op.signal.aborted) throw error
      await sleep(ground.clock, backoffMs(backoff, tries - 1, ground.random), { signal: op.signal })
    }
  }
}

async function tryOutside<T>(context: InFunction, name: string, step: Step<T>): Promise<T> {
  const { journal } = context
  const asked = step.fingerprint === undefined ? undefined : fingerprint(step.fingerprint)
  const known = stored<T>(context, name, asked)
  if (known) return known.value
  const before = journal.step(name)
  const record = recordOf(context, name, step, asked)
  if (before?.state === 'began') {
    const looked = await settleDoubt(context, name, step)
    if (looked !== 'run') return keepDone(context, record, looked.found)
  }
  const isStillInDoubt = before?.state === 'began' && !step.lookup
  await journal.write({ step: { ...record, state: 'began' } })
  if (journal.cancelReason !== undefined && !isPastPivot(journal)) {
    // It was written that it begins, and now it does not. A run before this one may have taken effect all the same.
    if (!isStillInDoubt) await journal.write({ step: { ...record, state: 'absent' } })
    throw new Rewind()
  }
  const value = await limited(context, name, step).catch(async (error: unknown) => {
    // These two say themselves that nothing took effect. Of everything else nobody can tell. And what this run says of itself
    // says nothing of the one before it: it may have failed on a check that it makes before it asks the other side.
    const tookNoEffect = error instanceof FinalError || error instanceof NotBegunError
    if (tookNoEffect && !isStillInDoubt) {
      await journal.write({ step: { ...record, state: 'failed', error: messageOf(error) } })
    }
    throw error
  })
  return keepDone(context, record, value)
}

function recordOf(
  { journal }: StepsGround,
  name: string,
  step: { readonly undo?: unknown; readonly pivot?: true },
  asked: string | undefined,
): Omit<StepRecord, 'state'> {
  return {
    name,
    order: journal.step(name)?.order ?? journal.nextOrder(),
    attempt: journal.claim.attempt,
    ...(asked !== undefined && { fingerprint: asked }),
    ...(step.undo !== undefined && { undoable: true as const }),
    ...(step.pivot && { pivot: true as const }),
  }
}

async function keepDone<T>(context: InFunction, record: Omit<StepRecord, 'state'>, value: T): Promise<T> {
  const { journal, codec } = context
  const { bytes, outcome } = storable(journal.claim.key, codec, record.name, value)
  const kept = valueOf(journal.claim.key, outcome) as T
  await context.asked.done({ ...record, state: 'done', result: bytes }, kept)
  return kept
}

async function settleDoubt<T>(context: StepsGround, name: string, step: Step<T>): Promise<{ found: T } | 'run'> {
  const { journal } = context
  if (!step.lookup) {
    if (step.inDoubt !== 'park') return 'run'
    throw new Stopped(
      'in-doubt',
      `Step "${name}" of ${describeKey(journal.claim.key)} began and never reported, and its inDoubt is 'park'.`,
    )
  }
  const looked = checkFound<T>(name, await step.lookup(contextOf(context, `step:${name}`)))
  if (looked === 'not-found') return 'run'
  if (looked !== 'unknown') return looked
  // An ordinary failure: it is asked again later, and as often as attempts allow.
  throw new Error(`Step "${name}" of ${describeKey(journal.claim.key)} is in doubt, and its lookup cannot tell yet.`)
}

export function checkFound<T>(name: string, looked: unknown): Found<T> {
  if (looked === 'not-found' || looked === 'unknown') return looked
  if (typeof looked === 'object' && looked !== null && 'found' in looked) return looked as { found: T }
  throw invalidArgument(`step "${name}": expected lookup to answer { found }, "not-found" or "unknown"`)
}

export function contextOf({ journal, op }: StepsGround, part: string): StepContext {
  const { token, fence, attempt, key } = journal.claim
  return {
    key: deriveKey(key, part),
    token,
    fence,
    attempt,
    get signal() {
      return op.signal
    },
  }
}

/** Runs the step, for `timeoutMs` at the most. Its code cannot be stopped; it stays in doubt. */
async function limited<T>(context: StepsGround, name: string, step: Step<T>): Promise<T> {
  const plain = contextOf(context, `step:${name}`)
  if (step.timeoutMs === undefined) return step.run(plain)
  const over = new AbortController()
  const late = Promise.withResolvers<never>()
  const cancel = context.ground.clock.schedule(() => {
    const error = new Error(`step "${name}" did not end within its timeoutMs of ${step.timeoutMs}`)
    over.abort(error)
    late.reject(error)
  }, step.timeoutMs)
  const signal = AbortSignal.any([over.signal, plain.signal])
  try {
    const { key, token, fence, attempt } = plain
    return await Promise.race([(async () => step.run({ key, token, fence, attempt, signal }))(), late.promise])
  } finally {
    cancel()
  }
}

async function inTransaction<T>(
  context: InFunction,
  transact: Transact,
  name: string,
  step: TransactionStep<T, unknown>,
): Promise<T> {
  const asked = step.fingerprint === undefined ? undefined : fingerprint(step.fingerprint)
  const known = stored<T>(context, name, asked)
  if (known) return known.value
  const record = recordOf(context, name, step, asked)
  const done = (result: Uint8Array): StepRecord => ({ ...record, state: 'done', result })
  return (await transact(name, (tx) => step.run(tx, contextOf(context, `step:${name}`)), done)) as T
}

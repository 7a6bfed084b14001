// Running the steps of an operation, forward. A step that is done never runs again: its stored result is returned. A step that
// began and never reported is in doubt, and is looked up, run again or stopped at, as its author chose. Steps are found by
// name, never by their order, so the code between them may change.

import { valueOf } from '../call.ts'
import type { Op, RunContext } from '../call.ts'
import { backoffMs, backoffs } from '../backoff.ts'
import { follow, sleep } from '../clock.ts'
import { FinalError, NotBegunError, OnceError } from '../errors.ts'
import { fingerprint } from '../fingerprint.ts'
import { deriveKey, describeKey } from '../key.ts'
import type { Key } from '../key.ts'
import { createAskedSteps, createReturning, Rewind, Stopped } from './asked.ts'
import type { AskedSteps, Returned, Returning } from './asked.ts'
import type { Journal } from './journal.ts'
import { messageOf, storable } from './records.ts'
import type { StepRecord } from './records.ts'
import { checkLookup, readStep, readTransactionStep } from './step.ts'
import type { AnyOperationOp, StepContext, StoredStep, StoredTransactionStep } from './step.ts'
import { createTransactionSteps } from './transaction-steps.ts'
import type { Transact } from './transaction-steps.ts'
import { decodeOutcome } from '../outcome.ts'
import type { Codec } from '../outcome.ts'
import type { Settings } from '../settings.ts'

/** What the steps of one attempt use. */
export interface StepsContext {
  readonly runtime: RunContext
  readonly journal: Journal
  readonly settings: Settings
  readonly codec: Codec | undefined
}

/** The same once the attempt runs. */
export interface RunningSteps extends StepsContext {
  readonly op: Op
}

/** The same while the function runs. */
interface InFunction extends RunningSteps {
  readonly asked: AskedSteps<AskedStep>
  readonly returning: Returning
}

/** A step as the code asked for it in this attempt. */
export type AskedStep =
  | { readonly kind: 'outside'; readonly step: StoredStep<unknown> }
  | { readonly kind: 'transaction'; readonly step: StoredTransactionStep<unknown> }

export interface Steps {
  /** Runs the function, to what it returns. */
  perform(op: Op, run: (op: AnyOperationOp) => unknown): Promise<Returned>
  /** Everything the code has asked for, by name. */
  readonly asked: ReadonlyMap<string, AskedStep>
  readonly transact: Transact
  /** How a step has ended the function, whatever the function then made of it. */
  readonly stop: Rewind | Stopped | undefined
  /** No step begins any more. Resolves when those that run have ended, to the failure of one that was not waited for. */
  close(): Promise<{ readonly failure: unknown } | undefined>
  /** No step begins any more, and every transaction that is still open is rolled back under code that still runs. */
  abandon(): Promise<void>
}

export function createSteps(context: StepsContext): Steps {
  const asked = createAskedSteps<AskedStep>()
  const returning = createReturning(asked, context.journal)
  const { transact, abandon } = createTransactionSteps(context)
  return {
    perform(op, run) {
      const given = functionOp({ ...context, op, asked, returning }, transact)
      return returning.perform(() => run(given))
    },
    asked: asked.steps,
    transact,
    get stop() {
      return asked.stop
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

function functionOp(context: InFunction, transact: Transact): AnyOperationOp {
  const { asked } = context
  return new FunctionOp(context.op, {
    step: (name, given) =>
      asked.handOut(name, async () => {
        const step = readStep(name, given)
        return asked.begin(name, { kind: 'outside', step: step as StoredStep<unknown> }, () =>
          outside(context, name, step),
        )
      }),
    transaction: (name, given) =>
      asked.handOut(name, async () => {
        const step = readTransactionStep(name, given)
        const as: AskedStep = { kind: 'transaction', step: step as StoredTransactionStep<unknown> }
        return asked.begin(name, as, () => inTransaction(context, transact, name, step))
      }),
  })
}

/** A class for its getter, as in effect.ts. Without private members: people wrap what they are given with Object.create. */
class FunctionOp implements AnyOperationOp {
  readonly key: Key
  readonly attempt: number
  readonly token: string
  readonly fence: number
  readonly keyFor: Op['keyFor']
  readonly step: AnyOperationOp['step']
  readonly transaction: AnyOperationOp['transaction']
  readonly given: Op

  constructor(given: Op, { step, transaction }: Pick<AnyOperationOp, 'step' | 'transaction'>) {
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

/** The stored result of the step, if there is one. In an operation that goes back nothing else is returned. */
function stored<T>(
  { journal, codec, asked: { stop } }: InFunction,
  name: string,
  asked: string | undefined,
): { value: T } | undefined {
  const record = journal.step(name)
  checkFingerprint(journal, record, asked)
  const isDone = record?.state === 'done' || record?.forward === 'done'
  if (isDone) return { value: resultOf<T>(journal, codec, record) }
  // No step begins any more, also when the function caught that.
  if (stop) throw stop
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

async function outside<T>(context: InFunction, name: string, step: StoredStep<T>): Promise<T> {
  const { runtime, op } = context
  const backoff = { ...backoffs.stepRetry, ...step.retry }
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
      await sleep(runtime.clock, backoffMs(backoff, tries - 1, runtime.random), { signal: op.signal })
    }
  }
}

async function tryOutside<T>(context: InFunction, name: string, step: StoredStep<T>): Promise<T> {
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
    // The store has recorded that the step begins, and now it does not. A run before this one may still have taken effect.
    if (!isStillInDoubt) await journal.write({ step: { ...record, state: 'absent' } })
    throw new Rewind()
  }
  const value = await limited(context, name, step).catch(async (error: unknown) => {
    // These two errors say that nothing took effect. Every other error leaves the step in doubt. What this run says of itself
    // says nothing of the run before it: this one may have failed on a check that it makes before it asks the other side.
    const tookNoEffect = error instanceof FinalError || error instanceof NotBegunError
    if (tookNoEffect && !isStillInDoubt) {
      await journal.write({ step: { ...record, state: 'failed', error: messageOf(error) } })
    }
    throw error
  })
  return keepDone(context, record, value)
}

function recordOf(
  { journal }: StepsContext,
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
  await context.returning.done({ ...record, state: 'done', result: bytes }, kept)
  return kept
}

async function settleDoubt<T>(context: RunningSteps, name: string, step: StoredStep<T>): Promise<{ found: T } | 'run'> {
  const { journal } = context
  if (!step.lookup) {
    if (step.inDoubt !== 'park') return 'run'
    throw new Stopped(
      'in-doubt',
      `Step "${name}" of ${describeKey(journal.claim.key)} began and never reported, and its inDoubt is 'park'.`,
    )
  }
  const looked = checkLookup<T>(name, await step.lookup(contextOf(context, `step:${name}`)))
  if (looked === 'not-found') return 'run'
  if (looked !== 'unknown') return looked
  // An ordinary failure: the next attempt asks again.
  throw new Error(`Step "${name}" of ${describeKey(journal.claim.key)} is in doubt, and its lookup cannot tell yet.`)
}

/** The key that the `run` of a step is given. */
export function stepKey(operation: Key, name: string): string {
  return deriveKey(operation, `step:${name}`)
}

export function contextOf({ journal, op }: RunningSteps, part: string): StepContext {
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

/** Runs the step, for `timeoutMs` at the most. Its code cannot be stopped, so the step stays in doubt. */
async function limited<T>(context: RunningSteps, name: string, step: StoredStep<T>): Promise<T> {
  const plain = contextOf(context, `step:${name}`)
  if (step.timeoutMs === undefined) return step.run(plain)
  const { controller, unfollow } = follow(plain.signal)
  const late = Promise.withResolvers<never>()
  const cancel = context.runtime.clock.schedule(() => {
    const error = new Error(`step "${name}" did not end within its timeoutMs of ${step.timeoutMs}`)
    controller.abort(error)
    late.reject(error)
  }, step.timeoutMs)
  try {
    const { key, token, fence, attempt } = plain
    const { signal } = controller
    return await Promise.race([(async () => step.run({ key, token, fence, attempt, signal }))(), late.promise])
  } finally {
    cancel()
    unfollow()
  }
}

async function inTransaction<T>(
  context: InFunction,
  transact: Transact,
  name: string,
  step: StoredTransactionStep<T>,
): Promise<T> {
  const asked = step.fingerprint === undefined ? undefined : fingerprint(step.fingerprint)
  const known = stored<T>(context, name, asked)
  if (known) return known.value
  const record = recordOf(context, name, step, asked)
  return (await transact({
    name,
    signal: () => context.op.signal,
    work: (tx) => step.run(tx, contextOf(context, `step:${name}`)),
    done: (result) => ({ ...record, state: 'done', result }),
  })) as T
}

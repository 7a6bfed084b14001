// The way back: what may have taken effect is undone, the last first. Each undo has its own key, and knows whether its step
// is known to have taken effect. An undo that keeps failing is left stuck, with its error, and the others still run. A store that
// opens no transaction, a lookup that fails, and a function that fails before it asks for the step say nothing of the undo: the
// attempt was interrupted, and the next one goes on, as often as it takes.

import { backoffMs, countedBackoffs } from '../backoff.ts'
import { sleep } from '../clock.ts'
import { FinalError, OnceError } from '../errors.ts'
import { publish } from '../events.ts'
import { Rewind } from './asked.ts'
import type { Performed } from './asked.ts'
import type { Journal } from './journal.ts'
import { messageOf, storable } from './records.ts'
import type { StepRecord, StepState } from './records.ts'
import { checkLookup } from './step.ts'
import type { UndoContext } from './step.ts'
import { contextOf, resultOf, stepKey } from './steps.ts'
import type { AskedStep, RunningSteps, Steps } from './steps.ts'

/** The steps that are still to be undone, in the order in which they began. */
export function owedSteps(journal: Journal): readonly StepRecord[] {
  const owing: readonly StepState[] = ['began', 'done', 'undoing', 'stuck']
  return journal.steps().filter(({ undoable, state }) => undoable && owing.includes(state))
}

/** Undoes what the function, which ended as `performed` says, has asked for. */
export interface Undoing extends RunningSteps {
  readonly steps: Steps
  readonly performed: Performed
}

/** Returns the names of the steps whose undo is stuck. Rejects when the way back was interrupted. */
export async function undoAll(context: Undoing): Promise<readonly string[]> {
  const { journal } = context
  for (const record of owedSteps(journal).toReversed()) await undo(context, record)
  return journal
    .steps()
    .filter((step) => step.state === 'stuck')
    .map((step) => step.name)
}

async function undo(context: Undoing, record: StepRecord): Promise<void> {
  const { journal, runtime, steps } = context
  const asked = steps.asked.get(record.name)
  if (!asked?.step.undo) return leaveUnknown(context, record, asked)
  let left = countedBackoffs.undo.triesMax
  let interruption: Interruption | undefined
  for (;;) {
    try {
      return await tryUndo(context, asked, journal.step(record.name)!)
    } catch (error) {
      const cause = error instanceof Interruption ? error.cause : error
      if (cause instanceof OnceError && cause.code === 'CLAIM_LOST') throw cause
      // The undo may have been committed: trying it again here could undo twice. The next attempt reads what is recorded.
      if (journal.unconfirmed !== undefined) throw journal.unconfirmed
      // The attempt's deadline has passed, or its claim is lost: that says nothing of the undo, which the next attempt goes on
      // with. What the undo threw is not thrown on: a FinalError would be taken for the result.
      if (context.op.signal.aborted) throw context.op.signal.reason
      if (error instanceof Interruption) interruption = error
      left = isForGood(error) ? 0 : left - 1
      if (left <= 0) {
        // Between interruptions the undo had less than its tries: a server that crashes again and again also cuts what is open.
        if (interruption && !isForGood(error)) throw interruption.cause
        return leaveStuck(journal, journal.step(record.name)!, messageOf(error))
      }
      const pauseMs = backoffMs(countedBackoffs.undo, countedBackoffs.undo.triesMax - left - 1, runtime.random)
      await sleep(runtime.clock, pauseMs, { signal: context.op.signal })
    }
  }
}

function leaveStuck(journal: Journal, record: StepRecord, error: string): Promise<void> {
  return journal.write({ step: { ...record, forward: forwardOf(record), state: 'stuck', error } })
}

/**
 * The function has not asked for the step, or without its undo. Only one that got through proves that the code has changed. One that
 * failed first may not have got to the step: the database is down from which it reads its order, say.
 */
function leaveUnknown(
  { journal, performed }: Undoing,
  record: StepRecord,
  asked: AskedStep | undefined,
): Promise<void> {
  const isThrough = asked !== undefined || 'value' in performed || isDecided(performed.thrown)
  if (!isThrough && !isForGood(performed.thrown)) throw performed.thrown
  publish('drifted', journal.claim.key, {
    operation: journal.operation,
    what: 'step-not-asked-for',
    step: record.name,
  })
  const why = isThrough
    ? 'the code no longer asks for this step'
    : `the function failed before it asked for this step (${messageOf(performed.thrown)})`
  return leaveStuck(journal, record, `${why}, so its undo is not known`)
}

/** The function came to a step that is not done, or to its own end. */
function isDecided(thrown: unknown): boolean {
  return thrown instanceof Rewind || thrown instanceof FinalError
}

/** No retry cures it. */
function isForGood(thrown: unknown): boolean {
  return thrown instanceof FinalError || (thrown instanceof OnceError && !thrown.retryable)
}

/** The undo has not even begun: the store opened no transaction for it, or a lookup failed before it. */
class Interruption extends Error {
  constructor(cause: unknown) {
    super('the undo has not begun', { cause })
  }
}

function interrupted(cause: unknown): Promise<never> {
  return Promise.reject(isForGood(cause) ? (cause as Error) : new Interruption(cause))
}

async function tryUndo(context: Undoing, asked: AskedStep, before: StepRecord): Promise<void> {
  const { journal, steps } = context
  const record = await lookAgain(context, asked, before).catch(interrupted)
  if (!record) return journal.write({ step: { ...before, state: 'absent' } })
  const { error: _error, ...kept } = record
  const forward = forwardOf(record)
  const told = undoContext(context, { ...kept, forward })
  if (asked.kind === 'transaction') {
    // The result of an undo is not kept: one that cannot be stored would fail an undo that is committed.
    let isOpen = false
    const run = async (tx: unknown): Promise<void> => {
      isOpen = true
      await asked.step.undo!(tx, told)
    }
    const signal = (): AbortSignal => context.op.signal
    const undone: StepRecord = { ...kept, forward, state: 'undone' }
    await steps
      .transact({ name: record.name, signal, work: run, done: () => undone })
      .catch((error: unknown) => (isOpen ? Promise.reject(error as Error) : interrupted(error)))
    return
  }
  await journal.write({ step: { ...kept, forward, state: 'undoing' } })
  await asked.step.undo!(told)
  await journal.write({ step: { ...kept, forward, state: 'undone' } })
}

function forwardOf(record: StepRecord): 'done' | 'unknown' {
  return record.forward ?? (record.state === 'done' ? 'done' : 'unknown')
}

/** A step in doubt that can be looked up need not be undone blindly. Undefined when it never took effect. */
async function lookAgain(context: RunningSteps, asked: AskedStep, record: StepRecord): Promise<StepRecord | undefined> {
  if (record.state !== 'began' || asked.kind !== 'outside' || !asked.step.lookup) return record
  const looked = checkLookup(record.name, await asked.step.lookup(contextOf(context, `step:${record.name}`)))
  if (looked === 'not-found') return undefined
  if (looked === 'unknown') return record
  const { bytes } = storable(context.journal.claim.key, context.codec, record.name, looked.found)
  return { ...record, forward: 'done', result: bytes }
}

function undoContext(context: RunningSteps, record: StepRecord): UndoContext<unknown> {
  const { journal, codec, op } = context
  const { key, token, fence, attempt } = contextOf(context, `undo:${record.name}`)
  return {
    key,
    forwardKey: stepKey(journal.claim.key, record.name),
    token,
    fence,
    attempt,
    forward: forwardOf(record),
    result: record.result && resultOf(journal, codec, record),
    get signal() {
      return op.signal
    },
  }
}

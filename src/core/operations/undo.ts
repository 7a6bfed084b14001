// The way back: what may have taken effect is undone, the last first. Each undo has its own key, and knows whether its step
// is known to have taken effect. An undo that keeps failing is left stuck, with its error, and the others still run. A store
// that fails under an undo says nothing of it: the attempt ends, and the next one goes on.

import { backoffMs, countedBackoffs } from '../backoff.ts'
import { sleep } from '../clock.ts'
import { FinalError, OnceError } from '../errors.ts'
import { publish } from '../events.ts'
import { messageOf, storable } from './records.ts'
import type { StepRecord } from './records.ts'
import { checkLookup } from './step.ts'
import type { UndoContext } from './step.ts'
import { contextOf, resultOf, stepKey } from './steps.ts'
import type { AskedStep, RunningSteps, Steps } from './steps.ts'

/** Returns the names of the steps whose undo is stuck. Rejects when it was not the undos that failed. */
export async function undoAll(context: RunningSteps, steps: Steps): Promise<readonly string[]> {
  const { journal } = context
  for (const record of journal.steps().toReversed()) {
    const owed = ['began', 'done', 'undoing', 'stuck'].includes(record.state)
    if (record.undoable && owed) await undo(context, steps, record)
  }
  return journal
    .steps()
    .filter((step) => step.state === 'stuck')
    .map((step) => step.name)
}

async function undo(context: RunningSteps, steps: Steps, record: StepRecord): Promise<void> {
  const { journal, runtime } = context
  const asked = steps.asked.get(record.name)
  if (!asked?.step.undo) {
    publish('drifted', journal.claim.key, {
      operation: journal.operation,
      what: 'step-not-asked-for',
      step: record.name,
    })
    const error = 'the code no longer asks for this step, so its undo is not known'
    return journal.write({ step: { ...record, forward: forwardOf(record), state: 'stuck', error } })
  }
  let left = countedBackoffs.undo.triesMax
  for (;;) {
    try {
      return await tryUndo(context, steps, asked, journal.step(record.name)!)
    } catch (error) {
      if (error instanceof NotOpened) throw error.cause
      if (error instanceof OnceError && error.code === 'CLAIM_LOST') throw error
      // The undo may have been committed: trying it again here could undo twice. The next attempt reads what is recorded.
      if (journal.unconfirmed !== undefined) throw journal.unconfirmed
      // The attempt's deadline has passed, or its claim is lost: that says nothing of the undo, which the next attempt goes on
      // with. What the undo threw is not thrown on: a FinalError would be taken for the result.
      if (context.op.signal.aborted) throw context.op.signal.reason
      left = error instanceof FinalError ? 0 : left - 1
      if (left <= 0) {
        const message = messageOf(error)
        const last = journal.step(record.name)!
        return journal.write({ step: { ...last, forward: forwardOf(last), state: 'stuck', error: message } })
      }
      const pauseMs = backoffMs(countedBackoffs.undo, countedBackoffs.undo.triesMax - left - 1, runtime.random)
      await sleep(runtime.clock, pauseMs, { signal: context.op.signal })
    }
  }
}

/** The store opened no transaction, so the undo has not even begun. */
class NotOpened extends Error {
  constructor(cause: unknown) {
    super('no transaction for the undo', { cause })
  }
}

async function tryUndo(context: RunningSteps, steps: Steps, asked: AskedStep, before: StepRecord): Promise<void> {
  const { journal } = context
  const record = await lookAgain(context, asked, before)
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
      .catch((error: unknown) => Promise.reject(isOpen ? error : new NotOpened(error)))
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

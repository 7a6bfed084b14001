// The way back: what may have taken effect is undone, the last first, each under a key of its own and told whether its step is
// known to have taken effect. An undo that keeps failing is left stuck, with its error, and the others still run.

import { backoffMs } from '../backoff.ts'
import type { Backoff } from '../backoff.ts'
import { sleep } from '../clock.ts'
import { FinalError, OnceError } from '../errors.ts'
import { publish } from '../events.ts'
import { messageOf, storable } from './records.ts'
import type { StepRecord } from './records.ts'
import { checkFound, contextOf, resultOf } from './steps.ts'
import type { AskedStep, Steps, StepsGround, UndoContext } from './steps.ts'

/** Three tries ride out a hiccup; what fails longer is left for a person, and for the next resume. */
const undoTries = 3
const undoBackoff: Backoff = { firstMs: 200, factor: 3, maxMs: 5_000 }

/** Answers the names of those that are stuck. */
export async function undoAll(context: StepsGround, steps: Steps): Promise<readonly string[]> {
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

async function undo(context: StepsGround, steps: Steps, record: StepRecord): Promise<void> {
  const { journal, ground } = context
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
  let left = undoTries
  for (;;) {
    try {
      return await tryUndo(context, steps, asked, journal.step(record.name)!)
    } catch (error) {
      if (error instanceof OnceError && error.code === 'CLAIM_LOST') throw error
      // The undo may have been committed: trying it again here could undo twice. The next attempt reads what is recorded.
      if (journal.unconfirmed !== undefined) throw journal.unconfirmed
      // Its time is over, or its claim: that says nothing of the undo, which the next attempt goes on with. What the undo threw
      // is not thrown on: a FinalError would be taken for the answer.
      if (context.op.signal.aborted) throw context.op.signal.reason
      left = error instanceof FinalError ? 0 : left - 1
      if (left <= 0) {
        const message = messageOf(error)
        const last = journal.step(record.name)!
        return journal.write({ step: { ...last, forward: forwardOf(last), state: 'stuck', error: message } })
      }
      const pauseMs = backoffMs(undoBackoff, undoTries - left - 1, ground.random)
      await sleep(ground.clock, pauseMs, { signal: context.op.signal })
    }
  }
}

async function tryUndo(context: StepsGround, steps: Steps, asked: AskedStep, before: StepRecord): Promise<void> {
  const { journal } = context
  const record = await lookAgain(context, asked, before)
  if (!record) return journal.write({ step: { ...before, state: 'absent' } })
  const { error: _error, ...kept } = record
  const forward = forwardOf(record)
  const told = undoContext(context, { ...kept, forward })
  if (asked.kind === 'transaction') {
    // What an undo answers is nobody's: were it kept, one that cannot be would fail an undo that is committed.
    const run = async (tx: unknown): Promise<void> => void (await asked.step.undo!(tx, told))
    await steps.transact(record.name, run, () => ({ ...kept, forward, state: 'undone' }))
    return
  }
  await journal.write({ step: { ...kept, forward, state: 'undoing' } })
  await asked.step.undo!(told)
  await journal.write({ step: { ...kept, forward, state: 'undone' } })
}

function forwardOf(record: StepRecord): 'done' | 'unknown' {
  return record.forward ?? (record.state === 'done' ? 'done' : 'unknown')
}

/** A step in doubt that can be looked up need not be undone blindly. Undefined: it never took effect. */
async function lookAgain(context: StepsGround, asked: AskedStep, record: StepRecord): Promise<StepRecord | undefined> {
  if (record.state !== 'began' || asked.kind !== 'outside' || !asked.step.lookup) return record
  const looked = checkFound(record.name, await asked.step.lookup(contextOf(context, `step:${record.name}`)))
  if (looked === 'not-found') return undefined
  if (looked === 'unknown') return record
  const { bytes } = storable(context.journal.claim.key, context.codec, record.name, looked.found)
  return { ...record, forward: 'done', result: bytes }
}

function undoContext(context: StepsGround, record: StepRecord): UndoContext<unknown> {
  const { journal, codec, op } = context
  const { key, token, fence, attempt } = contextOf(context, `undo:${record.name}`)
  return {
    key,
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

// Resuming an operation: by a worker, without its caller, and by a person who has found out about its steps in doubt. The person's
// process claims the operation for the moment of writing, so that no worker works on it meanwhile, and leaves it due at once.

import { invalidArgument, OnceError } from '../errors.ts'
import { describeKey } from '../key.ts'
import type { Key } from '../key.ts'
import { askFor, carryOut, enlist, hold, inStore, readRecorded, storedCall } from './attempt.ts'
import type { OperationContext } from './attempt.ts'
import type { Journal } from './journal.ts'
import { storable } from './records.ts'
import type { StepRecord } from './records.ts'
import { checkLookup } from './step.ts'
import { checkGiven } from '../options.ts'
import type { Ledger } from '../store.ts'

export interface ResumeOptions {
  /** By the name of the step: it took effect and this is its result, or it did not. */
  readonly decide?: Readonly<Record<string, { readonly found: unknown } | 'not-found'>>
}

/** One attempt without a caller. Resolves when the attempt has ended, however it ended. */
export async function recover(
  context: OperationContext,
  subject: Key,
): Promise<'recovered' | 'busy' | 'over' | 'newer'> {
  const entry = await inStore(context, 'recover', subject, () => context.store.show(subject))
  const alive = entry && entry.state !== 'settled' && entry.state !== 'tombstone'
  if (!alive || !entry.input) return 'over'
  if (entry.version > context.definition.version) return 'newer'
  const call = storedCall(context, subject, entry.fingerprint, entry.input)
  try {
    const enlisted = await enlist(context, { ...call, settings: { ...call.settings, waitMs: 0 } })
    if (enlisted.is !== 'granted') return 'over'
    await carryOut(context, call, enlisted)
  } catch (error) {
    // How the attempt ended is recorded, and there is no caller.
    if (error instanceof OnceError && error.code === 'IN_FLIGHT') return 'busy'
  }
  return 'recovered'
}

/** False when there is nothing to resume: the operation is over, or never was. */
export async function resume(context: OperationContext, subject: Key, options: ResumeOptions): Promise<boolean> {
  checkGiven('resume', options, { decide: () => undefined })
  const entry = await inStore(context, 'inspect', subject, () => context.store.show(subject))
  if (!entry?.input || entry.state === 'settled' || entry.state === 'tombstone') return false
  const call = storedCall(context, subject, entry.fingerprint, entry.input)
  const { verdict, askedMs } = await askFor(context, call)
  if (verdict.is !== 'granted') {
    // Settled meanwhile. Every other verdict is an error.
    if (verdict.is !== 'settled') context.calls.answer(call, verdict, 0)
    return false
  }
  const { held, ledger } = await hold(context, { is: 'granted', verdict, askedMs })
  try {
    const { journal } = await readRecorded(context, held, { ledger, input: entry.input })
    await goOn(context, journal, ledger, options.decide ?? {})
    return true
  } finally {
    held.stop()
  }
}

async function goOn(
  context: OperationContext,
  journal: Journal,
  ledger: Ledger | undefined,
  decide: NonNullable<ResumeOptions['decide']>,
): Promise<void> {
  try {
    const decided = Object.entries(decide).map(([name, found]) => decidedStep(context, journal, name, found))
    for (const step of decided) await journal.write({ step })
  } catch (error) {
    // As it was: held until its lease ends, it could not be resumed with the right decision.
    const becomes = { to: 'open', ...(ledger?.dueAtMs !== undefined && { afterMs: 0 }) } as const
    await journal.end({}, becomes).catch(() => {})
    throw error
  }
  const { parked: _parked, failuresBack: _failuresBack, ...course } = journal.course
  await journal.end({ course: { ...course, failures: 0 } }, { to: 'open', afterMs: 0 })
}

function decidedStep(context: OperationContext, journal: Journal, name: string, decided: unknown): StepRecord {
  const step = journal.step(name)
  if (!step || step.state !== 'began') {
    throw invalidArgument(
      `resume: step "${name}" of ${describeKey(journal.claim.key)} is not in doubt, it is ${step?.state ?? 'unknown'}`,
    )
  }
  const looked = checkLookup(name, decided)
  if (looked === 'not-found') return { ...step, state: 'absent' }
  if (looked === 'unknown') throw invalidArgument(`resume: expected a decision on step "${name}", got "unknown"`)
  const { bytes } = storable(journal.claim.key, context.once.codec, name, looked.found)
  return { ...step, state: 'done', result: bytes }
}

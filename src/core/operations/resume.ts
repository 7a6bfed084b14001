// A person's word on an operation that is parked: it goes on, with what they have found out about its steps in doubt. The
// operation is claimed for the moment of writing, so that nobody works on it meanwhile, and is due at once.

import type { HeldKey } from '../once/attempt.ts'
import { invalidArgument } from '../errors.ts'
import { describeKey } from '../key.ts'
import type { Key } from '../key.ts'
import { askFor, inStore, readHeld, readRecorded, storedCall } from './attempt.ts'
import type { OperationContext } from './attempt.ts'
import type { Journal } from './journal.ts'
import { storable } from './records.ts'
import type { StepRecord } from './records.ts'
import { checkFound } from './steps.ts'
import { checkGiven } from '../options.ts'
import type { Ledger } from '../store.ts'

export interface ResumeOptions {
  /** By the name of the step: it took effect and came to this, or it did not. */
  readonly decide?: Readonly<Record<string, { readonly found: unknown } | 'not-found'>>
}

/** False when there is nothing to resume: it is over, or never was. */
export async function resume(context: OperationContext, subject: Key, options: ResumeOptions): Promise<boolean> {
  checkGiven('resume', options, { decide: () => undefined })
  const entry = await inStore(context, 'inspect', subject, () => context.store.show(subject))
  if (!entry?.input || entry.state === 'settled' || entry.state === 'tombstone') return false
  const call = storedCall(context, subject, entry.fingerprint, entry.input)
  const { verdict, askedMs } = await askFor(context, call)
  if (verdict.is !== 'granted') {
    // Settled meanwhile; every other verdict is thrown.
    if (verdict.is !== 'settled') context.calls.answer(call, verdict, 0)
    return false
  }
  const { claim } = verdict
  const ledger = await readHeld(context, verdict, askedMs)
  const advance: HeldKey['advance'] = (change) =>
    inStore(context, 'advance', subject, () => context.store.advance(claim, change))
  const recorded = { ledger, input: entry.input }
  const { journal } = await readRecorded(context, claim, recorded, { advance })
  await goOn(context, journal, ledger, options.decide ?? {})
  return true
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
    // As it was: held until its lease is over, it could not be resumed with the right decision.
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
  const looked = checkFound(name, decided)
  if (looked === 'not-found') return { ...step, state: 'absent' }
  if (looked === 'unknown') throw invalidArgument(`resume: expected a decision on step "${name}", got "unknown"`)
  const { bytes } = storable(journal.claim.key, context.once.codec, name, looked.found)
  return { ...step, state: 'done', result: bytes }
}

// Resuming an operation: by a worker, without its caller, and by a person who has found out about its steps in doubt. The person's
// process claims the operation for the moment of writing, so that no worker works on it meanwhile, and leaves it due at once.
// Neither begins an operation: what has expired or was forgotten since they looked, only a caller can ask for again.

import { invalidArgument, OnceError } from '../errors.ts'
import { describeKey } from '../key.ts'
import type { Key } from '../key.ts'
import {
  askFor,
  carryOut,
  continuingCall,
  enlist,
  forgetUnasked,
  hold,
  inStore,
  readLedger,
  readRecorded,
} from './attempt.ts'
import type { OperationContext } from './attempt.ts'
import type { Journal } from './journal.ts'
import { encodeOutcome } from '../outcome.ts'
import { storable } from './records.ts'
import type { StepRecord } from './records.ts'
import { checkLookup } from './step.ts'
import { checkGiven } from '../options.ts'
import type { Claim, Entry, Ledger, Verdict } from '../store.ts'

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
  if (!entry || entry.state === 'settled' || entry.state === 'tombstone') return 'over'
  if (!hasInput(entry)) return expireUnasked(context, entry)
  if (entry.version > context.definition.version) return 'newer'
  const call = continuingCall(context, entry)
  try {
    const enlisted = await enlist(context, { ...call, settings: { ...call.settings, waitMs: 0 } })
    if (enlisted.is !== 'granted' || !(await isAskedFor(context, enlisted.verdict))) return 'over'
    await carryOut(context, call, enlisted)
  } catch (error) {
    // How the attempt ended is recorded, and there is no caller.
    if (error instanceof OnceError && error.code === 'IN_FLIGHT') return 'busy'
    if (error instanceof OnceError && error.code === 'EXPIRED') return 'over'
  }
  return 'recovered'
}

type Granted = Verdict & { readonly is: 'granted' }

function hasInput(entry: Entry): entry is Entry & { readonly input: Uint8Array } {
  return entry.input !== undefined
}

/**
 * Whether a caller has asked for the life that was granted. It may be another one than this process has seen: that one expired or
 * was forgotten since, and a claim of a worker began this one by mistake, now or before. Then nothing of it is left.
 */
async function isAskedFor(context: OperationContext, { claim, how }: Granted): Promise<boolean> {
  if (how === 'fresh') {
    await forgetUnasked(context, claim)
    return false
  }
  const entry = await inStore(context, 'recover', claim.key, () => context.store.show(claim.key)).catch(
    (error: unknown) => {
      context.runtime.background(inStore(context, 'release', claim.key, () => context.store.release(claim, 'open')))
      throw error
    },
  )
  // If this process has lost the key meanwhile, its first write finds out.
  if (!entry || entry.fence !== claim.fence || hasInput(entry)) return true
  await endUnasked(context, claim)
  return false
}

/** A later attempt cannot be forgotten. One that is settled and kept for no time is gone at once. */
async function endUnasked(context: OperationContext, claim: Claim): Promise<void> {
  const { bytes } = encodeOutcome({ kind: 'not-stored', reason: 'no caller asked for it' }, context.once.codec)
  const becomes = { to: 'settled', outcome: bytes, retention: { keepMs: 0, tombstoneMs: 0 } } as const
  await inStore(context, 'release', claim.key, () => context.store.advance(claim, { records: [], becomes }))
}

/** A worker has begun this life by mistake, and died before it could forget it. No caller has asked for it, so nothing runs. */
async function expireUnasked(context: OperationContext, entry: Entry): Promise<'busy' | 'over'> {
  const { runtime, store } = context
  const { key } = entry
  if (entry.state === 'running') return 'busy'
  // A key of `once.run` in this scope is no operation.
  if (!(await readLedger(context, key))) return 'over'
  const { request } = continuingCall(context, { ...entry, input: noInput })
  const verdict = await inStore(context, 'recover', key, () =>
    // Enlisted, so that a worker sees what a late duplicate of this begins.
    store.enlist(key, { ...request, version: entry.version, token: runtime.random.uuid() }),
  )
  if (verdict.is === 'busy') return 'busy'
  if (verdict.is !== 'granted' || !(await isAskedFor(context, verdict))) return 'over'
  // A caller has asked for it since, and its attempt has ended.
  await inStore(context, 'release', key, () => store.release(verdict.claim, 'open'))
  return 'busy'
}

const noInput = new Uint8Array(0)

/** False when there is nothing to resume: the operation has ended, or never was. */
export async function resume(context: OperationContext, subject: Key, options: ResumeOptions): Promise<boolean> {
  checkGiven('resume', options, { decide: () => undefined })
  const entry = await inStore(context, 'inspect', subject, () => context.store.show(subject))
  if (!entry || !hasInput(entry) || entry.state === 'settled' || entry.state === 'tombstone') return false
  const call = continuingCall(context, entry)
  const { verdict, askedMs } = await askFor(context, call)
  if (verdict.is !== 'granted') {
    // Settled meanwhile. Every other verdict is an error.
    if (verdict.is !== 'settled') context.calls.answer(call, verdict, 0)
    return false
  }
  if (!(await isAskedFor(context, verdict))) return false
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
  const { parked: _parked, failuresBack: _failuresBack, interruptions: _interruptions, ...course } = journal.course
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

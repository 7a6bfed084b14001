// Asking for an operation, and one attempt of it: claim the key and keep the input, read what is recorded, conduct it, and write
// what becomes of it. Whatever fails before the first step, the key is not left held for nothing.

import { holdKey } from '../once/attempt.ts'
import type { HeldKey, RunContext } from '../once/attempt.ts'
import { byLease, claim, stillHeld } from '../once/claim.ts'
import { FinalError, invalidArgument, OnceError } from '../errors.ts'
import { publish } from '../events.ts'
import { fingerprint } from '../fingerprint.ts'
import { describeKey, keyString } from '../key.ts'
import type { Key } from '../key.ts'
import { openJournal } from './journal.ts'
import type { Journal } from './journal.ts'
import { conduct, notYet } from './conduct.ts'
import type { Conducting, Definition, Plan } from './conduct.ts'
import type { Steps } from './steps.ts'
import { decodeOutcome, encodeOutcome } from '../outcome.ts'
import type { Outcome } from '../outcome.ts'
import { valueOf } from '../once/call.ts'
import type { Call, Calls, Result } from '../once/call.ts'
import type { OnceOptions, Settings } from '../settings.ts'
import { callStore } from '../store-call.ts'
import type { Change, Claim, Inspectable, Ledger, Recoverable, StepLedger, Store, Verdict } from '../store.ts'

export type OperationStore = Store & StepLedger & Recoverable & Inspectable

/** What every call of one operation stands on. */
export interface OperationContext {
  readonly calls: Calls
  readonly ground: RunContext
  readonly store: OperationStore
  readonly once: OnceOptions
  readonly scope: string
  readonly settings: Settings
  readonly definition: Definition
}

/** The call with the input in the request. */
export type OperationCall = Call & { readonly request: { readonly input: Uint8Array } }

type Granted = Verdict & { readonly is: 'granted' }

/**
 * An operation that is not finished does not expire: it would take what is to be undone, and what is in doubt, with it. Ten years is
 * for ever; sums of times stay exact in every store. What it comes to is kept for the keepMs that was asked for.
 */
export const unfinishedKeepMs: number = 10 * 365 * 86_400_000

export function callOf(context: OperationContext, subject: Key, given: unknown): OperationCall {
  const { bytes, outcome } = encodeOutcome({ kind: 'value', value: given }, context.once.codec)
  if (outcome.kind === 'not-stored') {
    throw invalidArgument(`operation "${context.definition.name}": its input cannot be stored: ${outcome.reason}`)
  }
  // A codec may encode the same input differently each time (encryption); the fingerprint is of the input itself.
  return storedCall(context, subject, fingerprint(given), bytes)
}

export function storedCall(
  { settings }: OperationContext,
  subject: Key,
  asked: string,
  input: Uint8Array,
): OperationCall {
  const { leaseMs, keepMs, tombstoneMs, version, onExpired } = settings
  const retention = { keepMs: Math.max(keepMs, unfinishedKeepMs), tombstoneMs }
  return {
    key: subject,
    settings,
    request: { fingerprint: asked, leaseMs, retention, version, onTakeover: 'run', onExpired, input },
    group: ['operation', keyString(subject), asked].join('\n'),
  }
}

/** Ask for the operation. When it is granted, `granted` carries it out. */
export async function enlist(
  context: OperationContext,
  call: OperationCall,
): Promise<
  | { readonly granted: () => Promise<Result<unknown>>; readonly result?: undefined }
  | { readonly result: Result<unknown>; readonly granted?: undefined }
> {
  const { ground, calls } = context
  const startedMs = ground.clock.elapsed()
  const { verdict, askedMs } = await askFor(context, call)
  if (verdict.is !== 'granted') return { result: calls.answer(call, ofThisVersion(context, verdict), startedMs) }
  const { attempt } = verdict.claim
  publish('claimed', call.key, { attempt, how: verdict.how, durationMs: ground.clock.elapsed() - startedMs })
  if (verdict.how === 'taken-over') publish('taken-over', call.key, { attempt })
  return { granted: () => carryOut(context, call, verdict, askedMs).finally(() => calls.wake(call)) }
}

export function askFor(
  { ground, calls, store }: OperationContext,
  call: OperationCall,
): Promise<{ readonly verdict: Verdict; readonly askedMs: number }> {
  const { input } = call.request
  const enlisting = byLease(ground, call.key, (request) => store.enlist(call.key, { ...request, input }))
  return claim(calls, call, enlisting)
}

/** An operation counts its own versions, and `upgrade` knows those of `createOnce`: what it came to is replayed as it was. */
function ofThisVersion<V extends Verdict>({ once }: OperationContext, verdict: V): V {
  return verdict.is === 'settled' ? { ...verdict, version: once.version ?? 0 } : verdict
}

async function carryOut(
  context: OperationContext,
  call: OperationCall,
  verdict: Granted,
  askedMs: number,
): Promise<Result<unknown>> {
  const { ground } = context
  const { claim: held, how } = verdict
  const ledger = await readHeld(context, verdict, askedMs)
  const hold = holdKey(ground, held, call.settings)
  try {
    const recorded = { ledger, input: call.request.input }
    const { journal, input } = await readRecorded(context, held, recorded, hold)
    await mayGoOn(context, journal, ledger)
    return await conductHeld(context, call, hold, { journal, input, takenOver: how === 'taken-over' })
  } finally {
    hold.stop()
  }
}

async function conductHeld(
  context: OperationContext,
  call: OperationCall,
  hold: HeldKey,
  { journal, input, takenOver }: Pick<Conducting, 'journal' | 'input' | 'takenOver'>,
): Promise<Result<unknown>> {
  let steps: Steps | undefined
  const conducting: Conducting = {
    ground: context.ground,
    definition: context.definition,
    journal,
    settings: call.settings,
    codec: context.once.codec,
    input,
    takenOver,
    onSteps: (given) => (steps = given),
  }
  const ended = await hold.run((op) => conduct(conducting, op))
  if (ended.is === 'hung') {
    // It still runs somewhere and may still do anything: only the lease can end it.
    await steps?.abandon()
    throw ended.thrown
  }
  if (ended.is === 'threw') throw await giveBack(context, journal, ended.thrown)
  return conclude(context, call, journal, ended.value as Plan)
}

/** What is recorded, once it is sure that the claim still holds. */
export async function readHeld(
  context: OperationContext,
  { claim: held, how }: Granted,
  askedMs: number,
): Promise<Ledger | undefined> {
  try {
    await stillHeld(context.ground, held, context.settings, askedMs)
    return how === 'fresh' ? undefined : await readLedger(context, held.key)
  } catch (error) {
    // Nothing has begun. A release leaves alone when it is due, and whether it is parked.
    const release = inStore(context, 'release', held.key, () => context.store.release(held, 'open'))
    context.ground.background(release)
    throw error
  }
}

export async function readRecorded(
  context: OperationContext,
  held: Claim,
  { ledger, input }: { readonly ledger: Ledger | undefined; readonly input: Uint8Array },
  hold: Pick<HeldKey, 'advance'>,
): Promise<{ readonly journal: Journal; readonly input: unknown }> {
  const { definition, settings, store, once } = context
  const { name: operation, version } = definition
  const cancelReason = async (): Promise<string> => {
    const now = await readLedger(context, held.key).catch(() => undefined)
    return now?.cancelReason ?? 'somebody asked for it'
  }
  try {
    const journal = openJournal({ operation, version, claim: held, settings, store, ledger, hold, cancelReason })
    return { journal, input: valueOf(held.key, decodeOutcome(input, once.codec, held.key)) }
  } catch (error) {
    // Nobody can go on with what cannot be read, and trying again would not help: it is parked.
    await giveUp(context, held, { to: 'open' })
    throw error
  }
}

/** What was parked stays parked until somebody resumes it, and what a newer version began is not ours to go on with. */
async function mayGoOn(context: OperationContext, journal: Journal, ledger: Ledger | undefined): Promise<void> {
  const { definition, settings } = context
  const { course, claim: held } = journal
  if (ledger && ledger.dueAtMs === undefined) {
    await giveUp(context, held, { to: 'open' })
    const why = course.parked ?? `What was recorded of ${describeKey(held.key)} could not be read.`
    throw new OnceError('PARKED', {
      message: `${why} The operation waits for a person: see status(id), and decide with resume(id).`,
    })
  }
  if (course.version <= definition.version) return
  publish('drifted', held.key, { operation: definition.name, what: 'newer-version' })
  await giveUp(context, held, { to: 'open', afterMs: settings.leaseMs })
  throw new OnceError('NEWER_VERSION', {
    message:
      `Version ${course.version} of operation "${definition.name}" has worked on ${describeKey(held.key)}, and this process runs ` +
      `version ${definition.version}. Nothing was run here. Roll the newer version out everywhere; a worker that has it takes it up.`,
  })
}

async function giveUp(context: OperationContext, held: Claim, becomes: Change['becomes']): Promise<void> {
  await inStore(context, 'advance', held.key, () => context.store.advance(held, { records: [], becomes }))
}

async function conclude(
  context: OperationContext,
  call: OperationCall,
  journal: Journal,
  plan: Plan,
): Promise<Result<unknown>> {
  const { attempt } = journal.claim
  const startedMs = context.ground.clock.elapsed()
  const durationMs = (): number => context.ground.clock.elapsed() - startedMs
  if (plan.do === 'settle') {
    const stored = await settle(context, journal, plan)
    plan.last?.written()
    publish('settled', call.key, { attempt, kind: stored.kind, durationMs: durationMs() })
    if (stored.kind === 'failure') throw plan.thrown
    return { value: valueOf(call.key, stored), replayed: false, attempt }
  }
  // What the operation failed with matters more than whether that could be written: the lease will end.
  const becomes = plan.do === 'wait' ? ({ to: 'open', afterMs: plan.afterMs } as const) : ({ to: 'open' } as const)
  await journal.end(plan.news, becomes).catch(() => {})
  publish('released', call.key, { attempt, how: 'open', durationMs: durationMs() })
  throw plan.thrown
}

/** Answers what every replay will be told. */
async function settle(context: OperationContext, journal: Journal, plan: Plan & { do: 'settle' }): Promise<Outcome> {
  const { keepMs, tombstoneMs } = context.settings
  const write = async (given: Outcome): Promise<Outcome> => {
    const { bytes, outcome } = encodeOutcome(given, context.once.codec)
    await journal.end(plan.news, { to: 'settled', outcome: bytes, retention: { keepMs, tombstoneMs } })
    return outcome
  }
  return write(plan.outcome).catch((error: unknown) => {
    // Too large for this store: that it is over is kept at least, or it would be tried again and then undone.
    if (!(error instanceof OnceError) || error.code !== 'OUTCOME_NOT_STORED') throw error
    return write({ kind: 'not-stored', reason: error.message })
  })
}

/** The attempt came to no plan: the store failed in the middle of it, or its claim was lost. */
async function giveBack(context: OperationContext, journal: Journal, thrown: unknown): Promise<unknown> {
  const over = thrown instanceof OnceError && thrown.code === 'CLAIM_LOST'
  const afterMs = context.definition.backoff.firstMs
  if (!over) await journal.end({}, { to: 'open', afterMs }).catch(() => {})
  return thrown instanceof FinalError ? notYet(journal, thrown) : thrown
}

/** Without a caller. */
export async function takeUp(context: OperationContext, subject: Key): Promise<'taken-up' | 'busy' | 'over' | 'newer'> {
  const entry = await inStore(context, 'recover', subject, () => context.store.show(subject))
  const alive = entry && entry.state !== 'settled' && entry.state !== 'tombstone'
  if (!alive || !entry.input) return 'over'
  if (entry.version > context.definition.version) return 'newer'
  const call = storedCall(context, subject, entry.fingerprint, entry.input)
  try {
    const asked = await enlist(context, { ...call, settings: { ...call.settings, waitMs: 0 } })
    if (!asked.granted) return 'over'
    await asked.granted()
  } catch (error) {
    // What it came to is written down; there is no caller to tell.
    if (error instanceof OnceError && error.code === 'IN_FLIGHT') return 'busy'
  }
  return 'taken-up'
}

export function readLedger(context: OperationContext, subject: Key): Promise<Ledger | undefined> {
  return inStore(context, 'inspect', subject, () => context.store.ledger(subject))
}

export function inStore<T>(
  context: OperationContext,
  during: 'recover' | 'inspect' | 'advance' | 'release',
  subject: Key,
  ask: () => Promise<T>,
): Promise<T> {
  return callStore(context.ground.storeCalls, during, subject, ask)
}

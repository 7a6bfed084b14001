// Asking for an operation, and one attempt of it: claim the key and keep the input, read what is recorded, conduct the function,
// and write the end. Whatever fails before the first step, the key is not left held for nothing.

import { byLease, claim, holdKey, stillHeld, valueOf } from '../call.ts'
import type { Call, Calls, HeldKey, Result, RunContext } from '../call.ts'
import { FinalError, invalidArgument, OnceError } from '../errors.ts'
import { publish } from '../events.ts'
import { fingerprint } from '../fingerprint.ts'
import { describeKey, keyString } from '../key.ts'
import type { Key } from '../key.ts'
import { openJournal } from './journal.ts'
import type { Journal } from './journal.ts'
import { conduct, notYet, parkedError } from './conduct.ts'
import type { Definition, Plan } from './conduct.ts'
import { createSteps } from './steps.ts'
import { decodeOutcome, encodeOutcome } from '../outcome.ts'
import type { Outcome } from '../outcome.ts'
import type { OnceOptions, Settings } from '../settings.ts'
import { callStore } from '../timed-call.ts'
import type { Change, Claim, Entry, Inspectable, Ledger, Recoverable, StepLedger, Store, Verdict } from '../store.ts'

export type OperationStore = Store & StepLedger & Recoverable & Inspectable

/** What every call of one operation uses. */
export interface OperationContext {
  readonly calls: Calls
  readonly runtime: RunContext
  readonly store: OperationStore
  readonly once: OnceOptions
  readonly scope: string
  readonly settings: Settings
  readonly definition: Definition
}

/** A call, and the input that the function is given. */
export type OperationCall = Call & { readonly input: Uint8Array }

/** What the store says to an operation that is asked for: this process may work on it, or what the caller gets. */
export type Enlisted = GrantedOperation | { readonly is: 'answered'; readonly result: Result<unknown> }

export interface GrantedOperation {
  readonly is: 'granted'
  readonly verdict: Verdict & { readonly is: 'granted' }
  /** When the store was asked: the lease counts from here. */
  readonly askedMs: number
}

/**
 * An operation that is not finished does not expire: its undos and its steps in doubt would be lost with it. Ten years is
 * forever, and sums of times stay exact in every store. Its result is kept for the keepMs that was asked for.
 */
export const unfinishedKeepMs: number = 10 * 365 * 86_400_000

export function callOf(context: OperationContext, subject: Key, given: unknown): OperationCall {
  const { bytes, outcome } = encodeOutcome({ kind: 'value', value: given }, context.once.codec)
  if (outcome.kind === 'not-stored') {
    throw invalidArgument(`operation "${context.definition.name}": its input cannot be stored: ${outcome.reason}`)
  }
  // A codec may encode the same input differently each time (encryption). The fingerprint is of the input itself.
  const request = requestOf(context, fingerprint(given))
  return {
    key: subject,
    settings: context.settings,
    request: { ...request, input: bytes },
    input: bytes,
    group: ['operation', keyString(subject), request.fingerprint].join('\n'),
  }
}

/**
 * The call of a process that only goes on with what a caller asked for. It brings no input, so that a life which it should begin
 * by mistake (the entry expired after `show`) has none, and no worker ever runs it.
 */
export function continuingCall(
  context: OperationContext,
  { key, fingerprint: asked, input }: Entry & { readonly input: Uint8Array },
): OperationCall {
  return {
    key,
    settings: context.settings,
    request: { ...requestOf(context, asked), onExpired: 'refuse' },
    input,
    group: ['continued operation', keyString(key), asked].join('\n'),
  }
}

function requestOf({ settings }: OperationContext, asked: string): Call['request'] {
  const { leaseMs, keepMs, tombstoneMs, version, onExpired } = settings
  const retention = { keepMs: Math.max(keepMs, unfinishedKeepMs), tombstoneMs }
  return { fingerprint: asked, leaseMs, retention, version, onTakeover: 'run', onExpired }
}

/** Asks for the operation. What is granted is carried out by `carryOut`. */
export async function enlist(context: OperationContext, call: OperationCall): Promise<Enlisted> {
  const { runtime, calls } = context
  const startedMs = runtime.clock.elapsed()
  const { verdict, askedMs } = await askFor(context, call)
  if (verdict.is !== 'granted') {
    return { is: 'answered', result: calls.answer(call, ofThisVersion(context, verdict), startedMs) }
  }
  const { attempt } = verdict.claim
  publish('claimed', call.key, { attempt, how: verdict.how, durationMs: runtime.clock.elapsed() - startedMs })
  if (verdict.how === 'taken-over') publish('taken-over', call.key, { attempt })
  return { is: 'granted', verdict, askedMs }
}

export function askFor(
  { calls, store }: OperationContext,
  call: OperationCall,
): Promise<{ readonly verdict: Verdict; readonly askedMs: number }> {
  const enlisting = byLease((_context, key, request) => store.enlist(key, request))
  return claim(calls, call, enlisting)
}

/** Gives back what began by mistake, before anything runs: a first attempt that is forgotten leaves no trace. */
export async function forgetUnasked(context: OperationContext, granted: Claim): Promise<void> {
  await inStore(context, 'release', granted.key, () => context.store.release(granted, 'forget'))
}

/** An operation counts its own versions, and `upgrade` knows those of `createOnce`: its result is replayed as it was. */
function ofThisVersion<V extends Verdict>({ once }: OperationContext, verdict: V): V {
  return verdict.is === 'settled' ? { ...verdict, version: once.version ?? 0 } : verdict
}

/** One attempt, to its result. Throws what the operation failed with. */
export function carryOut(
  context: OperationContext,
  call: OperationCall,
  granted: GrantedOperation,
): Promise<Result<unknown>> {
  return attempt(context, call, granted).finally(() => context.calls.wake(call))
}

async function attempt(
  context: OperationContext,
  call: OperationCall,
  granted: GrantedOperation,
): Promise<Result<unknown>> {
  const { held, ledger } = await hold(context, granted)
  try {
    const { journal, input } = await readRecorded(context, held, { ledger, input: call.input })
    await mayGoOn(context, held, { journal, ledger })
    const { runtime, definition, once } = context
    const steps = createSteps({ runtime, journal, settings: call.settings, codec: once.codec })
    const conducting = { runtime, definition, journal, settings: call.settings, codec: once.codec, steps, input }
    const takenOver = granted.verdict.how === 'taken-over'
    const ended = await held.run((op) => conduct({ ...conducting, takenOver, op }))
    if (ended.is === 'hung') {
      // It still runs somewhere and may still do anything: only the lease can end it.
      await steps.abandon()
      throw ended.thrown
    }
    if (ended.is === 'threw') throw await release(context, journal, ended.thrown)
    return await conclude(context, call, journal, ended.value as Plan)
  } finally {
    held.stop()
  }
}

/** The key, held by a heartbeat, and what is recorded. */
export async function hold(
  context: OperationContext,
  { verdict: { claim: granted, how }, askedMs }: GrantedOperation,
): Promise<{ readonly held: HeldKey; readonly ledger: Ledger | undefined }> {
  const { runtime, settings } = context
  await stillHeld(runtime, granted, settings, askedMs).catch((error: unknown) => {
    // Nothing has begun. A release changes neither when the operation is due nor whether it is parked.
    runtime.background(inStore(context, 'release', granted.key, () => context.store.release(granted, 'open')))
    throw error
  })
  const held = holdKey(runtime, granted, settings)
  try {
    return { held, ledger: how === 'fresh' ? undefined : await readLedger(context, granted.key) }
  } catch (error) {
    runtime.background(held.release('open'))
    throw error
  }
}

/** Opens the journal of a held operation, and decodes its input. Parks what cannot be read. */
export async function readRecorded(
  context: OperationContext,
  held: HeldKey,
  { ledger, input }: { readonly ledger: Ledger | undefined; readonly input: Uint8Array },
): Promise<{ readonly journal: Journal; readonly input: unknown }> {
  const { definition, settings, store, once } = context
  const { key } = held.claim
  const { name: operation, version } = definition
  const readCancelReason = async (): Promise<string> => {
    const now = await readLedger(context, key).catch(() => undefined)
    return now?.cancelReason ?? 'a cancel was requested'
  }
  try {
    const journal = openJournal({
      operation,
      version,
      held,
      settings,
      store,
      ledger,
      codec: once.codec,
      readCancelReason,
    })
    return { journal, input: valueOf(key, decodeOutcome(input, once.codec, key)) }
  } catch (error) {
    // No attempt can go on with what cannot be read, and trying again would not help.
    await end(context, held, { to: 'open' })
    throw error
  }
}

/** What was parked stays parked until a person resumes it, and what a newer version began is left to it. */
async function mayGoOn(
  context: OperationContext,
  held: HeldKey,
  { journal, ledger }: { readonly journal: Journal; readonly ledger: Ledger | undefined },
): Promise<void> {
  const { definition, settings } = context
  const { course } = journal
  const { key } = held.claim
  if (ledger && ledger.dueAtMs === undefined) {
    await end(context, held, { to: 'open' })
    throw parkedError(course.parked ?? `The records of ${describeKey(key)} could not be read.`)
  }
  if (course.version <= definition.version) return
  publish('drifted', key, { operation: definition.name, what: 'newer-version' })
  await end(context, held, { to: 'open', afterMs: settings.leaseMs })
  throw new OnceError('NEWER_VERSION', {
    message:
      `Version ${course.version} of operation "${definition.name}" has worked on ${describeKey(key)}, and this process runs ` +
      `version ${definition.version}. Nothing was run here. Deploy version ${course.version} everywhere: a worker that has it resumes the operation.`,
  })
}

/** The last write of an attempt that has not begun: without `afterMs` the operation is parked. */
async function end(context: OperationContext, held: HeldKey, becomes: Change['becomes']): Promise<void> {
  await held.advance({ records: [], becomes }, context.store)
}

async function conclude(
  context: OperationContext,
  call: OperationCall,
  journal: Journal,
  plan: Plan,
): Promise<Result<unknown>> {
  const { attempt } = journal.claim
  const startedMs = context.runtime.clock.elapsed()
  const durationMs = (): number => context.runtime.clock.elapsed() - startedMs
  if (plan.do === 'settle') {
    const stored = await settle(context, journal, plan)
    plan.last?.written()
    publish('settled', call.key, { attempt, kind: stored.kind, durationMs: durationMs() })
    if (stored.kind === 'failure') throw plan.thrown
    return { value: valueOf(call.key, stored), replayed: false, attempt }
  }
  // The failure of the operation matters more than a write that failed: the lease frees the key anyway.
  const becomes = plan.do === 'wait' ? ({ to: 'open', afterMs: plan.afterMs } as const) : ({ to: 'open' } as const)
  await journal.end(plan.news, becomes).catch(() => {})
  publish('released', call.key, { attempt, how: 'open', durationMs: durationMs() })
  throw plan.thrown
}

/** Returns the outcome that every replay will get. */
async function settle(context: OperationContext, journal: Journal, plan: Plan & { do: 'settle' }): Promise<Outcome> {
  const { keepMs, tombstoneMs } = context.settings
  const write = async (given: Outcome): Promise<Outcome> => {
    const { bytes, outcome } = encodeOutcome(given, context.once.codec)
    await journal.end(plan.news, { to: 'settled', outcome: bytes, retention: { keepMs, tombstoneMs } })
    return outcome
  }
  return write(plan.outcome).catch((error: unknown) => {
    // Too large for this store: that it has ended is kept at least, or it would be tried again and then undone.
    if (!(error instanceof OnceError) || error.code !== 'OUTCOME_NOT_STORED') throw error
    return write({ kind: 'not-stored', reason: error.message })
  })
}

/** The attempt has no plan: the store failed in the middle of it, or its claim was lost. Returns the error to throw. */
async function release(context: OperationContext, journal: Journal, thrown: unknown): Promise<unknown> {
  const isLost = thrown instanceof OnceError && thrown.code === 'CLAIM_LOST'
  const afterMs = context.definition.backoff.firstMs
  if (!isLost) await journal.end({}, { to: 'open', afterMs }).catch(() => {})
  return thrown instanceof FinalError ? notYet(journal, thrown) : thrown
}

export function readLedger(context: OperationContext, subject: Key): Promise<Ledger | undefined> {
  return inStore(context, 'inspect', subject, () => context.store.ledger(subject))
}

export function inStore<T>(
  context: OperationContext,
  during: 'recover' | 'inspect' | 'mend' | 'release',
  subject: Key,
  ask: () => Promise<T>,
): Promise<T> {
  return callStore(context.runtime.storeCalls, during, subject, ask)
}

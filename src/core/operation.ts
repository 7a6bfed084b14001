// Operations: an effect of several steps that a crash interrupts is taken up where it was, by the caller's retry or by a worker,
// and each step takes effect once. The entry of the operation's key decides who may work on it; its steps are recorded
// beside it, under the same token.

import { beginAttempt } from './attempt.ts'
import type { Attempt, Ground } from './attempt.ts'
import type { Backoff } from './backoff.ts'
import { claim, stillHeld } from './claiming.ts'
import { invalidArgument, OnceError } from './errors.ts'
import { publish } from './events.ts'
import { fingerprint } from './fingerprint.ts'
import { describeKey, key, keyString } from './key.ts'
import type { Key } from './key.ts'
import { openJournal } from './operation-journal.ts'
import type { Journal } from './operation-journal.ts'
import { conduct } from './operation-run.ts'
import type { Definition, Plan } from './operation-run.ts'
import { statusOf } from './operation-status.ts'
import type { OperationStatus } from './operation-status.ts'
import type { OperationOp, Steps } from './operation-steps.ts'
import { aFunction, checkGiven, optional, positiveInteger, positiveMs, versionNumber } from './options.ts'
import type { Rule } from './options.ts'
import { decodeOutcome, encodeOutcome } from './outcome.ts'
import { valueOf } from './protocol.ts'
import type { Call, Protocol, Result } from './protocol.ts'
import { readRunOptions } from './settings.ts'
import type { CallOptions, OnceOptions, Settings } from './settings.ts'
import { callStore } from './store-call.ts'
import type { Change, Claim, Inspectable, Ledger, Recoverable, StepLedger, Store, Verdict } from './store.ts'

export interface OperationOptions extends Pick<
  CallOptions,
  'leaseMs' | 'keepMs' | 'tombstoneMs' | 'waitMs' | 'attemptMs' | 'onExpired'
> {
  /** The version of the function; an older one does not touch what a newer one began. Default 1. */
  readonly version?: number
  /** How many attempts may fail before the operation goes back. Default 10. */
  readonly attempts?: number
  /** The pauses between attempts of a worker. Default 1 s, doubled up to 5 minutes. */
  readonly backoff?: Partial<Backoff>
}

export interface Operation<Input, T> {
  readonly name: string
  /** The scope of its keys. */
  readonly scope: string
  /** Run it, or take it up where it was, or be told what it came to. */
  run(id: string, input: Input): Promise<Result<T>>
  /** The same without waiting for its end: resolves as soon as it cannot be lost any more. */
  start(id: string, input: Input): Promise<OperationStatus>
  status(id: string): Promise<OperationStatus | undefined>
  /** Ask for it to be cancelled: what was done is undone, unless it is past its pivot. */
  cancel(id: string, reason: string): Promise<OperationStatus | undefined>
  /** Let a parked operation go on, with what a person has found out about its steps in doubt. */
  resume(id: string, options?: ResumeOptions): Promise<OperationStatus | undefined>
}

export interface ResumeOptions {
  /** By the name of the step: it took effect and came to this, or it did not. */
  readonly decide?: Readonly<Record<string, { readonly found: unknown } | 'not-found'>>
}

/** What the worker and the reconciler need of an operation. */
export interface OperationParts extends Operation<unknown, unknown> {
  /** Take it up without a caller; resolves when the attempt is over, whatever it came to. */
  takeUp(subject: Key): Promise<'taken-up' | 'busy' | 'over' | 'newer'>
  readonly store: OperationStore
}

export type OperationStore = Store & StepLedger & Recoverable & Inspectable

/** Tells an operation of ours from anything else, and lets the worker at its parts. */
export const operationParts: WeakMap<object, OperationParts> = new WeakMap()

const optionRules: Readonly<Record<keyof OperationOptions, Rule>> = {
  leaseMs: optional(positiveMs),
  keepMs: optional(positiveMs),
  tombstoneMs: () => undefined, // these three are checked with those of a call
  waitMs: () => undefined,
  onExpired: () => undefined,
  attemptMs: optional(positiveMs),
  version: optional(versionNumber),
  attempts: optional(positiveInteger),
  backoff: optional((value) => (typeof value === 'object' && value !== null ? undefined : 'an object')),
}

const defaultBackoff: Backoff = { firstMs: 1_000, factor: 2, maxMs: 300_000 }
const defaultAttempts = 10

export function createOperation<Input, T>(
  protocol: Protocol,
  once: { readonly options: OnceOptions; readonly settings: Settings },
  name: string,
  options: OperationOptions,
  run: (op: OperationOp, input: Input) => T | Promise<T>,
): Operation<Input, T> {
  const what = `operation "${name}"`
  checkGiven(what, options, optionRules)
  if (aFunction(run) !== undefined) throw invalidArgument(`${what}: expected a function, got ${typeof run}`)
  const { version = 1, attempts = defaultAttempts, backoff, ...callOptions } = options
  const store = operationStore(protocol.ground.store, what)
  const context: Context = {
    protocol,
    ground: protocol.ground,
    store,
    once: once.options,
    scope: operationScope(once.options.scope, name),
    settings: { ...readRunOptions(what, once.settings, callOptions), version, onTakeover: 'rerun', onThrow: 'release' },
    definition: {
      name,
      version,
      attempts,
      backoff: { ...defaultBackoff, ...backoff },
      run: run as Definition['run'],
    },
  }
  const operation = operationOn<Input, T>(context)
  operationParts.set(operation, {
    ...operation,
    store,
    takeUp: (subject) => takeUp(context, subject),
  } as OperationParts)
  return operation
}

/** `payments/operations/checkout`: keys of `once.run` are in `payments`, those of HTTP in `payments/<tenant>`. */
function operationScope(scope: string, name: string): string {
  if (typeof name !== 'string' || !/^[A-Za-z0-9_.-]{1,64}$/.test(name)) {
    throw invalidArgument(
      `expected the name of an operation to be 1 to 64 letters, digits, _ . or -, got ${JSON.stringify(name)}`,
    )
  }
  return key(`${scope}/operations/${name}`, 'any').scope
}

interface Context {
  readonly protocol: Protocol
  readonly ground: Ground
  readonly store: OperationStore
  readonly once: OnceOptions
  readonly scope: string
  readonly settings: Settings
  readonly definition: Definition
}

function operationOn<Input, T>(context: Context): Operation<Input, T> {
  const { scope, definition } = context
  const subject = (id: string): Key => key(scope, id)
  const status = (id: string): Promise<OperationStatus | undefined> => readStatus(context, subject(id))
  return {
    name: definition.name,
    scope,
    async run(id, input) {
      const asked = await enlist(context, callOf(context, subject(id), input))
      return (asked.granted ? await asked.granted() : asked.result) as Result<T>
    },
    async start(id, input) {
      const call = callOf(context, subject(id), input)
      const asked = await enlist(context, { ...call, settings: { ...call.settings, waitMs: 0 } }).catch(
        (error: unknown) => {
          // Somebody works on it, or it has failed for good: that it is started is true in both cases, and its status says more.
          if (error instanceof OnceError && error.code !== 'IN_FLIGHT') throw error
          return undefined
        },
      )
      if (asked?.granted) context.ground.background(asked.granted())
      return (await status(id))!
    },
    status,
    async cancel(id, reason) {
      if (typeof reason !== 'string' || reason.trim() === '') throw invalidArgument('cancel: expected a reason')
      await inStore(context, 'recover', subject(id), () => context.store.requestCancel(subject(id), reason))
      // When nobody works on it, this process does.
      await takeUp(context, subject(id))
      return status(id)
    },
    async resume(id, options = {}) {
      await resume(context, subject(id), options)
      return status(id)
    },
  }
}

/** The call as the protocol knows it, with the input in the request. */
type OperationCall = Call & { readonly input: unknown; readonly request: { readonly input: Uint8Array } }

function callOf(context: Context, subject: Key, given: unknown): OperationCall {
  const { bytes, outcome } = encodeOutcome({ kind: 'value', value: given }, context.once.codec)
  if (outcome.kind === 'not-stored') {
    throw invalidArgument(`operation "${context.definition.name}": its input cannot be stored: ${outcome.reason}`)
  }
  // A codec may encode the same input differently each time (encryption); the fingerprint is of the input itself.
  return storedCall(context, subject, fingerprint(given), bytes)
}

function storedCall(context: Context, subject: Key, asked: string, input: Uint8Array): OperationCall {
  const { settings } = context
  const { leaseMs, keepMs, tombstoneMs, version, onExpired } = settings
  return {
    key: subject,
    settings,
    input: valueOf(subject, decodeOutcome(input, context.once.codec, subject)),
    request: {
      fingerprint: asked,
      leaseMs,
      retention: { keepMs, tombstoneMs },
      version,
      onTakeover: 'rerun',
      onExpired,
      input,
    },
    group: ['operation', keyString(subject), asked].join('\n'),
  }
}

/** Ask for the operation. When it is granted, `granted` carries it out. */
async function enlist(
  context: Context,
  call: OperationCall,
): Promise<
  | { readonly granted: () => Promise<Result<unknown>>; readonly result?: undefined }
  | { readonly result: Result<unknown>; readonly granted?: undefined }
> {
  const { ground, protocol, store } = context
  const startedMs = ground.clock.elapsed()
  const { verdict, askedMs } = await protocol.ask(call, (request) => {
    const withInput = { ...request, input: call.request.input }
    return claim(ground, call.key, withInput, () => store.enlist(call.key, withInput))
  })
  if (verdict.is !== 'granted') return { result: protocol.answer(call, verdict, startedMs) }
  const { attempt } = verdict.claim
  publish('claimed', call.key, { attempt, how: verdict.how, durationMs: ground.clock.elapsed() - startedMs })
  if (verdict.how === 'taken-over') publish('taken-over', call.key, { attempt })
  return { granted: () => carryOut(context, call, verdict, askedMs).finally(() => protocol.wake(call)) }
}

async function carryOut(
  context: Context,
  call: OperationCall,
  verdict: Verdict & { is: 'granted' },
  askedMs: number,
): Promise<Result<unknown>> {
  const { ground } = context
  await stillHeld(ground, verdict.claim, call.settings, askedMs)
  const ledger = verdict.how === 'fresh' ? undefined : await readLedger(context, call.key)
  let steps: Steps | undefined
  const begun = Promise.withResolvers<Attempt>()
  const journal = await readJournal(context, verdict.claim, ledger, begun.promise)
  await mayGoOn(context, journal, ledger)
  const attempt = beginAttempt(ground, verdict.claim, call.settings, (op) =>
    conduct(
      {
        ground,
        definition: context.definition,
        journal,
        settings: call.settings,
        codec: context.once.codec,
        input: call.input,
        takenOver: verdict.how === 'taken-over',
        onSteps: (given) => (steps = given),
      },
      op,
    ),
  )
  begun.resolve(attempt)
  try {
    const ended = await attempt.ended
    if (ended.is === 'hung') {
      // It still runs somewhere and may still do anything: only the lease can end it.
      await steps?.abandon()
      throw ended.thrown
    }
    if (ended.is === 'threw') throw await giveBack(context, journal, ended.thrown)
    return await conclude(context, call, journal, ended.value as Plan)
  } finally {
    attempt.leave()
  }
}

async function readJournal(
  context: Context,
  held: Claim,
  ledger: Ledger | undefined,
  attempt: Promise<Pick<Attempt, 'advance'>>,
): Promise<Journal> {
  const { definition, settings, store } = context
  const { name: operation, version } = definition
  try {
    return openJournal({ operation, version, claim: held, settings, store, ledger, attempt })
  } catch (error) {
    // Nobody can go on with what cannot be read, and trying again would not help: it is parked.
    await inStore(context, 'advance', held.key, () => store.advance(held, { records: [], then: { to: 'open' } }))
    throw error
  }
}

/** What was parked stays parked until somebody resumes it, and what a newer version began is not ours to go on with. */
async function mayGoOn(context: Context, journal: Journal, ledger: Ledger | undefined): Promise<void> {
  const { definition, settings } = context
  const { course, claim: held } = journal
  const giveItBack = (then: Change['then']): Promise<unknown> =>
    inStore(context, 'advance', held.key, () => context.store.advance(held, { records: [], then }))
  if (ledger && course.parked !== undefined && ledger.dueAtMs === undefined) {
    await giveItBack({ to: 'open' })
    throw new OnceError('PARKED', {
      message: `${course.parked} The operation waits for a person: see status(id), and decide with resume(id).`,
    })
  }
  if (course.version <= definition.version) return
  publish('drifted', held.key, { operation: definition.name, what: 'newer-version' })
  await giveItBack({ to: 'open', afterMs: settings.leaseMs })
  throw new OnceError('NEWER_VERSION', {
    message:
      `${describeKey(held.key)} was begun by version ${course.version} of operation "${definition.name}", and this process runs ` +
      `version ${definition.version}. Nothing was run here. Roll the newer version out everywhere; a worker that has it takes it up.`,
  })
}

async function conclude(context: Context, call: OperationCall, journal: Journal, plan: Plan): Promise<Result<unknown>> {
  const { attempt } = journal.claim
  const startedMs = context.ground.clock.elapsed()
  const durationMs = (): number => context.ground.clock.elapsed() - startedMs
  if (plan.do === 'settle') {
    const stored = encodeOutcome(plan.outcome, context.once.codec)
    const { retention } = call.request
    await journal.end(plan.news, { to: 'settled', outcome: stored.bytes, retention })
    publish('settled', call.key, { attempt, kind: stored.outcome.kind, durationMs: durationMs() })
    if (stored.outcome.kind === 'failure') throw plan.thrown
    return { value: valueOf(call.key, stored.outcome), replayed: false, attempt }
  }
  // What the operation failed with matters more than whether that could be written: the lease will end.
  const then = plan.do === 'wait' ? ({ to: 'open', afterMs: plan.afterMs } as const) : ({ to: 'open' } as const)
  await journal.end(plan.news, then).catch(() => {})
  publish('released', call.key, { attempt, how: 'open', durationMs: durationMs() })
  throw plan.thrown
}

/** The attempt came to no plan: the store failed in the middle of it, or its claim was lost. */
async function giveBack(context: Context, journal: Journal, thrown: unknown): Promise<unknown> {
  const over = thrown instanceof OnceError && thrown.code === 'CLAIM_LOST'
  const afterMs = context.definition.backoff.firstMs
  if (!over) await journal.end({}, { to: 'open', afterMs }).catch(() => {})
  return thrown
}

async function takeUp(context: Context, subject: Key): Promise<'taken-up' | 'busy' | 'over' | 'newer'> {
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

async function readStatus(context: Context, subject: Key): Promise<OperationStatus | undefined> {
  const entry = await inStore(context, 'inspect', subject, () => context.store.show(subject))
  if (!entry) return undefined
  return statusOf(entry, await readLedger(context, subject), context.once.codec)
}

async function resume(context: Context, subject: Key, { decide = {} }: ResumeOptions): Promise<void> {
  const entry = await inStore(context, 'inspect', subject, () => context.store.show(subject))
  if (!entry?.input || entry.state === 'settled' || entry.state === 'tombstone') return
  const call = storedCall(context, subject, entry.fingerprint, entry.input)
  const { verdict } = await context.protocol.ask(call, (request) => {
    const withInput = { ...request, input: call.request.input }
    return claim(context.ground, subject, withInput, () => context.store.enlist(subject, withInput))
  })
  if (verdict.is !== 'granted') return void context.protocol.answer(call, verdict, 0)
  const ledger = await readLedger(context, subject)
  const advance: Attempt['advance'] = (change) =>
    inStore(context, 'advance', subject, () => context.store.advance(verdict.claim, change))
  const journal = await readJournal(context, verdict.claim, ledger, Promise.resolve({ advance }))
  for (const [name, decided] of Object.entries(decide)) await decideStep(context, journal, name, decided)
  const { parked: _parked, ...course } = journal.course
  await journal.end({ course: { ...course, failures: 0 } }, { to: 'open', afterMs: 0 })
}

async function decideStep(
  context: Context,
  journal: Journal,
  name: string,
  decided: { readonly found: unknown } | 'not-found',
): Promise<void> {
  const step = journal.step(name)
  if (!step || step.state !== 'began') {
    throw invalidArgument(
      `resume: step "${name}" of ${describeKey(journal.claim.key)} is not in doubt, it is ${step?.state ?? 'unknown'}`,
    )
  }
  if (decided === 'not-found') return journal.write({ step: { ...step, state: 'absent' } })
  const { bytes } = encodeOutcome({ kind: 'value', value: decided.found }, context.once.codec)
  return journal.write({ step: { ...step, state: 'done', result: bytes } })
}

function readLedger(context: Context, subject: Key): Promise<Ledger | undefined> {
  return inStore(context, 'inspect', subject, () => context.store.ledger(subject))
}

function inStore<T>(
  context: Context,
  during: 'recover' | 'inspect' | 'advance',
  subject: Key,
  ask: () => Promise<T>,
): Promise<T> {
  return callStore(context.ground.calls, during, subject, ask)
}

function operationStore(store: Store, what: string): OperationStore {
  const needed = ['enlist', 'ledger', 'advance', 'due', 'show']
  if (needed.every((method) => method in store)) return store as OperationStore
  throw new OnceError('UNSUPPORTED', {
    message: `${what}: the ${store.name} store keeps no steps. Use one that does: sqlite, postgres, mysql, memory.`,
  })
}

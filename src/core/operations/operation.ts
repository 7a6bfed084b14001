// Operations: an effect of several steps. The caller's retry or a worker resumes it where a crash interrupted it, and each step
// takes effect once. The entry of the operation's key decides who may work on it. Its steps are recorded beside the entry,
// under the same token. Here is what a user sees of an operation.

import { backoffs } from '../backoff.ts'
import type { Backoff } from '../backoff.ts'
import { FinalError, invalidArgument, OnceError } from '../errors.ts'
import { key } from '../key.ts'
import type { Key } from '../key.ts'
import { callOf, carryOut, enlist, inStore, readLedger } from './attempt.ts'
import type { OperationContext, OperationStore } from './attempt.ts'
import { recover, resume } from './resume.ts'
import type { ResumeOptions } from './resume.ts'
import type { Definition } from './conduct.ts'
import { statusOf } from './status.ts'
import type { OperationStatus } from './status.ts'
import { backoffRules } from './step.ts'
import type { AnyOperationOp } from './step.ts'
import { aFunction, checkGiven, optional, positiveInteger, positiveMs, versionNumber } from '../options.ts'
import type { Rule } from '../options.ts'
import type { Calls, Result } from '../call.ts'
import { readRunOptions } from '../settings.ts'
import type { CallOptions, OnceOptions, Settings } from '../settings.ts'
import type { Store } from '../store.ts'

export interface OperationOptions extends Pick<
  CallOptions,
  'leaseMs' | 'keepMs' | 'tombstoneMs' | 'waitMs' | 'attemptMs' | 'onExpired'
> {
  /** The version of the function. An older version does not touch what a newer one began. Default 1. */
  readonly version?: number
  /** How many attempts may fail before the operation goes back. Default 10. */
  readonly attempts?: number
  /** The pauses between attempts of a worker. Default 1 s, doubled up to 5 minutes. */
  readonly backoff?: Partial<Backoff>
}

/** An operation that `once.operation` has defined. `T` is its result as it is stored: a Date is a string. */
export interface Operation<Input, T> {
  readonly name: string
  /** The scope of its keys. */
  readonly scope: string
  /** Starts the operation, resumes it where it stopped, or returns its stored result. */
  run(id: string, input: Input): Promise<Result<T>>
  /** The same without waiting for its end: resolves as soon as the operation is stored, so that a crash cannot lose it. */
  start(id: string, input: Input): Promise<OperationStatus<T>>
  /** Its state and that of its steps. Undefined when the store knows nothing of it. */
  status(id: string): Promise<OperationStatus<T> | undefined>
  /** Asks for a cancel: what was done is undone, unless the operation is past its pivot. */
  cancel(id: string, reason: string): Promise<OperationStatus<T> | undefined>
  /** Lets a parked operation go on, with what a person has found out about its steps in doubt. */
  resume(id: string, options?: ResumeOptions): Promise<OperationStatus<T> | undefined>
}

/** What the worker and the reconciler need of an operation. */
export interface OperationParts {
  readonly store: OperationStore
  readonly leaseMs: number
  /** One attempt without a caller. Resolves when the attempt has ended, however it ended. */
  recover(subject: Key): ReturnType<typeof recover>
  /** As `resume`. Returns whether there was anything to resume. */
  resumed(id: string, options: ResumeOptions): Promise<boolean>
}

/** Under this symbol an operation carries its parts: it tells one of ours from any other object, and users do not see it. */
const parts: unique symbol = Symbol('onceonly.operation')

/** An operation of any input and result, with its parts. */
export interface DefinedOperation extends Operation<never, unknown> {
  readonly [parts]: OperationParts
}

export function isDefined(operation: unknown): operation is DefinedOperation {
  return typeof operation === 'object' && operation !== null && parts in operation
}

export function partsOf(operation: DefinedOperation): OperationParts {
  return operation[parts]
}

const optionRules: Readonly<Record<keyof OperationOptions, Rule>> = {
  leaseMs: optional(positiveMs),
  keepMs: optional(positiveMs),
  tombstoneMs: () => undefined, // these three are checked with those of a call
  waitMs: () => undefined,
  onExpired: () => undefined,
  attemptMs: optional(positiveMs),
  version: optional(versionNumber),
  attempts: optional(positiveInteger),
  backoff: () => undefined, // checked by its own rules
}

const defaultAttempts = 10

export interface OperationDefinition {
  readonly name: string
  readonly options: OperationOptions
  run(op: AnyOperationOp, input: never): unknown
}

export function createOperation(
  calls: Calls,
  once: { readonly options: OnceOptions; readonly settings: Settings },
  { name, options, run }: OperationDefinition,
): DefinedOperation {
  const what = `operation "${name}"`
  checkGiven(what, options, optionRules)
  if (aFunction(run) !== undefined) throw invalidArgument(`${what}: expected a function, got ${typeof run}`)
  const { version = 1, attempts = defaultAttempts, backoff = {}, ...callOptions } = options
  checkGiven(`${what}, backoff`, backoff, backoffRules)
  const store = operationStore(calls.context.store, what)
  return operationOn({
    calls,
    runtime: calls.context,
    store,
    once: once.options,
    scope: operationScope(once.options.scope, name),
    settings: { ...readRunOptions(what, once, callOptions), version, onTakeover: 'run', onThrow: 'release' },
    definition: {
      name,
      version,
      attempts,
      backoff: { ...backoffs.operation, ...backoff },
      run: run as Definition['run'],
    },
  })
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

function operationOn(context: OperationContext): DefinedOperation {
  const { scope, definition } = context
  const subject = (id: string): Key => key(scope, id)
  const status = (id: string): Promise<OperationStatus | undefined> => readStatus(context, subject(id))
  return {
    name: definition.name,
    scope,
    async run(id, input) {
      const call = callOf(context, subject(id), input)
      const enlisted = await enlist(context, call)
      return enlisted.is === 'granted' ? carryOut(context, call, enlisted) : enlisted.result
    },
    async start(id, input) {
      await start(context, subject(id), input)
      return (await status(id))!
    },
    status,
    async cancel(id, reason) {
      checkReason(reason)
      await inStore(context, 'mend', subject(id), () => context.store.requestCancel(subject(id), reason))
      // When no process works on it, this one does.
      await recover(context, subject(id))
      return status(id)
    },
    async resume(id, options = {}) {
      await resume(context, subject(id), options)
      return status(id)
    },
    [parts]: {
      store: context.store,
      leaseMs: context.settings.leaseMs,
      recover: (found) => recover(context, found),
      resumed: (id, options) => resume(context, subject(id), options),
    },
  }
}

async function start(context: OperationContext, subject: Key, input: unknown): Promise<void> {
  const { settings, ...call } = callOf(context, subject, input)
  const unhurried = { ...call, settings: { ...settings, waitMs: 0 } }
  try {
    const enlisted = await enlist(context, unhurried)
    if (enlisted.is === 'granted') context.runtime.background(carryOut(context, unhurried, enlisted))
  } catch (error) {
    // A process works on it, or it has failed for good. In both cases it was started, and its status says more.
    const isStarted = error instanceof FinalError || (error instanceof OnceError && error.code === 'IN_FLIGHT')
    if (!isStarted) throw error
  }
}

/** The reason is stored as text, which cannot hold everything that a string can, and shown to people. */
const reasonLengthMax = 1_000

function checkReason(reason: unknown): void {
  const isText = typeof reason === 'string' && reason.trim() !== '' && reason.isWellFormed() && !reason.includes('\0')
  if (!isText || reason.length > reasonLengthMax) {
    throw invalidArgument(`cancel: expected a reason of 1 to ${reasonLengthMax} characters of text`)
  }
}

async function readStatus(context: OperationContext, subject: Key): Promise<OperationStatus | undefined> {
  const entry = await inStore(context, 'inspect', subject, () => context.store.show(subject))
  if (!entry) return undefined
  const ledger = await readLedger(context, subject)
  // Without a ledger the entry was forgotten after `show`: put together, the two would show a state that the operation never was
  // in. Without an input no caller has asked for it: a worker has begun it by mistake, and the next one forgets it.
  const isUnfinished = entry.state !== 'settled' && entry.state !== 'tombstone'
  if (isUnfinished && !(ledger && entry.input)) return undefined
  return statusOf(entry, ledger, context.once.codec)
}

function operationStore(store: Store, what: string): OperationStore {
  const needed = ['enlist', 'ledger', 'advance', 'due', 'show']
  if (needed.every((method) => method in store)) return store as OperationStore
  throw new OnceError('UNSUPPORTED', {
    message: `${what}: the ${store.name} store keeps no steps. Use one that does: sqlite, postgres, mysql, memory.`,
  })
}

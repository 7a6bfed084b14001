// Operations: an effect of several steps that a crash interrupts is taken up where it was, by the caller's retry or by a worker,
// and each step takes effect once. The entry of the operation's key decides who may work on it; its steps are recorded
// beside it, under the same token. Here is what a user sees of them.

import type { Backoff } from '../backoff.ts'
import { FinalError, invalidArgument, OnceError } from '../errors.ts'
import { key } from '../key.ts'
import type { Key } from '../key.ts'
import { callOf, enlist, inStore, readLedger, takeUp } from './attempt.ts'
import type { OperationContext, OperationStore } from './attempt.ts'
import { resume } from './resume.ts'
import type { ResumeOptions } from './resume.ts'
import type { Definition } from './conduct.ts'
import { statusOf } from './status.ts'
import type { OperationStatus } from './status.ts'
import { backoffRules } from './steps.ts'
import type { OperationOp } from './steps.ts'
import { aFunction, checkGiven, optional, positiveInteger, positiveMs, versionNumber } from '../options.ts'
import type { Rule } from '../options.ts'
import type { Calls, Result } from '../once/call.ts'
import { readRunOptions } from '../settings.ts'
import type { CallOptions, OnceOptions, Settings } from '../settings.ts'
import type { Store } from '../store.ts'

export type { ResumeOptions } from './resume.ts'

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

/** What the worker and the reconciler need of an operation. */
export interface OperationParts extends Operation<unknown, unknown> {
  /** Take it up without a caller; resolves when the attempt is over, whatever it came to. */
  takeUp(subject: Key): Promise<'taken-up' | 'busy' | 'over' | 'newer'>
  /** As `resume`; says whether there was anything to resume. */
  resumed(id: string, options: ResumeOptions): Promise<boolean>
  readonly store: OperationStore
  readonly leaseMs: number
}

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
  backoff: () => undefined, // checked by rules of its own
}

const defaultBackoff: Backoff = { firstMs: 1_000, factor: 2, maxMs: 300_000 }
const defaultAttempts = 10

export function createOperation<Input, T>(
  calls: Calls,
  once: { readonly options: OnceOptions; readonly settings: Settings },
  name: string,
  options: OperationOptions,
  run: (op: OperationOp, input: Input) => T | Promise<T>,
): Operation<Input, T> {
  const what = `operation "${name}"`
  checkGiven(what, options, optionRules)
  if (aFunction(run) !== undefined) throw invalidArgument(`${what}: expected a function, got ${typeof run}`)
  const { version = 1, attempts = defaultAttempts, backoff = {}, ...callOptions } = options
  checkGiven(`${what}, backoff`, backoff, backoffRules)
  const store = operationStore(calls.context.store, what)
  const context: OperationContext = {
    calls,
    ground: calls.context,
    store,
    once: once.options,
    scope: operationScope(once.options.scope, name),
    settings: { ...readRunOptions(what, once.settings, callOptions), version, onTakeover: 'run', onThrow: 'release' },
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
    leaseMs: context.settings.leaseMs,
    takeUp: (subject) => takeUp(context, subject),
    resumed: (id, resumeOptions) => resume(context, key(context.scope, id), resumeOptions),
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

function operationOn<Input, T>(context: OperationContext): Operation<Input, T> {
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
          const isStarted = error instanceof FinalError || (error instanceof OnceError && error.code === 'IN_FLIGHT')
          if (!isStarted) throw error
        },
      )
      if (asked?.granted) context.ground.background(asked.granted())
      return (await status(id))!
    },
    status,
    async cancel(id, reason) {
      checkReason(reason)
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

/** It is stored as text, which cannot hold everything that a string can, and shown to people. */
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
  return statusOf(entry, await readLedger(context, subject), context.once.codec)
}

function operationStore(store: Store, what: string): OperationStore {
  const needed = ['enlist', 'ledger', 'advance', 'due', 'show']
  if (needed.every((method) => method in store)) return store as OperationStore
  throw new OnceError('UNSUPPORTED', {
    message: `${what}: the ${store.name} store keeps no steps. Use one that does: sqlite, postgres, mysql, memory.`,
  })
}

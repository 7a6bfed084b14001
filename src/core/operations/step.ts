// What the author of an operation writes: steps, and what their functions are given. A step is checked when the function asks
// for it.

import type { Backoff } from '../backoff.ts'
import type { Op } from '../call.ts'
import { invalidArgument } from '../errors.ts'
import { aFunction, checkGiven, checkOptions, oneOf, optional, positiveInteger, positiveMs } from '../options.ts'
import type { Rule } from '../options.ts'
import type { Storable, Stored, ValueKind } from '../stored.ts'

/** What the `run` and the `lookup` of a step are given. */
export interface StepContext {
  /** The idempotency key for the outside system: the same on every attempt. */
  readonly key: string
  readonly token: string
  readonly fence: number
  /** The attempt of the operation. */
  readonly attempt: number
  /** Aborts when the claim is lost, when the attempt's deadline passes, or when the step's `timeoutMs` has passed. */
  readonly signal: AbortSignal
}

/** What the `undo` of a step is given. `key` is the undo's own: the same on every attempt, and another than the step's. */
export interface UndoContext<T> extends StepContext {
  /** The key that the step's `run` was given: what names its effect to the outside system, also when `result` is unknown. */
  readonly forwardKey: string
  /** Whether the step is known to have taken effect. */
  readonly forward: 'done' | 'unknown'
  /** The step's result, if it is known. */
  readonly result: T | undefined
}

/** What the outside system says about a step that is in doubt. */
export type LookupResult<T> = { readonly found: T } | 'not-found' | 'unknown'

/** How often a step is tried within one attempt of its operation, and with which pauses. */
export interface StepRetry extends Partial<Backoff> {
  readonly attempts: number
}

/** A step whose effect lives outside of the store. `T` is what `run` returns. Its undo is given what the record has of it. */
export interface Step<T, Kind extends ValueKind = 'json'> {
  /** Has the effect. Hand `key` to the outside system. */
  run(step: StepContext): T | Promise<T>
  /** Reverts the effect when the operation fails for good. May be called again, with the same key. */
  undo?(step: UndoContext<Stored<T, Kind>>): unknown
  /** Asks the outside system what became of the step, before the step would run again. */
  lookup?(step: StepContext): LookupResult<T> | Promise<LookupResult<T>>
  /** Without a lookup: `run` a step in doubt again, which its key makes safe, or `park` the operation. Default run. */
  readonly inDoubt?: 'run' | 'park'
  readonly retry?: StepRetry
  /** How long one run may take. Then the step is in doubt. */
  readonly timeoutMs?: number
  /** From here on the operation only goes forward. */
  readonly pivot?: true
  /** What the step is asked with: the same step with another fingerprint is a MISMATCH. */
  readonly fingerprint?: unknown
}

/** A step whose effect is written in a transaction of the store. */
export interface TransactionStep<T, Tx, Kind extends ValueKind = 'json'> {
  run(tx: Tx, step: StepContext): T | Promise<T>
  undo?(tx: Tx, step: UndoContext<Stored<T, Kind>>): unknown
  readonly pivot?: true
  readonly fingerprint?: unknown
}

/** What the function of an operation is given. */
export interface OperationOp<Tx = unknown, Kind extends ValueKind = 'json'> extends Op {
  /**
   * Runs the step, or returns its stored result.
   *
   * @example
   * ```ts
   * import type { OperationOp } from 'onceonly'
   *
   * export const checkout = async (op: OperationOp, order: { cents: number }) =>
   *   op.step('charge', ({ key }) => charge(order.cents, key))
   *
   * async function charge(cents: number, key: string): Promise<string> {
   *   return `charged ${cents} under ${key}`
   * }
   * ```
   */
  step<T>(name: string, step: (Step<T, Kind> | Step<T, Kind>['run']) & Storable<T, Kind>): Promise<Stored<T, Kind>>
  /**
   * Runs the step in a transaction of the store: what it writes with `tx`, its record and the fence check commit together.
   *
   * @example
   * ```ts
   * import type { OperationOp } from 'onceonly'
   *
   * interface Tx {
   *   query(text: string, values: unknown[]): Promise<unknown>
   * }
   *
   * export const checkout = async (op: OperationOp<Tx>, order: { id: string }) =>
   *   op.transaction('order', async (tx) => {
   *     await tx.query('insert into orders values ($1)', [order.id])
   *   })
   * ```
   */
  transaction<T>(
    name: string,
    step: (TransactionStep<T, Tx, Kind> | TransactionStep<T, Tx, Kind>['run']) & Storable<T, Kind>,
  ): Promise<Stored<T, Kind>>
}

/** A step inside: here `T` is already what a replay has, with a codec or without. */
export type StoredStep<T> = Step<T, 'codec'>
export type StoredTransactionStep<T> = TransactionStep<T, unknown, 'codec'>
/** What the function of any operation is given. */
export type AnyOperationOp = OperationOp<unknown, 'codec'>

const stepRules: Readonly<Record<keyof Step<unknown>, Rule>> = {
  run: aFunction,
  undo: optional(aFunction),
  lookup: optional(aFunction),
  inDoubt: optional(oneOf('run', 'park')),
  retry: optional((value) => (typeof value === 'object' && value !== null ? undefined : 'an object with attempts')),
  timeoutMs: optional(positiveMs),
  pivot: optional((value) => (value === true ? undefined : 'true, or absent')),
  fingerprint: () => undefined,
}

export const backoffRules: Readonly<Record<keyof Backoff, Rule>> = {
  firstMs: optional(positiveMs),
  factor: optional((value) => (typeof value === 'number' && value >= 1 ? undefined : 'a number of at least 1')),
  maxMs: optional(positiveMs),
}

const retryRules: Readonly<Record<keyof StepRetry, Rule>> = { attempts: positiveInteger, ...backoffRules }

const transactionRules: Readonly<Record<keyof TransactionStep<unknown, unknown>, Rule>> = {
  run: aFunction,
  undo: optional(aFunction),
  pivot: stepRules.pivot,
  fingerprint: () => undefined,
}

export function readStep<T>(name: string, given: StoredStep<T> | StoredStep<T>['run']): StoredStep<T> {
  checkStepName(name)
  const step: StoredStep<T> = typeof given === 'function' ? { run: given } : given
  checkGiven(`step "${name}"`, step, stepRules)
  if (typeof step.run !== 'function') throw invalidArgument(`step "${name}": expected run to be a function`)
  if (step.retry) checkOptions(`step "${name}", retry`, step.retry, retryRules)
  return step
}

export function readTransactionStep<T>(
  name: string,
  given: StoredTransactionStep<T> | StoredTransactionStep<T>['run'],
): StoredTransactionStep<T> {
  checkStepName(name)
  const step: StoredTransactionStep<T> = typeof given === 'function' ? { run: given } : given
  checkOptions(`transaction "${name}"`, step, transactionRules)
  return step
}

/** Leaves room for the prefix of derived keys. */
const stepNameBytesMax = 200

function checkStepName(name: unknown): asserts name is string {
  // Its length first: a hostile megabyte must cost nothing.
  const fits = typeof name === 'string' && name !== '' && name.length <= stepNameBytesMax
  if (fits && Buffer.byteLength(name) <= stepNameBytesMax && name.isWellFormed() && !/\p{Cc}/u.test(name)) return
  throw invalidArgument(
    `expected the name of a step to be 1 to ${stepNameBytesMax} bytes of text without control characters, ` +
      `got ${typeof name === 'string' ? JSON.stringify(name.slice(0, 80)) : typeof name}`,
  )
}

export function checkLookup<T>(name: string, looked: unknown): LookupResult<T> {
  if (looked === 'not-found' || looked === 'unknown') return looked
  if (typeof looked === 'object' && looked !== null && 'found' in looked) return looked as { found: T }
  throw invalidArgument(`step "${name}": expected lookup to return { found }, "not-found" or "unknown"`)
}

// What is in doubt, and reconciling it: for systems that were built without keys, where only asking the other side in bulk can
// tell what took effect, and how often.

import type { RunContext } from '../call.ts'
import type { Doubt } from '../doubt.ts'
import { invalidArgument, OnceError } from '../errors.ts'
import type { ErrorCode } from '../errors.ts'
import { keyOf } from '../key.ts'
import type { Key } from '../key.ts'
import { partsOf } from './operation.ts'
import type { DefinedOperation } from './operation.ts'
import type { ResumeOptions } from './resume.ts'
import { checkLookup } from './step.ts'
import type { LookupResult } from './step.ts'
import { encodeOutcome } from '../outcome.ts'
import { aFunction, checkGiven, optional, positiveInteger } from '../options.ts'
import { callStore } from '../timed-call.ts'

export type StepDoubt = Doubt & { readonly operation: string; readonly step: string }

/** What the outside system says about a doubt. `duplicates` are further times that the step took effect. */
export type Resolution = { readonly found: unknown; readonly duplicates?: readonly unknown[] } | 'not-found' | 'unknown'

export interface ReconcileOptions {
  /** Reverts one duplicate effect. Without it duplicates are only reported. */
  compensate?(duplicate: unknown, doubt: StepDoubt): unknown
  /** How many doubts the resolver is asked about at once. Default 100. */
  readonly limit?: number
}

export interface Reconciliation {
  readonly found: number
  readonly notFound: number
  /** Still in doubt: the resolver could not tell, or a duplicate could not be compensated. */
  readonly unknown: number
  /** Another process worked on it, or it was settled meanwhile. */
  readonly passed: number
  readonly duplicates: readonly Duplicate[]
}

export interface Duplicate {
  readonly doubt: StepDoubt
  readonly duplicate: unknown
  readonly compensated: boolean
  /** The error of `compensate`. The operation stays in doubt, so that the next reconcile tries again. */
  readonly error?: unknown
}

const pageLimit = 100

/** Steps of operations that no process works on, and operations whose records cannot be read (without a step). */
export async function* doubts(context: RunContext, operations: readonly DefinedOperation[]): AsyncGenerator<Doubt> {
  for (const operation of operations) yield* operationDoubts(context, operation)
}

async function* operationDoubts(context: RunContext, operation: DefinedOperation): AsyncGenerator<Doubt> {
  const { store } = partsOf(operation)
  let after: string | undefined
  for (;;) {
    const options = { limit: pageLimit, ...(after !== undefined && { after }) }
    const page = await callStore(context.storeCalls, 'inspect', undefined, () =>
      store.unfinished(operation.scope, options),
    )
    for (const key of page) yield* await doubtsOf(operation, key)
    after = page.at(-1)?.id
    if (page.length < pageLimit) return
  }
}

async function doubtsOf(operation: DefinedOperation, key: Key): Promise<readonly Doubt[]> {
  const { name } = operation
  try {
    const status = await operation.status(key.id)
    const inDoubt = new Set(status?.inDoubt)
    return (status?.steps ?? [])
      .filter((step) => inDoubt.has(step.name))
      .map(({ name: step, attempt, sinceAtMs }) => {
        return { key, operation: name, step, attempt, sinceAtMs, parked: status?.state === 'parked' }
      })
  } catch (error) {
    // An operation that cannot be read must not hide the others, and is in doubt as a whole.
    if (!(error instanceof OnceError) || error.code !== 'OUTCOME_UNREADABLE') throw error
    const entry = await partsOf(operation).store.show(key)
    return entry ? [{ key, operation: name, attempt: entry.attempt, sinceAtMs: entry.leaseUntilMs, parked: true }] : []
  }
}

async function* stepDoubts(context: RunContext, operation: DefinedOperation): AsyncGenerator<StepDoubt> {
  for await (const doubt of operationDoubts(context, operation)) {
    if (doubt.step !== undefined) yield doubt as StepDoubt
  }
}

/** Runs an effect once under its own key, so that a duplicate is compensated once, however often `reconcile` is called. */
export type RunOnce = (key: Key, effect: () => unknown) => Promise<unknown>

export interface ReconcileContext {
  readonly context: RunContext
  readonly operation: DefinedOperation
  readonly runOnce: RunOnce
}

export async function reconcile(
  { context, operation, runOnce }: ReconcileContext,
  resolve: (doubts: readonly StepDoubt[]) => Promise<readonly Resolution[]>,
  options: ReconcileOptions,
): Promise<Reconciliation> {
  checkGiven('reconcile', options, { compensate: optional(aFunction), limit: optional(positiveInteger) })
  const tally = { found: 0, notFound: 0, unknown: 0, passed: 0 }
  const duplicates: Duplicate[] = []
  for await (const page of pages(stepDoubts(context, operation), options.limit ?? pageLimit)) {
    const resolved = checkAnswers(page, await resolve(page))
    for (const [id, ofOne] of Map.groupBy(resolved, ({ doubt }) => doubt.key.id)) {
      // Duplicates first: a step that is no longer in doubt is not asked about again, and its duplicates would stay.
      const found: Duplicate[] = []
      for (const each of ofOne) found.push(...(await compensateAll(each, options, runOnce)))
      duplicates.push(...found)
      if (found.some(({ error }) => error !== undefined)) tally.unknown += ofOne.length
      else for (const decision of await decideAll(operation, id, ofOne)) tally[decision]++
    }
  }
  return { ...tally, duplicates }
}

/** Checks all of them before anything is done: half a page would be hard to find out about. */
function checkAnswers(page: readonly StepDoubt[], answers: unknown): readonly Resolved[] {
  if (!Array.isArray(answers) || answers.length !== page.length) {
    throw invalidArgument(`reconcile: expected an array of ${page.length} results, one per doubt and in their order`)
  }
  return page.map((doubt, index) => {
    const answer = checkLookup<unknown>(doubt.step, answers[index]) as Resolution
    const duplicates = typeof answer === 'object' ? (answer.duplicates ?? []) : []
    if (!Array.isArray(duplicates)) throw invalidArgument('reconcile: expected duplicates to be an array')
    return { doubt, answer, duplicates: duplicates.map((value: unknown) => ({ value, text: duplicateText(value) })) }
  })
}

/** What a duplicate is known by, so that it is compensated once. */
function duplicateText(duplicate: unknown): string {
  const { outcome } = encodeOutcome({ kind: 'value', value: duplicate }, undefined)
  if (outcome.kind !== 'not-stored' && duplicate !== undefined) return JSON.stringify(duplicate)
  throw invalidArgument('reconcile: expected each duplicate to be a JSON value that names it, such as its id')
}

interface Resolved {
  readonly doubt: StepDoubt
  readonly answer: Resolution
  readonly duplicates: readonly { readonly value: unknown; readonly text: string }[]
}

type Decision = 'found' | 'notFound' | 'unknown' | 'passed'

/** Writes all decisions on one operation at once: it goes on with the first one, and would stop at the next doubt. */
async function decideAll(
  operation: DefinedOperation,
  id: string,
  resolved: readonly Resolved[],
): Promise<readonly Decision[]> {
  const looked = resolved.map(({ doubt, answer }) => ({ step: doubt.step, is: checkLookup(doubt.step, answer) }))
  const decided = looked.flatMap(({ step, is }) => (is === 'unknown' ? [] : [[step, decisionOf(is)] as const]))
  const isDone = decided.length > 0 && (await resumed(operation, id, Object.fromEntries(decided)))
  return looked.map(({ is }) => {
    if (is === 'unknown') return is
    if (!isDone) return 'passed'
    return is === 'not-found' ? 'notFound' : 'found'
  })
}

function decisionOf(looked: Exclude<LookupResult<unknown>, 'unknown'>): { readonly found: unknown } | 'not-found' {
  return looked === 'not-found' ? looked : { found: looked.found }
}

/** False when another process works on the operation, or has done so since. */
async function resumed(
  operation: DefinedOperation,
  id: string,
  decide: NonNullable<ResumeOptions['decide']>,
): Promise<boolean> {
  try {
    return await partsOf(operation).resumed(id, { decide })
  } catch (error) {
    if (error instanceof OnceError && passedBy.includes(error.code)) return false
    throw error
  }
}

/** A process works on it. A step is no longer in doubt. It was forgotten and asked for again with another input. */
const passedBy: readonly ErrorCode[] = ['IN_FLIGHT', 'INVALID_ARGUMENT', 'MISMATCH', 'EXPIRED', 'CLAIM_LOST']

async function compensateAll(resolved: Resolved, options: ReconcileOptions, runOnce: RunOnce): Promise<Duplicate[]> {
  const { doubt, duplicates } = resolved
  const { compensate } = options
  const seen = new Map<string, number>()
  const taken: Duplicate[] = []
  for (const { value: duplicate, text } of duplicates) {
    // Two duplicates that look the same are two.
    const number = (seen.get(text) ?? 0) + 1
    seen.set(text, number)
    const parts = ['duplicate', doubt.key.id, doubt.step, text, ...(number > 1 ? [number] : [])]
    const ended = compensate
      ? await runOnce(keyOf(doubt.key.scope, parts), () => compensate(duplicate, doubt)).then(
          () => ({ compensated: true }),
          (error: unknown) => ({ compensated: false, error }),
        )
      : { compensated: false }
    taken.push({ doubt, duplicate, ...ended })
  }
  return taken
}

async function* pages<T>(all: AsyncGenerator<T>, limit: number): AsyncGenerator<readonly T[]> {
  let page: T[] = []
  for await (const each of all) {
    page.push(each)
    if (page.length < limit) continue
    yield page
    page = []
  }
  if (page.length > 0) yield page
}

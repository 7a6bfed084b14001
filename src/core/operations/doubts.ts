// What is in doubt, and putting it right: for systems that were built without keys, where only asking the other side in bulk
// can tell what took effect, and how often.

import type { RunContext } from '../once/attempt.ts'
import { invalidArgument, OnceError } from '../errors.ts'
import type { ErrorCode } from '../errors.ts'
import { keyOf } from '../key.ts'
import type { Key } from '../key.ts'
import type { OperationParts } from './operation.ts'
import type { ResumeOptions } from './resume.ts'
import { checkFound } from './steps.ts'
import type { Found } from './steps.ts'
import { encodeOutcome } from '../outcome.ts'
import { aFunction, checkGiven, optional, positiveInteger } from '../options.ts'
import { callStore } from '../store-call.ts'
import type { Entry, Inspectable, Store } from '../store.ts'

/** An attempt or a step that began and never reported. */
export interface Doubt {
  readonly key: Key
  /** Absent for a key of `once.run`. */
  readonly operation?: string
  readonly step?: string
  readonly attempt: number
  /** Since when, by the store's clock. */
  readonly sinceMs: number
  /** Waits for a person. */
  readonly parked: boolean
}

export type StepDoubt = Doubt & { readonly operation: string; readonly step: string }

/** What the outside system says about a doubt; `duplicates` are further times that it took effect. */
export type Resolution = { readonly found: unknown; readonly duplicates?: readonly unknown[] } | 'not-found' | 'unknown'

export interface ReconcileOptions {
  /** Takes one duplicate effect back. Without it duplicates are only reported. */
  compensate?(duplicate: unknown, doubt: StepDoubt): unknown
  /** How many doubts the resolver is asked about at once. Default 100. */
  readonly limit?: number
}

export interface Reconciliation {
  readonly found: number
  readonly notFound: number
  /** Still in doubt: the resolver could not tell, or a duplicate could not be compensated. */
  readonly unknown: number
  /** Somebody else was at it, or it was settled meanwhile. */
  readonly passed: number
  readonly duplicates: readonly Duplicate[]
}

export interface Duplicate {
  readonly doubt: StepDoubt
  readonly duplicate: unknown
  readonly compensated: boolean
  /** What `compensate` failed with. Its operation stays in doubt, so that the next reconcile tries again. */
  readonly error?: unknown
}

const pageLimit = 100

/**
 * Everything in doubt: steps of operations that nobody works on, operations of which nothing can be read (without a step), and keys
 * of `once.run` whose attempt never reported.
 */
export async function* doubts(
  ground: RunContext,
  scope: string,
  operations: readonly OperationParts[],
): AsyncGenerator<Doubt> {
  for (const operation of operations) yield* operationDoubts(ground, operation)
  yield* keyDoubts(ground, scope)
}

async function* keyDoubts(ground: RunContext, scope: string): AsyncGenerator<Doubt> {
  if (!('list' in ground.store)) return
  const store = ground.store as Store & Inspectable
  let after: Key | undefined
  for (;;) {
    const filter = { scope, state: 'abandoned', limit: pageLimit, ...(after && { after }) } as const
    const page: readonly Entry[] = await callStore(ground.storeCalls, 'inspect', undefined, () => store.list(filter))
    for (const { key, attempt, leaseUntilMs } of page) yield { key, attempt, sinceMs: leaseUntilMs, parked: false }
    after = page.at(-1)?.key
    if (page.length < pageLimit) return
  }
}

async function* operationDoubts(ground: RunContext, operation: OperationParts): AsyncGenerator<Doubt> {
  let after: string | undefined
  for (;;) {
    const options = { limit: pageLimit, ...(after !== undefined && { after }) }
    const page = await callStore(ground.storeCalls, 'inspect', undefined, () =>
      operation.store.unfinished(operation.scope, options),
    )
    for (const key of page) yield* await doubtsOf(operation, key)
    after = page.at(-1)?.id
    if (page.length < pageLimit) return
  }
}

async function doubtsOf(operation: OperationParts, key: Key): Promise<readonly Doubt[]> {
  const { name, store } = operation
  try {
    const status = await operation.status(key.id)
    const inDoubt = new Set(status?.inDoubt)
    return (status?.steps ?? [])
      .filter((step) => inDoubt.has(step.name))
      .map(({ name: step, attempt, sinceMs }) => {
        return { key, operation: name, step, attempt, sinceMs, parked: status?.state === 'parked' }
      })
  } catch (error) {
    // One that cannot be read must not hide all the others, and is itself in doubt as a whole.
    if (!(error instanceof OnceError) || error.code !== 'OUTCOME_UNREADABLE') throw error
    const entry = await store.show(key)
    return entry ? [{ key, operation: name, attempt: entry.attempt, sinceMs: entry.leaseUntilMs, parked: true }] : []
  }
}

async function* stepDoubts(ground: RunContext, operation: OperationParts): AsyncGenerator<StepDoubt> {
  for await (const doubt of operationDoubts(ground, operation)) {
    if (doubt.step !== undefined) yield doubt as StepDoubt
  }
}

/** Runs an effect once under a key of its own: how a duplicate is compensated once, however often this is called. */
export type RunOnce = (key: Key, effect: () => unknown) => Promise<unknown>

export async function reconcile(
  ground: RunContext,
  operation: OperationParts,
  resolve: (doubts: readonly StepDoubt[]) => Promise<readonly Resolution[]>,
  options: ReconcileOptions,
  runOnce: RunOnce,
): Promise<Reconciliation> {
  checkGiven('reconcile', options, { compensate: optional(aFunction), limit: optional(positiveInteger) })
  const tally = { found: 0, notFound: 0, unknown: 0, passed: 0 }
  const duplicates: Duplicate[] = []
  for await (const page of pages(stepDoubts(ground, operation), options.limit ?? pageLimit)) {
    const resolved = checkAnswers(page, await resolve(page))
    for (const [id, ofOne] of Map.groupBy(resolved, ({ doubt }) => doubt.key.id)) {
      // First the duplicates: what is not in doubt any more is not asked about again, and they would stay.
      const found: Duplicate[] = []
      for (const each of ofOne) found.push(...(await takeBackAll(each, options, runOnce)))
      duplicates.push(...found)
      if (found.some(({ error }) => error !== undefined)) tally.unknown += ofOne.length
      else for (const came of await repair(operation, id, ofOne)) tally[came]++
    }
  }
  return { ...tally, duplicates }
}

/** All of them before anything is done: half a page would be hard to find out about. */
function checkAnswers(page: readonly StepDoubt[], answers: unknown): readonly Resolved[] {
  if (!Array.isArray(answers) || answers.length !== page.length) {
    throw invalidArgument(`reconcile: expected an answer for each of ${page.length} doubts, in their order`)
  }
  return page.map((doubt, index) => {
    const answer = checkFound<unknown>(doubt.step, answers[index]) as Resolution
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

type Came = 'found' | 'notFound' | 'unknown' | 'passed'

/** All that is known of one operation at once: it goes on with the first decision, and would meet the next doubt. */
async function repair(operation: OperationParts, id: string, resolved: readonly Resolved[]): Promise<readonly Came[]> {
  const looked = resolved.map(({ doubt, answer }) => ({ step: doubt.step, is: checkFound(doubt.step, answer) }))
  const decided = looked.flatMap(({ step, is }) => (is === 'unknown' ? [] : [[step, decisionOf(is)] as const]))
  const isDone = decided.length > 0 && (await resumed(operation, id, Object.fromEntries(decided)))
  return looked.map(({ is }) => {
    if (is === 'unknown') return is
    if (!isDone) return 'passed'
    return is === 'not-found' ? 'notFound' : 'found'
  })
}

function decisionOf(looked: Exclude<Found<unknown>, 'unknown'>): { readonly found: unknown } | 'not-found' {
  return looked === 'not-found' ? looked : { found: looked.found }
}

/** False when somebody else is at it, or has been. */
async function resumed(
  operation: OperationParts,
  id: string,
  decide: NonNullable<ResumeOptions['decide']>,
): Promise<boolean> {
  try {
    return await operation.resumed(id, { decide })
  } catch (error) {
    if (error instanceof OnceError && passedBy.includes(error.code)) return false
    throw error
  }
}

/** It is being worked on; a step is not in doubt any more; it was forgotten and came back as another. */
const passedBy: readonly ErrorCode[] = ['IN_FLIGHT', 'INVALID_ARGUMENT', 'MISMATCH', 'EXPIRED', 'CLAIM_LOST']

async function takeBackAll(resolved: Resolved, options: ReconcileOptions, runOnce: RunOnce): Promise<Duplicate[]> {
  const { doubt, duplicates } = resolved
  const { compensate } = options
  const seen = new Map<string, number>()
  const taken: Duplicate[] = []
  for (const { value: duplicate, text } of duplicates) {
    // Two that look the same are two.
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

// What is in doubt, and putting it right: for systems that were built without keys, where only asking the other side in bulk
// can tell what took effect, and how often.

import type { Ground } from './attempt.ts'
import { invalidArgument } from './errors.ts'
import { keyOf } from './key.ts'
import type { Key } from './key.ts'
import type { OperationParts } from './operation.ts'
import { checkFound } from './operation-steps.ts'
import { aFunction, checkGiven, optional, positiveInteger } from './options.ts'
import type { Entry, Inspectable, Store } from './store.ts'

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
  readonly unknown: number
  /** Somebody else was at it, or it was settled meanwhile. */
  readonly passed: number
  readonly duplicates: readonly {
    readonly doubt: StepDoubt
    readonly duplicate: unknown
    readonly compensated: boolean
  }[]
}

const pageLimit = 100

/** Everything in doubt: steps of operations that nobody works on, and keys of `once.run` whose attempt never reported. */
export async function* doubts(
  ground: Ground,
  scope: string,
  operations: readonly OperationParts[],
): AsyncGenerator<Doubt> {
  for (const operation of operations) yield* stepDoubts(operation)
  yield* keyDoubts(ground, scope)
}

async function* keyDoubts(ground: Ground, scope: string): AsyncGenerator<Doubt> {
  if (!('list' in ground.store)) return
  const store = ground.store as Store & Inspectable
  let after: Key | undefined
  for (;;) {
    const page: readonly Entry[] = await store.list({
      scope,
      state: 'abandoned',
      limit: pageLimit,
      ...(after && { after }),
    })
    for (const { key, attempt, leaseUntilMs } of page) yield { key, attempt, sinceMs: leaseUntilMs, parked: false }
    after = page.at(-1)?.key
    if (page.length < pageLimit) return
  }
}

export async function* stepDoubts(operation: OperationParts): AsyncGenerator<StepDoubt> {
  let after: string | undefined
  for (;;) {
    const page = await operation.store.unfinished(operation.scope, {
      limit: pageLimit,
      ...(after !== undefined && { after }),
    })
    for (const key of page) {
      const status = await operation.status(key.id)
      for (const { name, attempt, sinceMs } of status?.steps.filter((step) => status.inDoubt.includes(step.name)) ??
        []) {
        yield { key, operation: operation.name, step: name, attempt, sinceMs, parked: status?.state === 'parked' }
      }
    }
    after = page.at(-1)?.id
    if (page.length < pageLimit) return
  }
}

/** Runs an effect once under a key of its own: how a duplicate is compensated once, however often this is called. */
export type RunOnce = (key: Key, effect: () => unknown) => Promise<unknown>

export async function reconcile(
  operation: OperationParts,
  resolve: (doubts: readonly StepDoubt[]) => Promise<readonly Resolution[]>,
  options: ReconcileOptions,
  runOnce: RunOnce,
): Promise<Reconciliation> {
  checkGiven('reconcile', options, { compensate: optional(aFunction), limit: optional(positiveInteger) })
  const tally = { found: 0, notFound: 0, unknown: 0, passed: 0 }
  const duplicates: Reconciliation['duplicates'][number][] = []
  for await (const page of pages(stepDoubts(operation), options.limit ?? pageLimit)) {
    const answers = await resolve(page)
    if (!Array.isArray(answers) || answers.length !== page.length) {
      throw invalidArgument(`reconcile: expected an answer for each of ${page.length} doubts, in their order`)
    }
    for (const [index, doubt] of page.entries()) {
      const answer = answers[index]!
      tally[await repair(operation, doubt, answer)]++
      const more = typeof answer === 'object' ? (answer.duplicates ?? []) : []
      for (const duplicate of more) duplicates.push(await takeBack(doubt, duplicate, options, runOnce))
    }
  }
  return { ...tally, duplicates }
}

async function repair(
  operation: OperationParts,
  doubt: StepDoubt,
  answer: Resolution,
): Promise<'found' | 'notFound' | 'unknown' | 'passed'> {
  const looked = checkFound(doubt.step, answer)
  if (looked === 'unknown') return 'unknown'
  const decided = looked === 'not-found' ? looked : { found: looked.found }
  try {
    await operation.resume(doubt.key.id, { decide: { [doubt.step]: decided } })
    return looked === 'not-found' ? 'notFound' : 'found'
  } catch {
    return 'passed'
  }
}

async function takeBack(
  doubt: StepDoubt,
  duplicate: unknown,
  options: ReconcileOptions,
  runOnce: RunOnce,
): Promise<Reconciliation['duplicates'][number]> {
  const { compensate } = options
  if (!compensate) return { doubt, duplicate, compensated: false }
  const parts = ['duplicate', doubt.key.id, doubt.step, JSON.stringify(duplicate)]
  await runOnce(keyOf(doubt.key.scope, parts), () => compensate(duplicate, doubt))
  return { doubt, duplicate, compensated: true }
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

// Is there an order of the operations on one key, in keeping with when each was asked and answered, in which the model would
// have given every answer? The search of Wing and Gong with the memory of Lowe. An operation whose answer nobody heard may have
// been carried out at any time after it was asked, or never.

import type { StoreOperation } from './history-checker-history.ts'
import { beginning, possibleNext } from './history-checker-model.ts'
import type { ModelState, Span } from './history-checker-model.ts'

export interface LinearizableOptions {
  /**
   * `store`: when and how the store decided is known, also of what nobody heard. `clients`: only what they know. Default
   * `clients`.
   */
  readonly seenBy?: 'store' | 'clients'
  /** By how much the clients' clocks may differ from the store's. Default 0. */
  readonly clockErrorMs?: number
}

export type Linearizable =
  | { readonly is: 'yes' | 'undecided' }
  /** The longest order that was found: the operations that fit, and those that could not follow. */
  | { readonly is: 'no'; readonly fit: readonly StoreOperation[]; readonly stuck: readonly StoreOperation[] }

/** A search that took so many steps is given up: some histories are full of things that may or may not have happened. */
const stepsMax = 20_000

interface Candidate {
  readonly operation: StoreOperation
  readonly span: Span
  readonly required: boolean
}

/** All operations must be on one key. */
export function isLinearizable(operations: readonly StoreOperation[], options: LinearizableOptions = {}): Linearizable {
  const candidates = operations
    .flatMap((operation) => candidateOf(operation, options))
    .sort((a, b) => a.span.fromMs - b.span.fromMs)
  if (fitsAsItIs(candidates)) return { is: 'yes' }
  const done = Array.from({ length: candidates.length }, () => false)
  const search: Search = { candidates, done, order: [], best: [], steps: 0, seen: new Set() }
  if (extend(search, beginning)) return { is: 'yes' }
  if (search.steps > stepsMax) return { is: 'undecided' }
  const fit = search.best.map((index) => candidates[index]!.operation)
  const stuck = candidates.filter(({ required, operation }) => required && !fit.includes(operation))
  return { is: 'no', fit, stuck: stuck.slice(0, 3).map(({ operation }) => operation) }
}

/** Most histories are in order already, when the times of the decisions are known; then there is nothing to search. */
function fitsAsItIs(candidates: readonly Candidate[]): boolean {
  let state: ModelState | undefined = beginning
  for (const { operation, span, required } of candidates) {
    if (!required || span.fromMs !== span.toMs) return false
    state = possibleNext(state, operation, span)[0]
    if (!state) return false
  }
  return true
}

function candidateOf(operation: StoreOperation, options: LinearizableOptions): Candidate[] {
  if (options.seenBy === 'store') {
    const atMs = operation.decidedAtMs
    if (atMs === undefined || operation.answer === undefined) return []
    return [{ operation, span: { fromMs: atMs, toMs: atMs }, required: true }]
  }
  const { clockErrorMs = 0 } = options
  const fromMs = Math.floor(operation.sentAtMs) - clockErrorMs
  if (operation.answeredAtMs === undefined || operation.answer === undefined) {
    const { answer: _unheard, ...unheard } = operation
    return [{ operation: unheard as StoreOperation, span: { fromMs, toMs: Infinity }, required: false }]
  }
  return [{ operation, span: { fromMs, toMs: operation.answeredAtMs + clockErrorMs }, required: true }]
}

interface Search {
  readonly candidates: readonly Candidate[]
  readonly done: boolean[]
  readonly order: number[]
  best: number[]
  steps: number
  readonly seen: Set<string>
}

function extend(search: Search, state: ModelState): boolean {
  const { candidates, done, order } = search
  if (search.steps++ > stepsMax) return false
  // Whoever comes next was asked before the first of those that are left was answered.
  let answeredMs = Infinity
  for (let index = 0; index < candidates.length; index++) {
    const { required, span } = candidates[index]!
    if (!done[index] && required) answeredMs = Math.min(answeredMs, span.toMs)
  }
  if (answeredMs === Infinity) return true
  if (order.length > search.best.length) search.best = [...order]
  for (let index = 0; index < candidates.length; index++) {
    const { operation, span } = candidates[index]!
    if (span.fromMs > answeredMs) break
    if (done[index]) continue
    done[index] = true
    order.push(index)
    for (const next of possibleNext(state, operation, { fromMs: span.fromMs, toMs: Math.min(span.toMs, answeredMs) })) {
      if (isNew(search, next) && extend(search, next)) return true
    }
    order.pop()
    done[index] = false
  }
  return false
}

function isNew({ done, seen }: Search, state: ModelState): boolean {
  const name = `${done.map(Number).join('')} ${describeState(state)}`
  if (seen.has(name)) return false
  seen.add(name)
  return true
}

function describeState({ entry, open, nowMs }: ModelState): string {
  if (!entry) return `${nowMs} ${open?.token}`
  const { token, fence, attempt, wrote, lease } = entry
  return `${nowMs} ${open?.token} ${token} ${fence} ${attempt} ${wrote} ${lease.fromMs} ${lease.toMs}`
}

// Is there an order of the operations on one key, in keeping with when each was asked and answered, in which the model would have
// given every answer? The search of Wing and Gong with the memory of Lowe. An operation whose answer its sender never got may
// have been carried out at any time after it was asked, or never. The search keeps its path in a list, not on the stack, so there
// is no limit to how often a key was asked for.

import type { StoreOperation } from './history.ts'
import { beginning, possibleNext } from './model.ts'
import type { ModelState, Span } from './model.ts'

export interface LinearizableOptions {
  /**
   * `store`: when and how the store decided is known, also of unheard operations. `clients`: only what the clients know. Default
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

/**
 * A search that took so many steps is given up: some histories are full of things that may or may not have happened. A search
 * that goes straight on takes one step per operation. Fifty thousand steps take a second.
 */
const stepsMax = 50_000
/** The same for what it remembers, in characters: some hundred megabytes. */
const rememberedMax = 50_000_000

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
  const found = search(candidates, 'needed first')
  const { is, best } = found.is === 'undecided' ? search(candidates, 'as sent') : found
  if (is !== 'no') return { is }
  const fit = best.map((index) => candidates[index]!.operation)
  const known = new Set(fit)
  const stuck = candidates.filter(({ required, operation }) => required && !known.has(operation))
  return { is, fit, stuck: stuck.slice(0, 3).map(({ operation }) => operation) }
}

/** Most histories are in order already, when the times of the decisions are known. Then there is nothing to search. */
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
  readonly order: Order
  readonly candidates: readonly Candidate[]
  /** 1 for those that are in the order. */
  readonly taken: Uint8Array
  /** Where those are that may never have happened: claims and what has no token, and writes by their token. */
  readonly unheard: readonly number[]
  readonly unheardWrites: ReadonlyMap<string, readonly number[]>
  /** Those of them that are in the order. */
  readonly felt: Set<number>
  /** How many claims with this token are not in the order. */
  readonly claimsLeft: Map<string, number>
  readonly seen: Set<string>
  remembered: number
}

/** One more operation in the order, and what may come after it. */
interface Place {
  readonly index: number
  /** The first that is still to be placed: all before it are in the order, or may never have happened. */
  readonly left: number
  readonly moves: Iterator<Move>
}

interface Move {
  readonly index: number
  readonly next: ModelState
}

/**
 * What may never have happened is tried where nothing else fits, or in its place among the others: what is hopeless in the one way
 * is mostly quick in the other.
 */
type Order = 'needed first' | 'as sent'

function search(
  candidates: readonly Candidate[],
  order: Order,
): { readonly is: Linearizable['is']; readonly best: number[] } {
  const known = beginSearch(candidates, order)
  let best: number[] = []
  const first = firstLeft(known, 0)
  if (first === candidates.length) return { is: 'yes', best }
  const path: Place[] = [{ index: -1, left: first, moves: movesFrom(known, first, beginning) }]
  for (let steps = 0; path.length > 0;) {
    const place = path.at(-1)!
    const move = place.moves.next()
    if (move.done) {
      if (path.length > best.length + 1) best = path.slice(1).map(({ index }) => index)
      path.pop()
      if (place.index >= 0) put(known, place.index, 0)
      continue
    }
    const { index, next } = move.value
    put(known, index, 1)
    const left = firstLeft(known, place.left)
    if (left === candidates.length) return { is: 'yes', best }
    if (++steps > stepsMax || known.remembered > rememberedMax) return { is: 'undecided', best }
    path.push({ index, left, moves: isNew(known, left, next) ? movesFrom(known, left, next) : nothing })
  }
  return { is: 'no', best }
}

const nothing: Iterator<Move> = [].values()

function beginSearch(candidates: readonly Candidate[], order: Order): Search {
  const unheard: number[] = []
  const unheardWrites = new Map<string, number[]>()
  const claimsLeft = new Map<string, number>()
  for (const [index, { operation, required }] of candidates.entries()) {
    const token = tokenOfWrite(operation)
    if ('request' in operation) claimsLeft.set(operation.request.token, 0)
    if (required) continue
    const writes = token === undefined ? unheard : unheardWrites.get(token)
    if (writes) writes.push(index)
    else unheardWrites.set(token!, [index])
  }
  const taken = new Uint8Array(candidates.length)
  const felt = new Set<number>()
  const known = {
    order,
    candidates,
    taken,
    unheard,
    unheardWrites,
    felt,
    claimsLeft,
    seen: new Set<string>(),
    remembered: 0,
  }
  for (const index of candidates.keys()) put(known, index, 0)
  return known
}

/** Into the order, or out of it. */
function put({ candidates, taken, felt, claimsLeft }: Search, index: number, isTaken: 0 | 1): void {
  const { operation, required } = candidates[index]!
  taken[index] = isTaken
  if ('request' in operation) {
    const { token } = operation.request
    claimsLeft.set(token, claimsLeft.get(token)! + (isTaken ? -1 : 1))
  }
  if (required) return
  if (isTaken) felt.add(index)
  else felt.delete(index)
}

function tokenOfWrite(operation: StoreOperation): string | undefined {
  return 'token' in operation && operation.call !== 'rollback' ? operation.token : undefined
}

function firstLeft({ candidates, taken }: Search, from: number): number {
  let index = from
  while (index < candidates.length && (taken[index] || !candidates[index]!.required)) index++
  return index
}

/** The next operation in the order was asked before the first answer to those that are left. */
function* movesFrom(known: Search, left: number, state: ModelState): Generator<Move> {
  const { candidates, taken, order } = known
  const needed: number[] = []
  let untilMs = Infinity
  for (let index = left; index < candidates.length && candidates[index]!.span.fromMs <= untilMs; index++) {
    const { required, span } = candidates[index]!
    if (!required || taken[index]) continue
    needed.push(index)
    untilMs = Math.min(untilMs, span.toMs)
  }
  if (order === 'as sent') {
    const all = [...needed, ...unheardBefore(known, untilMs, state)].sort((a, b) => a - b)
    for (const index of all) yield* movesBy(known, index, state, untilMs)
    return
  }
  for (const index of needed) yield* movesBy(known, index, state, untilMs)
  for (const index of unheardBefore(known, untilMs, state)) yield* movesBy(known, index, state, untilMs)
}

/** Unheard operations that were asked by then and could change something: a write only if its token holds the key. */
function unheardBefore(known: Search, untilMs: number, { entry, open }: ModelState): number[] {
  const { candidates, taken, unheard, unheardWrites } = known
  const writes = [entry && unheardWrites.get(entry.token), open && unheardWrites.get(open.token)]
  const before = (index: number): boolean => !taken[index] && candidates[index]!.span.fromMs <= untilMs
  return [...(writes[0] ?? []), ...(writes[1] ?? []), ...unheard].filter(before)
}

function* movesBy({ candidates }: Search, index: number, state: ModelState, untilMs: number): Generator<Move> {
  const { operation, span, required } = candidates[index]!
  for (const next of possibleNext(state, operation, { fromMs: span.fromMs, toMs: Math.min(span.toMs, untilMs) })) {
    // An unheard operation that changed nothing need not have happened.
    const isFelt = next.entry !== state.entry || next.open !== state.open
    if (required || isFelt) yield { index, next }
  }
}

/** Which are in the order, and where that leaves the key: whatever follows from it has been tried when it comes again. */
function isNew(known: Search, left: number, state: ModelState): boolean {
  const { candidates, taken, felt, seen } = known
  const untilMs = candidates[left]!.span.toMs
  let name = `${describeState(state)} ${left}`
  for (let index = left; index < candidates.length && candidates[index]!.span.fromMs <= untilMs; index++) {
    if (taken[index] && candidates[index]!.required) name += ` ${index}`
  }
  const counts = [...felt].filter((index) => mayCount(known, candidates[index]!.operation, state))
  if (counts.length > 0) name += ` and ${counts.sort((a, b) => a - b).join(' ')}`
  if (seen.has(name)) return false
  seen.add(name)
  known.remembered += name.length
  return true
}

/** Could it still change anything if it were not in the order yet? Not when its token can never hold the key again. */
function mayCount({ claimsLeft }: Search, operation: StoreOperation, { entry, open }: ModelState): boolean {
  const token = tokenOfWrite(operation)
  if (token === undefined) return true
  return token === entry?.token || token === open?.token || (claimsLeft.get(token) ?? 0) > 0
}

function describeState({ entry, open, nowMs }: ModelState): string {
  if (!entry) return `${nowMs} ${open?.token}`
  const { token, fence, attempt, wrote, lease, keepMs, longerMs, tombstoneMs } = entry
  const times = [lease.fromMs, lease.toMs, keepMs, longerMs, tombstoneMs].join(' ')
  return `${nowMs} ${open?.token} ${token} ${fence} ${attempt} ${wrote} ${times} ${outcomeNumber(entry.outcome)}`
}

/** Two people can resolve one key with two outcomes, and nothing else tells those states apart. */
function outcomeNumber(outcome: Uint8Array | undefined): number {
  if (!outcome) return 0
  const known = outcomeNumbers.get(outcome)
  if (known !== undefined) return known
  outcomeNumbers.set(outcome, ++lastOutcomeNumber)
  return lastOutcomeNumber
}

const outcomeNumbers = new WeakMap<Uint8Array, number>()
let lastOutcomeNumber = 0

// The entries of a store as the dashboard shows them. Nothing here holds a full answer but `reveal`: lists and timelines show
// its status and its size. Every query is bounded in rows and, by callStore, in time.

import { systemClock } from '../../core/clock.ts'
import { invalidArgument, OnceError } from '../../core/errors.ts'
import { canMend } from '../../core/entry.ts'
import { publish } from '../../core/events.ts'
import { checkKey, hashKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import { decodeOutcome, withoutMark } from '../../core/outcome.ts'
import type { Once } from '../../core/once.ts'
import type { OperationState } from '../../core/operations.ts'
import { callStore } from '../../core/timed-call.ts'
import type { Entry, EntryFilter, EntryState, Inspectable, Store } from '../../core/store.ts'
import { decodeStored } from '../../http/exchange.ts'
import type { EventJournal } from './journal.ts'
import { hasLedger, operationsAmong } from './operations.ts'
import type { FoundOperation } from './operations.ts'
import { timelineOf } from './timeline.ts'
import type { Moment } from './timeline.ts'
import { foundIn } from '../found-outcome.ts'
import type { FoundText } from '../found-outcome.ts'
import { gatewayTenant } from '../gateway-key.ts'
import { keepsOperations, resumeByHand } from '../operation-by-hand.ts'

export const entryStates: readonly EntryState[] = ['running', 'abandoned', 'open', 'settled', 'tombstone']

/** What a stored outcome is, without what it says. */
export interface OutcomeShape {
  readonly kind: 'response' | 'value' | 'failure' | 'not-stored' | 'unreadable'
  readonly bytes: number
  readonly status?: number
  readonly contentType?: string
}

export interface EntryRow extends Omit<Entry, 'outcome' | 'input' | 'key' | 'fingerprint'> {
  readonly scope: string
  readonly id: string
  /** Of an HTTP key of this gateway. '' where all callers share one space of keys. */
  readonly tenant?: string
  readonly outcome?: OutcomeShape
}

export interface EntryPage {
  readonly rows: readonly EntryRow[]
  /** There are more after the last row. */
  readonly more: boolean
}

/** The state of an operation. The results of its steps are in the timeline. */
export interface OperationShape {
  readonly state: OperationState | 'unreadable'
  readonly direction: 'forward' | 'backward'
  readonly inDoubt: readonly string[]
}

/** A manual change, as the page requests it. */
export type ManualChange =
  | { readonly action: 'release' | 'forget' | 'resume' }
  | { readonly action: 'resolve'; readonly found: FoundText }
  | { readonly action: 'keep'; readonly forMs: number }

export interface KeyLife {
  readonly entry?: EntryRow
  readonly operation?: OperationShape
  readonly timeline: readonly Moment[]
}

export interface Entries {
  /** How many are running, abandoned and open, counted up to `countMax`. */
  waiting(): Promise<Readonly<Record<'running' | 'abandoned' | 'open', number>>>
  scopes(): Promise<readonly string[]>
  page(filter: Omit<EntryFilter, 'limit'>): Promise<EntryPage>
  /** The keys that are or begin with this text, in one scope or in the first ones. */
  find(text: string, scope: string | undefined): Promise<EntryPage>
  life(key: Key): Promise<KeyLife>
  /** What was stored, as text. */
  reveal(key: Key): Promise<{ readonly text: string; readonly cut: boolean } | undefined>
  mend(key: Key, change: ManualChange, reason: string): Promise<EntryRow | undefined>
}

/** Entries that are not settled have no answer, so a thousand of them are small. */
export const countMax = 1_000
// Settled entries come with their answers, of up to 1 MiB each: a page is at most 25 MiB for a moment.
export const pageRows = 25
// People have few services. Tenants can be many, and are then searched by name.
const scopesMax = 50
const scopesSearchedMax = 20
const revealedBytesMax = 65_536
// One of them sorts after every id, of at most 255 bytes. Stores compare UTF-16 units, or bytes of UTF-8.
const lastIds = ['\uFFFF'.repeat(85), '\u{10FFFF}'.repeat(63)]

/** `key` is what it is about, if it is about one. */
type Ask = <T>(question: (store: Inspectable) => Promise<T>, key?: Key, during?: 'inspect' | 'mend') => Promise<T>
type List = (filter: EntryFilter) => Promise<readonly Entry[]>

export function entriesOf(
  once: Once<Store & Inspectable>,
  store: Store & Partial<Inspectable>,
  journal: EventJournal,
): Entries {
  const ask = askOf(once, store)
  const list: List = (filter) => ask((asked) => asked.list(filter))
  const count = async (state: EntryState): Promise<number> => (await list({ state, limit: countMax })).length
  return {
    async waiting() {
      return { running: await count('running'), abandoned: await count('abandoned'), open: await count('open') }
    },
    scopes: () => scopesIn(list),
    page: async (filter) => pageOf(await list({ ...filter, limit: pageRows + 1 })),
    async find(text, scope) {
      checkKey({ scope: scope ?? 'any', id: text })
      const found: Entry[] = []
      for (const each of scope === undefined ? (await scopesIn(list)).slice(0, scopesSearchedMax) : [scope]) {
        found.push(...(await findIn(ask, { scope: each, id: text })))
        if (found.length > pageRows) break
      }
      return pageOf(found)
    },
    async life(key) {
      checkKey(key)
      const entry = await ask((asked) => asked.show(key), key)
      const audit = await ask((asked) => asked.audit(key), key)
      const found = entry && hasLedger(store) ? await ask(() => operationsAmong(store, [entry]), key) : undefined
      const [operation] = found?.operations ?? []
      const timeline = timelineOf(entry, audit, journal.of(hashKey(key)), operation?.status)
      return {
        ...(entry && { entry: rowOf(entry) }),
        ...(operation && { operation: operationShape(operation) }),
        timeline,
      }
    },
    reveal: async (key) => revealed(await once.get(checkKey(key))),
    async mend(key, change, reason) {
      checkKey(key)
      checkReason(reason)
      if (change.action === 'resume') await resumeParked(ask, store, key, reason)
      else if (change.action === 'resolve') await resolveFound(ask, key, change.found, reason)
      else if (change.action === 'keep') refuseUnless('keep', await once.keep(key, change.forMs, reason))
      else await (change.action === 'release' ? once.release(key, reason) : once.forget(key, reason))
      const entry = await ask((asked) => asked.show(key), key)
      return entry && rowOf(entry)
    },
  }
}

export function checkReason(reason: string): void {
  if (reason.trim() === '') throw invalidArgument('expected a reason, for the audit trail')
  if (reason.length > 500) throw invalidArgument(`expected a reason of at most 500 characters, got ${reason.length}`)
}

function askOf(once: Once, store: Store & Partial<Inspectable>): Ask {
  const calls = { clock: systemClock, storeName: store.name, timeoutMs: once.settings.storeTimeoutMs }
  return async (question, key, during = 'inspect') => {
    if (!isInspectable(store)) {
      throw new OnceError('UNSUPPORTED', { message: `The ${store.name} store cannot show its entries.` })
    }
    return callStore(calls, during, key, () => question(store))
  }
}

/** Not `once.resolve`: the result is kept for as long as the entry says, and the entry may belong to another service. */
async function resolveFound(ask: Ask, key: Key, found: FoundText, reason: string): Promise<void> {
  const seen = await ask((asked) => asked.show(key), key)
  if (!seen) throw invalidArgument('There is no entry of this key: nothing was changed.')
  const { mending } = foundIn(seen, found)
  const before = await ask((asked) => asked.mend(key, mending, reason), key, 'mend')
  refuseUnless('resolve', before)
  publish('mended', key, { action: 'resolve' })
}

function refuseUnless(action: 'resolve' | 'keep', before: Pick<Entry, 'state'> | undefined): void {
  if (!before) throw invalidArgument('There is no entry of this key: nothing was changed.')
  if (!canMend(action, before.state)) throw invalidArgument(`It is ${before.state}: nothing was changed.`)
}

async function resumeParked(ask: Ask, store: Store & Partial<Inspectable>, key: Key, reason: string): Promise<void> {
  if (!keepsOperations(store)) {
    throw new OnceError('UNSUPPORTED', { message: `The ${store.name} store keeps no operations.` })
  }
  const resumed = await ask(() => resumeByHand(store, key, reason), key, 'mend')
  if (resumed?.changed) return
  throw invalidArgument(
    resumed ? `It is ${resumed.status.state}, not parked: nothing was changed.` : 'There is no such operation.',
  )
}

function operationShape({ status }: FoundOperation): OperationShape {
  if (!status) return { state: 'unreadable', direction: 'forward', inDoubt: [] }
  const { state, direction, inDoubt } = status
  return { state, direction, inDoubt }
}

async function scopesIn(list: List): Promise<string[]> {
  const found: string[] = []
  let next = (await list({ limit: 1 }))[0]?.key.scope
  while (next !== undefined && found.length < scopesMax) {
    found.push(next)
    next = await scopeAfter(list, next)
  }
  return found
}

async function scopeAfter(list: List, scope: string): Promise<string | undefined> {
  for (const id of lastIds) {
    const [next] = await list({ limit: 1, after: { scope, id } })
    if (next?.key.scope !== scope) return next?.key.scope
  }
  return undefined
}

/** Keys with the same prefix follow each other. */
async function findIn(ask: Ask, key: Key): Promise<Entry[]> {
  const exact = await ask((asked) => asked.show(key), key)
  const after = await ask((asked) => asked.list({ scope: key.scope, after: key, limit: pageRows }))
  return [...(exact ? [exact] : []), ...after.filter((entry) => entry.key.id.startsWith(key.id))]
}

function pageOf(found: readonly Entry[]): EntryPage {
  return { rows: found.slice(0, pageRows).map(rowOf), more: found.length > pageRows }
}

export function rowOf(entry: Entry): EntryRow {
  const { key, outcome, input: _input, fingerprint: _fingerprint, ...rest } = entry
  const tenant = gatewayTenant(key.scope)
  return {
    ...key,
    ...(tenant !== undefined && { tenant }),
    ...rest,
    ...(outcome && { outcome: shapeOf(outcome, key) }),
  }
}

/** What a codec of the user's wrote, by its letter. The codec is not known here. */
const byCodec: Readonly<Record<string, 'value' | 'failure'>> = { c: 'value', d: 'value', e: 'failure' }

function shapeOf(stored: Uint8Array, key: Key): OutcomeShape {
  // Its first byte tells the kind.
  const bytes = stored.length - 1
  try {
    const outcome = decodeOutcome(stored, undefined, key)
    if (outcome.kind !== 'value' || !(outcome.value instanceof Uint8Array)) return { kind: outcome.kind, bytes }
    return answerShape(outcome.value) ?? { kind: 'value', bytes }
  } catch {
    return { kind: byCodec[String.fromCharCode(withoutMark(stored)[0] ?? 0)] ?? 'unreadable', bytes }
  }
}

function answerShape(value: Uint8Array): OutcomeShape | undefined {
  try {
    const stored = decodeStored(value)
    if (stored.is === 'not-stored') return { kind: 'not-stored', bytes: 0 }
    const { status, headers, body } = stored.answer
    const contentType = headers.find(([name]) => name.toLowerCase() === 'content-type')?.[1]
    return { kind: 'response', status, bytes: body.length, ...(contentType !== undefined && { contentType }) }
  } catch {
    return undefined // bytes that an effect of the user's returned
  }
}

function revealed(
  entry: Awaited<ReturnType<Once<Store & Inspectable>['get']>>,
): { text: string; cut: boolean } | undefined {
  const { outcome } = entry ?? {}
  if (!outcome) return undefined
  if (outcome.kind === 'failure') return cut(outcome.error.message)
  if (outcome.kind === 'not-stored') return cut(outcome.reason)
  const { value } = outcome
  if (!(value instanceof Uint8Array)) return cut(JSON.stringify(value, undefined, 2) ?? 'undefined')
  if (answerShape(value)?.kind !== 'response') return cut(Buffer.from(value).toString('utf8'))
  const stored = decodeStored(value)
  if (stored.is !== 'answer') return undefined
  const { status, headers, body } = stored.answer
  const head = [`HTTP ${status}`, ...headers.map(([name, each]) => `${name}: ${each}`)].join('\n')
  return cut(`${head}\n\n${Buffer.from(body.subarray(0, revealedBytesMax + 1)).toString('utf8')}`)
}

export function cut(text: string): { text: string; cut: boolean } {
  return { text: text.slice(0, revealedBytesMax), cut: text.length > revealedBytesMax }
}

function isInspectable(store: Store & Partial<Inspectable>): store is Store & Inspectable {
  return store.show !== undefined && store.list !== undefined && store.audit !== undefined
}

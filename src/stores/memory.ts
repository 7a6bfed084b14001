// The store that lives in the process: for tests, for benchmarks, and as the plainest reading of core/store.ts. A decision is
// synchronous, so nothing can come between reading an entry and writing it. What an entry is follows from its times alone.

import { releaseOrForget } from '../core/entry.ts'
import { systemClock } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import { OnceError } from '../core/errors.ts'
import { describeKey, keyString } from '../core/key.ts'
import type { Key } from '../core/key.ts'
import { checkOptions, optional, positiveInteger, withMethods } from '../core/options.ts'
import type {
  AuditRecord,
  Claim,
  ClaimRequest,
  Entry,
  EntryState,
  Fenced,
  Inspectable,
  Recoverable,
  Retention,
  StepLedger,
  Store,
  Sweepable,
  Verdict,
} from '../core/store.ts'
import { copyOf, operationsIn } from './memory/operations.ts'
import type { MemoryOperation } from './memory/operations.ts'

export interface MemoryStoreOptions {
  /** Refuses new keys beyond so many; 100,000 entries with small outcomes are some 50 MB. */
  readonly entriesMax?: number
  readonly clock?: Clock
  /** What an earlier store left: two stores on the same data are two instances of one store. */
  readonly data?: MemoryData
}

export type MemoryStore = Store & Sweepable & Inspectable & StepLedger & Recoverable

/** Everything that is remembered, and the clock by which it is. */
export interface MemoryData {
  readonly entries: Map<string, MemoryEntry>
  readonly audit: AuditRecord[]
  readonly operations: Map<string, MemoryOperation>
  readonly now: () => number
  /** The last fence given out, to any key. */
  fence: number
  /** No entry is over before this time: a full store need not look through all of them for every claim it refuses. */
  nothingOverUntilMs: number
}

export interface MemoryEntry extends Omit<Entry, 'state' | 'expiresAtMs' | 'forgottenAtMs'> {
  readonly wrote: 'claim' | 'release' | 'settle'
  readonly token: string
  readonly how: 'fresh' | 'reopened' | 'taken-over'
  readonly keepMs: number
  readonly tombstoneMs: number
}

// Mending is done by hand; ten thousand records are years of it, and a script gone wild must not fill the memory.
const auditRecordsMax = 10_000

export function memoryStore(options: MemoryStoreOptions = {}): MemoryStore {
  checkOptions('memoryStore', options, {
    entriesMax: optional(positiveInteger),
    clock: optional(withMethods('now', 'elapsed')),
    data: () => undefined,
  })
  const data = options.data ?? memoryData(options.clock)
  const decide = decisions(data, options.entriesMax ?? 100_000)
  return {
    name: 'memory',
    claim: async (key, request) => decide.claim(key, request),
    extend: async (held, leaseMs) => decide.extend(held, leaseMs),
    settle: async (held, outcome, retention) => decide.settle(held, outcome, retention),
    release: async (held, how) => decide.release(held, how),
    sweep: async ({ limit }) => sweep(data, limit),
    ...inspection(data),
    ...operationsIn(data, decide),
  }
}

/** The decisions of the store, each in one go. */
export interface MemoryDecisions {
  claim(key: Key, request: ClaimRequest): Verdict
  extend(held: Claim, leaseMs: number): Fenced
  settle(held: Claim, outcome: Uint8Array, retention: Retention): Fenced
  release(held: Claim, how: 'open' | 'forget'): Fenced
}

function decisions(data: MemoryData, entriesMax: number): MemoryDecisions {
  return {
    claim: (key, request) => claim(data, entriesMax, key, request),
    extend(held, leaseMs) {
      const { name, entry, state } = find(data, held.key)
      if (!isHeldBy(entry, state, held)) return 'lost'
      return write(data, name, { ...entry, leaseUntilMs: data.now() + leaseMs })
    },
    settle(held, outcome, { keepMs, tombstoneMs }) {
      const { name, entry, state } = find(data, held.key)
      if (state === 'settled' && isOf(entry, held)) return 'done'
      if (!isHeldBy(entry, state, held)) return 'lost'
      // Copied here and on every replay: bytes that the caller goes on to change must not change what is remembered.
      const kept = copyOf(outcome)
      const leaseUntilMs = data.now()
      return write(data, name, { ...entry, wrote: 'settle', outcome: kept, leaseUntilMs, keepMs, tombstoneMs })
    },
    release: (held, how) => release(data, held, how),
  }
}

export function memoryData(clock: Clock = systemClock): MemoryData {
  // Wall time once, and then only what has passed since: a wall clock that is set must not end anybody's lease.
  const startedAtMs = clock.now() - clock.elapsed()
  const now = (): number => Math.floor(startedAtMs + clock.elapsed())
  return { entries: new Map(), audit: [], operations: new Map(), now, fence: 0, nothingOverUntilMs: 0 }
}

function claim(data: MemoryData, entriesMax: number, key: Key, request: ClaimRequest): Verdict {
  const { name, entry, state } = find(data, key)
  if (!entry || !state || (state === 'tombstone' && request.onExpired === 'run')) {
    makeRoom(data, entriesMax, name, key)
    return grant(data, name, firstAttempt(data, key, request))
  }
  if (state === 'tombstone') return { is: 'expired' }
  if (entry.fingerprint !== request.fingerprint) return { is: 'mismatch' }
  if (state === 'settled') {
    return { is: 'settled', outcome: Buffer.from(entry.outcome!), version: entry.version, attempt: entry.attempt }
  }
  if (entry.token === request.token) {
    return state === 'open' ? { is: 'busy', retryAfterMs: 0 } : grantAgain(data, entry, request)
  }
  if (state === 'running') return { is: 'busy', retryAfterMs: entry.leaseUntilMs - data.now() }
  if (state === 'open') return grant(data, name, nextAttempt(data, entry, request, 'reopened'))
  if (request.onTakeover === 'refuse') return { is: 'doubt', attempt: entry.attempt }
  return grant(data, name, nextAttempt(data, entry, request, 'taken-over'))
}

function firstAttempt(data: MemoryData, key: Key, request: ClaimRequest): MemoryEntry {
  const now = data.now()
  const { token, fingerprint, version, leaseMs, retention, input } = request
  const entry = {
    key,
    wrote: 'claim',
    how: 'fresh',
    token,
    attempt: 1,
    fence: nextFence(data),
    fingerprint,
    version,
    firstClaimedAtMs: now,
    leaseUntilMs: now + leaseMs,
    keepMs: retention.keepMs,
    tombstoneMs: retention.tombstoneMs,
  } as const
  return input ? { ...entry, input: copyOf(input) } : entry
}

function nextAttempt(
  data: MemoryData,
  entry: MemoryEntry,
  request: ClaimRequest,
  how: 'reopened' | 'taken-over',
): MemoryEntry {
  return {
    ...entry,
    wrote: 'claim',
    how,
    token: request.token,
    attempt: entry.attempt + 1,
    fence: nextFence(data),
    version: request.version,
    leaseUntilMs: data.now() + request.leaseMs,
    ...request.retention,
    // An attempt that was given no input leaves the one that is there: without it, no worker could take the operation up.
    ...(request.input && { input: copyOf(request.input) }),
  }
}

function grantAgain(data: MemoryData, entry: MemoryEntry, request: ClaimRequest): Verdict {
  return grant(data, keyString(entry.key), { ...entry, leaseUntilMs: data.now() + request.leaseMs })
}

function grant(data: MemoryData, name: string, entry: MemoryEntry): Verdict {
  write(data, name, entry)
  const { key, token, attempt, fence, how } = entry
  return { is: 'granted', claim: { key, token, attempt, fence }, how }
}

// One counter for all keys: it grows also for a key that was forgotten and came back within the same microsecond.
function nextFence(data: MemoryData): number {
  data.fence = Math.max(data.fence + 1, data.now() * 1_000)
  return data.fence
}

function release(data: MemoryData, held: Claim, how: 'open' | 'forget'): Fenced {
  const { name, entry, state } = find(data, held.key)
  // The trace is gone already: this is the same release once more, or of a claim that never arrived.
  if (!state) return how === 'forget' ? 'done' : 'lost'
  const holder = held.fence === 0 ? { ...held, fence: entry!.fence } : held
  if (state === 'open' && isOf(entry, holder)) return 'done'
  if (!isHeldBy(entry, state, holder)) return 'lost'
  if (how === 'open' || entry.attempt > 1) {
    return write(data, name, { ...entry, wrote: 'release', leaseUntilMs: data.now() })
  }
  data.entries.delete(name)
  data.operations.delete(name)
  return 'done'
}

// The lease decides when others may try; token and fence decide who may write. Hence abandoned is held, too.
function isHeldBy(entry: MemoryEntry | undefined, state: EntryState | undefined, held: Claim): entry is MemoryEntry {
  return isOf(entry, held) && (state === 'running' || state === 'abandoned')
}

function isOf(entry: MemoryEntry | undefined, held: Claim): entry is MemoryEntry {
  return entry?.token === held.token && entry.fence === held.fence
}

interface Found {
  /** What the entry is under in the map: put together once for a decision, as that costs more than looking it up. */
  readonly name: string
  readonly entry: MemoryEntry | undefined
  readonly state: EntryState | undefined
}

function find(data: MemoryData, key: Key): Found {
  const name = keyString(key)
  const entry = data.entries.get(name)
  return { name, entry, state: entry && stateOf(entry, data.now()) }
}

/** Undefined when the entry is over, as if it had never been. */
function stateOf(entry: MemoryEntry, now: number): EntryState | undefined {
  if (now >= forgottenAtMs(entry)) return undefined
  if (now >= expiresAtMs(entry)) return 'tombstone'
  if (entry.wrote === 'settle') return 'settled'
  if (entry.wrote === 'release') return 'open'
  return now < entry.leaseUntilMs ? 'running' : 'abandoned'
}

function expiresAtMs(entry: MemoryEntry): number {
  return entry.leaseUntilMs + entry.keepMs
}

function forgottenAtMs(entry: MemoryEntry): number {
  return expiresAtMs(entry) + entry.tombstoneMs
}

function write(data: MemoryData, name: string, entry: MemoryEntry): 'done' {
  data.entries.set(name, entry)
  data.nothingOverUntilMs = Math.min(data.nothingOverUntilMs, forgottenAtMs(entry))
  return 'done'
}

// A live entry is never pushed out to make room: its key would run twice.
function makeRoom(data: MemoryData, entriesMax: number, name: string, key: Key): void {
  if (data.entries.size < entriesMax || data.entries.has(name)) return
  if (data.now() >= data.nothingOverUntilMs) sweep(data, Infinity)
  if (data.entries.size < entriesMax) return
  throw new OnceError('STORE_UNAVAILABLE', {
    message:
      `The memory store holds ${entriesMax} entries and none of them is over, so ${describeKey(key)} was not claimed. ` +
      `Raise entriesMax, shorten keepMs and tombstoneMs, or use a store on disk.`,
  })
}

function sweep(data: MemoryData, limit: number): { tombstoned: number; forgotten: number; more: boolean } {
  const now = data.now()
  const swept = { tombstoned: 0, forgotten: 0, more: false }
  let nothingOverUntilMs = Infinity
  for (const [name, entry] of data.entries) {
    const state = stateOf(entry, now)
    const strip = state === 'tombstone' && (entry.outcome !== undefined || entry.input !== undefined)
    if (state && !strip) {
      nothingOverUntilMs = Math.min(nothingOverUntilMs, forgottenAtMs(entry))
      continue
    }
    if (swept.tombstoned + swept.forgotten === limit) return { ...swept, more: true }
    if (strip) {
      swept.tombstoned++
      nothingOverUntilMs = Math.min(nothingOverUntilMs, forgottenAtMs(entry))
      data.entries.set(name, stripped(entry))
      data.operations.delete(name)
    } else {
      swept.forgotten++
      data.entries.delete(name)
      data.operations.delete(name)
    }
  }
  data.nothingOverUntilMs = nothingOverUntilMs
  return swept
}

function stripped({ outcome: _outcome, input: _input, ...rest }: MemoryEntry): MemoryEntry {
  return rest
}

function inspection(data: MemoryData): Inspectable {
  return {
    async show(key) {
      return shown(data, data.entries.get(keyString(key)))
    },
    async list({ scope, state, after, limit }) {
      const from = after && keyString(after)
      return (
        [...data.entries]
          .filter(
            ([name, entry]) =>
              (from === undefined || name > from) && (scope === undefined || entry.key.scope === scope),
          )
          // A key string ends its scope with a character below every legal one, so this is the order of scope, then id.
          .sort(([a], [b]) => (a < b ? -1 : 1))
          .map(([, entry]) => shown(data, entry))
          .filter((entry) => entry !== undefined)
          .filter((entry) => state === undefined || entry.state === state)
          .slice(0, limit)
      )
    },
    async mend(key, mending, reason) {
      const action = releaseOrForget(mending)
      const { name, entry, state } = find(data, key)
      const before = shown(data, entry)
      if (!entry || !state || (action === 'release' && state !== 'running' && state !== 'abandoned')) return before
      data.audit.push({ key, atMs: data.now(), action, reason, before: state })
      if (data.audit.length > auditRecordsMax) data.audit.shift()
      // An open entry keeps its last token: a delayed claim of the holder that was pushed out still finds that it is over.
      if (action === 'release') write(data, name, { ...entry, wrote: 'release', leaseUntilMs: data.now() })
      else {
        data.entries.delete(name)
        data.operations.delete(name)
      }
      return before
    },
    audit: async (key) => data.audit.filter((record) => keyString(record.key) === keyString(key)),
  }
}

function shown(data: MemoryData, entry: MemoryEntry | undefined): Entry | undefined {
  const state = entry && stateOf(entry, data.now())
  if (!entry || !state) return undefined
  const { outcome, input } = state === 'tombstone' ? stripped(entry) : entry
  return {
    key: entry.key,
    state,
    attempt: entry.attempt,
    fence: entry.fence,
    fingerprint: entry.fingerprint,
    version: entry.version,
    firstClaimedAtMs: entry.firstClaimedAtMs,
    leaseUntilMs: entry.leaseUntilMs,
    expiresAtMs: expiresAtMs(entry),
    forgottenAtMs: forgottenAtMs(entry),
    ...(outcome && { outcome: copyOf(outcome) }),
    ...(input && { input: copyOf(input) }),
  }
}

// The entries of the memory store. Every function decides and writes in one go, so nothing can come between reading an entry and
// writing it.

import { systemClock } from '../../core/clock.ts'
import type { Clock } from '../../core/clock.ts'
import {
  attemptOf,
  decide,
  fenceAfter,
  forgottenAtMs,
  isHeldBy,
  released,
  settled,
  stateOf,
  stripped,
} from '../../core/entry.ts'
import type { EntryRecord } from '../../core/entry.ts'
import { OnceError } from '../../core/errors.ts'
import { describeKey, keyString } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { AuditRecord, Claim, ClaimRequest, Fenced, Retention, Swept, Verdict } from '../../core/store.ts'
import { keptCopy } from './kept-bytes.ts'
import type { MemoryOperation } from './operations.ts'

/** No remains are kept of what is forgotten: fences grow across all keys. */
export interface MemoryEntry extends EntryRecord {
  readonly wrote: 'claim' | 'release' | 'settle'
}

/** Everything that is remembered, and the clock by which it is. */
export interface MemoryData {
  readonly entries: Map<string, MemoryEntry>
  readonly audit: AuditRecord[]
  readonly operations: Map<string, MemoryOperation>
  readonly now: () => number
  /** The last fence given out, to any key. */
  fence: number
  /** No entry is forgotten before this time: a full store need not look through all of them for every claim it refuses. */
  nothingOverUntilMs: number
}

/**
 * What memory stores keep their entries in. Two stores on the same data are two instances of one store, as two processes are.
 *
 * @example
 * import { memoryData, memoryStore } from 'onceonly/memory'
 *
 * const data = memoryData()
 * const one = memoryStore({ data })
 * const other = memoryStore({ data })
 */
export function memoryData(clock: Clock = systemClock): MemoryData {
  // Wall time once, and then only what has passed since: a wall clock that is set must not end any lease.
  const startedAtMs = clock.now() - clock.elapsed()
  const now = (): number => Math.floor(startedAtMs + clock.elapsed())
  return { entries: new Map(), audit: [], operations: new Map(), now, fence: 0, nothingOverUntilMs: 0 }
}

/** The decisions of the store, each in one go. */
export interface MemoryDecisions {
  claim(key: Key, request: ClaimRequest): Verdict
  extend(held: Claim, leaseMs: number): Fenced
  settle(held: Claim, outcome: Uint8Array, retention: Retention): Fenced
  release(held: Claim, how: 'open' | 'forget'): Fenced
}

export function decisionsOn(data: MemoryData, entriesMax: number): MemoryDecisions {
  const find = (name: string): MemoryEntry | undefined => data.entries.get(name)
  return {
    claim(key, request) {
      const name = keyString(key)
      const entry = find(name)
      const nowMs = data.now()
      const decision = decide(entry, request, nowMs)
      if (decision.is === 'refused') return decision.verdict
      if (decision.is === 'replayed') return replayOf(decision.entry)
      if (decision.is === 'repeated') {
        return grant(data, name, { ...decision.entry, leaseUntilMs: nowMs + request.leaseMs })
      }
      if (decision.how === 'fresh') makeRoom(data, entriesMax, name, key)
      const at = { nowMs, fence: nextFence(data, nowMs) }
      return grant(data, name, attemptOf(key, decision, withOwnInput(request), at))
    },
    extend(held, leaseMs) {
      const name = NamedClaim.nameOf(held)
      const entry = find(name)
      const nowMs = data.now()
      if (!isHeldBy(entry, held, nowMs)) return 'lost'
      return write(data, name, { ...entry, leaseUntilMs: nowMs + leaseMs })
    },
    settle(held, outcome, retention) {
      const name = NamedClaim.nameOf(held)
      const entry = find(name)
      // Copied here and on every replay: bytes that the caller goes on to change must not change what is remembered.
      const after = settled(entry, held, { outcome: keptCopy(outcome), retention }, data.now())
      return typeof after === 'string' ? after : write(data, name, after)
    },
    release(held, how) {
      const name = NamedClaim.nameOf(held)
      const entry = find(name)
      const after = released(entry, held, how, data.now())
      if (after === 'done' || after === 'lost') return after
      return after === 'forget' ? forget(data, name) : write(data, name, after)
    },
  }
}

function replayOf({ outcome, version, attempt }: MemoryEntry): Verdict {
  return { is: 'settled', outcome: Buffer.from(outcome!), version, attempt }
}

function withOwnInput(request: ClaimRequest): ClaimRequest {
  return request.input ? { ...request, input: keptCopy(request.input) } : request
}

function grant(data: MemoryData, name: string, entry: MemoryEntry): Verdict {
  write(data, name, entry)
  return { is: 'granted', claim: new NamedClaim(entry, name), how: entry.how }
}

/** It remembers the name of its entry: to put the name together and to compare it costs more than the rest of a settle. */
class NamedClaim implements Claim {
  readonly key: Key
  readonly token: string
  readonly attempt: number
  readonly fence: number
  readonly #name: string

  constructor({ key, token, attempt, fence }: MemoryEntry, name: string) {
    this.key = key
    this.token = token
    this.attempt = attempt
    this.fence = fence
    this.#name = name
  }

  static nameOf(held: Claim): string {
    return #name in held ? held.#name : keyString(held.key)
  }
}

// One counter for all keys: it grows also for a key that was forgotten and came back within the same microsecond.
export function nextFence(data: MemoryData, nowMs: number): number {
  data.fence = fenceAfter(data.fence, nowMs)
  return data.fence
}

export function write(data: MemoryData, name: string, entry: MemoryEntry): 'done' {
  data.entries.set(name, entry)
  data.nothingOverUntilMs = Math.min(data.nothingOverUntilMs, forgottenAtMs(entry))
  return 'done'
}

export function forget(data: MemoryData, name: string): 'done' {
  data.entries.delete(name)
  data.operations.delete(name)
  return 'done'
}

// A live entry is never pushed out to make room: its key would run twice.
function makeRoom(data: MemoryData, entriesMax: number, name: string, key: Key): void {
  if (data.entries.size < entriesMax || data.entries.has(name)) return
  if (data.now() >= data.nothingOverUntilMs) sweep(data, Infinity)
  if (data.entries.size < entriesMax) return
  throw new OnceError('STORE_UNAVAILABLE', {
    message:
      `The memory store holds ${entriesMax} entries that have not expired, so it did not claim ${describeKey(key)}. ` +
      'Raise entriesMax, shorten keepMs and tombstoneMs, or use a store on disk.',
  })
}

export function sweep(data: MemoryData, limit: number): Swept {
  const nowMs = data.now()
  const swept = { tombstoned: 0, forgotten: 0, more: false }
  let nothingOverUntilMs = Infinity
  for (const [name, entry] of data.entries) {
    const state = stateOf(entry, nowMs)
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
      forget(data, name)
    }
  }
  data.nothingOverUntilMs = nothingOverUntilMs
  return swept
}

/** Of a Buffer `slice` would be a view on the same bytes. */
export function copyOf(bytes: Uint8Array): Uint8Array {
  return new Uint8Array(bytes)
}

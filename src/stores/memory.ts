// The store that lives in the process: for tests, for benchmarks, and as the plainest reading of core/store.ts.
//
// How it keeps the invariants, and what that costs:
// - a decision is one synchronous function on a map. Its time is the wall clock read once, and what has passed since, so a clock
//   that is set ends no lease. Bounded by `entriesMax`: a full store refuses new keys and never evicts a live one.

import { offerMemory } from '../clients/memory-place.ts'
import type { Clock } from '../core/clock.ts'
import { mended, mendingName, shownEntry, stateOf } from '../core/entry.ts'
import { keyString } from '../core/key.ts'
import { checkOptions, optional, positiveInteger, withMethods } from '../core/options.ts'
import type { Entry, Inspectable, Mending, Recoverable, StepLedger, Store, Sweepable } from '../core/store.ts'
import { copyOf, decisionsOn, forget, memoryData, nextFence, sweep, write } from './memory/entries.ts'
import type { MemoryData, MemoryEntry } from './memory/entries.ts'
import { operationsIn } from './memory/operations.ts'

export { memoryData } from './memory/entries.ts'
export type { MemoryData, MemoryEntry } from './memory/entries.ts'
export type { MemoryOperation } from './memory/operations.ts'

export interface MemoryStoreOptions {
  /** The store refuses new keys beyond this many entries. 100,000 entries with small outcomes take some 50 MB. */
  readonly entriesMax?: number
  readonly clock?: Clock
  /** What an earlier store left: two stores on the same data are two instances of one store. */
  readonly data?: MemoryData
}

export type MemoryStore = Store & Sweepable & Inspectable & StepLedger & Recoverable

/**
 * A store in the memory of this process, which forgets every key when the process ends. Use it in tests.
 *
 * @example
 * import { createOnce } from 'onceonly'
 * import { memoryStore } from 'onceonly/memory'
 *
 * const once = createOnce({ store: memoryStore(), scope: 'payments' })
 * const { value } = await once.run('order-42', () => ({ receipt: 'r1' }))
 */
export function memoryStore(options: MemoryStoreOptions = {}): MemoryStore {
  checkOptions('memoryStore', options, {
    entriesMax: optional(positiveInteger),
    clock: optional(withMethods('now', 'elapsed')),
    data: () => undefined,
  })
  const data = options.data ?? memoryData(options.clock)
  const decisions = decisionsOn(data, options.entriesMax ?? 100_000)
  const store: MemoryStore = {
    name: 'memory',
    claim: async (key, request) => decisions.claim(key, request),
    extend: async (held, leaseMs) => decisions.extend(held, leaseMs),
    settle: async (held, outcome, retention) => decisions.settle(held, outcome, retention),
    release: async (held, how) => decisions.release(held, how),
    sweep: async ({ limit }) => sweep(data, limit),
    ...inspection(data),
    ...operationsIn(data, decisions),
  }
  return offerMemory(store, { data, now: data.now })
}

function inspection(data: MemoryData): Inspectable {
  return {
    show: async (key) => shown(data, data.entries.get(keyString(key))),
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
    async mend(key, action, reason) {
      const entry = data.entries.get(keyString(key))
      const before = shown(data, entry)
      if (entry && before && mend(data, entry, action)) {
        data.audit.push({ key, atMs: data.now(), action: mendingName(action), reason, before: before.state })
        if (data.audit.length > auditRecordsMax) data.audit.shift()
      }
      return before
    },
    audit: async (key) => data.audit.filter((record) => keyString(record.key) === keyString(key)),
  }
}

// People mend. Ten thousand records are years of it, and a script that runs wild must not fill the memory.
const auditRecordsMax = 10_000

/** False when the action changes nothing in the state of the entry. */
function mend(data: MemoryData, entry: MemoryEntry, action: Mending): boolean {
  const name = keyString(entry.key)
  const nowMs = data.now()
  const after = mended(entry, action, { state: stateOf(entry, nowMs), nowMs, fence: nextFence(data, nowMs) })
  if (after === undefined) return false
  if (after === 'forget') forget(data, name)
  else write(data, name, after.outcome ? { ...after, outcome: copyOf(after.outcome) } : after)
  const operation = data.operations.get(name)
  // A worker has nothing left to do for an operation whose result a person found out.
  if (operation && mendingName(action) === 'resolve') {
    data.operations.set(name, { ...operation, settled: true, dueAtMs: undefined })
  }
  return true
}

function shown(data: MemoryData, entry: MemoryEntry | undefined): Entry | undefined {
  const found = shownEntry(entry, data.now())
  if (!found) return undefined
  const { outcome, input, ...rest } = found
  return { ...rest, ...(outcome && { outcome: copyOf(outcome) }), ...(input && { input: copyOf(input) }) }
}

// Broken stores, part 3: remembered too long or not long enough, swept wrongly, shown or mended wrongly.

import { mendingName } from '../../core/entry.ts'
import { keyString } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Mending, Retention } from '../../core/store.ts'
import type { MemoryData, MemoryEntry, MemoryStore } from '../../stores/memory.ts'
import { broken, edit, entryOf, remove, stateOf } from './broken-store.ts'
import type { BrokenStore, Mistake } from './broken-store.ts'

function keeping(change: (retention: Retention) => Retention): Mistake {
  return (store) => ({
    claim: (key, request) => store.claim(key, { ...request, retention: change(request.retention) }),
    settle: (claim, outcome, retention) => store.settle(claim, outcome, change(retention)),
  })
}

const expiry: readonly BrokenStore[] = [
  broken(
    'has no tombstones',
    'a settled key is replayed until its time is over, then it is expired, then absent',
    keeping(({ keepMs }) => ({ keepMs, tombstoneMs: 0 })),
  ),
  broken(
    'never expires',
    'a settled key is replayed until its time is over, then it is expired, then absent',
    keeping(({ tombstoneMs }) => ({ keepMs: 1e12, tombstoneMs })),
  ),
  broken(
    'keeps nothing for longer than a timer can run',
    'a key kept for 400 days is replayed on day 399 and expired on day 401',
    keeping(({ keepMs, tombstoneMs }) => ({ keepMs: Math.min(keepMs, 2 ** 31 - 1), tombstoneMs })),
  ),
  broken(
    'keeps a tombstone where none was asked for',
    'without a tombstone an expired key is absent at once',
    keeping(({ keepMs, tombstoneMs }) => ({ keepMs, tombstoneMs: tombstoneMs || 1e12 })),
  ),
  broken(
    'expires one millisecond late',
    'a settled key is replayed 1 ms before keepMs is over, and expired when it is',
    keeping(({ keepMs, tombstoneMs }) => ({ keepMs: keepMs + 1, tombstoneMs })),
  ),
  broken(
    'forgets one millisecond early',
    'a tombstone is there 1 ms before tombstoneMs is over, and absent when it is',
    keeping(({ keepMs, tombstoneMs }) => ({ keepMs, tombstoneMs: tombstoneMs - 1 })),
  ),
  broken(
    'counts the retention from the claim',
    'the retention of a settled key counts from its settle, not from its claim',
    (store, data) => ({
      async settle(claim, outcome, retention) {
        const fenced = await store.settle(claim, outcome, retention)
        if (fenced === 'done') edit(data, claim.key, { leaseUntilMs: entryOf(data, claim.key)!.firstClaimedAtMs })
        return fenced
      },
    }),
  ),
  broken(
    'takes the retention from the claim',
    'the retention given with the settle counts, not that of the claim',
    (store, data) => ({
      settle: (claim, outcome, retention) => store.settle(claim, outcome, entryOf(data, claim.key) ?? retention),
    }),
  ),
  broken(
    'counts the retention of an open key from the end of its lease',
    'the retention of an open key counts from its release',
    (store, data) => ({
      async release(claim, how) {
        const leaseUntilMs = entryOf(data, claim.key)?.leaseUntilMs ?? 0
        const fenced = await store.release(claim, how)
        if (fenced === 'done') edit(data, claim.key, { leaseUntilMs })
        return fenced
      },
    }),
  ),
  broken(
    'never expires what was abandoned',
    'the retention of an abandoned key counts from the end of its lease',
    (store, data) => ({
      claim(key, request) {
        if (entryOf(data, key)?.wrote === 'claim') edit(data, key, { keepMs: 1e12 })
        return store.claim(key, request)
      },
    }),
  ),
  broken(
    'expires what runs for too long',
    'a running key never expires, however long ago it was first claimed',
    (store, data) => ({
      async claim(key, request) {
        const known = entryOf(data, key)
        if (known && data.now() > known.firstClaimedAtMs + known.keepMs) remove(data, key)
        return store.claim(key, request)
      },
    }),
  ),
  broken(
    'tells another request that the key is not free, instead of expired',
    'a tombstone answers expired, again and again, to the same and to another fingerprint',
    (store) => ({
      async claim(key, request) {
        const entry = await store.show(key)
        const other = entry?.state === 'tombstone' && entry.fingerprint !== request.fingerprint
        return other ? { is: 'mismatch' } : store.claim(key, request)
      },
    }),
  ),
  broken(
    'expires only what was swept',
    'a settled key is replayed until its time is over, then it is expired, then absent',
    (store, data) => ({
      async claim(key, request) {
        const { outcome, version, attempt } = entryOf(data, key) ?? {}
        if (outcome) return { is: 'settled', outcome: outcome.slice(), version: version!, attempt: attempt! }
        return store.claim(key, request)
      },
    }),
  ),
  broken(
    'counts on after an expiry',
    'with onExpired execute a tombstone gives way to a fresh life: attempt 1, nothing of the old one, a greater fence',
    (store, data) => ({
      async claim(key, request) {
        const before = entryOf(data, key)
        const verdict = await store.claim(key, request)
        if (!before || verdict.is !== 'granted' || verdict.how !== 'fresh') return verdict
        edit(data, key, { attempt: before.attempt + 1 })
        return { ...verdict, claim: { ...verdict.claim, attempt: before.attempt + 1 } }
      },
    }),
  ),
  broken(
    'keeps the input of the life before',
    'with onExpired execute a tombstone gives way to a fresh life: attempt 1, nothing of the old one, a greater fence',
    (store, data) => ({
      async claim(key, request) {
        const input = entryOf(data, key)?.input
        const verdict = await store.claim(key, request)
        if (input && verdict.is === 'granted') edit(data, key, { input })
        return verdict
      },
    }),
  ),
  broken(
    'never gives a fresh life',
    'of concurrent claims of a tombstone with onExpired execute, one is granted',
    (store) => ({
      claim: (key, request) => store.claim(key, { ...request, onExpired: 'refuse' }),
    }),
  ),
  broken(
    'runs again whatever may run again when it is expired',
    'onExpired execute changes nothing for a key that is not expired',
    (store, data) => ({
      async claim(key, request) {
        if (request.onExpired === 'run' && (await stateOf(store, key)) === 'settled') remove(data, key)
        return store.claim(key, request)
      },
    }),
  ),
  broken(
    'lets a late write bring an expired key back',
    'writes with the token of an expired key are lost and do not bring it back',
    (store, data) => ({
      async extend(claim, leaseMs) {
        const expired = (await stateOf(store, claim.key)) === 'tombstone'
        if (expired && entryOf(data, claim.key)?.token === claim.token) {
          edit(data, claim.key, { leaseUntilMs: data.now() + leaseMs })
        }
        return store.extend(claim, leaseMs)
      },
    }),
  ),
]

function removeWhere(data: MemoryData, over: (entry: MemoryEntry) => boolean): number {
  const found = [...data.entries.values()].filter(over)
  for (const { key } of found) remove(data, key)
  return found.length
}

const sweeps: readonly BrokenStore[] = [
  broken(
    'sweeps what runs for too long',
    'a sweep never touches a running key, however long ago it was first claimed',
    (store, data) => ({
      async sweep(options) {
        removeWhere(data, (entry) => data.now() > entry.firstClaimedAtMs + entry.keepMs + entry.tombstoneMs)
        return store.sweep(options)
      },
    }),
  ),
  broken(
    'sweeps by the time of the first claim',
    'a sweep never touches a settled, open or abandoned key that is not expired',
    (store, data) => ({
      async sweep(options) {
        removeWhere(
          data,
          (entry) => entry.leaseUntilMs <= data.now() && data.now() > entry.firstClaimedAtMs + entry.keepMs,
        )
        return store.sweep(options)
      },
    }),
  ),
  broken(
    'sweeps tombstones away',
    'a swept tombstone has lost what it held and answers expired as before',
    (store, data) => ({
      async sweep(options) {
        const swept = await store.sweep(options)
        removeWhere(data, (entry) => data.now() >= entry.leaseUntilMs + entry.keepMs)
        return swept
      },
    }),
  ),
  broken(
    'never strips a tombstone',
    'a swept tombstone has lost what it held and answers expired as before',
    (_store, data) => ({
      async sweep() {
        const over = (entry: MemoryEntry): boolean =>
          data.now() >= entry.leaseUntilMs + entry.keepMs + entry.tombstoneMs
        return { tombstoned: 0, forgotten: removeWhere(data, over), more: false }
      },
    }),
  ),
  broken('never forgets', 'a sweep forgets tombstones that are over, swept before or not', () => ({
    sweep: async () => ({ tombstoned: 0, forgotten: 0, more: false }),
  })),
  broken('knows no limit', 'a step of a sweep is bounded by its limit and says whether there is more', (store) => ({
    sweep: () => store.sweep({ limit: 1e9 }),
  })),
  broken(
    'never says that there is more',
    'a step of a sweep is bounded by its limit and says whether there is more',
    (store) => ({ sweep: async (options) => ({ ...(await store.sweep(options)), more: false }) }),
  ),
  broken('always says that there is more', 'a sweep of an empty store does nothing', (store) => ({
    sweep: async (options) => ({ ...(await store.sweep(options)), more: true }),
  })),
  broken(
    'sweeps the life after an expiry with the one before',
    'a swept tombstone gives way to a fresh life with onExpired execute, and later sweeps leave that alone',
    (store, data) => {
      const expired = new Set<string>()
      return {
        async sweep(options) {
          for (const entry of data.entries.values()) {
            if ((await stateOf(store, entry.key)) === 'tombstone') expired.add(keyString(entry.key))
            else if (expired.has(keyString(entry.key))) remove(data, entry.key)
          }
          return store.sweep(options)
        },
      }
    },
  ),
  broken('sweeps twice what two sweep at once', 'two sweeps at once do the work once', (_store, data) => ({
    async sweep({ limit }) {
      const over = [...data.entries.values()].filter((entry) => data.now() >= entry.leaseUntilMs + entry.keepMs)
      const batch = over.slice(0, limit)
      await Promise.resolve()
      for (const { key } of batch) remove(data, key)
      const forgotten = batch.filter((entry) => data.now() >= entry.leaseUntilMs + entry.keepMs + entry.tombstoneMs)
      return { tombstoned: batch.length - forgotten.length, forgotten: forgotten.length, more: over.length > limit }
    },
  })),
  broken('looks, then forgets', 'a key that is claimed anew while a sweep is forgetting it is kept', (store, data) => ({
    async sweep(options) {
      const over: MemoryEntry[] = []
      for (const entry of data.entries.values()) if (!(await stateOf(store, entry.key))) over.push(entry)
      for (const { key } of over) remove(data, key)
      return store.sweep(options)
    },
  })),
]

const inspections: readonly BrokenStore[] = [
  broken(
    'calls what was abandoned running',
    'show tells every state, and nothing of a key that is absent',
    (store) => ({
      async show(key) {
        const entry = await store.show(key)
        return entry?.state === 'abandoned' ? { ...entry, state: 'running' } : entry
      },
    }),
  ),
  broken('loses the input in a takeover', 'the input is kept for later attempts that bring none', (store, data) => ({
    async claim(key, request) {
      const verdict = await store.claim(key, request)
      const { input: _input, ...rest } = entryOf(data, key)!
      if (verdict.is === 'granted' && !request.input) data.entries.set(keyString(key), rest)
      return verdict
    },
  })),
  broken(
    'takes an empty input for none',
    'an entry without input shows none, and an empty input is not no input',
    (store) => ({
      claim(key, { input, ...request }) {
        return store.claim(key, input?.length ? { ...request, input } : request)
      },
    }),
  ),
  broken(
    'begins its list anew with every page',
    'list pages through the entries of a scope in their order, without gap or repetition',
    (store) => ({
      async list({ after, ...filter }) {
        const all = await store.list(filter)
        return after && all.every((entry) => keyString(entry.key) <= keyString(after)) ? [] : all
      },
    }),
  ),
  broken('lists without looking at the state', 'list finds the entries of a state, each once', (store) => ({
    list: ({ state: _state, ...filter }) => store.list(filter),
  })),
  broken(
    'releases by hand and lets the holder go on',
    'releasing a running key by hand opens it and fences its holder',
    (store, data) => ({
      async mend(key, action, reason) {
        if (action === 'forget') return store.mend(key, action, reason)
        const before = await store.show(key)
        edit(data, key, { leaseUntilMs: data.now() })
        return before
      },
    }),
  ),
  broken(
    'opens whatever it is asked to release',
    'releasing by hand changes nothing where there is nothing to release',
    (store, data) => ({
      async mend(key, action, reason) {
        const before = await store.mend(key, action, reason)
        if (action === 'release') edit(data, key, { wrote: 'release' })
        return before
      },
    }),
  ),
  broken(
    'forgets by hand only what is settled',
    'forgetting by hand frees a key in any state, also for another fingerprint',
    (store) => ({
      mend: async (key, action, reason) =>
        action === 'forget' && (await stateOf(store, key)) !== 'settled'
          ? store.show(key)
          : store.mend(key, action, reason),
    }),
  ),
  broken(
    'leaves no trace of what was done by hand',
    'every manual change is on record with its reason, also after the entry is gone',
    (store, data) => ({
      async audit(key) {
        return entryOf(data, key) ? store.audit(key) : []
      },
    }),
  ),
]

type ByHand = (before: MemoryEntry | undefined, key: Key, action: Mending) => void

/** Changes the entry behind the store's back after it was mended. */
function afterMending(store: MemoryStore, data: MemoryData, change: ByHand): Partial<MemoryStore> {
  return {
    async mend(key, action, reason) {
      const entry = entryOf(data, key)
      const before = await store.mend(key, action, reason)
      change(entry, key, action)
      return before
    },
  }
}

const isResolve = (action: Mending): boolean => mendingName(action) === 'resolve'

const resolutions: readonly BrokenStore[] = [
  ...(['running', 'abandoned', 'open'] as const).map((state) =>
    broken(
      `resolves what is ${state} and takes the settle of the old holder for the same`,
      `resolving a key that is ${state} settles it with the outcome that was found out, and fences its holder off`,
      (store, data) =>
        afterMending(store, data, (before, key, action) => {
          if (before && isResolve(action)) edit(data, key, { fence: before.fence })
        }),
    ),
  ),
  broken(
    'keeps what was resolved for as long as the claim said',
    'the retention of a key that was resolved is the one given, and counts from then',
    (store, data) =>
      afterMending(store, data, (before, key, action) => {
        if (before && isResolve(action)) edit(data, key, { keepMs: before.keepMs })
      }),
  ),
  broken(
    'resolves what has its outcome already',
    'resolving changes nothing where the outcome is known, expired or was never asked for',
    (store, data) =>
      afterMending(store, data, (before, key, action) => {
        if (before && typeof action !== 'string' && 'resolve' in action) edit(data, key, { outcome: action.resolve })
      }),
  ),
  broken(
    'keeps for half as long as it was asked to',
    'keeping a settled, open or abandoned key prolongs it from now, and its tombstone follows then',
    (store, data) =>
      afterMending(store, data, (before, key, action) => {
        if (before && typeof action !== 'string' && 'keepMs' in action) edit(data, key, { keepMs: action.keepMs / 2 })
      }),
  ),
  broken(
    'shortens what is kept',
    'keeping never shortens, and leaves a running or expired key as it is',
    (store, data) =>
      afterMending(store, data, (before, key, action) => {
        if (before && typeof action !== 'string' && 'keepMs' in action) edit(data, key, { keepMs: action.keepMs })
      }),
  ),
  broken(
    'fences the holder off when it keeps',
    'the holder of an abandoned key that is kept for longer can still settle',
    (store, data) =>
      afterMending(store, data, (before, key, action) => {
        if (before && mendingName(action) === 'keep') edit(data, key, { fence: before.fence + 1 })
      }),
  ),
]

export const brokenRetention: readonly BrokenStore[] = [...expiry, ...sweeps, ...inspections, ...resolutions]

// Wrong stores and wrong uses of the core, each with the assertion that must find it: a simulation that finds nothing has to
// prove that it could.

import { OnceError } from '../../src/core/errors.ts'
import { deriveKey, keyString } from '../../src/core/key.ts'
import type { Op } from '../../src/core/once.ts'
import type { Key } from '../../src/core/key.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import type { Claim } from '../../src/core/store.ts'
import type { MemoryData, MemoryEntry } from '../../src/stores/memory.ts'
import type { Assertion } from '../../src/testing/history-checker.ts'
import type { WrongStore } from './world/server.ts'
import type { Service, Wrong } from './workload.ts'

export interface KnownWrong extends Wrong {
  readonly name: string
  readonly foundBy: Assertion
}

const wrongStore = (name: string, foundBy: Assertion, store: WrongStore): KnownWrong => ({ name, foundBy, store })
const wrongOnce = (name: string, foundBy: Assertion, once: (service: Service) => Partial<Service>): KnownWrong => ({
  name,
  foundBy,
  once: (service) => ({ ...service, ...once(service) }),
})

const rowOf = (data: MemoryData, key: Key): MemoryEntry | undefined => data.entries.get(keyString(key))
const asHolder = (data: MemoryData, claim: Claim): Claim => {
  const { token, fence } = rowOf(data, claim.key) ?? claim
  return { ...claim, token, fence }
}
/** Whichever life of the key the token is from. */
const byToken = (data: MemoryData, claim: Claim): Claim =>
  rowOf(data, claim.key)?.token === claim.token ? asHolder(data, claim) : claim

/** The same data seen by a claim that has already made up its mind: the row is not there. */
function blindTo(data: MemoryData): MemoryData {
  const entries = new Map<string, MemoryEntry>()
  entries.set = (name, entry) => {
    data.entries.set(name, entry)
    return entries
  }
  return { ...data, entries, fence: data.fence + 1_000 }
}

const stores: readonly KnownWrong[] = [
  wrongStore('reads, then writes', 'one-holder', (store, data, _life, world) => ({
    async claim(key, request) {
      const isThere = (await store.show(key)) !== undefined
      await new Promise<void>((resolve) => world.after(20, resolve))
      return (isThere ? store : memoryStore({ data: blindTo(data) })).claim(key, request)
    },
  })),
  wrongStore('settles without a fence', 'settled-is-final', (_store, data) => ({
    async settle(claim, outcome) {
      const row = rowOf(data, claim.key)
      if (row) data.entries.set(keyString(claim.key), { ...row, wrote: 'settle', outcome, leaseUntilMs: data.now() })
      return 'done'
    },
  })),
  wrongStore('fences by the state alone', 'holder-writes', (store, data) => ({
    settle: (claim, outcome, retention) => store.settle(asHolder(data, claim), outcome, retention),
  })),
  wrongStore('knows a settling holder by its token alone', 'holder-writes', (store, data) => ({
    settle: (claim, outcome, retention) => store.settle(byToken(data, claim), outcome, retention),
  })),
  wrongStore('knows an extending holder by its token alone', 'holder-writes', (store, data) => ({
    extend: (claim, leaseMs) => store.extend(byToken(data, claim), leaseMs),
  })),
  wrongStore('extends for anybody', 'holder-writes', (store, data) => ({
    extend: (claim, leaseMs) => store.extend(asHolder(data, claim), leaseMs),
  })),
  wrongStore('releases for anybody', 'holder-writes', (store, data) => ({
    release: (claim, how) => store.release(how === 'open' ? asHolder(data, claim) : claim, how),
  })),
  wrongStore('does not recognise a claim that comes again', 'linearizable', (store, data) => ({
    async claim(key, request) {
      const again = rowOf(data, key)?.token === request.token
      return again ? { is: 'busy', retryAfterMs: 100 } : store.claim(key, request)
    },
  })),
  wrongStore('grants a claim again after it was given back', 'linearizable', (store, data) => ({
    async claim(key, request) {
      const row = rowOf(data, key)
      const isBack = row?.token === request.token && row.wrote === 'release'
      return isBack ? store.claim(key, { ...request, token: `${request.token}'` }) : store.claim(key, request)
    },
  })),
  wrongStore("counts leases by the caller's clock", 'one-holder', (_store, data, life) =>
    memoryStore({ data: { ...data, now: () => data.now() + life.process.skewMs } }),
  ),
  wrongStore('has a heartbeat that does nothing', 'calm-is-free', () => ({ extend: async () => 'done' })),
  wrongStore('never lets a key be taken over', 'no-wedge', (store, data) => ({
    async claim(key, request) {
      const entry = await store.show(key)
      const isOther = rowOf(data, key)?.token !== request.token
      return entry?.state === 'abandoned' && isOther ? { is: 'busy', retryAfterMs: 1 } : store.claim(key, request)
    },
  })),
  wrongStore('keeps token and fence in a takeover', 'one-execution-a-claim', (store, data) => ({
    async claim(key, request) {
      const before = rowOf(data, key)
      const verdict = await store.claim(key, request)
      if (verdict.is !== 'granted' || verdict.how !== 'taken-over' || before === undefined) return verdict
      const { token, fence } = before
      data.entries.set(keyString(key), { ...rowOf(data, key)!, token, fence })
      return { ...verdict, claim: { ...verdict.claim, token, fence } }
    },
  })),
  wrongStore('does not compare fingerprints', 'own-answer', (store, data) => ({
    claim: (key, request) =>
      store.claim(key, { ...request, fingerprint: rowOf(data, key)?.fingerprint ?? request.fingerprint }),
  })),
  wrongStore('knows no tenants', 'own-answer', (store) => {
    const one = <C extends { readonly key: Key }>(claim: C): C => ({ ...claim, key: { ...claim.key, scope: 'all' } })
    return {
      claim: (key, request) => store.claim({ ...key, scope: 'all' }, request),
      extend: (claim, leaseMs) => store.extend(one(claim), leaseMs),
      settle: (claim, outcome, retention) => store.settle(one(claim), outcome, retention),
      release: (claim, how) => store.release(one(claim), how),
    }
  }),
  wrongStore('sweeps what is running', 'live-kept', (_store, data) => ({
    async sweep() {
      for (const name of data.entries.keys()) data.entries.delete(name)
      return { tombstoned: 0, forgotten: 0, more: false }
    },
  })),
  wrongStore('never sweeps', 'storage-bounded', () => ({
    sweep: async () => ({ tombstoned: 0, forgotten: 0, more: false }),
  })),
  wrongStore('forgets attempts that began', 'live-kept', (store, data) => ({
    async release(claim, how) {
      const isLater = rowOf(data, claim.key)?.token === claim.token && rowOf(data, claim.key)!.attempt > 1
      if (how === 'open' || !isLater) return store.release(claim, how)
      data.entries.delete(keyString(claim.key))
      return 'done'
    },
  })),
  wrongStore('gives the same fence again', 'fence-grows', (store, data) => ({
    async claim(key, request) {
      const before = rowOf(data, key)?.fence
      const verdict = await store.claim(key, request)
      if (verdict.is !== 'granted' || before === undefined) return verdict
      data.entries.set(keyString(key), { ...rowOf(data, key)!, fence: before })
      return { ...verdict, claim: { ...verdict.claim, fence: before } }
    },
  })),
  wrongStore('runs an expired key again', 'linearizable', (store) => ({
    claim: (key, request) => store.claim(key, { ...request, onExpired: 'run' }),
  })),
]

const uses: readonly KnownWrong[] = [
  wrongOnce('runs the effect when the store is down', 'claim-before-effect', (service) => ({
    run: (id, effect, options) =>
      service.run(id, effect, options).catch(async (error: unknown) => {
        if (!(error instanceof OnceError) || error.code !== 'STORE_UNAVAILABLE') throw error
        const { signal } = new AbortController()
        const key = id as Key
        const op = { key, attempt: 1, token: 'none', fence: 0, signal, keyFor: (name: string) => deriveKey(key, name) }
        return { value: (await effect(op)) as never, replayed: false, attempt: 1 }
      }),
  })),
  wrongOnce('answers with its own value after it lost the key', 'same-answer', (service) => ({
    async run(id, effect, options) {
      let value: unknown
      const kept = async (op: Parameters<typeof effect>[0]) => (value = await effect(op)) as Awaited<typeof value>
      try {
        return (await service.run(id, kept as typeof effect, options)) as never
      } catch (error) {
        const isLost = error instanceof OnceError && error.code === 'CLAIM_LOST' && value !== undefined
        if (isLost) return { value, replayed: false, attempt: 1 } as never
        throw error
      }
    },
  })),
  wrongOnce('hands out a random key for each attempt', 'same-derived-key', (service) => ({
    run: (id, effect, options) =>
      service.run(
        id,
        ((op: Op) => effect(Object.create(op, { keyFor: { value: () => op.token } }) as Op)) as typeof effect,
        options,
      ),
  })),
  wrongOnce('says "not executed" of what it does not know', 'not-executed-left-nothing', (service) => ({
    run: (id, effect, options) =>
      service.run(id, effect, options).catch((error: unknown) => {
        if (!(error instanceof OnceError)) throw error
        throw new OnceError(error.code, { message: error.message, executed: 'no' })
      }),
  })),
  wrongOnce('never answers a duplicate', 'everybody-answered', (service) => ({
    run: (id, effect, options) =>
      service.run(id, effect, options).catch((error: unknown) => {
        if (error instanceof OnceError && error.code === 'IN_FLIGHT') return new Promise<never>(() => {})
        throw error
      }),
  })),
]

export const knownWrongs: readonly KnownWrong[] = [...stores, ...uses]

/** On the simulated Redis. */
export const knownWrongRedis: readonly KnownWrong[] = [
  { name: 'takes a Redis that lost its data for a new one', foundBy: 'quarantine-holds', redis: 'no-register' },
  { name: 'writes whatever the token', foundBy: 'holder-writes', redis: 'no-token' },
  { name: 'looks at no lease', foundBy: 'one-holder', redis: 'no-lease' },
  { name: 'settles what is settled', foundBy: 'settled-is-final', redis: 'settles-again' },
]

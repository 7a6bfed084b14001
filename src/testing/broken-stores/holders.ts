// Broken stores, part 1: the wrong caller gets or keeps a key.

import type { Fenced } from '../../core/store.ts'
import { memoryStore } from '../../stores/memory.ts'
import { asHolder, broken, byToken, edit, entryOf, remove, stateOf } from './broken-store.ts'
import type { BrokenStore } from './broken-store.ts'

const batches: readonly BrokenStore[] = [
  broken(
    'carries out one write per tick, and confirms the others with its answer',
    'calls on one key in one tick are answered as some order of them would be',
    (store) => {
      let first: Promise<Fenced> | undefined
      const asFirst = (write: () => Promise<Fenced>): Promise<Fenced> => {
        const answer = (first ??= write())
        return answer.finally(() => (first = undefined))
      }
      return {
        extend: (claim, leaseMs) => asFirst(() => store.extend(claim, leaseMs)),
        settle: (claim, outcome, retention) => asFirst(() => store.settle(claim, outcome, retention)),
        release: (claim, how) => asFirst(() => store.release(claim, how)),
      }
    },
  ),
]

const claims: readonly BrokenStore[] = [
  broken(
    'gives out tokens of its own',
    'a first claim is granted, fresh, as attempt 1 with its own token',
    (store, data) => ({
      async claim(key, request) {
        const verdict = await store.claim(key, request)
        if (verdict.is !== 'granted') return verdict
        const token = `${verdict.claim.fence}`
        edit(data, key, { token })
        return { ...verdict, claim: { ...verdict.claim, token } }
      },
    }),
  ),
  broken(
    'reads, then writes',
    'of 1,000 concurrent claims of one key, one is granted and the others are busy',
    (store, data) => ({
      async claim(key, request) {
        if (!(await store.show(key))) remove(data, key)
        return store.claim(key, request)
      },
    }),
  ),
  broken(
    'is atomic only within one process',
    'of 1,000 concurrent claims of one key through two instances, one is granted and the others are busy',
    (_store, data) => memoryStore({ data: { ...data, entries: new Map() } }),
  ),
  broken(
    'drops half of what comes at once',
    '1,000 concurrent claims of different keys are all granted, each with its own token',
    (store) => {
      let underWay = 0
      return {
        async claim(key, request) {
          if (underWay > 500) return { is: 'busy', retryAfterMs: 1 }
          underWay++
          await Promise.resolve()
          underWay--
          return store.claim(key, request)
        },
      }
    },
  ),
  broken('reads, then takes over', 'of concurrent claims of an abandoned key, one takes it over', (store, data) => ({
    async claim(key, request) {
      if ((await stateOf(store, key)) === 'abandoned') edit(data, key, { leaseUntilMs: data.now(), attempt: 1 })
      return store.claim(key, request)
    },
  })),
  broken('reads, then reopens', 'of concurrent claims of an open key, one reopens it', (store, data) => ({
    async claim(key, request) {
      if ((await stateOf(store, key)) === 'open') edit(data, key, { wrote: 'release', attempt: 1 })
      return store.claim(key, request)
    },
  })),
  broken(
    'reads, then gives a fresh life',
    'of concurrent claims of a tombstone with onExpired execute, one is granted',
    (store, data) => ({
      async claim(key, request) {
        if ((await stateOf(store, key)) === 'tombstone' && request.onExpired === 'run') remove(data, key)
        return store.claim(key, request)
      },
    }),
  ),
  broken('does not know when a key will be free', 'a running key is busy, and says for how long', (store) => ({
    async claim(key, request) {
      const verdict = await store.claim(key, request)
      return verdict.is === 'busy' ? { is: 'busy', retryAfterMs: Number.NaN } : verdict
    },
  })),
]

const leases: readonly BrokenStore[] = [
  broken('takes over before the lease ends', 'a key is not taken over while its lease lasts', (store) => ({
    claim: (key, request) => store.claim(key, { ...request, leaseMs: request.leaseMs / 2 }),
  })),
  broken(
    'ends a lease one millisecond early',
    'a key is busy 1 ms before its lease ends, and taken over when it ends',
    (store) => ({ claim: (key, request) => store.claim(key, { ...request, leaseMs: request.leaseMs - 1 }) }),
  ),
  broken(
    'ends a lease one millisecond late',
    'a key is busy 1 ms before its lease ends, and taken over when it ends',
    (store) => ({ claim: (key, request) => store.claim(key, { ...request, leaseMs: request.leaseMs + 1 }) }),
  ),
  broken(
    'never lets a key be taken over',
    'a key whose lease is over is taken over: next attempt, new token, greater fence',
    (store) => ({
      async claim(key, request) {
        const abandoned = (await stateOf(store, key)) === 'abandoned'
        return abandoned ? { is: 'busy', retryAfterMs: 1 } : store.claim(key, request)
      },
    }),
  ),
  broken(
    'counts attempts from 1 after a takeover',
    'every takeover is one more attempt with a greater fence',
    (store, data) => ({
      async claim(key, request) {
        const verdict = await store.claim(key, request)
        if (verdict.is !== 'granted' || verdict.how !== 'taken-over') return verdict
        edit(data, key, { attempt: 1 })
        return { ...verdict, claim: { ...verdict.claim, attempt: 1 } }
      },
    }),
  ),
  broken('has a heartbeat that does nothing', 'an extended lease keeps others away, and then ends', () => ({
    extend: async () => 'done',
  })),
  broken(
    'lets only a living lease be extended',
    'a holder whose lease is over can still extend it while nobody has followed',
    (store) => ({
      extend: async (claim, leaseMs) =>
        (await stateOf(store, claim.key)) === 'running' ? store.extend(claim, leaseMs) : 'lost',
    }),
  ),
  broken(
    'lets only a living lease settle',
    'a holder whose lease is over can still settle while nobody has followed',
    (store) => ({
      settle: async (claim, outcome, retention) =>
        (await stateOf(store, claim.key)) === 'abandoned' ? 'lost' : store.settle(claim, outcome, retention),
    }),
  ),
  broken(
    'reruns what it was told not to',
    'with onTakeover refuse an abandoned key is in doubt, every time, until somebody chooses to rerun it',
    (store) => ({ claim: (key, request) => store.claim(key, { ...request, onTakeover: 'run' }) }),
  ),
  broken(
    'refuses once, then reruns',
    'with onTakeover refuse an abandoned key is in doubt, every time, until somebody chooses to rerun it',
    (store, data) => ({
      async claim(key, request) {
        const verdict = await store.claim(key, request)
        if (verdict.is === 'doubt') edit(data, key, { wrote: 'release' })
        return verdict
      },
    }),
  ),
  broken(
    "counts leases by the caller's clock",
    'a process whose clock is an hour ahead neither takes a key over early nor finds it free too late',
    (_store, data, clockSkewMs) => memoryStore({ data: { ...data, now: () => data.now() + clockSkewMs } }),
  ),
]

const fences: readonly BrokenStore[] = [
  broken(
    'settles without a fence',
    "after the next attempt has settled, the old holder's settle is lost and changes nothing",
    (_store, data) => ({
      async settle(claim, outcome) {
        edit(data, claim.key, { wrote: 'settle', outcome: outcome.slice(), leaseUntilMs: data.now() })
        return 'done'
      },
    }),
  ),
  broken(
    'fences by the state alone',
    "after a takeover the old holder's settle is lost and changes nothing",
    (store, data) => ({
      settle: async (claim, outcome, retention) =>
        store.settle(
          (await stateOf(store, claim.key)) === 'running' ? asHolder(data, claim) : claim,
          outcome,
          retention,
        ),
    }),
  ),
  broken(
    'keeps the token and the fence in a takeover',
    "after a takeover the old holder's settle is lost and changes nothing",
    (store, data) => ({
      async claim(key, request) {
        const before = entryOf(data, key)
        const verdict = await store.claim(key, request)
        if (verdict.is !== 'granted' || verdict.how !== 'taken-over') return verdict
        const { token, fence } = before!
        edit(data, key, { token, fence })
        return { ...verdict, claim: { ...verdict.claim, token, fence } }
      },
    }),
  ),
  broken(
    'extends for anybody',
    "after a takeover the old holder's extend is lost and changes nothing",
    (store, data) => ({ extend: (claim, leaseMs) => store.extend(asHolder(data, claim), leaseMs) }),
  ),
  broken(
    'answers lost to an extend, and extends',
    "after a takeover the old holder's extend does not touch the new lease",
    (store, data) => ({
      async extend(claim, leaseMs) {
        await store.extend(asHolder(data, claim), leaseMs)
        return entryOf(data, claim.key)?.token === claim.token ? 'done' : 'lost'
      },
    }),
  ),
  broken(
    'opens for anybody',
    "after a takeover the old holder's release open is lost and changes nothing",
    (store, data) => ({
      release: (claim, how) => store.release(how === 'open' ? asHolder(data, claim) : claim, how),
    }),
  ),
  broken(
    'forgets for anybody',
    "after a takeover the old holder's release forget is lost and changes nothing",
    (store, data) => ({
      release: (claim, how) => store.release(how === 'forget' ? asHolder(data, claim) : claim, how),
    }),
  ),
  broken(
    'takes the attempt number for a token',
    'attempt 1 of a forgotten life cannot write as attempt 1 of the next',
    (store, data) => ({
      settle: (claim, outcome, retention) =>
        store.settle(
          entryOf(data, claim.key)?.attempt === claim.attempt ? asHolder(data, claim) : claim,
          outcome,
          retention,
        ),
    }),
  ),
  broken(
    'wants the attempt number as well as the token',
    'token and fence decide together: the attempt of a claim is not looked at',
    (store, data) => ({
      extend: async (claim, leaseMs) =>
        entryOf(data, claim.key)?.attempt === claim.attempt ? store.extend(claim, leaseMs) : 'lost',
    }),
  ),
  broken(
    'knows a settling holder by its token alone',
    'a claim that comes again after its entry was given back does not revive the old holder',
    (store, data) => ({ settle: (claim, ...rest) => store.settle(byToken(data, claim), ...rest) }),
  ),
  broken(
    'knows an extending holder by its token alone',
    'a claim that comes again after its entry is over does not revive the old holder',
    (store, data) => ({ extend: (claim, leaseMs) => store.extend(byToken(data, claim), leaseMs) }),
  ),
  broken(
    'knows a releasing holder by its token alone',
    'token and fence decide together: the attempt of a claim is not looked at',
    (store, data) => ({ release: (claim, how) => store.release(byToken(data, claim), how) }),
  ),
  broken(
    'gives nothing back to whoever never heard of its fence',
    'a caller that never heard of its fence gives back, with 0, what its token holds, and nothing else',
    (store) => ({ release: async (claim, how) => (claim.fence === 0 ? 'lost' : store.release(claim, how)) }),
  ),
  broken(
    'lets whoever never heard of a fence settle',
    'a caller that never heard of its fence gives back, with 0, what its token holds, and nothing else',
    (store, data) => ({
      settle: (claim, ...rest) => store.settle(claim.fence === 0 ? byToken(data, claim) : claim, ...rest),
    }),
  ),
  broken(
    'writes what nobody claimed',
    'a write for a key that nobody claimed is lost and leaves nothing',
    (store, data) => ({
      async settle(claim, outcome, retention) {
        if (!entryOf(data, claim.key)) return 'done'
        return store.settle(claim, outcome, retention)
      },
    }),
  ),
  broken(
    'takes the attempt number for a fence',
    'attempt 1 of a forgotten life cannot write as attempt 1 of the next',
    (store) => ({
      async claim(key, request) {
        const verdict = await store.claim(key, request)
        if (verdict.is !== 'granted') return verdict
        return { ...verdict, claim: { ...verdict.claim, fence: verdict.claim.attempt } }
      },
    }),
  ),
  broken(
    'keeps the fence in a takeover',
    'a key whose lease is over is taken over: next attempt, new token, greater fence',
    (store, data) => ({
      async claim(key, request) {
        const fence = entryOf(data, key)?.fence
        const verdict = await store.claim(key, request)
        if (verdict.is !== 'granted' || verdict.how !== 'taken-over') return verdict
        return { ...verdict, claim: { ...verdict.claim, fence: fence! } }
      },
    }),
  ),
]

export const brokenHolders: readonly BrokenStore[] = [...claims, ...batches, ...leases, ...fences]

// The contract, part 1: who gets a key. Atomic claims and takeover.

import assert from 'node:assert/strict'
import type { Claim, Store, Verdict } from '../../core/store.ts'
import { key } from '../../core/key.ts'
import {
  aKey,
  ask,
  assertBusy,
  assertGranted,
  assertIs,
  assertSettled,
  bytesOf,
  countGranted,
  describe,
  finish,
  grantedOf,
  hourMs,
  leaseMs,
  otherFingerprint,
  request,
  take,
  times,
} from './case.ts'
import type { ContractCase } from './case.ts'

// One claim is granted. The others are `busy`.
function assertOneGranted(verdicts: readonly Verdict[]): Claim {
  assert.equal(countGranted(verdicts), 1, `expected 1 of ${verdicts.length} claims to be granted`)
  for (const verdict of verdicts) if (verdict.is !== 'granted') assertBusy(verdict, leaseMs)
  return grantedOf(verdicts.find((verdict) => verdict.is === 'granted')!)
}

function claimFromAll(stores: readonly Store[], count: number): Promise<Verdict[]> {
  return Promise.all(times(count).map((index) => ask(stores[index % stores.length]!, aKey)))
}

const atomicClaims: readonly ContractCase[] = [
  {
    name: 'a first claim is granted, fresh, as attempt 1 with its own token',
    guarantee: 'atomic-claims',
    async run({ store }) {
      const asked = request()
      const claim = assertGranted(await store.claim(aKey, asked), 'fresh', 1)
      assert.equal(claim.token, asked.token)
      assert.deepEqual({ ...claim.key }, { ...aKey })
      assert.ok(Number.isSafeInteger(claim.fence), `expected the fence to be an exact integer, got ${claim.fence}`)
    },
  },
  {
    name: 'of 1,000 concurrent claims of one key, one is granted and the others are busy',
    guarantee: 'atomic-claims',
    async run({ store }) {
      const claim = assertOneGranted(await claimFromAll([store], 1_000))
      assert.equal(await store.settle(claim, bytesOf('won'), { keepMs: hourMs, tombstoneMs: hourMs }), 'done')
      assertSettled(await ask(store, aKey), bytesOf('won'))
    },
  },
  {
    name: 'of 1,000 concurrent claims of one key through two instances, one is granted and the others are busy',
    guarantee: 'atomic-claims',
    async run(subject) {
      const { store } = subject
      const second = await subject.another()
      const claim = assertOneGranted(await claimFromAll([store, second], 1_000))
      assert.equal(await second.settle(claim, bytesOf('won'), { keepMs: hourMs, tombstoneMs: hourMs }), 'done')
      assertSettled(await ask(store, aKey), bytesOf('won'))
    },
  },
  {
    name: '1,000 concurrent claims of different keys are all granted, each with its own token',
    guarantee: 'atomic-claims',
    async run({ store }) {
      const requests = times(1_000).map(() => request())
      const verdicts = await Promise.all(
        requests.map((each, index) => store.claim(key('contract', `key ${index}`), each)),
      )
      verdicts.forEach((verdict, index) => {
        const claim = assertGranted(verdict, 'fresh', 1)
        assert.equal(claim.token, requests[index]!.token)
        assert.equal(claim.key.id, `key ${index}`)
      })
    },
  },
  {
    name: 'of concurrent claims with two fingerprints, one is granted and nobody else runs',
    guarantee: 'atomic-claims',
    async run({ store }) {
      const changes = [{}, { fingerprint: otherFingerprint }] as const
      const verdicts = await Promise.all(times(100).map((index) => ask(store, aKey, changes[index % 2])))
      assert.equal(countGranted(verdicts), 1)
      for (const verdict of verdicts) {
        assert.ok(['granted', 'busy', 'mismatch'].includes(verdict.is), `unexpected ${describe(verdict)}`)
      }
    },
  },
  {
    name: 'of concurrent claims of an abandoned key, one takes it over',
    guarantee: 'atomic-claims',
    async run(subject) {
      const { store } = subject
      await take(store, aKey)
      await subject.advance(2 * leaseMs)
      const claim = assertOneGranted(await claimFromAll([store, await subject.another()], 100))
      assert.equal(claim.attempt, 2)
    },
  },
  {
    name: 'of concurrent claims of an open key, one reopens it',
    guarantee: 'atomic-claims',
    async run(subject) {
      const { store } = subject
      assert.equal(await store.release(await take(store, aKey), 'open'), 'done')
      const claim = assertOneGranted(await claimFromAll([store, await subject.another()], 100))
      assert.equal(claim.attempt, 2)
    },
  },
  {
    name: 'of concurrent claims of a tombstone with onExpired execute, one is granted',
    guarantee: 'atomic-claims',
    async run(subject) {
      const { store } = subject
      await finish(store, aKey, bytesOf('old'), { retention: { keepMs: hourMs, tombstoneMs: 100 * hourMs } })
      await subject.advance(2 * hourMs)
      const verdicts = await Promise.all(times(100).map(() => ask(store, aKey, { onExpired: 'run' })))
      assert.equal(assertOneGranted(verdicts).attempt, 1)
    },
  },
  {
    name: 'what one instance claims and settles, another sees',
    guarantee: 'atomic-claims',
    async run(subject) {
      const { store } = subject
      const second = await subject.another()
      const claim = await take(store, aKey)
      assertBusy(await ask(second, aKey), leaseMs)
      assert.equal(await store.settle(claim, bytesOf('seen'), { keepMs: hourMs, tombstoneMs: hourMs }), 'done')
      assertSettled(await ask(second, aKey), bytesOf('seen'))
    },
  },
]

const takeover: readonly ContractCase[] = [
  {
    name: 'a running key is busy, and says for how long',
    guarantee: 'takeover',
    async run(subject) {
      const { store } = subject
      await take(store, aKey)
      const first = await ask(store, aKey)
      assertBusy(first, leaseMs)
      assert.ok(first.is === 'busy' && first.retryAfterMs > leaseMs / 2, 'expected about the whole lease')
      await subject.advance(leaseMs / 2)
      const second = await ask(store, aKey)
      assertBusy(second, leaseMs / 2)
      assert.ok(second.is === 'busy' && second.retryAfterMs > leaseMs / 4, 'expected about half of the lease')
    },
  },
  {
    name: 'a key is not taken over while its lease lasts',
    guarantee: 'takeover',
    async run(subject) {
      const { store } = subject
      const claim = await take(store, aKey)
      await subject.advance(0.9 * leaseMs)
      assertBusy(await ask(store, aKey), leaseMs)
      assertBusy(await ask(await subject.another(), aKey, { leaseMs: 1 }), leaseMs)
      assert.equal(await store.settle(claim, bytesOf('mine'), { keepMs: hourMs, tombstoneMs: hourMs }), 'done')
    },
  },
  {
    name: 'a key whose lease is over is taken over: next attempt, new token, greater fence',
    guarantee: 'takeover',
    async run(subject) {
      const { store } = subject
      const first = await take(store, aKey)
      await subject.advance(2 * leaseMs)
      const asked = request()
      const second = assertGranted(await store.claim(aKey, asked), 'taken-over', 2)
      assert.equal(second.token, asked.token)
      assert.ok(second.fence > first.fence, `expected a fence above ${first.fence}, got ${second.fence}`)
      assertBusy(await ask(store, aKey), leaseMs)
    },
  },
  {
    name: 'every takeover is one more attempt with a greater fence',
    guarantee: 'takeover',
    async run(subject) {
      const { store } = subject
      let before = await take(store, aKey)
      for (const attempt of [2, 3, 4, 5]) {
        await subject.advance(2 * leaseMs)
        const claim = assertGranted(await ask(store, aKey), 'taken-over', attempt)
        assert.ok(claim.fence > before.fence, `expected a fence above ${before.fence}, got ${claim.fence}`)
        before = claim
      }
    },
  },
  {
    name: 'an extended lease keeps others away, and then ends',
    guarantee: 'takeover',
    async run(subject) {
      const { store } = subject
      const claim = await take(store, aKey)
      for (let round = 0; round < 3; round++) {
        await subject.advance(0.75 * leaseMs)
        assert.equal(await store.extend(claim, leaseMs), 'done')
      }
      await subject.advance(0.75 * leaseMs)
      assertBusy(await ask(store, aKey), leaseMs)
      await subject.advance(0.75 * leaseMs)
      assertGranted(await ask(store, aKey), 'taken-over', 2)
    },
  },
  {
    name: 'a holder whose lease is over can still extend it while nobody has followed',
    guarantee: 'takeover',
    async run(subject) {
      const { store } = subject
      const claim = await take(store, aKey)
      await subject.advance(3 * leaseMs)
      assert.equal(await store.extend(claim, leaseMs), 'done')
      assertBusy(await ask(store, aKey), leaseMs)
    },
  },
  {
    name: 'a holder whose lease is over can still settle while nobody has followed',
    guarantee: 'takeover',
    async run(subject) {
      const { store } = subject
      const claim = await take(store, aKey)
      await subject.advance(3 * leaseMs)
      assert.equal(await store.settle(claim, bytesOf('late'), { keepMs: hourMs, tombstoneMs: hourMs }), 'done')
      assertSettled(await ask(store, aKey), bytesOf('late'))
    },
  },
  {
    name: 'a holder whose lease is over can still release while nobody has followed',
    guarantee: 'takeover',
    async run(subject) {
      const { store } = subject
      const claim = await take(store, aKey)
      await subject.advance(3 * leaseMs)
      assert.equal(await store.release(claim, 'open'), 'done')
      assertGranted(await ask(store, aKey, { onTakeover: 'refuse' }), 'reopened', 2)
    },
  },
  {
    name: 'with onTakeover refuse an abandoned key is in doubt, every time, until somebody chooses to rerun it',
    guarantee: 'takeover',
    async run(subject) {
      const { store } = subject
      await take(store, aKey)
      await subject.advance(2 * leaseMs)
      for (let round = 0; round < 3; round++) {
        assert.deepEqual(await ask(store, aKey, { onTakeover: 'refuse' }), { is: 'doubt', attempt: 1 })
      }
      assertGranted(await ask(store, aKey, { onTakeover: 'run' }), 'taken-over', 2)
      await subject.advance(2 * leaseMs)
      assert.deepEqual(await ask(store, aKey, { onTakeover: 'refuse' }), { is: 'doubt', attempt: 2 })
    },
  },
  {
    name: 'with onTakeover refuse a key in doubt can still be settled by its holder',
    guarantee: 'takeover',
    async run(subject) {
      const { store } = subject
      const claim = await take(store, aKey)
      await subject.advance(2 * leaseMs)
      assertIs(await ask(store, aKey, { onTakeover: 'refuse' }), 'doubt')
      assert.equal(await store.settle(claim, bytesOf('done'), { keepMs: hourMs, tombstoneMs: hourMs }), 'done')
      assertSettled(await ask(store, aKey, { onTakeover: 'refuse' }), bytesOf('done'))
    },
  },
  {
    name: 'with onTakeover refuse a running key is busy, not in doubt',
    guarantee: 'takeover',
    async run({ store }) {
      await take(store, aKey)
      assertBusy(await ask(store, aKey, { onTakeover: 'refuse' }), leaseMs)
    },
  },
]

export const claimCases: readonly ContractCase[] = [...atomicClaims, ...takeover]

// The contract, part 5: how long an entry is remembered. First with hours of room, then at the exact millisecond.

import assert from 'node:assert/strict'
import type { Claim, Store } from '../../core/store.ts'
import {
  aKey,
  ask,
  assertBusy,
  assertGranted,
  assertIs,
  assertSettled,
  bytesOf,
  finish,
  grantedOf,
  hourMs,
  leaseMs,
  otherFingerprint,
  request,
  take,
} from './case.ts'
import type { ContractCase } from './case.ts'

const short = { keepMs: 10 * hourMs, tombstoneMs: 10 * hourMs }

const expiry: readonly ContractCase[] = [
  {
    name: 'a settled key is replayed until its time is over, then it is expired, then absent',
    guarantee: 'expiry',
    async run(subject) {
      const { store } = subject
      await finish(store, aKey, bytesOf('once'), { retention: short })
      await subject.advance(9 * hourMs)
      assertSettled(await ask(store, aKey), bytesOf('once'))
      await subject.advance(2 * hourMs)
      assert.deepEqual(await ask(store, aKey), { is: 'expired' })
      await subject.advance(8 * hourMs)
      assert.deepEqual(await ask(store, aKey), { is: 'expired' })
      await subject.advance(2 * hourMs)
      assertGranted(await ask(store, aKey), 'fresh', 1)
    },
  },
  {
    name: 'a tombstone answers expired, again and again, to the same and to another fingerprint',
    guarantee: 'expiry',
    async run(subject) {
      const { store } = subject
      await finish(store, aKey, bytesOf('once'), { retention: short })
      await subject.advance(11 * hourMs)
      for (let round = 0; round < 2; round++) {
        assert.deepEqual(await ask(store, aKey), { is: 'expired' })
        assert.deepEqual(await ask(store, aKey, { fingerprint: otherFingerprint }), { is: 'expired' })
        assert.deepEqual(await ask(store, aKey, { onTakeover: 'refuse' }), { is: 'expired' })
      }
    },
  },
  {
    name: 'once forgotten, a key is free for another fingerprint',
    guarantee: 'expiry',
    async run(subject) {
      const { store } = subject
      const old = await finish(store, aKey, bytesOf('once'), { retention: short })
      await subject.advance(21 * hourMs)
      const claim = assertGranted(await ask(store, aKey, { fingerprint: otherFingerprint }), 'fresh', 1)
      assert.ok(claim.fence > old.fence, `expected a fence above ${old.fence}, got ${claim.fence}`)
    },
  },
  {
    name: 'the retention of a settled key counts from its settle, not from its claim',
    guarantee: 'expiry',
    async run(subject) {
      const { store } = subject
      const claim = await take(store, aKey, { leaseMs: 30 * hourMs, retention: short })
      await subject.advance(15 * hourMs)
      assert.equal(await store.settle(claim, bytesOf('slow'), short), 'done')
      await subject.advance(8 * hourMs)
      assertSettled(await ask(store, aKey), bytesOf('slow'))
      // Nor from the end of the lease that it would have had.
      await subject.advance(4 * hourMs)
      assertIs(await ask(store, aKey), 'expired')
    },
  },
  {
    name: 'the retention given with the settle counts, not that of the claim',
    guarantee: 'expiry',
    async run(subject) {
      const { store } = subject
      const claim = await take(store, aKey, { retention: short })
      const long = { keepMs: 100 * hourMs, tombstoneMs: 100 * hourMs }
      assert.equal(await store.settle(claim, bytesOf('once'), long), 'done')
      await subject.advance(90 * hourMs)
      assertSettled(await ask(store, aKey), bytesOf('once'))
      await subject.advance(20 * hourMs)
      assertIs(await ask(store, aKey), 'expired')
      await subject.advance(70 * hourMs)
      assertIs(await ask(store, aKey), 'expired')
    },
  },
  {
    name: 'the retention of an open key counts from its release',
    guarantee: 'expiry',
    async run(subject) {
      const { store } = subject
      const changes = { leaseMs: 30 * hourMs, retention: short }
      const claim = await take(store, aKey, changes)
      await subject.advance(15 * hourMs)
      assert.equal(await store.release(claim, 'open'), 'done')
      await subject.advance(8 * hourMs)
      const second = assertGranted(await ask(store, aKey, changes), 'reopened', 2)
      assert.equal(await store.release(second, 'open'), 'done')
      await subject.advance(11 * hourMs)
      assertIs(await ask(store, aKey), 'expired')
    },
  },
  {
    name: 'the retention of an abandoned key counts from the end of its lease',
    guarantee: 'expiry',
    async run(subject) {
      const { store } = subject
      await take(store, aKey, { leaseMs: 20 * hourMs, retention: short })
      await subject.advance(28 * hourMs)
      assertIs(await ask(store, aKey, { onTakeover: 'refuse' }), 'doubt')
      await subject.advance(3 * hourMs)
      assertIs(await ask(store, aKey), 'expired')
      await subject.advance(10 * hourMs)
      assertGranted(await ask(store, aKey), 'fresh', 1)
    },
  },
  {
    name: 'a running key never expires, however long ago it was first claimed',
    guarantee: 'expiry',
    async run(subject) {
      const { store } = subject
      const claim = await take(store, aKey, { leaseMs: 15 * hourMs, retention: short })
      for (let round = 0; round < 4; round++) {
        await subject.advance(14 * hourMs)
        assertBusy(await ask(store, aKey), 15 * hourMs)
        assert.equal(await store.extend(claim, 15 * hourMs), 'done')
      }
      assert.equal(await store.settle(claim, bytesOf('old'), short), 'done')
      assertSettled(await ask(store, aKey), bytesOf('old'))
    },
  },
  {
    name: 'with onExpired execute a tombstone gives way to a fresh life: attempt 1, nothing of the old one, a greater fence',
    guarantee: 'expiry',
    async run(subject) {
      const { store } = subject
      await take(store, aKey, { retention: short, input: bytesOf('old input') })
      await subject.advance(2 * leaseMs)
      const old = await finish(store, aKey, bytesOf('old'), { retention: short })
      await subject.advance(11 * hourMs)
      const changes = { onExpired: 'run', fingerprint: otherFingerprint, version: 2 } as const
      const claim = assertGranted(await ask(store, aKey, changes), 'fresh', 1)
      assert.ok(claim.fence > old.fence, `expected a fence above ${old.fence}, got ${claim.fence}`)
      assert.equal((await store.show?.(aKey))?.input, undefined)
      assertIs(await ask(store, aKey), 'mismatch')
      assertBusy(await ask(store, aKey, changes), leaseMs)
      assert.equal(await store.settle(old, bytesOf('zombie'), short), 'lost')
      assert.equal(await store.settle(claim, bytesOf('new'), short), 'done')
      assertSettled(await ask(store, aKey, changes), bytesOf('new'))
    },
  },
  {
    name: 'onExpired execute changes nothing for a key that is not expired',
    guarantee: 'expiry',
    async run(subject) {
      const { store } = subject
      const claim = await take(store, aKey)
      assertBusy(await ask(store, aKey, { onExpired: 'run' }), leaseMs)
      await subject.advance(2 * leaseMs)
      assertIs(await ask(store, aKey, { onExpired: 'run', onTakeover: 'refuse' }), 'doubt')
      assert.equal(await store.settle(claim, bytesOf('once'), short), 'done')
      assertSettled(await ask(store, aKey, { onExpired: 'run' }), bytesOf('once'))
    },
  },
  {
    name: 'writes with the token of an expired key are lost and do not bring it back',
    guarantee: 'expiry',
    async run(subject) {
      const { store } = subject
      const claim = await take(store, aKey, { retention: short })
      await subject.advance(leaseMs + 11 * hourMs)
      await assertWritesLost(store, claim)
      assert.equal(await store.release(claim, 'forget'), 'lost')
      assertIs(await ask(store, aKey), 'expired')
      await subject.advance(10 * hourMs)
      await assertWritesLost(store, claim)
      assertGranted(await ask(store, aKey), 'fresh', 1)
    },
  },
  {
    name: 'a key kept for 400 days is replayed on day 399 and expired on day 401',
    guarantee: 'expiry',
    async run(subject) {
      const { store } = subject
      const dayMs = 24 * hourMs
      await finish(store, aKey, bytesOf('old'), { retention: { keepMs: 400 * dayMs, tombstoneMs: 400 * dayMs } })
      await subject.advance(399 * dayMs)
      assertSettled(await ask(store, aKey), bytesOf('old'))
      await subject.advance(2 * dayMs)
      assertIs(await ask(store, aKey), 'expired')
    },
  },
  {
    name: 'without a tombstone an expired key is absent at once',
    guarantee: 'expiry',
    async run(subject) {
      const { store } = subject
      await finish(store, aKey, bytesOf('once'), { retention: { keepMs: hourMs, tombstoneMs: 0 } })
      await subject.advance(2 * hourMs)
      assertGranted(await ask(store, aKey), 'fresh', 1)
    },
  },
]

async function assertWritesLost(store: Store, claim: Claim): Promise<void> {
  assert.equal(await store.extend(claim, leaseMs), 'lost')
  assert.equal(await store.settle(claim, bytesOf('late'), short), 'lost')
  assert.equal(await store.release(claim, 'open'), 'lost')
}

const exactEdges: readonly ContractCase[] = [
  {
    name: 'a key is busy 1 ms before its lease ends, and taken over when it ends',
    guarantee: 'exact-edges',
    async run(subject) {
      const { store } = subject
      await take(store, aKey, { leaseMs: 1_000 })
      assert.deepEqual(await ask(store, aKey), { is: 'busy', retryAfterMs: 1_000 })
      await subject.advance(999)
      assert.deepEqual(await ask(store, aKey, { onTakeover: 'refuse' }), { is: 'busy', retryAfterMs: 1 })
      await subject.advance(1)
      assertIs(await ask(store, aKey, { onTakeover: 'refuse' }), 'doubt')
      assertGranted(await ask(store, aKey), 'taken-over', 2)
    },
  },
  {
    name: 'an extended lease and a repeated claim end exactly leaseMs after the call',
    guarantee: 'exact-edges',
    async run(subject) {
      const { store } = subject
      const asked = request({ leaseMs: 1_000 })
      const claim = grantedOf(await store.claim(aKey, asked))
      await subject.advance(700)
      assert.equal(await store.extend(claim, 500), 'done')
      assert.deepEqual(await ask(store, aKey), { is: 'busy', retryAfterMs: 500 })
      await subject.advance(499)
      assert.deepEqual(grantedOf(await store.claim(aKey, asked)), claim)
      assert.deepEqual(await ask(store, aKey), { is: 'busy', retryAfterMs: 1_000 })
      await subject.advance(1_000)
      assertGranted(await ask(store, aKey), 'taken-over', 2)
    },
  },
  {
    name: 'a settled key is replayed 1 ms before keepMs is over, and expired when it is',
    guarantee: 'exact-edges',
    async run(subject) {
      const { store } = subject
      const claim = await take(store, aKey, { leaseMs: 1_000 })
      await subject.advance(300)
      assert.equal(await store.settle(claim, bytesOf('once'), { keepMs: 2_000, tombstoneMs: 500 }), 'done')
      await subject.advance(1_999)
      assertSettled(await ask(store, aKey), bytesOf('once'))
      await subject.advance(1)
      assertIs(await ask(store, aKey), 'expired')
    },
  },
  {
    name: 'a tombstone is there 1 ms before tombstoneMs is over, and absent when it is',
    guarantee: 'exact-edges',
    async run(subject) {
      const { store } = subject
      await finish(store, aKey, bytesOf('once'), { retention: { keepMs: 2_000, tombstoneMs: 500 } })
      await subject.advance(2_499)
      assertIs(await ask(store, aKey), 'expired')
      await subject.advance(1)
      assertGranted(await ask(store, aKey, { fingerprint: otherFingerprint }), 'fresh', 1)
    },
  },
  {
    name: 'an open key can be claimed 1 ms before keepMs after its release, and is expired then',
    guarantee: 'exact-edges',
    async run(subject) {
      const { store } = subject
      const changes = { leaseMs: 1_000, retention: { keepMs: 2_000, tombstoneMs: 500 } }
      const first = await take(store, aKey, changes)
      await subject.advance(100)
      assert.equal(await store.release(first, 'open'), 'done')
      await subject.advance(1_999)
      const second = assertGranted(await ask(store, aKey, changes), 'reopened', 2)
      assert.equal(await store.release(second, 'open'), 'done')
      await subject.advance(2_000)
      assertIs(await ask(store, aKey), 'expired')
    },
  },
  {
    name: 'an abandoned key can be taken over 1 ms before keepMs after its lease, and is expired then',
    guarantee: 'exact-edges',
    async run(subject) {
      const { store } = subject
      const changes = { leaseMs: 1_000, retention: { keepMs: 2_000, tombstoneMs: 500 } }
      await take(store, aKey, changes)
      await subject.advance(2_999)
      assertGranted(await ask(store, aKey, changes), 'taken-over', 2)
      await subject.advance(3_000)
      assertIs(await ask(store, aKey), 'expired')
      await subject.advance(499)
      assertIs(await ask(store, aKey), 'expired')
      await subject.advance(1)
      assertGranted(await ask(store, aKey), 'fresh', 1)
    },
  },
  {
    name: 'a holder can settle 1 ms before its abandoned key expires, and has lost it then',
    guarantee: 'exact-edges',
    async run(subject) {
      const { store } = subject
      const changes = { leaseMs: 1_000, retention: { keepMs: 2_000, tombstoneMs: 5_000 } }
      const claim = await take(store, aKey, changes)
      await subject.advance(2_999)
      assert.equal(await store.extend(claim, 1_000), 'done')
      await subject.advance(3_000)
      assert.equal(await store.settle(claim, bytesOf('late'), changes.retention), 'lost')
      assertIs(await ask(store, aKey), 'expired')
    },
  },
]

export const expiryCases: readonly ContractCase[] = [...expiry, ...exactEdges]

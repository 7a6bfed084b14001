// The contract, part 9: a transaction that the store opens itself. It commits, is rolled back or abandoned, gives back what it
// took, and keeps no caller waiting.

import assert from 'node:assert/strict'
import { OnceError } from '../../core/errors.ts'
import { key } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Began, ClaimRequest } from '../../core/store.ts'
import {
  aKey,
  ask,
  assertBusy,
  assertGranted,
  assertIs,
  assertSettled,
  bounded,
  bytesOf,
  claimWhenFree,
  describe,
  failureOf,
  grantedOf,
  leaseMs,
  otherFingerprint,
  request,
  retention,
  served,
  take,
  times,
  transactionalOf,
} from './case.ts'
import type { ContractCase, TransactionalSubject } from './case.ts'
import { assertKeptAway, otherKey, reachEveryRefusal, refusals } from './transactions.ts'

export async function beginGranted(
  { store }: TransactionalSubject,
  subject: Key,
  changes: Partial<ClaimRequest> = {},
): Promise<NonNullable<Began<unknown>['granted']>> {
  const began = await store.begin(subject, request(changes))
  assert.ok(began.granted, `expected begin to be granted, got ${describe(began.verdict)}`)
  assertIs(began.verdict, 'granted')
  return began.granted
}

/** A retry would run the effect again beside what it has committed. */
export function assertEndedByEffect({ code, executed, retryable }: OnceError): void {
  const expected = { code: 'OUTCOME_UNKNOWN', executed: 'unknown', retryable: false }
  assert.deepEqual({ code, executed, retryable }, expected)
}

const beginning: readonly ContractCase[] = [
  {
    name: 'begin and commit make effect and outcome visible together',
    guarantee: 'transactions',
    async run(subject) {
      const lent = transactionalOf(subject)
      const granted = await beginGranted(lent, aKey)
      await lent.transactions.addEffect(granted.tx, 'effect')
      assert.equal(await granted.commit(bytesOf('committed'), retention), 'done')
      assert.equal(await lent.transactions.countEffects('effect'), 1)
      assertSettled(await ask(lent.store, aKey), bytesOf('committed'))
      assertSettled((await lent.store.begin(aKey, request())).verdict, bytesOf('committed'))
    },
  },
  {
    name: 'begin and rollback leave neither effect nor entry',
    guarantee: 'transactions',
    async run(subject) {
      const lent = transactionalOf(subject)
      const granted = await beginGranted(lent, aKey)
      await lent.transactions.addEffect(granted.tx, 'effect')
      await granted.rollback()
      assert.equal(await lent.transactions.countEffects('effect'), 0)
      assertGranted(await ask(lent.store, aKey, { fingerprint: otherFingerprint }), 'fresh', 1)
    },
  },
  {
    name: 'begin, undoEffect and commit store the answer without the effect',
    guarantee: 'transactions',
    async run(subject) {
      const lent = transactionalOf(subject)
      const granted = await beginGranted(lent, aKey)
      await lent.transactions.addEffect(granted.tx, 'effect')
      await granted.undoEffect()
      assert.equal(await granted.commit(bytesOf('declined'), retention), 'done')
      assert.equal(await lent.transactions.countEffects('effect'), 0)
      assertSettled(await ask(lent.store, aKey), bytesOf('declined'))
    },
  },
  {
    name: 'a transaction that outlives its lease keeps the key to itself until it commits',
    guarantee: 'transactions',
    async run(subject) {
      const lent = transactionalOf(subject)
      const granted = await beginGranted(lent, aKey)
      await lent.transactions.addEffect(granted.tx, 'effect')
      await subject.advance(3 * leaseMs)
      await assertKeptAway(ask(lent.store, aKey))
      assert.equal(await granted.commit(bytesOf('slow'), retention), 'done')
      assert.equal(await lent.transactions.countEffects('effect'), 1)
      assertSettled(await ask(lent.store, aKey), bytesOf('slow'))
    },
  },
  {
    name: 'an effect that commits its transaction itself is OUTCOME_UNKNOWN, and no retry is offered',
    guarantee: 'transactions',
    async run(subject) {
      const lent = transactionalOf(subject)
      const granted = await beginGranted(lent, aKey)
      await lent.transactions.addEffect(granted.tx, 'effect')
      await lent.transactions.commitByHand(granted.tx)
      assertEndedByEffect(await failureOf(granted.commit(bytesOf('too late'), retention)))
      assert.equal(await lent.transactions.countEffects('effect'), 1)
      const entry = await ask(lent.store, aKey)
      assert.notEqual(entry.is, 'settled', 'expected no outcome, got the one that came too late')
      await (await bounded('begin', beginGranted(lent, otherKey))).rollback()
    },
  },
  {
    name: 'begin that is not granted says why, hands out nothing and leaves no transaction behind',
    guarantee: 'transactions',
    async run(subject) {
      const lent = transactionalOf(subject)
      await reachEveryRefusal(subject)
      // More often than any pool has connections: one that is not given back makes the next begin wait forever.
      for (let round = 0; round < 30; round++) {
        for (const [is, each, changes] of refusals) {
          const began = await served('begin', lent.store.begin(each, request(changes)))
          assertIs(began.verdict, is)
          assert.equal(began.granted, undefined)
        }
      }
      await (await bounded('begin', beginGranted(lent, aKey))).rollback()
    },
  },
  {
    name: 'transactions that end, either way, give back what they took',
    guarantee: 'transactions',
    async run(subject) {
      const lent = transactionalOf(subject)
      for (const round of times(30)) {
        const granted = await bounded('begin', beginGranted(lent, key('contract', `key ${round}`)))
        await lent.transactions.addEffect(granted.tx, 'effect')
        if (round % 2) await granted.rollback()
        else assert.equal(await granted.commit(bytesOf('committed'), retention), 'done')
      }
      assert.equal(await lent.transactions.countEffects('effect'), 15)
    },
  },
  {
    name: 'of 20 concurrent begins of one key, one commits and there is one effect',
    guarantee: 'transactions',
    async run(subject) {
      const lent = transactionalOf(subject)
      const ends = await Promise.all(times(20).map(() => beginAndCommit(lent)))
      assert.equal(ends.filter((end) => end === 'done').length, 1, `expected one to commit, got ${ends.join(', ')}`)
      assert.equal(await lent.transactions.countEffects('effect'), 1)
      assertSettled(await ask(lent.store, aKey), bytesOf('committed'))
    },
  },
]

/**
 * A snapshot older than another's commit may let a second begin through (REPEATABLE READ): its commit must then be refused,
 * as a conflict, which took its effect back.
 */
async function beginAndCommit(lent: TransactionalSubject): Promise<string> {
  const { verdict, granted } = await bounded('begin', lent.store.begin(aKey, request()))
  if (!granted) {
    assert.ok(['busy', 'settled'].includes(verdict.is), `unexpected ${describe(verdict)}`)
    return verdict.is
  }
  await lent.transactions.addEffect(granted.tx, 'effect')
  return granted.commit(bytesOf('committed'), retention).catch((error: unknown) => {
    assert.ok(lent.store.isConflict(error), `expected a conflict, got ${String(error)}`)
    return 'conflict'
  })
}

const abandoning: readonly ContractCase[] = [
  {
    name: 'what an effect writes after its transaction was abandoned reaches nobody, and the key is free',
    guarantee: 'abandoned-effects',
    async run(subject) {
      const lent = transactionalOf(subject)
      const zombie = await beginGranted(lent, aKey)
      await lent.transactions.addEffect(zombie.tx, 'zombie')
      await zombie.abandon()
      // Refused or ignored, but never part of what the next transaction commits.
      const write = (): Promise<unknown> => lent.transactions.addEffect(zombie.tx, 'zombie').catch(() => undefined)
      await bounded('a write of an abandoned effect', write())
      // A server may need a moment to notice that the connection is gone.
      const next = assertGranted(await claimWhenFree(() => lent.store.claim(aKey, request())), 'fresh', 1)
      assert.equal(await lent.store.release(next, 'forget'), 'done')
      const granted = await bounded('begin', beginGranted(lent, aKey))
      await bounded('a write of an abandoned effect', write())
      await lent.transactions.addEffect(granted.tx, 'effect')
      assert.equal(await granted.commit(bytesOf('committed'), retention), 'done')
      await bounded('a write of an abandoned effect', write())
      const counts = await Promise.all(['zombie', 'effect'].map((name) => lent.transactions.countEffects(name)))
      assert.deepEqual(counts, [0, 1])
    },
  },
  {
    name: 'transactions that are abandoned give back what they took',
    guarantee: 'abandoned-effects',
    async run(subject) {
      const lent = transactionalOf(subject)
      for (const round of times(30)) {
        await (await bounded('begin', beginGranted(lent, key('contract', `key ${round}`)))).abandon()
      }
      assertGranted(await claimWhenFree(() => ask(lent.store, key('contract', 'key 0'))), 'fresh', 1)
    },
  },
]

const noWaiting: readonly ContractCase[] = [
  {
    name: 'while one key is uncommitted, it is busy and a hundred others are granted, settled and replayed',
    guarantee: 'no-waiting',
    async run(subject) {
      const lent = transactionalOf(subject)
      const granted = await beginGranted(lent, aKey)
      const second = await subject.another()
      const keys = times(100).map((index) => key('contract', `key ${index}`))
      const others = keys.map(async (each, index) => {
        const store = index % 2 ? lent.store : second
        const [mine, claim] = await Promise.all([ask(store, aKey), take(store, each)])
        assertBusy(mine, leaseMs)
        assert.equal(await store.settle(claim, bytesOf(each.id), retention), 'done')
        assertSettled(await ask(store, each), bytesOf(each.id))
      })
      await served('the others', Promise.all(others))
      assert.equal(await granted.commit(bytesOf('committed'), retention), 'done')
      assertSettled(await ask(second, aKey), bytesOf('committed'))
    },
  },
  {
    name: 'while one key is being taken over in a transaction, its old holder is not kept waiting',
    guarantee: 'no-waiting',
    async run(subject) {
      const lent = transactionalOf(subject)
      const zombie = await take(lent.store, aKey)
      await subject.advance(2 * leaseMs)
      const granted = await beginGranted(lent, aKey)
      const other = grantedOf(await ask(lent.store, otherKey))
      // The old holder's write may be refused or fail. What others do at the same moment must go through.
      const late = lent.store.extend(zombie, leaseMs).catch((error: unknown) => error)
      assert.equal(await bounded('a settle', lent.store.settle(other, bytesOf('other'), retention)), 'done')
      assert.equal(await granted.commit(bytesOf('committed'), retention), 'done')
      const answer = await bounded('the extend', late)
      assert.ok(answer === 'lost' || answer instanceof OnceError, `expected lost or an error, got ${String(answer)}`)
      assertSettled(await ask(lent.store, aKey), bytesOf('committed'))
    },
  },
]

export const beginCases: readonly ContractCase[] = [...beginning, ...abandoning, ...noWaiting]

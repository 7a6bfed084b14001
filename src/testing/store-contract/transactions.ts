// The contract, part 8: the record and the caller's own writes commit together or not at all. Effects are rows in a table
// without a unique constraint, so that one too many shows.

import assert from 'node:assert/strict'
import { OnceError } from '../../core/errors.ts'
import { key } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { ClaimRequest, Verdict } from '../../core/store.ts'
import {
  aKey,
  ask,
  assertBusy,
  assertGranted,
  assertIs,
  assertSettled,
  bounded,
  bytesOf,
  finish,
  hourMs,
  leaseMs,
  otherFingerprint,
  request,
  retention,
  take,
  transactionalOf,
} from './case.ts'
import type { ContractCase } from './case.ts'
import type { ContractSubject } from './subject.ts'

export const otherKey: Key = key('contract', 'another key')

/** What ends a transaction in these cases, and nothing else. */
class Rollback extends Error {}

async function rolledBack(work: Promise<unknown>): Promise<void> {
  await assert.rejects(work, Rollback)
}

/** A claim that cannot be granted now: it gets `busy`, or within bounds the error that the store cannot be reached. */
export async function assertKeptAway(claim: Promise<Verdict>): Promise<void> {
  const answer = await bounded('a claim of a key that is in an open transaction', claim).catch(
    (error: unknown) => error,
  )
  if (answer instanceof OnceError) assert.deepEqual([answer.code, answer.executed], ['STORE_UNAVAILABLE', 'no'])
  else if (answer instanceof Error) throw answer
  else assertBusy(answer as Verdict, leaseMs)
}

const within: readonly ContractCase[] = [
  {
    name: "a commit of the caller's transaction makes effect and outcome visible together",
    guarantee: 'transactions',
    async run(subject) {
      const { store, transactions } = transactionalOf(subject)
      await transactions.run(async (tx) => {
        const claim = assertGranted(await store.within(tx).claim(aKey, request()), 'fresh', 1)
        await transactions.addEffect(tx, 'effect')
        assert.equal(await store.within(tx).settle(claim, bytesOf('committed'), retention), 'done')
      })
      assert.equal(await transactions.countEffects('effect'), 1)
      assertSettled(await ask(store, aKey), bytesOf('committed'))
      assertSettled(await ask(await subject.another(), aKey), bytesOf('committed'))
    },
  },
  {
    name: "a rollback of the caller's transaction leaves neither effect nor entry, settled or not",
    guarantee: 'transactions',
    async run(subject) {
      const { store, transactions } = transactionalOf(subject)
      for (const end of ['before the settle', 'after the settle']) {
        const work = transactions.run(async (tx) => {
          const claim = await take(store.within(tx), aKey)
          await transactions.addEffect(tx, 'effect')
          if (end === 'after the settle') await store.within(tx).settle(claim, bytesOf('never'), retention)
          throw new Rollback()
        })
        await rolledBack(work)
      }
      assert.equal(await transactions.countEffects('effect'), 0)
      assertGranted(await ask(store, aKey, { fingerprint: otherFingerprint }), 'fresh', 1)
    },
  },
  {
    name: 'the fence of a claim that was rolled back is not given out again',
    guarantee: 'transactions',
    async run(subject) {
      const { store, transactions } = transactionalOf(subject)
      let fence = 0
      const work = transactions.run(async (tx) => {
        fence = (await take(store.within(tx), aKey)).fence
        throw new Rollback()
      })
      await rolledBack(work)
      await subject.advance(1)
      const next = await take(store, aKey)
      assert.ok(next.fence > fence, `expected a fence above ${fence}, got ${next.fence}`)
    },
  },
  {
    name: 'a key claimed in an open transaction is granted to nobody else, and nobody hangs',
    guarantee: 'transactions',
    async run(subject) {
      const { store, transactions } = transactionalOf(subject)
      const second = await subject.another()
      await transactions.run(async (tx) => {
        const claim = await take(store.within(tx), aKey)
        await Promise.all([store, second].map((each) => assertKeptAway(ask(each, aKey))))
        await transactions.addEffect(tx, 'effect')
        assert.equal(await store.within(tx).settle(claim, bytesOf('committed'), retention), 'done')
        await Promise.all([store, second].map((each) => assertKeptAway(ask(each, aKey))))
      })
      assertSettled(await ask(second, aKey), bytesOf('committed'))
    },
  },
  {
    name: "in the caller's transaction a claim is answered as outside: settled, busy, mismatch, doubt, expired",
    guarantee: 'transactions',
    async run(subject) {
      const { store, transactions } = transactionalOf(subject)
      await reachEveryRefusal(subject)
      await transactions.run(async (tx) => {
        for (const [is, each, changes] of refusals) assertIs(await store.within(tx).claim(each, request(changes)), is)
        await transactions.addEffect(tx, 'effect')
      })
      assert.equal(await transactions.countEffects('effect'), 1)
    },
  },
  {
    name: 'a second claim of a key in the same transaction is busy',
    guarantee: 'transactions',
    async run(subject) {
      const { store, transactions } = transactionalOf(subject)
      await transactions.run(async (tx) => {
        const claim = await take(store.within(tx), aKey)
        assertBusy(await store.within(tx).claim(aKey, request()), leaseMs)
        assert.equal(await store.within(tx).settle(claim, bytesOf('first'), retention), 'done')
        assertSettled(await store.within(tx).claim(aKey, request()), bytesOf('first'))
      })
      assertSettled(await ask(store, aKey), bytesOf('first'))
    },
  },
  {
    name: 'a settle in a transaction with a token that does not hold the key is lost',
    guarantee: 'transactions',
    async run(subject) {
      const { store, transactions } = transactionalOf(subject)
      const zombie = await take(store, aKey)
      await subject.advance(2 * leaseMs)
      const holder = await take(store, aKey)
      await transactions.run(async (tx) => {
        assert.equal(await store.within(tx).settle(zombie, bytesOf('zombie'), retention), 'lost')
      })
      assert.equal(await store.settle(holder, bytesOf('holder'), retention), 'done')
      assertSettled(await ask(store, aKey), bytesOf('holder'))
    },
  },
  {
    name: 'a takeover in a transaction fences the old holder when it commits, and only then',
    guarantee: 'transactions',
    async run(subject) {
      const { store, transactions } = transactionalOf(subject)
      const [kept, lost] = [await take(store, aKey), await take(store, otherKey)]
      await subject.advance(2 * leaseMs)
      const work = transactions.run(async (tx) => {
        assertGranted(await store.within(tx).claim(aKey, request()), 'taken-over', 2)
        throw new Rollback()
      })
      await rolledBack(work)
      assert.equal(await store.settle(kept, bytesOf('kept'), retention), 'done')
      await transactions.run(async (tx) => {
        const claim = assertGranted(await store.within(tx).claim(otherKey, request()), 'taken-over', 2)
        assert.equal(await store.within(tx).settle(claim, bytesOf('taken over'), retention), 'done')
      })
      assert.equal(await store.settle(lost, bytesOf('zombie'), retention), 'lost')
      assertSettled(await ask(store, aKey), bytesOf('kept'))
      assertSettled(await ask(store, otherKey), bytesOf('taken over'))
    },
  },
]

const undoing: readonly ContractCase[] = [
  {
    name: 'undoEffect takes back the writes since the claim and keeps the claim, which can still be settled',
    guarantee: 'transactions',
    async run(subject) {
      const { store, transactions } = transactionalOf(subject)
      await transactions.run(async (tx) => {
        await transactions.addEffect(tx, 'before')
        const claim = await take(store.within(tx), aKey)
        await transactions.addEffect(tx, 'effect')
        await store.within(tx).undoEffect(claim)
        await transactions.addEffect(tx, 'after')
        assert.equal(await store.within(tx).settle(claim, bytesOf('declined'), retention), 'done')
      })
      const counts = await Promise.all(['before', 'effect', 'after'].map((name) => transactions.countEffects(name)))
      assert.deepEqual(counts, [1, 0, 1])
      assertSettled(await ask(store, aKey), bytesOf('declined'))
    },
  },
  {
    name: 'undoClaim takes back the writes since the claim and the claim, and the transaction can go on',
    guarantee: 'transactions',
    async run(subject) {
      const { store, transactions } = transactionalOf(subject)
      await transactions.run(async (tx) => {
        await transactions.addEffect(tx, 'before')
        const claim = await take(store.within(tx), aKey)
        await transactions.addEffect(tx, 'effect')
        await store.within(tx).undoClaim(claim)
        await transactions.addEffect(tx, 'after')
      })
      const counts = await Promise.all(['before', 'effect', 'after'].map((name) => transactions.countEffects(name)))
      assert.deepEqual(counts, [1, 0, 1])
      assertGranted(await ask(store, aKey, { fingerprint: otherFingerprint }), 'fresh', 1)
    },
  },
  {
    name: 'two keys in one transaction commit together and roll back together',
    guarantee: 'transactions',
    async run(subject) {
      const { store, transactions } = transactionalOf(subject)
      const both = async (tx: unknown): Promise<void> => {
        for (const each of [aKey, otherKey]) {
          const claim = assertGranted(await store.within(tx).claim(each, request()), 'fresh', 1)
          await transactions.addEffect(tx, 'effect')
          assert.equal(await store.within(tx).settle(claim, bytesOf(each.id), retention), 'done')
        }
      }
      const work = transactions.run(async (tx) => {
        await both(tx)
        throw new Rollback()
      })
      await rolledBack(work)
      assert.equal(await transactions.countEffects('effect'), 0)
      await transactions.run(both)
      assert.equal(await transactions.countEffects('effect'), 2)
      for (const each of [aKey, otherKey]) assertSettled(await ask(store, each), bytesOf(each.id))
    },
  },
  {
    name: 'undoing one of two keys in a transaction leaves the other alone',
    guarantee: 'transactions',
    async run(subject) {
      const { store, transactions } = transactionalOf(subject)
      await transactions.run(async (tx) => {
        const first = await take(store.within(tx), aKey)
        await transactions.addEffect(tx, 'first')
        assert.equal(await store.within(tx).settle(first, bytesOf('first'), retention), 'done')
        const second = await take(store.within(tx), otherKey)
        await transactions.addEffect(tx, 'second')
        await store.within(tx).undoClaim(second)
      })
      assert.deepEqual([await transactions.countEffects('first'), await transactions.countEffects('second')], [1, 0])
      assertSettled(await ask(store, aKey), bytesOf('first'))
      assertGranted(await ask(store, otherKey), 'fresh', 1)
    },
  },
  {
    name: 'an ordinary error is not a conflict',
    guarantee: 'transactions',
    async run(subject) {
      const { store } = transactionalOf(subject)
      for (const error of [new Error('no'), undefined, null, 'deadlock', {}])
        assert.equal(store.isConflict(error), false)
    },
  },
]

// Every verdict but granted: the key in that state, and how it must be asked for.
export const refusals: readonly (readonly [Verdict['is'], Key, Partial<ClaimRequest>])[] = [
  ['settled', key('refused', 'settled'), {}],
  ['mismatch', key('refused', 'settled'), { fingerprint: otherFingerprint }],
  ['busy', key('refused', 'running'), {}],
  ['doubt', key('refused', 'abandoned'), { onTakeover: 'refuse' }],
  ['expired', key('refused', 'expired'), {}],
]

export async function reachEveryRefusal(subject: ContractSubject): Promise<void> {
  const { store } = subject
  await finish(store, key('refused', 'expired'), bytesOf('old'), { retention: { ...retention, keepMs: hourMs } })
  await take(store, key('refused', 'abandoned'))
  await subject.advance(2 * hourMs)
  await take(store, key('refused', 'running'))
  await finish(store, key('refused', 'settled'), bytesOf('settled'))
}

export const transactionCases: readonly ContractCase[] = [...within, ...undoing]

// Broken stores, part 4: the record and the effect part ways, and what a fault leaves behind is misread.

import { OnceError } from '../../core/errors.ts'
import { keyString } from '../../core/key.ts'
import type { Began, InTransaction } from '../../core/store.ts'
import { brokenBy } from './broken-store.ts'
import type { BrokenStore } from './broken-store.ts'
import type { PretendStore, PretendTransaction } from './pretend-database.ts'

type Granted = NonNullable<Began<PretendTransaction>['granted']>

function brokenWithin(
  name: string,
  caughtBy: string,
  mistake: (inside: InTransaction, store: PretendStore, tx: PretendTransaction) => Partial<InTransaction>,
): BrokenStore {
  return brokenBy(name, caughtBy, {
    store: (store) => ({
      ...store,
      within: (tx) => ({ ...store.within(tx), ...mistake(store.within(tx), store, tx) }),
    }),
  })
}

function brokenBegin(name: string, caughtBy: string, mistake: (granted: Granted) => Partial<Granted>): BrokenStore {
  return brokenBy(name, caughtBy, {
    store: (store) => ({
      ...store,
      async begin(key, request) {
        const began = await store.begin(key, request)
        return began.granted ? { ...began, granted: { ...began.granted, ...mistake(began.granted) } } : began
      },
    }),
  })
}

const transactions: readonly BrokenStore[] = [
  brokenWithin(
    'claims outside the transaction',
    "a rollback of the caller's transaction leaves neither effect nor entry, settled or not",
    (_inside, store) => ({ claim: (key, request) => store.claim(key, request) }),
  ),
  brokenWithin(
    'settles outside the transaction',
    "a rollback of the caller's transaction leaves neither effect nor entry, settled or not",
    (_inside, store, tx) => ({
      async settle(claim, outcome, retention) {
        tx.undo.length = 0
        return store.settle(claim, outcome, retention)
      },
    }),
  ),
  brokenWithin(
    'grants a key twice in one transaction',
    'a second claim of a key in the same transaction is busy',
    (inside) => ({
      async claim(key, request) {
        const verdict = await inside.claim(key, request)
        if (verdict.is !== 'busy') return verdict
        return { is: 'granted', how: 'fresh', claim: { key, token: request.token, attempt: 1, fence: 1 } }
      },
    }),
  ),
  brokenWithin(
    'undoes nothing',
    'undoEffect takes back the writes since the claim and keeps the claim, which can still be settled',
    () => ({ undoEffect: async () => undefined }),
  ),
  brokenWithin(
    'undoes the claim with the effect',
    'undoEffect takes back the writes since the claim and keeps the claim, which can still be settled',
    (inside) => ({ undoEffect: (claim) => inside.undoClaim(claim) }),
  ),
  brokenWithin(
    'undoes the effect without the claim',
    'undoClaim takes back the writes since the claim and the claim, and the transaction can go on',
    (inside) => ({ undoClaim: (claim) => inside.undoEffect(claim) }),
  ),
  brokenWithin(
    'undoes the whole transaction',
    'undoing one of two keys in a transaction leaves the other alone',
    (_inside, _store, tx) => ({
      async undoClaim() {
        while (tx.undo.length > 0) tx.undo.pop()!()
      },
    }),
  ),
  brokenBy('calls every error a conflict', 'an ordinary error is not a conflict', {
    store: (store) => ({ ...store, isConflict: () => true }),
  }),
  brokenBy(
    'takes what is uncommitted for absent',
    'a key claimed in an open transaction is granted to nobody else, and nobody hangs',
    {
      store: (store, { lockedBy }) => ({
        ...store,
        async claim(key, request) {
          if (!lockedBy.has(keyString(key))) return store.claim(key, request)
          return { is: 'granted', how: 'fresh', claim: { key, token: request.token, attempt: 1, fence: 1 } }
        },
      }),
    },
  ),
  brokenBegin(
    'commits without the effect',
    'begin and commit make effect and outcome visible together',
    ({ tx, commit }) => ({
      commit(outcome, retention) {
        tx.effects.length = 0
        return commit(outcome, retention)
      },
    }),
  ),
  brokenBegin(
    'offers a retry to an effect that has committed by itself',
    'an effect that commits its transaction itself is OUTCOME_UNKNOWN, and no retry is offered',
    ({ commit }) => ({
      commit: (outcome, retention) =>
        commit(outcome, retention).catch((cause: unknown) => {
          throw new OnceError('OUTCOME_UNKNOWN', { message: 'The transaction was over.', cause })
        }),
    }),
  ),
  brokenBegin(
    'settles after an effect that has committed by itself',
    'an effect that commits its transaction itself is OUTCOME_UNKNOWN, and no retry is offered',
    ({ tx, commit }) => ({
      commit(outcome, retention) {
        tx.endedByHand = false
        tx.over = false
        return commit(outcome, retention)
      },
    }),
  ),
  brokenBegin(
    'commits when it should roll back',
    'begin and rollback leave neither effect nor entry',
    ({ commit }) => ({
      rollback: async () => void (await commit(new Uint8Array(0), { keepMs: 1, tombstoneMs: 0 })),
    }),
  ),
  brokenBegin(
    'undoes nothing in a transaction of its own',
    'begin, undoEffect and commit store the answer without the effect',
    () => ({ undoEffect: async () => undefined }),
  ),
  brokenBy(
    'keeps the connection of a begin that is not granted',
    'begin that is not granted says why, hands out nothing and leaves no transaction behind',
    {
      store(store) {
        let connections = 10
        return {
          ...store,
          async begin(key, request) {
            if (connections === 0) throw new OnceError('STORE_UNAVAILABLE', { message: 'The pool is empty.' })
            const began = await store.begin(key, request)
            if (!began.granted) connections--
            return began
          },
        }
      },
    },
  ),
  brokenBegin(
    'lets an abandoned effect write on',
    'what an effect writes after its transaction was abandoned reaches nobody, and the key is free',
    ({ tx, commit, abandon }) => ({
      async abandon() {
        await commit(new Uint8Array(0), { keepMs: 1, tombstoneMs: 0 })
        tx.over = false
        await abandon()
      },
    }),
  ),
  brokenBy(
    'keeps others waiting for an open transaction',
    'while one key is uncommitted, it is busy and a hundred others are granted, settled and replayed',
    {
      store: (store, { lockedBy }) => ({
        ...store,
        async claim(key, request) {
          if (lockedBy.size > 0)
            throw new OnceError('STORE_UNAVAILABLE', { message: 'Waited for the writer too long.' })
          return store.claim(key, request)
        },
      }),
    },
  ),
]

const faults: readonly BrokenStore[] = [
  brokenBy(
    'loses in a crash what it acknowledged',
    'settled answers, running claims with their tokens and open keys survive a crash of the server',
    { crash: (data) => data.entries.clear() },
  ),
  brokenBy(
    'loses the last write in a crash',
    'every claim and settle that was acknowledged while the server crashed is still there',
    {
      crash(data) {
        const last = [...data.entries.keys()].at(-1)
        if (last !== undefined) data.entries.delete(last)
      },
    },
  ),
  brokenBy('fails open', 'a claim of a store that cannot be reached is STORE_UNAVAILABLE, not executed, and soon', {
    store: (store) => ({
      ...store,
      claim: (key, request) =>
        store.claim(key, request).catch(() => ({
          is: 'granted',
          how: 'fresh',
          claim: { key, token: request.token, attempt: 1, fence: 1 },
        })),
    }),
  }),
  brokenBy(
    'swallows a failed settle',
    'writes to a store that cannot be reached are errors, soon, and can be repeated when it is back',
    {
      store: (store) => ({
        ...store,
        settle: (claim, outcome, retention) => store.settle(claim, outcome, retention).catch(() => 'done'),
      }),
    },
  ),
  brokenBy(
    'takes a settle without a reply for one that was not done',
    'of a write whose reply was lost it is not said that it was not done',
    {
      store: (store) => ({
        ...store,
        settle: (claim, outcome, retention) =>
          store.settle(claim, outcome, retention).catch((cause: unknown) => {
            throw new OnceError('STORE_UNAVAILABLE', { message: 'The settle failed.', cause })
          }),
      }),
    },
  ),
  brokenBy(
    'takes a change by hand without a reply for one that was not done',
    'of a write whose reply was lost it is not said that it was not done',
    {
      store: (store) => ({
        ...store,
        mend: (key, action, reason) =>
          store.mend(key, action, reason).catch((cause: unknown) => {
            throw new OnceError('STORE_UNAVAILABLE', { message: 'The change failed.', cause })
          }),
      }),
    },
  ),
  brokenBegin(
    'takes a failed COMMIT for done',
    'a connection cut before COMMIT commits nothing, is an error, and the retry runs: one effect in the end',
    ({ commit }) => ({ commit: (outcome, retention) => commit(outcome, retention).catch(() => 'done') }),
  ),
  brokenBegin(
    'takes an unknown COMMIT for a rollback',
    'a connection cut after COMMIT is OUTCOME_UNKNOWN, and the retry is told the outcome: one effect in the end',
    ({ commit }) => ({
      commit: (outcome, retention) =>
        commit(outcome, retention).catch((cause: unknown) => {
          throw new OnceError('STORE_UNAVAILABLE', { message: 'The commit failed.', cause })
        }),
    }),
  ),
]

export const brokenTransactions: readonly BrokenStore[] = [...transactions, ...faults]

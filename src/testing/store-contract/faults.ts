// The contract, part 10: the world breaks. What was acknowledged survives, what is unknown is called unknown, nothing hangs,
// and in the end there is one effect.

import assert from 'node:assert/strict'
import { key } from '../../core/key.ts'
import { systemRandom } from '../../core/clock.ts'
import type { OnceError } from '../../core/errors.ts'
import type { Claim, Inspectable, Store } from '../../core/store.ts'
import {
  aKey,
  ask,
  assertBusy,
  assertGranted,
  assertSettled,
  bounded,
  bytesOf,
  claimWhenFree,
  eventually,
  failureOf,
  faultsOf,
  finish,
  grantedOf,
  leaseMs,
  request,
  retention,
  take,
  times,
  transactionalOf,
} from './case.ts'
import type { ContractCase, TransactionalSubject } from './case.ts'
import { beginGranted } from './begin.ts'

/** A crash before anything was acknowledged would show nothing. */
const settledMin = 20

const crashRecovery: readonly ContractCase[] = [
  {
    name: 'settled answers, running claims with their tokens and open keys survive a crash of the server',
    guarantee: 'crash-recovery',
    async run(subject) {
      const { store } = subject
      const [settled, open] = [key('contract', 'settled'), key('contract', 'open')]
      await finish(store, settled, bytesOf('survives'))
      assert.equal(await store.release(await take(store, open), 'open'), 'done')
      const claim = await take(store, aKey)
      await faultsOf(subject, 'crash-recovery').crashServer()
      assertSettled(await eventually(() => ask(store, settled)), bytesOf('survives'))
      assertBusy(await eventually(() => ask(store, aKey)), leaseMs)
      assertGranted(await eventually(() => ask(store, open)), 'reopened', 2)
      assert.equal(await eventually(() => store.settle(claim, bytesOf('after'), retention)), 'done')
      assertSettled(await eventually(() => ask(store, aKey)), bytesOf('after'))
    },
  },
  {
    name: 'every claim and settle that was acknowledged while the server crashed is still there',
    guarantee: 'crash-recovery',
    async run(subject) {
      const { store } = subject
      const acknowledged: Claim[] = []
      const settled: Claim[] = []
      const isWarm = Promise.withResolvers<void>()
      const crash = { isOver: false }
      // Each goes on with key after key, until the crash ends its call.
      const work = times(50).map(async (index) => {
        for (let round = 0; round < 20 && !crash.isOver; round++) {
          const claim = await take(store, key('contract', `key ${index} ${round}`))
          acknowledged.push(claim)
          if ((await store.settle(claim, bytesOf(claim.key.id), retention)) === 'done') settled.push(claim)
          if (settled.length >= settledMin) isWarm.resolve()
        }
      })
      const ended = Promise.allSettled(work)
      await bounded('the calls before a crash', Promise.race([isWarm.promise, ended]))
      await faultsOf(subject, 'crash-recovery').crashServer()
      crash.isOver = true
      await bounded('the calls under way in a crash', ended)
      assert.ok(
        settled.length >= settledMin,
        `expected at least ${settledMin} settles to be acknowledged before the crash, got ${settled.length}`,
      )
      const settleAgain = async (claim: Claim): Promise<void> =>
        assert.equal(await eventually(() => store.settle(claim, bytesOf(claim.key.id), retention)), 'done')
      await Promise.all(acknowledged.map(settleAgain))
      const askAgain = async ({ key: each }: Claim): Promise<void> =>
        assertSettled(await eventually(() => ask(store, each)), bytesOf(each.id))
      await Promise.all(settled.map(askAgain))
    },
  },
]

const connectionFaults: readonly ContractCase[] = [
  {
    name: 'a claim of a store that cannot be reached is STORE_UNAVAILABLE, not executed, and soon',
    guarantee: 'connection-faults',
    async run(subject) {
      const { store } = subject
      const faults = faultsOf(subject, 'connection-faults')
      await faults.cutOff()
      const errors = await Promise.all(
        times(20).map(() => failureOf(bounded('a claim of a store that is cut off', ask(store, aKey)))),
      )
      for (const error of errors) {
        assert.deepEqual([error.code, error.executed, error.retryable], ['STORE_UNAVAILABLE', 'no', true])
      }
      await faults.heal()
      const claim = grantedOf(await eventually(() => ask(store, aKey)))
      assert.equal(await eventually(() => store.settle(claim, bytesOf('healed'), retention)), 'done')
    },
  },
  {
    name: 'writes to a store that cannot be reached are errors, soon, and can be repeated when it is back',
    guarantee: 'connection-faults',
    async run(subject) {
      const { store } = subject
      const faults = faultsOf(subject, 'connection-faults')
      const claim = await take(store, aKey)
      await faults.cutOff()
      await Promise.all([
        failureOf(bounded('an extend', store.extend(claim, leaseMs))),
        failureOf(bounded('a settle', store.settle(claim, bytesOf('answer'), retention))),
      ])
      await faults.heal()
      assert.equal(await eventually(() => store.settle(claim, bytesOf('answer'), retention)), 'done')
      assertSettled(await eventually(() => ask(store, aKey)), bytesOf('answer'))
    },
  },
  {
    name: 'a claim whose reply was lost is granted when it is repeated with its token: still attempt 1',
    guarantee: 'connection-faults',
    async run(subject) {
      const { store } = subject
      await warmUp(subject)
      await faultsOf(subject, 'connection-faults').dropNextReply()
      const asked = request()
      // A store may repeat it by itself. Then there is nothing left to see.
      await bounded('the claim', store.claim(aKey, asked)).catch(() => undefined)
      const claim = grantedOf(await eventually(() => store.claim(aKey, asked)))
      assert.equal(claim.attempt, 1)
      assertBusy(await eventually(() => ask(store, aKey)), leaseMs)
      assert.equal(await eventually(() => store.settle(claim, bytesOf('once'), retention)), 'done')
    },
  },
  {
    name: 'a settle and a release whose replies were lost answer done when they are repeated',
    guarantee: 'connection-faults',
    async run(subject) {
      const { store } = subject
      const faults = faultsOf(subject, 'connection-faults')
      const settled = await take(store, aKey)
      await faults.dropNextReply()
      await bounded('the settle', store.settle(settled, bytesOf('once'), retention)).catch(() => undefined)
      assert.equal(await eventually(() => store.settle(settled, bytesOf('once'), retention)), 'done')
      assertSettled(await eventually(() => ask(store, aKey)), bytesOf('once'))
      const other = key('contract', 'released')
      const released = grantedOf(await eventually(() => ask(store, other)))
      await faults.dropNextReply()
      await bounded('the release', store.release(released, 'open')).catch(() => undefined)
      assert.equal(await eventually(() => store.release(released, 'open')), 'done')
      assertGranted(await eventually(() => ask(store, other)), 'reopened', 2)
    },
  },
  {
    name: 'of a write whose reply was lost it is not said that it was not done',
    guarantee: 'connection-faults',
    async run(subject) {
      const store = subject.store as Store & Partial<Inspectable>
      const writes: Readonly<Record<string, (claim: Claim) => Promise<unknown>>> = {
        extend: (claim) => store.extend(claim, leaseMs),
        settle: (claim) => store.settle(claim, bytesOf('once'), retention),
        release: (claim) => store.release(claim, 'forget'),
        ...(store.mend && { mend: (claim: Claim) => store.mend!(claim.key, 'release', 'a test') }),
      }
      for (const [name, write] of Object.entries(writes)) {
        const claim = grantedOf(await eventually(() => ask(store, key('contract', name))))
        // What a store does at its first call on a new connection is done by then.
        assert.equal(await eventually(() => store.extend(claim, leaseMs)), 'done')
        await faultsOf(subject, 'connection-faults').dropNextReply()
        // A store may repeat it by itself. Then there is nothing left to see.
        const error = await bounded(name, write(claim)).then(
          () => undefined,
          (thrown: unknown) => thrown as OnceError,
        )
        if (error) assert.equal(error.executed, 'unknown', `${name}: ${error.message}`)
        await faultsOf(subject, 'connection-faults').heal()
      }
    },
  },
]

// Whatever a store does at its first call (checks, preparations) is done before the fault is set for the next one.
async function warmUp({ store }: { readonly store: Store }): Promise<void> {
  await ask(store, key('contract', `warm up ${systemRandom.uuid()}`))
}

/** What a caller does after an error: it asks again until it has an answer, and does the effect when it is granted. */
async function retryUntilSettled(lent: TransactionalSubject): Promise<void> {
  const verdict = await claimWhenFree(async () => {
    const began = await lent.store.begin(aKey, request())
    if (!began.granted) return began.verdict
    await lent.transactions.addEffect(began.granted.tx, 'effect')
    assert.equal(await began.granted.commit(bytesOf('answer'), retention), 'done')
    return began.verdict
  })
  assert.ok(['granted', 'settled'].includes(verdict.is), `expected the retry to end, got ${verdict.is}`)
  assertSettled(await eventually(() => ask(lent.store, aKey)), bytesOf('answer'))
  assert.equal(await eventually(() => lent.transactions.countEffects('effect')), 1)
}

const commitFaults: readonly ContractCase[] = [
  {
    name: 'a connection cut before COMMIT commits nothing, is an error, and the retry runs: one effect in the end',
    guarantee: 'commit-faults',
    async run(subject) {
      const lent = transactionalOf(subject)
      const faults = faultsOf(subject, 'commit-faults')
      await warmUp(lent)
      const granted = await beginGranted(lent, aKey)
      await lent.transactions.addEffect(granted.tx, 'effect')
      await faults.cutAtCommit('before')
      const error = await failureOf(bounded('the commit', granted.commit(bytesOf('answer'), retention)))
      assert.ok(
        error.executed !== 'yes' && error.retryable,
        `expected an error to retry, got ${error.code} (${error.executed})`,
      )
      assert.equal(await eventually(() => lent.transactions.countEffects('effect')), 0)
      await retryUntilSettled(lent)
    },
  },
  {
    name: 'a connection cut after COMMIT is OUTCOME_UNKNOWN, and the retry is told the outcome: one effect in the end',
    guarantee: 'commit-faults',
    async run(subject) {
      const lent = transactionalOf(subject)
      const faults = faultsOf(subject, 'commit-faults')
      await warmUp(lent)
      const granted = await beginGranted(lent, aKey)
      await lent.transactions.addEffect(granted.tx, 'effect')
      await faults.cutAtCommit('after')
      const error = await failureOf(bounded('the commit', granted.commit(bytesOf('answer'), retention)))
      assert.deepEqual([error.code, error.executed], ['OUTCOME_UNKNOWN', 'unknown'])
      assertSettled(await claimWhenFree(() => ask(lent.store, aKey)), bytesOf('answer'))
      await retryUntilSettled(lent)
    },
  },
  {
    name: 'a crash of the server in an open transaction leaves nothing of it, and the retry runs: one effect in the end',
    guarantee: 'commit-faults',
    async run(subject) {
      const lent = transactionalOf(subject)
      const granted = await beginGranted(lent, aKey)
      await lent.transactions.addEffect(granted.tx, 'effect')
      await faultsOf(subject, 'commit-faults').crashServer()
      const error = await failureOf(bounded('the commit', granted.commit(bytesOf('answer'), retention)))
      assert.notEqual(error.executed, 'yes')
      await retryUntilSettled(lent)
    },
  },
  {
    name: 'begin on a store that cannot be reached is STORE_UNAVAILABLE, not executed, and soon',
    guarantee: 'commit-faults',
    async run(subject) {
      const lent = transactionalOf(subject)
      const faults = faultsOf(subject, 'commit-faults')
      await faults.cutOff()
      const error = await failureOf(bounded('begin', lent.store.begin(aKey, request())))
      assert.deepEqual([error.code, error.executed], ['STORE_UNAVAILABLE', 'no'])
      await faults.heal()
      await retryUntilSettled(lent)
    },
  },
]

export const faultCases: readonly ContractCase[] = [...crashRecovery, ...connectionFaults, ...commitFaults]

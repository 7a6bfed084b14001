// The contract, part 12: a step in a transaction commits with its record or not at all, and what operations have recorded
// outlives the faults of part 10.

import assert from 'node:assert/strict'
import { key } from '../../core/key.ts'
import type { BegunStep, Change, Claim, TransactionalSteps } from '../../core/store.ts'
import {
  ask,
  assertBusy,
  bounded,
  eventually,
  failureOf,
  faultsOf,
  grantedOf,
  having,
  inspectableOf,
  leaseMs,
  minuteMs,
  request,
} from './case.ts'
import type { ContractCase } from './case.ts'
import { assertEndedByEffect } from './begin.ts'
import { advance, anOperation, contents, enlist, enlisted, input, operationsOf, record, running } from './operations.ts'
import type { LedgerStore } from './operations.ts'
import type { ContractSubject } from './subject.ts'

interface StepSubject {
  readonly store: LedgerStore & TransactionalSteps<unknown>
  readonly transactions: NonNullable<ContractSubject['transactions']>
}

function stepsOf({ store, transactions }: ContractSubject): StepSubject {
  assert.ok(transactions, 'the subject lends no transactions')
  const steps: TransactionalSteps<unknown> = having(store, ['beginStep'], 'transactional-steps')
  return { store: Object.assign(operationsOf(store), { beginStep: steps.beginStep }), transactions }
}

async function beginStep({ store }: StepSubject, claim: Claim): Promise<BegunStep<unknown>> {
  const begun = await store.beginStep(claim)
  assert.ok(begun, 'expected the step to begin')
  return begun
}

const done: Change = { records: [record('order', 1, 'done')], becomes: running }

const steps: readonly ContractCase[] = [
  {
    name: 'a step in a transaction commits with its record',
    guarantee: 'transactional-steps',
    async run(subject) {
      const lent = stepsOf(subject)
      const claim = await enlisted(lent.store)
      const begun = await beginStep(lent, claim)
      await lent.transactions.addEffect(begun.tx, 'order')
      assert.equal(await begun.commit(done), 'done')
      assert.equal(await lent.transactions.countEffects('order'), 1)
      assert.deepEqual(await contents(lent.store), { order: 'done' })
      assertBusy(await enlist(lent.store), leaseMs)
    },
  },
  {
    name: 'a step that is rolled back leaves neither effect nor record, and the operation goes on',
    guarantee: 'transactional-steps',
    async run(subject) {
      const lent = stepsOf(subject)
      const claim = await enlisted(lent.store)
      const begun = await beginStep(lent, claim)
      await lent.transactions.addEffect(begun.tx, 'order')
      await begun.rollback()
      assert.equal(await lent.transactions.countEffects('order'), 0)
      assert.deepEqual(await contents(lent.store), {})
      const again = await beginStep(lent, claim)
      await lent.transactions.addEffect(again.tx, 'order')
      assert.equal(await again.commit(done), 'done')
      assert.equal(await lent.transactions.countEffects('order'), 1)
    },
  },
  {
    name: 'a step that commits its transaction itself is OUTCOME_UNKNOWN, and is not recorded',
    guarantee: 'transactional-steps',
    async run(subject) {
      const lent = stepsOf(subject)
      const begun = await beginStep(lent, await enlisted(lent.store))
      await lent.transactions.addEffect(begun.tx, 'order')
      await lent.transactions.commitByHand(begun.tx)
      assertEndedByEffect(await failureOf(begun.commit(done)))
      assert.equal(await lent.transactions.countEffects('order'), 1)
      assert.deepEqual(await contents(lent.store), {})
    },
  },
  {
    name: 'a step of a holder that was taken over does not begin',
    guarantee: 'transactional-steps',
    async run(subject) {
      const lent = stepsOf(subject)
      const zombie = await enlisted(lent.store)
      await subject.advance(leaseMs + minuteMs)
      await enlisted(lent.store)
      const begun = await lent.store.beginStep(zombie)
      await begun?.rollback()
      assert.equal(begun, undefined)
    },
  },
  {
    name: 'a step of a holder whose claim came again after its operation was forgotten does not begin',
    guarantee: 'transactional-steps',
    async run(subject) {
      const lent = stepsOf(subject)
      const asked = { ...request(), input }
      const zombie = grantedOf(await operationsOf(lent.store).enlist(anOperation, asked))
      await inspectableOf(subject).mend(anOperation, 'forget', 'a test')
      await subject.advance(1)
      const revived = grantedOf(await operationsOf(lent.store).enlist(anOperation, asked))
      const revenant = await lent.store.beginStep(zombie)
      await revenant?.rollback() // or its connection would keep the subject from ending
      assert.equal(revenant, undefined)
      const begun = await beginStep(lent, revived)
      await lent.transactions.addEffect(begun.tx, 'order')
      assert.equal(await begun.commit(done), 'done')
      assert.equal(await lent.transactions.countEffects('order'), 1)
    },
  },
  {
    name: 'a step whose holder is taken over while it runs is rolled back at its commit',
    guarantee: 'transactional-steps',
    async run(subject) {
      const lent = stepsOf(subject)
      const zombie = await enlisted(lent.store)
      const begun = await beginStep(lent, zombie)
      await subject.advance(leaseMs + minuteMs)
      // Where the open transaction keeps other writers out, it also keeps the heir away until it has ended.
      const heir = await bounded('a claim beside an open step', enlist(lent.store)).catch(() => undefined)
      await lent.transactions.addEffect(begun.tx, 'order')
      const committed = await begun.commit(done)
      if (heir?.is === 'granted') {
        assert.equal(committed, 'lost')
        assert.equal(await lent.transactions.countEffects('order'), 0)
        assert.deepEqual(await contents(lent.store), {})
      } else {
        assert.equal(committed, 'done')
        assert.equal(await lent.transactions.countEffects('order'), 1)
      }
    },
  },
  {
    name: 'what a step writes after it was abandoned reaches nobody',
    guarantee: 'transactional-steps',
    async run(subject) {
      const lent = stepsOf(subject)
      const claim = await enlisted(lent.store)
      const begun = await beginStep(lent, claim)
      await lent.transactions.addEffect(begun.tx, 'order')
      await begun.abandon()
      await lent.transactions.addEffect(begun.tx, 'order').catch(() => {})
      assert.equal(await lent.transactions.countEffects('order'), 0)
      assert.deepEqual(await contents(lent.store), {})
      const again = await beginStep(lent, claim)
      assert.equal(await again.commit(done), 'done')
    },
  },
  {
    name: 'a step in a transaction is told of a wish to cancel',
    guarantee: 'transactional-steps',
    async run(subject) {
      const lent = stepsOf(subject)
      const claim = await enlisted(lent.store)
      await lent.store.requestCancel(anOperation, 'enough')
      const begun = await beginStep(lent, claim)
      await lent.transactions.addEffect(begun.tx, 'order')
      assert.equal(await begun.commit(done), 'cancelled')
      assert.equal(await lent.transactions.countEffects('order'), 1)
    },
  },
]

const faults: readonly ContractCase[] = [
  {
    name: 'what was recorded of an operation survives a crash of the server',
    guarantee: 'crash-recovery',
    async run(subject) {
      const { store } = subject
      const claim = await enlisted(store)
      await advance(store, claim, [record('charge', 1, 'done')])
      await faultsOf(subject, 'crash-recovery').crashServer()
      assert.deepEqual(await eventually(() => contents(store)), { charge: 'done' })
      assert.equal(await eventually(() => advance(store, claim, [record('charge', 2, 'later')])), 'done')
    },
  },
  {
    name: 'a store that cannot be reached writes no record, and says so soon',
    guarantee: 'connection-faults',
    async run(subject) {
      const { store } = subject
      const claim = await enlisted(store)
      const lent = faultsOf(subject, 'connection-faults')
      await lent.cutOff()
      await bounded('an advance while it is cut off', failureOf(advance(store, claim, [record('charge', 1, 'x')])))
      await lent.heal()
      await eventually(() => ask(store, key('contract', 'any')))
    },
  },
  {
    name: 'a step whose connection is cut before COMMIT leaves neither effect nor record',
    guarantee: 'commit-faults',
    async run(subject) {
      const lent = stepsOf(subject)
      const fault = faultsOf(subject, 'commit-faults')
      const claim = await enlisted(lent.store)
      const begun = await beginStep(lent, claim)
      await lent.transactions.addEffect(begun.tx, 'order')
      await fault.cutAtCommit('before')
      await bounded(
        'a commit that is cut off',
        begun.commit(done).catch(() => {}),
      )
      await begun.rollback().catch(() => {})
      await fault.heal()
      assert.equal(await eventually(() => lent.transactions.countEffects('order')), 0)
      assert.deepEqual(await contents(lent.store), {})
    },
  },
  {
    name: 'a step whose reply to COMMIT is lost has both effect and record, and is not taken for undone',
    guarantee: 'commit-faults',
    async run(subject) {
      const lent = stepsOf(subject)
      const fault = faultsOf(subject, 'commit-faults')
      const claim = await enlisted(lent.store)
      const begun = await beginStep(lent, claim)
      await lent.transactions.addEffect(begun.tx, 'order')
      await fault.cutAtCommit('after')
      const error = await bounded('a commit whose reply is lost', failureOf(begun.commit(done)))
      assert.equal(error.executed, 'unknown')
      await begun.rollback().catch(() => {})
      await fault.heal()
      assert.equal(await eventually(() => lent.transactions.countEffects('order')), 1)
      assert.deepEqual(await contents(lent.store), { order: 'done' })
    },
  },
]

export const stepCases: readonly ContractCase[] = [...steps, ...faults]

// The contract, part 10: a store whose transactions do not stay open. What an effect collected is written with its outcome, all of
// it or nothing, and only by the holder of the key. Effects are counted, so that one too many shows.

import assert from 'node:assert/strict'
import { key } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Claim, Collecting, Collector, Store } from '../../core/store.ts'
import {
  aKey,
  ask,
  assertBusy,
  assertGranted,
  assertSettled,
  bytesOf,
  eventually,
  failureOf,
  faultsOf,
  grantedOf,
  having,
  leaseMs,
  missing,
  request,
  retention,
  take,
  times,
} from './case.ts'
import type { ContractCase } from './case.ts'
import type { ContractSubject } from './subject.ts'

interface CollectingSubject {
  readonly store: Store & Collecting<unknown>
  readonly lent: NonNullable<ContractSubject['collecting']>
  /** An effect that has collected these and has ended. */
  collected(of: Key, ...names: readonly string[]): unknown
  settle(claim: Claim, outcome: string, collected: unknown): ReturnType<Store['settle']>
}

function collectingOf(subject: ContractSubject): CollectingSubject {
  assert.ok(subject.collecting, missing('the subject lends nothing to collect', 'collecting'))
  const store: Store & Collecting<unknown> = having(subject.store, ['collect', 'settleWith'], 'collecting')
  const lent = subject.collecting
  return {
    store,
    lent,
    collected(of, ...names) {
      const { tx, end } = store.collect(of)
      for (const name of names) lent.addEffect(tx, name)
      return end()
    },
    settle: (claim, outcome, collected) => store.settleWith(claim, bytesOf(outcome), retention, collected),
  }
}

async function assertEffects({ lent }: CollectingSubject, expected: Readonly<Record<string, number>>): Promise<void> {
  for (const [name, count] of Object.entries(expected)) {
    assert.equal(await lent.countEffects(name), count, `expected ${count} of the effect ${name}`)
  }
}

/** Refused or ignored, but never written. */
function addLate({ lent }: CollectingSubject, { tx }: Collector<unknown, unknown>, name: string): void {
  try {
    lent.addEffect(tx, name)
  } catch {
    // That is how most stores say it.
  }
}

export const collectingCases: readonly ContractCase[] = [
  {
    name: 'what an effect collected is written with its outcome, and not before',
    guarantee: 'collecting',
    async run(subject) {
      const given = collectingOf(subject)
      const claim = await take(given.store, aKey)
      const collected = given.collected(aKey, 'a', 'b')
      await assertEffects(given, { a: 0, b: 0 })
      assertBusy(await ask(given.store, aKey), leaseMs)
      assert.equal(await given.settle(claim, 'written', collected), 'done')
      await assertEffects(given, { a: 1, b: 1 })
      assertSettled(await ask(given.store, aKey), bytesOf('written'))
    },
  },
  {
    name: 'an effect that collected nothing is settled all the same',
    guarantee: 'collecting',
    async run(subject) {
      const given = collectingOf(subject)
      assert.equal(await given.settle(await take(given.store, aKey), 'nothing', given.collected(aKey)), 'done')
      assertSettled(await ask(given.store, aKey), bytesOf('nothing'))
    },
  },
  {
    name: 'a settle with what was collected that is repeated with its token is done again, and writes nothing twice',
    guarantee: 'collecting',
    async run(subject) {
      const given = collectingOf(subject)
      const claim = await take(given.store, aKey)
      const collected = given.collected(aKey, 'a')
      for (const _ of times(3)) assert.equal(await given.settle(claim, 'once', collected), 'done')
      await assertEffects(given, { a: 1 })
    },
  },
  {
    name: 'what a holder collected that was taken over is lost, and not written',
    guarantee: 'collecting',
    async run(subject) {
      const given = collectingOf(subject)
      const zombie = await take(given.store, aKey)
      const old = given.collected(aKey, 'old')
      await subject.advance(2 * leaseMs)
      const holder = await take(given.store, aKey)
      assert.equal(await given.settle(zombie, 'zombie', old), 'lost')
      assert.equal(await given.settle(holder, 'holder', given.collected(aKey, 'new')), 'done')
      assert.equal(await given.settle(zombie, 'zombie', old), 'lost')
      await assertEffects(given, { old: 0, new: 1 })
      assertSettled(await ask(given.store, aKey), bytesOf('holder'))
    },
  },
  {
    name: 'what was collected in another life of the same token is lost, and not written',
    guarantee: 'collecting',
    async run(subject) {
      const given = collectingOf(subject)
      const asked = request()
      const zombie = grantedOf(await given.store.claim(aKey, asked))
      const old = given.collected(aKey, 'old')
      await subject.advance(2 * leaseMs)
      assert.equal(await given.store.release(await take(given.store, aKey), 'open'), 'done')
      const revived = assertGranted(await given.store.claim(aKey, asked), 'reopened', 3)
      assert.equal(await given.settle(zombie, 'zombie', old), 'lost')
      assert.equal(await given.settle(revived, 'revived', given.collected(aKey, 'new')), 'done')
      await assertEffects(given, { old: 0, new: 1 })
    },
  },
  {
    name: 'a write that is refused is COMMIT_REFUSED: nothing is written, and the claim still holds the key',
    guarantee: 'collecting',
    async run(subject) {
      const given = collectingOf(subject)
      const claim = await take(given.store, aKey)
      const collector = given.store.collect(aKey)
      given.lent.addEffect(collector.tx, 'a')
      given.lent.addRefused(collector.tx)
      const { code, executed } = await failureOf(given.settle(claim, 'refused', collector.end()))
      assert.deepEqual({ code, executed }, { code: 'COMMIT_REFUSED', executed: 'no' })
      await assertEffects(given, { a: 0 })
      assertBusy(await ask(given.store, aKey), leaseMs)
      assert.equal(await given.store.settle(claim, bytesOf('no funds'), retention), 'done')
      assertSettled(await ask(given.store, aKey), bytesOf('no funds'))
    },
  },
  {
    name: 'what is collected after the end of the effect is never written',
    guarantee: 'collecting',
    async run(subject) {
      const given = collectingOf(subject)
      const claim = await take(given.store, aKey)
      const collector = given.store.collect(aKey)
      given.lent.addEffect(collector.tx, 'a')
      const collected = collector.end()
      addLate(given, collector, 'late')
      assert.equal(await given.settle(claim, 'ended', collected), 'done')
      addLate(given, collector, 'late')
      await assertEffects(given, { a: 1, late: 0 })
    },
  },
  {
    name: 'effects that collect at the same time write each its own',
    guarantee: 'collecting',
    async run(subject) {
      const given = collectingOf(subject)
      const keys = times(8).map((index) => key('contract', `key ${index}`))
      const claims = await Promise.all(keys.map((each) => take(given.store, each)))
      const collectors = keys.map((each) => given.store.collect(each))
      for (const [index, { tx }] of collectors.entries()) given.lent.addEffect(tx, `effect ${index}`)
      const ends = claims.slice(0, 4).map((claim, index) => given.settle(claim, claim.key.id, collectors[index]!.end()))
      assert.deepEqual(
        await Promise.all(ends),
        ends.map(() => 'done'),
      )
      await assertEffects(given, Object.fromEntries(times(8).map((index) => [`effect ${index}`, index < 4 ? 1 : 0])))
    },
  },
  {
    name: 'a settle with what was collected whose reply is lost says so, and its repetition writes nothing twice',
    guarantee: 'collecting',
    async run(subject) {
      const given = collectingOf(subject)
      const claim = await take(given.store, aKey)
      const collected = given.collected(aKey, 'a')
      await faultsOf(subject, 'connection-faults').dropNextReply()
      // A client that repeats by itself may hide the loss. Whoever is told of it is not told that nothing was written.
      const told = await given.settle(claim, 'lost reply', collected).catch((error: unknown) => error)
      if (told !== 'done') {
        const { executed } = await failureOf(Promise.reject(told as Error))
        assert.equal(executed, 'unknown')
      }
      assert.equal(await eventually(() => given.settle(claim, 'lost reply', collected)), 'done')
      await assertEffects(given, { a: 1 })
      assertSettled(await ask(given.store, aKey), bytesOf('lost reply'))
    },
  },
]

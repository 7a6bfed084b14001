// The contract, part 6: expiry by a sweep. A sweep frees space, and never changes what a caller gets.

import assert from 'node:assert/strict'
import { key } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Store, Swept, Sweepable } from '../../core/store.ts'
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
  sweepableOf,
  take,
  times,
} from './case.ts'
import type { ContractCase } from './case.ts'

const short = { keepMs: 10 * hourMs, tombstoneMs: 10 * hourMs }
const nothing = { tombstoned: 0, forgotten: 0 }

/** Steps until there is no more, each within its limit. */
async function sweepAll(store: Sweepable, limit = 1_000): Promise<Omit<Swept, 'more'>> {
  const sum = { ...nothing }
  // A step may find nothing and still not be at the end, but it may not go on forever.
  for (let step = 0; step < 100; step++) {
    const { tombstoned, forgotten, more } = await store.sweep({ limit })
    assert.ok(
      tombstoned + forgotten <= limit,
      `expected at most ${limit} entries in a step, got ${tombstoned + forgotten}`,
    )
    sum.tombstoned += tombstoned
    sum.forgotten += forgotten
    if (!more) return sum
  }
  throw new assert.AssertionError({ message: 'the sweep said "more" a hundred times' })
}

async function settleMany(store: Store, count: number): Promise<readonly Key[]> {
  const keys = times(count).map((index) => key('contract', `key ${index}`))
  await Promise.all(
    keys.map((each) => finish(store, each, bytesOf('old'), { retention: short, input: bytesOf('input') })),
  )
  return keys
}

export const sweepCases: readonly ContractCase[] = [
  {
    name: 'a sweep of an empty store does nothing',
    guarantee: 'sweep',
    async run({ store }) {
      assert.deepEqual(await sweepableOf(store).sweep({ limit: 10 }), { ...nothing, more: false })
    },
  },
  {
    name: 'a sweep never touches a running key, however long ago it was first claimed',
    guarantee: 'sweep',
    async run(subject) {
      const { store } = subject
      const claim = await take(store, aKey, { leaseMs: 15 * hourMs, retention: short, input: bytesOf('input') })
      for (let round = 0; round < 4; round++) {
        await subject.advance(14 * hourMs)
        assert.deepEqual(await sweepAll(sweepableOf(store)), nothing)
        assertBusy(await ask(store, aKey), 15 * hourMs)
        assert.equal(await store.extend(claim, 15 * hourMs), 'done')
      }
      assert.equal(await store.settle(claim, bytesOf('old'), short), 'done')
      assertSettled(await ask(store, aKey), bytesOf('old'))
    },
  },
  {
    name: 'a sweep never touches a settled, open or abandoned key that is not expired',
    guarantee: 'sweep',
    async run(subject) {
      const { store } = subject
      const [settled, open, abandoned] = [key('contract', '1'), key('contract', '2'), key('contract', '3')]
      const claim = await take(store, settled, { leaseMs: 15 * hourMs, retention: short })
      const second = await take(store, open, { leaseMs: 15 * hourMs, retention: short })
      await take(store, abandoned, { leaseMs: 15 * hourMs, retention: short })
      await subject.advance(14 * hourMs)
      assert.equal(await store.settle(claim, bytesOf('kept'), short), 'done')
      assert.equal(await store.release(second, 'open'), 'done')
      await subject.advance(9 * hourMs)
      assert.deepEqual(await sweepAll(sweepableOf(store)), nothing)
      assertSettled(await ask(store, settled), bytesOf('kept'))
      assertGranted(await ask(store, open), 'reopened', 2)
      assertGranted(await ask(store, abandoned), 'taken-over', 2)
    },
  },
  {
    name: 'a swept tombstone has lost what it held and answers expired as before',
    guarantee: 'counted-sweep',
    async run(subject) {
      const { store } = subject
      const [settled] = await settleMany(store, 1)
      await subject.advance(leaseMs + 11 * hourMs)
      assertIs(await ask(store, settled!), 'expired')
      assert.deepEqual(await sweepAll(sweepableOf(store)), { tombstoned: 1, forgotten: 0 })
      assertIs(await ask(store, settled!), 'expired')
      assertIs(await ask(store, settled!, { fingerprint: 'x'.repeat(43) }), 'expired')
      const entry = await store.show?.(settled!)
      assert.deepEqual([entry?.outcome, entry?.input], [undefined, undefined])
      assert.deepEqual(await sweepAll(sweepableOf(store)), nothing)
    },
  },
  {
    name: 'a swept tombstone gives way to a fresh life with onExpired execute, and later sweeps leave that alone',
    guarantee: 'sweep',
    async run(subject) {
      const { store } = subject
      const old = await finish(store, aKey, bytesOf('old'), { retention: short })
      await subject.advance(leaseMs + 11 * hourMs)
      await sweepAll(sweepableOf(store))
      const claim = assertGranted(await ask(store, aKey, { onExpired: 'run', retention: short }), 'fresh', 1)
      assert.ok(claim.fence > old.fence, `expected a fence above ${old.fence}, got ${claim.fence}`)
      assert.equal(await store.settle(claim, bytesOf('new'), { ...short, keepMs: 50 * hourMs }), 'done')
      // Now the first life would be forgotten, and the retention of its claim has passed, too.
      await subject.advance(30 * hourMs)
      assert.deepEqual(await sweepAll(sweepableOf(store)), nothing)
      assertSettled(await ask(store, aKey), bytesOf('new'))
    },
  },
  {
    name: 'a sweep forgets tombstones that are over, swept before or not',
    guarantee: 'counted-sweep',
    async run(subject) {
      const { store } = subject
      const [first] = await settleMany(store, 1)
      await subject.advance(leaseMs + 11 * hourMs)
      await sweepAll(sweepableOf(store))
      await finish(store, aKey, bytesOf('never swept'), { retention: { keepMs: hourMs, tombstoneMs: hourMs } })
      await subject.advance(leaseMs + 11 * hourMs)
      assert.deepEqual(await sweepAll(sweepableOf(store)), { tombstoned: 0, forgotten: 2 })
      assert.equal(await store.show?.(first!), undefined)
      assertGranted(await ask(store, first!), 'fresh', 1)
      assertGranted(await ask(store, aKey), 'fresh', 1)
    },
  },
  {
    name: 'a step of a sweep is bounded by its limit and says whether there is more',
    guarantee: 'counted-sweep',
    async run(subject) {
      const { store } = subject
      const keys = await settleMany(store, 25)
      await subject.advance(leaseMs + 11 * hourMs)
      const step = await sweepableOf(store).sweep({ limit: 10 })
      assert.ok(step.tombstoned + step.forgotten <= 10, `expected at most 10, got ${JSON.stringify(step)}`)
      assert.equal(step.more, true)
      const rest = await sweepAll(sweepableOf(store), 10)
      assert.deepEqual({ ...rest, tombstoned: rest.tombstoned + step.tombstoned }, { tombstoned: 25, forgotten: 0 })
      for (const each of keys) assertIs(await ask(store, each), 'expired')
      await subject.advance(10 * hourMs)
      assert.deepEqual(await sweepAll(sweepableOf(store), 10), { tombstoned: 0, forgotten: 25 })
    },
  },
  {
    name: 'two sweeps at once do the work once',
    guarantee: 'counted-sweep',
    async run(subject) {
      const stores = [sweepableOf(subject.store), sweepableOf(await subject.another())]
      const keys = await settleMany(subject.store, 25)
      for (const [advanceMs, expected] of [
        [leaseMs + 11 * hourMs, { tombstoned: 25, forgotten: 0 }],
        [10 * hourMs, { tombstoned: 0, forgotten: 25 }],
      ] as const) {
        await subject.advance(advanceMs)
        const [first, second] = await Promise.all(stores.map((store) => sweepAll(store, 4)))
        // The sweep that gave way to the other may have ended early. Nothing is left for a third.
        const third = await sweepAll(stores[0]!, 4)
        const sum = (name: 'tombstoned' | 'forgotten'): number => first![name] + second![name] + third[name]
        assert.deepEqual({ tombstoned: sum('tombstoned'), forgotten: sum('forgotten') }, expected)
      }
      for (const each of keys) assertGranted(await ask(subject.store, each), 'fresh', 1)
    },
  },
  {
    name: 'a key that is claimed anew while a sweep is forgetting it is kept',
    guarantee: 'sweep',
    async run(subject) {
      const { store } = subject
      const keys = await settleMany(store, 25)
      await subject.advance(leaseMs + 25 * hourMs)
      const second = sweepableOf(await subject.another())
      const sweeps = [sweepAll(second, 3), sweepAll(sweepableOf(store), 3)]
      const verdicts = await Promise.all(keys.map((each) => ask(store, each)))
      await Promise.all(sweeps)
      for (const [index, verdict] of verdicts.entries()) {
        // A claim may find that a sweep has locked the entry. It is `busy` then, and granted when the sweep has ended.
        const claim = verdict.is === 'busy' ? await take(store, keys[index]!) : grantedOf(verdict)
        assert.equal(await store.settle(claim, bytesOf('new'), short), 'done')
        assertSettled(await ask(store, claim.key), bytesOf('new'))
      }
    },
  },
]

// The contract, part 7: entries are looked at and changed manually, and every manual change leaves its reason.

import assert from 'node:assert/strict'
import { key } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Claim, EntryState } from '../../core/store.ts'
import {
  aKey,
  ask,
  assertGranted,
  assertIs,
  assertSettled,
  bytesOf,
  fingerprintOf,
  finish,
  hourMs,
  inspectableOf,
  leaseMs,
  minuteMs,
  otherFingerprint,
  take,
  times,
} from './case.ts'
import type { ContractCase } from './case.ts'
import type { ContractSubject } from './subject.ts'

const kept = { keepMs: 10 * hourMs, tombstoneMs: 20 * hourMs }

/** An entry in each state. The clock moves, so the states that need time come first. */
async function oneOfEach(subject: ContractSubject): Promise<Record<EntryState, Key>> {
  const { store } = subject
  const named = (id: string): Key => key('each state', id)
  await finish(store, named('tombstone'), bytesOf('old'), { retention: kept })
  await subject.advance(11 * hourMs)
  await take(store, named('abandoned'), { retention: kept })
  await subject.advance(2 * leaseMs)
  await store.release(await take(store, named('open'), { retention: kept }), 'open')
  await finish(store, named('settled'), bytesOf('outcome'), { retention: kept })
  await take(store, named('running'), { retention: kept })
  return {
    tombstone: named('tombstone'),
    abandoned: named('abandoned'),
    open: named('open'),
    settled: named('settled'),
    running: named('running'),
  }
}

const showing: readonly ContractCase[] = [
  {
    name: 'show tells every state, and nothing of a key that is absent',
    guarantee: 'inspection',
    async run(subject) {
      const inspectable = inspectableOf(subject)
      for (const [state, each] of Object.entries(await oneOfEach(subject))) {
        const entry = await inspectable.show(each)
        assert.equal(entry?.state, state)
        assert.deepEqual({ ...entry?.key }, { ...each })
        assert.equal(entry?.attempt, 1)
        assert.equal(entry?.expiresAtMs - entry?.leaseUntilMs, kept.keepMs)
        assert.equal(entry?.forgottenAtMs - entry?.expiresAtMs, kept.tombstoneMs)
      }
      assert.equal(await inspectable.show(aKey), undefined)
    },
  },
  {
    name: 'show tells what an entry holds',
    guarantee: 'inspection',
    async run(subject) {
      const inspectable = inspectableOf(subject)
      const claim = await take(subject.store, aKey, { input: Uint8Array.of(0, 255, 1), version: 7, retention: kept })
      const running = await inspectable.show(aKey)
      assert.deepEqual(
        [running?.fence, running?.fingerprint, running?.version, running?.outcome],
        [claim.fence, fingerprintOf('a request'), 7, undefined],
      )
      assert.deepEqual(Uint8Array.from(running?.input ?? []), Uint8Array.of(0, 255, 1))
      assert.equal(await subject.store.settle(claim, bytesOf('outcome'), kept), 'done')
      const settled = await inspectable.show(aKey)
      assert.deepEqual(Uint8Array.from(settled?.outcome ?? []), bytesOf('outcome'))
      assert.equal(settled?.firstClaimedAtMs, running?.firstClaimedAtMs)
    },
  },
  {
    name: 'an entry without input shows none, and an empty input is not no input',
    guarantee: 'inspection',
    async run(subject) {
      const inspectable = inspectableOf(subject)
      await take(subject.store, aKey)
      assert.equal((await inspectable.show(aKey))?.input, undefined)
      const other = key('contract', 'empty input')
      await take(subject.store, other, { input: new Uint8Array(0) })
      assert.equal((await inspectable.show(other))?.input?.length, 0)
    },
  },
  {
    name: 'the input is kept for later attempts that bring none',
    guarantee: 'inspection',
    async run(subject) {
      const { store } = subject
      await take(store, aKey, { input: bytesOf('input') })
      await subject.advance(2 * leaseMs)
      await store.release(await take(store, aKey), 'open')
      await take(store, aKey)
      const entry = await inspectableOf(subject).show(aKey)
      assert.equal(entry?.attempt, 3)
      assert.deepEqual(Uint8Array.from(entry?.input ?? []), bytesOf('input'))
    },
  },
  {
    name: 'a takeover keeps the time of the first claim',
    guarantee: 'inspection',
    async run(subject) {
      const inspectable = inspectableOf(subject)
      await take(subject.store, aKey)
      const first = await inspectable.show(aKey)
      assert.equal(first!.leaseUntilMs - first!.firstClaimedAtMs, leaseMs)
      await subject.advance(2 * leaseMs)
      await take(subject.store, aKey)
      const second = await inspectable.show(aKey)
      assert.equal(second?.firstClaimedAtMs, first?.firstClaimedAtMs)
      assert.ok(second!.leaseUntilMs >= first!.leaseUntilMs + 2 * leaseMs)
    },
  },
]

const listing: readonly ContractCase[] = [
  {
    name: 'list finds the entries of a state, each once',
    guarantee: 'inspection',
    async run(subject) {
      const inspectable = inspectableOf(subject)
      const each = await oneOfEach(subject)
      for (const state of Object.keys(each) as EntryState[]) {
        const found = await inspectable.list({ state, limit: 100 })
        assert.deepEqual(
          found.map((entry) => entry.key.id),
          [state],
        )
        assert.deepEqual(
          found.map((entry) => entry.state),
          [state],
        )
      }
      assert.equal((await inspectable.list({ limit: 100 })).length, 5)
      assert.deepEqual(await inspectable.list({ scope: 'another scope', limit: 100 }), [])
    },
  },
  {
    name: 'list pages through the entries of a scope in their order, without gap or repetition',
    guarantee: 'inspection',
    async run(subject) {
      const inspectable = inspectableOf(subject)
      const ids = times(10).map((index) => `key ${index}`)
      const keys = ['b', 'a', 'c'].flatMap((scope) => ids.map((id) => key(scope, id)))
      await Promise.all(keys.map((each) => take(subject.store, each)))
      const found: string[] = []
      let after: Key | undefined
      do {
        const page = await inspectable.list({ scope: 'b', limit: 3, ...(after && { after }) })
        assert.ok(page.length <= 3)
        found.push(...page.map((entry) => `${entry.key.scope} ${entry.key.id}`))
        after = page.at(-1)?.key
      } while (after)
      assert.deepEqual(
        found,
        ids.map((id) => `b ${id}`),
      )
      const all = await inspectable.list({ limit: 100 })
      assert.deepEqual(
        all.map((entry) => entry.key.scope),
        ['a', 'b', 'c'].flatMap((scope) => ids.map(() => scope)),
      )
      const rest = await inspectable.list({ after: key('b', 'key 8'), limit: 100 })
      assert.deepEqual(
        rest.map((entry) => entry.key.scope),
        ['b', ...ids.map(() => 'c')],
      )
    },
  },
  {
    name: 'list does not show what is forgotten, swept or not',
    guarantee: 'inspection',
    async run(subject) {
      await finish(subject.store, aKey, bytesOf('old'), { retention: { keepMs: hourMs, tombstoneMs: hourMs } })
      await subject.advance(3 * hourMs)
      assert.deepEqual(await inspectableOf(subject).list({ limit: 100 }), [])
      assert.equal(await inspectableOf(subject).show(aKey), undefined)
    },
  },
]

async function assertFenced(subject: ContractSubject, claim: Claim): Promise<void> {
  assert.equal(await subject.store.extend(claim, leaseMs), 'lost')
  assert.equal(await subject.store.settle(claim, bytesOf('zombie'), kept), 'lost')
}

const mending: readonly ContractCase[] = [
  {
    name: 'releasing a running key by hand opens it and fences its holder',
    guarantee: 'inspection',
    async run(subject) {
      const claim = await take(subject.store, aKey)
      const before = await inspectableOf(subject).mend(aKey, 'release', 'the worker hangs')
      assert.equal(before?.state, 'running')
      assert.equal((await inspectableOf(subject).show(aKey))?.state, 'open')
      await assertFenced(subject, claim)
      const next = assertGranted(await ask(subject.store, aKey), 'reopened', 2)
      assert.ok(next.fence > claim.fence, `expected a fence above ${claim.fence}, got ${next.fence}`)
      await assertFenced(subject, claim)
      assert.equal(await subject.store.settle(next, bytesOf('next'), kept), 'done')
    },
  },
  {
    name: 'releasing an abandoned key by hand ends its doubt',
    guarantee: 'inspection',
    async run(subject) {
      const claim = await take(subject.store, aKey)
      await subject.advance(2 * leaseMs)
      const before = await inspectableOf(subject).mend(aKey, 'release', 'looked: it never ran')
      assert.equal(before?.state, 'abandoned')
      await assertFenced(subject, claim)
      assertGranted(await ask(subject.store, aKey, { onTakeover: 'refuse' }), 'reopened', 2)
    },
  },
  {
    name: 'releasing by hand changes nothing where there is nothing to release',
    guarantee: 'inspection',
    async run(subject) {
      const inspectable = inspectableOf(subject)
      const each = await oneOfEach(subject)
      for (const state of ['settled', 'open', 'tombstone'] as const) {
        const before = await inspectable.show(each[state])
        assert.deepEqual(await inspectable.mend(each[state], 'release', 'why not'), before)
        assert.deepEqual(await inspectable.show(each[state]), before)
        assert.deepEqual(await inspectable.audit(each[state]), [], 'expected no record of what was not changed')
      }
      assertSettled(await ask(subject.store, each.settled), bytesOf('outcome'))
      assert.equal(await inspectable.mend(aKey, 'release', 'why not'), undefined)
      assertGranted(await ask(subject.store, aKey), 'fresh', 1)
    },
  },
  {
    name: 'forgetting by hand frees a key in any state, also for another fingerprint',
    guarantee: 'inspection',
    async run(subject) {
      const inspectable = inspectableOf(subject)
      for (const [state, each] of Object.entries(await oneOfEach(subject))) {
        assert.equal((await inspectable.mend(each, 'forget', 'a test'))?.state, state)
        assert.equal(await inspectable.show(each), undefined)
        assertGranted(await ask(subject.store, each, { fingerprint: otherFingerprint }), 'fresh', 1)
      }
      assert.equal(await inspectable.mend(aKey, 'forget', 'nothing there'), undefined)
    },
  },
  {
    name: 'the holder of a key that was forgotten by hand can no longer write',
    guarantee: 'inspection',
    async run(subject) {
      const claim = await take(subject.store, aKey)
      await inspectableOf(subject).mend(aKey, 'forget', 'a test')
      await assertFenced(subject, claim)
      const next = assertGranted(await ask(subject.store, aKey), 'fresh', 1)
      await assertFenced(subject, claim)
      assert.equal(await subject.store.settle(next, bytesOf('next'), kept), 'done')
    },
  },
  {
    name: 'every manual change is on record with its reason, also after the entry is gone',
    guarantee: 'inspection',
    async run(subject) {
      const inspectable = inspectableOf(subject)
      assert.deepEqual(await inspectable.audit(aKey), [])
      await take(subject.store, aKey)
      const claimedAtMs = (await inspectable.show(aKey))!.firstClaimedAtMs
      await inspectable.mend(aKey, 'release', `it hung; see 'ticket' "42" ✓`)
      await subject.advance(hourMs)
      await inspectable.mend(aKey, 'forget', 'cleaned up')
      const records = await inspectable.audit(aKey)
      assert.deepEqual(
        records.map(({ action, reason, before }) => [action, reason, before]),
        [
          ['release', `it hung; see 'ticket' "42" ✓`, 'running'],
          ['forget', 'cleaned up', 'open'],
        ],
      )
      assert.deepEqual({ ...records[0]?.key }, { ...aKey })
      assert.ok(records[0]!.atMs >= claimedAtMs && records[1]!.atMs >= records[0]!.atMs + hourMs, 'expected the times')
      assert.deepEqual(await inspectable.audit(key('contract', 'another key')), [])
    },
  },
]

/** A person found out what became of it. */
const found = { resolve: bytesOf('found out'), retention: { keepMs: 3 * hourMs, tombstoneMs: hourMs } } as const

const resolving: readonly ContractCase[] = [
  ...(['running', 'abandoned', 'open'] as const).map((state): ContractCase => ({
    name: `resolving a key that is ${state} settles it with the outcome that was found out, and fences its holder off`,
    guarantee: 'inspection',
    async run(subject) {
      const inspectable = inspectableOf(subject)
      const claim = await take(subject.store, aKey)
      if (state === 'abandoned') await subject.advance(2 * leaseMs)
      if (state === 'open') await subject.store.release(claim, 'open')
      assert.equal((await inspectable.mend(aKey, found, 'the bank says so'))?.state, state)
      assertSettled(await ask(subject.store, aKey, { onTakeover: 'refuse' }), found.resolve)
      await assertFenced(subject, claim)
      assert.equal(await subject.store.release(claim, 'open'), 'lost')
      assertSettled(await ask(subject.store, aKey), found.resolve)
      assert.deepEqual(
        (await inspectable.audit(aKey)).map(({ action, reason, before }) => [action, reason, before]),
        [['resolve', 'the bank says so', state]],
      )
    },
  })),
  {
    name: 'the retention of a key that was resolved is the one given, and counts from then',
    guarantee: 'inspection',
    async run(subject) {
      await take(subject.store, aKey)
      await subject.advance(2 * hourMs)
      await inspectableOf(subject).mend(aKey, found, 'looked')
      await subject.advance(2 * hourMs)
      assertSettled(await ask(subject.store, aKey), found.resolve)
      await subject.advance(90 * minuteMs)
      assertIs(await ask(subject.store, aKey), 'expired')
      await subject.advance(hourMs)
      assertGranted(await ask(subject.store, aKey), 'fresh', 1)
    },
  },
  {
    name: 'resolving changes nothing where the outcome is known, expired or was never asked for',
    guarantee: 'inspection',
    async run(subject) {
      const inspectable = inspectableOf(subject)
      const each = await oneOfEach(subject)
      for (const state of ['settled', 'tombstone'] as const) {
        const before = await inspectable.show(each[state])
        assert.deepEqual(await inspectable.mend(each[state], found, 'why not'), before)
        assert.deepEqual(await inspectable.show(each[state]), before)
        assert.deepEqual(await inspectable.audit(each[state]), [])
      }
      assertSettled(await ask(subject.store, each.settled), bytesOf('outcome'))
      assert.equal(await inspectable.mend(aKey, found, 'why not'), undefined)
      assert.equal(await inspectable.show(aKey), undefined)
    },
  },
]

const keeping: readonly ContractCase[] = [
  {
    name: 'keeping a settled, open or abandoned key prolongs it from now, and its tombstone follows then',
    guarantee: 'inspection',
    async run(subject) {
      const inspectable = inspectableOf(subject)
      const each = await oneOfEach(subject)
      for (const state of ['settled', 'open', 'abandoned'] as const) {
        const before = await inspectable.show(each[state])
        assert.deepEqual(await inspectable.mend(each[state], { keepMs: 1_000 * hourMs }, 'a dispute'), before)
        const after = (await inspectable.show(each[state]))!
        assert.equal(after.state, state)
        assert.equal(after.forgottenAtMs - after.expiresAtMs, before!.forgottenAtMs - before!.expiresAtMs)
        assert.deepEqual(
          [after.attempt, after.fence, after.leaseUntilMs],
          [before!.attempt, before!.fence, before!.leaseUntilMs],
        )
        assert.deepEqual(
          (await inspectable.audit(each[state])).map(({ action, before: was }) => [action, was]),
          [['keep', state]],
        )
      }
      await subject.advance(999 * hourMs)
      assertSettled(await ask(subject.store, each.settled), bytesOf('outcome'))
      assertIs(await ask(subject.store, each.abandoned, { onTakeover: 'refuse' }), 'doubt')
      assertGranted(await ask(subject.store, each.open), 'reopened', 2)
      await subject.advance(2 * hourMs)
      assertIs(await ask(subject.store, each.settled), 'expired')
    },
  },
  {
    name: 'keeping never shortens, and leaves a running or expired key as it is',
    guarantee: 'inspection',
    async run(subject) {
      const inspectable = inspectableOf(subject)
      const each = await oneOfEach(subject)
      for (const state of ['settled', 'open', 'abandoned', 'running', 'tombstone'] as const) {
        const before = await inspectable.show(each[state])
        await inspectable.mend(each[state], { keepMs: 1 }, 'a mistake')
        assert.deepEqual(await inspectable.show(each[state]), before)
      }
      for (const state of ['running', 'tombstone'] as const) {
        await inspectable.mend(each[state], { keepMs: 1_000 * hourMs }, 'a mistake')
        assert.deepEqual(await inspectable.audit(each[state]), [])
      }
    },
  },
  {
    name: 'the holder of an abandoned key that is kept for longer can still settle',
    guarantee: 'inspection',
    async run(subject) {
      const claim = await take(subject.store, aKey)
      await subject.advance(2 * leaseMs)
      await inspectableOf(subject).mend(aKey, { keepMs: 1_000 * hourMs }, 'to look into it')
      assert.equal(await subject.store.settle(claim, bytesOf('late'), kept), 'done')
      assertSettled(await ask(subject.store, aKey), bytesOf('late'))
    },
  },
]

export const inspectionCases: readonly ContractCase[] = [...showing, ...listing, ...mending, ...resolving, ...keeping]

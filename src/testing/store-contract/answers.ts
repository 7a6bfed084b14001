// The contract, part 3: what a later caller gets. Mismatch in every state, release, outcomes and unreadable data.

import assert from 'node:assert/strict'
import { OnceError } from '../../core/errors.ts'
import { key } from '../../core/key.ts'
import type { Claim, Entry, Store, Verdict } from '../../core/store.ts'
import {
  aKey,
  ask,
  assertBusy,
  assertGranted,
  assertIs,
  assertSettled,
  bytesOf,
  describe,
  finish,
  leaseMs,
  otherFingerprint,
  request,
  retention,
  take,
  times,
} from './case.ts'
import type { ContractCase } from './case.ts'
import type { ContractSubject } from './subject.ts'

const states: readonly {
  readonly name: string
  reach(subject: ContractSubject): Promise<Claim>
  /** The entry is as it was: a claim with its own fingerprint gets the verdict as if the other had never come. */
  assertUnharmed(store: Store, claim: Claim): Promise<void>
}[] = [
  {
    name: 'running',
    reach: ({ store }) => take(store, aKey, { input: bytesOf('input') }),
    async assertUnharmed(store, claim) {
      assertBusy(await ask(store, aKey), leaseMs)
      assert.equal(await store.extend(claim, leaseMs), 'done')
      assert.equal(await store.settle(claim, bytesOf('outcome'), retention), 'done')
      assertSettled(await ask(store, aKey), bytesOf('outcome'))
    },
  },
  {
    name: 'abandoned',
    async reach(subject) {
      const claim = await take(subject.store, aKey, { input: bytesOf('input') })
      await subject.advance(2 * leaseMs)
      return claim
    },
    async assertUnharmed(store, claim) {
      assert.deepEqual(await ask(store, aKey, { onTakeover: 'refuse' }), { is: 'doubt', attempt: 1 })
      assert.equal(await store.settle(claim, bytesOf('outcome'), retention), 'done')
      assertSettled(await ask(store, aKey), bytesOf('outcome'))
    },
  },
  {
    name: 'open',
    async reach({ store }) {
      const claim = await take(store, aKey, { input: bytesOf('input') })
      assert.equal(await store.release(claim, 'open'), 'done')
      return claim
    },
    async assertUnharmed(store) {
      assertGranted(await ask(store, aKey), 'reopened', 2)
    },
  },
  {
    name: 'settled',
    reach: ({ store }) => finish(store, aKey, bytesOf('outcome')),
    async assertUnharmed(store) {
      assertSettled(await ask(store, aKey), bytesOf('outcome'))
    },
  },
]

async function entryOf({ store }: ContractSubject): Promise<Entry | undefined> {
  return store.show?.(aKey)
}

const mismatch: readonly ContractCase[] = [
  ...states.map((state): ContractCase => ({
    name: `another fingerprint on a key that is ${state.name} is a mismatch and harms nothing, whatever the policies`,
    guarantee: 'mismatch',
    async run(subject) {
      const claim = await state.reach(subject)
      const before = await entryOf(subject)
      for (const onTakeover of ['run', 'refuse'] as const) {
        for (const onExpired of ['refuse', 'run'] as const) {
          const changes = { fingerprint: otherFingerprint, onTakeover, onExpired, version: 9, input: bytesOf('other') }
          assert.deepEqual(await ask(subject.store, aKey, changes), { is: 'mismatch' })
        }
      }
      assert.deepEqual(await entryOf(subject), before)
      await state.assertUnharmed(subject.store, claim)
    },
  })),
  {
    name: 'another fingerprint is a mismatch even with the token that holds the key',
    guarantee: 'mismatch',
    async run({ store }) {
      const asked = request()
      await store.claim(aKey, asked)
      assertIs(await store.claim(aKey, { ...asked, fingerprint: otherFingerprint }), 'mismatch')
      assertBusy(await ask(store, aKey), leaseMs)
    },
  },
]

const release: readonly ContractCase[] = [
  {
    name: 'a key released open is claimed again at once: next attempt, new token, greater fence',
    guarantee: 'release',
    async run({ store }) {
      const first = await take(store, aKey)
      assert.equal(await store.release(first, 'open'), 'done')
      const asked = request({ onTakeover: 'refuse' })
      const second = assertGranted(await store.claim(aKey, asked), 'reopened', 2)
      assert.equal(second.token, asked.token)
      assert.ok(second.fence > first.fence, `expected a fence above ${first.fence}, got ${second.fence}`)
      assertBusy(await ask(store, aKey), leaseMs)
    },
  },
  {
    name: 'every reopening is one more attempt with a greater fence',
    guarantee: 'release',
    async run({ store }) {
      let before = await take(store, aKey)
      for (const attempt of [2, 3, 4, 5]) {
        assert.equal(await store.release(before, 'open'), 'done')
        const claim = assertGranted(await ask(store, aKey), 'reopened', attempt)
        assert.ok(claim.fence > before.fence, `expected a fence above ${before.fence}, got ${claim.fence}`)
        before = claim
      }
    },
  },
  {
    name: 'a first attempt released with forget leaves nothing: another fingerprint may claim the key',
    guarantee: 'release',
    async run(subject) {
      const { store } = subject
      assert.equal(await store.release(await take(store, aKey), 'forget'), 'done')
      assert.equal(await entryOf(subject), undefined)
      assertGranted(await ask(store, aKey, { fingerprint: otherFingerprint }), 'fresh', 1)
    },
  },
  {
    name: 'a takeover released with forget leaves the key open: the attempt before it did begin',
    guarantee: 'release',
    async run(subject) {
      const { store } = subject
      await take(store, aKey)
      await subject.advance(2 * leaseMs)
      assert.equal(await store.release(await take(store, aKey), 'forget'), 'done')
      assertIs(await ask(store, aKey, { fingerprint: otherFingerprint }), 'mismatch')
      assertGranted(await ask(store, aKey), 'reopened', 3)
    },
  },
  {
    name: 'a reopening released with forget leaves the key open',
    guarantee: 'release',
    async run({ store }) {
      assert.equal(await store.release(await take(store, aKey), 'open'), 'done')
      assert.equal(await store.release(await take(store, aKey), 'forget'), 'done')
      assertIs(await ask(store, aKey, { fingerprint: otherFingerprint }), 'mismatch')
      assertGranted(await ask(store, aKey), 'reopened', 3)
    },
  },
]

// Every byte value in an order that is no valid text, not compressible to a pattern, and the same in every run.
function noise(length: number): Uint8Array {
  const bytes = new Uint8Array(length)
  let state = 1
  for (let index = 0; index < length; index++) {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0
    bytes[index] = state >>> 16
  }
  return bytes
}

const outcomesToKeep: readonly { readonly name: string; readonly bytes: Uint8Array }[] = [
  { name: 'of no bytes', bytes: new Uint8Array(0) },
  { name: 'of one byte', bytes: Uint8Array.of(0) },
  { name: 'of all 256 byte values', bytes: Uint8Array.from(times(256)) },
  { name: 'of 1 MiB', bytes: noise(2 ** 20) },
  { name: 'that looks like JSON with odd spacing', bytes: bytesOf('{"b":1.0 ,"a":9007199254740993,"a":null}\n') },
  { name: 'that is part of a larger buffer', bytes: noise(1_000).subarray(100, 200) },
]

const outcomes: readonly ContractCase[] = [
  ...outcomesToKeep.map(({ name, bytes }): ContractCase => ({
    name: `an outcome ${name} comes back byte for byte`,
    guarantee: 'outcomes',
    async run(subject) {
      const expected = bytes.slice()
      await finish(subject.store, aKey, bytes)
      for (const store of [subject.store, await subject.another()]) {
        assertSettled(await ask(store, aKey), expected)
        assertSettled(await ask(store, aKey), expected)
      }
    },
  })),
  {
    name: 'outcomes of keys settled at once do not mix',
    guarantee: 'outcomes',
    async run({ store }) {
      const keys = times(50).map((index) => key('contract', `key ${index}`))
      await Promise.all(keys.map((each, index) => finish(store, each, noise(index))))
      const verdicts = await Promise.all(keys.map((each) => ask(store, each)))
      verdicts.forEach((verdict, index) => assertSettled(verdict, noise(index)))
    },
  },
  {
    name: 'bytes that callers change afterwards do not change the outcome',
    guarantee: 'outcomes',
    async run({ store }) {
      const mine = bytesOf('outcome')
      await finish(store, aKey, mine)
      mine.fill(0)
      const first = await ask(store, aKey)
      assertSettled(first, bytesOf('outcome'))
      if (first.is === 'settled') first.outcome.fill(0)
      assertSettled(await ask(store, aKey), bytesOf('outcome'))
    },
  },
  {
    name: 'a settled answer names the attempt and the version of the code that wrote it',
    guarantee: 'outcomes',
    async run(subject) {
      const { store } = subject
      await take(store, aKey, { version: 3 })
      await subject.advance(2 * leaseMs)
      await finish(store, aKey, bytesOf('four'), { version: 4 })
      const verdict = await ask(store, aKey, { version: 5 })
      assertSettled(verdict, bytesOf('four'))
      assert.deepEqual(verdict.is === 'settled' && [verdict.attempt, verdict.version], [2, 4])
    },
  },
]

const unreadable: readonly ContractCase[] = [
  { name: 'no bytes', bytes: new Uint8Array(0) },
  { name: 'bytes that are no text', bytes: Uint8Array.of(0xff, 0xfe, 0x00, 0xc3) },
  { name: 'half of something', bytes: bytesOf('{"valu') },
].map(({ name, bytes }): ContractCase => ({
  name: `an outcome replaced by ${name} is given back as it is or is an error, and never runs again`,
  guarantee: 'unreadable',
  async run(subject) {
    await finish(subject.store, aKey, bytesOf('{"value":1}'))
    await subject.corrupt(aKey, bytes)
    // The second time shows a store that mends itself by forgetting.
    for (const store of [subject.store, subject.store, await subject.another()]) {
      const answer = await store.claim(aKey, request({ onExpired: 'run' })).catch((error: unknown) => error)
      if (answer instanceof Error)
        assert.ok(answer instanceof OnceError, `expected an OnceError, got ${String(answer)}`)
      else
        assert.equal(
          (answer as Verdict).is,
          'settled',
          `expected settled or an error, got ${describe(answer as Verdict)}`,
        )
      if (!(answer instanceof Error)) assertSettled(answer as Verdict, bytes)
    }
  },
}))

export const answerCases: readonly ContractCase[] = [...mismatch, ...release, ...outcomes, ...unreadable]

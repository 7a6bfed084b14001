// The contract, part 2: who may write. Fencing after a takeover, and calls that are repeated because their reply was lost.

import assert from 'node:assert/strict'
import { systemRandom } from '../../core/clock.ts'
import { key } from '../../core/key.ts'
import type { Claim, Fenced, Store } from '../../core/store.ts'
import {
  aKey,
  ask,
  assertBusy,
  assertGranted,
  assertIs,
  assertSettled,
  bytesOf,
  countGranted,
  finish,
  grantedOf,
  hourMs,
  leaseMs,
  request,
  retention,
  take,
  times,
} from './case.ts'
import type { ContractCase } from './case.ts'
import type { ContractSubject } from './subject.ts'

const writes: readonly { readonly name: string; write(store: Store, claim: Claim): Promise<Fenced> }[] = [
  // So long that the new holder's lease would show it.
  { name: 'extend', write: (store, claim) => store.extend(claim, 100 * leaseMs) },
  { name: 'settle', write: (store, claim) => store.settle(claim, bytesOf('zombie'), retention) },
  { name: 'release open', write: (store, claim) => store.release(claim, 'open') },
  { name: 'release forget', write: (store, claim) => store.release(claim, 'forget') },
]

/** A holder that lost its key, and the one that took it over. */
async function takenOver(subject: ContractSubject): Promise<{ zombie: Claim; holder: Claim }> {
  const zombie = await take(subject.store, aKey)
  await subject.advance(2 * leaseMs)
  return { zombie, holder: await take(subject.store, aKey) }
}

const fencingOfEachWrite: readonly ContractCase[] = writes.flatMap(({ name, write }): ContractCase[] => [
  {
    name: `after a takeover the old holder's ${name} is lost and changes nothing`,
    guarantee: 'fencing',
    async run(subject) {
      const { store } = subject
      const { zombie, holder } = await takenOver(subject)
      assert.equal(await write(store, zombie), 'lost')
      assert.equal(await write(await subject.another(), zombie), 'lost')
      assertBusy(await ask(store, aKey), leaseMs)
      assert.equal(await store.extend(holder, leaseMs), 'done')
      assert.equal(await store.settle(holder, bytesOf('holder'), retention), 'done')
      assertSettled(await ask(store, aKey), bytesOf('holder'))
    },
  },
  {
    name: `after a takeover the old holder's ${name} does not touch the new lease`,
    guarantee: 'fencing',
    async run(subject) {
      const { zombie } = await takenOver(subject)
      assert.equal(await write(subject.store, zombie), 'lost')
      await subject.advance(2 * leaseMs)
      assertGranted(await ask(subject.store, aKey), 'taken-over', 3)
    },
  },
  {
    name: `after the next attempt has settled, the old holder's ${name} is lost and changes nothing`,
    guarantee: 'fencing',
    async run(subject) {
      const { store } = subject
      const { zombie, holder } = await takenOver(subject)
      assert.equal(await store.settle(holder, bytesOf('holder'), retention), 'done')
      assert.equal(await write(store, zombie), 'lost')
      assertSettled(await ask(store, aKey), bytesOf('holder'))
    },
  },
])

// A network may deliver a claim once more, long after its answer. Its token then begins another life of the key, in which no
// process works. The old holder, which has that token, must not pass for the holder of that life.
const ends: readonly {
  readonly name: string
  readonly how: 'fresh' | 'reopened'
  readonly attempt: number
  end(subject: ContractSubject, claim: Claim): Promise<unknown>
}[] = [
  { name: 'was given back', how: 'fresh', attempt: 1, end: ({ store }, claim) => store.release(claim, 'forget') },
  {
    name: 'was taken over and given back',
    how: 'reopened',
    attempt: 3,
    async end({ store, advance }) {
      await advance(2 * leaseMs)
      assert.equal(await store.release(await take(store, aKey), 'open'), 'done')
    },
  },
  {
    name: 'is over',
    how: 'fresh',
    attempt: 1,
    // Twice: a store without its own clock allows for clocks that differ.
    end: ({ advance }) => advance(2 * (leaseMs + retention.keepMs + retention.tombstoneMs)),
  },
]

const revivals: readonly ContractCase[] = ends.map(({ name, how, attempt, end }) => ({
  name: `a claim that comes again after its entry ${name} does not revive the old holder`,
  guarantee: 'fencing',
  async run(subject) {
    const { store } = subject
    const asked = request()
    const zombie = assertGranted(await store.claim(aKey, asked), 'fresh', 1)
    await end(subject, zombie)
    await subject.advance(1)
    const again = await store.claim(aKey, asked)
    // A store that keeps the remains of what was given back still knows the token by them, and grants no claim.
    if (name === 'was given back' && again.is === 'busy') return assert.equal(again.retryAfterMs, 0)
    const revived = assertGranted(again, how, attempt)
    assert.equal(revived.token, zombie.token)
    assert.ok(revived.fence > zombie.fence, `expected a fence above ${zombie.fence}, got ${revived.fence}`)
    for (const each of writes) assert.equal(await each.write(store, zombie), 'lost', each.name)
    assertBusy(await ask(store, aKey), leaseMs)
    assert.equal(await store.settle(revived, bytesOf('revived'), retention), 'done')
    for (const each of writes) assert.equal(await each.write(store, zombie), 'lost', each.name)
    assertSettled(await ask(store, aKey), bytesOf('revived'))
  },
}))

const fencing: readonly ContractCase[] = [
  ...fencingOfEachWrite,
  {
    // Stores that write together what comes together have a second place where a token can be forgotten.
    name: 'of many writes at once, those of holders that were taken over are lost and change nothing',
    guarantee: 'fencing',
    async run({ store, advance }) {
      const keys = times(10).map((n) => key('at once', `${n}`))
      const zombies = await Promise.all(keys.map((each) => take(store, each)))
      await advance(2 * leaseMs)
      const holders = await Promise.all(keys.map((each) => take(store, each)))
      const extended = await Promise.all(zombies.map((zombie) => store.extend(zombie, 100 * leaseMs)))
      for (const answer of extended) assert.equal(answer, 'lost')
      for (const each of keys) assertBusy(await ask(store, each), leaseMs)
      const settled = await Promise.all(
        zombies.flatMap((zombie, n) => [
          store.settle(zombie, bytesOf('zombie'), retention),
          store.settle(holders[n]!, bytesOf('holder'), retention),
        ]),
      )
      assert.deepEqual(
        settled,
        keys.flatMap(() => ['lost', 'done']),
      )
      for (const each of keys) assertSettled(await ask(store, each), bytesOf('holder'))
    },
  },
  {
    name: 'a holder that gave the key back cannot write once the next attempt has it',
    guarantee: 'fencing',
    async run({ store }) {
      const first = await take(store, aKey)
      assert.equal(await store.release(first, 'open'), 'done')
      const second = await take(store, aKey)
      for (const { name, write } of writes) assert.equal(await write(store, first), 'lost', name)
      assert.equal(await store.settle(second, bytesOf('second'), retention), 'done')
      assertSettled(await ask(store, aKey), bytesOf('second'))
    },
  },
  {
    name: 'attempt 1 of a forgotten life cannot write as attempt 1 of the next',
    guarantee: 'fencing',
    async run(subject) {
      const { store } = subject
      const first = await take(store, aKey)
      assert.equal(await store.release(first, 'forget'), 'done')
      await subject.advance(1)
      const second = await take(store, aKey)
      assert.equal(second.attempt, 1)
      assert.ok(second.fence > first.fence, `expected a fence above ${first.fence}, got ${second.fence}`)
      for (const { name, write } of writes) assert.equal(await write(store, first), 'lost', name)
      assert.equal(await store.settle(second, bytesOf('second'), retention), 'done')
    },
  },
  {
    name: 'token and fence decide together: the attempt of a claim is not looked at',
    guarantee: 'fencing',
    async run({ store }) {
      const claim = await take(store, aKey)
      const forged = { ...claim, token: systemRandom.uuid() }
      const elder = { ...claim, fence: claim.fence - 1 }
      for (const { name, write } of writes) assert.equal(await write(store, forged), 'lost', name)
      for (const { name, write } of writes) assert.equal(await write(store, elder), 'lost', name)
      assert.equal(await store.extend({ ...claim, attempt: 7 }, leaseMs), 'done')
      assert.equal(await store.settle({ ...claim, attempt: 7 }, bytesOf('done'), retention), 'done')
      assertSettled(await ask(store, aKey), bytesOf('done'))
    },
  },
  {
    name: 'a caller that never heard of its fence gives back, with 0, what its token holds, and nothing else',
    guarantee: 'fencing',
    async run({ store }) {
      const unheard = { key: aKey, token: systemRandom.uuid(), attempt: 0, fence: 0 }
      const holder = await take(store, aKey)
      for (const how of ['open', 'forget'] as const) assert.equal(await store.release(unheard, how), 'lost', how)
      for (const how of ['forget', 'open'] as const) {
        const own = { ...unheard, key: key('contract', 'unheard'), token: systemRandom.uuid() }
        assertIs(await store.claim(own.key, request({ token: own.token })), 'granted')
        assert.equal(await store.extend(own, leaseMs), 'lost')
        assert.equal(await store.settle(own, bytesOf('unheard'), retention), 'lost')
        assert.equal(await store.release(own, how), 'done')
        assert.equal(await store.release(own, how), 'done')
      }
      assertGranted(await ask(store, key('contract', 'unheard')), 'reopened', 2)
      assert.equal(await store.settle(holder, bytesOf('holder'), retention), 'done')
    },
  },
  ...revivals,
  {
    name: 'a write for a key that nobody claimed is lost and leaves nothing',
    guarantee: 'fencing',
    async run({ store }) {
      const claim: Claim = { key: aKey, token: systemRandom.uuid(), attempt: 1, fence: 1 }
      assert.equal(await store.extend(claim, leaseMs), 'lost')
      assert.equal(await store.settle(claim, bytesOf('nobody'), retention), 'lost')
      assert.equal(await store.release(claim, 'open'), 'lost')
      assertGranted(await ask(store, aKey), 'fresh', 1)
    },
  },
]

const repeatedClaims: readonly ContractCase[] = [
  {
    name: 'a claim repeated with its token is granted again: same attempt, same fence, the lease anew',
    guarantee: 'repeats',
    async run(subject) {
      const { store } = subject
      const asked = request()
      const first = assertGranted(await store.claim(aKey, asked), 'fresh', 1)
      await subject.advance(0.75 * leaseMs)
      assert.deepEqual(grantedOf(await store.claim(aKey, asked)), first)
      await subject.advance(0.75 * leaseMs)
      assertBusy(await ask(store, aKey), leaseMs)
      assert.equal(await store.settle(first, bytesOf('once'), retention), 'done')
    },
  },
  {
    name: 'a claim repeated through another instance recognises itself',
    guarantee: 'repeats',
    async run(subject) {
      const asked = request()
      const first = grantedOf(await subject.store.claim(aKey, asked))
      assert.deepEqual(grantedOf(await (await subject.another()).claim(aKey, asked)), first)
    },
  },
  {
    name: 'a takeover repeated with its token is the same attempt',
    guarantee: 'repeats',
    async run(subject) {
      const { store } = subject
      await take(store, aKey)
      await subject.advance(2 * leaseMs)
      const asked = request()
      const first = assertGranted(await store.claim(aKey, asked), 'taken-over', 2)
      assert.deepEqual(grantedOf(await store.claim(aKey, asked)), first)
    },
  },
  {
    name: 'a claim sent twice at once is one attempt',
    guarantee: 'repeats',
    async run({ store }) {
      const asked = request()
      const verdicts = await Promise.all([store.claim(aKey, asked), store.claim(aKey, asked), store.claim(aKey, asked)])
      assert.ok(countGranted(verdicts) >= 1)
      const holder = grantedOf(await store.claim(aKey, asked))
      for (const verdict of verdicts) if (verdict.is === 'granted') assert.deepEqual(verdict.claim, holder)
      assert.equal(holder.attempt, 1)
    },
  },
  {
    name: 'a claim repeated after its lease is granted again, not in doubt, while nobody has followed',
    guarantee: 'repeats',
    async run(subject) {
      const { store } = subject
      const asked = request({ onTakeover: 'refuse' })
      const first = grantedOf(await store.claim(aKey, asked))
      await subject.advance(2 * leaseMs)
      assert.deepEqual(grantedOf(await store.claim(aKey, asked)), first)
      assertBusy(await ask(store, aKey), leaseMs)
    },
  },
  {
    name: 'a delayed claim of a holder that was taken over is busy',
    guarantee: 'repeats',
    async run(subject) {
      const { store } = subject
      const asked = request()
      await store.claim(aKey, asked)
      await subject.advance(2 * leaseMs)
      const holder = await take(store, aKey)
      assertBusy(await store.claim(aKey, asked), leaseMs)
      assert.equal(await store.settle(holder, bytesOf('holder'), retention), 'done')
    },
  },
  {
    name: 'a delayed claim whose token already gave the key back is busy for 0 ms and does not hold the key',
    guarantee: 'repeats',
    async run({ store }) {
      const asked = request()
      const claim = grantedOf(await store.claim(aKey, asked))
      assert.equal(await store.release(claim, 'open'), 'done')
      assert.deepEqual(await store.claim(aKey, asked), { is: 'busy', retryAfterMs: 0 })
      assertGranted(await ask(store, aKey), 'reopened', 2)
    },
  },
  {
    name: 'a delayed claim whose token gave a later attempt back is busy for 0 ms, too',
    guarantee: 'repeats',
    async run(subject) {
      const { store } = subject
      await take(store, aKey)
      await subject.advance(2 * leaseMs)
      const asked = request()
      assert.equal(await store.release(grantedOf(await store.claim(aKey, asked)), 'forget'), 'done')
      assert.deepEqual(await store.claim(aKey, asked), { is: 'busy', retryAfterMs: 0 })
      assertGranted(await ask(store, aKey), 'reopened', 3)
    },
  },
  {
    name: 'a delayed claim whose token already settled is told the outcome',
    guarantee: 'repeats',
    async run({ store }) {
      const asked = request()
      const claim = grantedOf(await store.claim(aKey, asked))
      assert.equal(await store.settle(claim, bytesOf('once'), retention), 'done')
      assertSettled(await store.claim(aKey, asked), bytesOf('once'))
    },
  },
]

const repeatedWrites: readonly ContractCase[] = [
  {
    name: 'extend and settle repeated with their token answer done again',
    guarantee: 'repeats',
    async run({ store }) {
      const claim = await take(store, aKey)
      assert.equal(await store.extend(claim, leaseMs), 'done')
      assert.equal(await store.extend(claim, leaseMs), 'done')
      assert.equal(await store.settle(claim, bytesOf('once'), retention), 'done')
      assert.equal(await store.settle(claim, bytesOf('once'), retention), 'done')
      assertSettled(await ask(store, aKey), bytesOf('once'))
    },
  },
  {
    name: 'release repeated with its token answers done again, open or forgotten',
    guarantee: 'repeats',
    async run({ store }) {
      const first = await take(store, aKey)
      assert.equal(await store.release(first, 'forget'), 'done')
      assert.equal(await store.release(first, 'forget'), 'done')
      const second = await take(store, aKey)
      assert.equal(await store.release(second, 'open'), 'done')
      assert.equal(await store.release(second, 'open'), 'done')
      assertGranted(await ask(store, aKey), 'reopened', 2)
    },
  },
  {
    name: 'a second settle with another outcome does not overwrite the first',
    guarantee: 'repeats',
    async run({ store }) {
      const claim = await finish(store, aKey, bytesOf('first'))
      await store.settle(claim, bytesOf('second'), retention)
      assertSettled(await ask(store, aKey), bytesOf('first'))
    },
  },
  {
    name: 'a settle repeated later does not prolong the retention',
    guarantee: 'repeats',
    async run(subject) {
      const { store } = subject
      const short = { keepMs: 4 * hourMs, tombstoneMs: 100 * hourMs }
      const claim = await finish(store, aKey, bytesOf('once'), { retention: short })
      await subject.advance(2 * hourMs)
      assert.equal(await store.settle(claim, bytesOf('once'), short), 'done')
      await subject.advance(3 * hourMs)
      assertIs(await ask(store, aKey), 'expired')
    },
  },
  {
    name: 'a heartbeat that arrives after its settle neither reopens the entry nor moves its expiry',
    guarantee: 'repeats',
    async run(subject) {
      const { store } = subject
      const claim = await finish(store, aKey, bytesOf('once'), {
        retention: { keepMs: hourMs, tombstoneMs: 100 * hourMs },
      })
      await store.extend(claim, 50 * hourMs)
      assertSettled(await ask(store, aKey), bytesOf('once'))
      await subject.advance(2 * hourMs)
      assertIs(await ask(store, aKey), 'expired')
    },
  },
  {
    name: 'extend and settle after a release are lost and do not take the key back',
    guarantee: 'repeats',
    async run({ store }) {
      const claim = await take(store, aKey)
      assert.equal(await store.release(claim, 'open'), 'done')
      assert.equal(await store.extend(claim, leaseMs), 'lost')
      assert.equal(await store.settle(claim, bytesOf('late'), retention), 'lost')
      assertGranted(await ask(store, aKey), 'reopened', 2)
    },
  },
  {
    name: 'a release after a settle is lost and the outcome stays',
    guarantee: 'repeats',
    async run({ store }) {
      const claim = await finish(store, aKey, bytesOf('once'))
      assert.equal(await store.release(claim, 'open'), 'lost')
      assert.equal(await store.release(claim, 'forget'), 'lost')
      assertSettled(await ask(store, aKey), bytesOf('once'))
    },
  },
]

export const writeCases: readonly ContractCase[] = [...fencing, ...repeatedClaims, ...repeatedWrites]

// The contract, part 4: what a key is. Byte for byte, whatever the characters. And whose clock counts.

import assert from 'node:assert/strict'
import { key, keyPartBytesMax } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Store } from '../../core/store.ts'
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
  retention,
  take,
  times,
} from './case.ts'
import type { ContractCase } from './case.ts'

/** All are claimed, settled and replayed, each with its own outcome, so that two which a store confuses show. */
async function assertDistinct(store: Store, keys: readonly Key[]): Promise<void> {
  for (const [index, each] of keys.entries()) {
    const verdict = await ask(store, each)
    assert.equal(
      verdict.is,
      'granted',
      `key ${JSON.stringify(each)} met another one: it was ${verdict.is} at its first claim`,
    )
    const claim = grantedOf(verdict)
    assert.deepEqual({ ...claim.key }, { ...each })
    assert.equal(await store.settle(claim, bytesOf(`outcome ${index}`), retention), 'done')
  }
  const verdicts = await Promise.all(keys.map((each) => ask(store, each)))
  verdicts.forEach((verdict, index) => assertSettled(verdict, bytesOf(`outcome ${index}`)))
}

function idsToKeys(ids: readonly string[]): readonly Key[] {
  return ids.flatMap((id) => [key('contract', id), key(id, 'contract')])
}

// First and last of what is legal in each length of UTF-8, and characters that stores, drivers and languages trip over.
const edgeCharacters: readonly string[] = [
  ...' ~\u00a0\u00ad\u00df\u00ff\u0100\u0130\u0131\u02bc\u0300\u07ff\u0800\u200b\u200d\u2028\u202e\ud7ff\ue000',
  ...'\ufeff\ufffd\ufffe\uffff\u{10000}\u{1f600}\u{1fffe}\u{10ffff}',
]

/** Strings of legal characters, the same in every run: the seed is the number of the string. */
function legalString(seed: number): string {
  let state = seed + 1
  const draw = (below: number): number => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return Math.floor((state / 2 ** 32) * below)
  }
  const character = (): string => {
    const kind = draw(4)
    if (kind === 0) return edgeCharacters[draw(edgeCharacters.length)]!
    if (kind === 1) return String.fromCodePoint(0x20 + draw(0x5f))
    if (kind === 2) return String.fromCodePoint(0xa0 + draw(0xd800 - 0xa0))
    return String.fromCodePoint(0xe000 + draw(0x110000 - 0xe000))
  }
  return times(1 + draw(20))
    .map(character)
    .join('')
}

const keys: readonly ContractCase[] = [
  {
    name: 'keys that differ in case, blanks, accents, form or width are different keys',
    guarantee: 'keys',
    async run({ store }) {
      const letters =
        'a|A|\u00e4|a\u0308|\u00c4|A\u0308|\u00e1|\uff41|\u00c5|\u212b|A\u030a|\u03a9|\u2126|\u304b\u3099|\u304c'
      const blanks = 'a | a|a  |a\u00a0|a\u200b|a\u00ad|a\ufe0f|\ufeffa| |  |\u00a0|\u3000'
      const folded = '\u00df|ss|SS|\u017fs|i|I|\u0131|\u0130|\ufb01|fi|\u00e6|ae|k|K|\u212a'
      await assertDistinct(store, idsToKeys([letters, blanks, folded].flatMap((each) => each.split('|'))))
    },
  },
  {
    name: 'keys that look like numbers, patterns, paths, code or names of a language are only keys',
    guarantee: 'keys',
    async run({ store }) {
      const values = '1|01|1.0|1e0|+1|0|-0|true|null|undefined|NaN|[]|{}|__proto__|constructor|toString|length'
      const patterns = '%|_|*|?|[a]|a%|a*|ab|.|..|./1|\\|\\\\|/|//|$1|:id|@p|{a}|{b}|\\x00|\\n|%00|$gt'
      const code = `'|''|"|""|\`|'; drop table onceonly; --|\${1}|{{1}}|<b>|&amp;|&`
      await assertDistinct(store, idsToKeys([values, patterns, code].flatMap((each) => each.split('|'))))
    },
  },
  {
    name: 'every legal character of ASCII and every edge of Unicode is a key of its own',
    guarantee: 'keys',
    async run({ store }) {
      const ascii = times(0x5f).map((index) => String.fromCodePoint(0x20 + index))
      const ids = [...new Set([...ascii, ...edgeCharacters])]
      await assertDistinct(
        store,
        ids.map((id) => key('contract', id)),
      )
    },
  },
  {
    name: 'strings of any legal characters are keys of their own, also when they differ in their last character only',
    guarantee: 'keys',
    async run({ store }) {
      const strings = times(100).map(legalString)
      const shortened = strings.map((each) => [...each].slice(0, -1).join('')).filter((each) => each !== '')
      const ids = [...new Set([...strings, ...shortened])]
      await assertDistinct(
        store,
        ids.map((id, index) => (index % 2 ? key('contract', id) : key(id, 'contract'))),
      )
    },
  },
  {
    name: 'keys of 255 bytes that differ in their last byte are different keys',
    guarantee: 'keys',
    async run({ store }) {
      const narrow = ['b', 'c', ' '].map((last) => 'a'.repeat(keyPartBytesMax - 1) + last)
      const wide = ['€', '₭', 'ab '].map((last) => '€'.repeat(keyPartBytesMax / 3 - 1) + last)
      const long = [...narrow, ...wide]
      await assertDistinct(
        store,
        long.flatMap((scope) => long.map((id) => key(scope, id))),
      )
    },
  },
  {
    name: 'scope and id do not run into each other',
    guarantee: 'keys',
    async run({ store }) {
      const separators = ['', ' ', '/', ':', '|', '#', '-', '_', '.', ',', '\\', '\u00a0', '::']
      const pairs = separators.flatMap((between) => [key(`a${between}b`, 'c'), key('a', `b${between}c`)])
      await assertDistinct(store, [...pairs, key('a', 'bc'), key('abc', 'd'), key('ab', 'cd')].filter(isFirstOfItsKind))
    },
  },
  {
    name: 'the same id in two scopes is two keys in everything',
    guarantee: 'keys',
    async run({ store }) {
      const [here, there] = [key('tenant 1', 'order'), key('tenant 2', 'order')]
      const first = await take(store, here)
      const second = await take(store, there)
      assert.equal(await store.settle({ ...second, key: here }, bytesOf('stolen'), retention), 'lost')
      assert.equal(await store.release(first, 'forget'), 'done')
      assertBusy(await ask(store, there), leaseMs)
      assert.equal(await store.settle(second, bytesOf('second'), retention), 'done')
      assertGranted(await ask(store, here), 'fresh', 1)
      assertSettled(await ask(store, there), bytesOf('second'))
    },
  },
]

function isFirstOfItsKind(each: Key, index: number, all: readonly Key[]): boolean {
  return all.findIndex((other) => other.scope === each.scope && other.id === each.id) === index
}

const clockSkew: readonly ContractCase[] = [-hourMs, hourMs].flatMap((clockSkewMs): ContractCase[] => {
  const whose = `a process whose clock is an hour ${clockSkewMs < 0 ? 'behind' : 'ahead'}`
  return [
    {
      name: `${whose} neither takes a key over early nor finds it free too late`,
      guarantee: 'clock-skew',
      async run(subject) {
        const skewed = await subject.another({ clockSkewMs })
        await take(subject.store, aKey)
        assertBusy(await ask(skewed, aKey), leaseMs)
        await subject.advance(2 * leaseMs)
        assertGranted(await ask(skewed, aKey), 'taken-over', 2)
      },
    },
    {
      name: `the lease of ${whose} is no longer and no shorter than others`,
      guarantee: 'clock-skew',
      async run(subject) {
        const skewed = await subject.another({ clockSkewMs })
        const claim = await take(skewed, aKey)
        assertBusy(await ask(subject.store, aKey), leaseMs)
        assert.equal(await skewed.extend(claim, 2 * leaseMs), 'done')
        assertBusy(await ask(subject.store, aKey), 2 * leaseMs)
        await subject.advance(3 * leaseMs)
        assertGranted(await ask(subject.store, aKey), 'taken-over', 2)
      },
    },
    {
      name: `what ${whose} settles is kept no longer and no shorter than other answers, and its fences grow like all others`,
      guarantee: 'clock-skew',
      async run(subject) {
        const skewed = await subject.another({ clockSkewMs })
        const short = { keepMs: 0.5 * hourMs, tombstoneMs: 0.5 * hourMs }
        let last = await finish(subject.store, aKey, bytesOf('first'), { retention: short })
        for (const store of [skewed, subject.store, skewed]) {
          assertIs(await ask(store, aKey), 'settled')
          await subject.advance(0.75 * hourMs)
          assertIs(await ask(store, aKey), 'expired')
          await subject.advance(0.5 * hourMs)
          const next = await finish(store, aKey, bytesOf('next'), { retention: short })
          assert.ok(next.fence > last.fence, `expected a fence above ${last.fence}, got ${next.fence}`)
          last = next
        }
      },
    },
  ]
})

export const keyCases: readonly ContractCase[] = [...keys, ...clockSkew]

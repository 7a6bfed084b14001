// Names in Redis: two keys never share one, a pattern finds what it names and nothing else, and a name leads back to its key.

import { expect, test } from 'vitest'
import { key } from '../../core/key.ts'
import { buckets, escapeGlob, namesUnder } from './names.ts'

const names = namesUnder('once')

test('a name is the same in every version: entries are stored under it', () => {
  const subject = key('payments', '42')
  const bucket = names.bucketOf(subject)
  expect(bucket).toBe(769)
  expect(names.of(subject)).toEqual({
    entry: `once:{${bucket}}:entry:payments/42`,
    outcome: `once:{${bucket}}:outcome:payments/42`,
    audit: `once:{${bucket}}:audit:payments/42`,
  })
  expect(names.entryOf(subject)).toBe(names.of(subject).entry)
})

test('every key is in one of 1,024 buckets', () => {
  expect(buckets).toHaveLength(1_024)
  expect([buckets[0], buckets.at(-1)]).toEqual([0, 1_023])
  const met = new Set(Array.from({ length: 2_000 }, (_, n) => names.bucketOf(key('a', `${n}`))))
  expect(Math.max(...met)).toBeLessThan(1_024)
  expect(met.size).toBeGreaterThan(500)
})

test.each([
  ['payments', '42'],
  ['a/b', 'c'],
  ['a', 'b/c'],
  ['50%', 'x'],
  ['%2F', 'x'],
  ['a%25/b', 'c d'],
])('a name leads back to its key, and no two keys share one: %j %j', (scope, id) => {
  const subject = key(scope, id)
  expect(names.keyOf(names.entryOf(subject))).toEqual(subject)
})

test('scope and id do not run into each other', () => {
  expect(names.entryOf(key('a/b', 'c')).replace(/\{\d+\}/, '')).toBe('once::entry:a%2Fb/c')
  expect(names.entryOf(key('a', 'b/c')).replace(/\{\d+\}/, '')).toBe('once::entry:a/b/c')
})

test.each([
  'once:{1}:outcome:a/b',
  'once:{1}:entry:a',
  'once:{1}:entry:/b',
  'once:{x}:entry:a/b',
  'twice:{1}:entry:a/b',
  'more once:{1}:entry:a/b',
])('%s is no entry', (name) => expect(names.keyOf(name)).toBeUndefined())

test('a prefix means itself and no pattern', () => {
  expect(namesUnder('o.ce').keyOf('once:{1}:entry:a/b')).toBeUndefined()
  expect(namesUnder('o.ce').keyOf('o.ce:{1}:entry:a/b')).toEqual(key('a', 'b'))
  expect(namesUnder('o*').pattern(undefined)).toBe('o\\*:{*}:entry:*')
  expect(names.pattern('a/[b]')).toBe('once:{*}:entry:a%2F\\[b\\]/*')
  expect(escapeGlob('\\*?[]^a')).toBe('\\\\\\*\\?\\[\\]\\^a')
})

test('the register, the marks and the quarantines are of a bucket in a Cluster, and of the server otherwise', () => {
  expect(names.register(undefined)).toBe('once:register')
  expect(names.register(0)).toBe('once:{0}:register')
  expect(names.mark(7, 'me')).toBe('once:{7}:mark:me')
  expect(names.quarantineLog(7)).toBe('once:{7}:quarantines')
})

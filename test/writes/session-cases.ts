// One call of each write, as the first session makes it and as a second repeats it, and a walk through the answers for clients.
import { expect } from 'vitest'
import type { Writes } from '../../src/writes/index.ts'

export interface SessionCase {
  readonly name: string
  call(writes: Writes): Promise<string>
  readonly first: string
  readonly repeated: string
}

const key = { id: 'a' }
const once = { table: 'marks', key: { event_id: 'e' } }

// Each on a row `a` with name 'old', visits 1 and version 1, or on what is not there.
export const sessionCases: readonly SessionCase[] = [
  {
    name: 'insertOnce',
    call: (writes) => writes.insertOnce('things', { key: { id: 'b' }, set: { name: 'new' } }),
    first: 'applied',
    repeated: 'already',
  },
  {
    name: 'upsert of a new row',
    call: (writes) => writes.upsert('things', { key: { id: 'b' }, set: { name: 'new' } }),
    first: 'applied',
    repeated: 'already',
  },
  {
    name: 'upsert of an old row',
    call: (writes) => writes.upsert('things', { key, set: { name: 'new' } }),
    first: 'applied',
    repeated: 'already',
  },
  {
    name: 'upsertIfNewer of a new row',
    call: (writes) => writes.upsertIfNewer('things', { key: { id: 'b' }, newer: { version: 2 } }),
    first: 'applied',
    repeated: 'already',
  },
  {
    name: 'upsertIfNewer of an old row',
    call: (writes) => writes.upsertIfNewer('things', { key, set: { name: 'new' }, newer: { version: 2 } }),
    first: 'applied',
    repeated: 'already',
  },
  {
    name: 'upsertIf of a new row',
    call: (writes) =>
      writes.upsertIf('things', {
        key: { id: 'b' },
        expect: { name: 'old' },
        set: { name: 'new' },
        setOnInsert: { version: 1 },
      }),
    first: 'applied',
    repeated: 'already',
  },
  {
    name: 'upsertIf of an old row',
    call: (writes) =>
      writes.upsertIf('things', { key, expect: { name: 'old' }, set: { name: 'new' }, setOnInsert: { version: 9 } }),
    first: 'applied',
    repeated: 'already',
  },
  {
    name: 'compareAndSet',
    call: (writes) => writes.compareAndSet('things', { key, expect: { name: 'old' }, set: { name: 'new' } }),
    first: 'applied',
    repeated: 'already',
  },
  {
    name: 'addOnce',
    call: (writes) => writes.addOnce('things', { key, add: { visits: 1 }, once }),
    first: 'applied',
    repeated: 'already',
  },
  {
    name: 'appendOnce',
    call: (writes) => writes.appendOnce('events', { key: { event_id: 'e' }, stream: { stream: 's' }, after: 0 }),
    first: 'appended',
    repeated: 'already',
  },
]

export const oldRow = `insert into things (id, name, visits, version) values ('a', 'old', 1, 1)`

// Every kind of answer, with characters and numbers that a client might spoil.
export async function walkThrough(writes: Writes): Promise<void> {
  const odd = String.raw`it's "odd" \ ? ?? $1 :name {a} %s -- ; 🙂`
  const place = { id: odd }
  const insert = { key: place, set: { name: odd, visits: 9_007_199_254_740_993n, note: '{"a": 1}' } }
  expect(await writes.insertOnce('things', insert)).toBe('applied')
  expect(await writes.insertOnce('things', insert)).toBe('already')
  const upsert = { key: place, set: { note: '[1, "two"]' }, setOnInsert: { name: 'lost' } }
  expect(await writes.upsert('things', upsert)).toBe('applied')
  expect(await writes.upsert('things', upsert)).toBe('already')
  const versioned = (version: bigint) => ({ key: place, newer: { version } })
  expect(await writes.upsertIfNewer('things', versioned(9_007_199_254_740_993n))).toBe('applied')
  expect(await writes.upsertIfNewer('things', versioned(9_007_199_254_740_993n))).toBe('already')
  expect(await writes.upsertIfNewer('things', versioned(9_007_199_254_740_992n))).toBe('stale')
  const swap = { key: place, expect: { name: odd }, set: { name: `${odd}!` } }
  expect(await writes.compareAndSet('things', swap)).toBe('applied')
  expect(await writes.compareAndSet('things', swap)).toBe('already')
  expect(await writes.compareAndSet('things', { ...swap, set: { name: null } })).toBe('conflict')
  expect(await writes.compareAndSet('things', { ...swap, key: { id: 'nobody' } })).toBe('missing')
  const count = { key: place, add: { visits: 1 }, once: { table: 'marks', key: { event_id: odd } } }
  expect(await writes.addOnce('things', count)).toBe('applied')
  expect(await writes.addOnce('things', count)).toBe('already')
  expect(await writes.addOnce('things', { ...count, key: { id: 'nobody' } })).toBe('missing')
  const event = (id: string, after: number) => ({ key: { event_id: id }, stream: { stream: odd }, after })
  expect(await writes.appendOnce('events', event(odd, 0))).toBe('appended')
  expect(await writes.appendOnce('events', event(odd, 0))).toBe('already')
  expect(await writes.appendOnce('events', event('other', 0))).toBe('conflict')
  expect(await writes.appendOnce('events', event('other', 1))).toBe('appended')
}

export const walkedRow = { visits: '9007199254740994', version: '9007199254740993', note: '[1, "two"]' }
export const walkedId = String.raw`it's "odd" \ ? ?? $1 :name {a} %s -- ; 🙂`

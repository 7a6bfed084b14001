// What is asked is looked at before anything is sent, and the message says what to do.

import { expect, test } from 'vitest'
import { mongodbWrites, mysqlWrites, postgresWrites, sqliteWrites } from './index.ts'
import type { SyncWrites, Writes } from './index.ts'

const untouchable = {
  exec: () => expect.unreachable('something was sent'),
  prepare: () => expect.unreachable('something was sent'),
} as never
const writes: SyncWrites = sqliteWrites(untouchable)
const key = { id: 1 }
const once = { table: 'marks', key: { event_id: 'e' } }

test.each<[string, () => unknown, RegExp]>([
  [
    'a misspelt part',
    () => writes.upsert('t', { key, set: { a: 1 }, setOnInser: {} } as never),
    /did you mean "setOnInsert"/,
  ],
  ['no key', () => writes.insertOnce('t', {} as never), /expected key to be an object of columns/],
  ['an empty key', () => writes.insertOnce('t', { key: {} }), /key to be an object of at least one column/],
  ['null in a key', () => writes.insertOnce('t', { key: { id: null } }), /"id" is a value other than null/],
  ['an empty set', () => writes.upsert('t', { key, set: {} }), /set to be an object of at least one column/],
  [
    'two versions',
    () => writes.upsertIfNewer('t', { key, newer: { a: 1, b: 2 } }),
    /newer to be an object of one column/,
  ],
  ['no version', () => writes.upsertIfNewer('t', { key, newer: { a: null } }), /"a" is a value other than null/],
  ['a column twice', () => writes.upsert('t', { key, set: { id: 2 } }), /expected each column once, got "id"/],
  [
    'the version as a column',
    () => writes.appendOnce('t', { key, stream: { s: 1 }, after: 0, set: { version: 1 } }),
    /expected each column once, got "version"/,
  ],
  [
    'a negative version',
    () => writes.appendOnce('t', { key, stream: { s: 1 }, after: -1 }),
    /after to be a whole number/,
  ],
  [
    'an amount of text',
    () => writes.addOnce('t', { key, add: { a: '1' as never }, once }),
    /"a" is a number below 1e21/,
  ],
  ['an amount too large', () => writes.addOnce('t', { key, add: { a: 1e21 }, once }), /"a" is a number below 1e21/],
  [
    'no marks',
    () => writes.addOnce('t', { key, add: { a: 1 } } as never),
    /addOnce once: expected an object of options/,
  ],
  [
    'no table of marks',
    () => writes.addOnce('t', { key, add: { a: 1 }, once: { key } }),
    /expected table to be a name/,
  ],
  ['an array', () => writes.insertOnce('t', [] as never), /expected an object of options, got an array/],
  ['a Date that is none', () => writes.insertOnce('t', { key: { id: new Date(NaN) } }), /expected key/],
  ['a table that is none', () => writes.insertOnce(7 as never, { key }), /expected table to be a name/],
  [
    'text that UTF-8 cannot hold (two such keys would be one)',
    () => writes.insertOnce('t', { key: { id: '\ud800' } }),
    /"id" is well-formed text/,
  ],
])('%s is refused', (_, work, message) => {
  expect(work).toThrow(message)
})

test.each<[string, Parameters<Writes['addOnce']>[1], RegExp]>([
  [
    'an event named by two fields',
    { key, add: { a: 1 }, once: { key: { e: 1, f: 2 } } },
    /key to be an object of one column/,
  ],
  ['a mark in the field of the key', { key, add: { a: 1 }, once: { key: { id: 2 } } }, /each column once, got "id"/],
  ['a mark in the field of the count', { key, add: { a: 1 }, once: { key: { a: 2 } } }, /each column once, got "a"/],
  [
    'a key beyond 64 bits',
    { key: { id: 2n ** 64n }, add: { a: 1 }, once: { key: { e: 1 } } },
    /"id" is a bigint of 64/,
  ],
  ['an amount beyond 64 bits', { key, add: { a: 2n ** 63n }, once: { key: { e: 1 } } }, /"a" is a bigint of 64 bits/],
])('on MongoDB, %s is refused', async (_, request, message) => {
  const database = { collection: () => expect.unreachable('something was sent') }
  await expect(mongodbWrites(database).addOnce('t', request)).rejects.toThrow(message)
})

test('a schema before the table is quoted part by part', () => {
  const texts: string[] = []
  const none = (): never[] => []
  const noting = { exec: none, prepare: (text: string) => (texts.push(text), { run: none, get: none, all: none }) }
  sqliteWrites(noting).insertOnce('main.things', { key })
  expect(texts[0]).toContain('insert into `main`.`things` (`id`) values (?)')
})

test('a client that is not one is refused, and a pool is not a transaction', () => {
  for (const tx of [
    null,
    undefined,
    7,
    {},
    { query: () => {}, totalCount: 3 },
    { raw: () => {} },
    { executeQuery: () => {} },
  ]) {
    expect(() => postgresWrites(tx as never)).toThrow(/postgresWrites: expected a/)
  }
  for (const tx of [null, undefined, 7, {}, { execute: () => {}, query: () => {}, getConnection: () => {} }]) {
    expect(() => mysqlWrites(tx as never)).toThrow(/mysqlWrites: expected a/)
  }
  expect(() => sqliteWrites(null as never)).toThrow(/sqliteWrites: expected a database/)
})

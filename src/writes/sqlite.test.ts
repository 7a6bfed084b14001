// The writes on SQLite keep the contract, through node:sqlite and through better-sqlite3.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { writesContract } from '../../test/writes/contract.ts'
import type { WritesGround } from '../../test/writes/ground.ts'
import { betterHandle, nodeHandle, rowsOf, sqliteGround, sqliteSchema } from '../../test/writes/sqlite-ground.ts'
import { sqliteWrites } from './index.ts'

describe.each([
  ['node:sqlite', nodeHandle],
  ['better-sqlite3', betterHandle],
] as const)('the writes on %s', (_, open) => {
  let folder: string
  let ground: WritesGround
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'onceonly-writes-'))
    const database = open(join(folder, 'writes.db'))
    ground = sqliteGround(database, sqliteWrites(database))
  })
  afterAll(async () => {
    await ground[Symbol.asyncDispose]()
    rmSync(folder, { recursive: true, force: true })
  })

  const once = (event: string) => ({ table: 'marks', key: { event_id: event } })
  writesContract({ ground: () => ground, cannot: {}, once })

  test('answers come at once, without a promise, and outside of a transaction, too', () => {
    const database = open(':memory:')
    database.exec(sqliteSchema)
    const writes = sqliteWrites(database)
    const key = { id: 'a' }
    expect(writes.insertOnce('things', { key, set: { visits: 1 } })).toBe('applied')
    expect(writes.addOnce('things', { key, add: { visits: 1 }, once: once('e') })).toBe('applied')
    expect(() => writes.addOnce('things', { key, add: { no_such: 1 }, once: once('f') })).toThrow(/no_such/)
    expect(rowsOf(database, 'select * from marks where event_id = ?', 'f')).toEqual([])
    expect(writes.addOnce('things', { key, add: { visits: 1 }, once: once('f') })).toBe('applied')
    expect(() => writes.insertOnce('things', { key: { id: new Date() } })).toThrow(/SQLite has no times/)
    database.close()
  })

  test('while another session writes, a write is refused by SQLite; after its commit it is told the truth', () => {
    const [one, two] = [open(join(folder, 'two.db')), open(join(folder, 'two.db'))]
    one.exec(sqliteSchema)
    two.exec('pragma busy_timeout = 0')
    one.exec('begin immediate')
    expect(sqliteWrites(one).insertOnce('things', { key: { id: 'a' } })).toBe('applied')
    expect(() => sqliteWrites(two).insertOnce('things', { key: { id: 'a' } })).toThrow(/locked/)
    expect(() =>
      sqliteWrites(two).addOnce('things', { key: { id: 'a' }, add: { visits: 1 }, once: once('e') }),
    ).toThrow(/locked/)
    one.exec('commit')
    expect(sqliteWrites(two).insertOnce('things', { key: { id: 'a' } })).toBe('already')
    expect(sqliteWrites(two).addOnce('things', { key: { id: 'a' }, add: { visits: 1 }, once: once('e') })).toBe(
      'applied',
    )
    one.close()
    two.close()
  })

  test('whole numbers stay whole, booleans are 1 and 0, and text stays text', () => {
    const database = open(':memory:')
    database.exec('create table any_type (id text primary key, a, b, c, d)')
    const set = { a: 7, b: true, c: 1.5, d: Uint8Array.of(1, 2) }
    expect(sqliteWrites(database).insertOnce('any_type', { key: { id: 7 }, set })).toBe('applied')
    expect(sqliteWrites(database).upsert('any_type', { key: { id: '7' }, set })).toBe('already')
    expect(rowsOf(database, 'select a, b, c, typeof(a) as t from any_type where id = ?', '7')).toEqual([
      { a: 7n, b: 1n, c: 1.5, t: 'integer' },
    ])
    database.close()
  })

  test('a table without the constraint that a write needs is an error', () => {
    const database = open(':memory:')
    database.exec('create table loose (id text, event_id text primary key, stream text, version integer)')
    const writes = sqliteWrites(database)
    expect(() => writes.insertOnce('loose', { key: { id: 'a' } })).toThrow(/ON CONFLICT clause does not match/)
    const event = { key: { event_id: 'e' }, stream: { stream: 's' }, after: 0 }
    expect(() => writes.appendOnce('loose', event)).toThrow(/ON CONFLICT clause does not match/)
    database.close()
  })
})

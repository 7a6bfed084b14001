// What a SQLite connection tells of itself, in both libraries and in every Node that we support.

import { DatabaseSync } from 'node:sqlite'
import Database from 'better-sqlite3'
import { expect, test } from 'vitest'
import { inTransaction } from '../../clients/sqlite.ts'
import type { SqliteDatabase } from '../../clients/sqlite.ts'
import { asOnceError, isBusy, sqliteCode } from './errors.ts'

/** As in Node 22.13, which does not tell whether a transaction is open. */
function silent(database: SqliteDatabase): SqliteDatabase {
  return {
    exec: (sql) => database.exec(sql),
    prepare: (sql) => database.prepare(sql),
    close: () => database.close(),
  }
}

for (const [name, open] of [
  ['node:sqlite', () => new DatabaseSync(':memory:')],
  ['better-sqlite3', () => new Database(':memory:')],
  ['node:sqlite before 22.16', () => silent(new DatabaseSync(':memory:'))],
] as const) {
  test(`${name}: an open transaction is seen and not disturbed, and a closed database has none`, () => {
    const database = open()
    database.exec('CREATE TABLE t (x)')
    expect(inTransaction(database)).toBe(false)
    database.exec('BEGIN; INSERT INTO t VALUES (1)')
    expect(inTransaction(database)).toBe(true)
    expect(inTransaction(database)).toBe(true)
    database.exec('COMMIT')
    expect(inTransaction(database)).toBe(false)
    expect(database.prepare('SELECT x FROM t').all()).toEqual([{ x: 1 }])
    database.exec('BEGIN')
    database.close()
    expect(inTransaction(database)).toBe(false)
  })
}

test('the codes of both libraries are read, extended ones by their primary code', () => {
  expect(sqliteCode({ code: 'ERR_SQLITE_ERROR', errcode: 517 })).toBe('BUSY') // SQLITE_BUSY_SNAPSHOT
  expect(sqliteCode({ code: 'SQLITE_BUSY_SNAPSHOT' })).toBe('BUSY')
  expect(sqliteCode({ code: 'SQLITE_IOERR_FSYNC' })).toBe('IOERR')
  expect(sqliteCode({ errcode: 1 })).toBe('ERROR')
  for (const error of [undefined, null, 'SQLITE_BUSY', new Error('SQLITE_BUSY'), { code: 'ECONNRESET' }]) {
    expect(sqliteCode(error)).toBeUndefined()
    expect(isBusy(error)).toBe(false)
  }
})

test('whatever is thrown becomes an OnceError that keeps it as its cause', () => {
  for (const [error, code] of [
    [new TypeError('cannot be bound'), 'INVALID_ARGUMENT'],
    [new TypeError('The database connection is not open'), 'STORE_UNAVAILABLE'],
    [Object.assign(new Error('disk I/O error'), { errcode: 10 }), 'STORE_UNAVAILABLE'],
    [Object.assign(new Error('no such table: onceonly'), { errcode: 1 }), 'SCHEMA_MISSING'],
    ['thrown text', 'STORE_UNAVAILABLE'],
  ] as const) {
    expect(asOnceError(error)).toMatchObject({ code, executed: 'no', cause: error })
  }
})

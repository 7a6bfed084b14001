// The database of the store, for tables beside its own.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import Database from 'better-sqlite3'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { databaseOf } from '../../clients/sql-database.ts'
import type { SqlDatabase } from '../../clients/sql-database.ts'
import { piece, sql } from '../../clients/sql-statement.ts'
import { OnceError } from '../../core/errors.ts'
import { key } from '../../core/key.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import { sqliteStore } from '../sqlite.ts'
import type { SqliteDatabase, SqliteStore } from '../sqlite.ts'

let folder: string
let file: string
const closing: (() => void)[] = []

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'onceonly-database-'))
  file = join(folder, 'once.db')
})
afterEach(() => {
  for (const close of closing.splice(0)) close()
  rmSync(folder, { recursive: true })
})

const libraries: Record<string, (path: string) => SqliteDatabase> = {
  'node:sqlite': (path) => new DatabaseSync(path),
  'better-sqlite3': (path) => new Database(path) as unknown as SqliteDatabase,
}

describe.each(Object.entries(libraries))('%s', (_, open) => {
  const start = (more: object = {}): { database: SqlDatabase<SqliteDatabase>; own: SqliteDatabase } => {
    const own = open(file)
    own.exec('PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL')
    const store = sqliteStore({ database: own, ...more }) as SqliteStore<SqliteDatabase>
    closing.push(() => (store.close(), own.close()))
    return { database: databaseOf(store) as SqlDatabase<SqliteDatabase>, own }
  }
  const made = async (more: object = {}) => {
    const started = start(more)
    const { database } = started
    await database.migrate([`create table ${database.tableName('beside')} (n integer, t text)`])
    const rows = (): Promise<readonly string[]> =>
      database.query(sql` SELECT n || ':' || coalesce(t, 'null') AS answer FROM ${database.table('beside')} ORDER BY n`)
    return { ...started, rows }
  }

  test('values are bound as what they are, and rows come back as texts', async () => {
    const { database, rows } = await made({ table: 'mine' })
    expect([database.dialect, database.tableName('beside')]).toEqual(['sqlite', '"mine_beside"'])
    const values = [true, false, 7, 7n, 'seven', null, new Date(5), 0.5, Buffer.from('b')]
    for (const [at, value] of values.entries())
      await database.query(sql`insert into ${database.table('beside')} values (${at}, ${value})`)
    expect(await rows()).toEqual(['0:1', '1:0', '2:7', '3:7', '4:seven', '5:null', '6:5.0', '7:0.5', '8:b'])
  })

  test('its time is that of the store', async () => {
    const clock = manualClock()
    const { database } = start({ clock })
    await clock.advance(5)
    const [now] = await database.query(sql`select ${database.nowMs()} AS answer`)
    expect(Number(now)).toBe(clock.now())
  })

  test('what fails is an OnceError, in a read, a write, a migration and a transaction', async () => {
    const { database, rows } = await made()
    for (const statement of ['select * from nowhere', 'insert into nowhere values (1)'])
      await expect(database.query(piece(statement))).rejects.toMatchObject({ code: 'SCHEMA_MISSING' })
    const table = database.tableName('beside')
    await expect(database.migrate([`insert into ${table} values (1, 'a')`, 'nonsense'])).rejects.toBeInstanceOf(
      OnceError,
    )
    expect(await rows()).toEqual([])
    const begun = await database.begin(key('s', '1'))
    await expect(begun.query(piece('select * from nowhere'))).rejects.toMatchObject({ code: 'SCHEMA_MISSING' })
    await begun.rollback()
  })

  test('a transaction is committed or rolled back as a whole', async () => {
    const { database, rows } = await made()
    const insert = sql`insert into ${database.table('beside')} values (${1}, ${'a'})`
    const kept = await database.begin(key('s', '1'))
    await kept.query(insert)
    kept.tx.exec(`insert into ${database.tableName('beside')} values (2, 'b')`)
    expect(await rows()).toEqual([])
    await kept.commit()
    expect(await rows()).toEqual(['1:a', '2:b'])
    for (const end of ['rollback', 'abandon'] as const) {
      const gone = await database.begin(key('s', '1'))
      await gone.query(insert)
      await gone[end]()
    }
    expect(await rows()).toEqual(['1:a', '2:b'])
  })

  test('a transaction of the user is joined, on the same file and by the same library only', async () => {
    const { database, own, rows } = await made()
    const insert = sql`insert into ${database.table('beside')} values (${1}, ${'a'})`
    expect(() => database.join(own, 'outbox')).toThrow(/^outbox: expected a database handle with an open transaction/)
    own.exec('BEGIN')
    await database.join(own, 'outbox').query(insert)
    await database.join(own, 'outbox').query(insert)
    expect(await rows()).toEqual([])
    own.exec('COMMIT')
    expect(await rows()).toEqual(['1:a', '1:a'])
    const elsewhere = open(join(folder, 'other.db'))
    closing.push(() => elsewhere.close())
    elsewhere.exec('BEGIN')
    expect(() => database.join(elsewhere, 'outbox')).toThrow(/the file of the store/)
  })

  test('reads wait for no writer, and writes for their turn', async () => {
    const { database, rows } = await made({ lockWaitMs: 50 })
    const begun = await database.begin(key('s', '1'))
    expect(await rows()).toEqual([])
    const insert = sql`insert into ${database.table('beside')} values (${1}, ${'a'})`
    await expect(database.query(insert)).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
    const waiting = database.query(insert)
    await begun.commit()
    await waiting
    expect(await rows()).toEqual(['1:a'])
  })

  test('a lock of another, and a transaction that was overtaken, are conflicts', () => {
    const { database } = start()
    const busy = Object.assign(new Error('busy'), { code: 'SQLITE_BUSY' })
    const overtaken = new OnceError('TRANSACTION_CONFLICT', { message: 'overtaken' })
    const others = [new OnceError('IN_FLIGHT', { message: 'other' }), new Error('other'), undefined]
    expect([busy, overtaken, ...others].map((error) => database.isConflict(error))).toEqual([
      true,
      true,
      false,
      false,
      false,
    ])
  })
})

// Where SQLite fails or is set up unsafely: a full disk, a lock that is not given back, settings that lose commits, files
// that are no databases. Every failure is an OnceError that tells the truth, and the store works again afterwards.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import Database from 'better-sqlite3'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { OnceError } from '../../core/errors.ts'
import { key } from '../../core/key.ts'
import { bytesOf, finish, request, retention, take } from '../../testing/store-contract.ts'
import { sqliteStore } from '../sqlite.ts'

let folder: string
let file: string

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'onceonly-sqlite-'))
  file = join(folder, 'test.db')
})

afterEach(() => rmSync(folder, { recursive: true }))

const megabyte = new Uint8Array(2 ** 20).fill(7)

/** What `work` throws, at once or later. */
async function errorOf(work: () => unknown): Promise<OnceError> {
  try {
    await work()
  } catch (error) {
    expect(error).toBeInstanceOf(OnceError)
    return error as OnceError
  }
  throw new Error('expected an error, got an answer')
}

/** A database on a disk of half a megabyte, in every connection that is opened to it. */
class SmallDisk extends DatabaseSync {
  constructor(path: string) {
    super(path)
    this.exec('PRAGMA journal_mode = WAL; PRAGMA max_page_count = 128')
  }
}

describe('a full disk', () => {
  test('fails a settle as STORE_UNAVAILABLE, keeps the claim, and takes a smaller outcome', async () => {
    const store = sqliteStore({ database: new SmallDisk(file) })
    await finish(store, key('full', 'before'), bytesOf('kept'))
    const claim = await take(store, key('full', 'disk'))
    const error = await errorOf(() => store.settle(claim, megabyte, retention))
    expect(error).toMatchObject({ code: 'STORE_UNAVAILABLE', executed: 'no', retryable: true })
    expect(error.message).toContain('Make room on the disk')
    expect(await store.claim(key('full', 'before'), request())).toMatchObject({ is: 'settled' })
    expect(await store.claim(key('full', 'disk'), request())).toMatchObject({ is: 'busy' })
    expect(await store.settle(claim, bytesOf('small'), retention)).toBe('done')
    store.close()
  })

  test('fails all calls that shared the transaction, and leaves nothing of any of them', async () => {
    const store = sqliteStore({ database: new SmallDisk(file) })
    const claim = await take(store, key('full', 'disk'))
    const answers = await Promise.allSettled([
      store.claim(key('full', 'neighbour'), request()),
      store.settle(claim, megabyte, retention),
    ])
    for (const answer of answers) {
      expect(answer).toMatchObject({ status: 'rejected', reason: { code: 'STORE_UNAVAILABLE', executed: 'no' } })
    }
    expect(await store.show(key('full', 'neighbour'))).toBeUndefined()
    expect(await store.claim(key('full', 'neighbour'), request())).toMatchObject({ is: 'granted', how: 'fresh' })
    store.close()
  })

  test('in a transaction of the store fails the commit as not executed, and leaves neither effect nor entry', async () => {
    const database = new SmallDisk(file)
    database.exec('CREATE TABLE effects (name TEXT)')
    const store = sqliteStore({ database })
    const began = await store.begin(key('full', 'disk'), request())
    began.granted!.tx.exec(`INSERT INTO effects VALUES ('effect')`)
    const error = await errorOf(() => began.granted!.commit(megabyte, retention))
    expect(error).toMatchObject({ code: 'STORE_UNAVAILABLE', executed: 'no' })
    expect(database.prepare('SELECT * FROM effects').all()).toEqual([])
    const again = await store.begin(key('full', 'disk'), request())
    expect(await again.granted!.commit(bytesOf('small'), retention)).toBe('done')
    store.close()
  })

  test('is over when entries are forgotten', async () => {
    const store = sqliteStore({ database: new SmallDisk(file) })
    const half = megabyte.subarray(0, 2 ** 18)
    await finish(store, key('full', '1'), half)
    const claim = await take(store, key('full', '2'))
    expect(await errorOf(() => store.settle(claim, half, retention))).toMatchObject({ code: 'STORE_UNAVAILABLE' })
    await store.mend(key('full', '1'), 'forget', 'making room')
    expect(await store.settle(claim, half, retention)).toBe('done')
    store.close()
  })
})

describe('a lock that another connection does not give back', () => {
  test('fails what must write as STORE_UNAVAILABLE after lockWaitMs, and nothing of it happens later', async () => {
    const store = sqliteStore({ path: file, lockWaitMs: 30 })
    const held = await take(store, key('locked', 'held'))
    const other = new DatabaseSync(file)
    other.exec('BEGIN IMMEDIATE')
    for (const call of [
      () => store.claim(key('locked', 'out'), request()),
      () => store.settle(held, bytesOf('late'), retention),
      () => store.begin(key('locked', 'out'), request()),
      () => store.sweep({ limit: 10 }),
    ]) {
      expect(await errorOf(call)).toMatchObject({ code: 'STORE_UNAVAILABLE', executed: 'no', retryable: true })
    }
    other.exec('ROLLBACK')
    expect(await store.show(key('locked', 'out'))).toBeUndefined()
    expect(await store.settle(held, bytesOf('in time'), retention)).toBe('done')
    store.close()
    other.close()
  })

  test('keeps nobody from what can be told by reading: settled, busy, mismatch, and what show and list tell', async () => {
    const store = sqliteStore({ path: file })
    await finish(store, key('locked', 'settled'), bytesOf('answer'))
    await take(store, key('locked', 'running'))
    const other = new DatabaseSync(file)
    other.exec('BEGIN IMMEDIATE')
    expect(await store.claim(key('locked', 'settled'), request())).toMatchObject({ is: 'settled' })
    expect((await store.begin(key('locked', 'settled'), request())).verdict).toMatchObject({ is: 'settled' })
    expect(await store.claim(key('locked', 'running'), request())).toMatchObject({ is: 'busy' })
    const another = request({ fingerprint: 'x'.repeat(43) })
    expect(await store.claim(key('locked', 'running'), another)).toEqual({ is: 'mismatch' })
    expect(await store.show(key('locked', 'running'))).toMatchObject({ state: 'running' })
    expect(await store.list({ limit: 10 })).toHaveLength(2)
    other.close()
    store.close()
  })

  test('while a store is opened on a new file is waited for by its first call', async () => {
    const other = new DatabaseSync(file)
    other.exec('PRAGMA journal_mode = WAL; BEGIN IMMEDIATE')
    const store = sqliteStore({ path: file })
    const claim = take(store, key('opened', 'meanwhile'))
    other.exec('COMMIT')
    expect(await claim).toMatchObject({ attempt: 1 })
    other.close()
    store.close()
  })
})

describe('durability', () => {
  test('a better-sqlite3 database that was opened again in WAL mode is at NORMAL, and refused', async () => {
    new Database(file).exec('PRAGMA journal_mode = WAL').close()
    const database = new Database(file)
    const error = await errorOf(() => sqliteStore({ database }))
    expect(error).toMatchObject({ code: 'STORE_UNSAFE', executed: 'no' })
    expect(error.message).toContain('journal_mode wal and synchronous NORMAL')
    sqliteStore({ database, durability: 'relaxed' }).close()
    database.exec('PRAGMA synchronous = FULL')
    sqliteStore({ database }).close()
    expect(database.pragma('synchronous', { simple: true })).toBe(2)
  })

  test('a rollback journal that is deleted needs EXTRA, and is not turned into WAL behind its owner', async () => {
    const database = new DatabaseSync(file)
    expect(await errorOf(() => sqliteStore({ database }))).toMatchObject({ code: 'STORE_UNSAFE' })
    database.exec('PRAGMA synchronous = EXTRA')
    const store = sqliteStore({ database })
    await finish(store, key('journal', 'delete'), bytesOf('kept'))
    const began = await store.begin(key('journal', 'transaction'), request())
    expect(await began.granted!.commit(bytesOf('kept'), retention)).toBe('done')
    expect(database.prepare('PRAGMA journal_mode').get()).toEqual({ journal_mode: 'delete' })
    store.close()
  })

  test('a journal in memory is refused whatever synchronous is', async () => {
    const database = new DatabaseSync(file)
    database.exec('PRAGMA journal_mode = MEMORY; PRAGMA synchronous = EXTRA')
    expect(await errorOf(() => sqliteStore({ database }))).toMatchObject({ code: 'STORE_UNSAFE' })
  })

  test('every connection of the store syncs its commits, of either library', async () => {
    for (const [index, Library] of [DatabaseSync, Database].entries()) {
      const database = new Library(join(folder, `${index}.db`))
      database.exec('PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL')
      const store = sqliteStore({ database })
      const { granted } = await store.begin(key('a', 'b'), request())
      expect(granted!.tx.prepare('PRAGMA synchronous').get()).toEqual({ synchronous: 3 })
      await granted!.rollback()
      store.close()
    }
  })

  test('a handle that does not sync is refused by within, too', async () => {
    const store = sqliteStore({ path: file })
    const weak = new DatabaseSync(file)
    weak.exec('PRAGMA synchronous = NORMAL; BEGIN')
    expect(await errorOf(() => store.within(weak).claim(key('a', 'b'), request()))).toMatchObject({
      code: 'STORE_UNSAFE',
    })
    weak.close()
    store.close()
  })
})

describe('opening', () => {
  test('a file that is no database, a folder and a path without a folder are told at once, and not changed', async () => {
    const letter = join(folder, 'letter.txt')
    writeFileSync(letter, 'Dear Sir, this is not a database. '.repeat(100))
    for (const [path, words] of [
      [letter, 'not a SQLite database'],
      [folder, 'The folder must exist'],
      [join(folder, 'none', 'test.db'), 'The folder must exist'],
    ] as const) {
      const error = await errorOf(() => sqliteStore({ path }))
      expect(error).toMatchObject({ code: 'STORE_UNAVAILABLE', executed: 'no', retryable: false })
      expect(error.message).toContain(words)
    }
  })

  test('a database in memory is refused, as no second connection could see it', async () => {
    for (const open of [
      () => sqliteStore({ path: ':memory:' }),
      () => sqliteStore({ database: new DatabaseSync(':memory:'), durability: 'relaxed' }),
      () => sqliteStore({ database: new Database(':memory:'), durability: 'relaxed' }),
    ]) {
      const error = await errorOf(open)
      expect(error).toMatchObject({ code: 'INVALID_ARGUMENT' })
      expect(error.message).toContain('Use memoryStore()')
    }
  })

  test('options are checked at once', async () => {
    for (const [options, words] of [
      [{}, 'expected either path or database'],
      [{ path: file, database: new DatabaseSync(':memory:') }, 'expected either path or database'],
      [{ path: 42 }, 'expected path to be a non-empty string, got 42'],
      [{ path: file, tabel: 'keys' }, 'unknown option "tabel", did you mean "table"?'],
      [{ path: file, table: 'a"; DROP TABLE b' }, 'expected table to be a name of'],
      [{ path: file, lockWaitMs: '5s' }, 'expected lockWaitMs to be a positive integer of milliseconds, got "5s"'],
      [{ path: file, durability: 'realxed' }, 'did you mean "relaxed"?'],
      [{ database: {} }, 'expected database to be an object with the methods exec, prepare, close'],
    ] as const) {
      const error = await errorOf(() => sqliteStore(options as unknown as { path: string }))
      expect(error.code).toBe('INVALID_ARGUMENT')
      expect(error.message).toContain(words)
    }
  })

  test('a store that was closed is STORE_UNAVAILABLE, and closing it twice is no error', async () => {
    const store = sqliteStore({ path: file })
    const waiting = errorOf(() => store.claim(key('a', 'b'), request()))
    store.close()
    store.close()
    expect(await waiting).toMatchObject({ code: 'STORE_UNAVAILABLE', executed: 'no' })
    for (const call of [
      () => store.claim(key('a', 'b'), request()),
      () => store.begin(key('a', 'b'), request()),
      () => store.show(key('a', 'b')),
      () => store.migrate(),
    ]) {
      expect(await errorOf(call)).toMatchObject({ code: 'STORE_UNAVAILABLE' })
    }
  })
})

describe('the schema', () => {
  test('can be made by hand, is not made twice, and leaves user_version to the user', async () => {
    const database = new DatabaseSync(file)
    database.exec('PRAGMA journal_mode = WAL; PRAGMA user_version = 7')
    const first = sqliteStore({ database, table: 'first' })
    database.exec(first.schema().replaceAll(/\bfirst(?=\b|_(?!claimed))/g, 'second'))
    const second = sqliteStore({ database, table: 'second' })
    await finish(second, key('a', 'b'), bytesOf('kept'))
    await second.migrate()
    database.exec(second.schema())
    expect(await second.claim(key('a', 'b'), request())).toMatchObject({ is: 'settled' })
    expect(await first.show(key('a', 'b'))).toBeUndefined()
    expect(database.prepare('PRAGMA user_version').get()).toEqual({ user_version: 7 })
    expect(database.prepare('SELECT version FROM second_schema').all()).toEqual([{ version: 2 }])
    first.close()
    second.close()
  })

  test('of a newer version is refused, not guessed at', async () => {
    sqliteStore({ path: file }).close()
    const database = new DatabaseSync(file)
    database.exec('INSERT INTO onceonly_schema VALUES (3)')
    const error = await errorOf(() => sqliteStore({ path: file }))
    expect(error).toMatchObject({ code: 'UNSUPPORTED', executed: 'no', retryable: false })
    expect(error.message).toContain('schema version 3, written by a newer onceonly; this one knows 2')
  })

  test('that somebody dropped is SCHEMA_MISSING, and migrate() brings it back', async () => {
    const store = sqliteStore({ path: file })
    const database = new DatabaseSync(file)
    for (const table of ['onceonly', 'onceonly_audit', 'onceonly_schema']) database.exec(`DROP TABLE ${table}`)
    expect(await errorOf(() => store.claim(key('a', 'b'), request()))).toMatchObject({ code: 'SCHEMA_MISSING' })
    await store.migrate()
    await finish(store, key('a', 'b'), bytesOf('kept'))
    store.close()
  })

  test('on a connection that may only read is STORE_UNAVAILABLE, with the cure', async () => {
    class ReadOnly extends DatabaseSync {
      constructor(path: string) {
        super(path, { readOnly: true })
      }
    }
    new DatabaseSync(file).exec('PRAGMA journal_mode = WAL; CREATE TABLE other (x)')
    const error = await errorOf(() => sqliteStore({ database: new ReadOnly(file) }))
    expect(error).toMatchObject({ code: 'STORE_UNAVAILABLE', retryable: false })
    expect(error.message).toContain('must be writable')
  })
})

test('an entry that is settled and has lost its outcome is OUTCOME_UNREADABLE, not absent', async () => {
  const store = sqliteStore({ path: file })
  await finish(store, key('lost', 'outcome'), bytesOf('gone'))
  new DatabaseSync(file).exec('UPDATE onceonly SET outcome = NULL')
  expect(await errorOf(() => store.claim(key('lost', 'outcome'), request()))).toMatchObject({
    code: 'OUTCOME_UNREADABLE',
    executed: 'yes',
  })
  store.close()
})

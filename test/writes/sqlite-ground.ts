// SQLite for the writes: the tables on a handle, and callers who take turns.
import { DatabaseSync } from 'node:sqlite'
import Database from 'better-sqlite3'
import type { SqliteWritesDatabase, SyncWrites, WriteName, Writes } from '../../src/writes/index.ts'
import { asTexts, tables, type WritesGround } from './ground.ts'

export const sqliteSchema = `
  create table things (id text primary key, name text, note text, visits integer, version integer, email text unique);
  create table marks (event_id text primary key);
  create table events (event_id text primary key, stream text, version integer, body text, unique (stream, version))`

export interface Handle extends SqliteWritesDatabase {
  close(): void
}

export const nodeHandle = (path: string): Handle => new DatabaseSync(path)

export const betterHandle = (path: string): Handle => new Database(path) as unknown as Handle

interface Reading {
  all(value: string): object[]
  setReadBigInts?(on: boolean): void
  safeIntegers?(on: boolean): void
}

/** With whole numbers as bigints, so that none is rounded. */
export function rowsOf(database: Handle, text: string, value: string): object[] {
  const statement = database.prepare(text) as Reading
  statement.setReadBigInts?.(true)
  statement.safeIntegers?.(true)
  return statement.all(value)
}

function asynchronous(writes: SyncWrites): Writes {
  const names = Object.keys(writes) as WriteName[]
  const each = (name: WriteName) => async (table: string, request: never) => writes[name](table, request)
  return Object.fromEntries(names.map((name) => [name, each(name)])) as unknown as Writes
}

export function sqliteGround(database: Handle, given: SyncWrites): WritesGround {
  // What is tested here is not the disk.
  database.exec('pragma synchronous = off; pragma journal_mode = memory')
  database.exec(sqliteSchema)
  const writes = asynchronous(given)
  // One connection is one transaction at a time, so callers take turns, as they do with SQLite's one writer.
  let turn: Promise<unknown> = Promise.resolve()
  const inTransaction = async <T>(work: (writes: Writes) => Promise<T>): Promise<T> => {
    database.exec('begin immediate')
    try {
      const value = await work(writes)
      database.exec('commit')
      return value
    } catch (error) {
      database.exec('rollback')
      throw error
    }
  }
  return {
    run(work) {
      const mine = turn.then(() => inTransaction(work))
      turn = mine.catch(() => {})
      return mine
    },
    async row(table, key) {
      const [column, value] = Object.entries(key)[0]!
      const found = rowsOf(database, `select * from ${table} where ${column} = ?`, value)[0]
      return found && asTexts(found)
    },
    async reset() {
      for (const table of tables) database.exec(`delete from ${table}`)
    },
    async [Symbol.asyncDispose]() {
      database.close()
    },
  }
}

// What the SQLite store lends to the contract, in each of its three forms: a file in a folder of its own, and a clock that stands still.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import Database from 'better-sqlite3'
import { systemClock } from '../../src/core/clock.ts'
import type { Clock } from '../../src/core/clock.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import type { SqliteDatabase, SqliteStore } from '../../src/stores/sqlite.ts'
import type { ContractSubject } from '../../src/testing/store-contract.ts'
import type { DumpedSubject } from './swept.ts'

export interface SqliteForm {
  /** A handle of the user's. */
  open(file: string): SqliteDatabase
  store(file: string, user: SqliteDatabase, options: { clock: Clock; lockWaitMs: number }): SqliteStore<SqliteDatabase>
}

export const sqliteForms: Readonly<Record<string, SqliteForm>> = {
  'sqlite, path': {
    open: openNode,
    store: (path, _user, options) => sqliteStore({ path, ...options }),
  },
  'sqlite, node:sqlite database': {
    open: openNode,
    store: (_path, database, options) => sqliteStore({ database, ...options }),
  },
  'sqlite, better-sqlite3 database': {
    open(file) {
      const database = new Database(file)
      database.exec('PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL')
      return database
    },
    store: (_path, database, options) => sqliteStore({ database, ...options }),
  },
}

function openNode(file: string): SqliteDatabase {
  const database = new DatabaseSync(file)
  database.exec('PRAGMA journal_mode = WAL')
  return database
}

export async function sqliteSubject(form: SqliteForm): Promise<DumpedSubject> {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-sqlite-'))
  const file = join(folder, 'test.db')
  let elapsedMs = 0
  // The time of entries stands still; waiting for locks takes the time it takes.
  const clock = { ...systemClock, now: () => 1_700_000_000_000 + elapsedMs, elapsed: () => elapsedMs }
  const options = { clock, lockWaitMs: 250 }
  const user = form.open(file)
  user.exec('CREATE TABLE effects (name TEXT NOT NULL)')
  const stores: SqliteStore<SqliteDatabase>[] = []
  const open = (): SqliteStore<SqliteDatabase> => {
    const store = form.store(file, user, options)
    stores.push(store)
    return store
  }
  return {
    store: open() as ContractSubject['store'],
    another: async () => open(),
    async advance(ms) {
      elapsedMs += ms
    },
    async corrupt(key, bytes) {
      user.prepare('UPDATE onceonly SET outcome = ? WHERE scope = ? AND id = ?').run(bytes, key.scope, key.id)
    },
    async dump() {
      const sql = `SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'onceonly%'`
      const tables = user.prepare(sql).all() as { name: string }[]
      return tables.flatMap(({ name }) => user.prepare(`SELECT * FROM ${name}`).all() as object[])
    },
    transactions: userTransactions(user, () => form.open(file)),
    async destroy() {
      for (const store of stores) store.close()
      user.close()
      rmSync(folder, { recursive: true })
    },
  }
}

function userTransactions(
  user: SqliteDatabase,
  openAnother: () => SqliteDatabase,
): NonNullable<ContractSubject['transactions']> {
  return {
    async run(work) {
      user.exec('BEGIN')
      try {
        const result = await work(user)
        user.exec('COMMIT')
        return result
      } catch (error) {
        user.exec('ROLLBACK')
        throw error
      }
    },
    async addEffect(tx, name) {
      const handle = tx as SqliteDatabase
      handle.prepare('INSERT INTO effects (name) VALUES (?)').run(name)
    },
    commitByHand: async (tx) => void (tx as SqliteDatabase).exec('COMMIT'),
    async countEffects(name) {
      const other = openAnother()
      const row = other.prepare('SELECT count(*) AS count FROM effects WHERE name = ?').get(name) as { count: number }
      other.close()
      return row.count
    },
  }
}

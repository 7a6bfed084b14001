// The SQLite store keeps the contract in each of its three forms. What is its own is in the other sqlite-*.test.ts files.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import Database from 'better-sqlite3'
import { describe, test } from 'vitest'
import { type DumpedSubject, sweptTest } from '../../../test/subjects/swept.ts'
import { systemClock } from '../../core/clock.ts'
import type { Clock } from '../../core/clock.ts'
import type { ContractSubject } from '../../testing/store-contract.ts'
import { storeContract } from '../../testing/store-contract.ts'
import type { Cannot } from '../../testing/store-contract.ts'
import { sqliteStore } from '../sqlite.ts'
import type { SqliteDatabase, SqliteStore } from '../sqlite.ts'

const cannot: Cannot = {
  collecting: 'its transactions stay open: nothing has to be collected',
  'no-waiting':
    'SQLite has one writer: while a transaction is open, whoever must write waits, for lockWaitMs at the most',
  'clock-skew': 'all processes that share a SQLite file are on one machine and read its clock',
  'crash-recovery': 'there is no server; sqlite/processes.test.ts kills the process itself',
  'connection-faults':
    'there is no connection to lose; sqlite/faults.test.ts has a full disk and a lock that is not given back',
  'commit-faults': 'there is no connection to lose; sqlite/processes.test.ts kills the process before and after COMMIT',
}

interface Form {
  /** A handle of the user's. */
  open(file: string): SqliteDatabase
  store(file: string, user: SqliteDatabase, options: { clock: Clock; lockWaitMs: number }): SqliteStore<SqliteDatabase>
}

const forms: Readonly<Record<string, Form>> = {
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

for (const [name, form] of Object.entries(forms)) {
  describe(name, () => sweptTest(() => createSubject(form)))
  storeContract({ name, create: () => createSubject(form), cannot, test })
}

async function createSubject(form: Form): Promise<DumpedSubject> {
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

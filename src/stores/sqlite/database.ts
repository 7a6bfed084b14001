// The database of the store, for tables beside its own (clients/sql-database.ts). A statement outside of a transaction runs on the
// connection of the store's calls, and takes its turn among the writers unless it only reads.

import { inTransaction, prepare, rollBack } from '../../clients/sqlite.ts'
import type { SqliteDatabase, SqliteValue } from '../../clients/sqlite.ts'
import type { SqlDatabase, SqlSession } from '../../clients/sql-database.ts'
import { piece, sql, textOf } from '../../clients/sql-statement.ts'
import type { SqlStatement, SqlValue } from '../../clients/sql-statement.ts'
import { invalidArgument, OnceError } from '../../core/errors.ts'
import type { SqliteCalls, SqliteGround } from './batches.ts'
import { asOnceError, isBusy } from './errors.ts'
import type { Transactions } from './transactions.ts'
import { whileBusy } from './turns.ts'
import { checkSameDatabase } from './within.ts'

export function isConflict(error: unknown): boolean {
  return isBusy(error) || (error instanceof OnceError && error.code === 'TRANSACTION_CONFLICT')
}

export function sqliteDatabase(
  ground: SqliteGround,
  calls: SqliteCalls,
  transactions: Transactions,
): SqlDatabase<SqliteDatabase> {
  const { first, clock, lockWaitMs } = ground
  const tableName = (suffix: string): string => `"${ground.table}_${suffix}"`
  const writing = async <T>(work: () => T): Promise<T> => {
    await calls.read(() => undefined) // makes sure that the tables of the store are there
    const endTurn = await ground.turns(lockWaitMs)
    try {
      return await whileBusy(clock, lockWaitMs, work)
    } catch (error) {
      throw asOnceError(error)
    } finally {
      endTurn()
    }
  }
  const reading = <T>(work: () => T): Promise<T> =>
    whileBusy(clock, lockWaitMs, work).catch((error: unknown) => Promise.reject(asOnceError(error)))
  const same = new WeakSet<object>()
  return {
    dialect: 'sqlite',
    tableName,
    table: (suffix) => piece(tableName(suffix)),
    nowMs: () => sql`${ground.moments.now()}`,
    isConflict,
    query: async (statement) =>
      reads(statement) ? reading(() => send(first, statement)) : writing(() => send(first, statement)),
    migrate: (statements) => writing(() => create(first, statements)),
    async begin(key) {
      await calls.read(() => undefined)
      const { database, ...open } = await transactions.beginPlain(key)
      return { tx: database, ...sessionOn(database), ...open }
    },
    join(tx, caller) {
      const database = tx as SqliteDatabase
      if (!same.has(database)) {
        checkSameDatabase(database, first)
        same.add(database)
      }
      if (inTransaction(database)) return sessionOn(database)
      throw invalidArgument(
        `${caller}: expected a database handle with an open transaction, got one without. Run BEGIN first.`,
      )
    },
  }
}

function create(database: SqliteDatabase, statements: readonly string[]): void {
  database.exec('BEGIN IMMEDIATE')
  try {
    for (const statement of statements) database.exec(statement)
    database.exec('COMMIT')
  } catch (error) {
    rollBack(database)
    throw error
  }
}

function sessionOn(database: SqliteDatabase): SqlSession {
  return {
    async query(statement) {
      try {
        return send(database, statement)
      } catch (error) {
        throw asOnceError(error)
      }
    },
  }
}

function reads({ texts }: SqlStatement): boolean {
  return /^\s*select\b/i.test(texts[0]!)
}

function send(database: SqliteDatabase, statement: SqlStatement): readonly string[] {
  const prepared = prepare(
    database,
    textOf(statement, () => '?'),
  )
  const values = statement.values.map(bound)
  // better-sqlite3 refuses `all` for a statement without rows, and knows which it is.
  if ((prepared as { readonly reader?: boolean }).reader === false) {
    prepared.run(...values)
    return []
  }
  return (prepared.all(...values) as { readonly answer: string }[]).map((row) => row.answer)
}

// Neither client binds booleans, and a whole number that goes as a double becomes "7.0" in a column of text.
function bound(value: SqlValue): SqliteValue {
  if (typeof value === 'boolean') return value ? 1n : 0n
  if (typeof value === 'number' && Number.isSafeInteger(value)) return BigInt(value)
  return value instanceof Date ? value.getTime() : value
}

// The writes on a handle of node:sqlite or better-sqlite3, inside the user's transaction or, each by itself, outside of one.
// Invariant: a write of several statements is a savepoint, written as a whole or not at all.

import { prepare } from '../clients/sqlite.ts'
import type { SqliteDatabase, SqliteValue } from '../clients/sqlite.ts'
import { invalidArgument } from '../core/errors.ts'
import { withMethods } from '../core/options.ts'
import type { Rule } from '../core/options.ts'
import { requestChecks, scalar, sqlTable } from './requests.ts'
import { additions, returningWrites } from './returning.ts'
import { name, sql, textOf } from '../clients/sql-statement.ts'
import { names, values, where } from './statement.ts'
import type { SqlStatement } from '../clients/sql-statement.ts'
import { answerOf, syncWrites } from './steps.ts'
import type { WriteResult, WriteSteps } from './steps.ts'
import type { AddOnce, Answers, SyncWrites, Value } from './writes.ts'

/** A database of node:sqlite or better-sqlite3. */
export type SqliteWritesDatabase = Pick<SqliteDatabase, 'exec' | 'prepare'>

const sqliteValue: Rule = (value) =>
  value instanceof Date ? 'something other than a Date (SQLite has no times; give milliseconds or text)' : scalar(value)

const check = requestChecks({ table: sqlTable, value: sqliteValue, marks: 'table' })

const writes = returningWrites({
  addOnce: (table, request) => atomically(addOnce(table, request)),
  appendConflicts: (event, position) => sql`on conflict (${event}) do nothing on conflict (${position}) do nothing`,
})

/**
 * Writes that may be repeated, on your own tables in SQLite, through node:sqlite or better-sqlite3. They return at once.
 *
 * @example
 * import { DatabaseSync } from 'node:sqlite'
 * import { sqliteWrites } from 'onceonly/writes'
 *
 * const database = new DatabaseSync('shop.db')
 * // 'applied' the first time, 'already' the second time.
 * const written = sqliteWrites(database).insertOnce('orders', { key: { id: 'order-42' }, set: { cents: 500 } })
 */
export function sqliteWrites(database: SqliteWritesDatabase): SyncWrites {
  if (withMethods('exec', 'prepare')(database) !== undefined) {
    throw invalidArgument('sqliteWrites: expected a database of node:sqlite or better-sqlite3')
  }
  return syncWrites(writes, check, (statement) => send(database, statement))
}

// SQLite has one writer: the first statement takes the write lock, and no other connection writes until the end.
function* addOnce(table: string, { key, add, once }: AddOnce): WriteSteps<Answers['addOnce']> {
  const counter = sql`select 1 from ${name(table)} where ${where(key)}`
  const marked = yield sql`
    insert into ${name(once.table!)} (${names(once.key)}) select ${values(once.key)} where exists (${counter})
    on conflict (${names(once.key)}) do nothing returning 'applied' as answer`
  if (answerOf(marked)) {
    yield sql`update ${name(table)} set ${additions(add)} where ${where(key)} returning 1`
    return 'applied'
  }
  const found = yield sql`select 'already' as answer from ${name(table)} where ${where(key)}`
  return answerOf(found) ?? 'missing'
}

function* atomically<Answer>(steps: WriteSteps<Answer>): WriteSteps<Answer> {
  yield sql`savepoint onceonly_writes`
  try {
    const answer = yield* steps
    yield sql`release onceonly_writes`
    return answer
  } catch (error) {
    try {
      yield sql`rollback to onceonly_writes`
      yield sql`release onceonly_writes`
    } catch {
      // SQLite has rolled everything back by itself (disk full). The first error says why.
    }
    throw error
  }
}

function send(database: SqliteWritesDatabase, statement: SqlStatement): WriteResult {
  const text = textOf(statement, () => '?').replaceAll('"', '`')
  if (statement.values.length === 0) {
    database.exec(text)
    return { rows: [] }
  }
  return { rows: prepare(database, text).all(...statement.values.map(bound)) }
}

// Neither client binds booleans, and a whole number that goes as a double becomes "7.0" in a column of text.
function bound(value: Value): SqliteValue {
  if (typeof value === 'boolean') return value ? 1n : 0n
  if (typeof value === 'number' && Number.isSafeInteger(value)) return BigInt(value)
  return value as SqliteValue
}

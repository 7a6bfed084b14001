// A table of ours that is missing is an error that says which call creates it.

import type { SqlDatabase } from './sql-database.ts'
import { OnceError } from '../core/errors.ts'

/** Rooms with tables of their own beside a store's. Each has a `migrate()`. */
export type CuredRoom = 'inbox' | 'outbox' | 'sessions' | 'webhooks'

const missing = /no such table|does not exist|doesn't exist|is missing/

/**
 * The same error, or one that names the cure where a table is missing. `what` is in the name of the table, and `${what}.migrate()`
 * creates it.
 */
export function orMissingTable(error: unknown, what: CuredRoom): unknown {
  let current = error
  // A client's error can be the cause of another one.
  for (let depth = 0; depth < 5 && current instanceof Error; depth++) {
    if (missing.test(current.message) && current.message.includes(what)) {
      // The store's own cure creates the tables of the store.
      const found = current.message.split(' Run ', 1)[0]!
      const message = `A table of the ${what} is missing: ${found}. Run "await ${what}.migrate()" once, or give the SQL of its schema() to your own migrations.`
      return new OnceError('SCHEMA_MISSING', { message, cause: error })
    }
    current = current.cause
  }
  return error
}

/** The same database, whose statements say so. */
export function withCure(database: SqlDatabase, what: CuredRoom): SqlDatabase {
  return {
    ...database,
    query: (statement) =>
      database.query(statement).catch((error: unknown) => Promise.reject(orMissingTable(error, what) as Error)),
  }
}

// A table or a function of ours that is missing is an error that says which call creates it.

import type { SqlDatabase } from './sql-database.ts'
import { OnceError } from '../core/errors.ts'

/** Rooms with tables of their own beside a store's. Each has a `migrate()`. */
export type CuredRoom = 'inbox' | 'outbox' | 'sessions' | 'webhooks'

const missing = /no such table|does not exist|doesn't exist|is missing/

/** How the database says that a table or a function with this in its name is missing, or undefined. A client's error can be the cause of another one. */
export function missingTableIn(error: unknown, name: string): string | undefined {
  let current = error
  for (let depth = 0; depth < 5 && current instanceof Error; depth++) {
    const { message, cause } = current
    // The store's own cure creates the tables of the store.
    if (missing.test(message) && message.includes(name)) return message.split(' Run ', 1)[0]
    current = cause
  }
  return undefined
}

/**
 * The same error, or one that names the cure where a table or a function is missing. `what` is in its name, and `${what}.migrate()`
 * creates it.
 */
export function orMissingTable(error: unknown, what: CuredRoom): unknown {
  const found = missingTableIn(error, what)
  if (found === undefined) return error
  const message = `A table or a function of the ${what} is missing: ${found.replace(/\.+$/, '')}. Run "await ${what}.migrate()" once, or give the SQL of its schema() to your own migrations.`
  return new OnceError('SCHEMA_MISSING', { message, cause: error })
}

/** The same database, whose statements say so. */
export function withCure(database: SqlDatabase, what: CuredRoom): SqlDatabase {
  return {
    ...database,
    query: (statement) =>
      database.query(statement).catch((error: unknown) => Promise.reject(orMissingTable(error, what) as Error)),
  }
}

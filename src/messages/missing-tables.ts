// A table of ours that is missing is an error that says which call creates it.

import type { SqlDatabase } from '../clients/sql-database.ts'
import { OnceError } from '../core/errors.ts'

const missing = /no such table|does not exist|doesn't exist|is missing/

/** The same database. `cure` is the call that creates the tables: 'inbox.migrate()'. */
export function withCure(database: SqlDatabase, cure: string): SqlDatabase {
  return {
    ...database,
    query: (statement) =>
      database.query(statement).catch((error: unknown) => {
        const said = error instanceof Error ? error.message : String(error)
        if (!missing.test(said)) throw error
        // The store's own cure creates the tables of the store.
        const found = said.split(' Run ', 1)[0]!
        const message = `${found} Run "await ${cure}" once, or give the SQL of its schema() to your own migrations.`
        throw new OnceError('SCHEMA_MISSING', { message, cause: error })
      }),
  }
}

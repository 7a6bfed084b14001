// The SQL database behind a store, for the tables that other rooms keep beside the store's: inbox, outbox. A store offers it when it
// is created, and `databaseOf` finds it. It is no method of a store: what a store must do stays as small as it is.
//
// Every statement goes with its values, and each row that comes back has one text column named `answer`, so that nothing depends on
// how a client maps names and types.

import type { Key } from '../core/key.ts'
import type { SqlStatement } from './sql-statement.ts'

export type SqlDialect = 'postgres' | 'mysql' | 'sqlite'

export interface SqlSession {
  /** One statement, with its values. Resolves to the column `answer` of its rows. */
  query(statement: SqlStatement): Promise<readonly string[]>
}

/** A transaction of ours. `tx` is what a handler writes with: the same that the effect of `once.transaction` is given. */
export interface SqlTransaction<Tx> extends SqlSession {
  readonly tx: Tx
  /**
   * OUTCOME_UNKNOWN when the server did not confirm, or when what ran in the transaction has ended it. After every other error all of
   * it is rolled back.
   */
  commit(): Promise<void>
  /** Never fails. */
  rollback(): Promise<void>
  /** Take everything back under a handler that still runs: whatever it writes with `tx` from now on must never be committed. */
  abandon(): Promise<void>
}

/** `query` is a transaction by itself. */
export interface SqlDatabase<Tx = unknown> extends SqlSession {
  readonly dialect: SqlDialect
  /** The full name of a table beside the store's: 'inbox' is `onceonly_inbox`, in the store's schema. */
  table(suffix: string): SqlStatement
  /** The same as text, for statements that create it. */
  tableName(suffix: string): string
  /** Now, in milliseconds since 1970, by the store's clock: a piece of a statement. */
  nowMs(): SqlStatement
  /** Carries out statements that create tables, one process at a time. */
  migrate(statements: readonly string[]): Promise<void>
  /** Opens a transaction. `key` names it in errors. */
  begin(key: Key): Promise<SqlTransaction<Tx>>
  /** A transaction that the caller opened and will end, of every kind that `once.within` takes. `caller` begins the message of a refusal. */
  join(tx: unknown, caller: string): SqlSession
  /** Rolled back because of other transactions: all of it may run again. */
  isConflict(error: unknown): boolean
}

const databases = new WeakMap<object, SqlDatabase>()

/** Called by a store for itself. */
export function offerDatabase<S extends object>(store: S, database: SqlDatabase): S {
  databases.set(store, database)
  return store
}

/** Undefined for a store that has no SQL database, or that was wrapped by somebody's own code. */
export function databaseOf(store: object): SqlDatabase | undefined {
  return databases.get(store)
}

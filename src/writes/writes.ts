// The contract of the naturally idempotent writes: the requests and their results. Every backend has the same seven. Invariant:
// a result other than 'applied' or 'appended' means that this call changed nothing.
//
// Decisions, and what they cost:
// - A write on SQL is a generator that yields statements: one logic for SQLite, which returns at once, and for clients that are
//   awaited.
// - One statement when a write applies, a second that only reads when it does not: the snapshot of the first is older than what
//   it waited for.
// - MySQL's upserts leave their result in LAST_INSERT_ID: affected rows depend on a flag of the connection. Costs: the
//   session's LAST_INSERT_ID is overwritten when the row was there.
// - MySQL is given numbers as text: `key = 0` on a text column would match nearly every row.
// - `addOnce` on MySQL refuses a connection outside of a transaction. Costs three round trips.
// - Errors of the database pass through unchanged: the transaction is the user's, and so is its retry.
// - `addOnce` on MongoDB keeps event ids in the counter's document: atomic without a transaction. Costs: thousands, not
//   millions.
// - Only scalars are values: mysql2 and MongoDB read objects as more than a value. JSON goes in as text.

import type { SqlValue } from '../clients/sql-statement.ts'

/** What can be written and compared. Structures go in as your own text (JSON.stringify): no client reads them alike. */
export type Value = SqlValue

/** Columns (attributes, fields) and their values. */
export type Row = Readonly<Record<string, Value>>

export interface InsertOnce {
  /** The columns of a primary key or unique constraint. */
  readonly key: Row
  readonly set?: Row | undefined
}

export interface Upsert {
  readonly key: Row
  /** Written in any case. */
  readonly set: Row
  /** Written only when the row is new. */
  readonly setOnInsert?: Row | undefined
}

export interface UpsertIfNewer {
  readonly key: Row
  readonly set?: Row | undefined
  /** Written only when the row is new. */
  readonly setOnInsert?: Row | undefined
  /** One column, a version or a time: the row is written when it is absent or has a smaller one. */
  readonly newer: Row
}

export interface UpsertIf {
  readonly key: Row
  /** What a row that is there must hold. It may name columns of `set`. */
  readonly expect: Row
  /** Written to a new row, and to one that holds `expect`. */
  readonly set: Row
  /** Written only when the row is new. */
  readonly setOnInsert?: Row | undefined
}

export interface CompareAndSet {
  readonly key: Row
  /** What the row must hold now. */
  readonly expect: Row
  readonly set: Row
}

export interface AddOnce {
  readonly key: Row
  /** Columns and the amount added to each. A negative amount is subtracted. */
  readonly add: Readonly<Record<string, number | bigint>>
  /**
   * Where the event is marked as counted: a table with a unique constraint on these columns. MongoDB takes no table. There the
   * one field named here is an array of event ids in the counter's own document.
   */
  readonly once: { readonly table?: string | undefined; readonly key: Row }
}

export interface AppendOnce {
  /** The id of the event, with a unique constraint. */
  readonly key: Row
  /** The stream of the event. With the version, it has a second unique constraint. */
  readonly stream: Row
  /** The version the stream must be at, 0 for an empty stream. The event gets the next version. */
  readonly after: number
  readonly set?: Row | undefined
  /** The column of the version. Default "version". */
  readonly version?: string | undefined
}

export interface Requests {
  readonly insertOnce: InsertOnce
  readonly upsert: Upsert
  readonly upsertIfNewer: UpsertIfNewer
  readonly upsertIf: UpsertIf
  readonly compareAndSet: CompareAndSet
  readonly addOnce: AddOnce
  readonly appendOnce: AppendOnce
}

export interface Answers {
  /** already: a row with this key is there, whatever else it holds. */
  readonly insertOnce: 'applied' | 'already'
  /** already: the row held all of `set`. */
  readonly upsert: 'applied' | 'already'
  /** already: this very version is there. stale: a newer one is. */
  readonly upsertIfNewer: 'applied' | 'already' | 'stale'
  /** already: the row holds `set`. conflict: a row is there that holds neither `set` nor `expect`. */
  readonly upsertIf: 'applied' | 'already' | 'conflict'
  /** already: the row holds `set`. conflict: it holds neither `set` nor `expect`. */
  readonly compareAndSet: 'applied' | 'already' | 'conflict' | 'missing'
  /** already: the event was counted before. missing: there is no such counter, and the event was not marked. */
  readonly addOnce: 'applied' | 'already' | 'missing'
  /** already: the event is in the stream. conflict: the stream is at another version, or another stream has the event. */
  readonly appendOnce: 'appended' | 'already' | 'conflict'
}

export type WriteName = keyof Requests

export type Writes = {
  readonly [Name in WriteName]: (table: string, request: Requests[Name]) => Promise<Answers[Name]>
}

/** The same where the client is synchronous. A caller may still await the result. */
export type SyncWrites = {
  readonly [Name in WriteName]: (table: string, request: Requests[Name]) => Answers[Name]
}

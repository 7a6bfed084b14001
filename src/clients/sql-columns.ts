// What differs between the databases in the statements of rooms that keep tables beside a store's (inbox, sessions): how a row becomes one
// text, how names are bound and read, what an insert says that leaves a row which is there alone, and how a row that another transaction
// has is passed over.

import type { SqlDatabase } from './sql-database.ts'
import { join, piece, sql } from './sql-statement.ts'
import type { SqlStatement, SqlValue } from './sql-statement.ts'

export interface Columns {
  /** A name (scope, id, entity) as a value. MySQL compares bytes, whatever the character set of the connection is. */
  bound(name: string): SqlValue
  /** Columns as one text, for `read`. Names are given by `name`. */
  row(...columns: readonly SqlStatement[]): SqlStatement
  /** A column that holds a name. */
  name(column: SqlStatement): SqlStatement
  readName(text: unknown): string
  /** The end of an insert that leaves a row which is there alone. MySQL says it at the beginning. */
  readonly insert: SqlStatement
  readonly orNothing: SqlStatement
  /** The end of a select that locks its rows, and passes over those that another transaction has. */
  readonly skipLocked: SqlStatement
  readonly forUpdate: SqlStatement
  /** The end of a select whose rows no other transaction changes before this one ends. */
  readonly forShare: SqlStatement
}

const wrapped: Record<SqlDatabase['dialect'], (columns: SqlStatement) => SqlStatement> = {
  postgres: (columns) => sql`json_build_array(${columns})::text as answer`,
  mysql: (columns) => sql`cast(json_array(${columns}) as char) as answer`,
  sqlite: (columns) => sql`json_array(${columns}) as answer`,
}

export function columnsOf(dialect: SqlDatabase['dialect']): Columns {
  const isMysql = dialect === 'mysql'
  return {
    bound: (name) => (isMysql ? Buffer.from(name) : name),
    row: (...columns) => wrapped[dialect](join(columns, ', ')),
    name: (column) => (isMysql ? sql`hex(${column})` : column),
    readName: (read) => (isMysql ? Buffer.from(read as string, 'hex').toString() : (read as string)),
    insert: piece(isMysql ? 'insert ignore into' : 'insert into'),
    orNothing: piece(isMysql ? '' : 'on conflict do nothing'),
    // SQLite has one writer: whoever could have the row has ended.
    skipLocked: piece(dialect === 'sqlite' ? '' : 'for update skip locked'),
    forUpdate: piece(dialect === 'sqlite' ? '' : 'for update'),
    forShare: piece({ sqlite: '', postgres: 'for share', mysql: 'lock in share mode' }[dialect]),
  }
}

/** Columns that are written out, as one text for `read`. */
export function jsonRow({ dialect }: Pick<SqlDatabase, 'dialect'>, columns: string): SqlStatement {
  return wrapped[dialect](piece(columns))
}

/**
 * An array of JSON, given by its members as they are written in JSON, and after it a text as it is, for `readWithText`. To write a large text as
 * JSON, character by character, costs more than all the rest of a row. None may be null.
 */
export function rowWithText(
  { dialect }: Pick<SqlDatabase, 'dialect'>,
  members: readonly string[],
  text: string,
): SqlStatement {
  if (dialect === 'sqlite') {
    // || binds closer than the minus in a member.
    const list = members.map((member) => `(${member})`).join(` || ',' || `)
    return piece(`'[' || ${list} || ']' || char(30) || ${text} as answer`)
  }
  const separator = dialect === 'postgres' ? "E'\\x1e'" : 'char(30 using utf8mb4)'
  return piece(`concat('[', concat_ws(',', ${members.join(', ')}), ']', ${separator}, ${text}) as answer`)
}

/** A column of text, as it is written in JSON. Null is null there, too. */
export function asJson({ dialect }: Pick<SqlDatabase, 'dialect'>, column: string): string {
  return `coalesce(${dialect === 'postgres' ? `to_json(${column})::text` : `json_quote(${column})`}, 'null')`
}

/** Is one of these. */
export function among(column: SqlStatement, values: readonly SqlValue[]): SqlStatement {
  return sql`${column} in (${join(
    values.map((value) => sql`${value}`),
    ', ',
  )})`
}

/** The parts of an answer that `row` made. */
export function read(answer: string): readonly unknown[] {
  return JSON.parse(answer) as unknown[]
}

/** The parts of an answer that `rowWithText` made. However JSON is laid out, there is no such character in it. */
export function readWithText(answer: string): readonly [members: readonly unknown[], text: string] {
  const end = answer.indexOf('\u001e')
  return [read(answer.slice(0, end)), answer.slice(end + 1)]
}

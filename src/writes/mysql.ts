// The writes on a MySQL or MariaDB transaction of the user's, by whichever library it was opened.

import { invalidArgument } from '../core/errors.ts'
import { drizzleQuery, has, kyselyQuery } from '../clients/sql-transaction.ts'
import { mysqlStatements } from './mysql/statements.ts'
import { requestChecks, scalar, sqlTable } from './requests.ts'
import { textOf } from '../clients/sql-statement.ts'
import type { SqlStatement } from '../clients/sql-statement.ts'
import { asyncWrites } from './steps.ts'
import type { Result } from './steps.ts'
import type { Value, Writes } from './writes.ts'

/** mysql2/promise: a connection. */
export interface MysqlQueries {
  execute(query: never, values: never): Promise<unknown>
  query(query: never): Promise<unknown>
}

/** mysql2 with callbacks; its `promise()` gives the above on the same connection. */
export interface MysqlCallbackQueries {
  promise(): MysqlQueries
}

export interface MysqlKyselyQueries {
  readonly isTransaction: boolean
  // What kysely's CompiledQuery is, without its types.
  executeQuery(query: never): Promise<unknown>
}

export interface MysqlDrizzleQueries {
  // What drizzle's SQLWrapper is, without its types.
  execute(query: never): PromiseLike<unknown>
  rollback(): never
}

export interface MysqlKnexQueries {
  readonly isTransaction?: boolean
  raw(text: string, values: never): PromiseLike<unknown>
}

export type MysqlWritesClient =
  | MysqlQueries
  | MysqlCallbackQueries
  | MysqlKyselyQueries
  | MysqlDrizzleQueries
  | MysqlKnexQueries

const check = requestChecks({ table: sqlTable, value: scalar, marks: 'table' })

export function mysqlWrites(tx: MysqlWritesClient): Writes {
  const send = senderOf(tx)
  return asyncWrites(mysqlStatements, check, async (statement) => resultOf(await send(statement)))
}

type Send = (statement: SqlStatement) => PromiseLike<unknown>

function senderOf(tx: MysqlWritesClient): Send {
  if (has(tx, 'executeQuery')) return kyselySender(tx as MysqlKyselyQueries)
  if (has(tx, 'raw') && (tx as MysqlKnexQueries).isTransaction) {
    return async (statement) => first(await (tx as MysqlKnexQueries).raw(render(statement), bound(statement) as never))
  }
  // A pool would send each statement over another connection, outside of every transaction.
  if (!has(tx, 'getConnection')) {
    if (has(tx, 'execute') && has(tx, 'rollback') && !has(tx, 'query')) {
      return async (statement) =>
        first(await (tx as MysqlDrizzleQueries).execute(drizzleQuery(render(statement), bound(statement))))
    }
    if (has(tx, 'promise')) return senderOf((tx as MysqlCallbackQueries).promise())
    if (has(tx, 'execute') && has(tx, 'query')) return mysql2Sender(tx as MysqlQueries)
  }
  throw invalidArgument(
    'mysqlWrites: expected an open transaction of mysql2 (a connection, not the pool), Drizzle, Kysely or Knex, ' +
      `got ${tx === null ? 'null' : `a value of type ${typeof tx}`}`,
  )
}

const render = (statement: SqlStatement): string => textOf(statement, () => '?').replaceAll('"', '`')

/**
 * Numbers and booleans go as text. MySQL compares text with a number as numbers, and every text that does not begin with one is
 * 0: a 0 that came in where a column of text is the key would be the key of nearly every row.
 */
function bound({ values }: SqlStatement): unknown[] {
  return values.map((value: Value) => {
    if (typeof value === 'boolean') return value ? '1' : '0'
    if (typeof value === 'number' || typeof value === 'bigint') return String(value)
    return value instanceof Uint8Array ? Buffer.from(value.buffer, value.byteOffset, value.byteLength) : value
  })
}

// Statements are prepared by the server: mysql2's `query` would write the values into the text, with backslashes that a server
// with NO_BACKSLASH_ESCAPES takes for backslashes. Savepoints cannot be prepared on every server, and have no values.
function mysql2Sender(tx: MysqlQueries): Send {
  return async (statement) => {
    const query = { sql: render(statement), rowsAsArray: false } as never
    const values = bound(statement)
    return first(await (values.length > 0 ? tx.execute(query, values as never) : tx.query(query)))
  }
}

function kyselySender(tx: MysqlKyselyQueries): Send {
  if (!tx.isTransaction) {
    throw invalidArgument('mysqlWrites: expected a Kysely transaction, got a Kysely instance outside of one')
  }
  return (statement) => tx.executeQuery(kyselyQuery(render(statement), bound(statement)))
}

// mysql2 answers with the result and the description of its columns; so do Drizzle and Knex.
function first(answer: unknown): unknown {
  return (answer as unknown[])[0]
}

interface Header {
  readonly affectedRows?: number
  readonly changedRows?: number
  readonly insertId?: number | string
  // Kysely's names.
  readonly rows?: readonly unknown[]
  readonly numAffectedRows?: bigint
  readonly numChangedRows?: bigint
}

// An UPDATE tells the rows that it changed beside those that it found; an INSERT has only one number.
function resultOf(result: unknown): Result {
  if (Array.isArray(result)) return { rows: result as unknown[] }
  const header = result as Header
  const affected = header.affectedRows ?? Number(header.numAffectedRows ?? 0)
  const insertId = Number(header.insertId ?? 0)
  return {
    rows: header.rows ?? [],
    affected,
    changed: header.changedRows ?? Number(header.numChangedRows ?? 0),
    insertId,
  }
}

// The writes on a MySQL or MariaDB transaction of the user's, by whichever library it was opened.

import { senderOf } from '../clients/mysql.ts'
import type { MysqlTransaction } from '../clients/mysql.ts'
import { textOf } from '../clients/sql-statement.ts'
import type { SqlStatement, SqlValue } from '../clients/sql-statement.ts'
import { mysqlStatements } from './mysql/statements.ts'
import { requestChecks, scalar, sqlTable } from './requests.ts'
import { asyncWrites } from './steps.ts'
import type { WriteResult } from './steps.ts'
import type { Writes } from './writes.ts'

export type MysqlWritesClient = MysqlTransaction

const check = requestChecks({ table: sqlTable, value: scalar, marks: 'table' })

/**
 * Writes that may be repeated, on your own tables, in a transaction of mysql2, Drizzle, Kysely or Knex.
 *
 * @example
 * ```ts
 * import { createConnection } from 'mysql2/promise'
 * import { mysqlWrites } from 'onceonly/writes'
 *
 * const connection = await createConnection('mysql://root@127.0.0.1:3306/shop')
 * await connection.beginTransaction()
 * // 'applied' the first time, 'already' the second time.
 * const written = await mysqlWrites(connection).insertOnce('orders', { key: { id: 'order-42' }, set: { cents: 500 } })
 * await connection.commit()
 * ```
 */
export function mysqlWrites(tx: MysqlWritesClient): Writes {
  const send = senderOf(tx, 'mysqlWrites')
  return asyncWrites(mysqlStatements, check, async (statement) => {
    const text = textOf(statement, () => '?').replaceAll('"', '`')
    return resultOf(await send(text, bound(statement)))
  })
}

/**
 * Numbers and booleans are sent as text. MySQL compares text with a number as numbers, and every text that does not begin with a
 * digit is 0: a number 0 where a column of text is the key would be the key of nearly every row.
 */
function bound({ values }: SqlStatement): unknown[] {
  return values.map((value: SqlValue) => {
    if (typeof value === 'boolean') return value ? '1' : '0'
    if (typeof value === 'number' || typeof value === 'bigint') return String(value)
    return value instanceof Uint8Array ? Buffer.from(value.buffer, value.byteOffset, value.byteLength) : value
  })
}

interface MysqlHeader {
  readonly affectedRows?: number
  readonly changedRows?: number
  readonly insertId?: number | string
  // Kysely's names.
  readonly rows?: readonly unknown[]
  readonly numAffectedRows?: bigint
  readonly numChangedRows?: bigint
}

// An UPDATE reports the rows that it changed beside those that it found. An INSERT has only one number.
function resultOf(result: unknown): WriteResult {
  if (Array.isArray(result)) return { rows: result as unknown[] }
  const header = result as MysqlHeader
  const affected = header.affectedRows ?? Number(header.numAffectedRows ?? 0)
  const insertId = Number(header.insertId ?? 0)
  return {
    rows: header.rows ?? [],
    affected,
    changed: header.changedRows ?? Number(header.numChangedRows ?? 0),
    insertId,
  }
}

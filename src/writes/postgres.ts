// The writes on a PostgreSQL transaction of the user's, by whichever library it was opened. Each write is one statement, or one
// that wrote nothing and one that only reads, so that nothing is left half done even where no transaction is open.

import { postgresTransactionOf } from '../clients/postgres.ts'
import type { PgClient, PostgresJsTransaction } from '../clients/postgres.ts'
import { join, name, sql } from '../clients/sql-statement.ts'
import { noTransaction } from '../clients/sql-transaction.ts'
import type { DrizzleTransaction, KnexTransaction, KyselyTransaction } from '../clients/sql-transaction.ts'
import { requestChecks, scalar, sqlTable } from './requests.ts'
import { returningWrites } from './returning.ts'
import { names, values, where } from './statement.ts'
import { answerOf, asyncWrites } from './steps.ts'
import type { WriteSteps } from './steps.ts'
import type { AddOnce, Answers, Writes } from './writes.ts'

export type PostgresWritesClient =
  | PgClient
  | PostgresJsTransaction
  | KyselyTransaction
  | DrizzleTransaction
  | KnexTransaction

const check = requestChecks({ table: sqlTable, value: scalar, marks: 'table' })

const writes = returningWrites({ addOnce, appendConflicts: () => sql`on conflict do nothing` })

/**
 * Writes that may be repeated, on your own tables, in a transaction of pg, postgres.js, Drizzle, Kysely or Knex.
 *
 * @example
 * import pg from 'pg'
 * import { postgresWrites } from 'onceonly/writes'
 *
 * const tx = await new pg.Pool({ connectionString: 'postgres://127.0.0.1/shop' }).connect()
 * await tx.query('begin')
 * // 'applied' the first time, 'already' the second time.
 * const written = await postgresWrites(tx).insertOnce('orders', { key: { id: 'order-42' }, set: { cents: 500 } })
 * await tx.query('commit')
 */
export function postgresWrites(tx: PostgresWritesClient): Writes {
  const open = postgresTransactionOf(tx, 'postgresWrites')
  // Prisma declares every text as text, and the server compares it with no column of another type.
  if (open.library === 'Prisma') noTransaction(tx, 'postgresWrites', 'pg, postgres.js, Drizzle, Kysely or Knex')
  return asyncWrites(writes, check, async (statement) => ({ rows: await open.query(statement) }))
}

// The counter is locked first: an existing counter stays, and a writer that counts another event waits here and not in the
// middle. The mark joins the update, so that an update that waited is computed again on the newest row.
function* addOnce(table: string, { key, add, once }: AddOnce): WriteSteps<Answers['addOnce']> {
  const kept = join(
    Object.entries(key).map(([column, value]) => sql`kept.${name(column)} = ${value}`),
    ' and ',
  )
  const additions = join(
    Object.entries(add).map(([column, by]) => sql`${name(column)} = coalesce(kept.${name(column)}, 0) + ${by}`),
    ', ',
  )
  const result = yield sql`
    with counter as (select 1 from ${name(table)} where ${where(key)} for update),
    marked as (
      insert into ${name(once.table!)} (${names(once.key)}) select ${values(once.key)} from counter
      on conflict (${names(once.key)}) do nothing returning 1
    ),
    added as (update ${name(table)} as kept set ${additions} from marked where ${kept} returning 1)
    select case
      when exists (select from added) then 'applied' when exists (select from counter) then 'already' else 'missing'
    end as answer`
  return answerOf<Answers['addOnce']>(result)!
}

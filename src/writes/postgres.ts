// The writes on a PostgreSQL transaction of the user's, by whichever library it was opened. Each write is one statement, or one
// that wrote nothing and one that only reads, so that nothing is left half done even where no transaction is open.

import { invalidArgument } from '../core/errors.ts'
import { drizzleQuery, has, kyselyQuery } from '../clients/sql-transaction.ts'
import { requestChecks, scalar, sqlTable } from './requests.ts'
import { returningWrites } from './returning.ts'
import { join, name, names, sql, textOf, values, where } from './statement.ts'
import type { Statement } from './statement.ts'
import { answerOf, asyncWrites } from './steps.ts'
import type { Result, Steps } from './steps.ts'
import type { AddOnce, Answers, Value, Writes } from './writes.ts'

/** pg: a Client, or what `pool.connect()` gives. */
export interface PgQueries {
  query(text: string, values: unknown[]): Promise<unknown>
}

/** postgres.js: what `sql.begin` hands to its function, or what `sql.reserve()` gives. */
export interface PostgresJsQueries {
  unsafe(text: string, values: never[]): PromiseLike<unknown>
}

export interface KyselyQueries {
  readonly isTransaction: boolean
  // What kysely's CompiledQuery is, without its types.
  executeQuery(query: never): Promise<{ readonly rows: readonly unknown[] }>
}

export interface DrizzleQueries {
  // What drizzle's SQLWrapper is, without its types.
  execute(query: never): PromiseLike<unknown>
  rollback(): never
}

export interface KnexQueries {
  readonly isTransaction?: boolean
  raw(text: string, values: never): PromiseLike<unknown>
}

export type PostgresWritesClient = PgQueries | PostgresJsQueries | KyselyQueries | DrizzleQueries | KnexQueries

const check = requestChecks({ table: sqlTable, value: scalar, marks: 'table' })

const writes = returningWrites({ addOnce, appendConflicts: () => sql`on conflict do nothing` })

export function postgresWrites(tx: PostgresWritesClient): Writes {
  const send = senderOf(tx)
  return asyncWrites(writes, check, async (statement) => ({ rows: rowsOf(await send(statement)) }))
}

// The counter is locked first: a counter that is there stays there, and whoever counts another event waits here and not in the
// middle. The mark joins the update, so that an update that waited is computed again on the newest row.
function* addOnce(table: string, { key, add, once }: AddOnce): Steps<Answers['addOnce']> {
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

type Send = (statement: Statement) => PromiseLike<unknown>

const numbered = (position: number): string => `$${position}`

function senderOf(tx: PostgresWritesClient): Send {
  if (has(tx, 'unsafe')) return postgresJsSender(tx as PostgresJsQueries)
  if (has(tx, 'executeQuery')) return kyselySender(tx as KyselyQueries)
  if (has(tx, 'execute') && has(tx, 'rollback')) {
    return (statement) => (tx as DrizzleQueries).execute(drizzleQuery(textOf(statement, numbered), bound(statement)))
  }
  if (has(tx, 'raw') && (tx as KnexQueries).isTransaction) {
    return (statement) =>
      (tx as KnexQueries).raw(
        textOf(statement, () => '?'),
        bound(statement) as never,
      )
  }
  if (has(tx, 'query') && !('totalCount' in tx)) {
    return (statement) => (tx as PgQueries).query(textOf(statement, numbered), bound(statement))
  }
  throw invalidArgument(
    'postgresWrites: expected an open transaction of pg (a client, not the pool), postgres.js, Drizzle, Kysely or Knex, ' +
      `got ${tx === null ? 'null' : `a value of type ${typeof tx}`}`,
  )
}

function bound({ values: given }: Statement): unknown[] {
  return given.map(asText)
}

// Numbers go as text, for the column to read: a client that says "double" would make 9007199254740993 another number.
function asText(value: Value): unknown {
  if (typeof value === 'number' || typeof value === 'bigint') return String(value)
  return value instanceof Uint8Array ? Buffer.from(value.buffer, value.byteOffset, value.byteLength) : value
}

// postgres.js asks the server for the type of a text and makes JSON of one that is for a JSON column. Sent as of unknown type, it
// goes as it is.
const unknownType = 705

function postgresJsSender(tx: PostgresJsQueries): Send {
  const { typed } = tx as { typed?: (value: string, type: number) => unknown }
  const asIs = (value: unknown): unknown => (typeof value === 'string' && typed ? typed(value, unknownType) : value)
  return (statement) => tx.unsafe(textOf(statement, numbered), bound(statement).map(asIs) as never[])
}

function kyselySender(tx: KyselyQueries): Send {
  if (!tx.isTransaction) {
    throw invalidArgument('postgresWrites: expected a Kysely transaction, got a Kysely instance outside of one')
  }
  return (statement) => tx.executeQuery(kyselyQuery(textOf(statement, numbered), bound(statement)))
}

// postgres.js and Drizzle on it answer with an array of rows, the others with an object that has one.
function rowsOf(answer: unknown): Result['rows'] {
  return Array.isArray(answer) ? (answer as unknown[]) : (answer as { rows: unknown[] }).rows
}

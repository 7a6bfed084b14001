// What the parts of the outbox share: its database, and its tables as pieces of statements.

import type { SqlDatabase } from '../../clients/sql-database.ts'
import type { SqlStatement } from '../../clients/sql-statement.ts'
import { OnceError } from '../../core/errors.ts'
import type { OutboxNames } from './schema.sql.ts'

export interface OutboxTables {
  readonly database: SqlDatabase
  readonly names: OutboxNames
  readonly outbox: SqlStatement
  readonly lanes: SqlStatement
  readonly shards: SqlStatement
  readonly relays: SqlStatement
  readonly held: SqlStatement
}

export function outboxTables(database: SqlDatabase): OutboxTables {
  const unqualified = (suffix: string): string => database.tableName(suffix).split('.').at(-1)!
  const names: OutboxNames = {
    outbox: database.tableName('outbox'),
    lanes: database.tableName('outbox_lanes'),
    shards: database.tableName('outbox_shards'),
    relays: database.tableName('outbox_relays'),
    held: database.tableName('outbox_held'),
    heldDue: unqualified('outbox_held_due'),
    heldKey: unqualified('outbox_held_key'),
    position: database.tableName('outbox_position'),
    period: (period) => database.tableName(`outbox_${period}`),
  }
  return {
    database,
    names,
    outbox: database.table('outbox'),
    lanes: database.table('outbox_lanes'),
    shards: database.table('outbox_shards'),
    relays: database.table('outbox_relays'),
    held: database.table('outbox_held'),
  }
}

/** A piece of a statement that holds no value. */
export function piece(text: string): SqlStatement {
  return { texts: [text], values: [] }
}

/** One text for a row: a JSON array of its columns. */
export function jsonRow({ dialect }: SqlDatabase, columns: string): SqlStatement {
  if (dialect === 'postgres') return piece(`json_build_array(${columns})::text as answer`)
  return piece(
    dialect === 'mysql' ? `cast(json_array(${columns}) as char) as answer` : `json_array(${columns}) as answer`,
  )
}

const missing = /no such table|relation .* does not exist|doesn't exist/

/** The same error, or one that names the cure where the tables are missing. */
export function withCure(error: unknown, { names }: OutboxTables): unknown {
  let current = error
  for (let depth = 0; depth < 5 && current instanceof Error; depth++) {
    if (missing.test(current.message) && current.message.includes('outbox')) {
      return new OnceError('SCHEMA_MISSING', {
        message: `The tables of the outbox (${names.outbox}, …) are missing. Run outbox.migrate().`,
        cause: error,
      })
    }
    current = current.cause
  }
  return error
}

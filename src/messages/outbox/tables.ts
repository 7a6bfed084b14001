// What the parts of the outbox share: its database, and its tables as pieces of statements.

import type { SqlDatabase } from '../../clients/sql-database.ts'
import type { SqlStatement } from '../../clients/sql-statement.ts'
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

const known = new WeakMap<object, OutboxTables>()

/** Called by an outbox for itself. */
export function offerTables<Box extends object>(outbox: Box, tables: OutboxTables): Box {
  known.set(outbox, tables)
  return outbox
}

/** Undefined for what createOutbox has not made. */
export function tablesIn(outbox: object): OutboxTables | undefined {
  return known.get(outbox)
}

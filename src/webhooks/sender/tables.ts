// What the parts of the sender share: its database, its tables, and how MySQL reads and writes what is compared byte for byte.

import { databaseOf } from '../../clients/sql-database.ts'
import type { SqlDatabase } from '../../clients/sql-database.ts'
import type { SqlStatement, SqlValue } from '../../clients/sql-statement.ts'
import { OnceError } from '../../core/errors.ts'
import type { Store } from '../../core/store.ts'
import { withCure } from '../../clients/missing-tables.ts'
import { mysqlWebhooks, postgresWebhooks, sqliteWebhooks } from './schema.sql.ts'
import type { WebhookNames } from './schema.sql.ts'

export interface WebhookTables {
  readonly database: SqlDatabase
  readonly schema: readonly string[]
  readonly endpoints: SqlStatement
  readonly events: SqlStatement
  readonly deliveries: SqlStatement
  readonly attempts: SqlStatement
  /** A topic or an ordering key as a value. */
  bytes(text: string): SqlValue
  /** The name of a column that holds one, for reading it. */
  text(column: string): string
}

export function webhookTables(store: Store): WebhookTables {
  const found = databaseOf(store)
  if (!found) {
    throw new OnceError('UNSUPPORTED', {
      message: `A webhook sender needs a store on PostgreSQL, MySQL, MariaDB or SQLite, and ${store.name} is none.`,
    })
  }
  const database = withCure(found, 'webhooks')
  const isMysql = database.dialect === 'mysql'
  return {
    database,
    schema: schemas[database.dialect](namesIn(database)),
    endpoints: database.table('webhooks_endpoints'),
    events: database.table('webhooks_events'),
    deliveries: database.table('webhooks_deliveries'),
    attempts: database.table('webhooks_attempts'),
    bytes: (text) => (isMysql ? Buffer.from(text) : text),
    text: (column) => (isMysql ? `convert(${column} using utf8mb4)` : column),
  }
}

const schemas = { postgres: postgresWebhooks, mysql: mysqlWebhooks, sqlite: sqliteWebhooks } as const

function namesIn(database: SqlDatabase): WebhookNames {
  const unqualified = (suffix: string): string => database.tableName(suffix).split('.').at(-1)!
  return {
    endpoints: database.tableName('webhooks_endpoints'),
    events: database.tableName('webhooks_events'),
    deliveries: database.tableName('webhooks_deliveries'),
    attempts: database.tableName('webhooks_attempts'),
    endpointsTopic: unqualified('webhooks_endpoints_topic'),
    deliveriesDue: unqualified('webhooks_deliveries_due'),
    deliveriesKey: unqualified('webhooks_deliveries_key'),
    deliveriesEnded: unqualified('webhooks_deliveries_ended'),
  }
}

// What the parts of one PostgreSQL store work with.

import type { Clock } from '../../core/clock.ts'
import type { PostgresConnections, PostgresSession } from '../../clients/postgres.ts'
import type { PostgresFacts } from './fitness.ts'
import type { SchemaNames } from './names.ts'

export interface PostgresContext<Client> {
  readonly names: SchemaNames
  readonly clock: Clock
  readonly connections: PostgresConnections<Client>
  /**
   * Refuses a database on which the promise would not hold. It asks on this session, so that it needs no second connection, and
   * only once per store.
   */
  ready(session: PostgresSession): Promise<PostgresFacts>
}

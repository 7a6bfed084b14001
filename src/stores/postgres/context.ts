// What the parts of one PostgreSQL store work with.

import type { Clock } from '../../core/clock.ts'
import type { PostgresConnections, PostgresSession } from '../../clients/postgres.ts'
import type { PostgresFacts } from './fitness.ts'
import type { SchemaNames } from './names.ts'

export interface PostgresContext<Client> {
  readonly names: SchemaNames
  readonly clock: Clock
  readonly connections: PostgresConnections<Client>
  readonly protocol: PostgresProtocol
  /**
   * Refuses a database on which the promise would not hold. It asks on this session, so that it needs no second connection, and
   * only once per store.
   */
  ready(session: PostgresSession): Promise<PostgresFacts>
}

/** How statements reach the server. */
export interface PostgresProtocol {
  /** Whether the client binds values to parameters as it is given them. Otherwise every statement is text. */
  readonly binds: boolean
  /**
   * Whether sessions keep what is prepared. Through a pooler in transaction mode the session is another one every time. A pooler
   * that does not keep the names apart (PgBouncer before 1.21) sends a statement to a session that does not know it, or knows it
   * already. Nothing was carried out then, and from there on the store asks without names.
   */
  keepsPrepared: boolean
}

// The tables of sessions: a row per client, and a row per request that is in flight or whose answer the client has not acknowledged.
// Every request writes the times of its session, so no index is on them. A sweep looks through the clients instead, which are few.

import type { SqlDatabase } from '../../../clients/sql-database.ts'

/** The statements that create them, each on its own. */
export function sessionSchema({ dialect, tableName }: Pick<SqlDatabase, 'dialect' | 'tableName'>): readonly string[] {
  const { name, fingerprint, whole, answer, after, end } = words[dialect]
  return [
    `create table if not exists ${tableName('sessions')} (
  scope ${name} not null,
  client ${name} not null,
  epoch ${whole} not null,
  acknowledged ${whole} not null,
  last_sequence ${whole} not null,
  fence ${whole} not null,
  lease_until_ms ${whole} not null,
  forget_at_ms ${whole} not null,
  is_closed ${whole} not null,
  request_window ${whole} not null,
  primary key (scope, client)
)${end}`,
    `create table if not exists ${tableName('session_requests')} (
  scope ${name} not null,
  client ${name} not null,
  epoch ${whole} not null,
  sequence ${whole} not null,
  fingerprint ${fingerprint} not null,
  outcome ${answer},
  primary key (scope, client, epoch, sequence)
)${after}`,
  ]
}

interface Words {
  readonly name: string
  readonly fingerprint: string
  readonly whole: string
  readonly answer: string
  readonly after: string
  readonly end: string
}

const words: Readonly<Record<SqlDatabase['dialect'], Words>> = {
  postgres: {
    name: 'text collate "C"',
    fingerprint: 'text',
    whole: 'bigint',
    answer: 'text',
    // Rows come and go and are few: room for the answer beside the row that waits for it, and a vacuum before they are many times more.
    after: ' with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05)',
    end: ' with (fillfactor = 70)',
  },
  sqlite: {
    name: 'text',
    fingerprint: 'text',
    whole: 'integer',
    answer: 'text',
    after: ' strict',
    end: ' strict',
  },
  mysql: {
    name: 'varbinary(255)',
    fingerprint: 'varchar(43) character set ascii collate ascii_bin',
    whole: 'bigint',
    answer: 'longtext character set ascii',
    after: ' engine = InnoDB',
    end: ' engine = InnoDB',
  },
}

// The tables of the inbox. A mark is a row per message and consumer; `at_ms` is when the message first came, and is never written
// again, so that marking is an update that touches no index. Every row is updated once, so a page of PostgreSQL is filled to less than half.
// Parked messages are kept whole.

import type { SqlDatabase } from '../../clients/sql-database.ts'
import { inboxFunctions } from './functions.sql.ts'

/** The statements that create them, each on its own. */
export function inboxSchema(database: Pick<SqlDatabase, 'dialect' | 'tableName'>): readonly string[] {
  return schemas[database.dialect](database.tableName)
}

type TableName = SqlDatabase['tableName']

const schemas: Readonly<Record<SqlDatabase['dialect'], (tableName: TableName) => readonly string[]>> = {
  postgres: (tableName) => [
    ...standardSchema(tableName, {
      text: 'text collate "C"',
      whole: 'bigint',
      marks: ' with (fillfactor = 45)',
      end: '',
    }),
    ...inboxFunctions(tableName),
  ],
  sqlite: (tableName) =>
    standardSchema(tableName, { text: 'text', whole: 'integer', marks: ' strict', end: ' strict' }),
  mysql: mysqlSchema,
}

interface Words {
  readonly text: string
  readonly whole: string
  readonly marks: string
  readonly end: string
}

function standardSchema(tableName: TableName, { text, whole, marks, end }: Words): readonly string[] {
  return [
    `create table if not exists ${tableName('inbox')} (
  scope ${text} not null,
  id ${text} not null,
  fingerprint text not null,
  state text not null check (state in ('r', 'd', 's', 'p')),
  attempts ${whole} not null,
  at_ms ${whole} not null,
  primary key (scope, id)
)${marks}`,
    `create index if not exists ${tableName('inbox_at').split('.').at(-1)!} on ${tableName('inbox')} (scope, at_ms)`,
    `create table if not exists ${tableName('inbox_parked')} (
  scope ${text} not null,
  id ${text} not null,
  fingerprint text not null,
  code text not null,
  detail text not null,
  attempts ${whole} not null,
  message text not null,
  parked_at_ms ${whole} not null,
  redrive_at_ms ${whole},
  primary key (scope, id, fingerprint)
)${end}`,
    `create table if not exists ${tableName('inbox_offsets')} (
  scope ${text} not null,
  source ${text} not null,
  next_offset ${whole} not null,
  primary key (scope, source)
)${end}`,
    `create table if not exists ${tableName('inbox_versions')} (
  scope ${text} not null,
  entity ${text} not null,
  version ${whole} not null,
  primary key (scope, entity)
)${end}`,
  ]
}

function mysqlSchema(tableName: TableName): readonly string[] {
  return [
    `create table if not exists ${tableName('inbox')} (
  scope varbinary(255) not null,
  id varbinary(255) not null,
  fingerprint varchar(43) character set ascii collate ascii_bin not null,
  state char(1) character set ascii not null,
  attempts int not null,
  at_ms bigint not null,
  primary key (scope, id),
  index (scope, at_ms)
) engine = InnoDB`,
    `create table if not exists ${tableName('inbox_parked')} (
  scope varbinary(255) not null,
  id varbinary(255) not null,
  fingerprint varchar(43) character set ascii collate ascii_bin not null,
  code varchar(20) character set ascii not null,
  detail text character set utf8mb4 not null,
  attempts int not null,
  message longtext character set utf8mb4 not null,
  parked_at_ms bigint not null,
  redrive_at_ms bigint,
  primary key (scope, id, fingerprint)
) engine = InnoDB`,
    `create table if not exists ${tableName('inbox_offsets')} (
  scope varbinary(255) not null,
  source varbinary(700) not null,
  next_offset bigint not null,
  primary key (scope, source)
) engine = InnoDB`,
    `create table if not exists ${tableName('inbox_versions')} (
  scope varbinary(255) not null,
  entity varbinary(255) not null,
  version bigint not null,
  primary key (scope, entity)
) engine = InnoDB`,
  ]
}

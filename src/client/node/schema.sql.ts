// The table of keys beside the tables of a SQL store. `id` is the SHA-256 of the operation's name: no collation can mix two names up.

import type { SqlDatabase } from '../../clients/sql-database.ts'

const columns: Readonly<Record<SqlDatabase['dialect'], string>> = {
  postgres: /* sql */ `(id text collate "C" primary key, kept text not null)`,
  sqlite: /* sql */ `(id text primary key, kept text not null) strict, without rowid`,
  mysql: /* sql */ `(id varchar(64) character set ascii collate ascii_bin primary key, kept longtext character set utf8mb4 not null) engine = InnoDB`,
}

export function keysSchema({ dialect, tableName }: Pick<SqlDatabase, 'dialect' | 'tableName'>): readonly string[] {
  return [/* sql */ `create table if not exists ${tableName('client_keys')} ${columns[dialect]}`]
}

// The tables of the MySQL store. Keys are varbinary, compared byte for byte: every text collation folds something, most of them
// trailing blanks.

import { procedureName } from './names.ts'

export function tablesSql(table: string): string[] {
  return [entriesTable(table), auditTable(table), operationsTable(table), stepsTable(table), ...unfinishedIndex(table)]
}

// sweep_at_ms is when a sweep should look at the entry, never later than its expiry. A settle mostly leaves it as it is, and
// then writes no index.
function entriesTable(table: string): string {
  return /* sql */ `create table if not exists \`${table}\` (
  scope varbinary(255) not null,
  id varbinary(255) not null,
  state varbinary(1) not null, -- r running, o open, s settled
  how varbinary(1) not null, -- f fresh, r reopened, t taken over
  token varbinary(36) not null,
  fingerprint varbinary(64) not null,
  attempt int not null,
  version int not null,
  fence bigint not null,
  lease_until_ms bigint not null,
  keep_ms bigint not null,
  tombstone_ms bigint not null,
  first_claimed_at_ms bigint not null,
  sweep_at_ms bigint not null,
  input longblob,
  outcome longblob,
  primary key (scope, id),
  key sweep_at (sweep_at_ms)
) engine = InnoDB`
}

function auditTable(table: string): string {
  return /* sql */ `create table if not exists \`${table}_audit\` (
  scope varbinary(255) not null,
  id varbinary(255) not null,
  number bigint not null auto_increment,
  at_ms bigint not null,
  action varbinary(16) not null,
  reason longblob not null,
  state_before varbinary(16) not null,
  primary key (scope, id, number),
  key number (number)
) engine = InnoDB`
}

const unfinishedKey = 'key unfinished (scope, settled, id)'

// Settled operations are in the index due_at as well, as null, which no look-up meets. sweep_at_ms is when a sweep should see
// whether the entry has expired. A settle with a shorter retention brings it forward.
function operationsTable(table: string): string {
  return /* sql */ `create table if not exists \`${table}_operations\` (
  scope varbinary(255) not null,
  id varbinary(255) not null,
  life_fence bigint not null,
  due_at_ms bigint,
  sweep_at_ms bigint not null,
  settled boolean not null,
  cancel_reason longblob,
  primary key (scope, id),
  key due_at (scope, due_at_ms),
  key sweep_at (sweep_at_ms),
  ${unfinishedKey}
) engine = InnoDB`
}

function stepsTable(table: string): string {
  return /* sql */ `create table if not exists \`${table}_steps\` (
  scope varbinary(255) not null,
  id varbinary(255) not null,
  name varbinary(255) not null,
  revision bigint not null,
  at_ms bigint not null,
  content longblob not null,
  primary key (scope, id, name)
) engine = InnoDB`
}

// For a table that was made without it. A user who makes a new table needs no right to alter it. MySQL has no ADD KEY IF NOT
// EXISTS, and conditions only in procedures.
function unfinishedIndex(table: string): string[] {
  const procedure = `\`${procedureName(table, 'index')}\``
  return [
    `drop procedure if exists ${procedure}`,
    /* sql */ `create procedure ${procedure}() sql security invoker
if not exists (
  select * from information_schema.statistics s
  where s.table_schema = database() and s.table_name = '${table}_operations' and s.index_name = 'unfinished'
) then
  alter table \`${table}_operations\` add ${unfinishedKey};
end if`,
    `call ${procedure}()`,
    `drop procedure ${procedure}`,
  ]
}

// The tables of the outbox. The one of the events is written by `add` and by nothing else, and its columns id, aggregatetype,
// aggregateid, type and payload are those that Debezium's outbox event router reads by default. What has been sent stands in the rows
// of the shards. What could not be sent is copied into the table of held rows.

import { lanesCount } from './lanes.ts'

export interface OutboxNames {
  readonly outbox: string
  readonly lanes: string
  readonly shards: string
  readonly relays: string
  readonly held: string
  /** Indexes, without a schema. */
  readonly heldDue: string
  readonly heldKey: string
  /** PostgreSQL: where positions come from. */
  readonly position: string
  /** PostgreSQL: what holds the rows of a period. */
  readonly period: (period: number) => string
}

/** How many tables the rows lie in by turns, see retention.ts. */
export const periodsCount = 4

const periods = Array.from({ length: periodsCount }, (_, period) => period)

// collate "C": texts are compared byte for byte. The row lock of a lane costs no new version of its row, so lanes never bloat, and a
// transaction that is REPEATABLE READ or SERIALIZABLE meets no conflict there.
export function postgresOutbox(names: OutboxNames, shards: number): readonly string[] {
  return [
    /* sql */ `create sequence if not exists ${names.position} as bigint`,
    /* sql */ `create table if not exists ${names.outbox} (
  lane smallint not null,
  position bigint not null,
  period smallint not null,
  id uuid not null,
  aggregatetype text collate "C" not null, -- the topic
  aggregateid text collate "C", -- the ordering key
  type text collate "C" not null,
  payload text collate "C" not null, -- the body as it is sent
  encoding text collate "C" not null, -- of the payload: text, or base64
  headers text collate "C" not null,
  added_at_ms bigint not null,
  primary key (lane, position, period)
) partition by list (period)`,
    ...periods.map(
      (period) =>
        /* sql */ `create table if not exists ${names.period(period)} partition of ${names.outbox} for values in (${period})`,
    ),
    /* sql */ `create table if not exists ${names.lanes} (
  lane smallint primary key
)`,
    /* sql */ `create table if not exists ${names.shards} (
  shard integer primary key,
  epoch bigint not null default 0,
  owner text collate "C" not null default '',
  lease_until_ms bigint not null default 0,
  cursors text collate "C" not null default '{}'
) with (fillfactor = 20)`,
    /* sql */ `create table if not exists ${names.relays} (
  owner text collate "C" primary key,
  until_ms bigint not null
)`,
    /* sql */ `create table if not exists ${names.held} (
  id uuid primary key,
  shard integer not null,
  lane smallint not null,
  position bigint not null,
  order_key text collate "C" not null,
  state text collate "C" not null, -- waiting, parked, dead
  tries integer not null,
  due_at_ms bigint,
  failed_at_ms bigint,
  reason text collate "C",
  aggregatetype text collate "C" not null,
  aggregateid text collate "C",
  type text collate "C" not null,
  payload text collate "C" not null,
  encoding text collate "C" not null,
  headers text collate "C" not null,
  added_at_ms bigint not null
)`,
    /* sql */ `create index if not exists ${names.heldDue} on ${names.held} (shard, due_at_ms)`,
    /* sql */ `create index if not exists ${names.heldKey} on ${names.held} (shard, order_key, position)`,
    /* sql */ `insert into ${names.lanes} (lane) select generate_series(0, ${lanesCount - 1}) on conflict do nothing`,
    /* sql */ `insert into ${names.shards} (shard) select generate_series(0, ${shards - 1})
  where not exists (select from ${names.shards}) on conflict do nothing`,
    // Tables that were copied without their sequence (logical replication) would begin at 1 again, behind what is marked as sent.
    /* sql */ `select setval('${names.position}', m.last + 1) from (
  select coalesce(max(c.value::bigint), 0) as last from ${names.shards} s cross join json_each_text(s.cursors::json) c
) m where m.last > (select p.last_value from ${names.position} p)`,
  ]
}

// order_key is bytes: every text collation of MySQL folds something.
export function mysqlOutbox(names: OutboxNames, shards: number): readonly string[] {
  const text = 'character set utf8mb4 collate utf8mb4_bin'
  const event = `aggregatetype varchar(255) ${text} not null, -- the topic
  aggregateid varchar(255) ${text}, -- the ordering key
  type varchar(255) ${text} not null,
  payload longtext ${text} not null, -- the body as it is sent
  encoding varchar(8) character set ascii not null, -- of the payload: text, or base64
  headers longtext ${text} not null,
  added_at_ms bigint not null`
  return [
    /* sql */ `create table if not exists ${names.outbox} (
  lane smallint not null,
  position bigint not null,
  id char(36) character set ascii not null,
  ${event},
  primary key (lane, position)
) engine = InnoDB`,
    /* sql */ `create table if not exists ${names.lanes} (
  lane smallint primary key,
  position bigint not null default 0
) engine = InnoDB`,
    /* sql */ `create table if not exists ${names.shards} (
  shard integer primary key,
  epoch bigint not null default 0,
  owner varchar(64) character set ascii not null default '',
  lease_until_ms bigint not null default 0,
  cursors longtext character set ascii not null
) engine = InnoDB`,
    /* sql */ `create table if not exists ${names.relays} (
  owner varchar(64) character set ascii primary key,
  until_ms bigint not null
) engine = InnoDB`,
    /* sql */ `create table if not exists ${names.held} (
  id char(36) character set ascii primary key,
  shard integer not null,
  lane smallint not null,
  position bigint not null,
  order_key varbinary(255) not null,
  state varchar(8) character set ascii not null, -- waiting, parked, dead
  tries integer not null,
  due_at_ms bigint,
  failed_at_ms bigint,
  reason text ${text},
  ${event},
  key due (shard, due_at_ms),
  key order_key (shard, order_key, position)
) engine = InnoDB`,
    /* sql */ `insert ignore into ${names.lanes} (lane) values ${rows(lanesCount)}`,
    /* sql */ `insert ignore into ${names.shards} (shard, cursors) select v.shard, '{}' from (${numbers(shards)}) v
  where not exists (select * from (select shard from ${names.shards}) s)`,
  ]
}

export function sqliteOutbox(names: OutboxNames, shards: number): readonly string[] {
  const event = `aggregatetype TEXT NOT NULL, -- the topic
  aggregateid TEXT, -- the ordering key
  type TEXT NOT NULL,
  payload TEXT NOT NULL, -- the body as it is sent
  encoding TEXT NOT NULL, -- of the payload: text, or base64
  headers TEXT NOT NULL,
  added_at_ms INTEGER NOT NULL`
  return [
    /* sql */ `CREATE TABLE IF NOT EXISTS ${names.outbox} (
  lane INTEGER NOT NULL,
  position INTEGER NOT NULL,
  id TEXT NOT NULL,
  ${event},
  PRIMARY KEY (lane, position)
) STRICT, WITHOUT ROWID`,
    /* sql */ `CREATE TABLE IF NOT EXISTS ${names.lanes} (
  lane INTEGER PRIMARY KEY,
  position INTEGER NOT NULL DEFAULT 0
) STRICT`,
    /* sql */ `CREATE TABLE IF NOT EXISTS ${names.shards} (
  shard INTEGER PRIMARY KEY,
  epoch INTEGER NOT NULL DEFAULT 0,
  owner TEXT NOT NULL DEFAULT '',
  lease_until_ms INTEGER NOT NULL DEFAULT 0,
  cursors TEXT NOT NULL DEFAULT '{}'
) STRICT`,
    /* sql */ `CREATE TABLE IF NOT EXISTS ${names.relays} (
  owner TEXT PRIMARY KEY,
  until_ms INTEGER NOT NULL
) STRICT`,
    /* sql */ `CREATE TABLE IF NOT EXISTS ${names.held} (
  id TEXT PRIMARY KEY,
  shard INTEGER NOT NULL,
  lane INTEGER NOT NULL,
  position INTEGER NOT NULL,
  order_key TEXT NOT NULL,
  state TEXT NOT NULL, -- waiting, parked, dead
  tries INTEGER NOT NULL,
  due_at_ms INTEGER,
  failed_at_ms INTEGER,
  reason TEXT,
  ${event}
) STRICT`,
    /* sql */ `CREATE INDEX IF NOT EXISTS ${names.heldDue} ON ${names.held} (shard, due_at_ms)`,
    /* sql */ `CREATE INDEX IF NOT EXISTS ${names.heldKey} ON ${names.held} (shard, order_key, position)`,
    /* sql */ `INSERT OR IGNORE INTO ${names.lanes} (lane) VALUES ${rows(lanesCount)}`,
    /* sql */ `INSERT OR IGNORE INTO ${names.shards} (shard) SELECT v.shard FROM (${numbers(shards)}) v
  WHERE NOT EXISTS (SELECT 1 FROM ${names.shards})`,
  ]
}

const rows = (count: number): string => Array.from({ length: count }, (_, index) => `(${index})`).join(', ')

const numbers = (count: number): string =>
  Array.from({ length: count }, (_, index) => `select ${index} as shard`).join(' union all ')

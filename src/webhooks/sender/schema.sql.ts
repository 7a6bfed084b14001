// The tables of the sender. An event is kept once, with a delivery for each endpoint that wants it and a row for each attempt. The epoch of
// an endpoint grows whenever a sender takes it. Topics and ordering keys are compared byte for byte.

export interface WebhookNames {
  readonly endpoints: string
  readonly events: string
  readonly deliveries: string
  readonly attempts: string
  /** Indexes, without a schema. */
  readonly endpointsTopic: string
  readonly deliveriesDue: string
  readonly deliveriesKey: string
  readonly deliveriesEnded: string
}

export function postgresWebhooks(names: WebhookNames): readonly string[] {
  return [
    /* sql */ `create table if not exists ${names.endpoints} (
  id text collate "C" primary key,
  topic text collate "C" not null,
  url text collate "C" not null,
  types text collate "C" not null, -- a JSON array, empty for all
  secrets text collate "C" not null,
  ordering text collate "C" not null, -- none, key
  concurrency integer not null,
  state text collate "C" not null, -- active, disabled
  disabled_reason text collate "C",
  disabled_at_ms bigint,
  failing_since_ms bigint,
  epoch bigint not null default 0,
  owner text collate "C" not null default '',
  lease_until_ms bigint not null default 0,
  added_at_ms bigint not null
) with (fillfactor = 50)`,
    /* sql */ `create table if not exists ${names.events} (
  id text collate "C" primary key,
  topic text collate "C" not null,
  type text collate "C" not null,
  payload text collate "C" not null, -- base64
  headers text collate "C" not null,
  added_at_ms bigint not null
)`,
    /* sql */ `create table if not exists ${names.deliveries} (
  position bigint generated always as identity primary key,
  event_id text collate "C" not null,
  endpoint_id text collate "C" not null,
  order_key text collate "C",
  state text collate "C" not null, -- pending, delivered, failed
  tries integer not null default 0, -- of the schedule
  attempts integer not null default 0, -- ever
  last_status integer,
  since_at_ms bigint not null,
  due_at_ms bigint not null,
  ended_at_ms bigint,
  unique (event_id, endpoint_id)
)`,
    /* sql */ `create table if not exists ${names.attempts} (
  delivery bigint not null,
  number integer not null,
  at_ms bigint not null,
  duration_ms integer not null,
  status integer,
  failure text collate "C",
  response text collate "C" not null,
  primary key (delivery, number)
)`,
    /* sql */ `create index if not exists ${names.endpointsTopic} on ${names.endpoints} (topic)`,
    /* sql */ `create index if not exists ${names.deliveriesDue} on ${names.deliveries} (endpoint_id, state, due_at_ms)`,
    /* sql */ `create index if not exists ${names.deliveriesKey} on ${names.deliveries} (endpoint_id, order_key, state, position)`,
    /* sql */ `create index if not exists ${names.deliveriesEnded} on ${names.deliveries} (ended_at_ms)`,
  ]
}

export function mysqlWebhooks(names: WebhookNames): readonly string[] {
  const text = 'character set utf8mb4 collate utf8mb4_bin'
  const ascii = 'character set ascii collate ascii_bin'
  return [
    /* sql */ `create table if not exists ${names.endpoints} (
  id char(36) ${ascii} primary key,
  topic varbinary(255) not null,
  url text ${text} not null,
  types text ${text} not null, -- a JSON array, empty for all
  secrets text ${text} not null,
  ordering varchar(8) ${ascii} not null, -- none, key
  concurrency integer not null,
  state varchar(8) ${ascii} not null, -- active, disabled
  disabled_reason text ${text},
  disabled_at_ms bigint,
  failing_since_ms bigint,
  epoch bigint not null default 0,
  owner varchar(64) ${ascii} not null default '',
  lease_until_ms bigint not null default 0,
  added_at_ms bigint not null,
  key topic (topic)
) engine = InnoDB`,
    /* sql */ `create table if not exists ${names.events} (
  id varchar(255) ${ascii} primary key,
  topic varbinary(255) not null,
  type varchar(255) ${text} not null,
  payload longtext ${ascii} not null, -- base64
  headers longtext ${text} not null,
  added_at_ms bigint not null
) engine = InnoDB`,
    /* sql */ `create table if not exists ${names.deliveries} (
  position bigint not null auto_increment primary key,
  event_id varchar(255) ${ascii} not null,
  endpoint_id char(36) ${ascii} not null,
  order_key varbinary(255),
  state varchar(16) ${ascii} not null, -- pending, delivered, failed
  tries integer not null default 0, -- of the schedule
  attempts integer not null default 0, -- ever
  last_status integer,
  since_at_ms bigint not null,
  due_at_ms bigint not null,
  ended_at_ms bigint,
  unique key event (event_id, endpoint_id),
  key due (endpoint_id, state, due_at_ms),
  key order_key (endpoint_id, order_key, state, position),
  key ended (ended_at_ms)
) engine = InnoDB`,
    /* sql */ `create table if not exists ${names.attempts} (
  delivery bigint not null,
  number integer not null,
  at_ms bigint not null,
  duration_ms integer not null,
  status integer,
  failure text ${text},
  response text ${text} not null,
  primary key (delivery, number)
) engine = InnoDB`,
  ]
}

export function sqliteWebhooks(names: WebhookNames): readonly string[] {
  return [
    /* sql */ `CREATE TABLE IF NOT EXISTS ${names.endpoints} (
  id TEXT PRIMARY KEY,
  topic TEXT NOT NULL,
  url TEXT NOT NULL,
  types TEXT NOT NULL, -- a JSON array, empty for all
  secrets TEXT NOT NULL,
  ordering TEXT NOT NULL, -- none, key
  concurrency INTEGER NOT NULL,
  state TEXT NOT NULL, -- active, disabled
  disabled_reason TEXT,
  disabled_at_ms INTEGER,
  failing_since_ms INTEGER,
  epoch INTEGER NOT NULL DEFAULT 0,
  owner TEXT NOT NULL DEFAULT '',
  lease_until_ms INTEGER NOT NULL DEFAULT 0,
  added_at_ms INTEGER NOT NULL
) STRICT`,
    /* sql */ `CREATE TABLE IF NOT EXISTS ${names.events} (
  id TEXT PRIMARY KEY,
  topic TEXT NOT NULL,
  type TEXT NOT NULL,
  payload TEXT NOT NULL, -- base64
  headers TEXT NOT NULL,
  added_at_ms INTEGER NOT NULL
) STRICT`,
    /* sql */ `CREATE TABLE IF NOT EXISTS ${names.deliveries} (
  position INTEGER PRIMARY KEY AUTOINCREMENT,
  event_id TEXT NOT NULL,
  endpoint_id TEXT NOT NULL,
  order_key TEXT,
  state TEXT NOT NULL, -- pending, delivered, failed
  tries INTEGER NOT NULL DEFAULT 0, -- of the schedule
  attempts INTEGER NOT NULL DEFAULT 0, -- ever
  last_status INTEGER,
  since_at_ms INTEGER NOT NULL,
  due_at_ms INTEGER NOT NULL,
  ended_at_ms INTEGER,
  UNIQUE (event_id, endpoint_id)
) STRICT`,
    /* sql */ `CREATE TABLE IF NOT EXISTS ${names.attempts} (
  delivery INTEGER NOT NULL,
  number INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,
  duration_ms INTEGER NOT NULL,
  status INTEGER,
  failure TEXT,
  response TEXT NOT NULL,
  PRIMARY KEY (delivery, number)
) STRICT, WITHOUT ROWID`,
    /* sql */ `CREATE INDEX IF NOT EXISTS ${names.endpointsTopic} ON ${names.endpoints} (topic)`,
    /* sql */ `CREATE INDEX IF NOT EXISTS ${names.deliveriesDue} ON ${names.deliveries} (endpoint_id, state, due_at_ms)`,
    /* sql */ `CREATE INDEX IF NOT EXISTS ${names.deliveriesKey} ON ${names.deliveries} (endpoint_id, order_key, state, position)`,
    /* sql */ `CREATE INDEX IF NOT EXISTS ${names.deliveriesEnded} ON ${names.deliveries} (ended_at_ms)`,
  ]
}

// The tables, the functions of their upkeep (sweep, mend), and the whole schema as SQL. Each function of the server is one text.

import {
  beginFunction,
  claimFunction,
  claimsFunction,
  joinFunction,
  recordFunction,
  writeFunction,
  writesFunction,
} from './decisions.sql.ts'
import {
  clockMicroseconds,
  clockMs,
  createIndex,
  functionName,
  lockNumber,
  pinnedPlan,
  qualified,
  schemaComment,
} from './names.ts'
import type { SchemaNames } from './names.ts'
import { operationFunctions, operationTables } from './operations.sql.ts'
import { probeFunction, rotateFunction, stayOrMove } from './periods.sql.ts'
import { claimOneFunction, recordOneFunction, settleOneFunction, togetherFunction } from './straight.sql.ts'

export function schemaSql(names: SchemaNames): string {
  const functions = [
    claimFunction,
    claimsFunction,
    writeFunction,
    writesFunction,
    beginFunction,
    joinFunction,
    recordFunction,
    togetherFunction,
    claimOneFunction,
    settleOneFunction,
    recordOneFunction,
    probeFunction,
    sweepFunction,
    rotateFunction,
    mendFunction,
  ]
  const parts = [
    tables(names),
    operationTables(names),
    ...functions.map((create) => create(names)),
    operationFunctions(names),
  ]
  return `${parts.join('\n')}\ncomment on table ${qualified(names)} is '${schemaComment}';\n`
}

// collate "C": keys are compared byte for byte, and the index does not depend on a version of the system's locales.
// sweep_at_ms is when a sweep should look at the entry, never later than its expiry. A settle leaves it as it is, like every
// indexed column, so that it is a HOT update. fillfactor 30: a settled entry is two to three times as large as a running one, and
// finds its room on the same page. With outcomes of 300 bytes all updates are HOT. A fillfactor of 90 leaves 9 % of them HOT, with
// a fifth more WAL and a table no smaller. No check constraints: the server reads them anew for every row, 8 µs each time.
function tables(names: SchemaNames): string {
  const name = qualified(names)
  return `${names.schema === undefined ? '' : createSchema(names.schema)}\
create table if not exists ${name} (
  fence bigint not null,
  lease_until_ms bigint not null,
  keep_ms bigint not null,
  tombstone_ms bigint not null,
  first_claimed_at_ms bigint, -- unless it is that of the fence
  sweep_at_ms bigint not null,
  attempt integer not null,
  version integer not null,
  state "char" not null, -- r running, o open, s settled
  how "char" not null, -- f fresh, r reopened, t taken over
  slot smallint not null default 0, -- see postgres/periods.sql.ts
  token uuid not null,
  fingerprint text collate "C" not null,
  scope text collate "C" not null,
  id text collate "C" not null,
  input bytea,
  outcome bytea,
  primary key (scope, id)
) with (fillfactor = 30);
${createIndex(names, '_sweep_at', name, '(sweep_at_ms)')}
create table if not exists ${qualified(names, '_periods')} (
  slot smallint primary key,
  ends_at_ms bigint not null,
  period_ms bigint not null
);
${createIndex(names, '_periods_end', qualified(names, '_periods'), '(ends_at_ms)')}
create table if not exists ${qualified(names, '_audit')} (
  scope text collate "C" not null,
  id text collate "C" not null,
  number bigint generated always as identity,
  at_ms bigint not null,
  action text not null,
  reason text not null,
  before text not null,
  primary key (scope, id, number)
);`
}

// IF NOT EXISTS would need the right to create schemas even when the schema is there.
function createSchema(schema: string): string {
  return `do $$ begin if to_regnamespace('"${schema}"') is null then create schema "${schema}"; end if; end $$;\n`
}

function sweepFunction(names: SchemaNames): string {
  const name = qualified(names)
  return /* sql */ `create or replace function ${functionName(names, 'sweep')}(at_most integer)
returns setof text language plpgsql ${pinnedPlan} as $$
declare
  entry record;
  now_ms bigint := ${clockMs};
  seen integer := 0;
  tombstoned integer := 0;
  forgotten integer := 0;
  rotated boolean;
begin
  for entry in
    select e.ctid, e.lease_until_ms + e.keep_ms as expires_at_ms, e.tombstone_ms,
      e.outcome is not null or e.input is not null as filled
    from ${name} e where e.slot = 0 and e.sweep_at_ms <= now_ms order by e.sweep_at_ms limit at_most + 1 for update skip locked
  loop
    seen := seen + 1;
    exit when seen > at_most;
    if now_ms >= entry.expires_at_ms + entry.tombstone_ms then
      delete from ${name} e where e.slot = 0 and e.ctid = entry.ctid;
      forgotten := forgotten + 1;
    elsif now_ms >= entry.expires_at_ms then
      update ${name} e set outcome = null, input = null, sweep_at_ms = entry.expires_at_ms + entry.tombstone_ms
        where e.slot = 0 and e.ctid = entry.ctid;
      tombstoned := tombstoned + entry.filled::integer;
    else
      update ${name} e set sweep_at_ms = entry.expires_at_ms where e.slot = 0 and e.ctid = entry.ctid;
    end if;
  end loop;
  -- Last, because others wait for it until the end of this transaction.
  rotated := ${functionName(names, 'rotate')}();
  return next concat(tombstoned, ' ', forgotten, ' ', (seen > at_most or rotated)::integer);
end $$;`
}

/** The state of an entry at this moment, from its times. Null when it is forgotten. */
export const entryState: string = `case
    when ${clockMs} >= e.lease_until_ms + e.keep_ms + e.tombstone_ms then null
    when ${clockMs} >= e.lease_until_ms + e.keep_ms then 'tombstone'
    when e.state = 's' then 'settled'
    when e.state = 'o' then 'open'
    when ${clockMs} < e.lease_until_ms then 'running'
    else 'abandoned'
  end`

// A tombstone shows nothing of what it held, whether or not a sweep has been there.
export const entryJson = `json_build_object(
    'scope', e.scope, 'id', e.id, 'state', s.state, 'attempt', e.attempt, 'fence', e.fence,
    'fingerprint', e.fingerprint, 'version', e.version, 'firstClaimedAtMs', coalesce(e.first_claimed_at_ms, e.fence / 1000),
    'leaseUntilMs', e.lease_until_ms, 'expiresAtMs', e.lease_until_ms + e.keep_ms,
    'forgottenAtMs', e.lease_until_ms + e.keep_ms + e.tombstone_ms,
    'outcome', case when s.state <> 'tombstone' then encode(e.outcome, 'base64') end,
    'input', case when s.state <> 'tombstone' then encode(e.input, 'base64') end
  )::text`

// A manual change. Only 'keep' leaves the holder alone: an open entry is no longer running, and a resolved one has a new fence, so
// that a settle of the holder is not taken for a repetition of this one. An open entry keeps its last token, and a delayed claim of
// the holder that was pushed out still finds that it has ended.
// The row is locked by one statement and judged by the next. A row that changes between a statement's snapshot and its lock is read
// again, but not what a subquery made of it: a settled entry would still be taken for a running one, and opened.
function mendFunction(names: SchemaNames): string {
  const entries = qualified(names)
  return /* sql */ `create or replace function ${functionName(names, 'mend')}(
  mended_scope text, mended_id text, action text, reason text, an_outcome text, a_keep_ms bigint, a_tombstone_ms bigint
) returns setof text language plpgsql ${pinnedPlan} as $$
declare
  before_state text;
  before_json text;
  entry ${entries};
  home_slot smallint;
  now_us bigint;
  now_ms bigint;
begin
  if not pg_try_advisory_xact_lock(${lockNumber(names, 'mended_scope', 'mended_id')}) then
    return next 'locked';
    return;
  end if;
  select * into entry from ${entries} e where e.scope = mended_scope and e.id = mended_id for update skip locked;
  if not found then
    perform from ${entries} e where e.scope = mended_scope and e.id = mended_id and (${entryState}) is not null;
    if found then
      return next 'locked';
    end if;
    return;
  end if;
  select s.state, ${entryJson} into before_state, before_json
    from ${entries} e cross join lateral (select ${entryState} as state) s
    where e.scope = mended_scope and e.id = mended_id;
  if before_state is null then
    return;
  end if;
  if before_state <> all (case action
    when 'release' then array['running', 'abandoned']
    when 'resolve' then array['running', 'abandoned', 'open']
    when 'keep' then array['abandoned', 'open', 'settled']
    else array[before_state]
  end) then
    return next before_json;
    return;
  end if;

  now_us := ${clockMicroseconds};
  now_ms := now_us / 1000;
  insert into ${qualified(names, '_audit')} (scope, id, at_ms, action, reason, before)
    values (mended_scope, mended_id, now_ms, action, reason, before_state);
  if action = 'forget' then
    delete from ${entries} e where e.scope = mended_scope and e.id = mended_id;
    delete from ${qualified(names, '_steps')} s where s.scope = mended_scope and s.id = mended_id;
    delete from ${qualified(names, '_operations')} o where o.scope = mended_scope and o.id = mended_id;
    return next before_json;
    return;
  end if;
  home_slot := entry.slot;
  if action = 'keep' then
    entry.keep_ms := greatest(entry.keep_ms, now_ms + a_keep_ms - entry.lease_until_ms);
  elsif action = 'release' then
    entry.state := 'o';
    entry.lease_until_ms := now_ms;
  else
    entry.state := 's';
    entry.outcome := decode(an_outcome, 'base64');
    entry.lease_until_ms := now_ms;
    entry.keep_ms := a_keep_ms;
    entry.tombstone_ms := a_tombstone_ms;
    entry.first_claimed_at_ms := coalesce(entry.first_claimed_at_ms, entry.fence / 1000);
    entry.fence := greatest(now_us, entry.fence + 1);
    update ${qualified(names, '_operations')} o
      set settled = true, due_at_ms = null, sweep_at_ms = least(o.sweep_at_ms, now_ms + a_keep_ms)
      where o.scope = mended_scope and o.id = mended_id;
  end if;
  ${stayOrMove(names)}
  update ${entries} e set
    state = entry.state, outcome = entry.outcome, fence = entry.fence, first_claimed_at_ms = entry.first_claimed_at_ms,
    lease_until_ms = entry.lease_until_ms, keep_ms = entry.keep_ms, tombstone_ms = entry.tombstone_ms, sweep_at_ms = entry.sweep_at_ms, slot = entry.slot
  where e.slot = home_slot and e.scope = mended_scope and e.id = mended_id;
  return next before_json;
end $$;`
}

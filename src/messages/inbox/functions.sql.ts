// What PostgreSQL does with a batch of messages: functions, because a session keeps the plans of their statements. Planning them for every
// batch cost a sixth of it. Their names carry a version, so that old and new code each find their own during a rolling deployment.
// Ids and fingerprints come as lines, which cost less than JSON: neither has a control character.

import type { SqlDatabase } from '../../clients/sql-database.ts'

export const receiveFunction = 'inbox_receive_v1'
export const takeFunction = 'inbox_take_v1'

export function inboxFunctions(tableName: SqlDatabase['tableName']): readonly string[] {
  return [receive(tableName), take(tableName)]
}

// A plan that was made while the table was small is kept when it is large, so the planner must not have the choice. A look-up asks for the
// one row between an id and itself, in the order of ids: only the primary key has that order, and a sort is priced out. The price of the
// one sort that must be would set off JIT, which took 170 ms.
const pinnedPlan =
  'set enable_seqscan = off set enable_sort = off set jit = off set plan_cache_mode = force_generic_plan'
const isGiven = 'there.scope = a_scope and there.id between given.id and given.id'
const inOrder = 'order by there.id limit 1'

// What is there already is not inserted: an insert would wait for a handler that has the row locked. Two consumers that receive one message
// at the same moment both find nothing, and the second of them asks once more.
function receive(tableName: SqlDatabase['tableName']): string {
  const marks = tableName('inbox')
  const insertFresh = (orNothing: string): string => `with inserted as (
      insert into ${marks} (scope, id, fingerprint, state, attempts, at_ms)
      select a_scope, given.id, given.print, 'r', 1, a_time_ms
      from unnest(ids, prints) as given (id, print)
      left join lateral (select there.id from ${marks} there where ${isGiven} ${inOrder}) as known on true
      where known.id is null
      order by given.id collate "C"${orNothing}
      returning id
    )
    select array_agg(id) into fresh from inserted;`
  return /* sql */ `create or replace function ${tableName(receiveFunction)}(
  a_scope text, id_lines text, print_lines text, a_time_ms bigint
) returns setof text language plpgsql ${pinnedPlan} as $$
declare
  ids text[] := string_to_array(id_lines, E'\\n');
  prints text[] := string_to_array(print_lines, E'\\n');
  fresh text[];
begin
  perform set_config('synchronous_commit', 'off', true);
  begin
    ${insertFresh('')}
  exception when unique_violation then
    ${insertFresh(' on conflict (scope, id) do nothing')}
  end;
  if cardinality(fresh) = cardinality(ids) then
    return;
  end if;
  return query select json_build_array(given.id, known.state, known.attempts, known.fingerprint)::text
    from (select unnest(ids) except select unnest(fresh)) as given (id)
    left join lateral (
      select there.state, there.attempts, there.fingerprint from ${marks} there where ${isGiven} ${inOrder}
    ) as known on true;
end $$`
}

// Found and locked by one descent of the index each, and written where they lie: nobody else moves a row that is locked.
function take(tableName: SqlDatabase['tableName']): string {
  const marks = tableName('inbox')
  return /* sql */ `create or replace function ${tableName(takeFunction)}(
  a_scope text, id_lines text
) returns setof text language plpgsql ${pinnedPlan} as $$
declare
  ids text[] := string_to_array(id_lines, E'\\n');
  ours text[];
  places tid[];
begin
  select array_agg(mark.id), array_agg(mark.place) into ours, places
  from unnest(ids) as given (id)
  cross join lateral (
    select there.id, there.ctid as place from ${marks} there
    where ${isGiven} and there.state = 'r' ${inOrder} for update skip locked
  ) as mark;
  update ${marks} set state = 'd' where ctid = any (places);
  if cardinality(ours) is distinct from cardinality(ids) then
    return query select unnest(ids) except select unnest(ours);
  end if;
end $$`
}

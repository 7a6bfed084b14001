// The tables of operations, beside the entries, and the functions that write them. Every function here leaves the decision to the
// one that decides for entries, and writes in the same transaction. So a record is there exactly when the decision about its entry
// is.

import { writtenTogether } from './decisions.sql.ts'
import { endedState, lostState } from './errors.ts'
import { clockMs, createIndex, functionName, lockNumber, ownKey, pinnedPlan, qualified } from './names.ts'
import type { SchemaNames } from './names.ts'
import { straightClaims, undecidedClaims, unlessStraight } from './straight.sql.ts'

// due_at_ms is the only indexed column that changes while an operation is not settled. The index of unfinished operations is 128
// bytes of WAL per enlisting, and finds the few among millions that are settled. sweep_at_ms is when a sweep should check whether
// the entry has expired. It is written with the first claim, and again when the operation is settled and is to be kept for less.
export function operationTables(names: SchemaNames): string {
  const name = qualified(names, '_operations')
  return /* sql */ `create table if not exists ${name} (
  scope text collate "C" not null,
  id text collate "C" not null,
  life_fence bigint not null,
  due_at_ms bigint,
  sweep_at_ms bigint not null,
  settled boolean not null,
  cancel_reason text,
  primary key (scope, id)
) with (fillfactor = 70);
${createIndex(names, '_operations_due', name, '(scope, due_at_ms) where due_at_ms is not null')}
${createIndex(names, '_operations_sweep', name, '(sweep_at_ms)')}
${createIndex(names, '_operations_unfinished', name, '(scope, id) where not settled')}
create table if not exists ${qualified(names, '_steps')} (
  revision bigint not null,
  at_ms bigint not null,
  scope text collate "C" not null,
  id text collate "C" not null,
  name text collate "C" not null,
  content bytea not null,
  primary key (scope, id, name)
) with (fillfactor = 50);`
}

export function operationFunctions(names: SchemaNames): string {
  const functions = [
    enlistedFunction,
    enlistFunction,
    enlistsFunction,
    advancedFunction,
    advanceFunction,
    advancesFunction,
    operateFunction,
    sweepOperationsFunction,
  ]
  return functions.map((create) => create(names)).join('\n')
}

// What an enlisting writes for claims that were granted. A claim that is only repeated has the fence of its life, and must not
// clear what was recorded since.
function enlistedFunction(names: SchemaNames): string {
  const [name, steps] = [qualified(names, '_operations'), qualified(names, '_steps')]
  return /* sql */ `create or replace function ${functionName(names, 'enlisted')}(
  answers text[], scopes text[], ids text[], leases_ms bigint[], keeps_ms bigint[]
) returns void language plpgsql ${pinnedPlan} as $$
declare
  now_ms bigint := ${clockMs};
begin
  with fresh as (
    select a.scope, a.id from (
      select c.scope, c.id, split_part(c.answer, ' ', 4)::bigint as fence
      from unnest(answers, scopes, ids) as c (answer, scope, id) where c.answer like 'granted f%' offset 0
    ) a
    join lateral (select o.life_fence from ${name} o where o.scope = a.scope and o.id = a.id limit 1) o on true
    where o.life_fence <> a.fence
  ), cleared as (
    delete from ${steps} s using fresh where s.scope = fresh.scope and s.id = fresh.id
  )
  delete from ${name} o using fresh where o.scope = fresh.scope and o.id = fresh.id;

  insert into ${name} as o (scope, id, life_fence, due_at_ms, sweep_at_ms, settled)
  select c.scope, c.id, split_part(c.answer, ' ', 4)::bigint, now_ms + c.lease_ms, now_ms + c.lease_ms + c.keep_ms, false
  from unnest(answers, scopes, ids, leases_ms, keeps_ms) as c (answer, scope, id, lease_ms, keep_ms)
  where c.answer like 'granted %' order by c.scope, c.id
  on conflict (scope, id) do update set
    due_at_ms = case when not o.settled and o.due_at_ms is null then null else excluded.due_at_ms end, settled = false;
end $$;`
}

function enlistFunction(names: SchemaNames): string {
  return /* sql */ `create or replace function ${functionName(names, 'enlist')}(
  a_scope text, an_id text, a_token uuid, a_fingerprint text, lease_ms bigint, a_keep_ms bigint, a_tombstone_ms bigint,
  a_version integer, on_takeover text, on_expired text, an_input text
) returns text language plpgsql ${pinnedPlan} as $$
declare
  answer text := ${functionName(names, 'claim')}(
    a_scope, an_id, a_token, a_fingerprint, lease_ms, a_keep_ms, a_tombstone_ms, a_version, on_takeover, on_expired, an_input
  );
begin
  if answer like 'granted %' then
    perform ${functionName(names, 'enlisted')}(
      array[answer], array[a_scope], array[an_id], array[lease_ms], array[a_keep_ms]
    );
  end if;
  return answer;
end $$;`
}

function enlistsFunction(names: SchemaNames): string {
  return /* sql */ `create or replace function ${functionName(names, 'enlists')}(
  scopes text[], ids text[], tokens uuid[], fingerprints text[], leases_ms bigint[], keeps_ms bigint[],
  tombstones_ms bigint[], versions integer[], takeovers text[], expireds text[], inputs text[]
) returns setof text language plpgsql ${pinnedPlan} as $$
declare
  answers text[];
begin
  select array_agg(c.answer order by c.number) into answers from ${functionName(names, 'claims')}(
    scopes, ids, tokens, fingerprints, leases_ms, keeps_ms, tombstones_ms, versions, takeovers, expireds, inputs
  ) with ordinality as c (answer, number);
  perform ${functionName(names, 'enlisted')}(answers, scopes, ids, leases_ms, keeps_ms);
  return query select unnest(answers);
end $$;`
}

// What an advance writes for writes that were done. Of one record that comes twice in a batch (a write that is repeated beside the
// next one) only the later revision is written. ON CONFLICT refuses a row that it meets twice, and with it the whole batch.
function advancedFunction(names: SchemaNames): string {
  const [name, steps] = [qualified(names, '_operations'), qualified(names, '_steps')]
  return /* sql */ `create or replace function ${functionName(names, 'advanced')}(
  answers text[], verbs text[], scopes text[], ids text[], durations_ms bigint[], records text[], afters_ms bigint[]
) returns text[] language plpgsql ${pinnedPlan} as $$
declare
  now_ms bigint := ${clockMs};
  wishes text[];
begin
  insert into ${steps} as s (scope, id, name, revision, at_ms, content)
  select distinct on (r.scope, r.id, r.name) r.scope, r.id, r.name, r.revision, now_ms, decode(r.content, 'base64')
  from (
    select c.scope, c.id, (r.record ->> 0) collate "C" as name, (r.record ->> 1)::bigint as revision, r.record ->> 2 as content
    from unnest(answers, scopes, ids, records) as c (answer, scope, id, records)
    cross join lateral json_array_elements(c.records::json) as r (record)
    where c.answer = 'done'
  ) r
  order by r.scope, r.id, r.name, r.revision desc
  on conflict (scope, id, name) do update set
    revision = excluded.revision, at_ms = excluded.at_ms, content = excluded.content
  where s.revision < excluded.revision;

  if verbs <> array_fill('extend'::text, array[cardinality(verbs)]) then
    update ${name} o set
      settled = c.verb = 'settle', due_at_ms = case when c.verb = 'open' then now_ms + c.after_ms end,
      sweep_at_ms = case when c.verb = 'settle' then least(o.sweep_at_ms, now_ms + c.keep_ms) else o.sweep_at_ms end
    from unnest(answers, verbs, scopes, ids, durations_ms, afters_ms) as c (answer, verb, scope, id, keep_ms, after_ms)
    where c.answer = 'done' and c.verb <> 'extend' and o.scope = c.scope and o.id = c.id
      -- A release that is repeated beside a resolve by hand: what is settled is not due again.
      and (c.verb = 'settle' or not o.settled);
  end if;

  select array_agg(case when c.answer = 'done' and o.cancel_reason is not null then 'cancelled' else c.answer end
    order by c.number) into wishes
  from unnest(answers, scopes, ids) with ordinality as c (answer, scope, id, number)
  left join lateral (select o.cancel_reason from ${name} o where o.scope = c.scope and o.id = c.id limit 1) o on true;
  return wishes;
end $$;`
}

// 'or-fail' is for the transaction of a step. It waits for the row, which a heartbeat may have for a moment, and raises instead of
// returning 'lost', so that a COMMIT sent along with it is not carried out.
function advanceFunction(names: SchemaNames): string {
  return /* sql */ `create or replace function ${functionName(names, 'advance')}(
  verb text, a_scope text, an_id text, a_token uuid, a_fence bigint, duration_ms bigint, a_tombstone_ms bigint,
  an_outcome text, a_records text, after_ms bigint
) returns text language plpgsql ${pinnedPlan} as $$
declare
  plain_verb text := replace(verb, '-or-fail', '');
  answers text[];
begin
  if verb <> plain_verb then
    if ${ownKey} is distinct from ${lockNumber(names, 'a_scope', 'an_id')}::text then
      raise exception using errcode = '${endedState}', message = 'onceonly: the transaction had ended';
    end if;
    perform from ${qualified(names)} e where e.scope = a_scope and e.id = an_id for update;
  end if;
  answers := array[${functionName(names, 'write')}(
    plain_verb, a_scope, an_id, a_token, a_fence, duration_ms, a_tombstone_ms, an_outcome
  )];
  if answers[1] <> 'done' and verb <> plain_verb then
    raise exception using errcode = '${lostState}', message = 'onceonly: the claim was lost';
  end if;
  if answers[1] = 'done' then
    answers := ${functionName(names, 'advanced')}(
      answers, array[plain_verb], array[a_scope], array[an_id], array[duration_ms], array[a_records], array[after_ms]
    );
  end if;
  return answers[1];
end $$;`
}

function advancesFunction(names: SchemaNames): string {
  return /* sql */ `create or replace function ${functionName(names, 'advances')}(
  verbs text[], scopes text[], ids text[], tokens uuid[], fences bigint[], durations_ms bigint[], tombstones_ms bigint[],
  outcomes text[], records text[], afters_ms bigint[]
) returns setof text language plpgsql ${pinnedPlan} as $$
declare
  answers text[];
begin
  select array_agg(c.answer order by c.number) into answers from ${functionName(names, 'writes')}(
    verbs, scopes, ids, tokens, fences, durations_ms, tombstones_ms, outcomes
  ) with ordinality as c (answer, number);
  return query select unnest(${functionName(names, 'advanced')}(answers, verbs, scopes, ids, durations_ms, records, afters_ms));
end $$;`
}

// The straight way of enlistings and advances, as `together` is that of claims and settles, and with the same parameters. One that is
// extended has its lease in its term, one that is settled its retention. An `open`, and whatever wrote nothing, is left to `write`.
// The answers of advances come first, and only if one of them is anything else than done.
function operateFunction(names: SchemaNames): string {
  const [name, steps] = [qualified(names, '_operations'), qualified(names, '_steps')]
  const calls = `unnest(verbs, advanced_ids, advanced_terms, afters_ms) with ordinality as u (verb, id, term, after_ms, number)`
  const isDone = (number: string): string => `(advanced is null or advanced[${number}] = 'done')`
  return /* sql */ `create or replace function ${functionName(names, 'operate')}(
  scopes text[], leases_ms bigint[], keeps_ms bigint[], tombstones_ms bigint[], versions integer[], takeovers text[],
  expireds text[],
  verbs text[], advanced_ids text[], advanced_tokens uuid[], advanced_fences bigint[], advanced_terms integer[], afters_ms bigint[],
  outcomes bytea[],
  record_calls integer[], record_names text[], record_revisions bigint[], record_contents bytea[],
  ids text[], tokens uuid[], fingerprints text[], terms integer[], inputs bytea[]
) returns text language plpgsql ${pinnedPlan} as $$
declare
  now_ms bigint := ${clockMs};
  written integer[];
  turn integer := 1;
  advanced text[];
  answers text[];
  wishes integer[];
  granted bigint;
  listed bigint;
begin
  if advanced_ids is not null then
    ${writtenTogether(
      names,
      `(
        select u.*, scopes[u.term] as scope, tombstones_ms[u.term] as tombstone_ms,
          case when u.verb = 'settle' then keeps_ms[u.term] else leases_ms[u.term] end as duration_ms
        from unnest(verbs, advanced_ids, advanced_tokens, advanced_fences, advanced_terms, outcomes)
          with ordinality as u (verb, id, token, fence, term, outcome, number)
      ) c`,
      'a.outcome',
    )}
    if cardinality(written) is distinct from cardinality(verbs) then
      for n in 1 .. cardinality(verbs) loop
        if written[turn] = n then
          turn := turn + 1;
          advanced[n] := 'done';
        else
          advanced[n] := ${functionName(names, 'write')}(
            verbs[n], scopes[advanced_terms[n]], advanced_ids[n], advanced_tokens[n], advanced_fences[n],
            case verbs[n] when 'settle' then keeps_ms[advanced_terms[n]] else leases_ms[advanced_terms[n]] end,
            tombstones_ms[advanced_terms[n]], encode(outcomes[n], 'base64')
          );
        end if;
      end loop;
    end if;

    if record_calls is not null then
      insert into ${steps} as s (scope, id, name, revision, at_ms, content)
      select distinct on (r.scope, r.id, r.name) r.scope, r.id, r.name, r.revision, now_ms, r.content
      from (
        select scopes[advanced_terms[u.call]] collate "C" as scope, advanced_ids[u.call] collate "C" as id,
          u.name collate "C" as name, u.revision, u.content
        from unnest(record_calls, record_names, record_revisions, record_contents) as u (call, name, revision, content)
        where ${isDone('u.call')}
      ) r
      order by r.scope, r.id, r.name, r.revision desc
      on conflict (scope, id, name) do update set
        revision = excluded.revision, at_ms = excluded.at_ms, content = excluded.content
      where s.revision < excluded.revision;
    end if;

    if verbs <> array_fill('extend'::text, array[cardinality(verbs)]) then
      update ${name} o set
        settled = c.verb = 'settle', due_at_ms = case when c.verb = 'open' then now_ms + nullif(c.after_ms, -1) end,
        sweep_at_ms = case when c.verb = 'settle' then least(o.sweep_at_ms, now_ms + c.keep_ms) else o.sweep_at_ms end
      from (
        select u.*, scopes[u.term] as scope, keeps_ms[u.term] as keep_ms from ${calls}
        where u.verb <> 'extend' and ${isDone('u.number')} offset 0
      ) c
      -- A release that is repeated beside a resolve by hand: what is settled is not due again.
      where o.scope = c.scope and o.id = c.id and (c.verb = 'settle' or not o.settled);
    end if;

    select array_agg(c.number) into wishes
    from (select u.number, u.id, scopes[u.term] as scope from ${calls} where ${isDone('u.number')} offset 0) c
    cross join lateral (select o.cancel_reason from ${name} o where o.scope = c.scope and o.id = c.id limit 1) o
    where o.cancel_reason is not null;
    if wishes is not null then
      advanced := coalesce(advanced, array_fill('done'::text, array[cardinality(verbs)]));
      foreach turn in array wishes loop
        advanced[turn] := 'cancelled';
      end loop;
    end if;
  end if;

  ${unlessStraight(names, 'enlists')}
    ${straightClaims(names)}, listed as (
      insert into ${name} (scope, id, life_fence, due_at_ms, sweep_at_ms, settled)
      select a.scope, a.id, a.fence, a.fence / 1000 + a.lease_ms, a.fence / 1000 + a.lease_ms + a.keep_ms, false
      from asked a where a.fence is not null order by a.scope, a.id
      on conflict (scope, id) do nothing returning 1
    )
    select array_agg(coalesce(a.answer, 'granted f 1 ' || a.fence) order by a.number), count(a.fence), (select count(*) from listed)
    into answers, granted, listed from asked a;
    if listed <> granted then -- what is left of an earlier life goes
      perform ${functionName(names, 'enlisted')}(
        answers, array(select scopes[abs(t.term)] from unnest(terms) as t (term)), ids,
        array(select leases_ms[abs(t.term)] from unnest(terms) as t (term)),
        array(select keeps_ms[abs(t.term)] from unnest(terms) as t (term))
      );
    end if;
    ${undecidedClaims(names, 'enlist')}
  end if;
  return concat_ws(';', array_to_string(advanced, ';'), array_to_string(answers, ';'));
end $$;`
}

// An operation that is due for a look and whose entry has expired is deleted. The others are looked at again when their entry may
// have expired.
function sweepOperationsFunction(names: SchemaNames): string {
  const [name, steps] = [qualified(names, '_operations'), qualified(names, '_steps')]
  return /* sql */ `create or replace function ${functionName(names, 'sweep_operations')}(at_most integer)
returns text language plpgsql ${pinnedPlan} as $$
declare
  operation record;
  now_ms bigint := ${clockMs};
  expires_at_ms bigint;
  seen integer := 0;
begin
  for operation in
    select o.scope, o.id from ${name} o where o.sweep_at_ms <= now_ms order by o.sweep_at_ms limit at_most for update skip locked
  loop
    seen := seen + 1;
    -- Under its lock: a claim that takes over in this moment must keep its records.
    select e.lease_until_ms + e.keep_ms into expires_at_ms
      from ${qualified(names)} e where e.scope = operation.scope and e.id = operation.id for update skip locked;
    if not found then
      perform from ${qualified(names)} e where e.scope = operation.scope and e.id = operation.id;
      continue when found; -- another session has it; the next sweep sees
    end if;
    if expires_at_ms is null or expires_at_ms <= now_ms then
      delete from ${steps} s where s.scope = operation.scope and s.id = operation.id;
      delete from ${name} o where o.scope = operation.scope and o.id = operation.id;
    else
      update ${name} o set sweep_at_ms = expires_at_ms where o.scope = operation.scope and o.id = operation.id;
    end if;
  end loop;
  return (seen = at_most)::integer::text;
end $$;`
}

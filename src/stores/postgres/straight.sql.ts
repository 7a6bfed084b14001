// The straight way of claims and settles: one statement for all claims of a batch and one for all settles. Whatever such a
// statement does not decide goes to the functions of postgres/decisions.sql.ts, which decide everything.
// Invariants: as there, an entry is inserted only under the lock of its key, and changed only under its row lock. But here look and
// lock share a snapshot, and a key that was committed in between is not seen: then the unique index refuses it (23505), and the
// whole batch is asked again. So the straight way is for the simple table at READ COMMITTED. Several tables have no common index.
// Whether the table is in periods is read by the same statement: its snapshot is taken after the locks on its tables, and the
// step that puts the table into periods holds the strongest one.

import {
  answerInBatch,
  clockMicroseconds,
  clockMs,
  functionName,
  isReadCommitted,
  lockNumber,
  ownKey,
  pinnedPlan,
  qualified,
  settledInBatch,
} from './names.ts'
import type { SchemaNames } from './names.ts'

/** What is decided by what is there: `e` is the entry, `a` is the claim. Null: not decided here. */
const known = `case
      when now_ms >= e.lease_until_ms + e.keep_ms then null
      when e.fingerprint <> a.fingerprint then 'mismatch'
      when e.state = 's' then ${settledInBatch}
      when e.state = 'r' and e.token <> a.token and now_ms < e.lease_until_ms then concat('busy ', e.lease_until_ms - now_ms)
    end`

// The claims of a function with these parameters. What calls share (scope, lease, retention, version, policies) comes once, as a term.
// A claim with a negative term repeats a key of its batch: both would get the lock, which is the session's, so only the first may insert.
// No RETURNING, and nothing to match afterwards: the fence is drawn where the lock is taken, and it is the answer.
// The clock is read after the lock, see postgres/decisions.sql.ts.
export function straightClaims(names: SchemaNames): string {
  const entries = qualified(names)
  return `with asked as materialized (
    select a.*,
      case when e.state is null and a.first and not exists (select from ${qualified(names, '_periods')})
          and pg_try_advisory_xact_lock(${lockNumber(names, 'a.scope', 'a.id')})
        then ${clockMicroseconds} end as fence,
      case when e.state is not null then ${known} end as answer
    from (
      select u.*, u.term > 0 as first, scopes[abs(u.term)] as scope, leases_ms[abs(u.term)] as lease_ms,
        keeps_ms[abs(u.term)] as keep_ms, tombstones_ms[abs(u.term)] as tombstone_ms, versions[abs(u.term)] as version
      from unnest(ids, tokens, fingerprints, terms, inputs)
        with ordinality as u (id, token, fingerprint, term, input, number)
      offset 0
    ) a
    left join lateral (select * from ${entries} t where t.scope = a.scope and t.id = a.id limit 1) e on true
  ), inserted as (
    insert into ${entries} (
      fence, lease_until_ms, keep_ms, tombstone_ms, attempt, version, state, how, token, fingerprint, scope, id, input, slot,
      sweep_at_ms
    )
    select
      a.fence, a.fence / 1000 + a.lease_ms, a.keep_ms, a.tombstone_ms, 1, a.version, 'r', 'f', a.token, a.fingerprint, a.scope,
      a.id, a.input, 0, a.fence / 1000 + a.keep_ms
    from asked a where a.fence is not null
  )`
}

/** The beginning of a condition whose ELSE is the straight way. Elsewhere the function decides that decides everything. */
export function unlessStraight(names: SchemaNames, by: 'claims' | 'enlists'): string {
  const ofTerms = (column: string): string => `array(select ${column}[abs(t.term)] from unnest(terms) as t (term))`
  return `if ids is null then
    null;
  elsif not ${isReadCommitted} or exists (select from ${qualified(names, '_periods')}) then
    select array_agg(c.answer order by c.number) into answers from ${functionName(names, by)}(
      ${ofTerms('scopes')}, ids, tokens, fingerprints, ${ofTerms('leases_ms')}, ${ofTerms('keeps_ms')},
      ${ofTerms('tombstones_ms')}, ${ofTerms('versions')}, ${ofTerms('takeovers')}, ${ofTerms('expireds')},
      array(select encode(i.input, 'base64') from unnest(ids, inputs) as i (id, input))
    ) with ordinality as c (answer, number);
  else`
}

/** The claims that nothing has decided yet, one by one by the function that decides everything. */
export function undecidedClaims(names: SchemaNames, by: 'claim' | 'enlist'): string {
  return `if array_position(answers, null) is not null then
      for n in 1 .. cardinality(ids) loop
        answers[n] := coalesce(answers[n], ${functionName(names, by)}(
          scopes[abs(terms[n])], ids[n], tokens[n], fingerprints[n], leases_ms[abs(terms[n])], keeps_ms[abs(terms[n])],
          tombstones_ms[abs(terms[n])], versions[abs(terms[n])], takeovers[abs(terms[n])], expireds[abs(terms[n])],
          encode(inputs[n], 'base64')
        ));
        answers[n] := ${answerInBatch('answers[n]')};
      end loop;
    end if;`
}

// Settles before claims: a claim of a key that is settled in the same moment returns the outcome. The answers are joined by
// semicolons, those of settles first and only if one of them was not done. Which were written is seen by their time, and `write` is
// asked for the others only: it does not recognise one that has expired since, be it a millisecond later.
export function togetherFunction(names: SchemaNames): string {
  const entries = qualified(names)
  return /* sql */ `create or replace function ${functionName(names, 'together')}(
  scopes text[], leases_ms bigint[], keeps_ms bigint[], tombstones_ms bigint[], versions integer[], takeovers text[],
  expireds text[],
  settled_ids text[], settled_tokens uuid[], settled_fences bigint[], settled_terms integer[], outcomes bytea[],
  ids text[], tokens uuid[], fingerprints text[], terms integer[], inputs bytea[]
) returns text language plpgsql ${pinnedPlan} as $$
declare
  now_ms bigint := ${clockMs};
  written integer;
  settled text[];
  answers text[];
begin
  if settled_ids is not null then
    update ${entries} e set
      state = 's', outcome = a.outcome, lease_until_ms = now_ms, keep_ms = a.keep_ms, tombstone_ms = a.tombstone_ms,
      sweep_at_ms = case when e.slot = 0 then least(e.sweep_at_ms, now_ms + a.keep_ms) else e.sweep_at_ms end
    from (
      select c.outcome, c.keep_ms, c.tombstone_ms, held.at, held.slot
      from (
        select u.*, scopes[u.term] as scope, keeps_ms[u.term] as keep_ms, tombstones_ms[u.term] as tombstone_ms
        from unnest(settled_ids, settled_tokens, settled_fences, settled_terms, outcomes) as u (id, token, fence, term, outcome)
      ) c
      cross join lateral (
        select h.ctid as at, h.slot from ${entries} h
        where h.scope = c.scope and h.id = c.id and h.token = c.token and h.fence = c.fence and h.state = 'r'
          and now_ms < h.lease_until_ms + h.keep_ms
          and (h.slot = 0 or h.sweep_at_ms >= now_ms + c.keep_ms + c.tombstone_ms)
        limit 1 for update skip locked
      ) held
      offset 0
    ) a
    where e.slot = a.slot and e.ctid = a.at;
    get diagnostics written = row_count;
    if written <> cardinality(settled_ids) then
      for n in 1 .. cardinality(settled_ids) loop
        perform from ${entries} e where e.scope = scopes[settled_terms[n]] and e.id = settled_ids[n]
          and e.token = settled_tokens[n] and e.fence = settled_fences[n] and e.state = 's' and e.lease_until_ms = now_ms;
        settled[n] := case when found then 'done' else ${functionName(names, 'write')}(
          'settle', scopes[settled_terms[n]], settled_ids[n], settled_tokens[n], settled_fences[n], keeps_ms[settled_terms[n]],
          tombstones_ms[settled_terms[n]], encode(outcomes[n], 'base64')
        ) end;
      end loop;
    end if;
  end if;

  ${unlessStraight(names, 'claims')}
    ${straightClaims(names)}
    select array_agg(coalesce(a.answer, 'granted f 1 ' || a.fence) order by a.number) into answers from asked a;
    ${undecidedClaims(names, 'claim')}
  end if;
  return concat_ws(';', array_to_string(settled, ';'), array_to_string(answers, ';'));
end $$;`
}

// A lone call without arrays, and in several small statements: setting up the one large statement would cost it 30 µs more.
export function claimOneFunction(names: SchemaNames): string {
  const entries = qualified(names)
  return /* sql */ `create or replace function ${functionName(names, 'claim_one')}(
  a_scope text, an_id text, a_token uuid, a_fingerprint text, lease_ms bigint, a_keep_ms bigint, a_tombstone_ms bigint,
  a_version integer, on_takeover text, on_expired text, an_input bytea
) returns text language plpgsql ${pinnedPlan} as $$
declare
  entry record;
  now_us bigint;
begin
  select t.state, t.token, t.fingerprint, t.lease_until_ms, t.keep_ms, t.attempt, t.version, t.outcome into entry
    from ${entries} t where t.scope = a_scope and t.id = an_id;
  if found then
    now_us := ${clockMicroseconds};
    if entry.state = 's' and entry.fingerprint = a_fingerprint and now_us / 1000 < entry.lease_until_ms + entry.keep_ms then
      return concat('settled ', entry.attempt, ' ', entry.version, ' ', encode(entry.outcome, 'base64'));
    end if;
  elsif ${isReadCommitted} and pg_try_advisory_xact_lock(${lockNumber(names, 'a_scope', 'an_id')}) then
    now_us := ${clockMicroseconds};
    insert into ${entries} (
      fence, lease_until_ms, keep_ms, tombstone_ms, attempt, version, state, how, token, fingerprint, scope, id, input, slot,
      sweep_at_ms
    )
    select
      now_us, now_us / 1000 + lease_ms, a_keep_ms, a_tombstone_ms, 1, a_version, 'r', 'f', a_token, a_fingerprint, a_scope,
      an_id, an_input, 0, now_us / 1000 + a_keep_ms
    where not exists (select from ${qualified(names, '_periods')});
    if found then
      return concat('granted f 1 ', now_us);
    end if;
  end if;
  return ${functionName(names, 'claim')}(
    a_scope, an_id, a_token, a_fingerprint, lease_ms, a_keep_ms, a_tombstone_ms, a_version, on_takeover, on_expired,
    encode(an_input, 'base64')
  );
end $$;`
}

// The settled entry of a transaction for whose claim `begin` wrote nothing. One statement without a choice of plans, so none is
// pinned: two thirds of what `record` costs, which decides everything else. `begin` has read the table, so it cannot be put into
// periods before this transaction ends. Above READ COMMITTED the unique index finds what the snapshot does not show, and ON CONFLICT
// raises a serialization failure.
export function recordOneFunction(names: SchemaNames): string {
  const entries = qualified(names)
  return /* sql */ `create or replace function ${functionName(names, 'record_one')}(
  a_scope text, an_id text, a_token uuid, a_fingerprint text, a_fence bigint, a_keep_ms bigint, a_tombstone_ms bigint,
  a_version integer, an_input bytea, an_outcome bytea
) returns text language plpgsql as $$
declare
  now_ms bigint := ${clockMs};
begin
  if ${ownKey} = ${lockNumber(names, 'a_scope', 'an_id')}::text
      and pg_get_partkeydef('${entries}'::regclass) is null then
    insert into ${entries} (
      fence, lease_until_ms, keep_ms, tombstone_ms, attempt, version, state, how, token, fingerprint, scope, id, input, outcome,
      slot, sweep_at_ms
    ) values (
      a_fence, now_ms, a_keep_ms, a_tombstone_ms, 1, a_version, 's', 'f', a_token, a_fingerprint, a_scope, an_id, an_input,
      an_outcome, 0, now_ms + a_keep_ms
    ) on conflict do nothing;
    if found then
      return 'done';
    end if;
  end if;
  call ${functionName(names, 'record')}(
    a_scope, an_id, a_token, a_fingerprint, a_fence, a_keep_ms, a_tombstone_ms, a_version, encode(an_input, 'base64'),
    encode(an_outcome, 'base64')
  );
  return 'done';
end $$;`
}

export function settleOneFunction(names: SchemaNames): string {
  const entries = qualified(names)
  return /* sql */ `create or replace function ${functionName(names, 'settle_one')}(
  a_scope text, an_id text, a_token uuid, a_fence bigint, a_keep_ms bigint, a_tombstone_ms bigint, an_outcome bytea
) returns text language plpgsql ${pinnedPlan} as $$
declare
  held record;
  now_ms bigint := ${clockMs};
begin
  select h.ctid as at, h.slot into held from ${entries} h
    where h.scope = a_scope and h.id = an_id and h.token = a_token and h.fence = a_fence and h.state = 'r'
      and now_ms < h.lease_until_ms + h.keep_ms
      and (h.slot = 0 or h.sweep_at_ms >= now_ms + a_keep_ms + a_tombstone_ms)
    for update skip locked;
  if not found then
    return ${functionName(names, 'write')}(
      'settle', a_scope, an_id, a_token, a_fence, a_keep_ms, a_tombstone_ms, encode(an_outcome, 'base64')
    );
  end if;
  update ${entries} e set
    state = 's', outcome = an_outcome, lease_until_ms = now_ms, keep_ms = a_keep_ms, tombstone_ms = a_tombstone_ms,
    sweep_at_ms = case when e.slot = 0 then least(e.sweep_at_ms, now_ms + a_keep_ms) else e.sweep_at_ms end
  where e.slot = held.slot and e.ctid = held.at;
  return 'done';
end $$;`
}

// The functions that decide: claims, and the writes that follow them. They run on the server, because only there can a decision
// be one atomic step for a whole batch in one round trip, with plans that do not depend on statistics.
// Invariants: an entry is inserted only under the advisory lock of its key and by a statement that looked for it after that
// (the table may be several, postgres/periods.sql.ts, and no index covers them all), and changed or deleted only under its row
// lock. Both locks are tried, never waited for: no call of ours waits behind another one or behind a transaction of others.

import { endedState, lostState } from './errors.ts'
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
import { periodFor, stayOrMove } from './periods.sql.ts'

// One claim, with every decision there is. First a plain read: replays, the common case, take no lock and write nothing. Only an
// entry that is to be written is locked, read again and written. Each statement of a function has its own snapshot at READ
// COMMITTED. Above it, a change since the snapshot is a serialization failure. The clock is read after the lock. If it were read
// before, a transaction that claimed and rolled back in between could have been given a greater fence.
// The insert has no ON CONFLICT, which would be 48 bytes of WAL more: no other session can have inserted the key since the look.
// Above READ COMMITTED the look may be at an old snapshot, so `probe` asks the unique indexes first.
// A first attempt has no first_claimed_at_ms: its fence says it, and the row is eight bytes smaller.
// A claim that takes over brings its retention and version. An attempt without an input leaves the one that is there.
export function claimFunction(names: SchemaNames): string {
  const entries = qualified(names)
  return /* sql */ `create or replace function ${functionName(names, 'claim')}(
  a_scope text, an_id text, a_token uuid, a_fingerprint text, lease_ms bigint, a_keep_ms bigint, a_tombstone_ms bigint,
  a_version integer, on_takeover text, on_expired text, an_input text
) returns text language plpgsql ${pinnedPlan} as $$
declare
  entry ${entries};
  now_us bigint;
  now_ms bigint;
  granted "char"; -- fresh, reopened, taken over, or again: to the token that already holds it
  home_slot smallint;
  locked boolean := false;
begin
  loop
    if locked then
      select * into entry from ${entries} e where e.scope = a_scope and e.id = an_id for update skip locked;
    else
      select * into entry from ${entries} e where e.scope = a_scope and e.id = an_id;
    end if;
    if found then
      now_us := ${clockMicroseconds};
      now_ms := now_us / 1000;
      if now_ms >= entry.lease_until_ms + entry.keep_ms then
        if on_expired = 'refuse' and now_ms < entry.lease_until_ms + entry.keep_ms + entry.tombstone_ms then
          return 'expired';
        end if;
        granted := 'f';
      elsif entry.fingerprint <> a_fingerprint then
        return 'mismatch';
      elsif entry.state = 's' then
        return concat('settled ', entry.attempt, ' ', entry.version, ' ', encode(entry.outcome, 'base64'));
      elsif entry.token = a_token then
        if entry.state = 'o' then
          return 'busy 0';
        end if;
        granted := 'a';
      elsif entry.state = 'o' then
        granted := 'r';
      elsif now_ms < entry.lease_until_ms then
        return concat('busy ', entry.lease_until_ms - now_ms);
      elsif on_takeover = 'refuse' then
        return concat('doubt ', entry.attempt);
      else
        granted := 't';
      end if;
      exit when locked;
    elsif locked then
      perform from ${entries} e where e.scope = a_scope and e.id = an_id;
      if found then
        return 'locked'; -- a write or a sweep has its row for a moment; an insert would wait for it
      end if;
    end if;

    if not locked and not pg_try_advisory_xact_lock(${lockNumber(names, 'a_scope', 'an_id')}) then
      return 'held';
    end if;
    if entry.state is null then
      if not ${isReadCommitted} then
        perform ${functionName(names, 'probe')}(a_scope, an_id);
      end if;
      now_us := ${clockMicroseconds};
      now_ms := now_us / 1000;
      insert into ${entries} (
        fence, lease_until_ms, keep_ms, tombstone_ms, attempt, version, state, how, token, fingerprint, scope, id, input,
        slot, sweep_at_ms
      )
      select
        now_us, now_ms + lease_ms, a_keep_ms, a_tombstone_ms, 1, a_version, 'r', 'f', a_token, a_fingerprint, a_scope, an_id,
        decode(an_input, 'base64'), coalesce(p.slot, 0), coalesce(p.ends_at_ms, now_ms + a_keep_ms)
      from (select) nothing
      left join lateral ${periodFor(names, 'now_ms + lease_ms + a_keep_ms + a_tombstone_ms')} p on true
      where not exists (select from ${entries} e where e.scope = a_scope and e.id = an_id);
      if found then
        return concat('granted f 1 ', now_us);
      end if;
    end if;
    locked := true;
  end loop;

  home_slot := entry.slot;
  entry.lease_until_ms := now_ms + lease_ms;
  if granted <> 'a' then
    entry.first_claimed_at_ms := case when granted = 'f' then now_ms
                                 else coalesce(entry.first_claimed_at_ms, entry.fence / 1000) end;
    entry.fence := greatest(now_us, entry.fence + 1);
    entry.attempt := case when granted = 'f' then 1 else entry.attempt + 1 end;
    entry.keep_ms := a_keep_ms;
    entry.tombstone_ms := a_tombstone_ms;
    entry.sweep_at_ms := case when entry.slot = 0 then now_ms + a_keep_ms else entry.sweep_at_ms end;
    entry.version := a_version;
    entry.state := 'r';
    entry.how := granted;
    entry.token := a_token;
    entry.fingerprint := a_fingerprint;
    entry.input := case when granted = 'f' then decode(an_input, 'base64')
                   else coalesce(decode(an_input, 'base64'), entry.input) end;
    entry.outcome := null;
  end if;
  ${stayOrMove(names)}
  update ${entries} e set
    fence = entry.fence, lease_until_ms = entry.lease_until_ms, keep_ms = entry.keep_ms, tombstone_ms = entry.tombstone_ms,
    first_claimed_at_ms = entry.first_claimed_at_ms, sweep_at_ms = entry.sweep_at_ms, attempt = entry.attempt,
    version = entry.version, state = entry.state, how = entry.how, slot = entry.slot, token = entry.token,
    fingerprint = entry.fingerprint, input = entry.input, outcome = entry.outcome
  where e.slot = home_slot and e.scope = a_scope and e.id = an_id;
  return concat('granted ', entry.how, ' ', entry.attempt, ' ', entry.fence);
end $$;`
}

// Every write after the claim. First the common case: the row is there, ours, and free. What follows it finds out why nothing was
// written. 'settle-within' is for a transaction of the caller's, where an uncommitted entry cannot expire. 'settle-or-fail' is
// for a transaction of ours: it raises instead of returning 'lost', so that a COMMIT sent along with it is not carried out.
// By token and fence: a claim that is delivered once more after its entry was forgotten begins a new life with the old token. A
// release with fence 0 comes from a caller that never received its claim, and hence no fence: its token alone decides.
export function writeFunction(names: SchemaNames): string {
  const entries = qualified(names)
  return /* sql */ `create or replace function ${functionName(names, 'write')}(
  verb text, a_scope text, an_id text, a_token uuid, a_fence bigint, duration_ms bigint, a_tombstone_ms bigint,
  an_outcome text
) returns text language plpgsql ${pinnedPlan} as $$
declare
  entry record;
  now_ms bigint := ${clockMs};
begin
  if verb = 'settle-or-fail' and ${ownKey} is distinct from ${lockNumber(names, 'a_scope', 'an_id')}::text then
    raise exception using errcode = '${endedState}', message = 'onceonly: the transaction had ended';
  end if;
  select h.slot, h.ctid as at, h.slot as home_slot, h.state, h.lease_until_ms, h.keep_ms, h.tombstone_ms, h.sweep_at_ms,
      h.attempt
    into entry from ${entries} h
    where h.scope = a_scope and h.id = an_id and h.state = 'r'
      and h.token = a_token and (h.fence = a_fence or a_fence = 0 and verb in ('open', 'forget'))
      and (now_ms < h.lease_until_ms + h.keep_ms or verb like 'settle-%') for update skip locked;
  if found and verb = 'forget' and entry.attempt = 1 then
    if not pg_try_advisory_xact_lock(${lockNumber(names, 'a_scope', 'an_id')}) then
      return 'locked';
    end if;
    delete from ${entries} e where e.slot = entry.home_slot and e.ctid = entry.at;
    delete from ${qualified(names, '_steps')} s where s.scope = a_scope and s.id = an_id;
    delete from ${qualified(names, '_operations')} o where o.scope = a_scope and o.id = an_id;
    return 'done';
  elsif found then
    entry.lease_until_ms := now_ms;
    if verb like 'settle%' then
      entry.state := 's';
      entry.keep_ms := duration_ms;
      entry.tombstone_ms := a_tombstone_ms;
    elsif verb = 'extend' then
      entry.lease_until_ms := now_ms + duration_ms;
    else
      entry.state := 'o';
    end if;
    ${stayOrMove(names)}
    update ${entries} e set
      state = entry.state, outcome = decode(an_outcome, 'base64'), lease_until_ms = entry.lease_until_ms,
      keep_ms = entry.keep_ms, tombstone_ms = entry.tombstone_ms, sweep_at_ms = entry.sweep_at_ms, slot = entry.slot
    where e.slot = entry.home_slot and e.ctid = entry.at;
    return 'done';
  end if;

  select e.state, e.token, e.fence, e.tombstone_ms, e.lease_until_ms + e.keep_ms as expires_at_ms
    into entry from ${entries} e where e.scope = a_scope and e.id = an_id;
  if verb = 'forget' and (entry.state is null or now_ms >= entry.expires_at_ms + entry.tombstone_ms) then
    return 'done'; -- the trace is gone already
  elsif entry.token = a_token and (entry.fence = a_fence or a_fence = 0 and verb in ('open', 'forget'))
      and (now_ms < entry.expires_at_ms or verb like 'settle-%') then
    if entry.state = 'r' then
      return 'locked'; -- it is ours, and yet it was passed over
    elsif entry.state = 's' and verb like 'settle%' or entry.state = 'o' and verb in ('open', 'forget') then
      -- The same call once more, after its first reply was lost. Under the row's lock: what an advance writes beside it must not
      -- come after the entry was forgotten, and be taken for a record of the next life.
      perform from ${entries} e where e.scope = a_scope and e.id = an_id and e.token = entry.token and e.fence = entry.fence
        and e.state = entry.state for update skip locked;
      return case when found then 'done' else 'locked' end;
    end if;
  end if;
  if verb = 'settle-or-fail' then
    raise exception using errcode = '${lostState}', message = 'onceonly: the claim was lost';
  end if;
  return 'lost';
end $$;`
}

// Many claims at once. Most of them are decided by what is there, or are fresh. One statement does these for all, at half the
// price for each, and the others go one by one. Nothing relies on the order in which an INSERT returns its rows: a claim that was
// inserted and is not recognised here recognises itself by its token in the single function.
// A separate statement takes the locks, because the insert must look once more after they are held. Of a key that is asked for
// twice in one batch only the first is free. Both would get the lock, which is the session's, and might go to different tables.
export function claimsFunction(names: SchemaNames): string {
  const entries = qualified(names)
  return /* sql */ `create or replace function ${functionName(names, 'claims')}(
  scopes text[], ids text[], tokens uuid[], fingerprints text[], leases_ms bigint[], keeps_ms bigint[],
  tombstones_ms bigint[], versions integer[], takeovers text[], expireds text[], inputs text[]
) returns setof text language plpgsql ${pinnedPlan} as $$
declare
  answers text[];
  inserted_tokens uuid[];
  inserted_fences bigint[];
  turn integer := 1;
  now_ms bigint := ${clockMs};
begin
  select array_agg(case
      when e.state is null then 'absent'
      when now_ms >= e.lease_until_ms + e.keep_ms then null
      when e.fingerprint <> a.fingerprint then 'mismatch'
      when e.state = 's' then ${settledInBatch}
      when e.state = 'r' and e.token <> a.token and now_ms < e.lease_until_ms then concat('busy ', e.lease_until_ms - now_ms)
    end order by a.number)
  into answers
  from unnest(scopes, ids, tokens, fingerprints) with ordinality as a (scope, id, token, fingerprint, number)
  left join lateral (select * from ${entries} t where t.scope = a.scope and t.id = a.id limit 1) e on true;

  if 'absent' = any(answers) and ${isReadCommitted} then
    select array_agg(case
        when b.answer = 'absent' and b.nth = 1 and pg_try_advisory_xact_lock(${lockNumber(names, 'b.scope', 'b.id')}) then 'free'
        else b.answer
      end order by b.number)
    into answers
    from (
      select a.*, row_number() over (partition by a.scope, a.id order by a.number) as nth
      from unnest(scopes, ids, answers) with ordinality as a (scope, id, answer, number)
    ) b;

    with inserted as (
      insert into ${entries} (
        fence, lease_until_ms, keep_ms, tombstone_ms, attempt, version, state, how, token, fingerprint, scope, id, input,
        slot, sweep_at_ms
      )
      select
        a.now_us, a.now_us / 1000 + a.lease_ms, a.keep_ms, a.tombstone_ms, 1, a.version, 'r', 'f', a.token, a.fingerprint,
        a.scope, a.id, decode(a.input, 'base64'), coalesce(p.slot, 0), coalesce(p.ends_at_ms, a.now_us / 1000 + a.keep_ms)
      from (
        select *, ${clockMicroseconds} as now_us
        from unnest(scopes, ids, tokens, fingerprints, leases_ms, keeps_ms, tombstones_ms, versions, inputs, answers)
          as c (scope, id, token, fingerprint, lease_ms, keep_ms, tombstone_ms, version, input, answer)
        where c.answer = 'free' and not exists (select from ${entries} t where t.scope = c.scope and t.id = c.id)
        offset 0
      ) a
      left join lateral ${periodFor(names, 'a.now_us / 1000 + a.lease_ms + a.keep_ms + a.tombstone_ms')} p on true
      returning token, fence
    )
    select array_agg(token), array_agg(fence) into inserted_tokens, inserted_fences from inserted;
  end if;

  for n in 1 .. cardinality(ids) loop
    if answers[n] = 'free' and tokens[n] = inserted_tokens[turn] then
      answers[n] := concat('granted f 1 ', inserted_fences[turn]);
      turn := turn + 1;
    elsif answers[n] is null or answers[n] in ('absent', 'free') then
      answers[n] := ${functionName(names, 'claim')}(
        scopes[n], ids[n], tokens[n], fingerprints[n], leases_ms[n], keeps_ms[n], tombstones_ms[n], versions[n],
        takeovers[n], expireds[n], inputs[n]
      );
      answers[n] := ${answerInBatch('answers[n]')};
    end if;
  end loop;
  return query select unnest(answers);
end $$;`
}

// Settles and extends by one statement, into `written`: their numbers, in order. `calls` is what is asked, as `c`. Each call is known by
// its place in the batch: several calls of one claim (a release and a heartbeat) differ in nothing else that an UPDATE could return,
// and of two that would write the same row it carries out one.
export function writtenTogether(names: SchemaNames, calls: string, outcome: string): string {
  const entries = qualified(names)
  return `with updated as (
    update ${entries} e set
      state = case when a.settles then 's' else e.state end, outcome = ${outcome},
      lease_until_ms = case when a.settles then now_ms else now_ms + a.duration_ms end,
      keep_ms = case when a.settles then a.duration_ms else e.keep_ms end,
      tombstone_ms = case when a.settles then a.tombstone_ms else e.tombstone_ms end,
      sweep_at_ms = case when e.slot = 0
        then least(e.sweep_at_ms, now_ms + a.duration_ms + case when a.settles then 0 else e.keep_ms end)
        else e.sweep_at_ms end
    from (
      select c.*, c.verb = 'settle' as settles, held.at, held.slot
      from ${calls}
      cross join lateral (
        select h.ctid as at, h.slot from ${entries} h
        where h.scope = c.scope and h.id = c.id and h.token = c.token and h.fence = c.fence and h.state = 'r'
          and now_ms < h.lease_until_ms + h.keep_ms
          and (h.slot = 0 or h.sweep_at_ms >=
            now_ms + c.duration_ms + case when c.verb = 'settle' then c.tombstone_ms else h.keep_ms + h.tombstone_ms end)
        limit 1 for update skip locked
      ) held
      where c.verb in ('settle', 'extend')
      offset 0
    ) a
    where e.slot = a.slot and e.ctid = a.at
    returning a.number
  )
  select array_agg(number order by number) into written from updated;`
}

// Many writes at once: settles and extends by one statement. The others, and those that wrote nothing or must move, go one by one.
export function writesFunction(names: SchemaNames): string {
  return /* sql */ `create or replace function ${functionName(names, 'writes')}(
  verbs text[], scopes text[], ids text[], tokens uuid[], fences bigint[], durations_ms bigint[], tombstones_ms bigint[],
  outcomes text[]
) returns setof text language plpgsql ${pinnedPlan} as $$
declare
  written integer[];
  turn integer := 1;
  now_ms bigint := ${clockMs};
begin
  ${writtenTogether(
    names,
    `unnest(verbs, scopes, ids, tokens, fences, durations_ms, tombstones_ms, outcomes)
        with ordinality as c (verb, scope, id, token, fence, duration_ms, tombstone_ms, outcome, number)`,
    `decode(a.outcome, 'base64')`,
  )}

  for n in 1 .. cardinality(ids) loop
    if written[turn] = n then
      turn := turn + 1;
      return next 'done';
    else
      return next ${functionName(names, 'write')}(
        verbs[n], scopes[n], ids[n], tokens[n], fences[n], durations_ms[n], tombstones_ms[n], outcomes[n]
      );
    end if;
  end loop;
end $$;`
}

// For a transaction that the store opens. What keeps others away from a key that has no entry is the lock, not an entry that only
// this transaction can see: nothing is written before the effect, and `record` writes the settled entry at once. Half the work,
// half the WAL.
export function beginFunction(names: SchemaNames): string {
  return /* sql */ `create or replace function ${functionName(names, 'begin')}(
  a_scope text, an_id text, a_token uuid, a_fingerprint text, lease_ms bigint, a_keep_ms bigint, a_tombstone_ms bigint,
  a_version integer, on_takeover text, on_expired text, an_input text
) returns text language plpgsql ${pinnedPlan} as $$
declare
  lock_number bigint := ${lockNumber(names, 'a_scope', 'an_id')};
  answer text;
  own_key text;
begin
  if pg_try_advisory_xact_lock(lock_number) then
    perform from ${qualified(names)} e where e.scope = a_scope and e.id = an_id;
    if not found then
      answer := concat('granted n 1 ', ${clockMicroseconds});
    end if;
  end if;
  if answer is null then
    answer := ${functionName(names, 'claim')}(
      a_scope, an_id, a_token, a_fingerprint, lease_ms, a_keep_ms, a_tombstone_ms, a_version, on_takeover, on_expired, an_input
    );
  end if;
  if answer like 'granted %' then
    own_key := set_config('onceonly.transaction', lock_number::text, true); -- PERFORM would be a statement
  end if;
  return answer;
end $$;`
}

// A claim inside a transaction of the caller's. Inside of the transaction that `begin` opened for the same key, the lock keeps
// nothing away, as it is the session's own, and there may be no entry yet.
export function joinFunction(names: SchemaNames): string {
  return /* sql */ `create or replace function ${functionName(names, 'join')}(
  a_scope text, an_id text, a_token uuid, a_fingerprint text, lease_ms bigint, a_keep_ms bigint, a_tombstone_ms bigint,
  a_version integer, on_takeover text, on_expired text, an_input text
) returns text language plpgsql ${pinnedPlan} as $$
begin
  if ${ownKey} = ${lockNumber(names, 'a_scope', 'an_id')}::text then
    return 'held';
  end if;
  return ${functionName(names, 'claim')}(
    a_scope, an_id, a_token, a_fingerprint, lease_ms, a_keep_ms, a_tombstone_ms, a_version, on_takeover, on_expired, an_input
  );
end $$;`
}

// Writes the settled entry of a claim for which `begin` wrote nothing, or raises. An effect that ended the transaction itself
// has let go of the lock, and another caller may have run since.
export function recordFunction(names: SchemaNames): string {
  const entries = qualified(names)
  return /* sql */ `create or replace procedure ${functionName(names, 'record')}(
  a_scope text, an_id text, a_token uuid, a_fingerprint text, a_fence bigint, a_keep_ms bigint, a_tombstone_ms bigint,
  a_version integer, an_input text, an_outcome text
) language plpgsql ${pinnedPlan} as $$
declare
  now_ms bigint := ${clockMs};
begin
  if ${ownKey} is distinct from ${lockNumber(names, 'a_scope', 'an_id')}::text then
    raise exception using errcode = '${endedState}', message = 'onceonly: the transaction had ended';
  end if;
  if not ${isReadCommitted} then
    perform ${functionName(names, 'probe')}(a_scope, an_id);
  end if;
  insert into ${entries} (
    fence, lease_until_ms, keep_ms, tombstone_ms, attempt, version, state, how, token, fingerprint, scope, id, input, outcome,
    slot, sweep_at_ms
  )
  select
    a_fence, now_ms, a_keep_ms, a_tombstone_ms, 1, a_version, 's', 'f', a_token, a_fingerprint, a_scope, an_id,
    decode(an_input, 'base64'), decode(an_outcome, 'base64'), coalesce(p.slot, 0), coalesce(p.ends_at_ms, now_ms + a_keep_ms)
  from (select) nothing
  left join lateral ${periodFor(names, 'now_ms + a_keep_ms + a_tombstone_ms')} p on true
  where not exists (select from ${entries} e where e.scope = a_scope and e.id = an_id);
  if not found then
    raise exception using errcode = '${lostState}', message = 'onceonly: the claim was lost';
  end if;
end $$;`
}

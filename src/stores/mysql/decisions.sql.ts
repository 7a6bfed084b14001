// The decisions of the MySQL store about entries. They are procedures because only on the server can a decision be made under a
// lock, written and committed in one round trip, and without `multipleStatements` on the user's pool.
// Invariants: an entry is inserted, changed or deleted only under its row lock. Locks are tried, not waited for (MySQL has no way
// to do so for an INSERT: the procedure looks first and then waits for a second at most). Every procedure puts the settings of
// the session back.

import { procedureName } from './names.ts'
import type { OperationProcedureName, ProcedureName } from './names.ts'
import {
  beginOwn,
  claimArguments,
  claimParameters,
  clockSql,
  commitOwn,
  declareWait,
  execute,
  forgetOperation,
  insertWaitS,
  keyed,
  keyParameters,
  lookAfter,
  lookFirst,
  ofOperation,
  rollbackOnError,
  waitS,
  writeArguments,
  writeParameters,
} from './pieces.sql.ts'

export const decisions: Readonly<Record<Exclude<ProcedureName, OperationProcedureName>, (table: string) => string>> = {
  claim: claimProcedure,
  take: takeProcedure,
  begin: beginProcedure,
  within: withinProcedure,
  write: writeProcedure,
  put: putProcedure,
  batch: batchProcedure,
  commit: commitProcedure,
  rollback: rollbackProcedure,
  settle: settleProcedure,
  sweep: sweepProcedure,
  mend: mendProcedure,
  clock: clockProcedure,
}

/**
 * The verdict on a claim of the entry `e`, as words. Null when the claim may be granted, or when there is no entry. `fence` is that
 * of entries which this very call has inserted.
 */
export function verdictSql(asked: (column: string) => string, nowMs: string, fence: string): string {
  return `case
      when e.id is null then null
      when ${nowMs} >= e.lease_until_ms + e.keep_ms then
        if(${asked('on_expired')} = 'refuse' and ${nowMs} < e.lease_until_ms + e.keep_ms + e.tombstone_ms, 'expired', null)
      when e.fingerprint <> ${asked('fingerprint')} then 'mismatch'
      when e.state = 's' then concat_ws(' ', 'settled', e.attempt, e.version, to_base64(e.outcome))
      when e.token = ${asked('token')} then
        case when e.state = 'o' then 'busy 0' when e.attempt = 1 and e.fence = ${fence} then concat('granted f 1 ', e.fence) end
      when e.state = 'o' then null
      when ${nowMs} < e.lease_until_ms then concat('busy ', e.lease_until_ms - ${nowMs})
      when ${asked('on_takeover')} = 'refuse' then concat('doubt ', e.attempt)
    end`
}

export const insertedColumns = `scope, id, state, how, token, fingerprint, attempt, version, fence, lease_until_ms, keep_ms,
        tombstone_ms, first_claimed_at_ms, sweep_at_ms, input`

// One claim, in a transaction that the caller has begun and will end. First a plain read: replays, the common case, take no lock
// and write nothing. Only an entry that is to be written is locked, read again and written. The fence is read after the lock.
// Returns 'held' when the key is in another open transaction, 'locked' when its row is locked for now.
// A key that is not there is not looked for with a lock: above READ COMMITTED that would lock the gap, and other keys in it.
// The handlers around the INSERT are for that statement alone: a time-out of any other one is an error.
function claimProcedure(table: string): string {
  const read = `select ${verdictSql((column) => `a_${column}`, 'now_ms', 'null')},
      e.state, e.token, e.how, e.attempt, e.fence, e.lease_until_ms + e.keep_ms
      into answer, e_state, e_token, e_how, e_attempt, e_fence, e_expires_at_ms
      from \`${table}\` e where ${keyed}`
  return /* sql */ `create procedure \`${procedureName(table, 'claim')}\`(
  ${claimParameters}, in is_seen boolean, out answer longtext
) sql security invoker
decide: begin
  declare is_there boolean default true;
  declare is_inserted, is_held boolean default false;
  declare now_us bigint default ${clockSql};
  declare now_ms bigint default now_us div 1000;
  declare e_fence, e_expires_at_ms bigint;
  declare e_state, e_how, granted varbinary(1);
  declare e_token varbinary(36);
  declare e_attempt int;
  declare continue handler for not found set is_there = false;

  ${read};
  if answer is not null then
    leave decide;
  end if;

  if not is_there and is_seen then
    set answer = 'held';
    leave decide;
  elseif not is_there then
    begin
      declare exit handler for 1205 set is_held = true;
      declare exit handler for 1062 set is_inserted = false;
      set innodb_lock_wait_timeout = ${insertWaitS};
      insert into \`${table}\` (
        ${insertedColumns}
      ) values (
        a_scope, an_id, 'r', 'f', a_token, a_fingerprint, 1, a_version, now_us, now_ms + a_lease_ms, a_keep_ms,
        a_tombstone_ms, now_ms, now_ms + a_keep_ms, an_input
      );
      set is_inserted = true;
    end;
    set innodb_lock_wait_timeout = ${waitS};
    if is_inserted then
      set now_us = ${clockSql};
      update \`${table}\` e set e.fence = now_us where ${keyed};
      set answer = concat('granted f 1 ', now_us);
      leave decide;
    elseif is_held then
      set answer = 'held';
      leave decide;
    end if;
  end if;

  set is_there = true;
  ${read} for update skip locked;
  if not is_there then
    set answer = 'locked';
  end if;
  if answer is not null then
    leave decide;
  end if;

  -- Under the row lock: once more to the token that already holds it, or to the next attempt.
  set now_us = ${clockSql};
  if now_ms < e_expires_at_ms and e_token = a_token then
    update \`${table}\` e set e.lease_until_ms = now_ms + a_lease_ms where ${keyed};
    set answer = concat_ws(' ', 'granted', e_how, e_attempt, e_fence);
    leave decide;
  end if;
  set granted = if(now_ms >= e_expires_at_ms, 'f', if(e_state = 'o', 'r', 't'));
  set e_fence = greatest(now_us, e_fence + 1);
  set e_attempt = if(granted = 'f', 1, e_attempt + 1);
  update \`${table}\` e set
    e.state = 'r',
    e.how = granted,
    e.token = a_token,
    e.fingerprint = a_fingerprint,
    e.attempt = e_attempt,
    e.version = a_version,
    e.fence = e_fence,
    e.lease_until_ms = now_ms + a_lease_ms,
    e.keep_ms = a_keep_ms,
    e.tombstone_ms = a_tombstone_ms,
    e.first_claimed_at_ms = if(granted = 'f', now_ms, e.first_claimed_at_ms),
    e.sweep_at_ms = now_ms + a_keep_ms,
    e.input = if(granted = 'f', an_input, coalesce(an_input, e.input)),
    e.outcome = null
  where ${keyed};
  set answer = concat_ws(' ', 'granted', granted, e_attempt, e_fence);
end`
}

/** One claim in its own transaction, and the operation of what is granted if the key is that of one. */
function takeProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'take')}\`(
  ${claimParameters}, in is_operation boolean
) sql security invoker
begin
  declare is_seen boolean default false;
  declare answer longtext;
  ${declareWait};
  ${rollbackOnError};
  ${lookFirst(table)};
  ${beginOwn};
  call \`${procedureName(table, 'claim')}\`(
    ${claimArguments}, is_seen, answer
  );
  ${lookAfter(table)};
  if is_operation and answer like 'granted %' then
    call \`${procedureName(table, 'enlisted')}\`(
      a_scope, an_id, a_lease_ms, a_keep_ms, answer like 'granted f %', substring_index(answer, ' ', -1)
    );
  end if;
  ${commitOwn};
  select answer;
end`
}

// A transaction for the user's effect, at the isolation level of the session. autocommit is off in it: a deadlock in the effect
// ends the transaction, and what an effect writes that goes on nevertheless must not be committed by itself.
function beginProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'begin')}\`(
  ${claimParameters}
) sql security invoker
begin
  declare is_seen boolean default false;
  declare answer longtext;
  ${declareWait};
  declare exit handler for sqlexception begin
    rollback;
    set innodb_lock_wait_timeout = wait_s;
    set autocommit = @onceonly_autocommit;
    resignal;
  end;
  set @onceonly_autocommit = @@autocommit;
  ${lookFirst(table)};
  rollback;
  set autocommit = 0;
  start transaction;
  set innodb_lock_wait_timeout = ${waitS};
  call \`${procedureName(table, 'claim')}\`(
    ${claimArguments}, is_seen, answer
  );
  ${lookAfter(table)};
  set innodb_lock_wait_timeout = wait_s;
  if answer like 'granted %' then
    savepoint onceonly_effect;
  else
    rollback;
    set autocommit = @onceonly_autocommit;
  end if;
  select answer;
end`
}

// In the user's transaction. Outside of a transaction a savepoint is gone at once and cannot be released: nothing is claimed.
function withinProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'within')}\`(
  ${claimParameters}
) sql security invoker
begin
  declare answer longtext;
  ${declareWait};
  declare exit handler for sqlexception begin
    set innodb_lock_wait_timeout = wait_s;
    resignal;
  end;
  savepoint onceonly_here;
  release savepoint onceonly_here;
  set innodb_lock_wait_timeout = ${waitS};
  call \`${procedureName(table, 'claim')}\`(
    ${claimArguments}, false, answer
  );
  set innodb_lock_wait_timeout = wait_s;
  select answer;
end`
}

// Every write after the claim, in a transaction that the caller has begun and will end. 'settle-within' is for the transaction of
// the effect, where an uncommitted entry cannot expire.
// By token and fence: a claim that is delivered once more after its entry was forgotten begins a new life with the old token. A
// release with fence 0 comes from a caller that never received its claim, and hence no fence: its token alone decides.
function writeProcedure(table: string): string {
  const read = `select e.state, e.token, e.fence, e.attempt, e.lease_until_ms + e.keep_ms,
      e.lease_until_ms + e.keep_ms + e.tombstone_ms
      into e_state, e_token, e_fence, e_attempt, e_expires_at_ms, e_forgotten_at_ms
      from \`${table}\` e where ${keyed}`
  return /* sql */ `create procedure \`${procedureName(table, 'write')}\`(
  in verb varchar(16), ${writeParameters}, out answer varchar(16)
) sql security invoker
begin
  declare is_there, is_locked boolean default true;
  declare is_held, is_again boolean;
  declare e_state varbinary(1);
  declare e_token varbinary(36);
  declare e_attempt int;
  declare now_ms, e_fence, e_expires_at_ms, e_forgotten_at_ms bigint;
  declare continue handler for not found set is_there = false;
  ${read} for update skip locked;
  if not is_there then
    set is_there = true, is_locked = false;
    ${read};
  end if;
  set now_ms = ${clockSql} div 1000;
  set is_held = is_there and e_token = a_token and (e_fence = a_fence or a_fence = 0 and verb in ('open', 'forget'))
    and (now_ms < e_expires_at_ms or verb = 'settle-within');
  -- The same call once more, after its first reply was lost.
  set is_again = is_held and (e_state = 's' and verb like 'settle%' or e_state = 'o' and verb in ('open', 'forget'));
  set answer = 'done';
  if is_held and (e_state = 'r' or is_again) and not is_locked then
    -- It is ours, and yet it was passed over. What an advance writes beside it must not come after the entry was forgotten.
    set answer = 'locked';
  elseif is_held and e_state = 'r' and verb in ('settle', 'settle-within') then
    update \`${table}\` e set
      e.state = 's', e.outcome = an_outcome, e.lease_until_ms = now_ms, e.keep_ms = a_duration_ms,
      e.tombstone_ms = a_tombstone_ms, e.sweep_at_ms = least(e.sweep_at_ms, now_ms + a_duration_ms)
    where ${keyed};
  elseif is_held and e_state = 'r' and verb = 'extend' then
    update \`${table}\` e set e.lease_until_ms = now_ms + a_duration_ms where ${keyed};
  elseif is_held and e_state = 'r' and verb = 'forget' and e_attempt = 1 then
    delete from \`${table}\` where scope = a_scope and id = an_id;
    -- Only if there is one: to delete what is not there locks the gap.
    if exists (select 1 from \`${table}_operations\` o where o.scope = a_scope and o.id = an_id) then
      ${forgetOperation(table)};
    end if;
  elseif is_held and e_state = 'r' then
    update \`${table}\` e set
      e.state = 'o', e.lease_until_ms = now_ms, e.sweep_at_ms = least(e.sweep_at_ms, now_ms + e.keep_ms)
    where ${keyed};
  elseif is_again then
    set answer = 'done';
  elseif verb = 'forget' and (not is_there or now_ms >= e_forgotten_at_ms) then
    set answer = 'done'; -- the trace is gone already
  else
    set answer = 'lost';
  end if;
end`
}

/** One write in its own transaction. */
function putProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'put')}\`(
  in verb varchar(16), ${writeParameters}
) sql security invoker
begin
  declare answer varchar(16);
  ${declareWait};
  ${rollbackOnError};
  ${beginOwn};
  call \`${procedureName(table, 'write')}\`(verb, ${writeArguments}, answer);
  ${commitOwn};
  select answer;
end`
}

// Many claims or settles at once, by statements from mysql/batches.ts: three times as fast as one by one in here. READ UNCOMMITTED,
// so that the write sees, and leaves alone, what others have inserted and not committed. When not all was written, `own` says what was,
// before COMMIT: afterwards a person may change or forget it. Then `lookups` answers other claims, after COMMIT, where it sees only what
// is committed. The last row says how many were written (-1: another transaction was in the way), and the fence. Not promised: that a
// fence is greater than one which was given out and rolled back while this very statement was under way.
function batchProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'batch')}\`(
  in expected int, in a_wait_s int, in writes longtext, in own longtext, in lookups longtext
) sql security invoker
begin
  declare written int default 0;
  ${declareWait};
  ${rollbackOnError};
  rollback;
  set transaction isolation level read uncommitted;
  set innodb_lock_wait_timeout = a_wait_s;
  set @onceonly_statement = writes, @onceonly_fence = null;
  prepare onceonly_statement from @onceonly_statement;
  set @onceonly_now_us = ${clockSql};
  start transaction;
  begin
    declare exit handler for 1062, 1205, 1213 set written = -1;
    execute onceonly_statement;
    set written = row_count(), @onceonly_fence = @onceonly_now_us;
  end;
  -- Replays write nothing, and need not look twice.
  if written < expected and (written > 0 or lookups is null) then
    ${execute('own')};
  end if;
  ${commitOwn};
  if written < expected and lookups is not null then
    ${execute('lookups')};
  end if;
  deallocate prepare onceonly_statement;
  set @onceonly_statement = null;
  select concat(written, ' ', @onceonly_now_us) as answer;
end`
}

// The end of what `begin` began. No handler: after an error the procedure does not know what was committed. The caller handles
// it.
// The savepoint of `begin` is gone when something ended the transaction before: the effect (COMMIT, ROLLBACK, DDL), or a deadlock whose
// error the effect caught. What the effect has committed since then cannot be known, also when the claim is gone.
function commitProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'commit')}\`(
  ${writeParameters}
) sql security invoker
begin
  declare answer varchar(16);
  declare is_ended boolean default false;
  begin
    declare exit handler for 1305 set is_ended = true;
    release savepoint onceonly_effect;
  end;
  if is_ended then
    set answer = 'ended';
  else
    call \`${procedureName(table, 'write')}\`('settle-within', ${writeArguments}, answer);
  end if;
  if answer = 'done' then
    commit;
  else
    rollback;
  end if;
  set autocommit = @onceonly_autocommit;
  select answer;
end`
}

function rollbackProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'rollback')}\`() sql security invoker
begin
  rollback;
  set autocommit = coalesce(@onceonly_autocommit, @@autocommit);
end`
}

function settleProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'settle')}\`(
  ${writeParameters}
) sql security invoker
begin
  declare answer varchar(16);
  call \`${procedureName(table, 'write')}\`('settle-within', ${writeArguments}, answer);
  select answer;
end`
}

function sweepProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'sweep')}\`(in at_most int) sql security invoker
begin
  declare now_ms bigint default ${clockSql} div 1000;
  declare seen, tombstoned, forgotten int default 0;
  declare is_over, is_filled boolean default false;
  declare a_scope, an_id varbinary(255);
  declare e_expires_at_ms, e_forgotten_at_ms bigint;
  ${declareWait};
  declare due cursor for select
      e.scope, e.id, e.lease_until_ms + e.keep_ms, e.lease_until_ms + e.keep_ms + e.tombstone_ms,
      e.outcome is not null or e.input is not null
    from \`${table}\` e where e.sweep_at_ms <= now_ms order by e.sweep_at_ms limit at_most for update skip locked;
  declare continue handler for not found set is_over = true;
  ${rollbackOnError};
  ${beginOwn};
  open due;
  sweeping: loop
    fetch due into a_scope, an_id, e_expires_at_ms, e_forgotten_at_ms, is_filled;
    if is_over then
      leave sweeping;
    end if;
    set seen = seen + 1;
    if now_ms >= e_forgotten_at_ms then
      delete from \`${table}\` where scope = a_scope and id = an_id;
      set forgotten = forgotten + 1;
    elseif now_ms >= e_expires_at_ms then
      update \`${table}\` e set e.outcome = null, e.input = null, e.sweep_at_ms = e_forgotten_at_ms where ${keyed};
      set tombstoned = tombstoned + is_filled;
    else
      update \`${table}\` e set e.sweep_at_ms = e_expires_at_ms where ${keyed};
    end if;
  end loop;
  close due;
  ${commitOwn};
  select concat_ws(' ', tombstoned, forgotten, seen = at_most) as answer;
end`
}

/** The state of an entry at that moment, from its times. Null when it is absent. */
export function entryState(nowMs: string): string {
  return `case
      when ${nowMs} >= e.lease_until_ms + e.keep_ms + e.tombstone_ms then null
      when ${nowMs} >= e.lease_until_ms + e.keep_ms then 'tombstone'
      when e.state = 's' then 'settled'
      when e.state = 'o' then 'open'
      when ${nowMs} < e.lease_until_ms then 'running'
      else 'abandoned'
    end`
}

/** An entry as words, read by `entryOf` in mysql/inspection.ts. Null when it is absent. A dash stands for "none". */
export function entryWords(nowMs: string): string {
  const state = entryState(nowMs)
  const bytes = (column: string): string =>
    `if(${nowMs} < e.lease_until_ms + e.keep_ms, coalesce(concat('=', to_base64(e.${column})), '-'), '-')`
  return `concat(${state}, ' ', concat_ws(' ', hex(e.scope), hex(e.id), e.attempt, e.fence, hex(e.fingerprint), e.version,
      e.first_claimed_at_ms, e.lease_until_ms, e.keep_ms, e.tombstone_ms, ${bytes('outcome')}, ${bytes('input')}))`
}

// A manual change, with its audit record. An open entry keeps its last token: a delayed claim of the holder that was fenced off
// is still refused. An entry that is resolved gets another fence: to the holder that was fenced off, this must not look like the
// holder's own settle. 'keep' never shortens.
function mendProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'mend')}\`(
  ${keyParameters}, in an_action varbinary(16), in a_reason longblob, in a_keep_ms bigint, in a_tombstone_ms bigint,
  in an_outcome longblob
) sql security invoker
begin
  declare answer longtext;
  declare e_state varchar(16);
  declare now_us, now_ms bigint;
  declare is_there boolean default true;
  ${declareWait};
  declare continue handler for not found set is_there = false;
  ${rollbackOnError};
  ${beginOwn};
  select 'locked' into answer from \`${table}\` e where ${keyed};
  set is_there = true;
  set now_us = ${clockSql};
  set now_ms = now_us div 1000;
  select ${entryState('now_ms')}, ${entryWords('now_ms')} into e_state, answer
    from \`${table}\` e where ${keyed} for update skip locked;
  if is_there and e_state is not null and (
    an_action = 'forget'
    or an_action = 'release' and e_state in ('running', 'abandoned')
    or an_action = 'resolve' and e_state in ('running', 'abandoned', 'open')
    or an_action = 'keep' and e_state in ('settled', 'open', 'abandoned')
  ) then
    insert into \`${table}_audit\` (scope, id, at_ms, action, reason, state_before)
      values (a_scope, an_id, now_ms, an_action, a_reason, e_state);
    if an_action = 'forget' then
      delete from \`${table}\` where scope = a_scope and id = an_id;
      ${forgetOperation(table)};
    elseif an_action = 'release' then
      update \`${table}\` e set
        e.state = 'o', e.lease_until_ms = now_ms, e.sweep_at_ms = least(e.sweep_at_ms, now_ms + e.keep_ms)
      where ${keyed};
    elseif an_action = 'resolve' then
      update \`${table}\` e set
        e.state = 's', e.outcome = an_outcome, e.fence = greatest(now_us, e.fence + 1), e.lease_until_ms = now_ms,
        e.keep_ms = a_keep_ms, e.tombstone_ms = a_tombstone_ms, e.sweep_at_ms = least(e.sweep_at_ms, now_ms + a_keep_ms)
      where ${keyed};
      -- A worker has nothing left to do for an operation whose result a person found out.
      update \`${table}_operations\` o set
        o.settled = true, o.due_at_ms = null, o.sweep_at_ms = least(o.sweep_at_ms, now_ms + a_keep_ms)
      where ${ofOperation};
    else
      update \`${table}\` e set e.keep_ms = greatest(e.keep_ms, now_ms + a_keep_ms - e.lease_until_ms) where ${keyed};
    end if;
  end if;
  ${commitOwn};
  select answer;
end`
}

function clockProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'clock')}\`() sql security invoker
select ${clockSql} div 1000 as answer`
}

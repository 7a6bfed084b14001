// The procedures of operations in MySQL. Invariants: the records of an operation are written under the row lock of its entry, in the
// transaction of the procedure that decides about the entry. Locks are taken in the order entry, operation, steps. A procedure that
// only reads begins a transaction as well, as an old snapshot may be open on the connection.

import { procedureName } from './names.ts'
import type { OperationProcedureName } from './names.ts'
import {
  beginOwn,
  clockSql,
  commitOwn,
  declareWait,
  execute,
  forgetOperation,
  keyed,
  keyParameters,
  ofOperation,
  rollbackOnError,
  waitS,
  writeArguments,
  writeParameters,
} from './pieces.sql.ts'

export const operationDecisions: Readonly<Record<OperationProcedureName, (table: string) => string>> = {
  enlisted: enlistedProcedure,
  advance: advanceProcedure,
  advanced: advancedProcedure,
  advances: advancesProcedure,
  begin_step: beginStepProcedure,
  commit_step: commitStepProcedure,
  ledger: ledgerProcedure,
  due: dueProcedure,
  dismiss: dismissProcedure,
  cancel: cancelProcedure,
  unfinished: unfinishedProcedure,
  sweep_steps: sweepStepsProcedure,
}

// The operation of an entry that was just granted. A claim that is only repeated has the fence of its life, and must not clear what
// was recorded since. A parked operation (not due, not settled) stays parked.
function enlistedProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'enlisted')}\`(
  ${keyParameters}, in a_lease_ms bigint, in a_keep_ms bigint, in is_fresh boolean, in a_fence bigint
) sql security invoker
begin
  declare is_there boolean default true;
  declare now_ms bigint default ${clockSql} div 1000;
  declare o_life_fence, o_due_at_ms bigint;
  declare o_settled boolean;
  declare continue handler for not found set is_there = false;
  select o.life_fence, o.due_at_ms, o.settled into o_life_fence, o_due_at_ms, o_settled
    from \`${table}_operations\` o where ${ofOperation} for update;
  if is_there and (o_life_fence = a_fence or not is_fresh) then
    update \`${table}_operations\` o set
      o.due_at_ms = if(o_due_at_ms is null and not o_settled, null, now_ms + a_lease_ms), o.settled = false
    where ${ofOperation};
  else
    ${forgetOperation(table)};
    insert into \`${table}_operations\` (scope, id, life_fence, due_at_ms, sweep_at_ms, settled)
      values (a_scope, an_id, a_fence, now_ms + a_lease_ms, now_ms + a_lease_ms + a_keep_ms, false);
  end if;
end`
}

const advanceParameters = `${writeParameters}, in verb varchar(16), in an_after_ms bigint, in records longtext`
const advanceArguments = `${writeArguments}, verb, an_after_ms, records`

// One advance, in a transaction that the caller has begun and will end. `records` is the statement that writes them, or null: as
// text they need no limit of their number or size.
function advancedProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'advanced')}\`(
  ${advanceParameters}, out answer varchar(16)
) sql security invoker
begin
  declare now_ms bigint default ${clockSql} div 1000;
  declare is_cancelled boolean;
  call \`${procedureName(table, 'write')}\`(verb, ${writeArguments}, answer);
  if answer = 'done' then
    if records is not null then
      set @onceonly_now_ms = now_ms;
      ${execute('records')};
      deallocate prepare onceonly_statement;
      set @onceonly_statement = null;
    end if;
    if verb <> 'extend' then
      update \`${table}_operations\` o set
        o.settled = (verb = 'settle'), o.due_at_ms = if(verb = 'settle', null, now_ms + an_after_ms),
        o.sweep_at_ms = if(verb = 'settle', least(o.sweep_at_ms, now_ms + a_duration_ms), o.sweep_at_ms)
      where ${ofOperation};
    end if;
    select count(*) into is_cancelled
      from \`${table}_operations\` o where ${ofOperation} and o.cancel_reason is not null;
    if is_cancelled then
      set answer = 'cancelled';
    end if;
  end if;
end`
}

/** One advance in its own transaction. */
function advanceProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'advance')}\`(
  ${advanceParameters}
) sql security invoker
begin
  declare answer varchar(16);
  ${declareWait};
  ${rollbackOnError};
  ${beginOwn};
  call \`${procedureName(table, 'advanced')}\`(${advanceArguments}, answer);
  ${commitOwn};
  select answer;
end`
}

// Many advances that go on at once, by statements from mysql/advances.ts, in this order: which of them hold their entries (this
// locks the rows), their leases, their records, which of them are to be cancelled.
function advancesProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'advances')}\`(
  in held longtext, in leases longtext, in records longtext, in answers longtext
) sql security invoker
begin
  ${declareWait};
  ${rollbackOnError};
  ${beginOwn};
  set @onceonly_now_ms = ${clockSql} div 1000, @onceonly_held = null;
  ${execute('held')};
  if @onceonly_held is not null then
    ${execute('leases')};
    if records is not null then
      ${execute('records')};
    end if;
    ${execute('answers')};
  end if;
  deallocate prepare onceonly_statement;
  set @onceonly_statement = null;
  ${commitOwn};
end`
}

// A transaction for a step, at the isolation level of the session and with autocommit off, as in `begin`. The fence is checked
// before it begins: at SERIALIZABLE a read inside would keep the heartbeat out until its end. The savepoint is gone when
// something ends the transaction before its commit (a deadlock): what the step wrote after that must not be committed alone.
function beginStepProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'begin_step')}\`(
  ${keyParameters}, in a_token varbinary(36), in a_fence bigint
) sql security invoker
begin
  declare is_held boolean;
  declare now_ms bigint default ${clockSql} div 1000;
  ${declareWait};
  ${rollbackOnError};
  ${beginOwn};
  select count(*) into is_held from \`${table}\` e
    where ${keyed} and e.token = a_token and e.fence = a_fence and e.state = 'r' and now_ms < e.lease_until_ms + e.keep_ms;
  ${commitOwn};
  if is_held then
    set @onceonly_autocommit = @@autocommit;
    set autocommit = 0;
    start transaction;
    savepoint onceonly_step;
  end if;
  select if(is_held, 'held', 'lost') as answer;
end`
}

// With MariaDB's snapshot isolation (the default from 11.6) a row that was changed since the step's first read cannot be locked,
// and the heartbeat changes the entry: every long step would be a conflict. The server has checked what the step itself wrote when
// the step wrote it, so snapshot isolation is off for what the store writes after it. Older servers do not know the setting.
const snapshotOff = `begin
    declare exit handler for 1193 do 0;
    ${execute("'set @onceonly_snapshot = @@innodb_snapshot_isolation, innodb_snapshot_isolation = 0'")};
  end`
const snapshotBack = `if @onceonly_snapshot then
      ${execute("'set innodb_snapshot_isolation = 1'")};
    end if`

// The end of what begin_step began. A heartbeat may have the row for a moment, so the procedure waits for the row and locks it
// before it checks the fence: afterwards "locked" can only mean that the row is gone. After an error the caller handles what is
// left, as in `commit`.
function commitStepProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'commit_step')}\`(
  ${advanceParameters}
) sql security invoker
begin
  declare answer varchar(16);
  declare is_there boolean;
  ${declareWait};
  declare exit handler for sqlexception begin
    set innodb_lock_wait_timeout = wait_s;
    ${snapshotBack};
    resignal;
  end;
  set @onceonly_snapshot = 0;
  release savepoint onceonly_step;
  ${snapshotOff};
  set innodb_lock_wait_timeout = ${waitS};
  select count(*) into is_there from \`${table}\` e where ${keyed} for update;
  call \`${procedureName(table, 'advanced')}\`(${advanceArguments}, answer);
  if answer in ('done', 'cancelled') then
    commit;
  else
    rollback;
    set answer = 'lost';
  end if;
  ${snapshotBack};
  set innodb_lock_wait_timeout = wait_s;
  set autocommit = @onceonly_autocommit;
  select answer;
end`
}

// One SELECT, so that the operation and its records are of one moment. Returns a row without a name when nothing is recorded.
function ledgerProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'ledger')}\`(${keyParameters}) sql security invoker
begin
  declare now_ms bigint default ${clockSql} div 1000;
  ${declareWait};
  ${rollbackOnError};
  ${beginOwn};
  select o.due_at_ms as due, hex(o.cancel_reason) as cancel, hex(s.name) as name, s.revision as revision,
      s.at_ms as at_ms, to_base64(s.content) as content
    from \`${table}_operations\` o
    join \`${table}\` e on e.scope = o.scope and e.id = o.id
    left join \`${table}_steps\` s on s.scope = o.scope and s.id = o.id
    where ${ofOperation} and now_ms < e.lease_until_ms + e.keep_ms;
  ${commitOwn};
end`
}

// In the order of their dues, and not due again for a_hold_ms: workers that ask at once pass over each other's rows. By any other
// index than due_at, rows beyond the limit would be locked as well.
function dueProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'due')}\`(
  in a_scope varbinary(255), in at_most int, in a_hold_ms bigint
) sql security invoker
begin
  declare now_ms bigint default ${clockSql} div 1000;
  declare is_over boolean default false;
  declare an_id varbinary(255);
  declare found longtext default '';
  ${declareWait};
  declare due cursor for select o.id from \`${table}_operations\` o force index (due_at)
    where o.scope = a_scope and o.due_at_ms <= now_ms order by o.due_at_ms limit at_most for update skip locked;
  declare continue handler for not found set is_over = true;
  ${rollbackOnError};
  ${beginOwn};
  open due;
  holding: loop
    fetch due into an_id;
    if is_over then
      leave holding;
    end if;
    update \`${table}_operations\` o set o.due_at_ms = now_ms + a_hold_ms where ${ofOperation};
    set found = concat(found, ' ', hex(an_id));
  end loop;
  close due;
  ${commitOwn};
  select concat(now_ms + a_hold_ms, found) as answer;
end`
}

function dismissProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'dismiss')}\`(
  ${keyParameters}, in a_held_until_ms bigint
) sql security invoker
begin
  declare now_ms bigint default ${clockSql} div 1000;
  ${declareWait};
  ${rollbackOnError};
  ${beginOwn};
  update \`${table}_operations\` o set
      o.due_at_ms = null, o.settled = true, o.sweep_at_ms = least(o.sweep_at_ms, now_ms)
    where ${ofOperation} and o.due_at_ms = a_held_until_ms;
  ${commitOwn};
end`
}

// Returns the count of rows that are there, not of rows that the UPDATE changed: the same wish may come twice in a millisecond.
function cancelProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'cancel')}\`(
  ${keyParameters}, in a_reason longblob
) sql security invoker
begin
  declare now_ms bigint default ${clockSql} div 1000;
  ${declareWait};
  ${rollbackOnError};
  ${beginOwn};
  select count(*) as answer from \`${table}_operations\` o where ${ofOperation} and not o.settled for update;
  update \`${table}_operations\` o set o.cancel_reason = a_reason, o.due_at_ms = now_ms
    where ${ofOperation} and not o.settled;
  ${commitOwn};
end`
}

function unfinishedProcedure(table: string): string {
  return /* sql */ `create procedure \`${procedureName(table, 'unfinished')}\`(
  in a_scope varbinary(255), in an_after varbinary(255), in at_most int
) sql security invoker
begin
  ${declareWait};
  ${rollbackOnError};
  ${beginOwn};
  select hex(o.id) as answer from \`${table}_operations\` o force index (unfinished)
    where o.scope = a_scope and o.settled = false and o.id > an_after order by o.id limit at_most;
  ${commitOwn};
end`
}

// Deletes the records of entries that have expired. The others are looked at again when their entry may have expired. An entry
// whose row is locked may just be getting another attempt, which needs the records: it is left for the next sweep.
function sweepStepsProcedure(table: string): string {
  const read = `select e.lease_until_ms + e.keep_ms into e_expires_at_ms from \`${table}\` e where ${keyed}`
  return /* sql */ `create procedure \`${procedureName(table, 'sweep_steps')}\`(in at_most int) sql security invoker
begin
  declare now_ms bigint default ${clockSql} div 1000;
  declare seen, left_over int default 0;
  declare is_over, is_locked boolean default false;
  declare a_scope, an_id varbinary(255);
  declare e_expires_at_ms bigint;
  ${declareWait};
  declare expired cursor for select o.scope, o.id from \`${table}_operations\` o force index (sweep_at)
    where o.sweep_at_ms <= now_ms order by o.sweep_at_ms limit at_most for update skip locked;
  declare continue handler for not found set is_over = true;
  ${rollbackOnError};
  ${beginOwn};
  open expired;
  sweeping: loop
    fetch expired into a_scope, an_id;
    if is_over then
      leave sweeping;
    end if;
    set seen = seen + 1, e_expires_at_ms = null;
    ${read} for update skip locked;
    set is_locked = false;
    if is_over then
      select count(*) into is_locked from \`${table}\` e where ${keyed};
    end if;
    set is_over = false;
    if is_locked then
      set left_over = left_over + 1;
    elseif e_expires_at_ms is null or e_expires_at_ms <= now_ms then
      ${forgetOperation(table)};
    else
      update \`${table}_operations\` o set o.sweep_at_ms = e_expires_at_ms where ${ofOperation};
    end if;
  end loop;
  close expired;
  ${commitOwn};
  select seen = at_most and left_over < seen as answer;
end`
}

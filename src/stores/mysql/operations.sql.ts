// The tables and the procedures of operations in MySQL. Invariants: what is recorded of an operation is written under the row lock
// of its entry, in the transaction of the procedure that decides about the entry; locks are taken in the order entry, operation,
// steps; a procedure that reads begins a transaction as well, as an old snapshot may be open on the connection.

import {
  beginOwn,
  claimArguments,
  claimParameters,
  clockSql,
  declareWait,
  keyed,
  lookAfter,
  lookFirst,
  procedureName,
  rollbackOnError,
  waitS,
  writeArguments,
  writeParameters,
} from './names.ts'
import type { OperationProcedureName } from './names.ts'

export const operationProcedures: Readonly<Record<OperationProcedureName, (table: string) => string>> = {
  enlist: enlistProcedure,
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

const unfinishedKey = 'key unfinished (scope, settled, id)'

// Settled operations are in the index as well, as null, which no look-up meets. sweep_at_ms is when a sweep should see whether
// the entry is over; a settle that is to be kept for less brings it forward.
export function operationTables(table: string): string[] {
  return [
    `create table if not exists \`${table}_operations\` (
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
) engine = InnoDB`,
    `create table if not exists \`${table}_steps\` (
  scope varbinary(255) not null,
  id varbinary(255) not null,
  name varbinary(255) not null,
  revision bigint not null,
  at_ms bigint not null,
  content longblob not null,
  primary key (scope, id, name)
) engine = InnoDB`,
    ...unfinishedIndex(table),
  ]
}

// For a table that was made without it: whoever makes a new one needs no right to alter it. MySQL has no ADD KEY IF NOT EXISTS,
// and conditions only in procedures.
function unfinishedIndex(table: string): string[] {
  const procedure = `\`${procedureName(table, 'index')}\``
  return [
    `drop procedure if exists ${procedure}`,
    `create procedure ${procedure}() sql security invoker
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

const ofOperation = 'o.scope = a_scope and o.id = an_id'
const keyParameters = 'in a_scope varbinary(255), in an_id varbinary(255)'

/** Deletes what is recorded of an operation. */
export function forgetOperation(table: string): string {
  return `delete from \`${table}_steps\` where scope = a_scope and id = an_id;
      delete from \`${table}_operations\` where scope = a_scope and id = an_id`
}

/** A claim as `take`, and the operation of what is granted. */
function enlistProcedure(table: string): string {
  return `(${claimParameters}) sql security invoker
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
  if answer like 'granted %' then
    call \`${procedureName(table, 'enlisted')}\`(
      a_scope, an_id, a_lease_ms, a_keep_ms, answer like 'granted f %', substring_index(answer, ' ', -1)
    );
  end if;
  commit;
  set innodb_lock_wait_timeout = wait_s;
  select answer;
end`
}

// A claim that is only repeated has the fence of its life, and must not clear what was recorded since. What is parked (not due,
// not settled) stays so.
function enlistedProcedure(table: string): string {
  return `(
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

// `records` is the statement that writes them, or null: as text they need no limit of their number or size.
function advancedProcedure(table: string): string {
  return `(${advanceParameters}, out answer varchar(16)) sql security invoker
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

/** One advance in a transaction of its own. */
function advanceProcedure(table: string): string {
  return `(${advanceParameters}) sql security invoker
begin
  declare answer varchar(16);
  ${declareWait};
  ${rollbackOnError};
  ${beginOwn};
  call \`${procedureName(table, 'advanced')}\`(${advanceArguments}, answer);
  commit;
  set innodb_lock_wait_timeout = wait_s;
  select answer;
end`
}

const execute = (statement: string): string => `set @onceonly_statement = ${statement};
    prepare onceonly_statement from @onceonly_statement;
    execute onceonly_statement`

// Many that go on at once, by statements from mysql/statements.ts: which of them hold their entries, with the rows locked; their
// leases; their records; who wants them cancelled.
function advancesProcedure(): string {
  return `(in held longtext, in leases longtext, in records longtext, in answers longtext) sql security invoker
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
  commit;
  set innodb_lock_wait_timeout = wait_s;
end`
}

// A transaction for a step, at the isolation level of the session and with autocommit off, as in `begin`. The fence is looked at
// before it begins: at SERIALIZABLE a read inside would keep the heartbeat out until its end. The savepoint is gone when
// something in between ends the transaction (a deadlock): what the step wrote after that must not be committed alone.
function beginStepProcedure(table: string): string {
  return `(${keyParameters}, in a_token varbinary(36), in a_fence bigint) sql security invoker
begin
  declare is_held boolean;
  declare now_ms bigint default ${clockSql} div 1000;
  ${declareWait};
  ${rollbackOnError};
  ${beginOwn};
  select count(*) into is_held from \`${table}\` e
    where ${keyed} and e.token = a_token and e.fence = a_fence and e.state = 'r' and now_ms < e.lease_until_ms + e.keep_ms;
  commit;
  set innodb_lock_wait_timeout = wait_s;
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
// and the heartbeat changes the entry: every long step would be a conflict. What the step itself wrote was checked when it was
// written; so it is off for what we write after it. Servers without the setting do not know its name.
const snapshotOff = `begin
    declare exit handler for 1193 do 0;
    ${execute("'set @onceonly_snapshot = @@innodb_snapshot_isolation, innodb_snapshot_isolation = 0'")};
  end`
const snapshotBack = `if @onceonly_snapshot then
      ${execute("'set innodb_snapshot_isolation = 1'")};
    end if`

// The end of what begin_step began. A heartbeat may have the row for a moment, so it is waited for, and locked before it is asked
// whose it is: afterwards "locked" can only mean that it is gone. After an error the caller sees to what is left, as in `commit`.
function commitStepProcedure(table: string): string {
  return `(${advanceParameters}) sql security invoker
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

// One SELECT, so that the operation and its records are of one moment. A row without a name when nothing is recorded.
function ledgerProcedure(table: string): string {
  return ownTransaction(
    keyParameters,
    `select o.due_at_ms as due, hex(o.cancel_reason) as cancel, hex(s.name) as name, s.revision as revision,
      s.at_ms as at_ms, to_base64(s.content) as content
    from \`${table}_operations\` o
    join \`${table}\` e on e.scope = o.scope and e.id = o.id
    left join \`${table}_steps\` s on s.scope = o.scope and s.id = o.id
    where ${ofOperation} and now_ms < e.lease_until_ms + e.keep_ms`,
  )
}

// In the order of their dues, and not due again for a while: workers that ask at once pass over each other's rows. By any other
// index than this one, rows beyond the limit would be locked, too.
function dueProcedure(table: string): string {
  return `(in a_scope varbinary(255), in at_most int, in a_hold_ms bigint) sql security invoker
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
  commit;
  set innodb_lock_wait_timeout = wait_s;
  select concat(now_ms + a_hold_ms, found) as answer;
end`
}

function dismissProcedure(table: string): string {
  return ownTransaction(
    `${keyParameters}, in a_held_until_ms bigint`,
    `update \`${table}_operations\` o set
      o.due_at_ms = null, o.settled = true, o.sweep_at_ms = least(o.sweep_at_ms, now_ms)
    where ${ofOperation} and o.due_at_ms = a_held_until_ms`,
  )
}

// The count is of rows that are there, not of rows that the UPDATE changed: the same wish may come twice in a millisecond.
function cancelProcedure(table: string): string {
  return ownTransaction(
    `${keyParameters}, in a_reason longblob`,
    `select count(*) as answer from \`${table}_operations\` o where ${ofOperation} and not o.settled for update;
  update \`${table}_operations\` o set o.cancel_reason = a_reason, o.due_at_ms = now_ms
    where ${ofOperation} and not o.settled`,
  )
}

function unfinishedProcedure(table: string): string {
  return ownTransaction(
    `in a_scope varbinary(255), in an_after varbinary(255), in at_most int`,
    `select hex(o.id) as answer from \`${table}_operations\` o force index (unfinished)
    where o.scope = a_scope and o.settled = false and o.id > an_after order by o.id limit at_most`,
  )
}

function ownTransaction(parameters: string, statements: string): string {
  return `(${parameters}) sql security invoker
begin
  declare now_ms bigint default ${clockSql} div 1000;
  ${declareWait};
  ${rollbackOnError};
  ${beginOwn};
  ${statements};
  commit;
  set innodb_lock_wait_timeout = wait_s;
end`
}

// What is due to be looked at and whose entry is over goes; the others are looked at again when their entry may be over. An entry
// that somebody has locked may just be getting another attempt, which needs the records: it is left for the next sweep.
function sweepStepsProcedure(table: string): string {
  const read = `select e.lease_until_ms + e.keep_ms into e_expires_at_ms from \`${table}\` e where ${keyed}`
  return `(in at_most int) sql security invoker
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
  commit;
  set innodb_lock_wait_timeout = wait_s;
  select seen = at_most and left_over < seen as answer;
end`
}

// What things are called in the database, and the pieces that all procedures share. Names: `a_…` is what was asked, `e_…` what
// the entry holds, `o_…` what its operation does.

/** The procedures carry it in their names: during a rolling deployment old and new code each find their own. */
const schemaVersion = 2

export type ProcedureName =
  | 'claim'
  | 'take'
  | 'begin'
  | 'within'
  | 'write'
  | 'put'
  | 'batch'
  | 'commit'
  | 'rollback'
  | 'settle'
  | 'sweep'
  | 'mend'
  | 'clock'
  | OperationProcedureName

export type OperationProcedureName =
  | 'enlist'
  | 'enlisted'
  | 'advance'
  | 'advanced'
  | 'advances'
  | 'begin_step'
  | 'commit_step'
  | 'ledger'
  | 'due'
  | 'dismiss'
  | 'cancel'
  | 'unfinished'
  | 'sweep_steps'

/** A table's name has 48 characters at the most and an identifier 64: that leaves twelve for the name here. */
export function procedureName(table: string, name: ProcedureName | 'index'): string {
  return `${table}_${name}_v${schemaVersion}`
}

/** Microseconds since 1970. In a procedure each statement reads it anew; UTC, as local time repeats an hour each autumn. */
export const clockSql: string = `timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))`

/**
 * For an INSERT, which has no SKIP LOCKED. MariaDB can forbid the wait for a lock; MySQL waits a second at least. What does skip
 * is not to be forbidden to wait: MariaDB 10.11 then answers a locked row with error 1180.
 */
export const insertWaitS: string = `if(version() like '%MariaDB%', 0, 1)`

/** For everything else, which waits for nothing that lasts. */
export const waitS: number = 1

export const keyed: string = 'e.scope = a_scope and e.id = an_id'

export const claimParameters: string = `in a_scope varbinary(255), in an_id varbinary(255), in a_token varbinary(36),
  in a_fingerprint varbinary(64), in a_lease_ms bigint, in a_keep_ms bigint, in a_tombstone_ms bigint, in a_version int,
  in a_on_takeover varchar(8), in a_on_expired varchar(8), in an_input longblob`

export const claimArguments: string = `a_scope, an_id, a_token, a_fingerprint, a_lease_ms, a_keep_ms, a_tombstone_ms, a_version,
    a_on_takeover, a_on_expired, an_input`

export const writeParameters: string = `in a_scope varbinary(255), in an_id varbinary(255), in a_token varbinary(36), in a_fence bigint,
  in a_duration_ms bigint, in a_tombstone_ms bigint, in an_outcome longblob`
export const writeArguments: string = `a_scope, an_id, a_token, a_fence, a_duration_ms, a_tombstone_ms, an_outcome`

// ROLLBACK first: with autocommit off, even a read has left a transaction open, and its level could not be changed.
// READ COMMITTED, as above it locks reach over keys that are not there.
export const beginOwn: string = `rollback;
  set transaction isolation level read committed;
  start transaction;
  set innodb_lock_wait_timeout = ${waitS}`

export const rollbackOnError: string = `declare exit handler for sqlexception begin
    rollback;
    set innodb_lock_wait_timeout = wait_s;
    resignal;
  end`

export const declareWait: string = `declare wait_s int default @@innodb_lock_wait_timeout`

// An INSERT waits for whoever has inserted the same key and not committed. Where it cannot be told not to, a look at READ
// UNCOMMITTED, which sees such a row and locks nothing, comes before; only a race of microseconds is left to wait for. (A SELECT
// of its own: inside of SET it would lock, and wait.)
export function lookFirst(table: string): string {
  return `if ${insertWaitS} > 0 then
    rollback;
    set transaction isolation level read uncommitted;
    start transaction;
    select count(*) into is_seen from \`${table}\` e where ${keyed};
  end if`
}

// An INSERT that may not wait is refused, too, when somebody has the gap beside its key (InnoDB hands a row's lock on to the gap
// when a page is split, above READ COMMITTED). Then nobody has the key: the same look as above tells, and it is asked for again.
export function lookAfter(table: string): string {
  return `if answer = 'held' and ${insertWaitS} = 0 then
    rollback;
    set transaction isolation level read uncommitted;
    start transaction;
    select count(*) into is_seen from \`${table}\` e where ${keyed};
    if not is_seen then
      set answer = 'locked';
    end if;
  end if`
}

// The pieces that several procedures share. Names in all of them: `a_…` is what the caller asked, `e_…` what the entry holds, `o_…`
// what its operation holds, `wait_s` the session's innodb_lock_wait_timeout.

/** Microseconds since 1970. In a procedure each statement reads it anew. UTC, as local time repeats an hour each autumn. */
export const clockSql: string = `timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))`

/**
 * For an INSERT, which has no SKIP LOCKED. MariaDB can forbid the wait for a lock. MySQL waits for at least a second. A statement
 * with SKIP LOCKED must be allowed to wait: MariaDB 10.11 otherwise reports a locked row as error 1180.
 */
export const insertWaitS: string = `if(version() like '%MariaDB%', 0, 1)`

/** For all other statements, which wait for no lock that lasts. */
export const waitS: number = 1

export const keyed: string = 'e.scope = a_scope and e.id = an_id'
export const ofOperation: string = 'o.scope = a_scope and o.id = an_id'

export const keyParameters: string = 'in a_scope varbinary(255), in an_id varbinary(255)'

export const claimParameters: string = `${keyParameters}, in a_token varbinary(36),
  in a_fingerprint varbinary(64), in a_lease_ms bigint, in a_keep_ms bigint, in a_tombstone_ms bigint, in a_version int,
  in a_on_takeover varchar(8), in a_on_expired varchar(8), in an_input longblob`

export const claimArguments: string = `a_scope, an_id, a_token, a_fingerprint, a_lease_ms, a_keep_ms, a_tombstone_ms, a_version,
    a_on_takeover, a_on_expired, an_input`

export const writeParameters: string = `${keyParameters}, in a_token varbinary(36), in a_fence bigint,
  in a_duration_ms bigint, in a_tombstone_ms bigint, in an_outcome longblob`

export const writeArguments: string = `a_scope, an_id, a_token, a_fence, a_duration_ms, a_tombstone_ms, an_outcome`

export const declareWait: string = `declare wait_s int default @@innodb_lock_wait_timeout`

export const rollbackOnError: string = `declare exit handler for sqlexception begin
    rollback;
    set innodb_lock_wait_timeout = wait_s;
    resignal;
  end`

// ROLLBACK first: with autocommit off, even a read has left a transaction open, and its level could not be changed.
// READ COMMITTED, as above it locks reach over keys that are not there.
export const beginOwn: string = `rollback;
  set transaction isolation level read committed;
  start transaction;
  set innodb_lock_wait_timeout = ${waitS}`

export const commitOwn: string = `commit;
  set innodb_lock_wait_timeout = wait_s`

// An INSERT waits for a transaction that has inserted the same key and not committed. Where the server cannot forbid the wait, a
// look at READ UNCOMMITTED, which sees such a row and locks nothing, comes first. Only a race of microseconds is left to wait for.
// (A separate SELECT: inside of SET it would lock, and wait.)
export function lookFirst(table: string): string {
  return `if ${insertWaitS} > 0 then
    rollback;
    set transaction isolation level read uncommitted;
    start transaction;
    select count(*) into is_seen from \`${table}\` e where ${keyed};
  end if`
}

// The server also refuses an INSERT that may not wait when another transaction holds the gap beside its key (InnoDB hands a row's
// lock on to the gap when a page is split, above READ COMMITTED). Then no transaction has the key. The same look as above shows
// this, and the caller asks again.
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

/** Deletes what is recorded of an operation. */
export function forgetOperation(table: string): string {
  return `delete from \`${table}_steps\` where scope = a_scope and id = an_id;
      delete from \`${table}_operations\` where scope = a_scope and id = an_id`
}

/** Carries out a statement that is text. */
export function execute(statement: string): string {
  return `set @onceonly_statement = ${statement};
    prepare onceonly_statement from @onceonly_statement;
    execute onceonly_statement`
}

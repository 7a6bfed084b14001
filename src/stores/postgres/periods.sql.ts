// Retention at scale: entries that are forgotten in the same period lie in one table, and the table is emptied at once. The
// tables are a ring of partitions behind the one name. What is kept for longer than the ring reaches lies in the table beside
// it (slot 0), which is swept row by row. Without `periodMs` that table is all there is, and nothing here has to be read: an entry
// then has slot 0, `periodFor` finds no row, and `stayOrMove` only sets sweep_at_ms.
// Invariant: no entry in a table of the ring outlives the `sweep_at_ms` of its row, and none of those is later than the end of
// the table's period. So a table whose period has ended holds nothing that a caller must learn of.

import { clockMs, functionName, lockNumber, qualified, schemaComment } from './names.ts'
import type { SchemaNames } from './names.ts'

/**
 * A look-up is one descent in each table, so there should be few. With five, the ring reaches over four periods at any time,
 * keeps entries a quarter longer than they need, and a look-up stays below the 16 locks that a session has without going to
 * the server's shared lock table.
 */
const ringSize = 5

const ring: readonly number[] = Array.from({ length: ringSize }, (_, index) => index + 1)

/** Where an entry goes that is forgotten at this time: the table whose period ends first after it. No row: to slot 0. */
export function periodFor(names: SchemaNames, forgottenAtMs: string): string {
  return `(select p.slot, p.ends_at_ms from ${qualified(names, '_periods')} p
        where p.ends_at_ms >= ${forgottenAtMs} order by p.ends_at_ms limit 1)`
}

/**
 * For the variable `entry`, whose times have changed: sets its slot and sweep_at_ms so that the invariant holds. It moves only
 * when it would outlive the end of its period. That is rare, as the period was chosen for a whole lease and the retention after
 * it. In slot 0, sweep_at_ms is when a sweep should look at it, never later than its expiry.
 */
export function stayOrMove(names: SchemaNames): string {
  return `if entry.slot = 0 then
    entry.sweep_at_ms := least(entry.sweep_at_ms, entry.lease_until_ms + entry.keep_ms);
  elsif entry.lease_until_ms + entry.keep_ms + entry.tombstone_ms > entry.sweep_at_ms then
    select h.slot, h.ends_at_ms into entry.slot, entry.sweep_at_ms
      from ${periodFor(names, 'entry.lease_until_ms + entry.keep_ms + entry.tombstone_ms')} h;
    if not found then
      entry.slot := 0;
      entry.sweep_at_ms := entry.lease_until_ms + entry.keep_ms;
    end if;
  end if;`
}

// Above READ COMMITTED a snapshot may be older than the lock on the key, and a look-up does not see what was inserted since. Only a
// unique index does, and each table has its own. So the key is put into every table for a moment. Where it is there already,
// PostgreSQL raises a serialization failure, and the transaction runs again.
export function probeFunction(names: SchemaNames): string {
  const [name, periods] = [qualified(names), qualified(names, '_periods')]
  return /* sql */ `create or replace function ${functionName(names, 'probe')}(a_scope text, an_id text)
returns void language plpgsql as $$
begin
  insert into ${name} (fence, lease_until_ms, keep_ms, tombstone_ms, sweep_at_ms, attempt, version, state, how, slot, token,
      fingerprint, scope, id)
    select 0, 0, 0, 0, 0, 1, 1, 'r', 'f', each.slot, '00000000-0000-0000-0000-000000000000', '', a_scope, an_id
    from (select 0 as slot union all select p.slot from ${periods} p) each
  on conflict do nothing;
  delete from ${name} e where e.scope = a_scope and e.id = an_id;
end $$;`
}

// TRUNCATE needs the table for itself for a moment, and every other statement waits behind it meanwhile. 50 ms are more than our
// own statements take, and bearable when an open transaction of others is in the way. Then the next sweep tries again, and what
// would have gone to this table goes to slot 0 until a sweep succeeds. One sweep at a time, so that no two periods get the same
// end. Ends only grow: an insert that chose the table before it was emptied is as good after that.
export function rotateFunction(names: SchemaNames): string {
  const periods = qualified(names, '_periods')
  const tables = ring.map((slot) => `'${qualified(names, `_${slot}`)}'`)
  return /* sql */ `create or replace function ${functionName(names, 'rotate')}()
returns boolean language plpgsql set lock_timeout = '50ms' as $$
declare
  now_ms bigint := ${clockMs};
  due ${periods};
  due_table text;
begin
  select * into due from ${periods} p where p.ends_at_ms <= now_ms order by p.ends_at_ms limit 1;
  if not found or not pg_try_advisory_xact_lock(${lockNumber(names, "''", "''")}) then
    return false;
  end if;
  select * into due from ${periods} p where p.ends_at_ms <= now_ms order by p.ends_at_ms limit 1;
  if not found then
    return false; -- another sweep was here in between
  end if;
  due_table := (array[${tables.join(', ')}])[due.slot];
  begin
    if pg_relation_size(due_table::regclass) > 0 then
      execute 'truncate ' || due_table;
    end if;
  exception when lock_not_available then
    return false;
  end;
  update ${periods} p
    set ends_at_ms = (greatest((select max(q.ends_at_ms) from ${periods} q), now_ms) / due.period_ms + 1) * due.period_ms
    where p.slot = due.slot;
  return true;
end $$;`
}

/**
 * Puts the table into periods, in steps that each are one transaction. No entry is copied, and no claim waits for more than a
 * moment. A table that is in periods already only gets the length of the next ones.
 */
export function periodsSteps(names: SchemaNames, periodMs: number): readonly string[] {
  const name = qualified(names)
  const [slotCheck, rest] = [`"${names.table}_slot"`, qualified(names, '_rest')]
  return [
    // The constraint that the partition needs is validated beforehand, while others work. Otherwise it would lock them out.
    unlessDone(
      names,
      `alter table ${name} drop constraint if exists ${slotCheck};
  alter table ${name} add constraint ${slotCheck} check (slot = 0) not valid;`,
    ),
    unlessDone(names, `alter table ${name} validate constraint ${slotCheck};`),
    `${unlessDone(
      names,
      `alter table ${name} rename to "${names.table}_rest";
  create table ${name} (like ${rest} including defaults) partition by list (slot);
  alter table ${name} attach partition ${rest} for values in (0);
  alter table ${rest} drop constraint ${slotCheck};
  comment on table ${name} is '${schemaComment}';
  ${ring.map((slot) => ringTable(names, slot)).join('\n  ')}
  ${sameGrants(names)}`,
    )}
${startPeriods(names, periodMs)}`,
  ]
}

export function periodsComment(periodMs: number): string {
  return `onceonly periods of ${periodMs} ms`
}

function unlessDone(names: SchemaNames, statements: string): string {
  return `do $$
declare
  granted record;
begin
  if (select c.relkind from pg_class c where c.oid = '${qualified(names)}'::regclass) = 'p' then
    return;
  end if;
  ${statements}
end $$;`
}

function ringTable(names: SchemaNames, slot: number): string {
  return /* sql */ `create table ${qualified(names, `_${slot}`)} partition of ${qualified(names)} (primary key (scope, id))
    for values in (${slot}) with (fillfactor = 30);`
}

// The name now stands for another table. Every role that was allowed to use the one before must be allowed to use this one at
// once. A role that may delete may also truncate.
function sameGrants(names: SchemaNames): string {
  const rest = qualified(names, '_rest')
  return `for granted in
    select a.privilege_type as privilege, case a.grantee when 0 then 'public' else a.grantee::regrole::text end as grantee
    from pg_class c cross join lateral aclexplode(c.relacl) a where c.oid = '${rest}'::regclass and a.grantee <> c.relowner
  loop
    execute format('grant %s on %s to %s', granted.privilege, '${qualified(names)}', granted.grantee);
    if granted.privilege = 'DELETE' then
      execute format('grant truncate on ${ring.map((slot) => qualified(names, `_${slot}`)).join(', ')} to %s', granted.grantee);
    end if;
  end loop;`
}

function startPeriods(names: SchemaNames, periodMs: number): string {
  const periods = qualified(names, '_periods')
  return `insert into ${periods} (slot, ends_at_ms, period_ms)
  select n, (${clockMs} / ${periodMs} + n) * ${periodMs}, ${periodMs} from generate_series(1, ${ringSize}) n
  on conflict (slot) do update set period_ms = excluded.period_ms;
comment on table ${periods} is '${periodsComment(periodMs)}';`
}

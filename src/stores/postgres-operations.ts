// Operations in PostgreSQL: their records in tables beside the entries. Every function here leaves the decision to the one that
// decides for entries and writes in the same transaction, so a record is there just when the decision about its entry was.

import type { Clock } from '../core/clock.ts'
import { describeKey } from '../core/key.ts'
import type { Key } from '../core/key.ts'
import type { Advanced, BegunStep, Change, Claim, Recoverable, StepLedger, TransactionalSteps } from '../core/store.ts'
import { firstAnswer } from './postgres-client.ts'
import { lostState, storeError } from './postgres-errors.ts'
import { clockMs, functionName, pinnedPlan, qualified } from './postgres-names.ts'
import type { SchemaNames } from './postgres-names.ts'
import { advanceCall, callStatement, claimCall, integer, literal, token } from './postgres-statements.ts'
import type { Call } from './postgres-statements.ts'
import { commitLast, rollback } from './postgres-transactions.ts'
import type { TransactionGround } from './postgres-transactions.ts'
import { bytesOf, claimWhileLocked, advanceUntilKnown, verdictOf } from './sql-answers.ts'

export interface OperationsGround<Client> extends TransactionGround<Client> {
  readonly clock: Clock
  /** One of the calls that share a statement with others of the same moment. */
  ask(call: Call): Promise<string>
  /** A statement of its own. */
  single(statement: string, during: string): Promise<readonly string[]>
}

export function operations<Client>(
  ground: OperationsGround<Client>,
): StepLedger & TransactionalSteps<Client> & Recoverable {
  const { names, clock, ask, single } = ground
  return {
    async enlist(key, request) {
      const call = claimCall(key, request, 'enlist')
      try {
        return verdictOf(key, request, await claimWhileLocked(clock, () => ask(call)))
      } catch (error) {
        throw storeError(error, `claim of ${describeKey(key)}`, 'no')
      }
    },
    async advance(claim, change) {
      const call = advanceCall(claim, change)
      try {
        return await advanceUntilKnown(clock, () => ask(call))
      } catch (error) {
        throw storeError(error, `advance of ${describeKey(claim.key)}`, 'unknown')
      }
    },
    async ledger(key) {
      const [answer] = await single(ledgerStatement(names, key), 'reading of records')
      if (answer === undefined) return undefined
      const { due, cancel, records } = JSON.parse(answer) as LedgerJson
      return {
        dueAtMs: due ?? undefined,
        cancelReason: cancel ?? undefined,
        records: records.map(([name, revision, atMs, content]) => ({
          name,
          revision,
          atMs,
          content: bytesOf(content),
        })),
      }
    },
    beginStep: (claim) => beginStep(ground, claim),
    async due(scope, { limit, holdMs }) {
      const found = await single(dueStatement(names, scope, limit, holdMs), 'search for due operations')
      return found.map((answer) => {
        const [id, heldUntilMs] = JSON.parse(answer) as [string, number]
        return { key: { scope, id }, heldUntilMs }
      })
    },
    async dismiss({ key, heldUntilMs }) {
      await single(dismissStatement(names, key, heldUntilMs), 'dismissal of an operation')
    },
    async requestCancel(key, reason) {
      return (await single(cancelStatement(names, key, reason), 'cancelling')).length > 0
    },
    async unfinished(scope, { after, limit }) {
      const ids = await single(unfinishedStatement(names, scope, after ?? '', limit), 'listing of operations')
      return ids.map((id) => ({ scope, id }))
    },
  }
}

interface LedgerJson {
  readonly due: number | null
  readonly cancel: string | null
  readonly records: readonly [name: string, revision: number, atMs: number, content: string][]
}

/** BEGIN and the fence check in one round trip. */
async function beginStep<Client>(
  ground: OperationsGround<Client>,
  claim: Claim,
): Promise<BegunStep<Client> | undefined> {
  const { names, connections } = ground
  try {
    await ground.ready(connections)
    const connection = await connections.connect()
    try {
      const held = firstAnswer(await connection.run(['BEGIN', heldStatement(names, claim)]))
      if (held === 'held') {
        return {
          tx: connection.client,
          commit: (change) => commitStep(ground, connection, claim, change),
          rollback: () => rollback(connection),
          abandon: async () => connection.destroy(new Error('the step outlived its deadline')),
        }
      }
      await rollback(connection)
      return undefined
    } catch (error) {
      await rollback(connection)
      throw error
    }
  } catch (error) {
    throw storeError(error, `beginning of a step of ${describeKey(claim.key)}`, 'no')
  }
}

async function commitStep<Client>(
  { names }: OperationsGround<Client>,
  connection: Parameters<typeof commitLast>[0],
  claim: Claim,
  change: Change,
): Promise<Advanced> {
  const results = await commitLast(connection, claim.key, callStatement(names, advanceCall(claim, change, 'or-fail')))
  return results === 'lost' ? 'lost' : (firstAnswer(results) as Advanced)
}

function heldStatement(names: SchemaNames, { key, token: held }: Claim): string {
  return `select case when exists (
      select from ${qualified(names)} e where e.scope = ${literal(key.scope)} and e.id = ${literal(key.id)}
        and e.token = ${literal(token(held))} and e.state = 'r' and ${clockMs} < e.lease_until_ms + e.keep_ms
    ) then 'held' else 'lost' end as answer`
}

function ledgerStatement(names: SchemaNames, { scope, id }: Key): string {
  const whose = (row: string): string => `${row}.scope = ${literal(scope)} and ${row}.id = ${literal(id)}`
  return `select json_build_object('due', o.due_at_ms, 'cancel', o.cancel_reason, 'records', coalesce((
      select json_agg(json_build_array(s.name, s.revision, s.at_ms, encode(s.content, 'base64')))
      from ${qualified(names, '_steps')} s where ${whose('s')}
    ), '[]'::json))::text as answer
    from ${qualified(names, '_operations')} o where ${whose('o')} and exists (
      select from ${qualified(names)} e where ${whose('e')} and ${clockMs} < e.lease_until_ms + e.keep_ms
    )`
}

// In the order of their dues, and not due again for a while: workers that ask at once pass over each other's rows.
function dueStatement(names: SchemaNames, scope: string, limit: number, holdMs: number): string {
  const name = qualified(names, '_operations')
  return `with found as (
      select o.scope, o.id, o.due_at_ms from ${name} o where o.scope = ${literal(scope)} and o.due_at_ms <= ${clockMs}
      order by o.due_at_ms limit ${integer('limit', limit)} for update skip locked
    ), held as (
      update ${name} o set due_at_ms = ${clockMs} + ${integer('holdMs', holdMs)}
      from found where o.scope = found.scope and o.id = found.id
      returning o.id, o.due_at_ms as until_ms, found.due_at_ms
    )
    select json_build_array(held.id, held.until_ms)::text as answer from held order by held.due_at_ms`
}

function dismissStatement(names: SchemaNames, { scope, id }: Key, heldUntilMs: number): string {
  return `update ${qualified(names, '_operations')} o set due_at_ms = null, settled = true
    where o.scope = ${literal(scope)} and o.id = ${literal(id)} and o.due_at_ms = ${integer('heldUntilMs', heldUntilMs)}
    returning 'dismissed' as answer`
}

function cancelStatement(names: SchemaNames, { scope, id }: Key, reason: string): string {
  return `update ${qualified(names, '_operations')} o set cancel_reason = ${literal(reason)}, due_at_ms = ${clockMs}
    where o.scope = ${literal(scope)} and o.id = ${literal(id)} and not o.settled returning 'asked' as answer`
}

function unfinishedStatement(names: SchemaNames, scope: string, after: string, limit: number): string {
  return `select o.id as answer from ${qualified(names, '_operations')} o
    where o.scope = ${literal(scope)} and o.id > ${literal(after)} and not o.settled order by o.id
    limit ${integer('limit', limit)}`
}

// due_at_ms is the only indexed thing that changes, and only for what is not settled. sweep_at_ms is when a sweep should see
// whether the entry is over; it is written once.
export function operationTables(names: SchemaNames): string {
  const name = qualified(names, '_operations')
  return `create table if not exists ${name} (
  scope text collate "C" not null,
  id text collate "C" not null,
  life_fence bigint not null,
  due_at_ms bigint,
  sweep_at_ms bigint not null,
  settled boolean not null,
  cancel_reason text,
  primary key (scope, id)
) with (fillfactor = 70);
create index if not exists "${names.table}_operations_due" on ${name} (scope, due_at_ms) where due_at_ms is not null;
create index if not exists "${names.table}_operations_sweep" on ${name} (sweep_at_ms);
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
  return [enlistFunctions(names), advanceFunctions(names), sweepOperationsFunction(names)].join('\n')
}

const claimArguments = `a_scope text, an_id text, a_token uuid, a_fingerprint text, lease_ms bigint, a_keep_ms bigint,
  a_tombstone_ms bigint, a_version integer, on_takeover text, on_expired text, an_input text`

// A claim that is only repeated has the fence of its life, and must not clear what was recorded since.
function enlistFunctions(names: SchemaNames): string {
  const [name, steps] = [qualified(names, '_operations'), qualified(names, '_steps')]
  return `create or replace function ${functionName(names, 'enlisted')}(
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
end $$;
create or replace function ${functionName(names, 'enlist')}(${claimArguments}
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
end $$;
create or replace function ${functionName(names, 'enlists')}(
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

// 'or-fail' is for a transaction: it waits for the row, which a heartbeat may have for a moment, and raises instead of
// answering 'lost', so that a COMMIT sent along with it is not carried out.
function advanceFunctions(names: SchemaNames): string {
  const [name, steps] = [qualified(names, '_operations'), qualified(names, '_steps')]
  return `create or replace function ${functionName(names, 'advanced')}(
  answers text[], verbs text[], scopes text[], ids text[], records text[], afters_ms bigint[]
) returns text[] language plpgsql ${pinnedPlan} as $$
declare
  now_ms bigint := ${clockMs};
  wishes text[];
begin
  insert into ${steps} as s (scope, id, name, revision, at_ms, content)
  select c.scope, c.id, r.record ->> 0, (r.record ->> 1)::bigint, now_ms, decode(r.record ->> 2, 'base64')
  from unnest(answers, scopes, ids, records) as c (answer, scope, id, records)
  cross join lateral json_array_elements(c.records::json) as r (record)
  where c.answer = 'done'
  on conflict (scope, id, name) do update set
    revision = excluded.revision, at_ms = excluded.at_ms, content = excluded.content
  where s.revision < excluded.revision;

  if verbs <> array_fill('extend'::text, array[cardinality(verbs)]) then
    update ${name} o set
      settled = c.verb = 'settle', due_at_ms = case when c.verb = 'open' then now_ms + c.after_ms end
    from unnest(answers, verbs, scopes, ids, afters_ms) as c (answer, verb, scope, id, after_ms)
    where c.answer = 'done' and c.verb <> 'extend' and o.scope = c.scope and o.id = c.id;
  end if;

  select array_agg(case when c.answer = 'done' and o.cancel_reason is not null then 'cancelled' else c.answer end
    order by c.number) into wishes
  from unnest(answers, scopes, ids) with ordinality as c (answer, scope, id, number)
  left join lateral (select o.cancel_reason from ${name} o where o.scope = c.scope and o.id = c.id limit 1) o on true;
  return wishes;
end $$;
create or replace function ${functionName(names, 'advance')}(
  verb text, a_scope text, an_id text, a_token uuid, duration_ms bigint, a_tombstone_ms bigint, an_outcome text,
  a_records text, after_ms bigint
) returns text language plpgsql ${pinnedPlan} as $$
declare
  plain_verb text := replace(verb, '-or-fail', '');
  answers text[];
begin
  if verb <> plain_verb then
    perform from ${qualified(names)} e where e.scope = a_scope and e.id = an_id for update;
  end if;
  answers := array[${functionName(names, 'write')}(
    plain_verb, a_scope, an_id, a_token, duration_ms, a_tombstone_ms, an_outcome
  )];
  if answers[1] <> 'done' and verb <> plain_verb then
    raise exception using errcode = '${lostState}', message = 'onceonly: the claim was lost';
  end if;
  if answers[1] = 'done' then
    answers := ${functionName(names, 'advanced')}(
      answers, array[plain_verb], array[a_scope], array[an_id], array[a_records], array[after_ms]
    );
  end if;
  return answers[1];
end $$;
create or replace function ${functionName(names, 'advances')}(
  verbs text[], scopes text[], ids text[], tokens uuid[], durations_ms bigint[], tombstones_ms bigint[], outcomes text[],
  records text[], afters_ms bigint[]
) returns setof text language plpgsql ${pinnedPlan} as $$
declare
  answers text[];
begin
  select array_agg(c.answer order by c.number) into answers from ${functionName(names, 'writes')}(
    verbs, scopes, ids, tokens, durations_ms, tombstones_ms, outcomes
  ) with ordinality as c (answer, number);
  return query select unnest(${functionName(names, 'advanced')}(answers, verbs, scopes, ids, records, afters_ms));
end $$;`
}

// What is due to be looked at and whose entry is over goes; the others are looked at again when their entry may be over.
function sweepOperationsFunction(names: SchemaNames): string {
  const [name, steps] = [qualified(names, '_operations'), qualified(names, '_steps')]
  return `create or replace function ${functionName(names, 'sweep_operations')}(at_most integer)
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
    select e.lease_until_ms + e.keep_ms into expires_at_ms
      from ${qualified(names)} e where e.scope = operation.scope and e.id = operation.id;
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

export function sweepOperationsStatement(names: SchemaNames, limit: number): string {
  return `select ${functionName(names, 'sweep_operations')}(${integer('limit', limit)}) as answer`
}

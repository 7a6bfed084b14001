// What things are called in the database, and the few expressions that all functions share.

import { hash } from 'node:crypto'

export interface SchemaNames {
  readonly table: string
  readonly schema: string | undefined
}

/** The functions carry it in their names, so that old and new code each find their own during a rolling deployment. */
export const schemaVersion = 8

/** PostgreSQL cuts a longer name off without an error: two versions of a function would be one. */
const nameBytesMax = 63

/** What belongs to a table is named after it. Where that is too long, a hash of the table's name stands for its end. */
export function nameOf({ table }: SchemaNames, suffix: string): string {
  if (table.length + suffix.length <= nameBytesMax) return `${table}${suffix}`
  const digest = hash('sha256', table).slice(0, 8)
  return `${table.slice(0, nameBytesMax - suffix.length - digest.length - 1)}_${digest}${suffix}`
}

export function qualified(names: SchemaNames, suffix = ''): string {
  const name = `"${nameOf(names, suffix)}"`
  return names.schema === undefined ? name : `"${names.schema}".${name}`
}

/**
 * IF NOT EXISTS waits for every transaction that writes to the table even when the index is there, and claims would wait behind
 * it. A migration to the next version would stop them for as long as a transaction of others lasts.
 */
export function createIndex(names: SchemaNames, suffix: string, table: string, columns: string): string {
  const index = nameOf(names, suffix)
  return `do $$ begin
  if not exists (
    select from pg_class i join pg_class t on t.relnamespace = i.relnamespace
    where i.relname = '${index}' and t.oid = '${table}'::regclass
  ) then
    create index "${index}" on ${table} ${columns};
  end if;
end $$;`
}

export type FunctionName =
  | 'claim'
  | 'claims'
  | 'write'
  | 'writes'
  | 'begin'
  | 'join'
  | 'record'
  | 'together'
  | 'claim_one'
  | 'settle_one'
  | 'record_one'
  | 'probe'
  | 'sweep'
  | 'rotate'
  | 'mend'
  | 'enlisted'
  | 'enlist'
  | 'enlists'
  | 'advanced'
  | 'advance'
  | 'advances'
  | 'operate'
  | 'sweep_operations'

export function functionName(names: SchemaNames, verb: FunctionName): string {
  return qualified(names, `_${verb}_v${schemaVersion}`)
}

/** What a batch answers for a replay whose outcome is too large to come with those of others. It is asked for alone. */
export const largeAnswer = 'large'

/**
 * A batch has some hundreds of replays, and their outcomes come in one message, or in one value. The server ends at 1 GiB, and
 * JavaScript at half of it: in the midst of the client, where the error is nobody's. With this limit all of them are some 20 MB.
 */
const outcomeBytesMax = 64 * 1024

/** The answer of a batch for a settled entry `e`. The length of an outcome is known without reading it. */
export const settledInBatch: string = `case when octet_length(e.outcome) > ${outcomeBytesMax} then '${largeAnswer}'
        else concat('settled ', e.attempt, ' ', e.version, ' ', encode(e.outcome, 'base64')) end`

/** The answer of a batch for what the single function answered. */
export function answerInBatch(answer: string): string {
  return `case when octet_length(${answer}) > ${outcomeBytesMax} then '${largeAnswer}' else ${answer} end`
}

/** The comment on the table. migrate() reads it to see whether there is anything to do. */
export const schemaComment: string = `onceonly schema version ${schemaVersion}`

// clock_timestamp(), not now(): now() is when the transaction began, and a lease counted from there may have ended already.
export const clockMicroseconds = `(extract(epoch from clock_timestamp()) * 1000000)::bigint`
export const clockMs: string = `(${clockMicroseconds} / 1000)`

// The planner must not have the choice: a plan that was made while the table was empty, and is kept, would read all of it for
// every claim once it is large. So each look-up is one descent of the primary key. Nor may it plan anew for every call, which it
// finds cheaper for arrays of less than about ten: that is a quarter of what a claim in a small batch costs the server. (Both
// settings are 1 µs per call.)
export const pinnedPlan = `set enable_seqscan = off set plan_cache_mode = force_generic_plan`

export const isReadCommitted = `current_setting('transaction_isolation') = 'read committed'`

/**
 * A table's number is part of it: the same key in another table, or in another tenant's schema, is another lock. It is the number
 * of the audit table, because the table of the entries becomes another one when it is put into periods.
 */
export function lockNumber(names: SchemaNames, scope: string, id: string): string {
  return `hashtextextended(${scope} || E'\\n' || ${id}, '${qualified(names, '_audit')}'::regclass::oid::bigint)`
}

/**
 * The lock number of the key for which `begin` or `beginStep` opened the transaction. The server drops it at every end of a
 * transaction, so it tells whether the transaction is still the one that was opened.
 */
export const ownKey = `current_setting('onceonly.transaction', true)`

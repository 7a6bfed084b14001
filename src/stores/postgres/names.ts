// What things are called in the database, and the few expressions that all functions share.

export interface SchemaNames {
  readonly table: string
  readonly schema: string | undefined
}

/** The functions carry it in their names: during a rolling deployment old and new code each find their own. */
export const schemaVersion = 2

export function qualified({ table, schema }: SchemaNames, suffix = ''): string {
  return schema === undefined ? `"${table}${suffix}"` : `"${schema}"."${table}${suffix}"`
}

/**
 * IF NOT EXISTS waits for every transaction that writes to the table even when the index is there, and claims would wait behind
 * it: a migration to the next version would stop them for as long as somebody's transaction lasts.
 */
export function createIndex(names: SchemaNames, suffix: string, table: string, columns: string): string {
  const index = `${names.table}${suffix}`
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
  | 'record'
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
  | 'sweep_operations'

export function functionName(names: SchemaNames, verb: FunctionName): string {
  return qualified(names, `_${verb}_v${schemaVersion}`)
}

/** What the comment on the table says; migrate() reads it to see whether there is anything to do. */
export const schemaComment: string = `onceonly schema version ${schemaVersion}`

// clock_timestamp(), not now(): now() is when the transaction began, and a lease counted from there may be over already.
export const clockMicroseconds = `(extract(epoch from clock_timestamp()) * 1000000)::bigint`
export const clockMs: string = `(${clockMicroseconds} / 1000)`

// The planner must not be left the choice: a plan that was made while the table was empty, and is kept, would read all of it
// for every claim once it is large. So each look-up is one descent of the primary key. (0.7 µs a call.)
export const pinnedPlan = `set enable_seqscan = off`

/**
 * A table's number is part of it: the same key in another table, or in another tenant's schema, is another lock. It is the
 * number of the audit table: the table of the entries becomes another one when it is put into periods.
 */
export function lockNumber(names: SchemaNames, scope: string, id: string): string {
  return `hashtextextended(${scope} || E'\\n' || ${id}, '${qualified(names, '_audit')}'::regclass::oid::bigint)`
}

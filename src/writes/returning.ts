// The writes for PostgreSQL and SQLite, which have ON CONFLICT and RETURNING in common. A write that applies is one statement.
// A write that does not is followed by a second that finds out why, as the first saw the table as it was before it waited for
// others.

import { rounds } from '../core/backoff.ts'
import { versionColumn } from './requests.ts'
import { join, name, sql } from '../clients/sql-statement.ts'
import { assignments, names, values, where } from './statement.ts'
import type { SqlStatement } from '../clients/sql-statement.ts'
import { answerOf, restless } from './steps.ts'
import type { SqlWrites, WriteSteps } from './steps.ts'
import type {
  AddOnce,
  Answers,
  AppendOnce,
  CompareAndSet,
  InsertOnce,
  Row,
  Upsert,
  UpsertIf,
  UpsertIfNewer,
} from './writes.ts'

/** What the two do differently. */
export interface ReturningDialect {
  addOnce(table: string, request: AddOnce): WriteSteps<Answers['addOnce']>
  /** The conflicts at which an event is not appended. */
  appendConflicts(event: SqlStatement, position: SqlStatement): SqlStatement
}

export function returningWrites({ addOnce, appendConflicts }: ReturningDialect): SqlWrites {
  return {
    insertOnce,
    upsert,
    upsertIfNewer,
    upsertIf,
    compareAndSet,
    addOnce,
    appendOnce: (table, request) => appendOnce(table, request, appendConflicts),
  }
}

function* insertOnce(table: string, { key, set }: InsertOnce): WriteSteps<Answers['insertOnce']> {
  const row = { ...key, ...set }
  const result = yield sql`
    insert into ${name(table)} (${names(row)}) values (${values(row)})
    on conflict (${names(key)}) do nothing returning 'applied' as answer`
  return answerOf(result) ?? 'already'
}

function* upsert(table: string, { key, set, setOnInsert }: Upsert): WriteSteps<Answers['upsert']> {
  const row = { ...key, ...setOnInsert, ...set }
  const result = yield sql`
    insert into ${name(table)} as kept (${names(row)}) values (${values(row)})
    on conflict (${names(key)}) do update set ${fromExcluded(set)} where ${differsFromExcluded(set)}
    returning 'applied' as answer`
  return answerOf(result) ?? 'already'
}

function* upsertIfNewer(
  table: string,
  { key, set, setOnInsert, newer }: UpsertIfNewer,
): WriteSteps<Answers['upsertIfNewer']> {
  const row = { ...key, ...setOnInsert, ...set, ...newer }
  const [column, version] = Object.entries(newer)[0]!
  for (let round = 0; round < rounds.write; round++) {
    const written = yield sql`
      insert into ${name(table)} as kept (${names(row)}) values (${values(row)})
      on conflict (${names(key)}) do update set ${fromExcluded({ ...set, ...newer })}
      where kept.${name(column)} is null or kept.${name(column)} < excluded.${name(column)}
      returning 'applied' as answer`
    if (answerOf(written)) return 'applied'
    const found = yield sql`
      select case when ${name(column)} = ${version} then 'already' else 'stale' end as answer
      from ${name(table)} where ${where(key)}`
    const answer = answerOf<Answers['upsertIfNewer']>(found)
    if (answer) return answer
  }
  throw restless('upsertIfNewer', table)
}

function* upsertIf(table: string, { key, expect, set, setOnInsert }: UpsertIf): WriteSteps<Answers['upsertIf']> {
  const row = { ...key, ...setOnInsert, ...set }
  for (let round = 0; round < rounds.write; round++) {
    const written = yield sql`
      insert into ${name(table)} as kept (${names(row)}) values (${values(row)})
      on conflict (${names(key)}) do update set ${fromExcluded(set)}
      where ${holds(expect, 'kept')} and (${differsFromExcluded(set)})
      returning 'applied' as answer`
    if (answerOf(written)) return 'applied'
    // Other writers may have made the row what is expected since. Then it is written in the next round.
    const found = yield sql`
      select case when ${holds(set)} then 'already' when ${holds(expect)} then 'again' else 'conflict' end as answer
      from ${name(table)} where ${where(key)}`
    const answer = answerOf<Answers['upsertIf'] | 'again'>(found)
    if (answer && answer !== 'again') return answer
  }
  throw restless('upsertIf', table)
}

function* compareAndSet(table: string, { key, expect, set }: CompareAndSet): WriteSteps<Answers['compareAndSet']> {
  const written = yield sql`
    update ${name(table)} set ${assignments(set)}
    where ${where(key)} and ${holds(expect)} and not (${holds(set)})
    returning 'applied' as answer`
  if (answerOf(written)) return 'applied'
  const found = yield sql`
    select case when ${holds(set)} then 'already' else 'conflict' end as answer from ${name(table)} where ${where(key)}`
  return answerOf(found) ?? 'missing'
}

function* appendOnce(
  table: string,
  request: AppendOnce,
  conflicts: ReturningDialect['appendConflicts'],
): WriteSteps<Answers['appendOnce']> {
  const { key, stream, after, set } = request
  const version = versionColumn(request)
  const row = { ...key, ...stream, [version]: after + 1, ...set }
  // Events are never deleted, so what was there when this statement began is there when it ends.
  const before = sql`select 1 from ${name(table)} where ${where({ ...stream, [version]: after })}`
  const inserted = yield sql`
    insert into ${name(table)} (${names(row)})
    select ${values(row)} where ${after === 0 ? sql`1 = 1` : sql`exists (${before})`}
    ${conflicts(names(key), names({ ...stream, [version]: after }))} returning 'appended' as answer`
  if (answerOf(inserted)) return 'appended'
  const found = yield sql`
    select case when ${where(stream)} then 'already' else 'conflict' end as answer
    from ${name(table)} where ${where(key)}`
  return answerOf(found) ?? 'conflict'
}

function fromExcluded(row: Row): SqlStatement {
  return join(
    Object.keys(row).map((column) => sql`${name(column)} = excluded.${name(column)}`),
    ', ',
  )
}

function differsFromExcluded(row: Row): SqlStatement {
  return join(
    Object.keys(row).map((column) => sql`kept.${name(column)} is distinct from excluded.${name(column)}`),
    ' or ',
  )
}

/** With null equal to null. */
function holds(row: Row, of?: 'kept'): SqlStatement {
  const column = (each: string): SqlStatement => (of ? sql`kept.${name(each)}` : name(each))
  return join(
    Object.entries(row).map(([each, value]) => sql`${column(each)} is not distinct from ${value}`),
    ' and ',
  )
}

/** Columns with an amount added to each. A counter that is null counts as 0. */
export function additions(add: AddOnce['add']): SqlStatement {
  return join(
    Object.entries(add).map(([column, by]) => sql`${name(column)} = coalesce(${name(column)}, 0) + ${by}`),
    ', ',
  )
}

// The writes in the words of MySQL and MariaDB. MySQL has no RETURNING, and its number of affected rows depends on a flag of
// the connection. So the result is read from what does not: a duplicate key refuses an INSERT, an UPDATE reports how many rows
// it changed, and an upsert leaves a mark in LAST_INSERT_ID. Reads lock, because a plain read may come from an old snapshot.

import { rounds } from '../../core/backoff.ts'
import { errnoOf } from '../../clients/mysql.ts'
import { invalidArgument, OnceError } from '../../core/errors.ts'
import { versionColumn } from '../requests.ts'
import { join, name, sql } from '../../clients/sql-statement.ts'
import { assignments, names, values, where } from '../statement.ts'
import type { SqlStatement } from '../../clients/sql-statement.ts'
import { answerOf, restless } from '../steps.ts'
import type { WriteResult, SqlWrites, WriteSteps } from '../steps.ts'
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
  Value,
} from '../writes.ts'

export const mysqlStatements: SqlWrites = {
  insertOnce,
  upsert,
  upsertIfNewer,
  upsertIf,
  compareAndSet,
  addOnce: (table, request) => inTransaction(addOnce(table, request)),
  appendOnce,
}

// The INSERT has locked a duplicate row for reading already. An exclusive lock could end in a deadlock with another duplicate that
// asks for the same.
const share = sql`lock in share mode`
const update = sql`for update`

function* insertOnce(table: string, { key, set }: InsertOnce): WriteSteps<Answers['insertOnce']> {
  for (let round = 0; round < rounds.write; round++) {
    const duplicate = yield* insert(table, { ...key, ...set })
    if (!duplicate) return 'applied'
    const found = yield sql`select 'already' as answer from ${name(table)} where ${where(key)} ${share}`
    if (answerOf(found)) return 'already'
    // A duplicate in another unique key is the caller's error. A duplicate that was just deleted is not.
    if (round === rounds.write - 1) throw duplicate.error
  }
  throw restless('insertOnce', table)
}

/** Returns the error of a duplicate, if it was one. Such an error undoes the statement, not the transaction. */
function* insert(table: string, row: Row): WriteSteps<{ readonly error: unknown } | undefined> {
  try {
    yield sql`insert into ${name(table)} (${names(row)}) values (${values(row)})`
    return undefined
  } catch (error) {
    if (errnoOf(error) === 1062) return { error }
    throw error
  }
}

// No auto-increment gets this far, and every client reads these numbers exactly.
const marks = {
  written: 9_007_199_254_740_991,
  same: 9_007_199_254_740_990,
  older: 9_007_199_254_740_989,
  otherRow: 9_007_199_254_740_988,
} as const

const mark = (of: keyof typeof marks): SqlStatement => sql([String(marks[of])])

function* upsert(table: string, { key, set, setOnInsert }: Upsert): WriteSteps<Answers['upsert']> {
  const written = yield onDuplicate(table, {
    key,
    row: { ...key, ...setOnInsert, ...set },
    set: Object.entries(set),
    guard: where(key),
    left: sql`case when ${where(key)} then ${mark('written')} else ${mark('otherRow')} end`,
  })
  refuseOtherRow('upsert', table, written)
  // With or without the flag, 2 is a row that was changed, and 1 and 0 are one that was not.
  return written.insertId === marks.written && written.affected! < 2 ? 'already' : 'applied'
}

function* upsertIfNewer(
  table: string,
  { key, set, setOnInsert, newer }: UpsertIfNewer,
): WriteSteps<Answers['upsertIfNewer']> {
  const [column, version] = Object.entries(newer)[0]!
  const isNewer = sql`(${name(column)} is null or ${exact(version)} > ${name(column)})`
  const written = yield onDuplicate(table, {
    key,
    row: { ...key, ...setOnInsert, ...set, ...newer },
    // The version last: MySQL assigns from left to right, and the guard of the others reads it.
    set: [...Object.entries(set ?? {}), [column, version]],
    guard: sql`${where(key)} and ${isNewer}`,
    left: sql`case when not (${where(key)}) then ${mark('otherRow')} when ${isNewer} then ${mark('written')}
      when ${exact(version)} = ${name(column)} then ${mark('same')} else ${mark('older')} end`,
  })
  refuseOtherRow('upsertIfNewer', table, written)
  if (written.insertId === marks.same) return 'already'
  return written.insertId === marks.older ? 'stale' : 'applied'
}

// MySQL assigns from left to right, and a condition on columns that are assigned would read the new ones. So the upsert
// inserts, or locks the existing row and changes nothing. The update that follows is a compareAndSet. Outside of a transaction
// another writer may come between the two. Then the compareAndSet returns what that writer left.
function* upsertIf(table: string, { key, expect, set, setOnInsert }: UpsertIf): WriteSteps<Answers['upsertIf']> {
  for (let round = 0; round < rounds.write; round++) {
    const locked = yield onDuplicate(table, {
      key,
      row: { ...key, ...setOnInsert, ...set },
      set: [],
      guard: where(key),
      left: sql`case when ${where(key)} then ${mark('same')} else ${mark('otherRow')} end`,
    })
    refuseOtherRow('upsertIf', table, locked)
    if (locked.insertId !== marks.same) return 'applied'
    const answer = yield* compareAndSet(table, { key, expect, set })
    if (answer !== 'missing') return answer
  }
  throw restless('upsertIf', table)
}

interface OnDuplicate {
  readonly key: Row
  readonly row: Row
  readonly set: readonly (readonly [column: string, value: Value])[]
  /** The condition on which the existing row is written. It may be the row of another unique key. */
  readonly guard: SqlStatement
  /** What is left in LAST_INSERT_ID. */
  readonly left: SqlStatement
}

// Assigns a column of the key to itself, because the mark needs an expression that is evaluated.
function onDuplicate(table: string, { key, row, set, guard, left }: OnDuplicate): SqlStatement {
  const first = name(Object.keys(key)[0]!)
  const changes = set.map(([column, value]) => sql`${name(column)} = if(${guard}, ${value}, ${name(column)})`)
  return sql`
    insert into ${name(table)} (${names(row)}) values (${values(row)})
    on duplicate key update ${join([sql`${first} = if(last_insert_id(${left}) = 0, ${first}, ${first})`, ...changes], ', ')}`
}

function refuseOtherRow(write: string, table: string, { insertId }: WriteResult): void {
  if (insertId !== marks.otherRow) return
  throw invalidArgument(
    `${write}: another row of ${table} holds one of these values, which another unique constraint allows once. Nothing was ` +
      'changed. Name the columns of that constraint as the key, or give other values.',
  )
}

function* compareAndSet(table: string, { key, expect, set }: CompareAndSet): WriteSteps<Answers['compareAndSet']> {
  const written = yield sql`
    update ${name(table)} set ${assignments(set)} where ${where(key)} and ${holds(expect)}`
  if (written.changed! > 0) return 'applied'
  const found = yield sql`
    select case when ${holds(set)} then 'already' else 'conflict' end as answer
    from ${name(table)} where ${where(key)} ${update}`
  return answerOf(found) ?? 'missing'
}

function* addOnce(table: string, { key, add, once }: AddOnce): WriteSteps<Answers['addOnce']> {
  const found = yield sql`select 'there' as answer from ${name(table)} where ${where(key)} ${update}`
  if (!answerOf(found)) return 'missing'
  const duplicate = yield* insert(once.table!, once.key)
  if (duplicate) return 'already'
  const additions = Object.entries(add).map(
    ([column, by]) => sql`${name(column)} = coalesce(${name(column)}, 0) + ${exact(by)}`,
  )
  yield sql`update ${name(table)} set ${join(additions, ', ')} where ${where(key)}`
  return 'applied'
}

function* appendOnce(table: string, request: AppendOnce): WriteSteps<Answers['appendOnce']> {
  const { key, stream, after, set } = request
  const version = versionColumn(request)
  // Events are never deleted: what is there now stays there.
  const before = sql`select 'there' as answer from ${name(table)} where ${where({ ...stream, [version]: after })} ${share}`
  if (after === 0 || answerOf(yield before)) {
    const duplicate = yield* insert(table, { ...key, ...stream, [version]: after + 1, ...set })
    if (!duplicate) return 'appended'
  }
  const found = yield sql`
    select case when ${where(stream)} then 'already' else 'conflict' end as answer
    from ${name(table)} where ${where(key)} ${share}`
  return answerOf(found) ?? 'conflict'
}

/**
 * The mark of an event and its count are two statements. Outside of a transaction each would be committed alone. There MySQL
 * forgets a savepoint at once, which is how we notice.
 */
function* inTransaction<Answer>(steps: WriteSteps<Answer>): WriteSteps<Answer> {
  yield sql`savepoint onceonly_writes`
  try {
    yield sql`rollback to savepoint onceonly_writes`
  } catch (error) {
    if (errnoOf(error) !== 1305) throw error
    const message =
      'addOnce: expected a connection inside a transaction, got one outside. The mark of the event and its count would be two ' +
      'commits. Nothing was changed. Begin a transaction first.'
    throw new OnceError('INVALID_ARGUMENT', { message, cause: error })
  }
  try {
    const answer = yield* steps
    yield sql`release savepoint onceonly_writes`
    return answer
  } catch (error) {
    try {
      yield sql`rollback to savepoint onceonly_writes`
    } catch {
      // A deadlock has rolled back everything, and the first error says so.
    }
    throw error
  }
}

/** Values are bound as text, and text beside a number is compared and added as a double, which is not exact. */
function exact(value: Value): SqlStatement {
  const isNumber = typeof value === 'number' || typeof value === 'bigint'
  return isNumber ? sql`cast(${value} as decimal(65, 30))` : sql`${value}`
}

/** With null equal to null. */
function holds(row: Row): SqlStatement {
  return join(
    Object.entries(row).map(([column, value]) => sql`${name(column)} <=> ${value}`),
    ' and ',
  )
}

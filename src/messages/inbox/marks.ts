// The marks of one consumer: which messages came, how often each was tried, and which are done. Invariants: an attempt is counted in
// a commit of its own before the handler runs, so that a message which ends the process is counted, too. A mark is made in the
// transaction of its effect. No statement here waits for a handler that runs elsewhere: its rows are passed over.

import type { SqlDatabase, SqlSession } from '../../clients/sql-database.ts'
import { integer, join, sql } from '../../clients/sql-statement.ts'
import type { SqlStatement } from '../../clients/sql-statement.ts'
import { keyOf } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import { among, columnsOf, read } from '../../clients/sql-columns.ts'
import type { Columns } from '../../clients/sql-columns.ts'
import { receiveFunction, takeFunction } from './functions.sql.ts'

/** r: received, tried and not done. d: done. s: refused as stale. p: parked. */
export type MarkState = 'r' | 'd' | 's' | 'p'

/** What is known of a message that came. */
export type Received =
  /** It came for the first time, and its first attempt is counted. */
  | { readonly is: 'fresh' }
  /** Another consumer receives it at this moment. */
  | { readonly is: 'busy' }
  | { readonly is: 'known'; readonly state: MarkState; readonly attempts: number; readonly fingerprint: string }

export interface Identified {
  readonly id: string
  readonly fingerprint: string
}

export interface Marks {
  /** What is known of each, in their order. Ids must differ. One statement on PostgreSQL. */
  receive(messages: readonly Identified[]): Promise<readonly Received[]>
  /** Counts one more attempt of a message that was tried before. Undefined when it is done, parked, in other hands, or has had them all. */
  tryAgain(id: string, attemptsMax: number): Promise<number | undefined>
  /**
   * Marks those as done that are not, in the transaction of their effect, and returns which. What another has is passed over, and so is
   * an id that another message had first.
   */
  take(session: SqlSession, messages: readonly Identified[]): Promise<ReadonlySet<string>>
  /** Those of them that are not to be run any more, committed by whoever has run them. */
  done(session: SqlSession, messages: readonly Identified[]): Promise<ReadonlySet<string>>
  put(session: SqlSession, id: string, state: MarkState): Promise<void>
  /**
   * Marks a message as done that a person has redriven. Resolves to the id of its mark: when another message had its id first, it has a
   * mark of its own. Undefined when it was done before.
   */
  complete(session: SqlSession, message: Identified): Promise<string | undefined>
  /** A message whose id another one had first was redriven, and is done. */
  isRedriven(message: Identified): Promise<boolean>
  /** Deletes up to `limit` marks of this consumer's messages that came before. Parked ones stay. */
  sweep(beforeMs: number, limit: number): Promise<void>
}

interface Table extends Columns {
  readonly database: SqlDatabase
  readonly scope: string
  readonly table: SqlStatement
}

export function marksOn(database: SqlDatabase, scope: string): Marks {
  const { dialect } = database
  const on: Table = { ...columnsOf(dialect), database, scope, table: database.table('inbox') }
  const { table, bound } = on
  const atOnce = dialect === 'postgres'
  return {
    async receive(messages) {
      const known = atOnce ? await receiveAtOnce(on, messages) : await receiveInTwo(on, messages)
      return messages.map(({ id }) => known.get(id) ?? { is: 'busy' })
    },
    tryAgain: (id, attemptsMax) => (atOnce ? tryAgainAtOnce : tryAgainLocked)(on, id, attemptsMax),
    take: (session, messages) => (atOnce ? takeAtOnce : takeLocked)(on, session, messages),
    done: (session, messages) => done(on, session, messages),
    async put(session, id, state) {
      await session.query(sql`update ${table} set state = ${state} where ${one(on, id)}`)
    },
    complete: (session, message) => complete(on, session, message),
    async isRedriven(message) {
      const own = sql`${one(on, ownIdOf(scope, message))} and state <> 'r'`
      return (await database.query(sql`select ${on.row(sql`state`)} from ${table} where ${own}`)).length > 0
    },
    async sweep(beforeMs, limit) {
      // Of this consumer only: another one may remember for longer.
      const old = sql`at_ms < ${String(beforeMs)} and scope = ${bound(scope)} and state <> 'p'`
      const some = integer(limit)
      await database.query(
        dialect === 'mysql'
          ? sql`delete from ${table} where ${old} order by at_ms limit ${some}`
          : sql`delete from ${table} where (scope, id) in (select scope, id from ${table} where ${old} order by at_ms limit ${some})`,
      )
    },
  }
}

function one({ bound, scope }: Table, id: string): SqlStatement {
  return sql`scope = ${bound(scope)} and id = ${bound(id)}`
}

/** The order in which rows are locked is the same for all, so that batches that overlap do not wait for each other in a circle. */
function free({ bound, scope, skipLocked }: Table, ids: readonly string[], also = sql``): SqlStatement {
  const isOne = among(sql`id`, ids.map(bound))
  return sql`scope = ${bound(scope)} and ${isOne} and state = 'r'${also} order by id ${skipLocked}`
}

/** Another may have counted the last one since this consumer looked. */
function triable(on: Table, id: string, attemptsMax: number): SqlStatement {
  return free(on, [id], sql` and attempts < ${integer(attemptsMax)}`)
}

// The count of attempts need not outlive a crash of the server, so its commit does not wait for the disk. The transaction of the effect
// commits after it, and takes it along. Only those that are not fresh are told: mostly none.
async function receiveAtOnce(
  { database, scope }: Table,
  messages: readonly Identified[],
): Promise<Map<string, Received>> {
  const prints = messages.map(({ fingerprint }) => fingerprint).join('\n')
  const answers = await database.query(sql`
    select ${database.table(receiveFunction)}(${scope}, ${idLines(messages)}, ${prints}, ${database.nowMs()}) as answer`)
  const others = new Map(
    answers.map(read).map(([id, state, attempts, print]): [string, Received] => {
      if (state === null) return [id as string, { is: 'busy' }]
      return [id as string, known(state, attempts, print)]
    }),
  )
  return new Map(messages.map(({ id }) => [id, others.get(id) ?? { is: 'fresh' }]))
}

function idLines(messages: readonly Identified[]): string {
  return messages.map(({ id }) => id).join('\n')
}

// Looked at first: an insert would wait for a row that a handler elsewhere has locked. Two that receive the same new message at one
// moment both take it for fresh, and `take` gives it to one of them.
async function receiveInTwo(on: Table, messages: readonly Identified[]): Promise<Map<string, Received>> {
  const { database, table, scope, bound, row, name, readName, insert, orNothing } = on
  const ids = messages.map(({ id }) => bound(id))
  const columns = row(name(sql`id`), sql`state`, sql`attempts`, sql`fingerprint`)
  const found = await database.query(sql`
    select ${columns} from ${table} where scope = ${bound(scope)} and ${among(sql`id`, ids)}`)
  const result = new Map<string, Received>(
    found.map(read).map(([id, state, attempts, print]) => [readName(id), known(state, attempts, print)]),
  )
  const fresh = messages.filter(({ id }) => !result.has(id))
  if (fresh.length === 0) return result
  const rows = fresh.map(
    ({ id, fingerprint }) => sql`(${bound(scope)}, ${bound(id)}, ${fingerprint}, 'r', 1, ${database.nowMs()})`,
  )
  await database.query(sql`
    ${insert} ${table} (scope, id, fingerprint, state, attempts, at_ms) values ${join(rows, ', ')} ${orNothing}`)
  for (const { id } of fresh) result.set(id, { is: 'fresh' })
  return result
}

function known(state: unknown, attempts: unknown, fingerprint: unknown): Received {
  return { is: 'known', state: state as MarkState, attempts: Number(attempts), fingerprint: fingerprint as string }
}

async function tryAgainAtOnce(on: Table, id: string, attemptsMax: number): Promise<number | undefined> {
  const { database, table } = on
  const [counted] = await database.query(sql`
    update ${table} set attempts = attempts + 1
    where (scope, id) in (select scope, id from ${table} where ${triable(on, id, attemptsMax)})
    returning attempts::text as answer`)
  return counted === undefined ? undefined : Number(counted)
}

async function tryAgainLocked(on: Table, id: string, attemptsMax: number): Promise<number | undefined> {
  const { database, table, scope, row } = on
  const open = await database.begin({ scope, id })
  try {
    const where = triable(on, id, attemptsMax)
    const [found] = await open.query(sql`select ${row(sql`attempts`)} from ${table} where ${where}`)
    if (found !== undefined) await open.query(sql`update ${table} set attempts = attempts + 1 where ${one(on, id)}`)
    await open.commit()
    return found === undefined ? undefined : Number(read(found)[0]) + 1
  } catch (error) {
    await open.rollback()
    throw error
  }
}

// The server tells which it did not take: mostly none.
async function takeAtOnce(
  { database, scope }: Table,
  session: SqlSession,
  messages: readonly Identified[],
): Promise<ReadonlySet<string>> {
  const others = new Set(
    await session.query(sql`select ${database.table(takeFunction)}(${scope}, ${idLines(messages)}) as answer`),
  )
  return new Set(messages.map(({ id }) => id).filter((id) => !others.has(id)))
}

async function takeLocked(
  on: Table,
  session: SqlSession,
  messages: readonly Identified[],
): Promise<ReadonlySet<string>> {
  const { table, scope, bound, row, name } = on
  const ids = messages.map(({ id }) => id)
  const columns = row(name(sql`id`), sql`fingerprint`)
  const found = await session.query(sql`select ${columns} from ${table} where ${free(on, ids)}`)
  const ours = sameMessages(on, messages, found)
  if (ours.size > 0) {
    const taken = among(sql`id`, [...ours].map(bound))
    await session.query(sql`update ${table} set state = 'd' where scope = ${bound(scope)} and ${taken}`)
  }
  return ours
}

// A locking read: a transaction that repeats its reads (MySQL) would see the state from before it waited for others.
async function done(on: Table, session: SqlSession, messages: readonly Identified[]): Promise<ReadonlySet<string>> {
  if (messages.length === 0) return new Set()
  const { table, scope, bound, row, name, skipLocked } = on
  const ids = messages.map(({ id }) => bound(id))
  const found = await session.query(sql`
    select ${row(name(sql`id`), sql`fingerprint`)} from ${table}
    where scope = ${bound(scope)} and ${among(sql`id`, ids)} and state <> 'r' order by id ${skipLocked}`)
  return sameMessages(on, messages, found)
}

/** The mark of a message whose id another one had first. */
function ownIdOf(scope: string, { id, fingerprint }: Identified): string {
  return keyOf(scope, [id, fingerprint]).id
}

async function complete(on: Table, session: SqlSession, message: Identified): Promise<string | undefined> {
  const { fingerprint } = message
  for (const id of [message.id, ownIdOf(on.scope, message)]) {
    const mark = await markOf(on, session, { id, fingerprint })
    if (mark.fingerprint !== fingerprint) continue
    if (mark.state === 'd') return undefined
    await session.query(sql`update ${on.table} set state = 'd' where ${one(on, id)}`)
    return id
  }
  throw new Error(`Bug! The mark that is made from the id and the body of ${message.id} has another body.`)
}

/** The mark of this id, locked. It is this message's unless there was one. */
async function markOf(on: Table, session: SqlSession, { id, fingerprint }: Identified): Promise<Mark> {
  const { database, table, scope, bound, insert, orNothing, row, forUpdate } = on
  // A sweep can delete an old one between the two.
  for (;;) {
    await session.query(sql`
      ${insert} ${table} (scope, id, fingerprint, state, attempts, at_ms)
      values (${bound(scope)}, ${bound(id)}, ${fingerprint}, 'r', 1, ${database.nowMs()}) ${orNothing}`)
    const columns = row(sql`state`, sql`fingerprint`)
    const [found] = await session.query(sql`select ${columns} from ${table} where ${one(on, id)} ${forUpdate}`)
    if (found === undefined) continue
    const [state, print] = read(found)
    return { state: state as MarkState, fingerprint: print as string }
  }
}

interface Mark {
  readonly state: MarkState
  readonly fingerprint: string
}

/** The ids of those whose mark is their own. Two messages with one id, received at one moment, both looked fresh to MySQL and SQLite. */
function sameMessages(
  { readName }: Table,
  messages: readonly Identified[],
  found: readonly string[],
): ReadonlySet<string> {
  const given = new Map(messages.map(({ id, fingerprint }) => [id, fingerprint]))
  const marks = found.map(read).map(([id, fingerprint]) => ({ id: readName(id), fingerprint }))
  return new Set(marks.filter(({ id, fingerprint }) => given.get(id) === fingerprint).map(({ id }) => id))
}

/** How a transaction of the inbox is named in errors. */
export function keyOfMark(scope: string, messages: readonly Identified[]): Key {
  return { scope, id: messages[0]?.id ?? 'a batch' }
}

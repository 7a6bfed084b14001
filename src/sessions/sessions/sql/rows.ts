// The statements of sessions on a SQL database. Whatever could wait for an effect that runs elsewhere passes its row over instead.

import type { SqlDatabase, SqlSession } from '../../../clients/sql-database.ts'
import { columnsOf, read } from '../../../clients/sql-columns.ts'
import type { Columns } from '../../../clients/sql-columns.ts'
import { integer, join, sql } from '../../../clients/sql-statement.ts'
import type { SqlStatement } from '../../../clients/sql-statement.ts'
import type { SessionSettings } from '../ground.ts'
import type { NumberedRequest, SessionState } from '../rules.ts'

export interface FoundSession extends SessionState {
  readonly nowMs: number
}

export interface FoundRequest {
  readonly fingerprint: string
  /** Null while it has none. */
  readonly outcome: string | null
}

type RequestName = Pick<NumberedRequest, 'client' | 'epoch' | 'sequence'>

export interface SessionRows {
  /** Makes a row that is no session yet, unless there is one. */
  make(session: SqlSession, client: string): Promise<void>
  /** The session, with its row locked until the transaction ends. */
  lock(session: SqlSession, client: string): Promise<FoundSession | undefined>
  /** The session, which no registration changes before the transaction ends. */
  share(session: SqlSession, client: string): Promise<FoundSession | undefined>
  write(session: SqlSession, client: string, state: SessionState): Promise<void>
  /** Deletes requests of older epochs, and those at or below the floor. */
  clean(session: SqlSession, client: string, kept: Pick<SessionState, 'epoch' | 'floor'>): Promise<void>
  find(session: SqlSession, name: RequestName): Promise<FoundRequest | undefined>
  /** As `find`, with the row locked. Undefined when another transaction has it. */
  take(session: SqlSession, name: RequestName): Promise<FoundRequest | undefined>
  add(session: SqlSession, request: RequestName & { readonly fingerprint: string }): Promise<void>
  answer(session: SqlSession, name: RequestName, outcome: string): Promise<void>
  remove(session: SqlSession, name: RequestName): Promise<void>
  /** Clients whose session has ended and left something behind. */
  ended(limit: number): Promise<readonly string[]>
  /** Deletes a tombstone whose time has passed, unless an effect that still runs holds a request of it. */
  forget(session: SqlSession, client: string): Promise<void>
}

interface Tables extends Columns {
  readonly database: SqlDatabase
  readonly settings: SessionSettings
  readonly sessions: SqlStatement
  readonly requests: SqlStatement
  /** The rows of a client, in both tables. */
  of(client: string): SqlStatement
}

export function rowsOn(database: SqlDatabase, settings: SessionSettings): SessionRows {
  const columns = columnsOf(database.dialect)
  const { bound } = columns
  const on: Tables = {
    ...columns,
    database,
    settings,
    sessions: database.table('sessions'),
    requests: database.table('session_requests'),
    of: (client) => sql`scope = ${bound(settings.scope)} and client = ${bound(client)}`,
  }
  return { ...sessionRows(on), ...requestRows(on), ...upkeep(on) }
}

export const stateColumns: readonly SqlStatement[] = [
  sql`epoch`,
  sql`acknowledged`,
  sql`last_sequence`,
  sql`fence`,
  sql`lease_until_ms`,
  sql`is_closed`,
  sql`request_window`,
]

function sessionRows(on: Tables): Pick<SessionRows, 'make' | 'lock' | 'share' | 'write'> {
  const { database, settings, sessions, of, bound, row, insert, orNothing, forUpdate, forShare } = on
  const look = async (session: SqlSession, client: string, end: SqlStatement): Promise<FoundSession | undefined> => {
    const columns = row(database.nowMs(), ...stateColumns)
    const [found] = await session.query(sql`select ${columns} from ${sessions} where ${of(client)} ${end}`)
    return found === undefined ? undefined : readSession(read(found))
  }
  return {
    async make(session, client) {
      await session.query(sql`
        ${insert} ${sessions}
          (scope, client, epoch, acknowledged, last_sequence, fence, lease_until_ms, forget_at_ms, is_closed,
            request_window)
        values (${bound(settings.scope)}, ${bound(client)}, 0, 0, 0, 0, 0, 0, 1, 0) ${orNothing}`)
    },
    lock: (session, client) => look(session, client, forUpdate),
    share: (session, client) => look(session, client, forShare),
    async write(session, client, { epoch, floor, last, fence, leaseUntilMs, isClosed, window }) {
      await session.query(sql`
        update ${sessions} set epoch = ${String(epoch)}, acknowledged = ${String(floor)}, last_sequence = ${String(last)},
          fence = ${String(fence)}, lease_until_ms = ${String(leaseUntilMs)},
          forget_at_ms = ${String(leaseUntilMs + settings.tombstoneMs)}, is_closed = ${isClosed ? '1' : '0'},
          request_window = ${String(window)}
        where ${of(client)}`)
    },
  }
}

function requestRows(on: Tables): Pick<SessionRows, 'clean' | 'find' | 'take' | 'add' | 'answer' | 'remove'> {
  const { settings, requests, of, bound, row, skipLocked } = on
  const one = ({ client, epoch, sequence }: RequestName): SqlStatement =>
    sql`${of(client)} and epoch = ${String(epoch)} and sequence = ${String(sequence)}`
  const look = async (
    session: SqlSession,
    asked: RequestName,
    end: SqlStatement,
  ): Promise<FoundRequest | undefined> => {
    const columns = row(sql`fingerprint`, sql`outcome`)
    const [found] = await session.query(sql`select ${columns} from ${requests} where ${one(asked)} ${end}`)
    if (found === undefined) return undefined
    const [fingerprint, outcome] = read(found)
    return { fingerprint: fingerprint as string, outcome: outcome as string | null }
  }
  return {
    async clean(session, client, { epoch, floor }) {
      const found = await session.query(sql`
        select ${row(sql`epoch`, sql`sequence`)} from ${requests}
        where ${of(client)} and (epoch < ${String(epoch)} or sequence <= ${String(floor)})
        order by epoch, sequence ${skipLocked}`)
      if (found.length === 0) return
      const free = found.map(read).map((names) => sql`(epoch = ${String(names[0])} and sequence = ${String(names[1])})`)
      await session.query(sql`delete from ${requests} where ${of(client)} and (${join(free, ' or ')})`)
    },
    find: (session, asked) => look(session, asked, sql``),
    take: (session, asked) => look(session, asked, skipLocked),
    async add(session, { client, epoch, sequence, fingerprint }) {
      await session.query(sql`
        insert into ${requests} (scope, client, epoch, sequence, fingerprint)
        values (${bound(settings.scope)}, ${bound(client)}, ${String(epoch)}, ${String(sequence)}, ${fingerprint})`)
    },
    async answer(session, asked, outcome) {
      await session.query(sql`update ${requests} set outcome = ${outcome} where ${one(asked)}`)
    },
    async remove(session, asked) {
      await session.query(sql`delete from ${requests} where ${one(asked)}`)
    },
  }
}

function upkeep(on: Tables): Pick<SessionRows, 'ended' | 'forget'> {
  const { database, settings, sessions, requests, of, bound, row, name, readName } = on
  const { scope } = settings
  return {
    async ended(limit) {
      const found = await database.query(sql`
        select ${row(name(sql`client`))} from ${sessions} s
        where scope = ${bound(scope)} and lease_until_ms <= ${database.nowMs()} and (forget_at_ms <= ${database.nowMs()}
          or exists (select 1 from ${requests} r where r.scope = s.scope and r.client = s.client))
        limit ${integer(limit)}`)
      return found.map(read).map(([client]) => readName(client))
    },
    async forget(session, client) {
      await session.query(sql`
        delete from ${sessions} where ${of(client)} and forget_at_ms <= ${database.nowMs()}
          and not exists (select 1 from ${requests} where ${of(client)})`)
    },
  }
}

/** Of the time and `stateColumns`. */
export function readSession(columns: readonly unknown[]): FoundSession {
  const [nowMs, epoch, floor, last, fence, leaseUntilMs, isClosed, window] = columns.slice(0, 8).map(Number)
  return {
    nowMs: nowMs!,
    epoch: epoch!,
    floor: floor!,
    last: last!,
    fence: fence!,
    leaseUntilMs: leaseUntilMs!,
    isClosed: isClosed === 1,
    window: window!,
  }
}

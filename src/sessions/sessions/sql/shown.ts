// What people see of sessions on a SQL database. Nothing here locks a row.

import { columnsOf, read } from '../../../clients/sql-columns.ts'
import type { SqlDatabase } from '../../../clients/sql-database.ts'
import { integer, join, sql } from '../../../clients/sql-statement.ts'
import type { SqlStatement } from '../../../clients/sql-statement.ts'
import { shownState } from '../ground.ts'
import type { ScopedFilter, ScopedSession, SessionInFull, SessionName } from '../ground.ts'
import { readSession, stateColumns } from './rows.ts'

export function shownSessions(database: SqlDatabase, filter: ScopedFilter): Promise<readonly ScopedSession[]> {
  return select(database, wanted(database, filter), filter.limit ?? 100)
}

export async function showInFull(database: SqlDatabase, name: SessionName): Promise<SessionInFull | undefined> {
  const { bound, row } = columnsOf(database.dialect)
  const which = sql`scope = ${bound(name.scope)} and client = ${bound(name.session)}`
  const [found] = await select(database, which, 1)
  if (!found) return undefined
  const { scope: _scope, ...session } = found
  const isAnswered = sql`case when outcome is null then 0 else 1 end`
  const numbers = await database.query(sql`
    select ${row(sql`sequence`, isAnswered)} from ${database.table('session_requests')}
    where ${which} and epoch = ${String(session.epoch)} and sequence > ${String(session.floor)} order by sequence`)
  const requests = numbers.map((each) => read(each).map(Number) as [sequence: number, isAnswered: number])
  return {
    ...session,
    answered: requests.flatMap(([sequence, answered]) => (answered === 1 ? [sequence] : [])),
    unanswered: requests.flatMap(([sequence, answered]) => (answered === 1 ? [] : [sequence])),
  }
}

async function select(database: SqlDatabase, which: SqlStatement, limit: number): Promise<readonly ScopedSession[]> {
  const { row, name, readName } = columnsOf(database.dialect)
  const count = sql`(select count(*) from ${database.table('session_requests')} r
    where r.scope = s.scope and r.client = s.client and r.epoch = s.epoch)`
  const columns = row(database.nowMs(), ...stateColumns, name(sql`scope`), name(sql`client`), count)
  const found = await database.query(sql`
    select ${columns} from ${database.table('sessions')} s where ${which} and forget_at_ms > ${database.nowMs()}
    order by scope, client limit ${integer(limit)}`)
  return found.map(read).map((each) => {
    const session = readSession(each)
    const { epoch, floor, last, leaseUntilMs, window } = session
    const state = shownState(session, session.nowMs)
    const requests = state === 'open' ? Number(each[10]) : 0
    const [scope, client] = [readName(each[8]), readName(each[9])]
    return { scope, session: client, epoch, state, floor, last, requests, leaseUntilMs, window }
  })
}

function wanted({ dialect }: SqlDatabase, { scope, begins, after }: ScopedFilter): SqlStatement {
  const { bound } = columnsOf(dialect)
  const conditions = [sql`1 = 1`]
  if (scope !== undefined) conditions.push(sql`scope = ${bound(scope)}`)
  if (after && scope === after.scope) conditions.push(sql`client > ${bound(after.session)}`)
  else if (after) conditions.push(sql`(scope, client) > (${bound(after.scope)}, ${bound(after.session)})`)
  if (begins !== undefined) {
    // MySQL counts the bytes of a name, the others its characters. The first condition is for the index.
    const length = dialect === 'mysql' ? Buffer.byteLength(begins) : [...begins].length
    conditions.push(sql`client >= ${bound(begins)} and substr(client, 1, ${integer(length)}) = ${bound(begins)}`)
  }
  return join(conditions, ' and ')
}

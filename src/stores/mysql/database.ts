// The database of the store, for tables beside its own (clients/sql-database.ts). Invariants as in transactions.ts: a COMMIT is sent
// once, and a connection whose state is unknown never goes back to the pool.

import { answersOf, senderOf } from '../../clients/mysql.ts'
import type { MysqlHeldConnection, MysqlSend } from '../../clients/mysql.ts'
import type { SqlDatabase, SqlSession, SqlTransaction } from '../../clients/sql-database.ts'
import { piece, textOf } from '../../clients/sql-statement.ts'
import type { SqlStatement } from '../../clients/sql-statement.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import { commitUnknown, databaseCalls, endedByEffect } from '../sql-answers.ts'
import type { MysqlContext } from './context.ts'
import { isConflict, isSavepointMissing, saysRolledBack, storeError } from './errors.ts'
import { clockSql } from './pieces.sql.ts'
import { abandon, notCommitted, rollback } from './transactions.ts'

export function mysqlDatabase<Client>(context: MysqlContext<Client>): SqlDatabase<Client> {
  const { table, clock, connections, ready } = context
  const tableName = (suffix: string): string => `\`${table}_${suffix}\``
  return {
    dialect: 'mysql',
    tableName,
    table: (suffix) => piece(tableName(suffix)),
    nowMs: () => piece(`(${clockSql} div 1000)`),
    isConflict,
    ...databaseCalls({
      clock,
      storeError,
      isConflict,
      ready: () => ready(connections),
      alone: (statement) => alone(context, statement),
      open: (key) => begin(context, key),
      async create(statements) {
        for (const statement of statements) await connections.run(statement)
      },
    }),
    join: (tx, caller) => session(senderOf(tx, caller)),
  }
}

function session(send: MysqlSend): SqlSession {
  const questionMark = (): string => '?'
  return { query: async (statement) => answersOf(await send(textOf(statement, questionMark), statement.values)) }
}

async function alone<Client>(
  { table, connections }: MysqlContext<Client>,
  statement: SqlStatement,
): Promise<readonly string[]> {
  const connection = await connections.connect()
  try {
    const answers = await session(senderOf(connection.client, 'onceonly')).query(statement)
    connection.release()
    return answers
  } catch (error) {
    await rollback(table, connection)
    throw error
  }
}

// autocommit is off until the end: what comes after a deadlock, or after the abandoned handler's rollback, is in a transaction that
// is never committed. The savepoint is gone when the transaction is not the one that was opened any more.
async function begin<Client>(
  { table, clock, connections }: MysqlContext<Client>,
  key: Key,
): Promise<SqlTransaction<Client>> {
  const connection = await connections.connect()
  try {
    await connection.run('set @onceonly_autocommit = @@autocommit, autocommit = 0')
    await connection.run('savepoint onceonly_opened')
  } catch (error) {
    connection.destroy()
    throw error
  }
  return {
    tx: connection.client,
    ...session(senderOf(connection.client, 'onceonly')),
    commit: () => commit(table, connection, key),
    rollback: () => rollback(table, connection),
    abandon: () => abandon(clock, connection),
  }
}

async function commit(table: string, connection: MysqlHeldConnection<unknown>, key: Key): Promise<void> {
  try {
    await connection.run('release savepoint onceonly_opened')
  } catch (error) {
    await rollback(table, connection)
    if (isSavepointMissing(error)) throw endedByEffect(key, error)
    throw storeError(error, `commit the transaction for ${describeKey(key)}`, 'no')
  }
  try {
    await connection.run('commit')
  } catch (error) {
    if (saysRolledBack(error)) {
      await rollback(table, connection)
      throw notCommitted(key, error)
    }
    connection.destroy()
    throw commitUnknown(key, error)
  }
  // It is committed, whatever becomes of the connection.
  await connection.run('set autocommit = coalesce(@onceonly_autocommit, 1)').then(
    () => connection.release(),
    () => connection.destroy(),
  )
}

// The database of the store, for tables beside its own (clients/sql-database.ts). Invariants as in transactions.ts: a COMMIT is sent
// once, and only its tag says that it happened. A connection whose state is unknown never goes back to the pool.

import { limited, postgresTransactionOf } from '../../clients/postgres.ts'
import type { PostgresConnection, PostgresOpenTransaction } from '../../clients/postgres.ts'
import type { SqlDatabase, SqlSession, SqlTransaction } from '../../clients/sql-database.ts'
import { piece } from '../../clients/sql-statement.ts'
import type { SqlStatement } from '../../clients/sql-statement.ts'
import { systemRandom } from '../../core/clock.ts'
import type { Key } from '../../core/key.ts'
import { databaseCalls } from '../sql-answers.ts'
import type { PostgresContext } from './context.ts'
import { endedState, isConflict, storeError } from './errors.ts'
import { clockMs, qualified } from './names.ts'
import { migrationLock } from './statements.ts'
import { commitLast, rollback } from './transactions.ts'

export function postgresDatabase<Client>(context: PostgresContext<Client>): SqlDatabase<Client> {
  const { names, clock, connections, ready } = context
  const tableName = (suffix: string): string => qualified(names, `_${suffix}`)
  return {
    dialect: 'postgres',
    tableName,
    table: (suffix) => piece(tableName(suffix)),
    nowMs: () => piece(clockMs),
    isConflict,
    ...databaseCalls({
      clock,
      storeError,
      isConflict,
      ready: () => ready(limited(connections)),
      alone: (statement) => alone(context, statement),
      open: (key) => begin(context, key),
      create: (statements) => connections.run([migrationLock, ...statements]),
    }),
    join: (tx, caller) => session(postgresTransactionOf(tx, caller)),
  }
}

function session(open: PostgresOpenTransaction): SqlSession {
  return {
    query: async (statement) => (await open.query(statement)).map((row) => (row as { readonly answer: string }).answer),
  }
}

async function alone<Client>(
  { connections }: PostgresContext<Client>,
  statement: SqlStatement,
): Promise<readonly string[]> {
  const connection = await connections.connect()
  try {
    const answers = await session(postgresTransactionOf(connection.client, 'onceonly')).query(statement)
    connection.release()
    return answers
  } catch (error) {
    await rollback(connection)
    throw error
  }
}

// The server drops the setting at every end of a transaction, so it tells whether the transaction is still the one that was opened.
async function begin<Client>({ connections }: PostgresContext<Client>, key: Key): Promise<SqlTransaction<Client>> {
  const connection: PostgresConnection<Client> = await connections.connect()
  const mark = systemRandom.uuid()
  try {
    await connection.run(['BEGIN', `select set_config('onceonly.transaction', '${mark}', true)`])
  } catch (error) {
    await rollback(connection)
    throw error
  }
  const isStillOpen = `do $$ begin
  if current_setting('onceonly.transaction', true) is distinct from '${mark}' then
    raise exception 'the transaction has ended' using errcode = '${endedState}';
  end if;
end $$`
  return {
    tx: connection.client,
    ...session(postgresTransactionOf(connection.client, 'onceonly')),
    commit: async () => void (await commitLast(connection, key, isStillOpen)),
    rollback: () => rollback(connection),
    abandon: async () => connection.destroy(new Error('the handler outlived its deadline')),
  }
}

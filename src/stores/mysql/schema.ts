// The schema as a list of statements, whether a database has it, and how it gets there.

import type { MysqlConnections, MysqlSession } from '../../clients/mysql.ts'
import { decisions } from './decisions.sql.ts'
import { storeError } from './errors.ts'
import { word } from './literals.ts'
import { procedureName } from './names.ts'
import type { ProcedureName } from './names.ts'
import { operationDecisions } from './operations.sql.ts'
import { tablesSql } from './schema.sql.ts'

const procedures: Readonly<Record<ProcedureName, (table: string) => string>> = { ...decisions, ...operationDecisions }
export const procedureNames: readonly ProcedureName[] = Object.keys(procedures) as ProcedureName[]

/** Each can be sent as it is: a procedure is one statement, whatever semicolons it has inside. */
export function schemaStatements(table: string): string[] {
  const create = (name: ProcedureName): string[] => [
    `drop procedure if exists \`${procedureName(table, name)}\``,
    procedures[name](table),
  ]
  return [...tablesSql(table), ...procedureNames.flatMap(create)]
}

export interface FoundSchema {
  /** Undefined when there is no table. */
  readonly engine: string | undefined
  /** How many of our procedures there are. */
  readonly procedures: number
}

export async function findSchema(table: string, session: MysqlSession): Promise<FoundSchema> {
  const names = procedureNames.map((name) => word(procedureName(table, name)))
  const [row] = await session.run(`select
    (select t.engine from information_schema.tables t where t.table_schema = database() and t.table_name = ${word(table)}),
    (select count(*) from information_schema.routines r
      where r.routine_schema = database() and r.routine_name in (${names.join(', ')}))`)
  return { engine: row![0] ?? undefined, procedures: Number(row![1]) }
}

/** Another process may be migrating a server that is busy with other work. */
const migrationWaitS = 60

// DDL commits by itself, so a lock of the session keeps several processes that start at once apart. When there is nothing to
// do, nothing is locked.
export async function migrate(table: string, connections: MysqlConnections<unknown>): Promise<void> {
  const connection = await connections.connect().catch((error: unknown) => {
    throw storeError(error, 'migration', 'no')
  })
  const isMigrated = async (): Promise<boolean> => {
    const { engine, procedures: count } = await findSchema(table, connection)
    return engine !== undefined && count === procedureNames.length
  }
  // Destroyed, not released: that ends the lock, whatever happened.
  try {
    if (await isMigrated()) return
    // The name of a lock has at most 64 characters. MySQL 9.7 has no MD5.
    const name = `concat('onceonly ', left(sha2(concat_ws('.', database(), '${table}'), 256), 40))`
    const [row] = await connection.run(`select get_lock(${name}, ${migrationWaitS})`)
    if (row![0] !== '1') throw new Error(`another process has been migrating ${table} for ${migrationWaitS} s`)
    if (await isMigrated()) return
    for (const statement of schemaStatements(table)) await connection.run(statement)
  } catch (error) {
    throw storeError(error, 'migration', 'no')
  } finally {
    connection.destroy()
  }
}

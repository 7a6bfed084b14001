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
  /** Whether there is the table of the entries. */
  readonly isThere: boolean
  /** One of our tables that is not of InnoDB. */
  readonly other?: { readonly table: string; readonly engine: string }
  /** How many of our procedures there are. */
  readonly procedures: number
}

export async function findSchema(table: string, session: MysqlSession): Promise<FoundSchema> {
  const names = procedureNames.map((name) => word(procedureName(table, name)))
  const tables = ['', '_operations', '_steps', '_audit'].map((suffix) => word(table + suffix))
  const [row] = await session.run(`select
    exists (select * from information_schema.tables t where t.table_schema = database() and t.table_name = ${word(table)}),
    (select concat(t.table_name, ' ', t.engine) from information_schema.tables t
      where t.table_schema = database() and t.table_name in (${tables.join(', ')}) and t.engine <> 'InnoDB'
      order by t.table_name limit 1),
    (select count(*) from information_schema.routines r
      where r.routine_schema = database() and r.routine_name in (${names.join(', ')}))`)
  const [unsafe, engine] = row![1]?.split(' ') ?? []
  return {
    isThere: row![0] === '1',
    ...(unsafe !== undefined && { other: { table: unsafe, engine: engine! } }),
    procedures: Number(row![2]),
  }
}

/** Another process may be migrating a server that is busy with other work. */
const migrationWaitS = 60

// DDL commits by itself, so a lock of the session keeps several processes that start at once apart. When there is nothing to
// do, nothing is locked.
export async function migrate(table: string, connections: MysqlConnections<unknown>): Promise<void> {
  const connection = await connections.connect().catch((error: unknown) => {
    throw storeError(error, 'migrate', 'no')
  })
  const isMigrated = async (): Promise<boolean> => {
    const { isThere, procedures: count } = await findSchema(table, connection)
    return isThere && count === procedureNames.length
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
    throw storeError(error, 'migrate', 'no')
  } finally {
    connection.destroy()
  }
}

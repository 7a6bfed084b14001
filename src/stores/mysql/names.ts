// What the procedures are called in the database.

/** The procedures carry it in their names: during a rolling deployment old and new code each find their own. */
const schemaVersion = 4

export type ProcedureName =
  | 'claim'
  | 'take'
  | 'begin'
  | 'within'
  | 'write'
  | 'put'
  | 'batch'
  | 'commit'
  | 'rollback'
  | 'settle'
  | 'sweep'
  | 'mend'
  | 'clock'
  | OperationProcedureName

export type OperationProcedureName =
  | 'enlisted'
  | 'advance'
  | 'advanced'
  | 'advances'
  | 'begin_step'
  | 'commit_step'
  | 'ledger'
  | 'due'
  | 'dismiss'
  | 'cancel'
  | 'unfinished'
  | 'sweep_steps'

/** A table's name has at most 48 characters and an identifier 64, which leaves twelve for the name here. */
export function procedureName(table: string, name: ProcedureName | 'index'): string {
  return `${table}_${name}_v${schemaVersion}`
}

// The pieces of a write's statement that come from a row: its columns, its values, and conditions on them.

import { join, name, sql } from '../clients/sql-statement.ts'
import type { SqlStatement } from '../clients/sql-statement.ts'
import type { Row } from './writes.ts'

export function names(row: Row): SqlStatement {
  return join(Object.keys(row).map(name), ', ')
}

export function values(row: Row): SqlStatement {
  return join(
    Object.values(row).map((value) => sql`${value}`),
    ', ',
  )
}

export function where(row: Row): SqlStatement {
  return join(equalities(row), ' and ')
}

export function assignments(row: Row): SqlStatement {
  return join(equalities(row), ', ')
}

function equalities(row: Row): SqlStatement[] {
  return Object.entries(row).map(([column, value]) => sql`${name(column)} = ${value}`)
}

// What a seeded bug is: one change of one file of the source, and the assertion that must notice it. `find` matches exactly
// once in today's source (table.test.ts sees to it), so a row cannot come to mean nothing.

import type { Assertion } from '../../src/testing/history-checker-violation.ts'

export type Group = 'claim, lease, fence' | 'transactions' | 'stores' | 'http' | 'operations' | 'gateway'

export interface SeededBug {
  /** What is wrong, in a few words: the name of the row. */
  readonly id: string
  readonly group: Group
  readonly file: string
  readonly find: string
  readonly replace: string
  readonly caughtBy: CaughtBy
}

export type CaughtBy =
  /** An assertion of the history checker, within so many schedules of npm run simulate. */
  | { readonly simulation: Assertion; readonly schedulesMax: number }
  /** A test of a file by its name, as it is written there (a case of the store contract: as it is written in the contract). */
  | { readonly file: string; readonly test: string; readonly server?: Server }

/** Rows that need a server are not part of a quick run. */
export type Server = 'postgres' | 'redis' | 'mariadb' | 'dynamodb' | 'mongodb'

// Nearly all are found within three hundred; ten times that leaves room for a generator that changes.
const schedulesMaxUsual = 3_000

export function bySimulation(simulation: Assertion, schedulesMax: number = schedulesMaxUsual): CaughtBy {
  return { simulation, schedulesMax }
}

export function byTest(file: string, test: string, server?: Server): CaughtBy {
  return { file, test, ...(server && { server }) }
}

export function describeCaughtBy(caughtBy: CaughtBy): string {
  return 'simulation' in caughtBy ? `simulation: ${caughtBy.simulation}` : `${caughtBy.file}: "${caughtBy.test}"`
}

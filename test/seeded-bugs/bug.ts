// What a seeded bug is: one change of one file of the source, and the assertion that must notice it. `find` matches exactly once
// in today's source (table.test.ts sees to it), so a row cannot lose its meaning.

import type { Assertion } from '../../src/testing/history-checker.ts'
import type { MessageAssertion } from '../messages/simulation/world.ts'
import type { SessionAssertion } from '../sessions/simulation/world.ts'
import type { SimulationAssertion } from '../simulation/simulations.ts'

export type Group =
  | 'claim, lease, fence'
  | 'transactions'
  | 'stores'
  | 'writes'
  | 'http'
  | 'operations'
  | 'messages'
  | 'sessions'
  | 'client'
  | 'webhooks'
  | 'gateway'
  | 'dashboard'
  | 'program'

export interface SeededBug {
  /** What is wrong, in a few words: the name of the row. */
  readonly id: string
  readonly group: Group
  readonly file: string
  readonly find: string
  readonly replace: string
  readonly caughtBy: CaughtBy
}

/** What npm run simulate runs schedules of. */
export type Simulated = 'keys' | 'redis' | 'operations' | 'inbox' | 'ways' | 'chain' | 'sessions'

export type CaughtBy =
  /** An assertion of the checker, within so many schedules of npm run simulate. */
  | { readonly simulation: SimulationAssertion; readonly of: Simulated; readonly schedulesMax: number }
  /** A test of a file by its name, as it is written there (a case of the store contract: as it is written in the contract). */
  | { readonly file: string; readonly test: string; readonly needs?: Needs }

type Row = Omit<SeededBug, 'group' | 'file'>

export function bugsIn(file: string, group: Group, rows: readonly Row[]): SeededBug[] {
  return rows.map((row) => ({ ...row, group, file }))
}

/** Rows that need a server, or processes that take their time, are not part of a quick run. */
export type Needs =
  | 'postgres'
  | 'redis'
  | 'valkey'
  | 'mariadb'
  | 'dynamodb'
  | 'mongodb'
  | 'elasticmq'
  | 'rabbitmq'
  | 'nats'
  | 'kafka'
  | 'chromium'
  | 'time'

// Nearly all are found within three hundred. Ten times that leaves room for a generator that changes.
const schedulesMaxUsual = 3_000

export function bySimulation(simulation: Assertion, schedulesMax: number = schedulesMaxUsual): CaughtBy {
  return { simulation, of: 'keys', schedulesMax }
}

/** The same in schedules of keys on Redis. */
export function byRedis(simulation: Assertion, schedulesMax: number = schedulesMaxUsual): CaughtBy {
  return { simulation, of: 'redis', schedulesMax }
}

/** The same in schedules of operations. */
export function byOperations(simulation: Assertion, schedulesMax: number = schedulesMaxUsual): CaughtBy {
  return { simulation, of: 'operations', schedulesMax }
}

/** The same in schedules of the inbox, of its ways without a common commit, or of the whole chain. They take longer, so they must find it sooner. */
export function byMessages(simulation: MessageAssertion, of: 'inbox' | 'ways' | 'chain' = 'inbox'): CaughtBy {
  return { simulation, of, schedulesMax: 1_000 }
}

/** The same in schedules of sessions. */
export function bySessions(simulation: SessionAssertion): CaughtBy {
  return { simulation, of: 'sessions', schedulesMax: 1_000 }
}

export function byTest(file: string, test: string, needs?: Needs): CaughtBy {
  return { file, test, ...(needs && { needs }) }
}

export function describeCaughtBy(caughtBy: CaughtBy): string {
  return 'simulation' in caughtBy
    ? `simulation of ${caughtBy.of}: ${caughtBy.simulation}`
    : `${caughtBy.file}: "${caughtBy.test}"`
}

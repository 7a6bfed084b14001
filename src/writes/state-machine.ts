// A state that only moves along declared edges. An undeclared edge is refused before anything is sent: by the compiler where it
// sees the states, and at run time always.

import { invalidArgument } from '../core/errors.ts'
import { aString, checkOptions, optional } from '../core/options.ts'
import type { Rule } from '../core/options.ts'
import type { Answers, Requests, Value } from './writes.ts'

/** For each state, the states that may follow it. */
export type Edges<State extends string> = Readonly<Record<State, readonly State[]>>

/** What postgresWrites, mysqlWrites, sqliteWrites, dynamodbWrites and mongodbWrites return, as far as it is used here. */
export interface TransitionWrites<Answer> {
  compareAndSet(table: string, request: Requests['compareAndSet']): Answer
}

export interface StateMachineOptions<Tx, Answer> {
  /** Which database: postgresWrites, mysqlWrites … */
  readonly on: (tx: Tx) => TransitionWrites<Answer>
  readonly table: string
  /** The column that identifies a row. Default "id". */
  readonly id?: string | undefined
  /** The column of the state. Default "state". */
  readonly state?: string | undefined
}

export type Transition = Answers['compareAndSet']

export interface StateMachine<Tx, Answer, Declared> {
  readonly states: readonly (keyof Declared & string)[]
  /**
   * applied: the row was in `from` and is now in `to`. already: it is in `to`. conflict: it is in a third state. missing: there
   * is no such row.
   */
  transition<From extends keyof Declared & string>(
    tx: Tx,
    id: Value,
    from: From,
    to: Declared[From] extends readonly (infer To)[] ? To & string : never,
  ): Answer
}

/**
 * A state that moves only along the edges declared here. A transition is one `compareAndSet`, so a repeated one is 'already'.
 *
 * @example
 * import { DatabaseSync } from 'node:sqlite'
 * import { sqliteWrites, stateMachine } from 'onceonly/writes'
 *
 * const doors = stateMachine({ open: ['shut'], shut: ['open'] }, { on: sqliteWrites, table: 'doors' })
 * // 'applied', 'already', 'conflict' or 'missing'.
 * const moved = doors.transition(new DatabaseSync('house.db'), 1, 'open', 'shut')
 */
export function stateMachine<
  const Declared extends { readonly [From in keyof Declared]: readonly (keyof Declared & string)[] },
  Tx,
  Answer extends Transition | Promise<Transition>,
>(edges: Declared, options: StateMachineOptions<Tx, Answer>): StateMachine<Tx, Answer, Declared> {
  const { on, table, id: idColumn = 'id', state: stateColumn = 'state' } = checked(options)
  const following = checkedEdges(edges as Edges<string>)
  return {
    states: [...following.keys()] as (keyof Declared & string)[],
    transition(tx, id, from, to) {
      refuseUndeclared(following, from, to)
      return on(tx).compareAndSet(table, {
        key: { [idColumn]: id },
        expect: { [stateColumn]: from },
        set: { [stateColumn]: to },
      })
    },
  }
}

const aFunction: Rule = (value) => (typeof value === 'function' ? undefined : 'a function such as postgresWrites')

function checked<Options extends object>(options: Options): Options {
  checkOptions('stateMachine', options, {
    on: aFunction,
    table: aString,
    id: optional(aString),
    state: optional(aString),
  })
  return options
}

/** Copied once, so that later changes of the edges have no effect. */
function checkedEdges(edges: Edges<string>): ReadonlyMap<string, ReadonlySet<string>> {
  const entries = typeof edges === 'object' && edges !== null ? Object.entries(edges) : []
  if (entries.length === 0) throw invalidArgument('stateMachine: expected an object of states, got none')
  for (const [from, targets] of entries) {
    if (!Array.isArray(targets)) {
      throw invalidArgument(
        `stateMachine: expected the states that follow "${from}" to be an array; [] for a final state`,
      )
    }
    for (const to of targets) checkTarget(edges, from, to)
  }
  return new Map(entries.map(([from, targets]) => [from, new Set(targets)]))
}

function checkTarget(edges: Edges<string>, from: string, to: string): void {
  if (!Object.hasOwn(edges, to)) {
    throw invalidArgument(
      `stateMachine: "${from}" leads to "${to}", which is not declared. Add it, with [] if nothing follows it.`,
    )
  }
  // Applied and already would look the same, so a repeated call could not be distinguished from a first one.
  if (to === from) {
    throw invalidArgument(`stateMachine: "${from}" leads to itself, which cannot be told from a call that was repeated`)
  }
}

function refuseUndeclared(following: ReadonlyMap<string, ReadonlySet<string>>, from: string, to: string): void {
  const allowed = following.get(from)
  if (allowed?.has(to)) return
  const known = allowed ?? new Set(following.keys())
  throw invalidArgument(
    allowed
      ? `transition: expected one of the states that follow "${from}" (${[...known].join(', ') || 'none: it is final'}), got ${show(to)}`
      : `transition: expected one of the states ${[...known].join(', ')}, got ${show(from)}`,
  )
}

function show(state: unknown): string {
  return typeof state === 'string' ? JSON.stringify(state.slice(0, 80)) : typeof state
}

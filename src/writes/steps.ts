// A write on SQL is a generator: it yields statements and receives their results. So the same logic serves clients that return
// at once (SQLite) and those that are awaited.

import { rounds } from '../core/backoff.ts'
import { OnceError } from '../core/errors.ts'
import { eachWrite } from './requests.ts'
import type { SqlStatement } from '../clients/sql-statement.ts'
import type { Answers, Requests, SyncWrites, WriteName, Writes } from './writes.ts'

export interface WriteResult {
  readonly rows: readonly unknown[]
  /** What an INSERT counts, see mysql/statements.ts. Only MySQL sets it. */
  readonly affected?: number
  /** How many rows an UPDATE really changed. Only MySQL sets it. */
  readonly changed?: number
  /** What LAST_INSERT_ID was set to. Only MySQL sets it. */
  readonly insertId?: number
}

export type WriteSteps<Answer> = Generator<SqlStatement, Answer, WriteResult>

export type SqlWrites = {
  readonly [Name in WriteName]: (table: string, request: Requests[Name]) => WriteSteps<Answers[Name]>
}

type Checks = <Name extends WriteName>(name: Name, table: unknown, request: Requests[Name]) => void

export function asyncWrites(
  writes: SqlWrites,
  check: Checks,
  send: (statement: SqlStatement) => PromiseLike<WriteResult>,
): Writes {
  const run = async <Answer>(steps: WriteSteps<Answer>): Promise<Answer> => {
    let next = steps.next()
    while (!next.done) {
      const statement = next.value
      const result = await send(statement).then(
        (value) => () => steps.next(value),
        (error: unknown) => () => steps.throw(error),
      )
      next = result()
    }
    return next.value
  }
  return eachWrite<Writes>((name) => async (table, request) => {
    check(name, table, request)
    return run<unknown>(writes[name](table, request))
  })
}

export function syncWrites(
  writes: SqlWrites,
  check: Checks,
  send: (statement: SqlStatement) => WriteResult,
): SyncWrites {
  const run = <Answer>(steps: WriteSteps<Answer>): Answer => {
    let next = steps.next()
    while (!next.done) {
      let go: () => typeof next
      try {
        const result = send(next.value)
        go = () => steps.next(result)
      } catch (error) {
        go = () => steps.throw(error)
      }
      next = go()
    }
    return next.value
  }
  return eachWrite<SyncWrites>((name) => (table, request) => {
    check(name, table, request)
    return run<unknown>(writes[name](table, request))
  })
}

export function answerOf<Answer extends string>({ rows }: WriteResult): Answer | undefined {
  return (rows[0] as { readonly answer: Answer } | undefined)?.answer
}

export function restless(write: WriteName, table: string): OnceError {
  return new OnceError('TRANSACTION_CONFLICT', {
    message:
      `${write}: the row in ${table} was deleted and inserted by others ${rounds.write} times while it was written; nothing ` +
      'was changed by this call. Call it again.',
  })
}

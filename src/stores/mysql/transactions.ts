// The store inside a transaction, the caller's (`within`) or the store's own (`begin`). Invariants: the settle and the COMMIT are
// one call of a procedure that rolls back what is lost. It is sent once. A connection whose state is unknown never goes back to
// the pool.

import { sleep } from '../../core/clock.ts'
import type { Clock } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Began, Claim, ClaimRequest, Fenced, InTransaction, Retention } from '../../core/store.ts'
import type { MysqlHeldConnection, MysqlSession } from '../../clients/mysql.ts'
import {
  claimWhileLocked,
  commitRefused,
  commitUnknown,
  conflictWithOthers,
  endedByEffect,
  fencedOf,
  verdictOf,
} from '../sql-answers.ts'
import { retried } from './context.ts'
import type { MysqlContext } from './context.ts'
import { isConflict, isSavepointMissing, saysRolledBack, storeError } from './errors.ts'
import type { ServerLimits } from './fitness.ts'
import { callStatement, claimCall, savepoint, settleCall } from './statements.ts'

/** Room for our own words around the values. */
const packetRestBytes = 16 * 1024

/** A statement is one packet, and the server closes the connection over one that is too large. */
export function refuseTooLarge(
  length: number,
  limits: ServerLimits,
  key: Key,
  what: 'input' | 'outcome' | 'record',
): void {
  if (length + packetRestBytes <= limits.packetBytesMax) return
  const message =
    `The ${what} of ${describeKey(key)} makes a statement of ${length} bytes, and the server takes at most ` +
    `${limits.packetBytesMax} (max_allowed_packet). Nothing was written. Raise max_allowed_packet to more than twice the ` +
    `largest ${what}, or store less.`
  throw new OnceError(what === 'input' ? 'INVALID_ARGUMENT' : 'OUTCOME_NOT_STORED', { message })
}

export function within<Client>(context: MysqlContext<Client>, session: MysqlSession): InTransaction {
  const { table } = context
  const undo = (claim: Claim, before: 'claim' | 'effect'): Promise<void> =>
    session.run(`rollback to savepoint ${savepoint(claim.token, before)}`).then(
      () => {},
      (error: unknown) =>
        Promise.reject(storeError(error, `roll back to a savepoint of ${describeKey(claim.key)}`, 'unknown')),
    )
  return {
    async claim(key, request) {
      const call = claimCall(key, request)
      refuseTooLarge(call.length, await context.ready(session), key, 'input')
      try {
        await session.run(`savepoint ${savepoint(request.token, 'claim')}`)
        const [row] = await session.run(callStatement(table, 'within', call.values))
        const verdict = verdictOf(key, request, row![0]!)
        if (verdict.is === 'granted') await session.run(`savepoint ${savepoint(request.token, 'effect')}`)
        return verdict
      } catch (error) {
        throw storeError(error, `claim ${describeKey(key)}`, 'no')
      }
    },
    async settle(claim, outcome, retention) {
      const call = settleCall(claim, outcome, retention)
      refuseTooLarge(call.length, await context.ready(session), claim.key, 'outcome')
      try {
        const [row] = await session.run(callStatement(table, 'settle', call.values))
        // Locked: the entry is locked by another transaction, hence not the one that was claimed here.
        return fencedOf(row![0]!) === 'done' ? 'done' : 'lost'
      } catch (error) {
        throw storeError(error, `settle ${describeKey(claim.key)}`, 'unknown')
      }
    },
    undoEffect: (claim) => undo(claim, 'effect'),
    undoClaim: (claim) => undo(claim, 'claim'),
  }
}

/** BEGIN and claim in one round trip, settle and COMMIT in another: no more than a bare transaction has. */
export async function begin<Client>(
  context: MysqlContext<Client>,
  key: Key,
  request: ClaimRequest,
): Promise<Began<Client>> {
  try {
    const limits = await context.ready(context.connections)
    const call = claimCall(key, request)
    refuseTooLarge(call.length, limits, key, 'input')
    const statement = callStatement(context.table, 'begin', call.values)
    let began: Began<Client> | undefined
    await claimWhileLocked(context.clock, async () => {
      const begun = await retried(context.clock, () => beginOnce(context, key, request, statement, limits))
      began = begun.began
      return begun.answer
    })
    return began!
  } catch (error) {
    throw storeError(error, `claim ${describeKey(key)}`, 'no')
  }
}

async function beginOnce<Client>(
  { table, clock, connections }: MysqlContext<Client>,
  key: Key,
  request: ClaimRequest,
  statement: string,
  limits: ServerLimits,
): Promise<{ readonly answer: string; readonly began: Began<Client> }> {
  const connection = await connections.connect()
  try {
    const [row] = await connection.run(statement)
    const answer = row![0]!
    const verdict = verdictOf(key, request, answer)
    if (verdict.is === 'granted') {
      const open = granted({ table, clock, connection, limits, claim: verdict.claim })
      return { answer, began: { verdict, granted: open } }
    }
    // The procedure has rolled back already.
    connection.release()
    return { answer, began: { verdict } }
  } catch (error) {
    await rollback(table, connection)
    throw error
  }
}

interface MysqlGranted<Client> {
  readonly table: string
  readonly clock: Clock
  readonly connection: MysqlHeldConnection<Client>
  readonly limits: ServerLimits
  readonly claim: Claim
}

function granted<Client>(open: MysqlGranted<Client>): NonNullable<Began<Client>['granted']> {
  const { table, clock, connection, claim } = open
  return {
    tx: connection.client,
    commit: (outcome, retention) => commit(open, outcome, retention),
    undoEffect: () =>
      connection.run('rollback to savepoint onceonly_effect').then(
        () => {},
        (error: unknown) =>
          Promise.reject(storeError(error, `roll back the effect of ${describeKey(claim.key)}`, 'unknown')),
      ),
    rollback: () => rollback(table, connection),
    abandon: () => abandon(clock, connection),
  }
}

async function commit<Client>(open: MysqlGranted<Client>, outcome: Uint8Array, retention: Retention): Promise<Fenced> {
  const { table, connection, claim, limits } = open
  const answer = await commitLast(table, connection, claim.key, () => {
    const call = settleCall(claim, outcome, retention)
    refuseTooLarge(call.length, limits, claim.key, 'outcome')
    return callStatement(table, 'commit', call.values)
  })
  if (answer === 'ended') throw endedByEffect(claim.key)
  return answer === 'done' ? 'done' : 'lost'
}

/** Carries out a procedure that commits or rolls back, and returns its answer. */
export async function commitLast(
  table: string,
  connection: MysqlHeldConnection<unknown>,
  key: Key,
  statement: () => string,
): Promise<string> {
  let answer: string
  try {
    const [row] = await connection.run(statement())
    answer = row![0]!
  } catch (error) {
    if (!(error instanceof OnceError) && !saysRolledBack(error)) {
      connection.destroy()
      throw commitUnknown(key, error)
    }
    await rollback(table, connection)
    throw notCommitted(key, error)
  }
  connection.release()
  return answer
}

/** Never fails: a connection on which ROLLBACK fails is destroyed, and the server rolls back what it had open. */
export async function rollback(table: string, connection: MysqlHeldConnection<unknown>): Promise<void> {
  try {
    await connection.run(callStatement(table, 'rollback', []))
  } catch {
    return connection.destroy()
  }
  connection.release()
}

/** The effect may be in a long statement, and ROLLBACK waits for its turn. The server notices a closed connection later. */
const abandonMs = 1_000

// autocommit is off: what the effect sends between the ROLLBACK and the end of the connection is in a transaction that is never
// committed.
export async function abandon(clock: Clock, connection: MysqlHeldConnection<unknown>): Promise<void> {
  const ended = new AbortController()
  const rolledBack = connection.run('rollback').then(
    () => ended.abort(),
    () => ended.abort(),
  )
  await Promise.race([rolledBack, sleep(clock, abandonMs, { signal: ended.signal })])
  connection.destroy()
}

export function notCommitted(key: Key, cause: unknown): OnceError {
  if (cause instanceof OnceError) {
    return new OnceError(cause.code, { message: `${cause.message} The transaction was rolled back.`, executed: 'no' })
  }
  // A deadlock rolled it back and the step went on, or the step ended it (manually, or by DDL).
  if (isSavepointMissing(cause)) return endedByEffect(key, cause)
  if (isConflict(cause)) return conflictWithOthers('MySQL', `commit the transaction for ${describeKey(key)}`, cause)
  return commitRefused(key, cause, 'The same transaction would be refused again.')
}

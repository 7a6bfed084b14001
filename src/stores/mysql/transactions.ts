// The store inside a transaction, the caller's (`within`) or one of its own (`begin`). Invariants: the settle and the COMMIT are
// one call of a procedure that rolls back what is lost; it is sent once; a connection whose state is unknown never goes back to
// the pool.

import { backoffMs } from '../../core/backoff.ts'
import { sleep, systemRandom } from '../../core/clock.ts'
import type { Clock } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Began, Claim, ClaimRequest, Fenced, InTransaction, Retention } from '../../core/store.ts'
import type { Connection, Connections, Session } from '../../clients/mysql.ts'
import type { Readiness, ServerLimits } from './fitness.ts'
import { isConflict, isSavepointMissing, messageOf, saysRolledBack, storeError } from './errors.ts'
import { callStatement, claimCall, savepoint, settleCall } from './statements.ts'
import { claimWhileLocked, fencedOf, verdictOf } from '../sql-answers.ts'

export interface MysqlGround<Client> {
  readonly table: string
  readonly clock: Clock
  readonly connections: Connections<Client>
  /** Refuses a server on which the promise would not hold; asks on this session, so that no second connection is needed. */
  readonly ready: Readiness
}

/** A conflict before the effect costs one round trip; five in a row, with growing pauses, are not bad luck any more. */
const conflictTriesMax = 5
const conflictBackoff = { firstMs: 5, factor: 3, maxMs: 250 }

/** Runs again what the server refused because of others. Only for work that has done nothing else. */
export async function retried<T>(clock: Clock, work: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await work()
    } catch (error) {
      if (tries === conflictTriesMax || !isConflict(error)) throw error
      await sleep(clock, backoffMs(conflictBackoff, tries - 1, systemRandom))
    }
  }
}

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
    `The ${what} of ${describeKey(key)} makes a statement of ${length} bytes, and the server takes ${limits.packetBytesMax} ` +
    `(max_allowed_packet); nothing was written. Raise that to more than twice the largest ${what}, or store less.`
  throw new OnceError(what === 'input' ? 'INVALID_ARGUMENT' : 'OUTCOME_NOT_STORED', { message })
}

export function within<Client>(ground: MysqlGround<Client>, session: Session): InTransaction {
  const { table } = ground
  const undo = (claim: Claim, before: 'claim' | 'effect'): Promise<void> =>
    session.run(`rollback to savepoint ${savepoint(claim.token, before)}`).then(
      () => {},
      (error: unknown) => Promise.reject(storeError(error, 'rollback to a savepoint', 'unknown')),
    )
  return {
    async claim(key, request) {
      const call = claimCall(key, request)
      refuseTooLarge(call.length, await ground.ready(session), key, 'input')
      try {
        await session.run(`savepoint ${savepoint(request.token, 'claim')}`)
        const [row] = await session.run(callStatement(table, 'within', call.values))
        const verdict = verdictOf(key, request, row![0]!)
        if (verdict.is === 'granted') await session.run(`savepoint ${savepoint(request.token, 'effect')}`)
        return verdict
      } catch (error) {
        throw storeError(error, `claim of ${describeKey(key)}`, 'no')
      }
    },
    async settle(claim, outcome, retention) {
      const call = settleCall(claim, outcome, retention)
      refuseTooLarge(call.length, await ground.ready(session), claim.key, 'outcome')
      try {
        const [row] = await session.run(callStatement(table, 'settle', call.values))
        // Locked: the entry is there and locked by another transaction, hence not the one that was claimed here.
        return fencedOf(row![0]!) === 'done' ? 'done' : 'lost'
      } catch (error) {
        throw storeError(error, `settle of ${describeKey(claim.key)}`, 'unknown')
      }
    },
    undoEffect: (claim) => undo(claim, 'effect'),
    undoClaim: (claim) => undo(claim, 'claim'),
  }
}

/** BEGIN and claim in one round trip, settle and COMMIT in another: no more than a bare transaction has. */
export async function begin<Client>(
  ground: MysqlGround<Client>,
  key: Key,
  request: ClaimRequest,
): Promise<Began<Client>> {
  try {
    const limits = await ground.ready(ground.connections)
    const call = claimCall(key, request)
    refuseTooLarge(call.length, limits, key, 'input')
    const statement = callStatement(ground.table, 'begin', call.values)
    let began: Began<Client> | undefined
    await claimWhileLocked(ground.clock, async () => {
      const begun = await retried(ground.clock, () => beginOnce(ground, key, request, statement, limits))
      began = begun.began
      return begun.answer
    })
    return began!
  } catch (error) {
    throw storeError(error, `claim of ${describeKey(key)}`, 'no')
  }
}

async function beginOnce<Client>(
  { table, clock, connections }: MysqlGround<Client>,
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

interface Granted<Client> {
  readonly table: string
  readonly clock: Clock
  readonly connection: Connection<Client>
  readonly limits: ServerLimits
  readonly claim: Claim
}

function granted<Client>(open: Granted<Client>): NonNullable<Began<Client>['granted']> {
  const { table, clock, connection } = open
  return {
    tx: connection.client,
    commit: (outcome, retention) => commit(open, outcome, retention),
    undoEffect: () =>
      connection.run('rollback to savepoint onceonly_effect').then(
        () => {},
        (error: unknown) => Promise.reject(storeError(error, 'rollback of an effect', 'unknown')),
      ),
    rollback: () => rollback(table, connection),
    abandon: () => abandon(clock, connection),
  }
}

async function commit<Client>(open: Granted<Client>, outcome: Uint8Array, retention: Retention): Promise<Fenced> {
  const { table, connection, claim, limits } = open
  const answer = await commitLast(table, connection, claim.key, () => {
    const call = settleCall(claim, outcome, retention)
    refuseTooLarge(call.length, limits, claim.key, 'outcome')
    return callStatement(table, 'commit', call.values)
  })
  return answer === 'done' ? 'done' : 'lost'
}

/** Carries out a procedure that commits or rolls back, and gives its answer. */
export async function commitLast(
  table: string,
  connection: Connection<unknown>,
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
    throw commitRefused(key, error)
  }
  connection.release()
  return answer
}

/** Never fails: a connection on which it does is destroyed, and the server rolls back what it had open. */
export async function rollback(table: string, connection: Connection<unknown>): Promise<void> {
  try {
    await connection.run(callStatement(table, 'rollback', []))
  } catch {
    return connection.destroy()
  }
  connection.release()
}

/** The effect may be in a statement that lasts, and ROLLBACK waits for its turn; the server sees a closed connection later. */
const abandonMs = 1_000

// autocommit is off: what the effect sends between the ROLLBACK and the end of the connection is in a transaction that nobody
// commits.
export async function abandon(clock: Clock, connection: Connection<unknown>): Promise<void> {
  const ended = new AbortController()
  const rolledBack = connection.run('rollback').then(
    () => ended.abort(),
    () => ended.abort(),
  )
  await Promise.race([rolledBack, sleep(clock, abandonMs, { signal: ended.signal })])
  connection.destroy()
}

function commitUnknown(key: Key, cause: unknown): OnceError {
  const message =
    `The connection was lost while the transaction for ${describeKey(key)} was being committed: ${messageOf(cause)}. ` +
    `It is committed as a whole or not at all, and nobody can tell from here. Ask again with the same key: the answer will.`
  return new OnceError('OUTCOME_UNKNOWN', { message, cause })
}

function commitRefused(key: Key, cause: unknown): OnceError {
  if (cause instanceof OnceError) {
    return new OnceError(cause.code, { message: `${cause.message} The transaction was rolled back.`, executed: 'no' })
  }
  if (isSavepointMissing(cause)) {
    const message =
      `The transaction for ${describeKey(key)} had ended before its commit, and nothing was recorded. Either a deadlock rolled it ` +
      `back and the step went on (let the error out), or the step committed it (by hand, or by DDL, which commits by itself).`
    return new OnceError('INVALID_ARGUMENT', { message, cause, executed: 'unknown' })
  }
  if (isConflict(cause)) return storeError(cause, `commit for ${describeKey(key)}`, 'no')
  const message = `The transaction for ${describeKey(key)} could not be committed and was rolled back: ${messageOf(cause)}.`
  return new OnceError('STORE_UNAVAILABLE', { message, cause })
}

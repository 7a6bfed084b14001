// The store inside a transaction, the caller's (`within`) or one of its own (`begin`). Invariants: the settle is the last
// statement before COMMIT and goes with it in one message, so a lost claim cannot commit; a COMMIT is sent once, and only its
// tag says that it happened; a connection whose state is unknown never goes back to the pool.

import { sleep, systemRandom } from '../../core/clock.ts'
import type { Clock } from '../../core/clock.ts'
import { backoffMs } from '../../core/backoff.ts'
import { OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Began, Claim, ClaimRequest, Fenced, InTransaction, Retention } from '../../core/store.ts'
import { firstAnswer } from '../../clients/postgres.ts'
import type { Connection, Connections, Session, StatementResult } from '../../clients/postgres.ts'
import { isConflict, lostState, messageOf, saysRolledBack, sqlStateOf, storeError } from './errors.ts'
import type { SchemaNames } from './names.ts'
import { callStatement, claimCall, isUnwritten, recordStatement, writeCall } from './statements.ts'
import { fencedOf, verdictOf } from '../sql-answers.ts'

export interface TransactionGround<Client> {
  readonly names: SchemaNames
  readonly clock: Clock
  readonly connections: Connections<Client>
  /** Refuses a database on which the promise would not hold; asks on this session, so that no second connection is needed. */
  ready(session: Session): Promise<unknown>
}

/** A conflict before the effect costs one round trip; five in a row, with growing pauses, are not bad luck any more. */
const conflictTriesMax = 5
const conflictBackoff = { firstMs: 5, factor: 3, maxMs: 250 }

/** Runs again what the server rolled back because of others. Only for work that has done nothing else. */
export async function retried<T>(
  clock: Clock,
  passes: (error: unknown) => boolean,
  work: () => Promise<T>,
): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await work()
    } catch (error) {
      if (tries === conflictTriesMax || !passes(error)) throw error
      await sleep(clock, backoffMs(conflictBackoff, tries - 1, systemRandom))
    }
  }
}

// Two savepoints, named by the token so that nested calls do not meet: one to take back the claim and the lock with it,
// one to take back the effect alone.
function savepoints(token: string): { readonly claim: string; readonly effect: string } {
  return { claim: `"onceonly_claim_${token}"`, effect: `"onceonly_effect_${token}"` }
}

export function within<Client>(ground: TransactionGround<Client>, session: Session): InTransaction {
  const { names } = ground
  const open = new Set<string>()
  const undo = (statements: readonly string[]): Promise<void> =>
    session.run(statements).then(
      () => {},
      (error: unknown) => Promise.reject(storeError(error, 'rollback to a savepoint', 'unknown')),
    )
  const undoClaim = (token: string): Promise<void> => {
    const { claim } = savepoints(token)
    open.delete(token)
    return undo([`ROLLBACK TO SAVEPOINT ${claim}`, `RELEASE SAVEPOINT ${claim}`])
  }
  return {
    async claim(key, request) {
      await ground.ready(session)
      const { claim, effect } = savepoints(request.token)
      const statement = callStatement(names, claimCall(key, request))
      try {
        const results = await session.run([`SAVEPOINT ${claim}`, statement, `SAVEPOINT ${effect}`])
        const verdict = verdictOf(key, request, firstAnswer(results))
        if (verdict.is === 'granted') open.add(request.token)
        else await undoClaim(request.token)
        return verdict
      } catch (error) {
        throw storeError(error, `claim of ${describeKey(key)}`, 'no')
      }
    },
    settle: (claim, outcome, retention) => settleWithin(names, session, open, claim, outcome, retention),
    undoEffect: ({ token }) => undo([`ROLLBACK TO SAVEPOINT ${savepoints(token).effect}`]),
    undoClaim: ({ token }) => undoClaim(token),
  }
}

async function settleWithin(
  names: SchemaNames,
  session: Session,
  open: Set<string>,
  claim: Claim,
  outcome: Uint8Array,
  retention: Retention,
): Promise<Fenced> {
  const settle = callStatement(names, writeCall('settle-within', claim, retention.keepMs, retention, outcome))
  const release = open.delete(claim.token) ? [`RELEASE SAVEPOINT ${savepoints(claim.token).claim}`] : []
  try {
    const results = await session.run([settle, ...release])
    // Locked: the entry is there and locked by another transaction, hence not the one that was claimed here.
    return fencedOf(firstAnswer(results)) === 'done' ? 'done' : 'lost'
  } catch (error) {
    // The savepoint is gone: the caller rolled back to before the claim.
    if (sqlStateOf(error) === '3B001') return 'lost'
    throw storeError(error, `settle of ${describeKey(claim.key)}`, 'unknown')
  }
}

/** BEGIN and claim in one round trip, settle and COMMIT in another: no more than a bare transaction has. */
export async function begin<Client>(
  ground: TransactionGround<Client>,
  key: Key,
  request: ClaimRequest,
): Promise<Began<Client>> {
  try {
    await ground.ready(ground.connections)
    return await retried(ground.clock, isConflict, () => beginOnce(ground, key, request))
  } catch (error) {
    throw storeError(error, `claim of ${describeKey(key)}`, 'no')
  }
}

async function beginOnce<Client>(
  { names, connections }: TransactionGround<Client>,
  key: Key,
  request: ClaimRequest,
): Promise<Began<Client>> {
  const begins = ['BEGIN', callStatement(names, claimCall(key, request, 'begin'))]
  const connection = await connections.connect()
  try {
    const answer = firstAnswer(await connection.run(begins))
    const verdict = verdictOf(key, request, answer)
    if (verdict.is === 'granted') {
      return { verdict, granted: granted({ names, connection, request, begins, answer, claim: verdict.claim }) }
    }
    await rollback(connection)
    return { verdict }
  } catch (error) {
    await rollback(connection)
    throw error
  }
}

interface Granted<Client> {
  readonly names: SchemaNames
  readonly connection: Connection<Client>
  readonly request: ClaimRequest
  readonly begins: readonly string[]
  answer: string
  claim: Claim
}

function granted<Client>(open: Granted<Client>): NonNullable<Began<Client>['granted']> {
  const { connection } = open
  return {
    tx: connection.client,
    commit: (outcome, retention) => commit(open, outcome, retention),
    undoEffect: () => undoEffect(open),
    rollback: () => rollback(connection),
    abandon: async () => connection.destroy(new Error('the effect outlived its deadline')),
  }
}

// Everything back, and the claim again, in one message: a savepoint would cost every transaction for the sake of the few that
// are undone. Should somebody else have got the key in between, the commit finds no claim of ours and is lost.
async function undoEffect<Client>(open: Granted<Client>): Promise<void> {
  const { connection, request, begins } = open
  try {
    const answer = firstAnswer(await connection.run(['ROLLBACK', ...begins]))
    const verdict = verdictOf(open.claim.key, request, answer)
    if (verdict.is === 'granted') Object.assign(open, { answer, claim: verdict.claim })
    else open.answer = 'lost'
  } catch (error) {
    throw storeError(error, 'rollback of an effect', 'unknown')
  }
}

async function commit<Client>(open: Granted<Client>, outcome: Uint8Array, retention: Retention): Promise<Fenced> {
  const { names, connection, claim, request, answer } = open
  const settle = isUnwritten(answer)
    ? recordStatement(names, claim, request, outcome, retention)
    : callStatement(names, writeCall('settle-or-fail', claim, retention.keepMs, retention, outcome))
  return (await commitLast(connection, claim.key, settle)) === 'lost' ? 'lost' : 'done'
}

/** The statement and COMMIT in one message; the statement raises when the claim is lost, and then nothing is committed. */
export async function commitLast(
  connection: Connection<unknown>,
  key: Key,
  statement: string,
): Promise<readonly StatementResult[] | 'lost'> {
  let results: readonly StatementResult[]
  try {
    results = await connection.run([statement, 'COMMIT'])
  } catch (error) {
    if (!saysRolledBack(error)) {
      connection.destroy(error)
      throw commitUnknown(key, error)
    }
    await rollback(connection)
    if (sqlStateOf(error) === lostState) return 'lost'
    throw commitRefused(key, error)
  }
  connection.release()
  const tag = results.at(-1)!.command
  if (tag !== 'COMMIT') throw commitRefused(key, new Error(`COMMIT was answered by ${tag}`))
  return results
}

/** Never fails: a connection on which ROLLBACK fails is destroyed, and the server rolls back what it had open. */
export async function rollback<Client>(connection: Connection<Client>): Promise<void> {
  try {
    await connection.run(['ROLLBACK'])
  } catch (error) {
    return connection.destroy(error)
  }
  connection.release()
}

function commitUnknown(key: Key, cause: unknown): OnceError {
  const message =
    `The connection was lost while the transaction for ${describeKey(key)} was being committed: ${messageOf(cause)}. ` +
    `It is committed as a whole or not at all, and nobody can tell from here. Ask again with the same key: the answer will.`
  return new OnceError('OUTCOME_UNKNOWN', { message, cause })
}

function commitRefused(key: Key, cause: unknown): OnceError {
  if (isConflict(cause)) return storeError(cause, `commit for ${describeKey(key)}`, 'no')
  const message =
    `The transaction for ${describeKey(key)} could not be committed and was rolled back: ${messageOf(cause)}. Either a ` +
    `statement in it had failed and the effect went on (let the error out, or use a savepoint), or a deferred constraint failed.`
  return new OnceError('INVALID_ARGUMENT', { message, cause })
}

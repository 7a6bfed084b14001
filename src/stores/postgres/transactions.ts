// The store inside a transaction, the caller's (`within`) or the store's own (`begin`). Invariants: the settle is the last
// statement before COMMIT and goes with it in one message, so a lost claim cannot commit. A COMMIT is sent once, and only its tag
// says that it happened. A connection whose state is unknown never goes back to the pool.

import { describeKey } from '../../core/key.ts'
import type { OnceError } from '../../core/errors.ts'
import type { Key } from '../../core/key.ts'
import type { Began, Claim, ClaimRequest, Fenced, InTransaction, Retention } from '../../core/store.ts'
import { firstAnswer, limited } from '../../clients/postgres.ts'
import type { BoundStatement, PostgresConnection, PostgresSession, StatementResult } from '../../clients/postgres.ts'
import { commitRefused, commitUnknown, endedByEffect, fencedOf, retried, verdictOf } from '../sql-answers.ts'
import type { PostgresContext, PostgresProtocol } from './context.ts'
import { endedState, isConflict, isUnprepared, lostState, saysRolledBack, sqlStateOf, storeError } from './errors.ts'
import type { PostgresFacts } from './fitness.ts'
import type { SchemaNames } from './names.ts'
import { callStatement, claimCall, isUnwritten, recordStatement, recordValues, writeCall } from './statements.ts'
import { beginAndClaim, checkClaim, recordAndCommit } from './straight.ts'

// Two savepoints, named by the token so that nested calls do not meet: one to roll back the claim and the lock with it, one to
// roll back the effect alone.
function savepoints(token: string): { readonly claim: string; readonly effect: string } {
  return { claim: `"onceonly_claim_${token}"`, effect: `"onceonly_effect_${token}"` }
}

export function within<Client>(context: PostgresContext<Client>, session: PostgresSession): InTransaction {
  const { names } = context
  const open = new Set<string>()
  const undo = (statements: readonly string[]): Promise<void> =>
    session.run(statements).then(
      () => {},
      (error: unknown) => Promise.reject(storeError(error, 'roll back to a savepoint', 'unknown')),
    )
  const undoClaim = (token: string): Promise<void> => {
    const { claim } = savepoints(token)
    open.delete(token)
    return undo([`ROLLBACK TO SAVEPOINT ${claim}`, `RELEASE SAVEPOINT ${claim}`])
  }
  return {
    async claim(key, request) {
      await context.ready(session)
      const { claim, effect } = savepoints(request.token)
      const statement = callStatement(names, claimCall(key, request, 'join'))
      try {
        const results = await session.run([`SAVEPOINT ${claim}`, statement, `SAVEPOINT ${effect}`])
        const verdict = verdictOf(key, request, firstAnswer(results))
        if (verdict.is === 'granted') open.add(request.token)
        else await undoClaim(request.token)
        return verdict
      } catch (error) {
        throw storeError(error, `claim ${describeKey(key)}`, 'no')
      }
    },
    async settle(claim, outcome, retention) {
      const settle = callStatement(names, writeCall('settle-within', claim, retention.keepMs, retention, outcome))
      const release = open.delete(claim.token) ? [`RELEASE SAVEPOINT ${savepoints(claim.token).claim}`] : []
      try {
        const results = await session.run([settle, ...release])
        // Locked: the entry is there and locked by another transaction, hence not the one that was claimed here.
        return fencedOf(firstAnswer(results)) === 'done' ? 'done' : 'lost'
      } catch (error) {
        // The savepoint is gone: the caller rolled back to before the claim.
        if (sqlStateOf(error) === '3B001') return 'lost'
        throw storeError(error, `settle ${describeKey(claim.key)}`, 'unknown')
      }
    },
    undoEffect: ({ token }) => undo([`ROLLBACK TO SAVEPOINT ${savepoints(token).effect}`]),
    undoClaim: ({ token }) => undoClaim(token),
  }
}

/** BEGIN and claim in one round trip, settle and COMMIT in another: no more than a bare transaction has. */
export async function begin<Client>(
  context: PostgresContext<Client>,
  key: Key,
  request: ClaimRequest,
): Promise<Began<Client>> {
  try {
    const facts = await context.ready(limited(context.connections))
    return await retried(context.clock, isConflict, () => beginOnce(context, facts, key, request))
  } catch (error) {
    throw storeError(error, `claim ${describeKey(key)}`, 'no')
  }
}

async function beginOnce<Client>(
  context: PostgresContext<Client>,
  { isolation }: PostgresFacts,
  key: Key,
  request: ClaimRequest,
): Promise<Began<Client>> {
  const { names, connections, protocol } = context
  checkClaim(key, request)
  const connection = await connections.connect()
  try {
    const prepared = isolation === 'read committed' && protocol.keepsPrepared && connection.runBound !== undefined
    const results = prepared && (await beginPrepared(context, connection, key, request))
    const answer = firstAnswer(results || (await connection.run(beginInText(names, key, request))))
    const verdict = verdictOf(key, request, answer)
    if (verdict.is === 'granted') {
      const isPrepared = results !== false
      const open = { names, protocol, connection, request, isPrepared, answer, claim: verdict.claim }
      return { verdict, granted: grantedIn(open) }
    }
    await rollback(connection)
    return { verdict }
  } catch (error) {
    await rollback(connection)
    throw error
  }
}

function beginInText(names: SchemaNames, key: Key, request: ClaimRequest): readonly string[] {
  return ['BEGIN', callStatement(names, claimCall(key, request, 'begin'))]
}

/** False when the session does not keep prepared statements, with no transaction open. */
async function beginPrepared<Client>(
  { names, protocol }: PostgresContext<Client>,
  connection: PostgresConnection<Client>,
  key: Key,
  request: ClaimRequest,
): Promise<readonly StatementResult[] | false> {
  try {
    return await connection.runBound!(beginAndClaim(names, key, request))
  } catch (error) {
    if (!isUnprepared(error)) throw error
    protocol.keepsPrepared = false
    await connection.run(['ROLLBACK'])
    return false
  }
}

interface OpenTransaction<Client> {
  readonly names: SchemaNames
  readonly protocol: PostgresProtocol
  readonly connection: PostgresConnection<Client>
  readonly request: ClaimRequest
  /** What ends it is prepared in the session that it is open in. */
  isPrepared: boolean
  /** To the claim. 'lost': another caller got the key when the effect was undone. */
  answer: string
  claim: Claim
}

function grantedIn<Client>(open: OpenTransaction<Client>): NonNullable<Began<Client>['granted']> {
  const { connection } = open
  return {
    tx: connection.client,
    commit: (outcome, retention) => commit(open, outcome, retention),
    undoEffect: () => undoEffect(open),
    rollback: () => rollback(connection),
    abandon: async () => connection.destroy(new Error('the effect outlived its deadline')),
  }
}

// Rolls back everything and claims again, in one message. A savepoint would cost every transaction for the sake of the few that
// are undone. If another caller got the key in between, there is nothing to commit, and the claim is lost.
async function undoEffect<Client>(open: OpenTransaction<Client>): Promise<void> {
  const { names, connection, request, claim } = open
  try {
    open.isPrepared = false
    const answer = firstAnswer(await connection.run(['ROLLBACK', ...beginInText(names, claim.key, request)]))
    const verdict = verdictOf(claim.key, request, answer)
    if (verdict.is === 'granted') Object.assign(open, { answer, claim: verdict.claim })
    else open.answer = 'lost'
  } catch (error) {
    throw storeError(error, `roll back the effect of ${describeKey(claim.key)}`, 'unknown')
  }
}

async function commit<Client>(
  open: OpenTransaction<Client>,
  outcome: Uint8Array,
  retention: Retention,
): Promise<Fenced> {
  const { names, protocol, connection, claim, request, answer, isPrepared } = open
  if (answer === 'lost') {
    await rollback(connection)
    return 'lost'
  }
  try {
    const settled = await commitLast(connection, claim.key, lastStatement())
    return settled === 'lost' ? 'lost' : 'done'
  } catch (error) {
    // The effect dropped what was prepared, and would do so again.
    if (isUnprepared(error)) protocol.keepsPrepared = false
    throw error
  }

  function lastStatement(): string | readonly BoundStatement[] {
    if (!isUnwritten(answer)) {
      return callStatement(names, writeCall('settle-or-fail', claim, retention.keepMs, retention, outcome))
    }
    return isPrepared
      ? recordAndCommit(names, claim, request, outcome, retention)
      : recordStatement(names, recordValues(claim, request, outcome, retention))
  }
}

/** The statement and COMMIT in one message (a bound one has its COMMIT with it). The statement raises when the claim is lost, and then nothing is committed. */
export async function commitLast(
  connection: PostgresConnection<unknown>,
  key: Key,
  statement: string | readonly BoundStatement[],
): Promise<readonly StatementResult[] | 'lost'> {
  let results: readonly StatementResult[]
  try {
    results =
      typeof statement === 'string'
        ? await connection.run([statement, 'COMMIT'])
        : await connection.runBound!(statement)
  } catch (error) {
    if (!saysRolledBack(error)) {
      connection.destroy(error)
      throw commitUnknown(key, error)
    }
    await rollback(connection)
    if (sqlStateOf(error) === lostState) return 'lost'
    throw sqlStateOf(error) === endedState ? endedByEffect(key, error) : refused(key, error)
  }
  connection.release()
  const tag = results.at(-1)!.command
  if (tag !== 'COMMIT') throw refused(key, new Error(`the server answered COMMIT with ${tag}`))
  return results
}

/** Never fails. A connection on which ROLLBACK fails is destroyed, and the server rolls back what it had open. */
export async function rollback<Client>(connection: PostgresConnection<Client>): Promise<void> {
  try {
    await connection.run(['ROLLBACK'])
  } catch (error) {
    return connection.destroy(error)
  }
  connection.release()
}

function refused(key: Key, cause: unknown): OnceError {
  if (isConflict(cause) || isUnprepared(cause))
    return storeError(cause, `commit the transaction for ${describeKey(key)}`, 'no')
  const why =
    `Either a statement in it had failed and the effect went on (let the error out, or use a savepoint), or a deferred ` +
    `constraint failed.`
  return commitRefused(key, cause, why)
}

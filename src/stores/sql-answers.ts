// What PostgreSQL and MySQL share. Their functions and procedures return one line of text per call, and this file reads it. An
// entry whose row is locked is asked for again for a while, because its state is not decided yet.
// Invariant: every error that leaves these functions is an OnceError with the key in its message.

import { backoffMs, countedBackoffs, pausesMs } from '../core/backoff.ts'
import type { CountedBackoff } from '../core/backoff.ts'
import { sleep, systemRandom } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import { OnceError } from '../core/errors.ts'
import { describeKey } from '../core/key.ts'
import type { Key } from '../core/key.ts'
import type { SqlDatabase, SqlTransaction } from '../clients/sql-database.ts'
import type { SqlStatement } from '../clients/sql-statement.ts'
import type { Advanced, Claim, ClaimRequest, Fenced, Mending, Retention, Verdict } from '../core/store.ts'
import { messageOf } from './failures.ts'

/** What the wrappers below need of a store. */
export interface SqlServer {
  readonly clock: Clock
  /** `what` completes "PostgreSQL could not …": "claim payments/42". */
  storeError(error: unknown, what: string, executed: 'no' | 'unknown'): OnceError
}

// n: granted, and nothing was written yet.
const hows = { f: 'fresh', n: 'fresh', r: 'reopened', t: 'taken-over' } as const

export function verdictOf(key: Key, request: ClaimRequest, answer: string): Verdict {
  const [is, first, second, third] = answer.split(' ')
  switch (is) {
    case 'granted': {
      const claim = { key, token: request.token, attempt: Number(second), fence: Number(third) }
      return { is, claim, how: hows[first as keyof typeof hows] }
    }
    case 'settled':
      if (third === undefined) throw outcomeMissing(key)
      return { is, attempt: Number(first), version: Number(second), outcome: bytesOf(third) }
    case 'busy':
      return { is, retryAfterMs: Number(first) }
    case 'held':
    case 'locked':
      return { is: 'busy', retryAfterMs: Math.min(pausesMs.heldKey, request.leaseMs) }
    case 'doubt':
      return { is, attempt: Number(first) }
    case 'mismatch':
    case 'expired':
      return { is }
    default:
      throw new Error(`Bug! The server answered a claim with ${JSON.stringify(answer)}.`)
  }
}

/** 'locked': another transaction has the entry's row. */
export function fencedOf(answer: string): Fenced | 'locked' {
  const fenced = advancedOf(answer)
  return fenced === 'cancelled' ? 'done' : fenced
}

function advancedOf(answer: string): Advanced | 'locked' {
  if (answer === 'done' || answer === 'lost' || answer === 'locked' || answer === 'cancelled') return answer
  throw new Error(`Bug! The server answered a write with ${JSON.stringify(answer)}.`)
}

export function bytesOf(base64: string): Uint8Array {
  return new Uint8Array(Buffer.from(base64, 'base64'))
}

/** `store.claim` and `store.enlist`: asks until the row is free, and reads the answer. */
export async function askForClaim(
  { clock, storeError }: SqlServer,
  key: Key,
  request: ClaimRequest,
  ask: () => Promise<string>,
): Promise<Verdict> {
  try {
    return verdictOf(key, request, await claimWhileLocked(clock, ask))
  } catch (error) {
    throw storeError(error, `claim ${describeKey(key)}`, 'no')
  }
}

/** `extend`, `settle` and `release` of a store. */
export async function askForWrite(
  server: SqlServer,
  { key }: Claim,
  verb: 'extend' | 'settle' | 'release',
  ask: () => Promise<string>,
): Promise<Fenced> {
  const answer = await untilKnown(server, key, verb, ask)
  return answer === 'cancelled' ? 'done' : answer
}

/** `store.advance`. */
export function askForAdvance(server: SqlServer, { key }: Claim, ask: () => Promise<string>): Promise<Advanced> {
  return untilKnown(server, key, 'advance', ask)
}

async function untilKnown(
  { clock, storeError }: SqlServer,
  key: Key,
  verb: string,
  ask: () => Promise<string>,
): Promise<Advanced> {
  const startedMs = clock.elapsed()
  try {
    const answer = advancedOf(await whileLocked(clock, countedBackoffs.lockedWrite, ask))
    if (answer !== 'locked') return answer
  } catch (error) {
    throw storeError(error, `${verb} ${describeKey(key)}`, 'unknown')
  }
  throw stillLocked(key, clock.elapsed() - startedMs, 'unknown')
}

/** The last answer to a claim: 'locked' when the row stayed locked for a quarter of a second. */
export function claimWhileLocked(clock: Clock, claim: () => Promise<string>): Promise<string> {
  return whileLocked(clock, countedBackoffs.lockedClaim, claim)
}

/** What a manual change writes beside its name. */
export function writtenBy(action: Mending): Retention & { readonly outcome: Uint8Array | undefined } {
  if (typeof action === 'string') return { keepMs: 0, tombstoneMs: 0, outcome: undefined }
  if ('resolve' in action) return { ...action.retention, outcome: action.resolve }
  return { keepMs: action.keepMs, tombstoneMs: 0, outcome: undefined }
}

/** `store.mend`: the server's answer, undefined when there is no such entry. */
export async function mendWhileLocked(
  clock: Clock,
  key: Key,
  mend: () => Promise<string | undefined>,
): Promise<string | undefined> {
  const startedMs = clock.elapsed()
  const answer = await whileLocked(clock, countedBackoffs.lockedMend, mend)
  if (answer === 'locked') throw stillLocked(key, clock.elapsed() - startedMs, 'no')
  return answer
}

async function whileLocked<Answer extends string | undefined>(
  clock: Clock,
  backoff: CountedBackoff,
  ask: () => Promise<Answer>,
): Promise<Answer> {
  for (let tries = 1; ; tries++) {
    const answer = await ask()
    if (answer !== 'locked' || tries === backoff.triesMax) return answer
    await sleep(clock, backoffMs(backoff, tries - 1, systemRandom))
  }
}

/** Runs again what the server rolled back or refused because of others. Only for work that has no other effect. */
export async function retried<T>(
  clock: Clock,
  mayPass: (error: unknown) => boolean,
  work: () => Promise<T>,
): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await work()
    } catch (error) {
      if (tries === countedBackoffs.statement.triesMax || !mayPass(error)) throw error
      await sleep(clock, backoffMs(countedBackoffs.statement, tries - 1, systemRandom))
    }
  }
}

/** The calls in their order, in parts that each fit into one message. */
export function partsOf<Call extends { readonly length: number }>(
  batch: readonly Call[],
  lengthMax: number,
): readonly (readonly Call[])[] {
  const parts: Call[][] = [[]]
  let length = 0
  for (const call of batch) {
    if (length > 0 && length + call.length > lengthMax) {
      parts.push([])
      length = 0
    }
    parts.at(-1)!.push(call)
    length += call.length
  }
  return parts
}

export interface StepOpening<Connection, Step> {
  connect(): Promise<Connection>
  /** Begins a transaction and checks that the claim still holds its key. */
  isHeld(connection: Connection): Promise<boolean>
  begun(connection: Connection): Step
  /** Never fails, and gives the connection back. */
  rollback(connection: Connection): Promise<void>
}

/** `store.beginStep`: undefined when the claim is lost. */
export async function openStep<Connection, Step>(
  { storeError }: SqlServer,
  { key }: Claim,
  { connect, isHeld, begun, rollback }: StepOpening<Connection, Step>,
): Promise<Step | undefined> {
  try {
    const connection = await connect()
    try {
      if (await isHeld(connection)) return begun(connection)
    } catch (error) {
      await rollback(connection)
      throw error
    }
    await rollback(connection)
    return undefined
  } catch (error) {
    throw storeError(error, `begin a step of ${describeKey(key)}`, 'no')
  }
}

/** What of a pool can be wrong when the server refuses its user, and when they do not agree on TLS. */
export const poolMends = {
  user: 'the user, the password, the database or the rights of the pool that the store was given',
  tls: 'the TLS options (ssl) of the pool that the store was given',
}

/** The server rolled back, or will have to, because of other transactions. */
export function conflictWithOthers(server: string, what: string, cause: unknown): OnceError {
  const message =
    `${server} could not ${what} because of other transactions (serialization failure, deadlock or lock wait): ` +
    `${messageOf(cause)}. Roll back, and run the whole transaction again.`
  return new OnceError('TRANSACTION_CONFLICT', { message, cause })
}

export function commitUnknown(key: Key, cause: unknown): OnceError {
  const message =
    `The connection was lost while the transaction for ${describeKey(key)} was being committed: ${messageOf(cause)}. ` +
    `The server has committed all of it or nothing. Retry with the same key to learn which.`
  return new OnceError('OUTCOME_UNKNOWN', { message, cause })
}

/** The server refused the COMMIT and rolled back. The same transaction would be refused again. */
export function commitRefused(key: Key, cause: unknown, why: string): OnceError {
  const message = `The transaction for ${describeKey(key)} was not committed, and was rolled back: ${messageOf(cause)}. ${why}`
  return new OnceError('COMMIT_REFUSED', { message, cause })
}

/** What a store returns for an effect that ended its transaction itself. The same on SQLite. */
export function endedByEffect(key: Key, cause?: unknown): OnceError {
  const message =
    `The transaction for ${describeKey(key)} was over before its outcome was recorded: the effect ended it (COMMIT, ROLLBACK, or on ` +
    `MySQL DDL, which commits by itself), or caught an error after which the database had rolled it back. What the effect wrote ` +
    `before may be committed, and another call may have run since. Leave the end of the transaction to onceonly, and check the ` +
    `effect manually before a retry: onceonly keys show, then keys resolve.`
  // A retry would run the effect again beside what it has committed.
  return new OnceError('OUTCOME_UNKNOWN', { message, cause, retryable: false })
}

export function schemaMissing(why: string, cause?: unknown): OnceError {
  const message =
    `${why} Run "await store.migrate()" or "onceonly migrate --store URL" once, or give the SQL of store.schema() to your ` +
    `own migrations.`
  return new OnceError('SCHEMA_MISSING', { message, cause })
}

function stillLocked(key: Key, forMs: number, executed: 'no' | 'unknown'): OnceError {
  const seconds = Math.max(1, Math.round(forMs / 1000))
  const message =
    `${describeKey(key)} has been locked by another open transaction for ${seconds} s. Retry, and look for a transaction ` +
    `left open (\`onceonly doctor\`).`
  return new OnceError('STORE_UNAVAILABLE', { message, executed })
}

function outcomeMissing(key: Key): OnceError {
  return new OnceError('OUTCOME_UNREADABLE', {
    message:
      `The entry of ${describeKey(key)} is settled, and the server returned no outcome. Either it was deleted manually, or ` +
      `(MySQL) max_allowed_packet is now smaller than when it was written. The effect was not run.`,
  })
}

/** A database behind a store: what its two servers do in their own ways. */
export interface SqlCalls<Tx> extends SqlServer {
  /** Refuses a server on which the promise would not hold. */
  ready(): Promise<unknown>
  isConflict(error: unknown): boolean
  /** A statement in a transaction of its own. */
  alone(statement: SqlStatement): Promise<readonly string[]>
  open(key: Key): Promise<SqlTransaction<Tx>>
  create(statements: readonly string[]): Promise<unknown>
}

/** `query`, `migrate` and `begin` of a database, with the errors of its store. */
export function databaseCalls<Tx>(calls: SqlCalls<Tx>): Pick<SqlDatabase<Tx>, 'query' | 'migrate' | 'begin'> {
  const { clock, storeError } = calls
  const asked = async <T>(what: string, executed: 'no' | 'unknown', ask: () => Promise<T>): Promise<T> => {
    try {
      return await ask()
    } catch (error) {
      throw storeError(error, what, executed)
    }
  }
  return {
    query: (statement) =>
      asked('read or write its messages', 'unknown', async () => {
        await calls.ready()
        return retried(clock, calls.isConflict, () => calls.alone(statement))
      }),
    migrate: (statements) => asked('migrate', 'no', async () => void (await calls.create(statements))),
    begin: (key) =>
      asked(`begin the transaction for ${describeKey(key)}`, 'no', async () => {
        await calls.ready()
        return calls.open(key)
      }),
  }
}

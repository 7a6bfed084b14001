// Effect and record in one transaction that the store opens and ends, on the store's own connection: a transaction that is held
// across an await on another caller's connection would swallow that caller's writes. One at a time. Other writers wait for their
// turn.

import { inTransaction, rollBack } from '../../clients/sqlite.ts'
import type { SqliteDatabase } from '../../clients/sqlite.ts'
import { OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Advanced, Began, BegunStep, Claim, ClaimRequest, Verdict } from '../../core/store.ts'
import { endedByEffect } from '../sql-answers.ts'
import { closeQuietly } from './batches.ts'
import type { SqliteGround } from './batches.ts'
import { asOnceError, sqliteCode } from './errors.ts'
import { configure } from './fitness.ts'
import { entriesOn } from './entries.ts'
import type { SqliteEntries } from './entries.ts'
import { operationsOn } from './operations.ts'
import type { SqliteOperations } from './operations.ts'
import { whileBusy } from './turns.ts'
import type { Uncommitted } from './within.ts'

type Granted = NonNullable<Began<SqliteDatabase>['granted']>

export interface Transactions {
  begin(key: Key, request: ClaimRequest): Promise<Began<SqliteDatabase>>
  beginStep(claim: Claim): Promise<BegunStep<SqliteDatabase> | undefined>
  /** A transaction without a claim. `key` names it in errors. */
  beginPlain(key: Key): Promise<PlainTransaction>
  close(): void
}

export interface PlainTransaction {
  readonly database: SqliteDatabase
  commit(): Promise<void>
  rollback(): Promise<void>
  abandon(): Promise<void>
}

interface Connection {
  readonly database: SqliteDatabase
  readonly entries: SqliteEntries
  readonly operations: SqliteOperations
}

/** The connection of the transactions, opened at its first use. */
interface Line {
  connect(): Connection
  /** On a connection on which something went wrong nothing more is done. Closing it rolls back. */
  drop(): void
}

function lineTo(ground: SqliteGround): Line {
  let connection: Connection | undefined
  return {
    connect() {
      if (connection) return connection
      const database = ground.connect()
      try {
        configure(database, ground.journal, ground.durability)
        const entries = entriesOn(database, ground.table, ground.moments)
        connection = {
          database,
          entries,
          operations: operationsOn(database, ground.table, entries, ground.moments.now),
        }
        return connection
      } catch (error) {
        closeQuietly(database)
        throw error
      }
    },
    drop() {
      if (connection) closeQuietly(connection.database)
      connection = undefined
    },
  }
}

export function transactionsOn(ground: SqliteGround, uncommitted: Uncommitted): Transactions {
  const { clock, lockWaitMs } = ground
  const { connect, drop } = lineTo(ground)
  let closed = false
  const isClosed = (): boolean => closed

  /** Waits for its turn among the writers, and has the write lock when `work` is called. `undefined` ends it again. */
  const open = async <T>(work: (opened: Connection, endTurn: () => void) => T | undefined): Promise<T | undefined> => {
    const endTurn = await ground.turns(lockWaitMs)
    try {
      if (closed) throw new Error('database is not open')
      const opened = await whileBusy(clock, lockWaitMs, () => {
        const connected = connect()
        connected.database.exec(`BEGIN IMMEDIATE; SAVEPOINT ${opening}`)
        return connected
      })
      opened.entries.timeMark.keep()
      const worked = work(opened, endTurn)
      if (worked) return worked
      rollBack(opened.database)
      endTurn()
      return undefined
    } catch (error) {
      drop()
      endTurn()
      throw asOnceError(error)
    }
  }

  return {
    async begin(key, request) {
      let verdict: Verdict | undefined
      const began = await open((opened, endTurn) => {
        verdict = opened.entries.claim(key, request)
        if (verdict.is !== 'granted') return undefined
        opened.database.exec('SAVEPOINT effect')
        uncommitted.add(key, opened.database)
        const over = (): void => {
          uncommitted.remove(key)
          endTurn()
        }
        return { verdict, granted: granted(ground, opened, verdict.claim, { over, drop, isClosed }) }
      })
      return began ?? { verdict: verdict! }
    },
    beginStep: (claim) =>
      open((opened, over) =>
        opened.entries.holds(claim) ? step(ground, opened, claim, { over, drop, isClosed }) : undefined,
      ),
    beginPlain: async (key) => {
      const opened = await open((connected, over) => ({
        database: connected.database,
        open: openTransaction(ground, connected, key, { over, drop, isClosed }),
      }))
      const { rollback, abandon, commit } = opened!.open
      return { database: opened!.database, commit: async () => void (await commit(() => 'done')), rollback, abandon }
    },
    close() {
      closed = true
      drop()
    },
  }
}

interface Ending {
  /** The next writer may begin. */
  over(): void
  drop(): void
  /** The store was closed, which ends every transaction. */
  isClosed(): boolean
}

interface Open {
  readonly isOpen: () => boolean
  /** Writes the last thing and commits. 'lost' rolls back. */
  commit<Answer extends Advanced>(write: () => Answer): Promise<Answer>
  rollback(): Promise<void>
  abandon(): Promise<void>
}

function openTransaction(
  { clock, lockWaitMs }: SqliteGround,
  { database }: Connection,
  key: Key,
  { over, drop, isClosed }: Ending,
): Open {
  let ended = false
  /** Ends the transaction. On an error the transaction is rolled back with its connection. */
  const ending = async <T>(work: () => T | Promise<T>): Promise<T> => {
    ended = true
    try {
      return await work()
    } catch (error) {
      drop()
      throw error
    } finally {
      over()
    }
  }
  return {
    // After the end the connection has the transaction of another caller, which is not ours to write in or to roll back.
    isOpen: () => !ended && inTransaction(database),
    async commit(write) {
      if (ended) throw endedByEffect(key)
      return ending(async () => {
        if (!inTransaction(database)) throw isClosed() ? closedMeanwhile(key) : endedByEffect(key)
        leaveOpening(database, key)
        const answer = orOnceError(write)
        if (answer === 'lost') {
          rollBack(database)
          return answer
        }
        try {
          // Only with a rollback journal can a reader be in the way of a commit. The transaction stays open meanwhile.
          await whileBusy(clock, lockWaitMs, () => database.exec('COMMIT'))
        } catch (error) {
          throw commitFailed(key, error)
        }
        return answer
      })
    },
    rollback: async () => (ended ? undefined : ending(() => rollBack(database))),
    abandon: async () => (ended ? undefined : ending(drop)),
  }
}

/** Where every transaction begins. It is gone when what ran in the transaction has ended it, also when it has begun another one since. */
const opening = 'onceonly_opening'

function leaveOpening(database: SqliteDatabase, key: Key): void {
  try {
    database.exec(`RELEASE ${opening}`)
  } catch (error) {
    if (error instanceof Error && error.message.includes('no such savepoint')) throw endedByEffect(key, error)
    throw asOnceError(error)
  }
}

function orOnceError<T>(work: () => T): T {
  try {
    return work()
  } catch (error) {
    throw asOnceError(error)
  }
}

function granted(ground: SqliteGround, opened: Connection, claim: Claim, ending: Ending): Granted {
  const { database, entries } = opened
  const { isOpen, commit, rollback, abandon } = openTransaction(ground, opened, claim.key, ending)
  return {
    tx: database,
    commit: (outcome, retention) => commit(() => entries.settle(claim, outcome, retention)),
    async undoEffect() {
      if (!isOpen()) throw endedByEffect(claim.key)
      database.exec('ROLLBACK TO effect')
    },
    rollback,
    abandon,
  }
}

function step(ground: SqliteGround, opened: Connection, claim: Claim, ending: Ending): BegunStep<SqliteDatabase> {
  const { commit, rollback, abandon } = openTransaction(ground, opened, claim.key, ending)
  return {
    tx: opened.database,
    commit: (change) => commit(() => opened.operations.advance(claim, change)),
    rollback,
    abandon,
  }
}

/** A full disk, a broken constraint and a lock leave nothing behind. After an I/O error a recovery may still find the commit. */
function commitFailed(key: Key, error: unknown): OnceError {
  const code = sqliteCode(error)
  if (error instanceof OnceError || code === 'FULL' || code === 'CONSTRAINT') return asOnceError(error)
  return new OnceError('OUTCOME_UNKNOWN', {
    message: `SQLite failed to commit the transaction of ${describeKey(key)}: ${String(error)}. Ask again with the same key to learn what became of it.`,
    cause: error,
  })
}

function closedMeanwhile(key: Key): OnceError {
  return new OnceError('OUTCOME_UNKNOWN', {
    message:
      `The store was closed while the transaction of ${describeKey(key)} was open, which rolls it back unless the effect had ended ` +
      'it. Close a store after its calls have ended, and ask again with the same key.',
  })
}

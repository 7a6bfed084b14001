// Effect and record in one transaction that the store opens and ends: on a connection of its own, as a transaction that is
// held across an await on anybody else's would swallow their writes. One at a time; other writers wait for their turn.

import { OnceError } from '../core/errors.ts'
import { describeKey } from '../core/key.ts'
import type { Key } from '../core/key.ts'
import type { Began, Claim, ClaimRequest } from '../core/store.ts'
import { closeQuietly } from './sqlite-calls.ts'
import type { SqliteGround } from './sqlite-calls.ts'
import { asOnceError, configure, inTransaction, rollBack, sqliteCode } from './sqlite-connection.ts'
import type { SqliteDatabase } from './sqlite-connection.ts'
import { entriesOn } from './sqlite-entries.ts'
import type { Entries } from './sqlite-entries.ts'
import { whileBusy } from './sqlite-turns.ts'
import type { Uncommitted } from './sqlite-within.ts'

type Granted = NonNullable<Began<SqliteDatabase>['granted']>

export interface Transactions {
  begin(key: Key, request: ClaimRequest): Promise<Began<SqliteDatabase>>
  close(): void
}

interface Connection {
  readonly database: SqliteDatabase
  readonly entries: Entries
}

export function transactionsOn(ground: SqliteGround, uncommitted: Uncommitted): Transactions {
  const { clock, lockWaitMs, table } = ground
  let connection: Connection | undefined
  let closed = false

  const connect = (): Connection => {
    if (connection) return connection
    const database = ground.connect()
    try {
      configure(database, ground.journal, ground.durability)
      connection = { database, entries: entriesOn(database, table, ground.moments) }
      return connection
    } catch (error) {
      closeQuietly(database)
      throw error
    }
  }
  // On a connection on which something went wrong nothing more is done. Closing it rolls back.
  const drop = (): void => {
    if (connection) closeQuietly(connection.database)
    connection = undefined
  }

  return {
    async begin(key, request) {
      const endTurn = await ground.turns(lockWaitMs)
      try {
        if (closed) throw new Error('database is not open')
        const opened = await whileBusy(clock, lockWaitMs, () => {
          const { database, entries } = connect()
          database.exec('BEGIN IMMEDIATE')
          return { database, entries }
        })
        opened.entries.timeMark.keep()
        const verdict = opened.entries.claim(key, request)
        if (verdict.is === 'granted') {
          opened.database.exec('SAVEPOINT effect')
          uncommitted.add(key, opened.database)
          const over = (): void => {
            uncommitted.remove(key)
            endTurn()
          }
          return { verdict, granted: granted(ground, opened, verdict.claim, { over, drop }) }
        }
        rollBack(opened.database)
        endTurn()
        return { verdict }
      } catch (error) {
        drop()
        endTurn()
        throw asOnceError(error)
      }
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
}

function granted(
  { clock, lockWaitMs }: SqliteGround,
  { database, entries }: Connection,
  claim: Claim,
  { over, drop }: Ending,
): Granted {
  const { key } = claim
  let ended = false
  /** Ends the transaction; on an error it is taken back with its connection. */
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
  // After the end the connection has the transaction of another; that one is not ours to write in or to roll back.
  const isOpen = (): boolean => !ended && inTransaction(database)
  return {
    tx: database,
    async commit(outcome, retention) {
      if (ended) throw endedAlready(key)
      return ending(async () => {
        if (!inTransaction(database)) throw endedAlready(key)
        try {
          if (entries.settle(claim, outcome, retention) === 'lost') {
            rollBack(database)
            return 'lost'
          }
        } catch (error) {
          throw asOnceError(error)
        }
        try {
          // Only with a rollback journal can a reader be in the way of a commit; the transaction stays open meanwhile.
          await whileBusy(clock, lockWaitMs, () => database.exec('COMMIT'))
        } catch (error) {
          throw commitFailed(key, error)
        }
        return 'done'
      })
    },
    async undoEffect() {
      if (!isOpen()) throw endedAlready(key)
      database.exec('ROLLBACK TO effect')
    },
    rollback: async () => (ended ? undefined : ending(() => rollBack(database))),
    abandon: async () => (ended ? undefined : ending(drop)),
  }
}

/** A full disk, a broken constraint and a lock leave nothing behind; after an I/O error a recovery may still find the commit. */
function commitFailed(key: Key, error: unknown): OnceError {
  const code = sqliteCode(error)
  if (error instanceof OnceError || code === 'FULL' || code === 'CONSTRAINT') return asOnceError(error)
  return new OnceError('OUTCOME_UNKNOWN', {
    message: `SQLite failed to commit the transaction of ${describeKey(key)}: ${String(error)}. Ask again with the same key to learn what became of it.`,
    cause: error,
  })
}

function endedAlready(key: Key): OnceError {
  return new OnceError('OUTCOME_UNKNOWN', {
    message:
      `The transaction of ${describeKey(key)} was over before its outcome was written: the effect ended it, SQLite rolled it back ` +
      'after an error that the effect caught, or the store was closed. Leave COMMIT and ROLLBACK to once.transaction().',
  })
}

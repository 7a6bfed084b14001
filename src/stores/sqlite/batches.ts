// The calls of the store outside the user's transactions, on the store's own connection. All writes of one moment share one
// transaction, from BEGIN to COMMIT without giving way, so nothing else of this process can get into it.

import { setImmediate } from 'node:timers/promises'
import { rollBack } from '../../clients/sqlite.ts'
import type { SqliteDatabase } from '../../clients/sqlite.ts'
import type { Clock } from '../../core/clock.ts'
import type { Key } from '../../core/key.ts'
import type { ClaimRequest, Verdict } from '../../core/store.ts'
import { lane } from '../../core/lane.ts'
import { asOnceError, isBusy, isOfOneRequest } from './errors.ts'
import { configure } from './fitness.ts'
import type { Durability } from './fitness.ts'
import { entriesOn } from './entries.ts'
import type { SqliteEntries } from './entries.ts'
import { inspectionOn } from './inspection.ts'
import type { SqliteInspection } from './inspection.ts'
import { operationsOn } from './operations.ts'
import type { SqliteOperations } from './operations.ts'
import { migrateSchema } from './schema.ts'
import type { Moments } from './time.ts'
import { whileBusy } from './turns.ts'
import type { TakeTurn } from './turns.ts'

/** What the parts of one store have in common. */
export interface SqliteGround {
  /** The connection for the calls. `connect` opens another one to the same file, by the same library. */
  readonly first: SqliteDatabase
  connect(): SqliteDatabase
  readonly journal: 'wal' | 'as it is'
  readonly table: string
  readonly durability: Durability
  readonly lockWaitMs: number
  readonly clock: Clock
  readonly moments: Moments
  readonly turns: TakeTurn
}

type Everything = SqliteEntries & SqliteInspection & SqliteOperations
type Work<T> = (entries: Everything) => T
type Reply = { readonly value: unknown } | { readonly error: unknown }

export interface SqliteCalls {
  /** The verdict, when the store can decide it at once and without writing. */
  look(key: Key, request: ClaimRequest): Verdict | undefined
  /** For work that only reads: at once, without a transaction. */
  read<T>(work: Work<T>): Promise<T>
  /** Resolves after the commit. The work may be done again after a rollback. */
  write<T>(work: Work<T>): Promise<T>
  migrate(): Promise<void>
  /** Settings and schema. Throws SQLite's BUSY while another process has the lock. */
  makeReady(): void
  close(): void
}

// The wait for the disk is shared by all of a batch. Beyond so many, a larger one only keeps the event loop longer.
const batchMax = 256

export function callsOn(ground: SqliteGround): SqliteCalls {
  const { first: database, table, clock, lockWaitMs } = ground
  let entries: Everything | undefined

  const makeReady = (): Everything => {
    if (entries) return entries
    configure(database, ground.journal, ground.durability)
    migrateSchema(database, table)
    const { now } = ground.moments
    const rows = entriesOn(database, table, ground.moments)
    entries = { ...rows, ...inspectionOn(database, table, rows, now), ...operationsOn(database, table, rows, now) }
    entries.timeMark.read()
    return entries
  }

  const enqueue = lane<Work<unknown>, Reply>({
    batchMax,
    dispatchesMax: 1,
    // A commit blocks the event loop, so nothing arrives while it is under way. Whatever this turn of the loop still brings joins
    // the batch. Without this, answers that come in one by one would have a commit each.
    gather: () => setImmediate(),
    async dispatch(batch) {
      const endTurn = await ground.turns(lockWaitMs)
      try {
        return await whileBusy(clock, lockWaitMs, () => commit(database, makeReady(), batch))
      } catch (error) {
        throw asOnceError(error)
      } finally {
        endTurn()
      }
    },
  })

  const write = async <T>(work: Work<T>): Promise<T> => {
    const reply = await enqueue(work)
    if ('error' in reply) throw asOnceError(reply.error)
    return reply.value as T
  }

  const readAtOnce = <T>(work: Work<T>): { readonly value: T } | undefined => {
    try {
      return entries && { value: work(entries) }
    } catch (error) {
      // Only with a rollback journal, or while the WAL is being recovered.
      if (isBusy(error)) return undefined
      throw asOnceError(error)
    }
  }

  return {
    makeReady,
    write,
    look: (key, request) => readAtOnce((on) => on.look(key, request))?.value,
    async read(work) {
      const read = readAtOnce(work)
      return read ? read.value : write(work)
    },
    migrate() {
      entries = undefined
      return write(() => undefined)
    },
    close: () => closeQuietly(database),
  }
}

function commit(database: SqliteDatabase, entries: Everything, batch: readonly Work<unknown>[]): Reply[] {
  database.exec('BEGIN IMMEDIATE')
  try {
    entries.timeMark.keep()
    const replies = batch.map((work) => tryOne(work, entries))
    database.exec('COMMIT')
    return replies
  } catch (error) {
    rollBack(database)
    throw error
  }
}

// A request that is wrong fails alone: SQLite has undone its statement, and the others go on.
function tryOne(work: Work<unknown>, entries: Everything): Reply {
  try {
    return { value: work(entries) }
  } catch (error) {
    if (!isOfOneRequest(error)) throw error
    return { error }
  }
}

/** The database may be closed already, and no caller could do anything about a failure. */
export function closeQuietly(database: SqliteDatabase): void {
  try {
    database.close()
  } catch {}
}

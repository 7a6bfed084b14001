// The store inside a transaction that the user opened on the user's own handle and will end. The claim and the effect each begin
// with a savepoint, so that either can be rolled back while the transaction goes on.

import { fileOf, inTransaction } from '../../clients/sqlite.ts'
import type { SqliteDatabase } from '../../clients/sqlite.ts'
import { pausesMs } from '../../core/backoff.ts'
import { invalidArgument, OnceError } from '../../core/errors.ts'
import { describeKey, keyString } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type {
  Claim,
  ClaimRequest,
  InTransaction,
  SyncInTransaction,
  SyncTransactional,
  Transactional,
  Verdict,
} from '../../core/store.ts'
import type { SqliteGround } from './batches.ts'
import { asOnceError, isBusy } from './errors.ts'
import { checkDurability } from './fitness.ts'
import { entriesOn } from './entries.ts'
import type { SqliteEntries } from './entries.ts'

type Tx = SqliteDatabase

/** Keys that were claimed in transactions of this store which are still open: no other connection can see them in the file. */
export interface Uncommitted {
  add(key: Key, tx: Tx): void
  remove(key: Key): void
  /** `busy` when an open transaction, other than `own`, has claimed the key. */
  verdict(key: Key, own?: Tx): Verdict | undefined
}

// Nothing tells us that a transaction of the user has ended, so a key that no call asks for again must be dropped some time. For
// the oldest of more keys than this, a claim waits for the writer instead of returning `busy`.
const uncommittedKeysMax = 1_000

export function uncommittedKeys(): Uncommitted {
  const holders = new Map<string, Tx>()
  return {
    add(key, tx) {
      holders.set(keyString(key), tx)
      if (holders.size > uncommittedKeysMax) holders.delete(holders.keys().next().value!)
    },
    remove: (key) => void holders.delete(keyString(key)),
    verdict(key, own) {
      const holder = holders.get(keyString(key))
      if (!holder || holder === own) return undefined
      if (inTransaction(holder)) return { is: 'busy', retryAfterMs: pausesMs.heldKey }
      holders.delete(keyString(key))
      return undefined
    },
  }
}

export function withinOn(
  ground: SqliteGround,
  uncommitted: Uncommitted,
): Pick<Transactional<Tx>, 'within'> & SyncTransactional<Tx> {
  const handles = new WeakMap<Tx, SqliteEntries>()
  const entriesOf = (tx: Tx): SqliteEntries => {
    const known = handles.get(tx)
    if (known) return known
    checkSameDatabase(tx, ground.first)
    checkDurability(tx, ground.durability)
    const entries = entriesOn(tx, ground.table, ground.moments)
    handles.set(tx, entries)
    return entries
  }

  const inside = <T>(tx: Tx, work: (entries: SqliteEntries) => T): T => {
    try {
      if (!inTransaction(tx)) {
        throw invalidArgument(
          'within: expected a database handle with an open transaction, got one without. Run BEGIN first.',
        )
      }
      return work(entriesOf(tx))
    } catch (error) {
      throw isBusy(error) ? conflict(error) : asOnceError(error)
    }
  }

  const withinSync = (tx: Tx): SyncInTransaction => ({
    claim: (key, request) =>
      inside(tx, (entries) => uncommitted.verdict(key, tx) ?? claimInside(tx, entries, uncommitted, key, request)),
    settle: (claim, outcome, retention) =>
      inside(tx, (entries) => {
        const fenced = entries.settle(claim, outcome, retention)
        // The savepoint is gone when a run that began before this one, in the same transaction, has ended before it.
        if (fenced === 'done') ifThere(() => tx.exec(`RELEASE ${claimPoint(claim)}`))
        return fenced
      }),
    undoEffect: (claim) => inside(tx, () => goBack(tx, claim, effectPoint(claim))),
    undoClaim: (claim) =>
      inside(tx, () => {
        goBack(tx, claim, claimPoint(claim))
        tx.exec(`RELEASE ${claimPoint(claim)}`)
        uncommitted.remove(claim.key)
      }),
  })
  return { withinSync, within: (tx) => asynchronous(withinSync(tx)) }
}

/** By the same copy of SQLite, see connectLike in sqlite.ts, and on the same file. */
export function checkSameDatabase(tx: SqliteDatabase, own: SqliteDatabase): void {
  const sameCopy = tx instanceof own.constructor || own instanceof tx.constructor
  if (!sameCopy) {
    throw invalidArgument(
      `within: expected a database handle of the library that the store uses, got another one. Two copies of SQLite on one ` +
        `file in one process lose each other's locks. Create the store with sqliteStore({ database }).`,
    )
  }
  const [theirs, ours] = [fileOf(tx), fileOf(own)]
  if (theirs !== ours)
    throw invalidArgument(
      `within: expected a handle on ${ours}, the file of the store, got one on ${theirs || 'a database in memory'}`,
    )
}

function claimInside(
  tx: Tx,
  entries: SqliteEntries,
  uncommitted: Uncommitted,
  key: Key,
  request: ClaimRequest,
): Verdict {
  tx.exec(`SAVEPOINT ${claimPoint(request)}`)
  try {
    entries.timeMark.read()
    const verdict = entries.claim(key, request)
    if (verdict.is === 'granted') {
      tx.exec(`SAVEPOINT ${effectPoint(request)}`)
      uncommitted.add(key, tx)
    } else tx.exec(`RELEASE ${claimPoint(request)}`)
    return verdict
  } catch (error) {
    // SQLite may have rolled back the whole transaction by itself (disk full).
    if (inTransaction(tx)) tx.exec(`ROLLBACK TO ${claimPoint(request)}; RELEASE ${claimPoint(request)}`)
    throw error
  }
}

function goBack(tx: Tx, claim: Claim, savepoint: string): void {
  if (ifThere(() => tx.exec(`ROLLBACK TO ${savepoint}`))) return
  throw invalidArgument(
    `within: the effect of ${describeKey(claim.key)} cannot be taken back alone, as runs in one transaction overlapped. ` +
      'Roll the whole transaction back, and await one run before the next.',
  )
}

/** Whether the savepoint was there. */
function ifThere(work: () => void): boolean {
  try {
    work()
    return true
  } catch (error) {
    if (error instanceof Error && error.message.includes('no such savepoint')) return false
    throw error
  }
}

function claimPoint({ token }: { readonly token: string }): string {
  return `"onceonly claim ${token.replaceAll('"', '""')}"`
}

function effectPoint({ token }: { readonly token: string }): string {
  return `"onceonly effect ${token.replaceAll('"', '""')}"`
}

function conflict(cause: unknown): OnceError {
  return new OnceError('TRANSACTION_CONFLICT', {
    message:
      'Another writer was faster than this SQLite transaction. Roll it back and run it again; a transaction that begins with ' +
      'BEGIN IMMEDIATE has the write lock from the start and cannot meet this.',
    cause,
  })
}

function asynchronous(inside: SyncInTransaction): InTransaction {
  return {
    claim: async (key, request) => inside.claim(key, request),
    settle: async (claim, outcome, retention) => inside.settle(claim, outcome, retention),
    undoEffect: async (claim) => inside.undoEffect(claim),
    undoClaim: async (claim) => inside.undoClaim(claim),
  }
}

// The contract between the idea and a place that remembers. A store decides with one atomic step and never waits. All time is the
// store's own clock, so callers whose clocks disagree still agree on who holds a key.
//
// The life of an entry, as every store must keep it (`now` is the store's clock, `leaseUntil` is when the lease ends, or, once
// settled or released, when it ended):
//   running     now <  leaseUntil                        a process works on it
//   abandoned   now >= leaseUntil, never settled         may be taken over
//   open        released after a failure                 may be claimed again
//   settled     has its outcome                          is replayed
//   tombstone   now >= leaseUntil + keepMs               was here, its answer is gone (any of abandoned, open, settled)
//   absent      now >= leaseUntil + keepMs + tombstoneMs as if it had never been
// Whether an entry is a tombstone or absent follows from these times alone, whether or not a sweep has been there.

import type { Key } from './key.ts'

export interface Store {
  /** Names the store in errors: 'postgres'. */
  readonly name: string
  /**
   * Take the key, or learn what became of it. One atomic step, which never waits for another caller. A claim that comes again
   * with the token that already holds the key (a network retry) is granted again, with the lease anew. A claim whose token
   * already gave the key back (a delayed duplicate) is `busy` with `retryAfterMs` 0: no process would be there to run it.
   */
  claim(key: Key, request: ClaimRequest): Promise<Verdict>
  /** Push the end of the lease out to now + `leaseMs`. */
  extend(claim: Claim, leaseMs: number): Promise<Fenced>
  /** Write the outcome, once, while the claim still holds the key. */
  settle(claim: Claim, outcome: Uint8Array, retention: Retention): Promise<Fenced>
  /**
   * Give the key back. `open` keeps attempt and steps. `forget` is for an effect that never began: a first attempt leaves no
   * trace, a later one leaves the entry open, as the attempts before it did begin.
   */
  release(claim: Claim, how: 'open' | 'forget'): Promise<Fenced>
}

export interface ClaimRequest {
  /** A random UUID, new for every attempt. With the fence that the store gives to it, it decides who may write. */
  readonly token: string
  /** 43 characters, see fingerprint.ts. */
  readonly fingerprint: string
  readonly leaseMs: number
  readonly retention: Retention
  /** The version of the caller's code, kept with the entry. */
  readonly version: number
  /** What a claim of an abandoned entry gets: the key, or `doubt`. */
  readonly onTakeover: 'run' | 'refuse'
  /** What a claim of a tombstone gets: `expired`, or a fresh life. */
  readonly onExpired: 'refuse' | 'run'
  /** What an operation was asked with, kept so that a worker can resume it without the caller. */
  readonly input?: Uint8Array
}

/** How long a settled, open or abandoned entry is kept, and how long its tombstone after that. */
export interface Retention {
  readonly keepMs: number
  readonly tombstoneMs: number
}

/**
 * Proof of holding a key: the writer is known by token and fence together. The token alone can come back to life, when a claim is
 * delivered once more after its entry was forgotten. The fence of that new life is another one.
 */
export interface Claim {
  readonly key: Key
  readonly token: string
  /** 1 for the first attempt of an entry's life. */
  readonly attempt: number
  /**
   * Grows with every attempt of the key, also across lives and rolled back transactions: the store's clock in microseconds,
   * and at least one more than the entry's last. For downstream systems that refuse an older one. 0 is never given out: a
   * `release` with it is for a claim whose answer was never heard, and means whatever its token holds.
   */
  readonly fence: number
}

export type Verdict =
  | { readonly is: 'granted'; readonly claim: Claim; readonly how: 'fresh' | 'reopened' | 'taken-over' }
  | { readonly is: 'settled'; readonly outcome: Uint8Array; readonly version: number; readonly attempt: number }
  | { readonly is: 'busy'; readonly retryAfterMs: number }
  | { readonly is: 'mismatch' }
  | { readonly is: 'doubt'; readonly attempt: number }
  | { readonly is: 'expired' }

/**
 * 'lost': another attempt holds the key, or its entry has expired, and nothing was written. The same call repeated with the same
 * token after a lost reply returns 'done' again.
 */
export type Fenced = 'done' | 'lost'

/**
 * A store whose records can commit together with the caller's own writes. `Tx` is what an effect is given to write with in a
 * transaction of the store's. `Foreign` is every kind of transaction that the store can join.
 */
export interface Transactional<Tx, Foreign = Tx> {
  /** The store inside a transaction that the caller opened and will end. */
  within(tx: Foreign): InTransaction
  /** Open a transaction, and claim in it, in as few round trips as the store can. */
  begin(key: Key, request: ClaimRequest): Promise<Began<Tx>>
  /** Did this error roll the transaction back by a conflict (deadlock, serialization failure), so that all of it may run again? */
  isConflict(error: unknown): boolean
}

/**
 * A claim made here is invisible to others until the transaction commits. Meanwhile their claims are `busy`. The transaction
 * itself keeps others away, so there is no lease to extend.
 */
export interface InTransaction {
  claim(key: Key, request: ClaimRequest): Promise<Verdict>
  settle(claim: Claim, outcome: Uint8Array, retention: Retention): Promise<Fenced>
  /** Take back everything since the claim was granted, except the claim. The transaction can go on. */
  undoEffect(claim: Claim): Promise<void>
  /** Take back everything since the claim was granted, and the claim. */
  undoClaim(claim: Claim): Promise<void>
}

/** `granted` is there just when the verdict is `granted`. Otherwise the transaction has ended already. */
export interface Began<Tx> {
  readonly verdict: Verdict
  readonly granted?: {
    readonly tx: Tx
    /** Settle and commit. 'lost' rolled back. An error after which the commit may have happened is OUTCOME_UNKNOWN. */
    commit(outcome: Uint8Array, retention: Retention): Promise<Fenced>
    undoEffect(): Promise<void>
    /** Take everything back. The effect has ended, so the connection can serve others. */
    rollback(): Promise<void>
    /** Take everything back under an effect that still runs: whatever it writes with `tx` from now on must never be committed. */
    abandon(): Promise<void>
  }
}

/** The same for a database whose transactions are synchronous (better-sqlite3, node:sqlite). */
export interface SyncTransactional<Tx> {
  withinSync(tx: Tx): SyncInTransaction
}

export interface SyncInTransaction {
  claim(key: Key, request: ClaimRequest): Verdict
  settle(claim: Claim, outcome: Uint8Array, retention: Retention): Fenced
  undoEffect(claim: Claim): void
  undoClaim(claim: Claim): void
}

/**
 * A store without transactions that stay open, which can settle together with writes that an effect has collected: all of them are
 * written, or none. The key is held by its lease meanwhile. `Tx` is what an effect collects with.
 */
export interface Collecting<Tx, Collected = unknown> {
  collect(key: Key): Collector<Tx, Collected>
  /**
   * As `settle`, with what was collected. COMMIT_REFUSED when a condition of the caller's writes does not hold: nothing was
   * written, and the claim still holds the key.
   */
  settleWith(claim: Claim, outcome: Uint8Array, retention: Retention, collected: Collected): Promise<Fenced>
}

export interface Collector<Tx, Collected> {
  readonly tx: Tx
  /** The effect has ended: what it writes with `tx` from now on is never committed. */
  end(): Collected
}

/** Expiry: strips entries that became tombstones of what they hold and deletes expired tombstones. */
export interface Sweepable {
  /** One bounded step, safe from several machines. Running entries are never touched. */
  sweep(options: { readonly limit: number }): Promise<Swept>
  /** The server removes expired entries itself, and a sweep is expensive: `createOnce` sweeps only when `sweepEveryMs` is given. */
  readonly isSweptByServer?: true
}

export interface Swept {
  readonly tombstoned: number
  readonly forgotten: number
  /** There may be more to do at once. */
  readonly more: boolean
}

/** Looking at entries, and mending them manually. Every manual change is written to an audit trail first. */
export interface Inspectable {
  show(key: Key): Promise<Entry | undefined>
  list(filter: EntryFilter): Promise<readonly Entry[]>
  /**
   * Change one entry manually. Returns the entry as it was, and changes nothing in a state that the action does not name.
   * Whatever changes the entry fences its holder off, except `keep`.
   */
  mend(key: Key, action: Mending, reason: string): Promise<Entry | undefined>
  audit(key: Key): Promise<readonly AuditRecord[]>
}

export type Mending =
  /** Open a running or abandoned entry: the next claim is granted. */
  | 'release'
  /** Delete an entry in any state: the key is new. */
  | 'forget'
  /** Settle a running, abandoned or open entry with the outcome that a person found out. Its retention begins now. */
  | { readonly resolve: Uint8Array; readonly retention: Retention }
  /** Keep a settled, open or abandoned entry for at least this long from now. Never shortens. */
  | { readonly keepMs: number }

export type MendingName = 'release' | 'forget' | 'resolve' | 'keep'

export type EntryState = 'running' | 'abandoned' | 'open' | 'settled' | 'tombstone'

export interface Entry {
  readonly key: Key
  readonly state: EntryState
  readonly attempt: number
  readonly fence: number
  readonly fingerprint: string
  readonly version: number
  /** Times are the store's clock, in milliseconds since 1970. */
  readonly firstClaimedAtMs: number
  readonly leaseUntilMs: number
  readonly expiresAtMs: number
  readonly forgottenAtMs: number
  readonly outcome?: Uint8Array
  readonly input?: Uint8Array
}

export interface EntryFilter {
  readonly scope?: string
  readonly state?: EntryState
  /** Entries come in the order of scope and id. This one and all before it are passed over. */
  readonly after?: Key
  readonly limit: number
}

export interface AuditRecord {
  readonly key: Key
  readonly atMs: number
  readonly action: MendingName
  readonly reason: string
  readonly before: EntryState
}

/**
 * Recovery points: what is recorded of an operation beside its entry. Only the holder of the entry's token writes here, and a
 * store looks into no record.
 */
export interface StepLedger {
  /**
   * As `claim`, with an input that is kept. A request without an input leaves the one that is there. What is granted becomes due
   * (see Recoverable) when its lease ends, unless it is parked. A fresh life of the key begins without records.
   */
  enlist(key: Key, request: ClaimRequest): Promise<Verdict>
  /** What is recorded of the operation now. Undefined when it was never enlisted, or is forgotten. */
  ledger(key: Key): Promise<Ledger | undefined>
  /** One atomic write under the token. The same call repeated after a lost reply is `done` again. */
  advance(claim: Claim, change: Change): Promise<Advanced>
}

export interface Ledger {
  /** In any order. */
  readonly records: readonly WrittenRecord[]
  /** When a worker may resume it. Undefined when it is parked or settled. */
  readonly dueAtMs: number | undefined
  /** A cancel was asked for, and why. */
  readonly cancelReason: string | undefined
}

export interface LedgerRecord {
  /** Unique in its operation. 0 to 255 bytes of UTF-8. */
  readonly name: string
  /** Grows with every write of the name: a record that comes late never overwrites a later one. */
  readonly revision: number
  readonly content: Uint8Array
}

export interface WrittenRecord extends LedgerRecord {
  /** When this revision was written, by the store's clock. */
  readonly atMs: number
}

export interface Change {
  readonly records: readonly LedgerRecord[]
  readonly becomes:
    /** Go on, with the lease anew. */
    | { readonly to: 'running'; readonly leaseMs: number }
    | { readonly to: 'settled'; readonly outcome: Uint8Array; readonly retention: Retention }
    /** Give the key back, due again after `afterMs`. Without `afterMs` the operation is parked. */
    | { readonly to: 'open'; readonly afterMs?: number }
}

/** 'cancelled': it was written, and a cancel of the operation was asked for. */
export type Advanced = Fenced | 'cancelled'

/** Steps whose record commits together with what they write. */
export interface TransactionalSteps<Tx> {
  /** Open a transaction for one step. Undefined when the claim is lost. */
  beginStep(claim: Claim): Promise<BegunStep<Tx> | undefined>
}

export interface BegunStep<Tx> {
  readonly tx: Tx
  /** Write the change under the token as the last thing before COMMIT. 'lost' rolled back. */
  commit(change: Change): Promise<Advanced>
  rollback(): Promise<void>
  /** As `abandon` of Began. */
  abandon(): Promise<void>
}

/** Operations that no process works on, for workers on any number of machines. */
export interface Recoverable {
  /**
   * Operations of this scope that are due, the longest due first. They are not due again for `holdMs`, so that each worker
   * gets others.
   */
  due(scope: string, options: { readonly limit: number; readonly holdMs: number }): Promise<readonly DueOperation[]>
  /** Nothing is left to do for it (its entry is settled, expired or gone): it is not due any more, unless it was enlisted since. */
  dismiss(operation: DueOperation): Promise<void>
  /** Ask the process that holds it, or resumes it next, to cancel it. It is due now. False when there is none that could be. */
  requestCancel(key: Key, reason: string): Promise<boolean>
  /** Operations of this scope that are not settled, in the order of their ids. */
  unfinished(scope: string, options: { readonly after?: string; readonly limit: number }): Promise<readonly Key[]>
}

export interface DueOperation {
  readonly key: Key
  /** When it will be due again. This time names the finding. */
  readonly heldUntilMs: number
}

/** A store with its own schema. */
export interface Migratable {
  /** Idempotent, versioned, safe from several processes at once. */
  migrate(): Promise<void>
  /** The same as SQL, for people who run their own migrations. */
  schema(): string
}

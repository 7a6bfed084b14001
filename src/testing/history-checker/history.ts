// What a run leaves behind for the checker: the clients' log, the ledger of effects, the audit trail of the store's rows, and
// what was asked of the store. Each is written by a party that the library cannot speak for. Times are milliseconds of one clock.
// The clock of the store, where it decides, must be the same one (`clockErrorMs` of the checker allows for some error).

import type { Executed } from '../../core/errors.ts'
import type { Key } from '../../core/key.ts'
import type { ClaimRequest, Fenced, Retention, Verdict, Mending } from '../../core/store.ts'

export interface History {
  readonly calls: CallRecord[]
  readonly executions: ExecutionRecord[]
  readonly effects: EffectRecord[]
  readonly changes: RowChange[]
  readonly operations: StoreOperation[]
  /** What happened to the world, for the story. */
  readonly incidents: Incident[]
}

/** One call of a client, logged before the call and again after its answer. */
export interface CallRecord {
  readonly process: string
  readonly key: Key
  /** What was asked for, in the words of the client. */
  readonly asked: string
  readonly how: 'run' | 'transaction'
  /** `last` asks come after the last fault: by then every key must end. */
  readonly phase: 'first' | 'last'
  readonly waitMs: number
  readonly startedAtMs: number
  endedAtMs?: number
  answer?: CallAnswer
  /** The process died under the call: no answer is owed. */
  died?: boolean
}

export type CallAnswer =
  /** The effect's value, or the failure that is its answer, and the execution that had this result. */
  | { readonly is: 'value' | 'failure'; readonly text: string; readonly execution: number; readonly replayed: boolean }
  /** One of the library's errors. */
  | { readonly is: 'refused'; readonly code: string; readonly executed: Executed; readonly message: string }
  /** The effect's own error, which is not an answer. */
  | { readonly is: 'threw'; readonly message: string; readonly execution: number }
  /** An error that is neither the effect's nor one of the library's. */
  | { readonly is: 'stray'; readonly message: string }

/** An effect function that began to run, and what it was given. */
export interface ExecutionRecord {
  readonly call: CallRecord
  readonly token: string
  readonly attempt: number
  readonly fence: number
  readonly derivedKey: string
  readonly startedAtMs: number
  /** When its signal aborted. */
  abortedAtMs?: number
  /**
   * When and how it ended: `final` is a failure that is the answer, `doubt` a failure after which the effect may or may not have
   * taken place.
   */
  endedAtMs?: number
  ended?: 'returned' | 'final' | 'threw' | 'doubt' | 'not-begun'
}

/** A line of the ledger. Nothing is deduplicated here. */
export interface EffectRecord {
  readonly execution: number
  readonly atMs: number
  /** Came with the commit of the transaction that settled the key. */
  readonly transactional: boolean
}

/** A row of the store as a trigger sees it. */
export interface HistoryRow {
  readonly token: string
  readonly attempt: number
  readonly fence: number
  readonly fingerprint: string
  readonly wrote: 'claim' | 'release' | 'settle'
  readonly leaseUntilMs: number
  readonly keepMs: number
  readonly tombstoneMs: number
  readonly outcome?: Uint8Array
}

export interface RowChange {
  readonly key: string
  readonly atMs: number
  readonly before: HistoryRow | undefined
  readonly after: HistoryRow | undefined
  /** The operation that was being carried out, an index into `operations`. Undefined when it is unknown. */
  readonly by: number | undefined
  /** A grant that its store took back before any caller was told of it: its fence was given to nobody. */
  readonly untold?: true
}

export type StoreOperation = {
  /** The store's own release of a grant that no caller was told of. Its token may be granted, and run, after it. */
  takesBack?: true
  readonly process: string
  /** The key as `keyString` writes it. Empty for a sweep. */
  readonly key: string
  readonly sentAtMs: number
  /** When the store carried it out, where that is known: a repeated message is one more operation. */
  decidedAtMs?: number
  answeredAtMs?: number
  /** The sender got an error, or no reply. Then the sender does not know what became of the operation. */
  failed?: string
  /** The network delivered it once more: its sender does not know of it. */
  readonly repeated?: true
} & Asked

export type Asked =
  | { readonly call: 'claim'; readonly request: ClaimRequest; answer?: Verdict }
  | { readonly call: 'begin'; readonly request: ClaimRequest; answer?: Verdict }
  | (Held & { readonly call: 'extend'; readonly leaseMs: number; answer?: Fenced })
  | (SettleAsked & { readonly call: 'settle' })
  /** The settle of a transaction. What it settles was invisible to others since its `begin`. */
  | (SettleAsked & { readonly call: 'commit' })
  | (Held & { readonly call: 'release'; readonly how: 'open' | 'forget'; answer?: Fenced })
  | { readonly call: 'effect' | 'undo' | 'rollback'; readonly token: string; answer?: 'done' }
  | { readonly call: 'mend'; readonly action: Mending; answer?: 'done' }
  | { readonly call: 'sweep'; answer?: 'done' }
  /** Anything that changes no entry: a reading, a search for what is due. */
  | { readonly call: 'look'; readonly what: string; answer?: 'done' }

export interface Held {
  readonly token: string
  /** Undefined when it was not written down, and the token alone decides. 0 when its sender does not know it. */
  readonly fence?: number | undefined
}

export interface SettleAsked extends Held {
  readonly outcome: Uint8Array
  readonly retention: Retention
  answer?: Fenced
}

export interface Incident {
  readonly atMs: number
  readonly text: string
}

/**
 * Returns a history without a single record, to be filled while a run goes on.
 *
 * @example
 * import { emptyHistory } from 'onceonly/testing'
 *
 * const history = emptyHistory()
 * history.effects.push({ execution: 0, atMs: 12, transactional: false })
 */
export function emptyHistory(): History {
  return { calls: [], executions: [], effects: [], changes: [], operations: [], incidents: [] }
}

/** What the store decided and when, whether or not the reply reaches its caller. */
export function recordAnswer(history: History, operation: number, answer: unknown, atMs: number): void {
  const record: { answer?: unknown; decidedAtMs?: number } = history.operations[operation]!
  // `cancelled` tells the holder of an operation that a cancel was asked for. For the entry it is a write like any other.
  record.answer = answer === 'cancelled' ? 'done' : answer
  record.decidedAtMs = atMs
}

// An operation as a person sees it: its state, the states of its steps, and what is in doubt.

import { describeKey } from '../key.ts'
import type { Key } from '../key.ts'
import { readRecords } from './records.ts'
import type { StepState } from './records.ts'
import { decodeOutcome } from '../outcome.ts'
import type { Codec, Outcome } from '../outcome.ts'
import type { Entry, Ledger } from '../store.ts'

/**
 * running       a process works on it
 * abandoned     its process is gone, and the next retry or worker resumes it
 * waiting       it failed, and is tried again later
 * parked        it waits for a person
 * completed     it has a result
 * failed        it failed for good, and everything that had an undo is undone
 * expired       its result is no longer kept
 */
export type OperationState = 'running' | 'abandoned' | 'waiting' | 'parked' | 'completed' | 'failed' | 'expired'

export interface OperationStatus<T = unknown> {
  readonly key: Key
  readonly state: OperationState
  readonly direction: 'forward' | 'backward'
  readonly version: number
  readonly attempt: number
  /** Attempts that failed since the start, or since a person resumed it. */
  readonly failures: number
  readonly steps: readonly StepStatus[]
  /** Steps that began and never reported, unless a process works on the operation. */
  readonly inDoubt: readonly string[]
  readonly dueAtMs?: number
  readonly parked?: string
  readonly lastError?: string
  readonly cancelReason?: string
  readonly outcome?: Outcome<T>
}

export interface StepStatus {
  readonly name: string
  readonly state: StepState
  readonly attempt: number
  /** Since when it is in this state, by the store's clock. */
  readonly sinceAtMs: number
  readonly error?: string
}

export function statusOf(entry: Entry, ledger: Ledger | undefined, codec: Codec | undefined): OperationStatus {
  const { course, steps } = readRecords(entry.key, entry.state === 'tombstone' ? undefined : ledger, codec)
  const outcome = entry.outcome && decodeOutcome(entry.outcome, codec, entry.key)
  const state = stateOf(entry, outcome, ledger)
  const { lastError, parked } = course?.content ?? {}
  return {
    key: entry.key,
    state,
    direction: course?.content.direction ?? 'forward',
    version: course?.content.version ?? entry.version,
    attempt: entry.attempt,
    failures: course?.content.failures ?? 0,
    steps: steps.map(({ content: { name, state: is, attempt, error }, atMs }) => ({
      name,
      state: is,
      attempt,
      sinceAtMs: atMs,
      ...(error !== undefined && { error }),
    })),
    inDoubt:
      state === 'running'
        ? []
        : steps.filter((step) => step.content.state === 'began').map((step) => step.content.name),
    ...(ledger?.dueAtMs !== undefined && { dueAtMs: ledger.dueAtMs }),
    ...(state === 'parked' && parked !== undefined && { parked }),
    ...(lastError !== undefined && { lastError }),
    ...(ledger?.cancelReason !== undefined && { cancelReason: ledger.cancelReason }),
    ...(outcome && { outcome }),
  }
}

function stateOf(entry: Entry, outcome: Outcome | undefined, ledger: Ledger | undefined): OperationState {
  // Also while a process holds it: a retry looks and releases it, and never makes it due.
  const isParked = ledger !== undefined && ledger.dueAtMs === undefined
  switch (entry.state) {
    case 'tombstone':
      return 'expired'
    case 'settled':
      return outcome?.kind === 'failure' ? 'failed' : 'completed'
    case 'running':
      return isParked ? 'parked' : 'running'
    case 'abandoned':
      return isParked ? 'parked' : 'abandoned'
    case 'open':
      return isParked ? 'parked' : 'waiting'
    default:
      throw new Error(`Bug! ${describeKey(entry.key)} has the state ${String(entry.state)}.`)
  }
}

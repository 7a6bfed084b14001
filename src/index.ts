// The front door of the package: what a user of createOnce needs. The contract for authors of stores is at onceonly/store.

export { systemClock, systemRandom } from './core/clock.ts'
export type { Clock, Random } from './core/clock.ts'
export type { Doubt } from './core/doubt.ts'
export { errorCodes, FinalError, InDoubtError, NotBegunError, OnceError } from './core/errors.ts'
export type { ErrorCode, Executed, OnceErrorDetails } from './core/errors.ts'
export { eventNames } from './core/events.ts'
export type { EventName, Events, PublishedEvent } from './core/events.ts'
export { fingerprint } from './core/fingerprint.ts'
export type { Fingerprint } from './core/fingerprint.ts'
export { hashKey, key, keyOf, newId } from './core/key.ts'
export type { Key } from './core/key.ts'
export { createOnce } from './core/once.ts'
export type {
  DoubtDecision,
  ForeignTxOf,
  FoundOutcome,
  KeyReconcileOptions,
  KeyReconciliation,
  Once,
  OnceByHand,
  OnceRunner,
  OnceTransactions,
  OnceWithin,
  Op,
  Result,
  ShownEntry,
  TxOf,
  Within,
  WithinSync,
} from './core/once.ts'
export type {
  Duplicate,
  LookupResult,
  Operation,
  OperationOp,
  OperationOptions,
  Operations,
  OperationState,
  OperationStatus,
  ReconcileOptions,
  Reconciliation,
  Recovery,
  RecoveryOptions,
  Resolution,
  ResumeOptions,
  Step,
  StepContext,
  StepDoubt,
  StepRetry,
  StepStatus,
  TransactionStep,
  UndoContext,
} from './core/operations.ts'
export type { Codec, Outcome } from './core/outcome.ts'
export type { CallOptions, OnceOptions, RunOptions, Settings } from './core/settings.ts'
export type { Store } from './core/store.ts'
export type { NotStorable, Storable, Stored, StoredAsGiven, ValueKind } from './core/stored.ts'

// The operations of one `createOnce`: defined by name, resumed by workers, and reconciled when something is in doubt.
//
// Decisions, and what they cost:
// - Steps are found by name, and records are opaque bytes. No determinism rules, and a store needs two tables and knows
//   nothing of sagas. Costs: an operation that asks for the same name twice in one attempt is refused.
// - `began` and `done` are two writes for every step outside a transaction, each batched with those of other
//   operations. The first is the fence check and tells "may have happened" from "never began". Without it every crash
//   would be in doubt everywhere.
// - A throw is a doubt. Only `FinalError` and `NotBegunError` say that a step took no effect. After anything else the
//   step is looked up, run again or stopped at, also within one attempt.
// - Records have revisions. A write that was given up and comes late must not turn `done` back into `began`.
// - Going back runs the function again with the records answering. The alternative, undos as data, would need every undo
//   to be registered by name at the start. Costs: code between steps runs again.
// - A process that dies counts as a failed attempt, or an operation that kills its process would be resumed forever.
// - One write of an operation at a time. Steps that run in parallel share their writes, and no record is on its way
//   twice. Costs: a step that is asked for while another's write is under way waits for it.
// - A function that returns the very promise of a step has that step recorded with its end. No code of the function runs
//   in between, so the time between the effect and its record is as before. Costs: `async` functions do not get it.
// - The `done` of a step never travels with the `began` of the next. It would save a write, and code between steps would
//   see a result that is not durable: `const id = await op.step('id', newId); await once.run(id, …)` would run twice
//   after a crash.
// - What interrupts the way back (no transaction, a lookup or the function that fails, the deadline) says nothing of the undo: the attempt ends, and
//   the next one goes on. It is not counted towards parking: callers that retry fast use up any count while a database restarts, and then every
//   operation that failed meanwhile would wait for a person. Costs: what can never get further (an undo that takes longer than attemptMs, a function
//   that always fails) stays `waiting` with its lastError, and is tried again after the longest pause.
// - Duplicates are compensated before a doubt is resolved: what is not in doubt any more is not asked about again.
// - Cancel is a wish. It takes effect at the next step of the process that holds the operation: undoing under a step that still
//   runs could let the effect land after its undo. Past the pivot it has none.
// - An operation that is not finished does not expire: it is enlisted to be kept for ten years, and settled with its
//   keepMs. Costs: what no process finishes stays until it is cancelled or forgotten. In PostgreSQL with periods its
//   entry is swept row by row.
// - A step that leaves the function (in doubt, cancelled) decides, whatever the function made of it: one that catches the
//   signal and returns a value has not completed.
// - After a doubt, only a lookup or a person can say that a step took no effect. Costs: a pivot in doubt whose rerun
//   fails for good parks instead of going back.
// - A result that cannot be stored is refused before its step is recorded. Costs: an outside step is then in doubt, and
//   is looked up or run again under its key.
// - A worker holds what the store gave it for a lease, 10 s at the most. Costs: operations that run longer than their lease
//   are looked at once per lease.
// - The command line has no code of operations: it asks and shows, and runs no step. Costs: cancel and resume take effect
//   at the next worker or retry.
// - An attempt with an unconfirmed write decides nothing: it waits, and the next one reads. A `FinalError` reaches a
//   caller only when it is settled. Before that the caller gets `OUTCOME_UNKNOWN`. Costs a pause.
// - A lookup needs more than a lookup: "not found" must mean that it will not come later (the other side refuses older
//   fences, or the lookup returns `unknown` for a while), and the step must obey its signal.
// - A revision is used up when it is sent, confirmed or not, or a later write could be taken for the late one.
// - A parked operation stays parked, however often it is asked for, until `resume`: what it was parked for has not changed.

import type { Doubt } from './doubt.ts'
import { invalidArgument } from './errors.ts'
import { doubts, reconcile } from './operations/doubts.ts'
import type { Reconciliation, ReconcileOptions, Resolution, RunOnce, StepDoubt } from './operations/doubts.ts'
import { startRecovery } from './operations/worker.ts'
import type { Recovery, RecoveryOptions } from './operations/worker.ts'
import type { OperationOp } from './operations/step.ts'
import { createOperation } from './operations/operation.ts'
import type { DefinedOperation, Operation, OperationOptions } from './operations/operation.ts'
import type { Calls } from './call.ts'
import type { OnceOptions, Settings } from './settings.ts'
import type { Storable, Stored, StoredAsGiven, ValueKind } from './stored.ts'

export { unfinishedKeepMs } from './operations/attempt.ts'
export type { OperationStore } from './operations/attempt.ts'
export type { Duplicate, Reconciliation, ReconcileOptions, Resolution, StepDoubt } from './operations/doubts.ts'
export type { Operation, OperationOptions } from './operations/operation.ts'
export { readRecords } from './operations/records.ts'
export type { StepState } from './operations/records.ts'
export type { ResumeOptions } from './operations/resume.ts'
export { statusOf } from './operations/status.ts'
export type { OperationState, OperationStatus, StepStatus } from './operations/status.ts'
export type {
  LookupResult,
  OperationOp,
  Step,
  StepContext,
  StepRetry,
  TransactionStep,
  UndoContext,
} from './operations/step.ts'
export type { Recovery, RecoveryOptions } from './operations/worker.ts'

export interface Operations<Tx, Kind extends ValueKind = 'json'> {
  /**
   * Defines an effect of several steps, which a retry or a worker resumes where a crash interrupted it.
   *
   * @example
   * ```ts
   * import { createOnce } from 'onceonly'
   * import { memoryStore } from 'onceonly/memory'
   *
   * const once = createOnce({ store: memoryStore(), scope: 'shop' })
   * const checkout = once.operation('checkout', {}, async (op, order: { cents: number }) => {
   *   const receipt = await op.step('charge', ({ key }) => `receipt of ${order.cents} under ${key}`)
   *   return { receipt }
   * })
   * const { value } = await checkout.run('order-1', { cents: 500 })
   * ```
   */
  operation<Input, T>(
    name: string,
    options: OperationOptions,
    run: ((op: OperationOp<Tx, Kind>, input: Input) => T | Promise<T>) & Storable<T, Kind> & StoredAsGiven<Input, Kind>,
  ): Operation<Input, Stored<T, Kind>>
  /**
   * Starts a worker that finishes what a dead process began, though no client retries.
   *
   * @example
   * ```ts
   * import { createOnce } from 'onceonly'
   * import { memoryStore } from 'onceonly/memory'
   *
   * const once = createOnce({ store: memoryStore(), scope: 'shop' })
   * const report = once.operation('report', {}, (op, month: string) => op.step('pages', () => `${month}: 12 pages`))
   * const worker = once.recover([report])
   * await report.start('2026-11', 'November')
   * await worker.stop()
   * ```
   */
  recover(operations: readonly Operation<never, unknown>[], options?: RecoveryOptions): Recovery
  /**
   * Asks the outside system in bulk about the steps of one operation that are in doubt, and records what it says.
   *
   * @example
   * ```ts
   * import { createOnce } from 'onceonly'
   * import { memoryStore } from 'onceonly/memory'
   *
   * const once = createOnce({ store: memoryStore(), scope: 'shop' })
   * once.operation('pay-out', {}, (op, to: string) => op.step('transfer', { inDoubt: 'park', run: () => to }))
   * const report = await once.reconcile('pay-out', async (doubts) => doubts.map(() => 'not-found'))
   * ```
   */
  reconcile(
    operation: string,
    resolve: (doubts: readonly StepDoubt[]) => Promise<readonly Resolution[]>,
    options?: ReconcileOptions,
  ): Promise<Reconciliation>
}

export function createOperations(
  calls: Calls,
  options: OnceOptions,
  settings: Settings,
  runOnce: RunOnce,
): Operations<unknown, 'codec'> & { stepsInDoubt(): AsyncGenerator<Doubt> } {
  const { context } = calls
  const defined = new Map<string, DefinedOperation>()
  return {
    operation(name, operationOptions, run) {
      if (defined.has(name)) throw invalidArgument(`operation "${name}" is defined twice, and its keys would collide`)
      const definition = { name, options: operationOptions, run: run as never }
      const operation = createOperation(calls, { options, settings }, definition)
      defined.set(name, operation)
      return operation as Operation<never, unknown> as Operation<never, never>
    },
    recover: (operations, recoveryOptions) => startRecovery(context, operations, recoveryOptions),
    stepsInDoubt: () => doubts(context, [...defined.values()]),
    async reconcile(name, resolve, reconcileOptions = {}) {
      const operation = defined.get(name)
      if (!operation) throw invalidArgument(`reconcile: no operation "${name}" is defined in this process`)
      return reconcile({ context, operation, runOnce }, resolve, reconcileOptions)
    },
  }
}

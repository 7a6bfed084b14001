// The operations of one `createOnce`: defined by name, resumed by workers, and reconciled when something is in doubt.

import { invalidArgument } from './errors.ts'
import { doubts, reconcile } from './operations/doubts.ts'
import type { Doubt, Reconciliation, ReconcileOptions, Resolution, RunOnce, StepDoubt } from './operations/doubts.ts'
import { startRecovery } from './operations/worker.ts'
import type { Recovery, RecoveryOptions } from './operations/worker.ts'
import type { OperationOp } from './operations/step.ts'
import { createOperation } from './operations/operation.ts'
import type { DefinedOperation, Operation, OperationOptions } from './operations/operation.ts'
import type { Calls } from './once/call.ts'
import type { OnceOptions, Settings } from './settings.ts'

export { unfinishedKeepMs } from './operations/attempt.ts'
export type { Doubt, Duplicate, Reconciliation, ReconcileOptions, Resolution, StepDoubt } from './operations/doubts.ts'
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

export interface Operations<Tx> {
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
    run: (op: OperationOp<Tx>, input: Input) => T | Promise<T>,
  ): Operation<Input, T>
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
   * Lists what began and never reported: steps of the operations defined here, and keys of `run`.
   *
   * @example
   * ```ts
   * import { createOnce } from 'onceonly'
   * import { memoryStore } from 'onceonly/memory'
   *
   * const once = createOnce({ store: memoryStore(), scope: 'shop' })
   * for await (const { key, step } of once.inDoubt()) console.log(key.id, step)
   * ```
   */
  inDoubt(): AsyncIterable<Doubt>
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

export function createOperations<Tx>(
  calls: Calls,
  options: OnceOptions,
  settings: Settings,
  runOnce: RunOnce,
): Operations<Tx> {
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
    inDoubt: () => doubts(context, options.scope, [...defined.values()]),
    async reconcile(name, resolve, reconcileOptions = {}) {
      const operation = defined.get(name)
      if (!operation) throw invalidArgument(`reconcile: no operation "${name}" is defined in this process`)
      return reconcile({ context, operation, runOnce }, resolve, reconcileOptions)
    },
  }
}

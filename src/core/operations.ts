// The operations of one `createOnce`: defined by name, taken up by workers, and asked about when something is in doubt.

import { invalidArgument } from './errors.ts'
import { doubts, reconcile } from './operations/doubts.ts'
import type { Doubt, Reconciliation, ReconcileOptions, Resolution, RunOnce, StepDoubt } from './operations/doubts.ts'
import { partsOf, startRecovery } from './operations/worker.ts'
import type { Recovery, RecoveryOptions } from './operations/worker.ts'
import type { OperationOp } from './operations/steps.ts'
import { createOperation } from './operations/operation.ts'
import type { Operation, OperationOptions, OperationParts } from './operations/operation.ts'
import type { Calls } from './once/call.ts'
import type { OnceOptions, Settings } from './settings.ts'

export interface Operations {
  operation<Input, T, Tx>(
    name: string,
    options: OperationOptions,
    run: (op: OperationOp<Tx>, input: Input) => T | Promise<T>,
  ): Operation<Input, T>
  recover(operations: readonly Operation<never, unknown>[], options?: RecoveryOptions): Recovery
  inDoubt(): AsyncIterable<Doubt>
  reconcile(
    operation: string,
    resolve: (doubts: readonly StepDoubt[]) => Promise<readonly Resolution[]>,
    options?: ReconcileOptions,
  ): Promise<Reconciliation>
}

export function createOperations(calls: Calls, options: OnceOptions, settings: Settings, runOnce: RunOnce): Operations {
  const { context: ground } = calls
  const defined = new Map<string, OperationParts>()
  return {
    operation(name, operationOptions, run) {
      if (defined.has(name)) throw invalidArgument(`operation "${name}" is defined twice; its steps would meet`)
      const operation = createOperation(calls, { options, settings }, name, operationOptions, run as never)
      defined.set(name, partsOf(operation as Operation<never, unknown>))
      return operation as Operation<never, never>
    },
    recover: (operations, recoveryOptions) => startRecovery(ground, operations, recoveryOptions),
    inDoubt: () => doubts(ground, options.scope, [...defined.values()]),
    async reconcile(name, resolve, reconcileOptions = {}) {
      const operation = defined.get(name)
      if (!operation) throw invalidArgument(`reconcile: no operation "${name}" is defined here`)
      return reconcile(ground, operation, resolve, reconcileOptions, runOnce)
    },
  }
}

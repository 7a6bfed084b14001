// The worker: takes up operations that nobody works on, though no client retries. Any number of machines may run one; the claim
// decides who goes on with which, and the store hands each worker others.

import type { RunContext } from '../once/attempt.ts'
import { sleep } from '../clock.ts'
import { invalidArgument } from '../errors.ts'
import { operationParts } from './operation.ts'
import type { Operation, OperationParts } from './operation.ts'
import { checkGiven, optional, positiveInteger, positiveMs } from '../options.ts'
import { callStore } from '../store-call.ts'
import type { DueOperation } from '../store.ts'

export interface RecoveryOptions {
  /** How often it looks when there is nothing to do. Default 1 s. */
  readonly everyMs?: number
  /** How many operations it works on at once. Default 8. */
  readonly concurrency?: number
}

export interface Recovery {
  /** Take nothing up any more, and wait for what runs. */
  stop(): Promise<void>
}

/**
 * What one worker has been told of is not told to others for so long, or for a lease where that is shorter. Within it the worker
 * has tried to claim it; one that dies in between, or finds its holder alive, delays the operation by this.
 */
const holdMsMax = 10_000

export function startRecovery(
  ground: RunContext,
  operations: readonly Operation<never, unknown>[],
  options: RecoveryOptions = {},
): Recovery {
  checkGiven('recover', options, { everyMs: optional(positiveMs), concurrency: optional(positiveInteger) })
  const { everyMs = 1_000, concurrency = 8 } = options
  const turns = operations.map(partsOf)
  const stopping = new AbortController()
  const signal = AbortSignal.any([stopping.signal, ground.closing])
  const running = new Set<Promise<void>>()

  const takeUp = (operation: OperationParts, found: DueOperation): void => {
    const work = carryOn(ground, operation, found)
      .catch(() => {}) // it was published as store-failed; it will be due again
      .finally(() => running.delete(work))
    running.add(work)
  }

  /** Answers how many it found. Each operation in its turn, another first each time, so that a flood of one does not starve the others. */
  async function look(): Promise<number> {
    let found = 0
    turns.push(...turns.splice(0, 1))
    for (const operation of turns) {
      const limit = Math.ceil((concurrency - running.size) / turns.length)
      if (limit <= 0 || signal.aborted) break
      const due = await dueOf(ground, operation, limit)
      found += due.length
      for (const each of due) takeUp(operation, each)
    }
    return found
  }

  async function work(): Promise<void> {
    while (!signal.aborted) {
      if (running.size >= concurrency) await Promise.race(running)
      else if ((await look()) === 0) {
        // Half to all of the time: machines that started together do not ask together.
        await sleep(ground.clock, everyMs * (0.5 + ground.random.fraction() / 2), { signal, background: 'background' })
      }
    }
    await Promise.all(running)
  }

  const working = work()
  ground.background(working)
  return {
    async stop() {
      stopping.abort()
      await working
    },
  }
}

async function dueOf(ground: RunContext, operation: OperationParts, limit: number): Promise<readonly DueOperation[]> {
  const holdMs = Math.min(holdMsMax, operation.leaseMs)
  const ask = (): Promise<readonly DueOperation[]> => operation.store.due(operation.scope, { limit, holdMs })
  return callStore(ground.storeCalls, 'recover', undefined, ask).catch(() => [])
}

async function carryOn(ground: RunContext, operation: OperationParts, found: DueOperation): Promise<void> {
  const taken = await operation.takeUp(found.key)
  if (taken === 'over') await callStore(ground.storeCalls, 'recover', found.key, () => operation.store.dismiss(found))
}

export function partsOf(operation: Operation<never, unknown>): OperationParts {
  const parts = typeof operation === 'object' && operation !== null ? operationParts.get(operation) : undefined
  if (parts) return parts
  throw invalidArgument('recover: expected operations that once.operation() made')
}

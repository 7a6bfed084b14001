// The worker: resumes operations that no process works on, though no client retries. Any number of machines may run one. The
// claim decides which of them goes on with which operation, and the store hands each worker other ones.

import type { RunContext } from '../call.ts'
import { follow, sleep } from '../clock.ts'
import { invalidArgument } from '../errors.ts'
import { isDefined, partsOf } from './operation.ts'
import type { Operation, OperationParts } from './operation.ts'
import { checkGiven, optional, positiveInteger, positiveMs } from '../options.ts'
import { callStore } from '../timed-call.ts'
import type { DueOperation } from '../store.ts'

export interface RecoveryOptions {
  /** How often it looks when there is nothing to do. Default 1 s. */
  readonly everyMs?: number
  /** How many operations it works on at once. Default 8. */
  readonly concurrency?: number
}

export interface Recovery {
  /** Resumes nothing more, and waits for what runs. */
  stop(): Promise<void>
}

/**
 * The store hands an operation that it gave to one worker to no other worker for so long, or for a lease where that is shorter.
 * Within this time the worker has tried to claim the operation. A worker that dies in between, or finds the holder alive, delays
 * the operation by this.
 */
const holdMsMax = 10_000

/** An operation that the worker looks for. */
interface Watched extends OperationParts {
  readonly scope: string
}

export function startRecovery(
  runtime: RunContext,
  operations: readonly Operation<never, unknown>[],
  options: RecoveryOptions = {},
): Recovery {
  checkGiven('recover', options, { everyMs: optional(positiveMs), concurrency: optional(positiveInteger) })
  const { everyMs = 1_000, concurrency = 8 } = options
  const turns = operations.map(watched)
  const { controller: stopping, unfollow } = follow(runtime.closing)
  const { signal } = stopping
  const running = new Set<Promise<void>>()

  const begin = (operation: Watched, found: DueOperation): void => {
    const work = recoverOne(runtime, operation, found)
      .catch(() => {}) // published as store-failed, and due again
      .finally(() => running.delete(work))
    running.add(work)
  }

  /** Returns how many it found. Another operation comes first each time, so that many of one do not starve the others. */
  async function look(): Promise<number> {
    let found = 0
    turns.push(...turns.splice(0, 1))
    for (const operation of turns) {
      const limit = Math.ceil((concurrency - running.size) / turns.length)
      if (limit <= 0 || signal.aborted) break
      const due = await dueOf(runtime, operation, limit)
      found += due.length
      for (const each of due) begin(operation, each)
    }
    return found
  }

  async function work(): Promise<void> {
    while (!signal.aborted) {
      if (running.size >= concurrency) await Promise.race(running)
      else if ((await look()) === 0) {
        // Half to all of the time: machines that started together do not ask together.
        const pauseMs = everyMs * (0.5 + runtime.random.fraction() / 2)
        await sleep(runtime.clock, pauseMs, { signal, background: 'background' })
      }
    }
    await Promise.all(running)
  }

  const working = work().finally(unfollow)
  runtime.background(working)
  return {
    async stop() {
      stopping.abort()
      await working
    },
  }
}

function watched(operation: Operation<never, unknown>): Watched {
  if (isDefined(operation)) return { ...partsOf(operation), scope: operation.scope }
  throw invalidArgument('recover: expected operations that once.operation() made')
}

async function dueOf(runtime: RunContext, operation: Watched, limit: number): Promise<readonly DueOperation[]> {
  const holdMs = Math.min(holdMsMax, operation.leaseMs)
  const ask = (): Promise<readonly DueOperation[]> => operation.store.due(operation.scope, { limit, holdMs })
  return callStore(runtime.storeCalls, 'recover', undefined, ask).catch(() => [])
}

async function recoverOne(runtime: RunContext, operation: Watched, found: DueOperation): Promise<void> {
  const ended = await operation.recover(found.key)
  if (ended === 'over') await callStore(runtime.storeCalls, 'recover', found.key, () => operation.store.dismiss(found))
}

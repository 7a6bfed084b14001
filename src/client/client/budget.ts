// A token bucket for retries. Back-off spreads the retries of one call; only a budget bounds those of all calls, so that a server
// which fails for everybody is not sent a multiple of its load.

import { plainClock } from '../../core/clock.ts'
import type { Clock } from '../../core/clock.ts'
import { invalidArgument } from '../../core/errors.ts'

export interface RetryBudgetOptions {
  /** How many retries a request adds. 0.2 unless given: at most a fifth more load. */
  readonly share?: number
  /** How many retries there are at the start, and at most. 20 unless given. */
  readonly burst?: number
  /** How many retries a second adds, for a process that sends little. 0.1 unless given. */
  readonly perSecond?: number
  readonly clock?: Clock
}

/** Retries of a process never exceed `burst + share × requests + perSecond × seconds`. */
export interface RetryBudget {
  /** A first attempt. */
  request(): void
  /** True if there is a retry to be had: then it is taken. */
  retry(): boolean
}

/**
 * A budget for the retries of one or several clients. Clients without one share one budget per process.
 *
 * @example
 * ```ts
 * import { createClient, memoryKeys, retryBudget } from 'onceonly/client'
 *
 * const budget = retryBudget({ share: 0.1, burst: 50 })
 * const client = createClient({ keys: memoryKeys(), budget })
 * ```
 */
export function retryBudget(options: RetryBudgetOptions = {}): RetryBudget {
  for (const name of ['share', 'burst', 'perSecond'] as const) {
    const value = options[name] ?? 0
    if (!(value >= 0 && value < Infinity))
      throw invalidArgument(`retryBudget: expected ${name} to be a number of 0 or more, got ${String(value)}`)
  }
  return createBudget(options)
}

function createBudget({
  share = 0.2,
  burst = 20,
  perSecond = 0.1,
  clock = plainClock,
}: RetryBudgetOptions): RetryBudget {
  let tokens = burst
  let atMs = clock.elapsed()
  const add = (more: number): void => void (tokens = Math.min(burst, tokens + more))
  return {
    request: () => add(share),
    retry() {
      const nowMs = clock.elapsed()
      add(((nowMs - atMs) / 1_000) * perSecond)
      atMs = nowMs
      if (tokens < 1) return false
      tokens -= 1
      return true
    },
  }
}

/** The budget of every client of this process that was given no other. */
export const processBudget: RetryBudget = createBudget({})

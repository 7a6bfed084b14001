// Keeps a Redis that is down from costing every call its time-out. After some failures in a row no call asks Redis, except one
// per second that finds out whether Redis is back. A call that does not ask, and a call that fails, resolves to undefined.

import { pausesMs } from '../../core/backoff.ts'
import type { Clock } from '../../core/clock.ts'
import { bounded } from '../../core/timed-call.ts'

/** One failure may be a connection that was replaced. */
const failuresMax = 3

export interface Breaker {
  attempt<T>(work: () => Promise<T>): Promise<T | undefined>
  /** No call asks at this moment. */
  rests(): boolean
}

export function breaker(clock: Clock, timeoutMs: number): Breaker {
  const calls = { clock, storeName: 'redis', timeoutMs }
  let failures = 0
  let retryAtMs = 0
  const rests = (): boolean => failures >= failuresMax && clock.elapsed() < retryAtMs
  return {
    rests,
    async attempt(work) {
      if (rests()) return undefined
      // While Redis is down, this call is the one that tries.
      retryAtMs = clock.elapsed() + pausesMs.cacheDown
      try {
        const answer = await bounded(calls, work)
        failures = 0
        return answer
      } catch {
        failures++
        retryAtMs = clock.elapsed() + pausesMs.cacheDown
        return undefined
      }
    },
  }
}

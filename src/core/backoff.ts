// Delays that grow, with jitter: callers that failed together must not come back together.

import type { Random } from './clock.ts'

export interface Backoff {
  readonly firstMs: number
  readonly factor: number
  readonly maxMs: number
}

/** The delay before try number `tries` + 1: between half and all of the exponential value. */
export function backoffMs(backoff: Backoff, tries: number, random: Random): number {
  const full = Math.min(backoff.maxMs, backoff.firstMs * backoff.factor ** tries)
  return full * (0.5 + random.fraction() / 2)
}

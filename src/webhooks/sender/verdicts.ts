// What an attempt means for its delivery. Pure: the schedule, the answer and a number drawn decide.

import { pausesMs, webhookPauseMs } from '../../core/backoff.ts'
import type { Random } from '../../core/clock.ts'
import type { Posted } from './posting.ts'

export type DeliveryVerdict =
  | { readonly is: 'delivered' }
  /** Tried again after `inMs`. `gone`: the endpoint wants nothing any more (410), and is disabled. */
  | { readonly is: 'again' | 'gone'; readonly inMs: number }
  /** The schedule has ended. */
  | { readonly is: 'exhausted' }

/** `tries`: how many attempts of the schedule there were, with this one. */
export function verdictOf(
  { status = 0, retryAfterMs = 0 }: Pick<Posted, 'status' | 'retryAfterMs'>,
  tries: number,
  scheduleMs: readonly number[],
  random: Pick<Random, 'fraction'>,
): DeliveryVerdict {
  if (status >= 200 && status < 300) return { is: 'delivered' }
  const pauseMs = scheduleMs[tries]
  const askedMs = Math.min(retryAfterMs, pausesMs.webhookRetryAfterMax)
  const inMs = Math.max(webhookPauseMs(pauseMs ?? 0, random), askedMs)
  // Even if it was the last attempt: what is left to send waits for a person, who may enable the endpoint.
  if (status === 410) return { is: 'gone', inMs }
  return pauseMs === undefined ? { is: 'exhausted' } : { is: 'again', inMs }
}

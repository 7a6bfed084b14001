// The difference between the clock of this machine and the store's, measured over round trips. The store read its time between
// the request and the response, so each round trip bounds the difference, and the quickest bounds it best.

import type { Clock } from '../../core/clock.ts'
import { check, judge } from '../../core/fitness.ts'
import type { FitnessCheck, Judgement } from '../../core/fitness.ts'
import { span } from '../words.ts'

export interface Skew {
  /** This machine's clock minus the store's is within these. */
  readonly atLeastMs: number
  readonly atMostMs: number
}

const samples = 5

export async function measureSkew(clock: Clock, cutOffMs: number, serverTimeMs: () => Promise<number>): Promise<Skew> {
  let skew: Skew = { atLeastMs: -Infinity, atMostMs: Infinity }
  for (let index = 0; index < samples; index++) {
    const askedMs = clock.now()
    const serverMs = await serverTimeMs()
    // Our own time is cut down to the millisecond.
    const heardMs = clock.now() + 1
    skew = {
      atLeastMs: Math.max(skew.atLeastMs, askedMs - serverMs - cutOffMs),
      atMostMs: Math.min(skew.atMostMs, heardMs - serverMs),
    }
  }
  return skew
}

export interface SkewLimit {
  readonly maxMs: number
  /** The store's time is cut down to a multiple of this. */
  readonly cutOffMs: number
  /** What a larger difference means. */
  readonly beyond: 'warning' | 'violated'
  readonly why: string
}

/** Leases are the store's time, so nothing breaks. But people compare logs, and clients count windows. */
export const storeDecides: SkewLimit = {
  maxMs: 2_000,
  cutOffMs: 1,
  beyond: 'warning',
  why: "Leases and keep times are the store's, so no effect runs twice; but times in logs and in keys show do not agree.",
}

/** Half of the 5 s that the store allows any two machines (clockSkewMs). A Date has whole seconds. */
export const machineDecides: SkewLimit = {
  maxMs: 2_500,
  cutOffMs: 1_000,
  beyond: 'violated',
  why: 'DynamoDB has no clock for us: leases are judged by the clocks of the machines, and two that disagree can hold one key.',
}

export function skewCheck(clock: Clock, limit: SkewLimit, serverTimeMs: () => Promise<number>): Promise<FitnessCheck> {
  const question = { name: 'clock', lookedAt: "this machine's clock and the store's", why: limit.why }
  return check(question, async () => judgeSkew(await measureSkew(clock, limit.cutOffMs, serverTimeMs), limit))
}

export function judgeSkew(
  { atLeastMs, atMostMs }: Skew,
  { maxMs, beyond }: Pick<SkewLimit, 'maxMs' | 'beyond'>,
): Judgement {
  const middleMs = (atLeastMs + atMostMs) / 2
  const unsureMs = (atMostMs - atLeastMs) / 2
  const side = middleMs > 0 ? 'ahead of' : 'behind'
  const found = `${span(middleMs)} ${side} the store, give or take ${span(unsureMs)}`
  const mend = 'Set the clock of whichever is wrong (NTP, chrony).'
  if (atLeastMs > maxMs || atMostMs < -maxMs) return judge(beyond, found, mend)
  // A slow round trip bounds nothing: the true difference may lie on either side of the limit.
  if (unsureMs > maxMs) return { verdict: 'unknown', found, mend: 'Ask again when the store answers faster.' }
  return { verdict: 'ok', found }
}

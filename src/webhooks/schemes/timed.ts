// The options of schemes that sign the time of the attempt.

import { systemClock } from '../../core/clock.ts'
import type { Clock } from '../../core/clock.ts'
import { optional, positiveMs, withMethods } from '../../core/options.ts'
import type { Rule } from '../../core/options.ts'
import { checkedMoment, toleranceMsDefault } from '../request.ts'
import { schemeRules } from './hmac.ts'
import type { WebhookSchemeOptions } from './hmac.ts'

export interface TimedSchemeOptions extends WebhookSchemeOptions {
  /** How far the time of a webhook may be from ours, in the past or in the future. 5 minutes unless given. */
  readonly toleranceMs?: number
  readonly clock?: Pick<Clock, 'now'>
}

export const timedRules: Readonly<Record<string, Rule>> = {
  ...schemeRules,
  toleranceMs: optional(positiveMs),
  clock: optional(withMethods('now')),
}

/** Returns the moment of seconds that are within the tolerance. */
export function momentBy(options: TimedSchemeOptions): (seconds: string, header: string) => number {
  const { toleranceMs = toleranceMsDefault, clock = systemClock } = options
  return (seconds, header) => checkedMoment(seconds, header, { nowMs: clock.now(), toleranceMs })
}

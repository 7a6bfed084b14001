// A clock that stands still until `advance` moves it: timers fire in order, and everything that a timer set off is done before
// the next one fires.

import { setImmediate } from 'node:timers/promises'
import type { Clock } from '../core/clock.ts'

export interface ManualClock extends Clock {
  /** Move forward, firing what is due on the way. */
  advance(ms: number): Promise<void>
  /** Set the wall clock without moving time: what an operator or a bad time server does. */
  setNow(now: number): void
  /** How many timers are waiting. */
  readonly pending: number
}

/**
 * Returns a clock that stands still until `advance` moves it, so that a test of a lease takes no time.
 *
 * @example
 * import { createOnce } from 'onceonly'
 * import { memoryStore } from 'onceonly/memory'
 * import { manualClock } from 'onceonly/testing'
 *
 * const clock = manualClock()
 * const once = createOnce({ store: memoryStore({ clock }), scope: 'shop', clock, leaseMs: 30_000 })
 * void once.run('order-1', () => new Promise<string>(() => {})).catch(() => {})
 * await clock.advance(30_000)
 */
export function manualClock(startMs = 1_700_000_000_000): ManualClock {
  interface Timer {
    readonly atMs: number
    readonly run: () => void
  }
  const timers = new Set<Timer>()
  let elapsedMs = 0
  let offsetMs = startMs

  const nextDue = (untilMs: number): Timer | undefined => {
    let next: Timer | undefined
    for (const timer of timers) if (timer.atMs <= untilMs && (!next || timer.atMs < next.atMs)) next = timer
    return next
  }

  return {
    now: () => Math.floor(offsetMs + elapsedMs),
    elapsed: () => elapsedMs,
    schedule(run, delayMs) {
      const timer = { atMs: elapsedMs + Math.max(0, delayMs), run }
      timers.add(timer)
      return () => void timers.delete(timer)
    },
    async advance(ms) {
      const untilMs = elapsedMs + ms
      await setImmediate() // what was set off before this call comes first
      for (let timer = nextDue(untilMs); timer; timer = nextDue(untilMs)) {
        timers.delete(timer)
        elapsedMs = timer.atMs
        timer.run()
        await setImmediate()
      }
      elapsedMs = untilMs
    },
    setNow: (now) => void (offsetMs = now - elapsedMs),
    get pending() {
      return timers.size
    },
  }
}

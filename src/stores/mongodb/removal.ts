// When a sweep may look at an entry, and when MongoDB itself may remove it (TTL). Both are hints beside the entry's times and
// never decide. Plain updates cannot add to the server's time, so they use the time of the server's last reply. A sweep may come
// too early, as it looks again. A removal must never come too early, so it is set late and checked.

import type { Clock } from '../../core/clock.ts'
import type { Retention } from '../../core/store.ts'

export interface RemovalTimes {
  /** The server's time, from its last reply. */
  note(serverMs: number): void
  hints(leaseMs: number, retention: Retention): RemovalHints
}

export interface RemovalHints {
  readonly sweepAt: Date
  readonly removeAt: Date
}

// The server carries out an update later than it was sent, by the network and its other work. An hour is far beyond any time-out.
// What the hour costs in storage is little beside a tombstone of days.
export const removalSlackMs = 3_600_000

export function removalTimes(clock: Clock): RemovalTimes {
  let told = { serverMs: 0, atMs: 0 }
  return {
    note(serverMs) {
      told = { serverMs, atMs: clock.elapsed() }
    },
    hints(leaseMs, { keepMs, tombstoneMs }) {
      const sinceMs = Math.ceil(clock.elapsed() - told.atMs)
      const latestMs = told.serverMs + sinceMs + leaseMs + keepMs + tombstoneMs + removalSlackMs
      return { sweepAt: new Date(told.serverMs + keepMs), removeAt: new Date(latestMs) }
    },
  }
}

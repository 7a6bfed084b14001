// When an entry may be looked at by a sweep, and when MongoDB may remove it by itself (TTL). Both are hints that stand beside
// the entry's times and never decide. Plain updates cannot add to the server's time, so they go by the last time that the
// server told us: a sweep may come too early, as it looks again; a removal must never, so it is put late and checked.

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

// An update is carried out later than it is sent, by the network and a busy server; an hour is far beyond any time-out.
// Whatever it costs in storage is little beside a tombstone of days.
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

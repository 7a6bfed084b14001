// The time of a SQLite file. The machine's clock is its only source, and that clock can be set. So a process reads the clock once
// and counts on by what has passed, and the file keeps a mark of the latest time at which any process wrote. A writer catches up
// with the mark first. Time in the file never goes back, whatever is done to the clock, and goes on at its real pace.

import type { Clock } from '../../core/clock.ts'
import { prepare } from '../../clients/sqlite.ts'
import type { SqliteDatabase } from '../../clients/sqlite.ts'

/** Where the time and the fences come from: one for all connections of a store, so that fences grow across them. */
export interface Moments {
  now(): number
  /** At least one more than `last`, and than every fence before. */
  fence(last: number): number
  /** Some process has written at this time already. */
  catchUp(markMs: number): void
}

// A transaction that was rolled back leaves no trace of its fence in the table, so the last one is also kept here, by clock.
// Not promised: that another process, in the same millisecond as such a rollback, gives out a greater one.
const lastFences = new WeakMap<Clock, number>()

export function moments(clock: Clock): Moments {
  let offsetMs = clock.now() - clock.elapsed()
  const now = (): number => Math.floor(offsetMs + clock.elapsed())
  return {
    now,
    fence(last) {
      const fence = Math.max(now() * 1_000, last + 1, (lastFences.get(clock) ?? 0) + 1)
      lastFences.set(clock, fence)
      return fence
    },
    catchUp(markMs) {
      if (markMs > now()) offsetMs = markMs - clock.elapsed()
    },
  }
}

export interface TimeMark {
  /** Learns what time it is in the file. */
  read(): void
  /** The same, and leaves the time there for others. Inside a transaction that holds the write lock. */
  keep(): void
}

export function timeMarkOn(database: SqliteDatabase, table: string, time: Moments): TimeMark {
  const find = prepare(database, `SELECT at FROM ${table}_clock`)
  const write = prepare(database, `UPDATE ${table}_clock SET at = ?`)
  const read = (): void => time.catchUp((find.get() as { at: number }).at)
  return {
    read,
    keep() {
      read()
      write.run(time.now())
    },
  }
}

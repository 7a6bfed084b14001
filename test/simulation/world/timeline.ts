// What happens in the world, in one order: by time, and at the same time by what was set first. A process that is paused, or
// suspended, puts off what belongs to it. What belongs to a life that has ended never happens.

import { timeQueue } from './queue.ts'
import type { Timed } from './queue.ts'
import { mixed } from '../../../src/testing/seeded-random.ts'

/** How a process goes on. */
export interface Pace {
  readonly number: number
  pausedUntilMs: number
  suspendedMs: number
}

/** The life that a happening belongs to. */
export interface Owner {
  readonly over: boolean
  readonly pace: Pace
}

export interface Happening extends Timed {
  readonly run: () => void
  readonly owner: Owner | undefined
  /** For a timer: how long the process had been suspended when it was set. Infinity for what suspension does not move. */
  suspendedMs: number
  cancelled: boolean
}

export interface Timeline {
  now(): number
  push(atMs: number, run: () => void, owner?: Owner): Happening
  /** Lets the next thing happen, unless nothing is left, or nothing before that time. */
  happen(untilMs: number): 'happened' | 'nothing' | 'later'
  traceHash(): number
  note(what: number): void
}

export function createTimeline(): Timeline {
  const queue = timeQueue<Happening>()
  let nowMs = 0
  let hash = 0

  /** Is it time for this, or must it wait until its process goes on? */
  const isDue = (happening: Happening): boolean => {
    const laterMs = delayOf(happening)
    if (laterMs <= 0) return true
    if (happening.suspendedMs !== Infinity) happening.suspendedMs = happening.owner!.pace.suspendedMs
    happening.atMs += laterMs
    queue.push(happening)
    return false
  }

  return {
    now: () => nowMs,
    push(atMs, run, owner) {
      const happening = { atMs, order: 0, run, owner, suspendedMs: owner?.pace.suspendedMs ?? 0, cancelled: false }
      queue.push(happening)
      return happening
    },
    happen(untilMs) {
      for (let next = queue.pop(); next; next = queue.pop()) {
        if (next.cancelled || next.owner?.over || !isDue(next)) continue
        if (next.atMs > untilMs) {
          queue.push(next)
          return 'later'
        }
        nowMs = next.atMs
        hash = mixed(hash, mixed(nowMs * 1_000, next.owner?.pace.number ?? 0))
        next.run()
        return 'happened'
      }
      return 'nothing'
    },
    traceHash: () => hash,
    note: (what) => void (hash = mixed(hash, what)),
  }
}

function delayOf({ owner, atMs, suspendedMs }: Happening): number {
  return owner ? Math.max(owner.pace.pausedUntilMs - atMs, owner.pace.suspendedMs - suspendedMs) : 0
}

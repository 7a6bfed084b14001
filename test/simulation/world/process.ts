// A process of the world: its clocks, its crashes and pauses, and its lives. A life is what runs between a start and a crash.

import type { Clock } from '../../../src/core/clock.ts'
import type { SeededRandom } from '../../../src/testing/seeded-random.ts'
import type { Pace, Timeline } from './timeline.ts'

export interface ProcessOptions {
  /** How wrong the wall clock is. */
  readonly skewMs?: number
  /** How fast its clocks run: 1.001 gains a millisecond per second. */
  readonly rate?: number
}

export interface Process {
  readonly name: string
  /** Undefined while the process is down. */
  readonly life: Life | undefined
  /** How wrong the wall clock is at present. */
  skewMs: number
  start(): Life
  crash(): void
  /** `stop`: nothing runs, and timers that became due run at once afterwards. `suspend`: its monotonic clock stands still, too. */
  pause(forMs: number, how: 'stop' | 'suspend'): void
}

export interface Life {
  readonly process: Process
  readonly clock: Clock
  readonly random: SeededRandom
  readonly over: boolean
  /** Something reaches this life: never when the life has ended by then, later when its process is paused. */
  arrive(delayMs: number, run: () => void): void
  /** For parties outside that notice that the process is gone. */
  whenOver(run: () => void): void
}

/** A life from the inside. A field and no getter: one in an object literal keeps all that it can see from dying young. */
interface OwnLife extends Life {
  over: boolean
  readonly ends: (() => void)[]
  readonly pace: Pace
}

interface NewProcess extends ProcessOptions {
  readonly name: string
  /** Which one it is, from 1. Its randomness follows from it. */
  readonly number: number
  readonly random: SeededRandom
}

export function createProcess(timeline: Timeline, { name, number, random, skewMs = 0, rate = 1 }: NewProcess): Process {
  const { now } = timeline
  const pace: Pace = { number, pausedUntilMs: 0, suspendedMs: 0 }
  let lives = 0
  const self: Process & { life: OwnLife | undefined } = {
    name,
    skewMs,
    life: undefined,
    start: () =>
      (self.life ??= beginLife(timeline, self, { pace, rate, random: random.fork(number * 1_000 + lives++) })),
    crash() {
      const ended = self.life
      self.life = undefined
      if (ended) ended.over = true
      for (const tell of ended?.ends ?? []) tell()
      // What starts in its place is another process, and that one is not paused.
      pace.pausedUntilMs = 0
    },
    pause(forMs, how) {
      const [fromMs, untilMs] = [Math.max(pace.pausedUntilMs, now()), now() + forMs]
      if (untilMs <= fromMs) return
      pace.pausedUntilMs = untilMs
      if (how === 'suspend') pace.suspendedMs += untilMs - fromMs
    },
  }
  return self
}

function beginLife(
  { now, push }: Timeline,
  process: Process,
  { pace, rate, random }: { readonly pace: Pace; readonly rate: number; readonly random: SeededRandom },
): OwnLife {
  const clock: Clock = {
    now: () => Math.floor(now() + process.skewMs),
    elapsed: () => (now() - pace.suspendedMs) * rate,
    schedule(run, delayMs) {
      if (life.over) return () => {}
      // As Node's timers do: whole milliseconds, and at least one.
      const timer = push(now() + Math.max(1, Math.trunc(delayMs)) / rate, run, life)
      return () => void (timer.cancelled = true)
    },
  }
  const life: OwnLife = {
    process,
    clock,
    random,
    over: false,
    ends: [],
    pace,
    arrive(delayMs, run) {
      // An answer is not late because the clock of the process that gets it stood still: that moves only timers.
      if (!life.over) push(now() + delayMs, run, life).suspendedMs = Infinity
    },
    // Code of a life that has just ended may still go on to the end of its turn.
    whenOver: (run) => (life.over ? run() : void life.ends.push(run)),
  }
  return life
}

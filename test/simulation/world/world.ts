// A world in which time is a number: processes that crash, stand still and have wrong clocks, and everything that happens in
// one order that the seed decides. Whatever an event sets off in promises is done before the next event.
//
// A life is what runs between the start of a process and its crash. All that code does (timers, answers) belongs to the life
// in which it began; what belongs to a life that is over never happens. So the dead do not come back.

import { nextTick } from 'node:process'
import { setImmediate } from 'node:timers'
import type { Clock } from '../../../src/core/clock.ts'
import { timeQueue } from './queue.ts'
import type { Timed } from './queue.ts'
import { mixed, seededRandom } from '../../../src/testing/seeded-random.ts'
import type { SeededRandom } from '../../../src/testing/seeded-random.ts'

export interface WorldOptions {
  readonly seed: number
  /**
   * How promises are waited for between events: `quick` stays within one turn of the event loop; `thorough` takes a turn for
   * every event, so that Node reports a rejection that nobody handles just when it would do so outside. Default quick.
   */
  readonly drain?: 'quick' | 'thorough'
}

export interface World {
  readonly random: SeededRandom
  /** Milliseconds since the beginning. */
  now(): number
  /** Something that happens outside of every process. */
  after(delayMs: number, run: () => void): void
  createProcess(name: string, options?: ProcessOptions): Process
  /** Everything that happens, in order, until nothing is left; answers false when it had to stop at `untilMs`. */
  run(untilMs?: number): Promise<boolean>
  /** One number for all that happened; `note` adds to it. */
  traceHash(): number
  note(what: number): void
}

export interface ProcessOptions {
  /** How wrong the wall clock is. */
  readonly skewMs?: number
  /** How fast its clocks run: 1.001 gains a millisecond a second. */
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
  /** Something reaches this life: never when it is over by then, later when its process is paused. */
  arrive(delayMs: number, run: () => void): void
  /** For those outside who notice that the process is gone. */
  whenOver(run: () => void): void
}

interface Happening extends Timed {
  readonly run: () => void
  readonly owner: Owner | undefined
  /** For a timer: how long the process had been suspended when it was set. Infinity for what suspension does not move. */
  suspendedMs: number
  cancelled: boolean
}

/** A life from the inside. A field and no getter: one in an object literal keeps all that it can see from dying young. */
interface Owner extends Life {
  over: boolean
  readonly ends: (() => void)[]
  readonly pace: Pace
}

interface Pace {
  readonly number: number
  pausedUntilMs: number
  suspendedMs: number
}

export function createWorld(options: WorldOptions): World {
  const random = seededRandom(options.seed)
  const queue = timeQueue<Happening>()
  const drain = options.drain === 'thorough' ? thoroughly : quickly
  let nowMs = 0
  let hash = 0
  let processes = 0

  const push = (atMs: number, run: () => void, owner?: Owner): Happening => {
    const happening = { atMs, order: 0, run, owner, suspendedMs: owner?.pace.suspendedMs ?? 0, cancelled: false }
    queue.push(happening)
    return happening
  }

  /** Is it time for this, or must it wait until its process goes on? */
  const isDue = (happening: Happening): boolean => {
    const { owner } = happening
    if (!owner) return true
    const { pace } = owner
    const laterMs = Math.max(pace.pausedUntilMs - happening.atMs, pace.suspendedMs - happening.suspendedMs)
    if (laterMs <= 0) return true
    if (happening.suspendedMs !== Infinity) happening.suspendedMs = pace.suspendedMs
    happening.atMs += laterMs
    queue.push(happening)
    return false
  }

  /** The next thing that happens, unless nothing is left, or nothing before that time. */
  function happen(untilMs: number): 'happened' | 'nothing' | 'later' {
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
  }

  // Callbacks, as there is one of these for every event: a promise for each costs as much as the event.
  function run(untilMs = Infinity): Promise<boolean> {
    return new Promise((resolve, reject) => {
      const step = (): void => {
        try {
          const what = happen(untilMs)
          if (what === 'happened') drain(step)
          else resolve(what === 'nothing')
        } catch (error) {
          reject(error as Error)
        }
      }
      drain(step)
    })
  }

  return {
    random,
    now: () => nowMs,
    after: (delayMs, work) => void push(nowMs + delayMs, work),
    createProcess: (name, how = {}) => createProcess(name, how, ++processes, random, () => nowMs, push),
    run,
    traceHash: () => hash,
    note: (what) => void (hash = mixed(hash, what)),
  }
}

function createProcess(
  name: string,
  options: ProcessOptions,
  number: number,
  worldRandom: SeededRandom,
  now: () => number,
  push: (atMs: number, run: () => void, owner: Owner) => Happening,
): Process {
  const { rate = 1 } = options
  const pace: Pace = { number, pausedUntilMs: 0, suspendedMs: 0 }
  let lives = 0

  function begin(): Owner {
    const clock: Clock = {
      now: () => Math.floor(now() + self.skewMs),
      elapsed: () => (now() - pace.suspendedMs) * rate,
      schedule(run, delayMs) {
        if (life.over) return () => {}
        // As Node's timers do: whole milliseconds, and at least one.
        const timer = push(now() + Math.max(1, Math.trunc(delayMs)) / rate, run, life)
        return () => void (timer.cancelled = true)
      },
    }
    const life: Owner = {
      process: self,
      clock,
      random: worldRandom.fork(number * 1_000 + lives++),
      over: false,
      ends: [],
      pace,
      arrive(delayMs, run) {
        // An answer is not late because the clock of the one who gets it stood still: that moves only timers.
        if (!life.over) push(now() + delayMs, run, life).suspendedMs = Infinity
      },
      // Code of a life that has just ended may still go on to the end of its turn.
      whenOver: (run) => (life.over ? run() : void life.ends.push(run)),
    }
    return life
  }

  const self: Process & { life: Owner | undefined } = {
    name,
    skewMs: options.skewMs ?? 0,
    life: undefined,
    start: () => (self.life ??= begin()),
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

// Node runs what nextTick was given only when no promise has anything left to do, if it was given it from a promise.
function quickly(then: () => void): void {
  queueMicrotask(() => nextTick(then))
}

function thoroughly(then: () => void): void {
  setImmediate(then)
}

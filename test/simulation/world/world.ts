// A world in which time is a number: processes that crash, stand still and have wrong clocks, and everything that happens in
// one order that the seed decides. Whatever an event sets off in promises is done before the next event.
//
// A life is what runs between the start of a process and its crash. All that code does (timers, answers) belongs to the life in
// which it began. What belongs to a life that has ended never happens. So the dead do not come back.

import { nextTick } from 'node:process'
import { setImmediate } from 'node:timers'
import { seededRandom } from '../../../src/testing/seeded-random.ts'
import type { SeededRandom } from '../../../src/testing/seeded-random.ts'
import { createProcess } from './process.ts'
import type { Process, ProcessOptions } from './process.ts'
import { createTimeline } from './timeline.ts'
import type { Timeline } from './timeline.ts'

export type { Life, Process, ProcessOptions } from './process.ts'

export type Drain = 'quick' | 'thorough'

export interface WorldOptions {
  readonly seed: number
  /**
   * How promises are waited for between events: `quick` stays within one turn of the event loop. `thorough` takes a turn for
   * every event, so that Node reports an unhandled rejection just when it would do so outside. Default quick.
   */
  readonly drain?: Drain
}

export interface World {
  readonly random: SeededRandom
  /** Milliseconds since the beginning. */
  now(): number
  /** Something that happens outside of every process. */
  after(delayMs: number, run: () => void): void
  createProcess(name: string, options?: ProcessOptions): Process
  /** Everything that happens, in order, until nothing is left. Returns false when it had to stop at `untilMs`. */
  run(untilMs?: number): Promise<boolean>
  /** One number for all that happened. `note` adds to it. */
  traceHash(): number
  note(what: number): void
}

export function createWorld(options: WorldOptions): World {
  const random = seededRandom(options.seed)
  const timeline = createTimeline()
  const { now, push, traceHash, note } = timeline
  let processes = 0
  return {
    random,
    now,
    after: (delayMs, work) => void push(now() + delayMs, work),
    createProcess: (name, how = {}) => createProcess(timeline, { ...how, name, number: ++processes, random }),
    run: (untilMs = Infinity) => runUntil(timeline, untilMs, options.drain === 'thorough' ? thoroughly : quickly),
    traceHash,
    note,
  }
}

// A schedule has some hundreds. One without an end stays within one turn of the event loop, so nothing from outside could end it.
const eventsMax = 100_000

// Callbacks, as there is one of these for every event: a promise for each costs as much as the event.
function runUntil({ happen }: Timeline, untilMs: number, drain: (then: () => void) => void): Promise<boolean> {
  return new Promise((resolve, reject) => {
    let left = eventsMax
    const step = (): void => {
      try {
        if (left-- === 0) throw new Error(`it did not end within ${eventsMax} events`)
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

// Node runs what nextTick was given only when no promise has anything left to do, if it was given it from a promise.
function quickly(then: () => void): void {
  queueMicrotask(() => nextTick(then))
}

function thoroughly(then: () => void): void {
  setImmediate(then)
}

// What every part of the simulated world of an inbox knows: the time, chance, what goes wrong, and whether a process lives. Requests and
// replies travel separately, so "done but not answered" exists. A process can die at any await, and can stand still.
import type { Clock } from '../../../src/core/clock.ts'
import type { ManualClock } from '../../../src/testing/manual-clock.ts'
import { type SeededRandom, seededRandom } from '../../../src/testing/seeded-random.ts'
import { timeQueue } from '../../simulation/world/queue.ts'
import type { Timed } from '../../simulation/world/queue.ts'
import type { InboxCounts } from './counts.ts'
import { noInboxCounts } from './counts.ts'

/** What a schedule can be accused of. A seeded bug names the assertion that must find it. */
export const messageAssertions = [
  'acknowledged-first',
  'acknowledged-is-done',
  'attempt-counted-first',
  'dead-letter-first',
  'in-order',
  'marks-bounded',
  'no-unhandled-rejection',
  'nothing-lost',
  'one-effect',
  'outbox-sound',
  'parked-not-run',
  'too-old-not-run',
  'versions-grow',
] as const

export type MessageAssertion = (typeof messageAssertions)[number]

export interface MessageViolation {
  readonly assertion: MessageAssertion
  readonly message: string
}

/** What became of one schedule. */
export interface JudgedSchedule {
  readonly counts: Readonly<Record<string, number>>
  readonly violations: readonly MessageViolation[]
  story(): string
}

export interface Life {
  isDead: boolean
  pausedUntil: number
  /** Its wall clock differs from the others' by this. */
  readonly skewMs: number
}

export interface World {
  readonly seed: number
  readonly clock: ManualClock
  readonly random: SeededRandom
  readonly counts: InboxCounts
  readonly violations: MessageViolation[]
  /** How much goes wrong: a chance. 0 when the world is healed. */
  faults: number
  isDatabaseDown: boolean
  readonly told: string[]
  tell(line: string): void
  violated(assertion: MessageAssertion, message: string): void
  wait(ms: number): Promise<void>
}

/** A manual clock for many timers: it stays within one turn of the event loop, where everything that a timer set off is done, too. */
export function simulatedClock(startMs = 1_700_000_000_000): ManualClock {
  interface Timer {
    run: (() => void) | undefined
  }
  const times = timeQueue<Timed>()
  const timersAt = new Map<number, Timer[]>()
  let elapsedMs = 0
  let offsetMs = startMs
  let pending = 0
  const settled = (): Promise<void> => new Promise((resolve) => queueMicrotask(() => process.nextTick(resolve)))
  const fire = async (timer: Timer): Promise<void> => {
    const { run } = timer
    if (!run) return
    timer.run = undefined
    pending--
    run()
    await settled()
  }
  return {
    now: () => Math.floor(offsetMs + elapsedMs),
    elapsed: () => elapsedMs,
    schedule(run, delayMs) {
      const atMs = elapsedMs + Math.max(0, delayMs)
      const timer: Timer = { run }
      const others = timersAt.get(atMs)
      if (others) others.push(timer)
      else {
        timersAt.set(atMs, [timer])
        times.push({ atMs, order: 0 })
      }
      pending++
      return () => {
        if (timer.run) pending--
        timer.run = undefined
      }
    },
    async advance(ms) {
      const untilMs = elapsedMs + ms
      await settled()
      for (let next = times.pop(); next; next = times.pop()) {
        if (next.atMs > untilMs) {
          times.push(next)
          break
        }
        elapsedMs = next.atMs
        // Those that are set meanwhile for the same time are at the end.
        for (const timer of timersAt.get(next.atMs)!) await fire(timer)
        timersAt.delete(next.atMs)
      }
      elapsedMs = untilMs
    },
    setNow: (now) => void (offsetMs = now - elapsedMs),
    get pending() {
      return pending
    },
  }
}

export function createWorld(seed: number, clock: ManualClock = simulatedClock()): World {
  const told: string[] = []
  const violations: MessageViolation[] = []
  const tell = (line: string): void => void told.push(`${clock.elapsed().toFixed(0).padStart(9)} ms  ${line}`)
  return {
    seed,
    clock,
    random: seededRandom(seed),
    counts: noInboxCounts(),
    violations,
    faults: 0.05,
    isDatabaseDown: false,
    told,
    tell,
    violated(assertion, message) {
      violations.push({ assertion, message })
      tell(`VIOLATED ${assertion}: ${message}`)
    },
    wait: (ms) => new Promise((resolve) => void clock.schedule(resolve, ms)),
  }
}

/** A dead process hears nothing, and one that stands still hears it later. */
export async function heard<T>({ clock, wait }: World, life: Life, give: () => T | Promise<T>): Promise<T> {
  while (!life.isDead && clock.elapsed() < life.pausedUntil) await wait(life.pausedUntil - clock.elapsed())
  return life.isDead ? new Promise(() => {}) : give()
}

/** Time goes on for everybody. The timers of a process fire when it runs, and not at all when it is dead. */
export function clockOf({ clock }: Pick<World, 'clock'>, life: Life): Clock {
  return {
    now: () => clock.now() + life.skewMs,
    elapsed: () => clock.elapsed(),
    schedule(run, delayMs) {
      let cancel = (): void => {}
      const fire = (): void => {
        if (life.isDead) return
        if (clock.elapsed() >= life.pausedUntil) return run()
        cancel = clock.schedule(fire, life.pausedUntil - clock.elapsed())
      }
      cancel = clock.schedule(fire, delayMs)
      return () => cancel()
    },
  }
}

// The world of one schedule of sessions: servers over one memory, clients with their counters, and what a schedule can be accused of.
import type { ClientSession, Sessions } from '../../../src/sessions/sessions.ts'
import { createSessions } from '../../../src/sessions/sessions.ts'
import { memoryData, memoryStore } from '../../../src/stores/memory.ts'
import type { ManualClock } from '../../../src/testing/manual-clock.ts'
import { seededRandom } from '../../../src/testing/seeded-random.ts'
import type { SeededRandom } from '../../../src/testing/seeded-random.ts'
import { clockOf, simulatedClock } from '../../messages/simulation/world.ts'
import type { Life } from '../../messages/simulation/world.ts'
import { noSessionCounts } from './counts.ts'
import type { SessionCounts } from './counts.ts'

/** What a schedule of sessions can be accused of. A seeded bug names the assertion that must find it. */
export const sessionAssertions = [
  'epoch-grows',
  'expired-not-run',
  'fenced-not-run',
  'gap-not-run',
  'not-executed-left-nothing',
  'not-locked-out',
  'one-content',
  'one-effect',
  'rows-bounded',
  'same-answer',
  'window-kept',
] as const

export type SessionAssertion = (typeof sessionAssertions)[number]

export interface SessionViolation {
  readonly assertion: SessionAssertion
  readonly message: string
}

export const times = { leaseMs: 60_000, tombstoneMs: 60_000, attemptLeaseMs: 3_000, waitMs: 2_000 } as const

/** A process of the service. */
export interface SessionLife extends Life {
  /** An attempt of a life that ever stood still may have lost its number. */
  wasPaused: boolean
  readonly sessions: Sessions<undefined>
  wait(ms: number): Promise<void>
}

export interface SessionAttempt {
  readonly life: SessionLife
  readonly content: string
  state: 'running' | 'failed' | 'answered' | 'refused'
}

export interface SimulatedClient {
  readonly name: string
  session: ClientSession | undefined
  /** Of the current epoch. A number that was drawn is never drawn again. */
  next: number
  acknowledged: number
  /** What was asked under each number that has no answer yet. */
  readonly pending: Map<number, string>
  silentUntilMs: number
}

/** One request on its way, with what its client knew when it was sent. */
export interface SentRequest {
  readonly session: ClientSession
  readonly sequence: number
  readonly acknowledged: number
  readonly content: string
}

export const nameOf = ({ session: { session, epoch }, sequence }: SentRequest): string =>
  `${session}/${epoch}/${sequence}`

export interface SessionWorld {
  readonly clock: ManualClock
  readonly random: SeededRandom
  readonly window: number
  readonly strict: boolean
  readonly counts: SessionCounts
  readonly violations: SessionViolation[]
  readonly told: string[]
  readonly clients: readonly SimulatedClient[]
  /** By client, epoch and number. */
  readonly attempts: Map<string, readonly SessionAttempt[]>
  readonly answers: Map<string, string>
  /** The latest that each client was given. */
  readonly epochs: Map<string, number>
  /** Until when a call of this client and epoch may have been heard of. */
  readonly activeUntilMs: Map<string, number>
  /** The most that a request of this client and epoch has acknowledged. */
  readonly acknowledged: Map<string, number>
  lives: readonly SessionLife[]
  /** 1 while things go wrong, 0 when the world is healed. */
  faults: 0 | 1
  start(): void
  /** One of the processes that live. */
  alive(): SessionLife
  tell(line: string): void
  violated(assertion: SessionAssertion, message: string): void
}

const clientNames = ['till-1', 'till-2', 'till-3']

export function createSessionWorld(seed: number): SessionWorld {
  const clock = simulatedClock()
  const random = seededRandom(seed)
  const data = memoryData(clock)
  const told: string[] = []
  const violations: SessionViolation[] = []
  const tell = (line: string): void => void told.push(`${clock.elapsed().toFixed(0).padStart(9)} ms  ${line}`)
  let started = 0
  const world: SessionWorld = {
    clock,
    random,
    window: random.integer(1, 4),
    strict: random.chance(0.3),
    counts: noSessionCounts(),
    violations,
    told,
    clients: clientNames.map(newClient),
    attempts: new Map(),
    answers: new Map(),
    epochs: new Map(),
    activeUntilMs: new Map(),
    acknowledged: new Map(),
    lives: [],
    faults: 1,
    start() {
      const { window, strict } = world
      const fate: Life & { wasPaused: boolean } = {
        isDead: false,
        pausedUntil: 0,
        wasPaused: false,
        skewMs: random.integer(-3_600_000, 3_600_000),
      }
      const own = clockOf(world, fate)
      const sessions = createSessions({
        store: memoryStore({ data }),
        scope: 'tills',
        clock: own,
        random: random.fork(++started),
        window,
        strict,
        ...times,
      })
      const life: SessionLife = Object.assign(fate, {
        sessions,
        wait: (ms: number) => new Promise<void>((resolve) => void own.schedule(resolve, ms)),
      })
      world.lives = [...world.lives.filter(({ isDead }) => !isDead), life]
    },
    alive: () => random.pick(world.lives.filter(({ isDead }) => !isDead)),
    tell,
    violated(assertion, message) {
      violations.push({ assertion, message })
      tell(`VIOLATED ${assertion}: ${message}`)
    },
  }
  return world
}

const newClient = (name: string): SimulatedClient => ({
  name,
  session: undefined,
  next: 1,
  acknowledged: 0,
  pending: new Map(),
  silentUntilMs: 0,
})

// Systems outside of the store, on their own network, with a ledger that deduplicates nothing by itself. `keyed` honours
// idempotency keys. `asked` can be asked what it did with a key, and may stand by its answer. `deaf` does whatever a request
// asks. All of them take an undo once for each key of it, also of what never came, and do nothing any more that was undone.

import { FinalError } from '../../../src/core/errors.ts'
import type { LookupResult } from '../../../src/core/operations.ts'
import type { Life, World } from './world.ts'

export interface OutsideRequest {
  readonly system: 'keyed' | 'asked' | 'deaf'
  /** Names the operation and the step, for the ledger. */
  readonly subject: string
  readonly does: 'run' | 'undo'
  /** The idempotency key of the request. */
  readonly key: string
  readonly fence: number
}

/** What becomes of a request on its way. */
export type OutsideFate = 'arrives' | 'declined' | 'lose-request' | 'lose-reply' | 'late-request'

/** A line of the ledger. */
export interface OutsideEffect extends Omit<OutsideRequest, 'system'> {
  readonly system: OutsideRequest['system'] | 'transaction'
  readonly atMs: number
  /** Before it came, a lookup of its key had returned that nothing had come. */
  readonly isOvertaken: boolean
}

export interface Outside {
  readonly ledger: OutsideEffect[]
  /** How many requests are still on their way. */
  underWay(): number
  /** Resolves with the place in the ledger. */
  send(life: Life, request: OutsideRequest, fate: OutsideFate): Promise<number>
  lookup(life: Life, request: Omit<OutsideRequest, 'does'>, isUnknown: boolean): Promise<LookupResult<number>>
  /** What a transaction of the store's committed. It is found again by its `ticket`. */
  commit(subject: string, does: 'run' | 'undo', ticket: number): void
  /** Where in the ledger that stands. */
  placeOf(ticket: number): number | undefined
  /** A person has seen to it that what was declined will not be declined again. */
  reconsider(): void
  /** What a person who looks into the ledger finds. Undefined when it did not take effect. */
  find(subject: string): number | undefined
}

export interface OutsideOptions {
  readonly latencyMs: readonly [number, number]
  /** The one that can be asked refuses what is overtaken: only then does "not found" mean that it will not be. */
  readonly refusesOvertaken: boolean
  /** How late is a request that is late. */
  readonly lateMs: number
}

export function createOutside(world: World, options: OutsideOptions): Outside {
  const ledger: OutsideEffect[] = []
  const byKey = new Map<string, number>()
  const undone = new Set<string>()
  const places = new Map<number, number>()
  const declined = new Set<string>()
  const notFound = new Map<string, { readonly atMs: number; readonly fence: number }>()
  const wire = createWire(world, options)

  function write(effect: Omit<OutsideEffect, 'atMs'>): number {
    return ledger.push({ ...effect, atMs: world.now() }) - 1
  }

  function carryOut(request: OutsideRequest, sentAtMs: number, fate: OutsideFate): number {
    const { system, subject, does, key, fence } = request
    const told = notFound.get(key)
    const isOvertaken = told !== undefined && (fence < told.fence || sentAtMs < told.atMs)
    const known = byKey.get(key)
    if (does === 'undo') undone.add(subject)
    else if (undone.has(subject)) throw new Error(`${subject} was undone before it came`)
    if (known !== undefined && (does === 'undo' || system === 'keyed')) return known
    if (isOvertaken && options.refusesOvertaken) throw new Error(`${subject} was overtaken`)
    // An answer like any other: a system that honours keys gives it again.
    if (fate === 'declined' || (declined.has(key) && does === 'run' && system === 'keyed')) {
      declined.add(key)
      throw new FinalError('planned: it was declined')
    }
    const at = write({ system, subject, does, key, fence, isOvertaken })
    byKey.set(key, at)
    return at
  }

  return {
    ledger,
    underWay: wire.underWay,
    send(life, request, fate) {
      const sentAtMs = world.now()
      return wire.exchange(life, fate, () => carryOut(request, sentAtMs, fate))
    },
    lookup: (life, { key, fence }, isUnknown) =>
      wire.exchange(life, 'arrives', (): LookupResult<number> => {
        if (isUnknown) return 'unknown'
        const found = byKey.get(key)
        if (found !== undefined) return { found }
        notFound.set(key, { atMs: world.now(), fence: Math.max(fence, notFound.get(key)?.fence ?? 0) })
        return 'not-found'
      }),
    commit(subject, does, ticket) {
      places.set(ticket, write({ system: 'transaction', subject, does, key: subject, fence: 0, isOvertaken: false }))
    },
    placeOf: (ticket) => places.get(ticket),
    reconsider: () => declined.clear(),
    find(subject) {
      const found = ledger.findIndex((effect) => effect.subject === subject && effect.does === 'run')
      return found < 0 ? undefined : found
    },
  }
}

const noticeMs = 40

interface Wire {
  underWay(): number
  /** There and back. What is lost is noticed after a while. */
  exchange<T>(life: Life, fate: OutsideFate, decide: () => T): Promise<T>
}

function createWire(world: World, { latencyMs: [fastestMs, slowestMs], lateMs }: OutsideOptions): Wire {
  const latencyMs = (life: Life): number => fastestMs + life.random.fraction() * (slowestMs - fastestMs)
  let underWay = 0
  return {
    underWay: () => underWay,
    exchange: (life, fate, decide) =>
      new Promise((resolve, reject) => {
        if (life.over) return
        const lost = new Error('the connection is gone')
        const isHeard = fate === 'arrives' || fate === 'declined'
        if (!isHeard) life.arrive(latencyMs(life) + noticeMs, () => reject(lost))
        if (fate === 'lose-request') return
        underWay++
        world.after(latencyMs(life) + (fate === 'late-request' ? lateMs : 0), () => {
          underWay--
          const answer = attempt(decide)
          if (!isHeard) return
          life.arrive(latencyMs(life), () => ('value' in answer ? resolve(answer.value) : reject(answer.error)))
        })
      }),
  }
}

function attempt<T>(decide: () => T): { readonly value: T } | { readonly error: Error } {
  try {
    return { value: decide() }
  } catch (error) {
    return { error: error as Error }
  }
}

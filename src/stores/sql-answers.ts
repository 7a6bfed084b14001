// What the functions of PostgreSQL and the procedures of MySQL answer, one line of text a call, and what to make of it. An
// entry whose row somebody has locked is asked for again, for a while: what will become of it is not known yet.

import { backoffMs } from '../core/backoff.ts'
import { sleep, systemRandom } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import { OnceError } from '../core/errors.ts'
import { describeKey } from '../core/key.ts'
import type { Key } from '../core/key.ts'
import type { Advanced, ClaimRequest, Fenced, Verdict } from '../core/store.ts'

/** A row that is locked now is mostly free a moment later; a transaction that took the key over may last. */
const lockedBackoff = { firstMs: 2, factor: 2, maxMs: 200 }
const claimTriesMax = 8
const writeTriesMax = 30

/**
 * The key is locked by somebody's transaction or statement, and nobody can tell for how long. A statement is over within
 * milliseconds; a transaction that takes longer is asked after ten times a second.
 */
const heldRetryAfterMs = 100

// n: granted, and nothing was written yet.
const hows = { f: 'fresh', n: 'fresh', r: 'reopened', t: 'taken-over' } as const

export function verdictOf(key: Key, request: ClaimRequest, answer: string): Verdict {
  const [is, first, second, third] = answer.split(' ')
  switch (is) {
    case 'granted': {
      const claim = { key, token: request.token, attempt: Number(second), fence: Number(third) }
      return { is, claim, how: hows[first as keyof typeof hows] }
    }
    case 'settled':
      if (third === undefined) throw unreadable(key)
      return { is, attempt: Number(first), version: Number(second), outcome: bytesOf(third) }
    case 'busy':
      return { is, retryAfterMs: Number(first) }
    case 'held':
    case 'locked':
      return { is: 'busy', retryAfterMs: Math.min(heldRetryAfterMs, request.leaseMs) }
    case 'doubt':
      return { is, attempt: Number(first) }
    case 'mismatch':
    case 'expired':
      return { is }
    default:
      throw new Error(`Bug! A claim was answered with ${JSON.stringify(answer)}.`)
  }
}

/** 'locked': somebody has the entry's row. */
export function fencedOf(answer: string): Fenced | 'locked' {
  const fenced = advancedOf(answer)
  return fenced === 'cancelled' ? 'done' : fenced
}

function advancedOf(answer: string): Advanced | 'locked' {
  if (answer === 'done' || answer === 'lost' || answer === 'locked' || answer === 'cancelled') return answer
  throw new Error(`Bug! A write was answered with ${JSON.stringify(answer)}.`)
}

export function bytesOf(base64: string): Uint8Array {
  return new Uint8Array(Buffer.from(base64, 'base64'))
}

/** The answer to a claim; 'locked' after a quarter of a second, in which a caller would rather be told that it is busy. */
export function claimWhileLocked(clock: Clock, claim: () => Promise<string>): Promise<string> {
  return whileLocked(clock, claimTriesMax, claim)
}

/** A write is asked for longer: whether its claim still holds decides what the caller is told. */
export async function writeUntilKnown(clock: Clock, write: () => Promise<string>): Promise<Fenced> {
  const answer = await advanceUntilKnown(clock, write)
  return answer === 'cancelled' ? 'done' : answer
}

export async function advanceUntilKnown(clock: Clock, write: () => Promise<string>): Promise<Advanced> {
  const answer = advancedOf(await whileLocked(clock, writeTriesMax, write))
  if (answer !== 'locked') return answer
  const message = `Another transaction has had the entry locked for seconds, and has neither committed nor rolled back. Ask again.`
  throw new OnceError('STORE_UNAVAILABLE', { message, executed: 'unknown' })
}

async function whileLocked(clock: Clock, triesMax: number, ask: () => Promise<string>): Promise<string> {
  for (let tries = 1; ; tries++) {
    const answer = await ask()
    if (answer !== 'locked' || tries === triesMax) return answer
    await sleep(clock, backoffMs(lockedBackoff, tries - 1, systemRandom))
  }
}

function unreadable(key: Key): OnceError {
  return new OnceError('OUTCOME_UNREADABLE', {
    message:
      `The entry of ${describeKey(key)} is settled, and the server gave no outcome: it was removed by hand, or (MySQL) ` +
      `max_allowed_packet is now smaller than when it was written. Nothing was run.`,
  })
}

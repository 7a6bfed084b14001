// The quarantine: seeing it, spreading it over a Cluster, and ending it. The flag is in the registers, so that every instance
// stops, also one that lost nothing itself. Each bucket of a Cluster has a register, and all of them get the flag.

import { pausesMs } from '../../../core/backoff.ts'
import { span } from '../../../core/clock.ts'
import { OnceError, invalidArgument } from '../../../core/errors.ts'
import { check, judge } from '../../../core/fitness.ts'
import type { FitnessCheck } from '../../../core/fitness.ts'
import { describeKey } from '../../../core/key.ts'
import type { Key } from '../../../core/key.ts'
import { aReason } from '../../../core/options.ts'
import { buckets } from '../names.ts'
import { numberAt, registerPlaces, textAt } from '../places.ts'
import { runScript, storeError } from '../scripts.ts'
import type { RedisContext } from '../scripts.ts'
import type { DataLoss } from './memory.ts'
import { endScript, holdScript, lookScript } from './register.lua.ts'

export interface Quarantine {
  /** On the server's clock. */
  readonly sinceMs: number
  /** Undefined when only a person ends it. */
  readonly untilMs?: number
  readonly evidence: DataLoss['evidence']
}

export interface Quarantinable {
  /** Returns the quarantine, or undefined when there is none. */
  quarantine(): Promise<Quarantine | undefined>
  /** Lets new claims in again. The reason is kept with the register. Returns whether there was a quarantine. */
  endQuarantine(reason: string): Promise<boolean>
}

/**
 * Can this store lose data and refuse new claims because of it? Then `quarantine()` says whether it does.
 *
 * @example
 * import { isQuarantinable } from 'onceonly/redis'
 *
 * const isHeld = async (store: object) => isQuarantinable(store) && (await store.quarantine()) !== undefined
 */
export function isQuarantinable<Some extends object>(store: Some): store is Some & Quarantinable {
  return 'quarantine' in store && 'endQuarantine' in store
}

/** For `onceonly doctor`. */
export function quarantineCheck(store: Quarantinable, nowMs: number): Promise<FitnessCheck> {
  const why =
    'Redis came back without data that it had acknowledged: the store refuses new keys until a person has looked.'
  return check({ name: 'redis-data-loss', lookedAt: 'the register of the store', why }, async () => {
    const held = await store.quarantine()
    if (!held) return { verdict: 'ok', found: 'no loss of data was noticed' }
    const found = `quarantine since ${new Date(held.sinceMs).toISOString()} (${span(nowMs - held.sinceMs)}), evidence: ${held.evidence}`
    const mend = 'Find out what was lost (docs/stores.md, Redis), then run onceonly quarantine --end --reason TEXT.'
    return judge('violated', found, mend)
  })
}

/** The instance that asks, and what a loss leads to: '-' for nothing, 'on', or for how many milliseconds. */
export interface QuarantineContext extends RedisContext {
  readonly instance: string
  readonly onLoss: string
}

// More than a year, and a hundred of them: quarantines are rare, and what is written must go by itself.
const logKeepMs = 400 * 24 * 3_600_000
const logRecords = 100

export function quarantineOf(context: QuarantineContext): Quarantinable {
  const { names, instance } = context
  const everywhere = context.link.isCluster ? buckets : [undefined]
  return {
    async quarantine() {
      const replies = await Promise.all(
        everywhere.map((bucket) =>
          runScript(context, { script: lookScript, keys: [names.register(bucket)], values: [instance] }),
        ),
      ).catch((error: unknown) => Promise.reject(storeError(error, 'look for a quarantine', 'no')))
      const [first] = replies.filter((reply): reply is Buffer => reply instanceof Buffer)
      return first && readQuarantine(first.toString('latin1'))
    },
    async endQuarantine(reason) {
      const expected = aReason(reason)
      if (expected !== undefined)
        throw invalidArgument(`endQuarantine: expected ${expected}, got ${JSON.stringify(reason)}`)
      const values = [instance, Buffer.from(reason), `${logKeepMs}`, `${logRecords}`]
      const replies = await Promise.all(
        everywhere.map((bucket) => {
          const keys = [names.register(bucket), names.quarantineLog(bucket)]
          return runScript(context, { script: endScript, keys, values })
        }),
      ).catch((error: unknown) => Promise.reject(storeError(error, 'end the quarantine', 'unknown')))
      return replies.some((reply) => Number(reply) === 1)
    },
  }
}

/**
 * In a Cluster, a primary that lost data lost it in all of its buckets, and not every bucket has a witness. Best effort: a
 * bucket that cannot be reached now has its own evidence to give when it is back.
 */
export function spreadsOn(context: QuarantineContext): (loss: DataLoss) => void {
  const { link, names, instance, onLoss, calls } = context
  let spreadAtMs = -Infinity
  return (loss) => {
    if (!link.isCluster || !loss.quarantined || calls.clock.elapsed() - spreadAtMs < pausesMs.quarantineSpread) return
    spreadAtMs = calls.clock.elapsed()
    const values = [instance, onLoss, loss.evidence]
    void Promise.allSettled(
      buckets.map((bucket) => runScript(context, { script: holdScript, keys: [names.register(bucket)], values })),
    )
  }
}

/** The register from its hold on. */
function readQuarantine(text: string): Quarantine {
  const whole = text.padStart(text.length + registerPlaces.hold.from - 1)
  const hold = textAt(whole, registerPlaces.hold).trimEnd()
  return {
    sinceMs: numberAt(whole, registerPlaces.since),
    evidence: textAt(whole, registerPlaces.evidence).trimEnd() as DataLoss['evidence'],
    ...(hold !== 'on' && { untilMs: Number(hold) }),
  }
}

export function quarantined(key: Key): OnceError {
  return new OnceError('STORE_UNAVAILABLE', {
    message:
      `Redis has lost data, so the store did not claim ${describeKey(key)}: it may have run before. The store refuses new claims ` +
      `until a person ends the quarantine (onceonly quarantine --end --reason …) or quarantineMs has passed. Settled keys are replayed as before.`,
  })
}

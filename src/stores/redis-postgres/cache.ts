// Settled answers in Redis. Redis may lose, keep, change or invent what it likes: an answer counts only until the time that is
// sealed in it, by the database's clock, and only for whom it was sealed. No call here fails or outlasts its time-out.

import type { KeyObject } from 'node:crypto'
import type { Clock } from '../../core/clock.ts'
import type { Key } from '../../core/key.ts'
import { lane } from '../../core/lane.ts'
import type { RedisLink } from '../../clients/redis.ts'
import { breaker } from './breaker.ts'
import type { Breaker } from './breaker.ts'
import { seal, unseal } from './sealed.ts'
import type { SettledAnswer } from './sealed.ts'
import { cacheName } from './names.ts'
import type { TimeBounds } from './time.ts'

export interface CacheOptions {
  readonly link: RedisLink
  readonly clock: Clock
  readonly prefix: string
  readonly ageMaxMs: number
  readonly redisTimeoutMs: number
  /** What must be known to seal and to judge. Undefined while it is not known. */
  knowledge(): Knowledge | undefined
}

export interface Knowledge {
  readonly secret: KeyObject
  readonly time: TimeBounds
}

export interface Cache {
  /** One command, or a share of one. Undefined is no answer of any kind: the caller asks the database. */
  find(key: Key, fingerprint: string): Promise<SettledAnswer | undefined>
  /**
   * Remembers what the database has committed. `seenAtMs` is a moment, by the database's clock, at which it was so or not yet
   * decided. `expiresAtMs` is not later than the entry's own.
   */
  keep(key: Key, fingerprint: string, answer: SettledAnswer, times: { seenAtMs: number; expiresAtMs: number }): void
  /** Whether `keep` has a point: no, while Redis is down or behind. */
  keeps(): boolean
  /** Removes the answer, and lets no process that has seen it before now bring it back. */
  bar(key: Key): Promise<void>
}

/** Larger answers would hold up all other commands in Redis' one thread. The database returns them. */
export const cachedBytesMax: number = 64 * 1024

/** How much the bounds of the database's time may be wrong: its clock is slewed, and samples are 20 s apart. */
const marginMs = 250
/** An answer that expires that soon is not worth a command. */
const leftMsMin = 1_000

// A batch is one reply, of 4 MiB at most. More would make its callers wait for each other.
const batchMax = 64
const dispatchesMax = 4
/** A person waits for the bar, and it is tried whatever the breaker says: an answer that was taken back must not be returned. */
const barTimeoutMs = 1_000

/** Beyond this many, Redis is behind. The database has what Redis does not remember. */
const writesMax = 512

export function settledCache(options: CacheOptions): Cache {
  const { link, clock, prefix, ageMaxMs, redisTimeoutMs, knowledge } = options
  // Separate breakers, as a Redis that is full still serves reads.
  const [reads, writes] = [breaker(clock, redisTimeoutMs), breaker(clock, redisTimeoutMs)]
  const read = reader(link, reads)
  let underWay = 0
  const keeps = (): boolean => underWay < writesMax && !reads.rests() && !writes.rests()
  return {
    keeps,
    async find(key, fingerprint) {
      if (!knowledge()) return undefined
      const bytes = await read(cacheName(prefix, key))
      // Read again, because the reply may have taken its time.
      const known = knowledge()
      if (!bytes || !known) return undefined
      const cached = unseal(known.secret, key, fingerprint, bytes)
      const leftMs = (cached?.untilMs ?? 0) - known.time.latestMs
      // No process seals for longer than ageMaxMs: the database's clock was set back, or ageMaxMs is greater elsewhere.
      return cached && leftMs > marginMs && leftMs <= ageMaxMs ? cached.answer : undefined
    },
    keep(key, fingerprint, answer, { seenAtMs, expiresAtMs }) {
      const known = knowledge()
      if (!known || !keeps()) return
      const untilMs = Math.min(expiresAtMs, seenAtMs + ageMaxMs)
      const leftMs = untilMs - known.time.latestMs
      if (leftMs < leftMsMin) return
      const bytes = seal(known.secret, key, fingerprint, { answer, untilMs })
      const name = cacheName(prefix, key)
      const command = ['SET', name, bytes, 'NX', 'PX', `${leftMs}`] // NX: what bars the name must stay there
      underWay++
      void writes.attempt(() => link.send(name, command)).finally(() => underWay--)
    },
    // A process that saw the answer before this moment can seal it for ageMaxMs from then. That time has passed when the bar is
    // gone.
    async bar(key) {
      const name = cacheName(prefix, key)
      const command = ['SET', name, 'forgotten', 'PX', `${ageMaxMs}`]
      await breaker(clock, barTimeoutMs).attempt(() => link.send(name, command))
    },
  }
}

function reader(link: RedisLink, { attempt }: Breaker): (name: string) => Promise<Buffer | undefined> {
  const ask = async (command: readonly string[]): Promise<unknown> => attempt(() => link.send(command[1]!, command))
  // The keys of one MGET would have to be in one slot.
  if (link.isCluster) return async (name) => bufferOf(await ask(['GET', name]))
  return lane({
    batchMax,
    dispatchesMax,
    async dispatch(names: readonly string[]) {
      const found = await ask(['MGET', ...names])
      return names.map((_, index) => bufferOf(Array.isArray(found) ? found[index] : undefined))
    },
  })
}

function bufferOf(value: unknown): Buffer | undefined {
  return Buffer.isBuffer(value) ? value : undefined
}

// Time and chance, injected: core itself reads no clock, sets no timer and draws no number, so that a simulation can run the
// shipped code. This file and its system versions are the only home of Date.now, setTimeout and randomness in core. On the system's
// clock a lane asks for the end of a turn of the event loop, too.

import { isShared, scheduleShared, sharedList } from './clock/shared-timers.ts'
import type { Listed, LimitList } from './clock/shared-timers.ts'

export interface Clock {
  /** Wall time in milliseconds. For ids and for people. Never for leases, which use the store's time. */
  now(): number
  /** Milliseconds since some start. It never jumps. All durations are measured with it. */
  elapsed(): number
  /** Call `run` after `delayMs`. The returned function cancels. A pending timer does not keep the process alive when `background`. */
  schedule(run: () => void, delayMs: number, background?: 'background'): () => void
}

export interface Random {
  /** An unpredictable UUID (version 4). */
  uuid(): string
  /** A number in [0, 1). */
  fraction(): number
  /** `count` unpredictable bytes. */
  bytes(count: number): Uint8Array
}

// setTimeout takes a signed 32-bit number of milliseconds (24.8 days) and fires at once beyond it.
const timerMsMax = 2 ** 31 - 1

/** The system's clock for clients in browsers, which load no more than they need: up to 24.8 days, and nothing in the background. */
export const plainClock: Clock = {
  now: () => Date.now(),
  elapsed: () => performance.now(),
  schedule(run, delayMs) {
    const timer = setTimeout(run, delayMs)
    return () => clearTimeout(timer)
  },
}

export const systemClock: Clock = {
  now: () => Date.now(),
  elapsed: () => performance.now(),
  schedule(run, delayMs, background) {
    if (!background && isShared(delayMs)) return scheduleShared(run, delayMs)
    let timer: NodeJS.Timeout
    const arm = (leftMs: number): void => {
      timer = setTimeout(
        () => (leftMs > timerMsMax ? arm(leftMs - timerMsMax) : run()),
        Math.min(Math.max(leftMs, 0), timerMsMax),
      )
      if (background) timer.unref()
    }
    arm(delayMs)
    return () => clearTimeout(timer)
  },
}

/**
 * A time limit of one call, set by any clock and mostly cancelled before it passes. It is a class to extend, not a function to hand over:
 * every call of the library sets several, and on the system's clock a limit then costs neither a closure nor a timer.
 */
export abstract class Limit implements Listed {
  dueMs = 0
  before: Listed | undefined = undefined
  after: Listed | undefined = undefined
  isSet = false
  /** The list that it stands in, or what cancels it. */
  #waits: LimitList | (() => void) | undefined = undefined

  /** The time has passed, and it was not cancelled. */
  abstract passed(): void

  /** Set it once more only after it passed or was cancelled. `nowMs` is `clock.elapsed()`, where the caller has just read it. */
  set(clock: Clock, delayMs: number, nowMs?: number): void {
    if (clock === systemClock && isShared(delayMs)) {
      const list = sharedList(delayMs)
      this.#waits = list
      list.add(this, nowMs)
    } else this.#waits = clock.schedule(() => this.passed(), delayMs)
  }

  /** As often as wanted, also after it has passed. */
  cancel(): void {
    if (typeof this.#waits === 'function') this.#waits()
    else this.#waits?.remove(this)
  }
}

/** The system's randomness, drawn for each call: browsers make few keys, and load less code. */
export const plainRandom: Omit<Random, 'uuid'> = {
  fraction: () => Math.random(),
  bytes: (count) => crypto.getRandomValues(new Uint8Array(count)),
}

// One call to the system costs some microseconds, however few bytes it is for.
const poolBytes = 4_096
const pool = new Uint8Array(poolBytes)
let poolUsed = poolBytes

export const systemRandom: Random = {
  uuid: () => flatUuid(systemRandom.bytes(16), 4),
  fraction: () => Math.random(),
  bytes(count) {
    if (count > poolBytes) return plainRandom.bytes(count)
    if (poolUsed + count > poolBytes) {
      crypto.getRandomValues(pool)
      poolUsed = 0
    }
    poolUsed += count
    return pool.slice(poolUsed - count, poolUsed)
  },
}

/** An id that sorts by the time it was made (UUIDv7). */
export function idAt(
  clock: Pick<Clock, 'now'>,
  random: Pick<Random, 'bytes'>,
  format: typeof formatUuid = formatUuid,
): string {
  const bytes = random.bytes(16)
  let time = clock.now()
  for (let index = 5; index >= 0; index--) {
    bytes[index] = time % 256
    time = Math.floor(time / 256)
  }
  return format(bytes, 7)
}

type UuidVersion = 4 | 7 | 8

/** 16 bytes as a UUID, for browsers: little code, without Buffer. The bits of version and variant are set in `bytes`. */
export function formatUuid(bytes: Uint8Array, version: UuidVersion): string {
  bytes[6] = (bytes[6]! & 0x0f) | (version << 4)
  bytes[8] = (bytes[8]! & 0x3f) | 0x80
  const hex = Array.from(bytes, (byte) => (byte + 256).toString(16).slice(1)).join('')
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
}

/**
 * The same on Node, in a small part of the time, and in one piece. `crypto.randomUUID` puts its text together from 20 pieces, and as long
 * as the text is kept, which tokens are, all of them are kept with it.
 */
export function flatUuid(bytes: Uint8Array, version: UuidVersion): string {
  bytes[6] = (bytes[6]! & 0x0f) | (version << 4)
  bytes[8] = (bytes[8]! & 0x3f) | 0x80
  // Made when it is first asked for: browsers load this file, too.
  uuidText ??= Buffer.alloc(36, '-')
  for (let index = 0; index < 16; index++) {
    const byte = bytes[index]!
    const place = 2 * index + dashesBefore[index]!
    uuidText[place] = hexDigits.charCodeAt(byte >> 4)
    uuidText[place + 1] = hexDigits.charCodeAt(byte & 0x0f)
  }
  return uuidText.toString('latin1')
}

let uuidText: Buffer | undefined
const hexDigits = '0123456789abcdef'
const dashesBefore: readonly number[] = [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 4, 4, 4]

/** Wait, or stop waiting as soon as `signal` aborts. Resolves in both cases. A `background` wait does not keep the process alive. */
export function sleep(
  clock: Clock,
  delayMs: number,
  options: { readonly signal?: AbortSignal; readonly background?: 'background' } = {},
): Promise<void> {
  const { signal, background } = options
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve()
    const done = (): void => {
      signal?.removeEventListener('abort', done)
      cancel()
      resolve()
    }
    const cancel = clock.schedule(done, delayMs, background)
    signal?.addEventListener('abort', done, { once: true })
  })
}

/** A wait of a worker that has nothing to do, which its own process can end. */
export interface Resting {
  rest(delayMs: number): Promise<void>
  /** Ends a rest at this moment, if it would last longer. */
  wakeAt(atMs: number): void
}

export function restingOn(clock: Clock, stopping: AbortSignal): Resting {
  let resting: AbortController | undefined
  let lookAt = 0
  return {
    async rest(delayMs) {
      lookAt = clock.elapsed() + delayMs
      while (!stopping.aborted && clock.elapsed() < lookAt) {
        resting = new AbortController()
        await sleep(clock, lookAt - clock.elapsed(), { signal: resting.signal })
      }
      resting = undefined
    },
    wakeAt(atMs) {
      if (atMs >= lookAt) return
      lookAt = atMs
      resting?.abort()
    },
  }
}

// A signal that follows another one for as long as it is needed. `AbortSignal.any` is not used: Node keeps the signal that it
// returns while that has a listener and one of its sources is alive. A listener whose code can reach a source keeps all of them
// for the life of the process.
export interface Following {
  /** Its signal aborts with the signal that it follows. It may be aborted by itself. */
  readonly controller: AbortController
  /** Follows no more, so that the signal it followed does not keep it. */
  unfollow(): void
}

export function follow(signal: AbortSignal): Following {
  const controller = new AbortController()
  const abort = (): void => controller.abort(signal.reason)
  if (signal.aborted) abort()
  else signal.addEventListener('abort', abort, { once: true })
  return { controller, unfollow: () => signal.removeEventListener('abort', abort) }
}

const units: readonly (readonly [name: string, ms: number])[] = [
  ['d', 86_400_000],
  ['h', 3_600_000],
  ['min', 60_000],
  ['s', 1_000],
  ['ms', 1],
]

/** "2 d 3 h": the two largest units, as a person reads no more of it. */
export function span(durationMs: number): string {
  let left = Math.round(Math.abs(durationMs))
  const parts: string[] = []
  for (const [name, ms] of units) {
    // Milliseconds beside minutes are noise.
    if (left < ms || (name === 'ms' && parts.length > 0)) continue
    parts.push(`${Math.floor(left / ms)} ${name}`)
    left %= ms
    if (parts.length === 2) break
  }
  return parts.length === 0 ? '0 ms' : parts.join(' ')
}

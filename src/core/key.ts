// Names one intended effect. Nothing is trimmed, folded or truncated: two keys are one key only if every byte is the same.

import { hash } from 'node:crypto'
import { flatUuid, idAt, systemClock, systemRandom } from './clock.ts'
import type { Clock, Random } from './clock.ts'
import { invalidArgument } from './errors.ts'

export interface Key {
  /** Service, tenant, operation: whose key this is. */
  readonly scope: string
  /** Chosen by the caller before the first attempt. */
  readonly id: string
}

/**
 * A new id that sorts by the time it was made (UUIDv7): time-ordered keys keep a store's index small and fast.
 *
 * @example
 * ```ts
 * import { newId } from 'onceonly'
 *
 * const id = newId() // keep it before the first attempt
 * ```
 */
export function newId(clock: Pick<Clock, 'now'> = systemClock, random: Pick<Random, 'bytes'> = systemRandom): string {
  return idAt(clock, random, flatUuid)
}

/** Fits the index key limits of every store (MySQL's 3072 bytes for two columns of utf8mb4 is the smallest). */
export const keyPartBytesMax = 255

/**
 * A key: a scope and an id of 1 to 255 bytes of UTF-8 without control characters, kept byte for byte.
 *
 * @example
 * ```ts
 * import { key } from 'onceonly'
 *
 * key('payments', 'order-42') // { scope: 'payments', id: 'order-42' }
 * ```
 */
export function key(scope: string, id: string): Key {
  checkKeyPart('scope', scope)
  checkKeyPart('id', id)
  return Object.freeze({ scope, id })
}

/**
 * A key from any parts, always the same for the same parts. The id is a UUID computed from them, so parts may be longer than
 * an id could be.
 *
 * @example
 * ```ts
 * import { keyOf } from 'onceonly'
 *
 * keyOf('payments', ['order-42', 'refund', 2])
 * ```
 */
export function keyOf(scope: string, parts: readonly (string | number | boolean)[]): Key {
  if (!Array.isArray(parts) || parts.length === 0) {
    throw invalidArgument(`expected the parts of a key to be a non-empty array, got ${describe(parts)}`)
  }
  const framed = parts.flatMap((part: unknown, index) => {
    const kind = typeof part
    if (kind !== 'string' && kind !== 'boolean' && !(kind === 'number' && Number.isFinite(part))) {
      throw invalidArgument(
        `expected part ${index} of a key to be a string, a finite number or a boolean, got ${describe(part)}`,
      )
    }
    // 0 and -0 are one number to every caller. `${-0}` is '0' already.
    return [kind, wellFormed(`part ${index} of a key`, `${part as string}`)]
  })
  return key(scope, uuidOf(['keyOf', ...framed]))
}

/** The idempotency key to hand to another system for a named part of an effect: the same on every attempt, 36 characters. */
export function deriveKey(parent: Key, name: string): string {
  checkKeyPart('the name of a derived key', name)
  return uuidOf(['keyFor', parent.scope, parent.id, name])
}

/**
 * What events and logs show instead of the key.
 *
 * @example
 * ```ts
 * import { hashKey, key } from 'onceonly'
 *
 * hashKey(key('payments', 'order-42')) // 32 hexadecimal characters
 * ```
 */
export function hashKey(subject: Key): string {
  return hash('sha256', frame(['hashKey', subject.scope, subject.id]), 'hex').slice(0, 32)
}

/** For error messages. */
export function describeKey(subject: Key): string {
  return `${subject.scope}/${subject.id}`
}

/** One string for a Map: neither part can contain a control character. */
export function keyString(subject: Key): string {
  return `${subject.scope}\n${subject.id}`
}

export function checkKey(subject: Key): Key {
  if (typeof subject !== 'object' || subject === null) {
    throw invalidArgument(`expected a key with scope and id, got ${describe(subject)}`)
  }
  return key(subject.scope, subject.id)
}

// C0, DEL and C1. They are invisible in logs and dashboards, and NUL cannot be stored as text everywhere.
// oxlint-disable-next-line no-control-regex
const controlCharacter = /[\u0000-\u001f\u007f-\u009f]/

/** One look is enough for nearly all parts: printable ASCII, so short that it fits however many bytes its characters took. */
const plainPart = /^[\u0020-\u007e]+$/

function checkKeyPart(what: string, part: unknown): asserts part is string {
  if (typeof part === 'string' && part.length <= 85 && plainPart.test(part)) return
  if (typeof part !== 'string') throw invalidArgument(`expected ${what} to be a string, got ${describe(part)}`)
  // Before anything that walks the string: a hostile megabyte must cost nothing.
  if (part.length === 0 || part.length > keyPartBytesMax || Buffer.byteLength(part) > keyPartBytesMax) {
    const bytes = Buffer.byteLength(part)
    throw invalidArgument(
      `expected ${what} to be 1 to ${keyPartBytesMax} bytes of UTF-8, got ${bytes}. keyOf() takes longer parts.`,
    )
  }
  wellFormed(what, part)
  if (controlCharacter.test(part)) {
    throw invalidArgument(`expected ${what} to have no control characters, got ${JSON.stringify(part)}`)
  }
}

// A lone surrogate becomes U+FFFD in UTF-8: two different strings would be one key.
function wellFormed(what: string, text: string): string {
  if (!text.isWellFormed())
    throw invalidArgument(`expected ${what} to be well-formed Unicode, got a lone surrogate in ${JSON.stringify(text)}`)
  return text
}

function describe(value: unknown): string {
  return value === null ? 'null' : Array.isArray(value) ? 'an array' : `${typeof value}`
}

// Each part with its length in front: 'a' + 'bc' and 'ab' + 'c' must not meet.
function frame(parts: readonly string[]): Uint8Array {
  return Buffer.concat(
    parts.flatMap((part) => {
      const bytes = Buffer.from(part)
      const length = Buffer.alloc(4)
      length.writeUInt32BE(bytes.length)
      return [length, bytes]
    }),
  )
}

function uuidOf(parts: readonly string[]): string {
  return flatUuid(hash('sha256', frame(parts), 'buffer').subarray(0, 16), 8)
}

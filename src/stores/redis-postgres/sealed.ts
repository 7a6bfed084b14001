// A settled answer as it lies in Redis. A value from Redis counts only if it carries the code (HMAC-SHA-256) of a process that
// knows the database's secret, for this very scope, id and fingerprint, with everything that it says covered.

import { createHmac, timingSafeEqual } from 'node:crypto'
import type { KeyObject } from 'node:crypto'
import type { Key } from '../../core/key.ts'

export interface SettledAnswer {
  readonly outcome: Uint8Array
  readonly version: number
  readonly attempt: number
}

export interface CachedAnswer {
  readonly answer: SettledAnswer
  /** By the database's clock. */
  readonly untilMs: number
}

// code (32 bytes) | untilMs (8) | version (4) | attempt (4) | outcome, with the numbers as wide as the database has them
const codeLength = 32
const headLength = codeLength + 16

/**
 * The key and the fingerprint are only in the code: the answer does not show whose it is, and fits no other key or fingerprint.
 */
export function seal(secret: KeyObject, key: Key, fingerprint: string, { answer, untilMs }: CachedAnswer): Buffer {
  const bytes = Buffer.alloc(headLength + answer.outcome.length)
  bytes.writeBigUInt64BE(BigInt(untilMs), codeLength)
  bytes.writeInt32BE(answer.version, codeLength + 8)
  bytes.writeInt32BE(answer.attempt, codeLength + 12)
  bytes.set(answer.outcome, headLength)
  codeOf(secret, key, fingerprint, bytes.subarray(codeLength)).copy(bytes)
  return bytes
}

/** Undefined for everything that was not sealed for this key and this fingerprint. */
export function unseal(secret: KeyObject, key: Key, fingerprint: string, bytes: Buffer): CachedAnswer | undefined {
  if (bytes.length < headLength) return undefined
  const code = codeOf(secret, key, fingerprint, bytes.subarray(codeLength))
  if (!timingSafeEqual(code, bytes.subarray(0, codeLength))) return undefined
  return {
    untilMs: Number(bytes.readBigUInt64BE(codeLength)),
    answer: {
      version: bytes.readInt32BE(codeLength + 8),
      attempt: bytes.readInt32BE(codeLength + 12),
      // A copy: a view would keep the whole reply of a batch alive.
      outcome: new Uint8Array(bytes.subarray(headLength)),
    },
  }
}

// The length of each part stands before it: scope `a` + id `bc` and `ab` + `c` must not have one code.
function codeOf(secret: KeyObject, key: Key, fingerprint: string, body: Uint8Array): Buffer {
  const parts = [key.scope, key.id, fingerprint]
  const lengths = parts.map((part) => Buffer.byteLength(part)).join(' ')
  return createHmac('sha256', secret)
    .update(`onceonly settled 1 ${lengths}\n${parts.join('')}`)
    .update(body)
    .digest()
}

// Digest of what was asked, so that a reused key with another request is caught. SHA-256 over a tagged form: bytes, text and
// JSON never meet, and neither does a call without a fingerprint meet one with.

import { hash } from 'node:crypto'
import { canonicalJson } from './canonical-json.ts'
import { invalidArgument } from './errors.ts'

/** 43 characters of base64url: all 256 bits. */
export type Fingerprint = string

/**
 * The digest of a request. Bytes and strings are taken as they are, any other JSON value in its canonical form.
 *
 * @example
 * ```ts
 * import { fingerprint } from 'onceonly'
 *
 * fingerprint({ cents: 500, to: 'ada' }) === fingerprint({ to: 'ada', cents: 500 }) // true
 * ```
 */
export function fingerprint(asked: unknown): Fingerprint {
  if (asked === undefined) return nothingAsked
  if (asked instanceof Uint8Array) return digest('bytes', asked)
  if (typeof asked === 'string') {
    if (!asked.isWellFormed()) throw invalidArgument('fingerprint: the string has a lone surrogate')
    return hash('sha256', `text\n${asked}`, 'base64url')
  }
  return hash('sha256', `json\n${canonicalJson(asked)}`, 'base64url')
}

function digest(tag: 'bytes' | 'none', bytes: Uint8Array): Fingerprint {
  // The tag ends in a newline, which no tag contains: tag and content cannot run into each other.
  return hash('sha256', Buffer.concat([Buffer.from(`${tag}\n`), bytes]), 'base64url')
}

const nothingAsked: Fingerprint = digest('none', new Uint8Array())

// Content-Digest (RFC 9530): the sha-256 of a body that is too large to be read before the claim. The digest is trusted only
// for the claim, and checked at the end of the stream. An answer is stored only when the digest matched.

import { createHash } from 'node:crypto'
import type { Hash } from 'node:crypto'

/** The sha-256 in base64, or undefined when the field has no valid one. */
export function claimedSha256(field: string | undefined): string | undefined {
  if (field === undefined) return undefined
  for (const member of field.split(',')) {
    const found = /^[ \t]*sha-256=:([A-Za-z0-9+/]{43}=):[ \t]*(?:;|$)/.exec(member)
    if (found) return found[1]
  }
  return undefined
}

export interface DigestCheck {
  update(chunk: Uint8Array): void
  /** The body has ended: does it match the claimed digest? */
  holds(): boolean
}

export function checkDigest(claimed: string): DigestCheck {
  const hash: Hash = createHash('sha256')
  let held: boolean | undefined
  return {
    update: (chunk) => void hash.update(chunk),
    holds: () => (held ??= hash.digest('base64') === claimed),
  }
}

/** For the handler's stream. Frameworks answer an error with its status. */
export class DigestError extends Error {
  readonly status = 400
  readonly statusCode = 400

  constructor() {
    super('The content does not have the digest that Content-Digest claims.')
  }
}

// The key in the store: the tenant goes into the scope, and the id is what the client sent. A session has its tenant in its name. Neither
// can be mistaken for the other, nor one tenant for another, whatever characters their names have.

import { hash } from 'node:crypto'
import { escapePart, tenantScope } from '../../core/doubt.ts'
import { keyPartBytesMax } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'

export interface KeyOwner {
  /** The scope of `createOnce`. */
  readonly service: string
  /** Undefined when all callers share one space of keys. */
  readonly tenant: string | undefined
  /** Method and path, when keys are for each of them. */
  readonly route: string | undefined
}

/**
 * `payments/acme` and `payments/acme/POST%20%2Forders`. The parts are escaped, so a slash is always ours. Keys of `once.run`
 * are in `payments` and never collide with these. `once` checks this key where it is used, as every key.
 */
export function scopedKey(owner: KeyOwner, id: string, how: 'plain' | 'hashed'): Key {
  const { service, tenant = '', route } = owner
  // Half a surrogate pair has no UTF-8, so it can be neither escaped nor stored. JSON spells it out for the digest.
  if (how === 'plain' && tenant.isWellFormed()) {
    const scope = tenantScope(service, tenant, route)
    if (Buffer.byteLength(scope) <= keyPartBytesMax) return { scope, id }
  }
  // No escaped part contains #, so a digest is never the name of a tenant.
  const whose = `#${digest([service, tenant, route ?? ''])}`
  const scope = Buffer.byteLength(service) + 1 + whose.length <= keyPartBytesMax ? `${service}/${whose}` : whose
  return { scope, id: how === 'hashed' ? digest([scope, id]) : id }
}

/** What createSessions takes as the id of a client. */
const sessionBytesMax = 200

/** `acme/till-7`, and `/till-7` where all callers share one space. What is too long or not to be seen is a digest. */
export function scopedSession(tenant = '', session: string, how: 'plain' | 'hashed'): string {
  if (how === 'plain' && tenant.isWellFormed()) {
    const name = `${escapePart(tenant)}/${session}`
    if (Buffer.byteLength(name) <= sessionBytesMax) return name
  }
  return `#${digest([tenant, session])}`
}

// JSON frames the parts. 43 characters are all 256 bits.
function digest(parts: readonly string[]): string {
  return hash('sha256', JSON.stringify(parts), 'base64url')
}

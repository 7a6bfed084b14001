// What the store calls its own things: one scope of its own in the database, and one name a key in Redis.

import { hash } from 'node:crypto'
import { key, keyString } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'

const ownScope = 'onceonly redis-postgres'

export function ownKey(id: string): Key {
  return key(ownScope, id)
}

export function isOwn(subject: Key): boolean {
  return subject.scope === ownScope
}

/** For what the store claims itself; no request of a user can have it. */
export const fingerprintOfNothing: string = hash('sha256', 'onceonly redis-postgres', 'base64url')

/** A digest: short, whatever braces are in a key it spreads over a Cluster, and who may read names does not read keys. */
export function cacheName(prefix: string, subject: Key): string {
  return `${prefix}:${hash('sha256', keyString(subject), 'base64url')}`
}

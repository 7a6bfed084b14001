// What the store calls its own things: the store's own scope in the database, and one name per key in Redis.

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

/** For what the store claims itself. No request of a user can have it. */
export const fingerprintOfNothing: string = hash('sha256', 'onceonly redis-postgres', 'base64url')

/** A digest is short, spreads over a Cluster whatever braces are in a key, and does not show the key to a reader of names. */
export function cacheName(prefix: string, subject: Key): string {
  return `${prefix}:${hash('sha256', keyString(subject), 'base64url')}`
}

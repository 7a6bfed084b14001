// The secret that all processes on one table share, and no other process has. It is made once and kept as an entry of the table
// itself, so that an answer of another database, whatever Redis they share, is never taken for one of this. No call shows the
// secret.

import { createSecretKey } from 'node:crypto'
import type { KeyObject } from 'node:crypto'
import { systemRandom } from '../../core/clock.ts'
import type { Inspectable, Store } from '../../core/store.ts'
import { fingerprintOfNothing, isOwn, ownKey } from './names.ts'

const secretKey = ownKey('secret')
/** As long as the digest. */
const secretLength = 32
/** In practice without end: a secret that expired would only empty the cache. */
const retention = { keepMs: 50 * 365 * 86_400_000, tombstoneMs: 0 }

/** Undefined while another process is making it. A process that comes too late with its own secret gets the one that is there. */
export async function databaseSecret(database: Store): Promise<KeyObject | undefined> {
  const verdict = await database.claim(secretKey, {
    token: systemRandom.uuid(),
    fingerprint: fingerprintOfNothing,
    leaseMs: 10_000,
    retention,
    version: 1,
    onTakeover: 'run',
    onExpired: 'run',
  })
  if (verdict.is === 'settled') return secretOf(verdict.outcome)
  if (verdict.is !== 'granted') return undefined
  const secret = systemRandom.bytes(secretLength)
  return (await database.settle(verdict.claim, secret, retention)) === 'done' ? secretOf(secret) : undefined
}

// As a KeyObject: given as bytes, the key costs five times as much as the code that is made with it.
function secretOf(bytes: Uint8Array): KeyObject | undefined {
  return bytes.length === secretLength ? createSecretKey(bytes) : undefined
}

/** The entries of the table, without the store's own. If a person forgets the secret manually, new processes make another. */
export function inspectionWithoutSecret(database: Inspectable): Pick<Inspectable, 'show' | 'list' | 'mend'> {
  return {
    show: async (key) => (isOwn(key) ? undefined : database.show(key)),
    async list(filter) {
      const found = await database.list(filter)
      const others = found.filter((entry) => !isOwn(entry.key))
      if (others.length === found.length || found.length < filter.limit) return others
      // The scope has one entry, so what comes after it has none.
      const { key: after } = found.at(-1)!
      return [...others, ...(await database.list({ ...filter, after, limit: found.length - others.length }))]
    },
    async mend(key, action, reason) {
      const before = await database.mend(key, action, reason)
      return isOwn(key) ? undefined : before
    },
  }
}

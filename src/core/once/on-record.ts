// What people do with what has no entry (messages, webhooks, sessions), on record: a reason goes into the audit trail of the store before
// anything is changed.

import { systemRandom } from '../clock.ts'
import { asNotBegun, invalidArgument, OnceError } from '../errors.ts'
import { publish } from '../events.ts'
import { fingerprint } from '../fingerprint.ts'
import { checkKey, describeKey } from '../key.ts'
import type { Key } from '../key.ts'
import type { Inspectable, Store } from '../store.ts'

/** `discard`: it is removed, and is never run or sent. */
export type MessageChange = 'redrive' | 'discard'

/** A delivery is replayed. The others are of endpoints. */
export type WebhookChange = 'replay' | 'disable' | 'enable'

/** A session is closed. */
export type SessionChange = 'close'

export type RecordedChange = MessageChange | WebhookChange | SessionChange

// Longer than two calls take on a slow store. A process that dies between them leaves an entry that is gone a moment after its lease.
const noteLeaseMs = 60_000

const reasonCharactersMax = 500

/**
 * Puts the reason into the audit trail, then makes the change, and publishes that it did. `change` returns false when there is nothing to
 * change any more. A store writes the trail when it forgets a key manually, and messages have no entry, so the key is claimed for a moment.
 * The fingerprint is nobody's: an entry that is there is left as it is, in every state.
 */
export async function onRecord(
  store: Store & Partial<Inspectable>,
  subject: Key,
  { what, reason }: { readonly what: RecordedChange; readonly reason: string },
  change: () => Promise<boolean>,
): Promise<boolean> {
  const key = checkKey(subject)
  const why = 'The reason could not be put on record, so nothing was changed.'
  await note(store, key, `${what}: ${reason}`).catch((cause: unknown) => Promise.reject(asNotBegun(cause, why)))
  if (!(await change())) return false
  publish('mended', key, { action: what })
  return true
}

async function note(store: Store & Partial<Inspectable>, key: Key, reason: string): Promise<void> {
  const verdict = await store.claim(key, {
    token: systemRandom.uuid(),
    fingerprint: fingerprint(systemRandom.uuid()),
    leaseMs: noteLeaseMs,
    retention: { keepMs: 1, tombstoneMs: 1 },
    version: 0,
    onTakeover: 'refuse',
    onExpired: 'refuse',
  })
  if (verdict.is !== 'granted' || store.mend === undefined) {
    throw new OnceError('IN_FLIGHT', {
      message: `The store has an entry of ${describeKey(key)} at this moment: nothing was changed. Try again in a minute.`,
    })
  }
  await store.mend(key, 'forget', reason)
}

export function checkRecordedReason(call: string, reason: unknown): void {
  if (typeof reason !== 'string' || reason.trim() === '') {
    throw invalidArgument(`${call}: expected a reason, for the audit trail, got ${JSON.stringify(reason)}`)
  }
  if (reason.length > reasonCharactersMax) {
    throw invalidArgument(
      `${call}: expected a reason of at most ${reasonCharactersMax} characters, got ${reason.length}`,
    )
  }
}

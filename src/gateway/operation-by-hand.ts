// Manual changes of an operation by a person who does not have its code: no step and no undo runs here. The next process that
// has the code resumes the operation. The person's reason is in the audit trail before the change takes effect.

import { systemRandom } from '../core/clock.ts'
import { invalidArgument, OnceError } from '../core/errors.ts'
import type { Key } from '../core/key.ts'
import { createOnce } from '../core/once.ts'
import type { Operation, OperationStatus, OperationStore } from '../core/operations.ts'
import { opaqueCodec } from '../core/outcome.ts'
import type { Entry, Inspectable, Store } from '../core/store.ts'

export function keepsOperations(store: Store & Partial<Inspectable>): store is OperationStore {
  return ['unfinished', 'ledger', 'enlist', 'show', 'list', 'mend'].every((name) => name in store)
}

export interface Resumed {
  /** As it was before. */
  readonly status: OperationStatus
  /** False: it was not parked, and nothing was changed. */
  readonly changed: boolean
}

/** Undefined when there is no such operation. */
export async function resumeByHand(store: OperationStore, key: Key, reason: string): Promise<Resumed | undefined> {
  const entry = await store.show(key)
  const operation = operationAt(store, key, entry)
  const status = entry && (await operation.status(key.id))
  if (!status) return undefined
  const changed = status.state === 'parked'
  if (changed) {
    await note(store, entry, reason)
    await operation.resume(key.id)
  }
  return { status, changed }
}

/** The operation as core has it, without its code. A claim of it keeps its version and its retention. */
export function operationAt(store: OperationStore, { scope }: Key, entry?: Entry): Operation<unknown, unknown> {
  const at = scope.lastIndexOf('/operations/')
  if (at < 1)
    throw invalidArgument(`${JSON.stringify(scope)} is no scope of an operation: those are SCOPE/operations/NAME`)
  const once = createOnce({ store, scope: scope.slice(0, at), codec: opaqueCodec, sweepEveryMs: false })
  const kept = entry && {
    version: entry.version,
    keepMs: entry.expiresAtMs - entry.leaseUntilMs,
    tombstoneMs: entry.forgottenAtMs - entry.expiresAtMs,
  }
  return once.operation(scope.slice(at + '/operations/'.length), { ...kept, waitMs: 0 }, () => {
    throw new Error('Bug! There is no code to run here.')
  })
}

// Longer than two calls take on a slow store: the second call must not meet a later holder. A process that dies between them
// leaves the operation parked as it was, and no caller waits for it.
const noteLeaseMs = 60_000

/** A store writes the audit trail when it releases a key manually. No process holds a parked key, so it is claimed for that. */
async function note(store: OperationStore, entry: Entry, reason: string): Promise<void> {
  const { key, fingerprint, version, input, leaseUntilMs, expiresAtMs, forgottenAtMs } = entry
  if (!input) return
  // Without the input: this must not begin an operation that expired after `show`.
  const verdict = await store.enlist(key, {
    token: systemRandom.uuid(),
    fingerprint,
    leaseMs: noteLeaseMs,
    retention: { keepMs: expiresAtMs - leaseUntilMs, tombstoneMs: forgottenAtMs - expiresAtMs },
    version,
    onTakeover: 'run',
    onExpired: 'refuse',
  })
  if (verdict.is === 'granted' && verdict.how === 'fresh') return void (await store.release(verdict.claim, 'forget'))
  if (verdict.is !== 'granted') {
    throw new OnceError('IN_FLIGHT', { message: `A process holds the operation ${key.id} at this moment. Try again.` })
  }
  await store.mend(key, 'release', `resume: ${reason}`)
}

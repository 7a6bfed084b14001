// What the holder of a key writes: one update each, on the condition that its claim still holds the key. After a refusal the
// store looks at what is there, and so recognises an update that had landed before (a retry of the driver).

import { stateOf } from '../../core/entry.ts'
import { OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Claim, Fenced, Retention } from '../../core/store.ts'
import { change, look } from './claims.ts'
import type { MongodbContext } from './requests.ts'
import { heldBy, heldByToken } from './entries.ts'
import type { SeenEntry } from './entries.ts'

// A document of MongoDB has 16 MB, an input may have 4 of them, and the rest of an entry is far below 1.
const outcomeBytesMax = 11 * 1_024 * 1_024

export async function extend(context: MongodbContext, claim: Claim, leaseMs: number): Promise<Fenced> {
  const written = await change(context, heldBy(claim), { $set: { leaseMs }, $currentDate: { leaseFrom: true } })
  return written ? 'done' : 'lost'
}

export async function settle(
  context: MongodbContext,
  claim: Claim,
  outcome: Uint8Array,
  retention: Retention,
): Promise<Fenced> {
  checkOutcome(claim, outcome)
  const written = await change(context, heldBy(claim), settling(context, outcome, retention))
  return written ? 'done' : refused(context, claim, 'settled')
}

export async function release(context: MongodbContext, claim: Claim, how: 'open' | 'forget'): Promise<Fenced> {
  const held = claim.fence === 0 ? heldByToken(claim) : heldBy(claim)
  if (how === 'forget') {
    const written = await change(context, { ...held, attempt: 1 }, forgetting(context))
    if (written) return 'done'
    const seen = await look(context, claim.key, 'latest')
    // The trace is gone already: this is the same release once more, or of a claim that never arrived.
    if (!seen || !stateOf(seen.entry, seen.now)) return 'done'
    // Perhaps a later attempt, which leaves the entry open, as the attempts before it did begin.
  }
  if (await change(context, held, opening)) return 'done'
  if ((await refused(context, claim, 'open')) === 'done') return 'done'
  // Between the two updates another writer may have forgotten the key: then there is nothing left to release.
  const seen = how === 'forget' ? await look(context, claim.key, 'latest') : undefined
  return how === 'forget' && !stateOf(seen?.entry, seen?.now ?? 0) ? 'done' : 'lost'
}

export function settling(
  context: MongodbContext,
  outcome: Uint8Array,
  retention: Retention,
  more: object = {},
): object {
  const { keepMs, tombstoneMs } = retention
  const hints = context.removal.hints(0, retention)
  return {
    $set: { wrote: 'settle', outcome, holds: true, leaseMs: 0, keepMs, tombstoneMs, ...hints, ...more },
    $currentDate: { leaseFrom: true },
  }
}

/** What is kept and for how long stays as it was, from now on. */
export const opening: object = { $set: { wrote: 'release', leaseMs: 0 }, $currentDate: { leaseFrom: true } }

/** Nothing but remains, until TTL or a sweep removes them. */
export function forgetting(context: MongodbContext): object {
  const none = { keepMs: 0, tombstoneMs: 0 }
  return {
    $set: { wrote: 'forget', holds: false, leaseMs: 0, ...none, ...context.removal.hints(0, none) },
    $unset: { outcome: '', input: '' },
    $currentDate: { leaseFrom: true },
  }
}

// The update may have been written before, and is done as soon as no failover can take it back.
async function refused(context: MongodbContext, claim: Claim, state: 'settled' | 'open'): Promise<Fenced> {
  if (isOwn(await look(context, claim.key, 'majority'), claim, state)) return 'done'
  if (!isOwn(await look(context, claim.key, 'latest'), claim, state)) return 'lost'
  throw new Error('a majority of the servers has not got it yet')
}

function isOwn(seen: SeenEntry | undefined, { token, fence }: Claim, state: 'settled' | 'open'): boolean {
  if (seen?.entry.token !== token || stateOf(seen.entry, seen.now) !== state) return false
  return seen.entry.fence === fence || (state === 'open' && fence === 0)
}

export function checkOutcome({ key }: { readonly key: Key }, outcome: Uint8Array): void {
  if (outcome.length <= outcomeBytesMax) return
  throw new OnceError('OUTCOME_NOT_STORED', {
    message:
      `The outcome of ${describeKey(key)} has ${outcome.length} bytes, and at most ${outcomeBytesMax} can be stored: a ` +
      'document of MongoDB has 16 MB. The effect has run. Keep large results elsewhere and return their name.',
  })
}

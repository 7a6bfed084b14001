// What the holder of a key writes: one conditional update each, on the condition that its claim still holds the key. DynamoDB
// refuses an update with the item that is there, so the store recognises an update that had landed before (a retry of the SDK).

import { stateOf } from '../../core/entry.ts'
import type { Claim, Fenced, Retention } from '../../core/store.ts'
import { call } from './requests.ts'
import { refusedBy } from '../../clients/dynamodb.ts'
import type { DynamodbUpdate, StoredDynamodbItem } from '../../clients/dynamodb.ts'
import type { DynamodbContext } from './requests.ts'
import { entryOf, momentOf, number } from './entries.ts'
import type { DynamodbMoment, DynamodbEntry } from './entries.ts'
import { storeOutcome } from './outcomes.ts'
import { endingNow, forgetting, leaseEndingAt, opening, updateOf } from './updates.ts'
import type { ItemChange, Where } from './updates.ts'

export async function extend(context: DynamodbContext, claim: Claim, leaseMs: number): Promise<Fenced> {
  const moment = momentOf(context)
  const written = await update(context, claim, leaseEndingAt(moment.now + leaseMs), heldBy(claim, moment))
  return written === 'done' ? 'done' : 'lost'
}

export async function settle(
  context: DynamodbContext,
  claim: Claim,
  outcome: Uint8Array,
  retention: Retention,
): Promise<Fenced> {
  const moment = momentOf(context)
  const change = await settling(context, claim, outcome, retention, moment)
  const written = await update(context, claim, change, heldBy(claim, moment))
  return written === 'done' || isOwn(written.seen, claim, 'settled', moment) ? 'done' : 'lost'
}

export async function release(context: DynamodbContext, claim: Claim, how: 'open' | 'forget'): Promise<Fenced> {
  const moment = momentOf(context)
  const held = claim.fence === 0 ? heldByToken(claim, moment) : heldBy(claim, moment)
  if (how === 'forget') {
    const first = { ...held, condition: `${held.condition} AND #attempt = :one` }
    const written = await update(context, claim, forgetting(moment), first)
    if (written === 'done' || !written.seen || !stateOf(written.seen, moment.sure)) return 'done'
    // Perhaps a later attempt, which leaves the entry open, as the attempts before it did begin.
  }
  const written = await update(context, claim, opening(moment), held)
  if (written === 'done' || isOwn(written.seen, claim, 'open', moment)) return 'done'
  // Between the two updates another writer may have forgotten the key: then there is nothing left to release.
  return how === 'forget' && !stateOf(written.seen, moment.sure) ? 'done' : 'lost'
}

/** What a settle makes of the entry, once what lies apart of the outcome is there. */
export async function settling(
  context: DynamodbContext,
  claim: Claim,
  bytes: Uint8Array,
  retention: Retention,
  moment: DynamodbMoment,
): Promise<ItemChange> {
  const { outcome, outcomeApart } = await storeOutcome(context, claim, bytes, moment.now + retention.keepMs)
  return endingNow(retention, moment, {
    wrote: { S: 'settle' },
    ...(outcome && { outcome: { B: outcome } }),
    ...(outcomeApart !== undefined && { outcomeApart: { S: outcomeApart } }),
  })
}

// The lease decides when others may try. Token and fence decide who may write. Hence nothing about the lease here.
export function heldBy(claim: Claim, moment: DynamodbMoment): Where {
  const { condition, values } = heldByToken(claim, moment)
  return { condition: `${condition} AND #fence = :fence`, values: { ...values, ':fence': number(claim.fence) } }
}

/** In any life of the key: for the release of a claim whose reply never arrived (fence 0). */
function heldByToken({ token }: Claim, { sure }: DynamodbMoment): Where {
  return {
    condition: '#token = :token AND #wrote = :claim AND #expiresAtMs > :sure',
    values: { ':token': { S: token }, ':claim': { S: 'claim' }, ':sure': number(sure) },
  }
}

async function update(
  context: DynamodbContext,
  { key }: Claim,
  change: ItemChange,
  where: Where,
): Promise<'done' | { readonly seen: DynamodbEntry | undefined }> {
  const input: DynamodbUpdate = updateOf(context.table, key, change, where)
  try {
    await call(context, (options) => context.client.updateItem(input, options))
    return 'done'
  } catch (error) {
    const refused = refusedBy(error)
    if (!refused) throw error
    return { seen: refused.item && entryOf(refused.item) }
  }
}

/** The entry that a settle was refused for is the one that the same settle has written before. */
export function settledBy(item: StoredDynamodbItem | undefined, claim: Claim, moment: DynamodbMoment): boolean {
  return isOwn(item && entryOf(item), claim, 'settled', moment)
}

function isOwn(
  seen: DynamodbEntry | undefined,
  claim: Claim,
  state: 'settled' | 'open',
  moment: DynamodbMoment,
): boolean {
  if (seen?.token !== claim.token || stateOf(seen, moment.sure) !== state) return false
  return seen.fence === claim.fence || (state === 'open' && claim.fence === 0)
}

// What the holder of a key writes: one conditional update each, on the condition that its claim still holds the key. An
// update that is refused is told what is there, and so recognises itself when it had landed before (a retry of the SDK).

import { stateOf } from '../../core/entry.ts'
import { invalidArgument, OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Claim, Fenced, Retention } from '../../core/store.ts'
import { call } from './requests.ts'
import { cancellationOf, refusedBy } from '../../clients/dynamodb.ts'
import type { TransactWriteItem, DynamodbUpdate } from '../../clients/dynamodb.ts'
import type { DynamodbContext } from './requests.ts'
import { entryOf, momentOf, number } from './entries.ts'
import type { DynamodbMoment, DynamodbEntry } from './entries.ts'
import { isPassing, messageOf, storeError } from './errors.ts'
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

/** Settle together with the caller's own writes: all of them, or none. */
export async function settleWith(
  context: DynamodbContext,
  claim: Claim,
  outcome: Uint8Array,
  retention: Retention,
  items: readonly TransactWriteItem[],
): Promise<Fenced> {
  // DynamoDB takes 100 in one transaction, and the entry is one of them.
  if (!Array.isArray(items) || items.length === 0 || items.length > 99) {
    throw invalidArgument(
      `settleWith: expected 1 to 99 items, got ${Array.isArray(items) ? items.length : typeof items}`,
    )
  }
  const moment = momentOf(context)
  const change = await settling(context, claim, outcome, retention, moment).catch((error: unknown) => {
    throw storeError(error, 'settle', 'unknown')
  })
  const own = { Update: updateOf(context.table, claim.key, change, heldBy(claim, moment)) }
  try {
    // Ours comes last, so that the reasons of a refusal have the places of the caller's items.
    await call(context, (options) => context.client.transactWriteItems({ TransactItems: [...items, own] }, options))
    return 'done'
  } catch (error) {
    return afterCancellation(error, claim, moment)
  }
}

function afterCancellation(error: unknown, claim: Claim, moment: DynamodbMoment): Fenced {
  const reasons = cancellationOf(error)
  const own = reasons?.at(-1)
  if (own?.Code === 'ConditionalCheckFailed') {
    return isOwn(own.Item && entryOf(own.Item), claim, 'settled', moment) ? 'done' : 'lost'
  }
  // A condition of the caller's own did not hold: that is the caller's to understand, in the SDK's words.
  if (reasons && !reasons.every(isPassing)) throw error
  const name = describeKey(claim.key)
  if (reasons) {
    throw new OnceError('TRANSACTION_CONFLICT', {
      message: `Another transaction was at the items of ${name}, or the table is throttled. Nothing was written. Call settleWith again.`,
      cause: error,
    })
  }
  throw new OnceError('OUTCOME_UNKNOWN', {
    message: `Whether the outcome of ${name} and the items beside it were written is not known: ${messageOf(error)}. Call settleWith again.`,
    cause: error,
  })
}

async function settling(
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

// The lease decides when others may try; token and fence decide who may write. Hence nothing about the lease here.
function heldBy(claim: Claim, moment: DynamodbMoment): Where {
  const { condition, values } = heldByToken(claim, moment)
  return { condition: `${condition} AND #fence = :fence`, values: { ...values, ':fence': number(claim.fence) } }
}

/** In whichever life of the key: for the release of a claim whose answer was never heard (fence 0). */
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

function isOwn(
  seen: DynamodbEntry | undefined,
  claim: Claim,
  state: 'settled' | 'open',
  moment: DynamodbMoment,
): boolean {
  if (seen?.token !== claim.token || stateOf(seen, moment.sure) !== state) return false
  return seen.fence === claim.fence || (state === 'open' && claim.fence === 0)
}

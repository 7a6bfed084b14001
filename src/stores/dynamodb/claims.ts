// Claims a key by one conditional write, which DynamoDB refuses with the item that is there. A fresh key, a replay and a busy key
// are one request. A takeover or a reopening is a second write, on the condition that no other writer has written since.

import { pausesMs, rounds } from '../../core/backoff.ts'
import { decide, grantOf } from '../../core/entry.ts'
import { OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { ClaimRequest, Verdict } from '../../core/store.ts'
import { call, namesIn } from './requests.ts'
import { isTransactionConflict, refusedBy } from '../../clients/dynamodb.ts'
import type { DynamodbCondition } from '../../clients/dynamodb.ts'
import type { DynamodbContext } from './requests.ts'
import { entryAfter, entryOf, itemOf, keyOfItem, momentOf, number, soonest } from './entries.ts'
import type { DynamodbMoment, DynamodbEntry } from './entries.ts'
import { loadOutcome } from './outcomes.ts'
import { release } from './writes.ts'

// Half of what an item can hold, so that there is room for the entry and an outcome. Every attempt writes the input again.
const inputBytesMax = 200 * 1_024

export async function claim(context: DynamodbContext, key: Key, request: ClaimRequest): Promise<Verdict> {
  checkInput(key, request)
  // The store looks at the table beside its first claim, so that the look costs no time. The result is read below.
  void context.tableObjection()
  let seen = context.expects === 'replays' ? await readEntry(context, key) : undefined
  for (let round = 0; round < rounds.claim; round++) {
    const moment = momentOf(context)
    const decision = decide(seen, request, moment.sure)
    if (decision.is === 'refused') return soonest(decision.verdict, moment)
    if (decision.is === 'replayed') return replayOf(context, decision.entry)
    const entry = entryAfter(key, seen, decision, { request, moment })
    // The store judged this entry by its own clock. The reply that brought the entry also brought DynamoDB's time.
    if (seen) await checkFit(context)
    const written = await putInPlaceOf(context, seen, entry, moment)
    if (written === 'done') return whenFit(context, entry)
    if (written === 'conflict') return { is: 'busy', retryAfterMs: pausesMs.heldItem }
    seen = written.seen
  }
  throw new OnceError('STORE_UNAVAILABLE', {
    message: `The entry of ${describeKey(key)} was changed by others ${rounds.claim} times while it was claimed. The effect was not run. Ask again.`,
  })
}

async function putInPlaceOf(
  context: DynamodbContext,
  seen: DynamodbEntry | undefined,
  entry: DynamodbEntry,
  moment: DynamodbMoment,
): Promise<'done' | 'conflict' | { readonly seen: DynamodbEntry | undefined }> {
  try {
    await call(context, (options) =>
      context.client.putItem(
        { TableName: context.table, Item: itemOf(entry, moment), ...unchangedSince(seen) },
        options,
      ),
    )
    return 'done'
  } catch (error) {
    if (isTransactionConflict(error)) return 'conflict'
    const refused = refusedBy(error)
    if (!refused) throw error
    return { seen: refused.item && entryOf(refused.item) }
  }
}

// Revisions start again after an entry was removed, and a token can come again: only the fence tells that life from this one.
const isUnchanged = '#token = :seenToken AND #fence = :seenFence AND #revision = :seenRevision'

/** No writer has written since this was seen. When nothing was seen, there is still no item. */
export function unchangedSince(seen: DynamodbEntry | undefined): DynamodbCondition {
  const condition = seen ? isUnchanged : 'attribute_not_exists(#key)'
  return {
    ConditionExpression: condition,
    ExpressionAttributeNames: namesIn(condition),
    ...(seen && {
      ExpressionAttributeValues: {
        ':seenToken': { S: seen.token },
        ':seenFence': number(seen.fence),
        ':seenRevision': number(seen.revision),
      },
    }),
    ReturnValuesOnConditionCheckFailure: 'ALL_OLD',
  }
}

export async function readEntry(context: DynamodbContext, key: Key): Promise<DynamodbEntry | undefined> {
  const found = await call(context, (options) =>
    context.client.getItem({ TableName: context.table, Key: keyOfItem(key), ConsistentRead: true }, options),
  )
  return found.Item && entryOf(found.Item)
}

async function checkFit(context: DynamodbContext): Promise<void> {
  context.checkClock()
  const objection = await context.tableObjection()
  if (objection) throw objection
}

// This machine's clock gave the lease its end. If the clock is wrong, the lease is too short, and the effect must not start.
async function whenFit(context: DynamodbContext, entry: DynamodbEntry): Promise<Verdict> {
  try {
    await checkFit(context)
  } catch (error) {
    // What cannot be taken back ends with its lease. What a person has to mend is the objection.
    await release(context, entry, 'forget').catch(() => {})
    throw error
  }
  return grantOf(entry)
}

async function replayOf(context: DynamodbContext, entry: DynamodbEntry): Promise<Verdict> {
  const { version, attempt } = entry
  return { is: 'settled', outcome: await loadOutcome(context, entry), version, attempt }
}

function checkInput(key: Key, { input }: ClaimRequest): void {
  if (!input || input.length <= inputBytesMax) return
  throw new OnceError('INVALID_ARGUMENT', {
    message:
      `expected the input of ${describeKey(key)} to be at most ${inputBytesMax} bytes, got ${input.length}: an item of ` +
      'DynamoDB has 400 KiB. Keep it elsewhere and pass its name.',
  })
}

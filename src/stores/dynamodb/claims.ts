// Taking a key: one conditional write, which is refused with what is there instead. A fresh key, a replay and a busy key are
// one request; a takeover or a reopening is a second write, on the condition that nobody has written since.

import { OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { ClaimRequest, Verdict } from '../../core/store.ts'
import { call, namesIn } from '../../clients/dynamodb.ts'
import type { Condition, DynamodbGround } from '../../clients/dynamodb.ts'
import { decide, entryOf, itemOf, keyOfItem, momentOf, number } from './entries.ts'
import type { Moment, StoredEntry } from './entries.ts'
import { isTransactionConflict, refusedBy } from './errors.ts'
import { loadOutcome } from './outcomes.ts'
import { release } from './writes.ts'

// Whoever is refused finds an entry that somebody else has just taken, which is nearly always the end of it.
const roundsMax = 10

// DynamoDB's transactions take milliseconds.
const conflictRetryMs = 50

// Half of what an item has, so that there is room for the entry and an outcome. It is written again with every attempt.
const inputBytesMax = 200 * 1_024

export async function claim(ground: DynamodbGround, key: Key, request: ClaimRequest): Promise<Verdict> {
  checkInput(key, request)
  let seen = ground.expects === 'replays' ? await readEntry(ground, key) : undefined
  for (let round = 0; round < roundsMax; round++) {
    const moment = momentOf(ground)
    const decision = decide(key, seen, request, moment)
    if ('verdict' in decision) return decision.verdict
    if ('replay' in decision) return replayOf(ground, decision.replay)
    // What is there was judged by our clock; the reply that told of it has told the time, too.
    if (seen) ground.checkClock()
    const written = await putInPlaceOf(ground, seen, decision.write, moment)
    if (written === 'done') return grantOf(ground, key, decision.write)
    if (written === 'conflict') return { is: 'busy', retryAfterMs: conflictRetryMs }
    seen = written.seen
  }
  throw new OnceError('STORE_UNAVAILABLE', {
    message: `The entry of ${describeKey(key)} was changed by others ${roundsMax} times while it was claimed. The effect was not run. Ask again.`,
  })
}

async function putInPlaceOf(
  ground: DynamodbGround,
  seen: StoredEntry | undefined,
  entry: StoredEntry,
  moment: Moment,
): Promise<'done' | 'conflict' | { readonly seen: StoredEntry | undefined }> {
  try {
    await call(ground, (options) =>
      ground.client.putItem({ TableName: ground.table, Item: itemOf(entry, moment), ...unchangedSince(seen) }, options),
    )
    return 'done'
  } catch (error) {
    if (isTransactionConflict(error)) return 'conflict'
    const refused = refusedBy(error)
    if (!refused) throw error
    return { seen: refused.item && entryOf(refused.item) }
  }
}

// Revisions begin anew when an entry was removed, and a token can come again: only the fence tells that life from this one.
const isUnchanged = '#token = :seenToken AND #fence = :seenFence AND #revision = :seenRevision'

/** Nobody has written since this was seen, or, when nothing was, nobody at all. */
export function unchangedSince(seen: StoredEntry | undefined): Condition {
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

export async function readEntry(ground: DynamodbGround, key: Key): Promise<StoredEntry | undefined> {
  const found = await call(ground, (options) =>
    ground.client.getItem({ TableName: ground.table, Key: keyOfItem(key), ConsistentRead: true }, options),
  )
  return found.Item && entryOf(found.Item)
}

// Our lease was written by our clock: if that is wrong, it is too short, and nobody may start on it.
async function grantOf(ground: DynamodbGround, key: Key, entry: StoredEntry): Promise<Verdict> {
  const { token, attempt, fence, how } = entry
  const granted = { key, token, attempt, fence }
  try {
    ground.checkClock()
  } catch (error) {
    await release(ground, granted, 'forget')
    throw error
  }
  return { is: 'granted', claim: granted, how }
}

async function replayOf(ground: DynamodbGround, entry: StoredEntry): Promise<Verdict> {
  const { version, attempt } = entry
  return { is: 'settled', outcome: await loadOutcome(ground, entry), version, attempt }
}

function checkInput(key: Key, { input }: ClaimRequest): void {
  if (!input || input.length <= inputBytesMax) return
  throw new OnceError('INVALID_ARGUMENT', {
    message:
      `expected the input of ${describeKey(key)} to be at most ${inputBytesMax} bytes, got ${input.length}: an item of ` +
      'DynamoDB has 400 KiB. Keep it elsewhere and pass its name.',
  })
}

// Where the bytes of an outcome are: in the entry when they are few, else in separate items beside it. The store writes these
// items before the settle that names them, and names each by its content. So no reader ever sees half an outcome, a repeated
// settle writes the same items again, and a settle with other bytes cannot touch them. TTL removes items that no settle has
// named.

import { hash } from 'node:crypto'
import { OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Claim } from '../../core/store.ts'
import { call, namesIn } from './requests.ts'
import type { DynamodbContext } from './requests.ts'
import { keyOfItem, number, removalSeconds } from './entries.ts'
import type { DynamodbEntry } from './entries.ts'
import { refusedBy } from '../../clients/dynamodb.ts'

// A replay is a conditional write that fails, and DynamoDB bills it by the size of the item: 33 write units at 32 KiB, of which a
// partition has 1,000 per second. A larger outcome costs another round trip instead, in read units.
const inlineBytesMax = 32 * 1_024

// An item has 400 KiB, names and keys included. Our names and keys are below 1 KiB.
const chunkBytesMax = 384 * 1_024

export const chunkPart = 'outcome '

export type StoredOutcome = Pick<DynamodbEntry, 'outcome' | 'outcomeApart'>

/** Returns what the entry must hold, once everything that lies apart is there until `expiresAtMs`. */
export async function storeOutcome(
  context: DynamodbContext,
  claim: Claim,
  outcome: Uint8Array,
  expiresAtMs: number,
): Promise<StoredOutcome> {
  if (outcome.length <= inlineBytesMax) return { outcome }
  const count = Math.ceil(outcome.length / chunkBytesMax)
  const outcomeApart = `${count} ${hash('sha256', outcome, 'base64url')}`
  const removeAt = removalSeconds(expiresAtMs, context.clockSkewMs)
  const chunks = partsOf(claim.token, outcomeApart).map((part, index) =>
    putChunk(context, claim, part, removeAt, outcome.subarray(index * chunkBytesMax, (index + 1) * chunkBytesMax)),
  )
  await Promise.all(chunks)
  return { outcomeApart }
}

async function putChunk(
  context: DynamodbContext,
  { key }: Claim,
  part: string,
  removeAt: number,
  bytes: Uint8Array,
): Promise<void> {
  // The same bytes may be there already. A repeated settle must not make them go earlier.
  const condition = 'attribute_not_exists(#key) OR #removeAt < :removeAt'
  try {
    await call(context, (options) =>
      context.client.putItem(
        {
          TableName: context.table,
          Item: { ...keyOfItem(key, part), bytes: { B: bytes }, removeAt: number(removeAt) },
          ConditionExpression: condition,
          ExpressionAttributeNames: namesIn(condition),
          ExpressionAttributeValues: { ':removeAt': number(removeAt) },
        },
        options,
      ),
    )
  } catch (error) {
    if (!refusedBy(error)) throw error
  }
}

/** The outcome of a settled entry, wherever it is. */
export async function loadOutcome(context: DynamodbContext, entry: DynamodbEntry): Promise<Uint8Array> {
  const { key, token, outcome, outcomeApart } = entry
  if (outcome) return outcome
  if (outcomeApart === undefined) return unreadable(entry, 'it is missing')
  const chunks = await Promise.all(
    partsOf(token, outcomeApart).map(async (part) => {
      const found = await call(context, (options) =>
        context.client.getItem({ TableName: context.table, Key: keyOfItem(key, part), ConsistentRead: true }, options),
      )
      return found.Item?.['bytes']?.B ?? unreadable(entry, `the item "${part}" is missing`)
    }),
  )
  const bytes = Uint8Array.from(Buffer.concat(chunks))
  const isWhole = hash('sha256', bytes, 'base64url') === outcomeApart.split(' ')[1]
  return isWhole ? bytes : unreadable(entry, 'its bytes are not those that were settled')
}

function partsOf(token: string, outcomeApart: string): readonly string[] {
  const [count, digest] = outcomeApart.split(' ')
  return Array.from({ length: Number(count) }, (_, index) => `${chunkPart}${token} ${digest} ${index}`)
}

function unreadable({ key }: DynamodbEntry, why: string): never {
  throw new OnceError('OUTCOME_UNREADABLE', {
    message: `The outcome of ${describeKey(key)} in DynamoDB cannot be read: ${why}. The effect did run and was not run again.`,
  })
}

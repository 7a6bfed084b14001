// Manual expiry. DynamoDB itself removes what has expired (TTL), free of charge. A sweep does the same at once, where TTL is off
// or too late, and takes the contents out of tombstones. A sweep reads the whole table, one page per step.

import type { Swept } from '../../core/store.ts'
import { call, namesIn, primaryKeyOf } from './requests.ts'
import type { DynamodbValue, DynamodbItem, DynamodbPage, StoredDynamodbItem } from '../../clients/dynamodb.ts'
import type { DynamodbContext } from './requests.ts'
import { entryPart, keyFrom, momentOf, number } from './entries.ts'
import type { DynamodbMoment } from './entries.ts'
import { isTransactionConflict, refusedBy } from '../../clients/dynamodb.ts'
import { chunkPart } from './outcomes.ts'
import { contents, updateOf } from './updates.ts'
import type { Where } from './updates.ts'

/** Where the next step continues. Undefined at the beginning of the table. */
export interface SweepCursor {
  after: DynamodbItem | undefined
}

type Done = 'tombstoned' | 'forgotten' | 'nothing'

// A step reads at most this many items, and a page of DynamoDB is 1 MB in any case: some 128 read units.
const readItemsMax = 1_000

// The SDK opens 50 connections. This leaves half of them to the claims.
const writesAtOnce = 25

export async function sweep(context: DynamodbContext, cursor: SweepCursor, limit: number): Promise<Swept> {
  const moment = momentOf(context)
  const page = await readPage(context, cursor, moment)
  const found = page.Items ?? []
  const chosen = found.slice(0, limit)
  const counts = { tombstoned: 0, forgotten: 0, nothing: 0 }
  for (let index = 0; index < chosen.length; index += writesAtOnce) {
    const done = await Promise.all(
      chosen.slice(index, index + writesAtOnce).map((item) => sweepOne(context, item, moment)),
    )
    for (const each of done) counts[each]++
  }
  const last = found.length > chosen.length ? chosen.at(-1) : page.LastEvaluatedKey
  cursor.after = last && primaryKeyOf(last)
  return { tombstoned: counts.tombstoned, forgotten: counts.forgotten, more: cursor.after !== undefined }
}

function readPage(context: DynamodbContext, cursor: SweepCursor, moment: DynamodbMoment): Promise<DynamodbPage> {
  const holdsSomething = contents.map((name) => `attribute_exists(#${name})`).join(' OR ')
  const entryIsOver = `#forgottenAtMs <= :sure OR (#expiresAtMs <= :sure AND (${holdsSomething}))`
  const chunkIsOver = 'begins_with(#part, :chunk) AND #removeAt <= :sureSeconds'
  const filter = `(#part = :entry AND (${entryIsOver})) OR (${chunkIsOver})`
  const projection = '#key, #part, #token, #fence, #revision, #wrote, #forgottenAtMs, #removeAt'
  return call(context, (options) =>
    context.client.scan(
      {
        TableName: context.table,
        ConsistentRead: true,
        Limit: readItemsMax,
        FilterExpression: filter,
        ProjectionExpression: projection,
        ExpressionAttributeNames: namesIn(filter, projection),
        ExpressionAttributeValues: {
          ':entry': { S: entryPart },
          ':chunk': { S: chunkPart },
          ':sure': number(moment.sure),
          ':sureSeconds': number(Math.floor(moment.sure / 1_000)),
        },
        ...(cursor.after && { ExclusiveStartKey: cursor.after }),
      },
      options,
    ),
  )
}

// On the condition that the item is still what was read: a key that is claimed anew meanwhile is left alone.
async function sweepOne(context: DynamodbContext, item: StoredDynamodbItem, { sure }: DynamodbMoment): Promise<Done> {
  const isEntry = item['part']?.S === entryPart
  const isTombstone = isEntry && Number(item['forgottenAtMs']?.N) > sure
  try {
    await (isTombstone ? strip(context, item) : remove(context, item))
  } catch (error) {
    if (refusedBy(error) || isTransactionConflict(error)) return 'nothing'
    throw error
  }
  if (isTombstone) return 'tombstoned'
  // Remains were forgotten before, and what lies apart was never an entry.
  return isEntry && item['wrote']?.S !== 'forget' ? 'forgotten' : 'nothing'
}

async function strip(context: DynamodbContext, item: StoredDynamodbItem): Promise<void> {
  const change = { sets: {}, values: {}, removes: contents }
  const input = updateOf(context.table, keyFrom(item), change, stillAs(item))
  await call(context, (options) => context.client.updateItem(input, options))
}

async function remove(context: DynamodbContext, item: StoredDynamodbItem): Promise<void> {
  const { condition, values } = stillAs(item)
  const input = {
    TableName: context.table,
    Key: primaryKeyOf(item),
    ConditionExpression: condition,
    ExpressionAttributeNames: namesIn(condition),
    ExpressionAttributeValues: values,
    ReturnValuesOnConditionCheckFailure: 'ALL_OLD',
  } as const
  await call(context, (options) => context.client.deleteItem(input, options))
}

function stillAs(item: StoredDynamodbItem): Where {
  const names = item['part']?.S === entryPart ? ['token', 'fence', 'revision'] : ['removeAt']
  return {
    condition: names.map((name) => `#${name} = :seen_${name}`).join(' AND '),
    values: Object.fromEntries(names.map((name) => [`:seen_${name}`, item[name] as DynamodbValue])),
  }
}

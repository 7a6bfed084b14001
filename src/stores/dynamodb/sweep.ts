// Expiry by hand. DynamoDB removes what is over by itself (TTL), free of charge; a sweep does the same at once, where TTL is
// off or too late for somebody's taste, and takes the contents out of tombstones. It reads the whole table, a page a step.

import type { Swept } from '../../core/store.ts'
import { call, namesIn, primaryKeyOf } from '../../clients/dynamodb.ts'
import type { AttributeValue, DynamodbGround, Item, Page, StoredItem } from '../../clients/dynamodb.ts'
import { entryPart, keyFrom, momentOf, number } from './entries.ts'
import type { Moment } from './entries.ts'
import { isTransactionConflict, refusedBy } from './errors.ts'
import { chunkPart } from './outcomes.ts'
import { contents, updateOf } from './updates.ts'
import type { Where } from './updates.ts'

/** Where the next step goes on; undefined at the beginning of the table. */
export interface SweepCursor {
  after: Item | undefined
}

type Done = 'tombstoned' | 'forgotten' | 'nothing'

// A step reads so many items at the most, and a page of DynamoDB is 1 MB in any case: some 128 read units.
const readItemsMax = 1_000

// The SDK opens 50 connections; this leaves half of them to the claims.
const writesAtOnce = 25

export async function sweep(ground: DynamodbGround, cursor: SweepCursor, limit: number): Promise<Swept> {
  const moment = momentOf(ground)
  const page = await readPage(ground, cursor, moment)
  const found = page.Items ?? []
  const chosen = found.slice(0, limit)
  const counts = { tombstoned: 0, forgotten: 0, nothing: 0 }
  for (let index = 0; index < chosen.length; index += writesAtOnce) {
    const done = await Promise.all(
      chosen.slice(index, index + writesAtOnce).map((item) => sweepOne(ground, item, moment)),
    )
    for (const each of done) counts[each]++
  }
  const last = found.length > chosen.length ? chosen.at(-1) : page.LastEvaluatedKey
  cursor.after = last && primaryKeyOf(last)
  return { tombstoned: counts.tombstoned, forgotten: counts.forgotten, more: cursor.after !== undefined }
}

function readPage(ground: DynamodbGround, cursor: SweepCursor, moment: Moment): Promise<Page> {
  const holdsSomething = contents.map((name) => `attribute_exists(#${name})`).join(' OR ')
  const entryIsOver = `#forgottenAtMs <= :sure OR (#expiresAtMs <= :sure AND (${holdsSomething}))`
  const chunkIsOver = 'begins_with(#part, :chunk) AND #removeAt <= :sureSeconds'
  const filter = `(#part = :entry AND (${entryIsOver})) OR (${chunkIsOver})`
  const projection = '#key, #part, #token, #fence, #revision, #wrote, #forgottenAtMs, #removeAt'
  return call(ground, (options) =>
    ground.client.scan(
      {
        TableName: ground.table,
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

// Each on the condition that it is still what was read: a key that is claimed anew meanwhile is left alone.
async function sweepOne(ground: DynamodbGround, item: StoredItem, { sure }: Moment): Promise<Done> {
  const isEntry = item['part']?.S === entryPart
  const isTombstone = isEntry && Number(item['forgottenAtMs']?.N) > sure
  try {
    await (isTombstone ? strip(ground, item) : remove(ground, item))
  } catch (error) {
    if (refusedBy(error) || isTransactionConflict(error)) return 'nothing'
    throw error
  }
  if (isTombstone) return 'tombstoned'
  // Remains were forgotten before, and what lies apart was never an entry.
  return isEntry && item['wrote']?.S !== 'forget' ? 'forgotten' : 'nothing'
}

async function strip(ground: DynamodbGround, item: StoredItem): Promise<void> {
  const change = { sets: {}, values: {}, removes: contents }
  const input = updateOf(ground.table, keyFrom(item), change, stillAs(item))
  await call(ground, (options) => ground.client.updateItem(input, options))
}

async function remove(ground: DynamodbGround, item: StoredItem): Promise<void> {
  const { condition, values } = stillAs(item)
  const input = {
    TableName: ground.table,
    Key: primaryKeyOf(item),
    ConditionExpression: condition,
    ExpressionAttributeNames: namesIn(condition),
    ExpressionAttributeValues: values,
    ReturnValuesOnConditionCheckFailure: 'ALL_OLD',
  } as const
  await call(ground, (options) => ground.client.deleteItem(input, options))
}

function stillAs(item: StoredItem): Where {
  const names = item['part']?.S === entryPart ? ['token', 'fence', 'revision'] : ['removeAt']
  return {
    condition: names.map((name) => `#${name} = :seen_${name}`).join(' AND '),
    values: Object.fromEntries(names.map((name) => [`:seen_${name}`, item[name] as AttributeValue])),
  }
}

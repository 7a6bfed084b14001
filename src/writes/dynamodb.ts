// The writes on DynamoDB: conditional updates, which return what they failed on, so that nearly every write is one request. A
// write of two items (a counter and its mark, an event and its id) is a TransactWriteItems.

import { isTransactionConflict, refusedBy } from '../clients/dynamodb.ts'
import type { DynamodbClient, StoredDynamodbItem } from '../clients/dynamodb.ts'
import { rounds } from '../core/backoff.ts'
import { OnceError } from '../core/errors.ts'
import { checkOptions, optional, withMethods } from '../core/options.ts'
import type { Rule } from '../core/options.ts'
import { addTransaction, appendTransaction } from './dynamodb/transactions.ts'
import { conditional, expressionOf, itemOf, sameValue } from './dynamodb/expressions.ts'
import { eachWrite, requestChecks, scalar } from './requests.ts'
import { restless } from './steps.ts'
import type { Answers, CompareAndSet, InsertOnce, Row, Upsert, UpsertIf, UpsertIfNewer, Writes } from './writes.ts'

/** `new DynamoDB({ region })` of @aws-sdk/client-dynamodb, 3.363 or later (the first to return what a condition failed on). */
export type DynamodbWritesClient = Pick<DynamodbClient, 'putItem' | 'updateItem' | 'transactWriteItems'>

export interface DynamodbWritesOptions {
  /**
   * For appendOnce: the table of the event ids, with their attribute as its partition key. DynamoDB keeps an item to one key,
   * and an event has two, its id and its place in the stream.
   */
  readonly eventIdTable?: string | undefined
}

const tableName: Rule = (value) =>
  typeof value === 'string' && /^[A-Za-z0-9_.-]{3,255}$/.test(value)
    ? undefined
    : 'a name of 3 to 255 letters, digits, underscores, dots and hyphens'

const dynamodbValue: Rule = (value) =>
  value instanceof Date
    ? 'something other than a Date (DynamoDB has no times; give milliseconds or text)'
    : scalar(value)

const check = requestChecks({ table: tableName, value: dynamodbValue, marks: 'table' })

/**
 * Writes that may be repeated, on your own tables in DynamoDB. Each write is a separate request.
 *
 * @example
 * import { DynamoDB } from '@aws-sdk/client-dynamodb'
 * import { dynamodbWrites } from 'onceonly/writes'
 *
 * const writes = dynamodbWrites(new DynamoDB({ region: 'eu-central-1' }))
 * // 'applied' the first time, 'already' the second time.
 * const written = await writes.insertOnce('orders', { key: { id: 'order-42' }, set: { cents: 500 } })
 */
export function dynamodbWrites(client: DynamodbWritesClient, options: DynamodbWritesOptions = {}): Writes {
  checkOptions('dynamodbWrites', { client }, { client: withMethods('putItem', 'updateItem', 'transactWriteItems') })
  checkOptions('dynamodbWrites', options, { eventIdTable: optional(tableName) })
  const writes: Writes = {
    insertOnce: (table, request) => insertOnce(client, table, request),
    upsert: (table, request) => upsert(client, table, request),
    upsertIfNewer: (table, request) => upsertIfNewer(client, table, request),
    upsertIf: (table, request) => upsertIf(client, table, request),
    compareAndSet: (table, request) => compareAndSet(client, table, request),
    addOnce: (table, request) => addTransaction(client, table, request),
    appendOnce: (table, request) => appendTransaction(client, table, request, options.eventIdTable),
  }
  return eachWrite<Writes>((name) => async (table, request) => {
    check(name, table, request)
    return writes[name](table, request)
  })
}

type Attempt = { readonly done: true } | { readonly done: false; readonly item: StoredDynamodbItem | undefined }

async function insertOnce(
  client: DynamodbWritesClient,
  table: string,
  { key, set }: InsertOnce,
): Promise<Answers['insertOnce']> {
  const condition = expressionOf(({ absent }) => absent(key))
  const put = { TableName: table, Item: itemOf({ ...key, ...set }), ...conditional(condition) }
  const attempt = await tried(() => client.putItem(put))
  return attempt.done ? 'applied' : 'already'
}

// UpdateItem creates an item that is not there, and if_not_exists() looks at one attribute and not at the item. So with
// setOnInsert, an existing item is updated and a missing item is put.
async function upsert(
  client: DynamodbWritesClient,
  table: string,
  { key, set, setOnInsert }: Upsert,
): Promise<Answers['upsert']> {
  for (let round = 0; round < rounds.write; round++) {
    const attempt = await update(client, table, key, set, ({ present, holds, not, all }) =>
      setOnInsert ? all([present(key), not(holds(set))]) : not(holds(set)),
    )
    if (attempt.done) return 'applied'
    if (attempt.item) return 'already'
    if ((await insertOnce(client, table, { key, set: { ...setOnInsert, ...set } })) === 'applied') return 'applied'
  }
  throw restless('upsert', table)
}

async function upsertIfNewer(
  client: DynamodbWritesClient,
  table: string,
  { key, set, setOnInsert, newer }: UpsertIfNewer,
): Promise<Answers['upsertIfNewer']> {
  const nothing = Object.fromEntries(Object.keys(newer).map((name) => [name, null]))
  for (let round = 0; round < rounds.write; round++) {
    const attempt = await update(client, table, key, { ...set, ...newer }, (build) => {
      const older = build.any([build.holds(nothing), build.below(newer)])
      return setOnInsert ? build.all([build.present(key), build.group(older)]) : build.any([build.absent(key), older])
    })
    if (attempt.done) return 'applied'
    if (attempt.item) return holdsAll(attempt.item, newer) ? 'already' : 'stale'
    const inserted = await insertOnce(client, table, { key, set: { ...setOnInsert, ...set, ...newer } })
    if (inserted === 'applied') return 'applied'
  }
  throw restless('upsertIfNewer', table)
}

async function upsertIf(
  client: DynamodbWritesClient,
  table: string,
  { key, expect, set, setOnInsert }: UpsertIf,
): Promise<Answers['upsertIf']> {
  for (let round = 0; round < rounds.write; round++) {
    const attempt = await update(client, table, key, set, (build) => {
      const meets = build.all([build.holds(expect), build.not(build.holds(set))])
      return setOnInsert ? build.all([build.present(key), meets]) : build.any([build.absent(key), meets])
    })
    if (attempt.done) return 'applied'
    if (attempt.item) return holdsAll(attempt.item, set) ? 'already' : 'conflict'
    if ((await insertOnce(client, table, { key, set: { ...setOnInsert, ...set } })) === 'applied') return 'applied'
  }
  throw restless('upsertIf', table)
}

async function compareAndSet(
  client: DynamodbWritesClient,
  table: string,
  { key, expect, set }: CompareAndSet,
): Promise<Answers['compareAndSet']> {
  const attempt = await update(client, table, key, set, ({ present, holds, not, all }) =>
    all([present(key), holds(expect), not(holds(set))]),
  )
  if (attempt.done) return 'applied'
  if (!attempt.item) return 'missing'
  return holdsAll(attempt.item, set) ? 'already' : 'conflict'
}

async function update(
  client: DynamodbWritesClient,
  table: string,
  key: Row,
  set: Row,
  condition: Parameters<typeof expressionOf>[0],
): Promise<Attempt> {
  let change = ''
  const expression = expressionOf((build) => {
    change = `SET ${build.assign(set)}`
    return condition(build)
  })
  const input = { TableName: table, Key: itemOf(key), UpdateExpression: change, ...conditional(expression) }
  return tried(() => client.updateItem(input))
}

async function tried(request: () => Promise<unknown>): Promise<Attempt> {
  try {
    await request()
    return { done: true }
  } catch (error) {
    const refused = refusedBy(error)
    if (refused) return { done: false, item: refused.item }
    if (!isTransactionConflict(error)) throw error
    const message = 'A transaction of another caller was at work on this item. Nothing was changed. Call it again.'
    throw new OnceError('TRANSACTION_CONFLICT', { message, cause: error })
  }
}

function holdsAll(item: StoredDynamodbItem, row: Row): boolean {
  return Object.entries(itemOf(row)).every(([name, value]) => sameValue(item[name], value))
}

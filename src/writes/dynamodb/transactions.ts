// The writes that take two items: a counter and the mark of its event, an event and its id. They are written together or not at
// all, and the reasons of a refusal are in the order of the items.

import { invalidArgument, OnceError } from '../../core/errors.ts'
import { cancellationOf } from '../../clients/dynamodb.ts'
import type {
  DynamodbCancellationReason,
  DynamodbClient,
  TransactPut,
  TransactWriteItem,
} from '../../clients/dynamodb.ts'
import { conditional, expressionOf, itemOf, sameValue } from './expressions.ts'
import { versionColumn } from '../requests.ts'
import type { AddOnce, Answers, AppendOnce, Row, WriteName } from '../writes.ts'

type Client = Pick<DynamodbClient, 'transactWriteItems'>

export async function addTransaction(
  client: Client,
  table: string,
  { key, add, once }: AddOnce,
): Promise<Answers['addOnce']> {
  let change = ''
  const condition = expressionOf(({ present, add: added }) => {
    change = `ADD ${added(add)}`
    return present(key)
  })
  const counter = { TableName: table, Key: itemOf(key), UpdateExpression: change, ...conditional(condition) }
  const reasons = await transact(client, 'addOnce', [{ Update: counter }, { Put: newItem(once.table!, once.key, {}) }])
  if (!reasons) return 'applied'
  return failed(reasons[0]) ? 'missing' : 'already'
}

export async function appendTransaction(
  client: Client,
  table: string,
  request: AppendOnce,
  eventIdTable: string | undefined,
): Promise<Answers['appendOnce']> {
  if (eventIdTable === undefined) {
    throw invalidArgument(
      'appendOnce: expected dynamodbWrites(client, { eventIdTable }), got no table for the event ids',
    )
  }
  const { key, stream, after, set } = request
  const version = versionColumn(request)
  const place = { ...stream, [version]: after + 1 }
  const before = { ...stream, [version]: after }
  const condition = expressionOf(({ present }) => present(before))
  const reasons = await transact(client, 'appendOnce', [
    // The stream beside the id, to distinguish an event of this stream from an event of another.
    { Put: newItem(eventIdTable, key, stream) },
    { Put: newItem(table, place, { ...key, ...set }) },
    ...(after > 0 ? [{ ConditionCheck: { TableName: table, Key: itemOf(before), ...conditional(condition) } }] : []),
  ])
  if (!reasons) return 'appended'
  const found = reasons[0]?.Item
  const there = found && Object.entries(itemOf(stream)).every(([name, value]) => sameValue(found[name], value))
  return failed(reasons[0]) && there ? 'already' : 'conflict'
}

function newItem(table: string, key: Row, more: Row): TransactPut {
  return {
    TableName: table,
    Item: itemOf({ ...key, ...more }),
    ...conditional(expressionOf((build) => build.absent(key))),
  }
}

/** Undefined when everything was written, the reasons when a condition failed. */
async function transact(
  client: Client,
  write: WriteName,
  items: TransactWriteItem[],
): Promise<readonly DynamodbCancellationReason[] | undefined> {
  try {
    await client.transactWriteItems({ TransactItems: items })
    return undefined
  } catch (error) {
    const reasons = cancellationOf(error)
    if (reasons?.some((reason) => reason.Code === 'TransactionConflict')) {
      const message = `${write}: another transaction was at work on these items; nothing was changed. Call it again.`
      throw new OnceError('TRANSACTION_CONFLICT', { message, cause: error })
    }
    if (reasons?.some(failed)) return reasons
    throw error
  }
}

function failed(reason: DynamodbCancellationReason | undefined): boolean {
  return reason?.Code === 'ConditionalCheckFailed'
}

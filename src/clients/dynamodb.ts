// The slice of the AWS SDK that we use: its `DynamoDB`, which is a DynamoDBClient with the operations as methods. A plain
// DynamoDBClient wants objects of its own command classes, and this package imports no driver to make them with.

import type { Clock } from '../core/clock.ts'

/** Strings, numbers in decimal, and bytes: all that our own items hold. */
export type AttributeValue =
  | { readonly S: string; readonly N?: never; readonly B?: never }
  | { readonly N: string; readonly S?: never; readonly B?: never }
  | { readonly B: Uint8Array; readonly S?: never; readonly N?: never }

export type Item = Readonly<Record<string, AttributeValue>>

/** What DynamoDB gives back can be more, if others write to the table, and must be looked at before it is believed. */
export type StoredItem = Readonly<
  Record<
    string,
    { readonly S?: string | undefined; readonly N?: string | undefined; readonly B?: Uint8Array | undefined }
  >
>

export interface Condition {
  readonly ConditionExpression: string
  readonly ExpressionAttributeNames: Readonly<Record<string, string>>
  readonly ExpressionAttributeValues?: Item
  readonly ReturnValuesOnConditionCheckFailure: 'ALL_OLD'
}

export interface UpdateInput extends Condition {
  readonly TableName: string
  readonly Key: Item
  readonly UpdateExpression: string
}

/** One of the caller's own writes, in the SDK's form; it goes to DynamoDB as it is. */
export interface TransactWriteItem {
  readonly Put?: object | undefined
  readonly Update?: object | undefined
  readonly Delete?: object | undefined
  readonly ConditionCheck?: object | undefined
}

interface ReadInput {
  readonly TableName: string
  readonly ConsistentRead: true
  readonly FilterExpression?: string
  readonly KeyConditionExpression?: string
  readonly ProjectionExpression?: string
  readonly ExpressionAttributeNames: Readonly<Record<string, string>>
  readonly ExpressionAttributeValues: Item
  readonly ExclusiveStartKey?: Item
  readonly Limit?: number
}

export interface Page {
  readonly Items?: StoredItem[] | undefined
  readonly LastEvaluatedKey?: StoredItem | undefined
}

export interface CallOptions {
  readonly abortSignal: AbortSignal
}

/** `new DynamoDB({ region })` of @aws-sdk/client-dynamodb, 3.363 or later (the first to tell what a condition failed on). */
export interface DynamodbClient {
  getItem(
    input: { TableName: string; Key: Item; ConsistentRead: true },
    options: CallOptions,
  ): Promise<{ Item?: StoredItem | undefined }>
  putItem(input: { TableName: string; Item: Item } & Partial<Condition>, options: CallOptions): Promise<unknown>
  updateItem(input: UpdateInput, options: CallOptions): Promise<unknown>
  deleteItem(input: { TableName: string; Key: Item } & Condition, options: CallOptions): Promise<unknown>
  query(input: ReadInput, options: CallOptions): Promise<Page>
  scan(input: ReadInput, options: CallOptions): Promise<Page>
  transactWriteItems(input: { TransactItems: TransactWriteItem[] | undefined }, options: CallOptions): Promise<unknown>
  createTable(input: object, options: CallOptions): Promise<unknown>
  describeTable(input: { TableName: string }, options: CallOptions): Promise<{ Table?: TableDescription | undefined }>
  describeTimeToLive(
    input: { TableName: string },
    options: CallOptions,
  ): Promise<{ TimeToLiveDescription?: { TimeToLiveStatus?: string | undefined } | undefined }>
  updateTimeToLive(input: object, options: CallOptions): Promise<unknown>
  /** Where replies are listened to, see dynamodb/fitness.ts. */
  readonly middlewareStack?: object
}

export interface TableDescription {
  readonly TableStatus?: string | undefined
  readonly KeySchema?:
    | readonly { readonly AttributeName: string | undefined; readonly KeyType: string | undefined }[]
    | undefined
}

/** What the parts of one store have in common. */
export interface DynamodbGround {
  readonly client: DynamodbClient
  readonly table: string
  readonly clock: Clock
  /** By how much the clocks of any two machines may differ. */
  readonly clockSkewMs: number
  /** Throws STORE_UNSAFE when the clock of this machine is known to be wrong. */
  checkClock(): void
  readonly timeoutMs: number
  readonly expects: 'fresh' | 'replays'
}

/** Every request goes through here. The SDK itself would wait for ever for a server that does not answer. */
export async function call<T>(ground: DynamodbGround, request: (options: CallOptions) => Promise<T>): Promise<T> {
  const ended = new AbortController()
  const cancel = ground.clock.schedule(() => ended.abort(), ground.timeoutMs)
  try {
    return await request({ abortSignal: ended.signal })
  } catch (error) {
    if (!ended.signal.aborted) throw error
    throw new Error(`no answer within ${ground.timeoutMs} ms`, { cause: error })
  } finally {
    cancel()
  }
}

/**
 * The names that an expression uses as #name. All of ours are written so: many good names (key, token, input) are reserved
 * words of DynamoDB, and the list grows.
 */
export function namesIn(...expressions: readonly string[]): Record<string, string> {
  const found = expressions.flatMap((each) => each.match(/#\w+/g) ?? [])
  return Object.fromEntries(found.map((name) => [name, name.slice(1)]))
}

/** All pages of a query or scan, one after the other. */
export async function* pages(
  ground: DynamodbGround,
  read: 'query' | 'scan',
  input: Omit<ReadInput, 'TableName' | 'ConsistentRead'>,
): AsyncGenerator<StoredItem[]> {
  let from: Item | undefined
  do {
    const page: Page = await call(ground, (options) =>
      ground.client[read](
        { TableName: ground.table, ConsistentRead: true, ...input, ...(from && { ExclusiveStartKey: from }) },
        options,
      ),
    )
    yield page.Items ?? []
    from = page.LastEvaluatedKey && primaryKeyOf(page.LastEvaluatedKey)
  } while (from)
}

export function primaryKeyOf(item: StoredItem): Item {
  return { key: { S: item['key']?.S ?? '' }, part: { S: item['part']?.S ?? '' } }
}

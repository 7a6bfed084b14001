// The slice of the AWS SDK that stores and writes use: its `DynamoDB`, which is a DynamoDBClient with the operations as methods.
// A plain DynamoDBClient takes objects of the SDK's command classes, and this package imports no driver to make them with.

/** What an attribute can hold, as far as stores and writes use it. Numbers are decimal text. */
export type DynamodbValue =
  | (Without<'S'> & { readonly S: string })
  | (Without<'N'> & { readonly N: string })
  | (Without<'B'> & { readonly B: Uint8Array })
  | (Without<'BOOL'> & { readonly BOOL: boolean })
  | (Without<'NULL'> & { readonly NULL: true })

type Without<Kind extends string> = { readonly [Each in Exclude<'S' | 'N' | 'B' | 'BOOL' | 'NULL', Kind>]?: never }

export type DynamodbItem = Readonly<Record<string, DynamodbValue>>

/** A returned item can hold more, if other programs write to the table, so its reader must check it first. */
export type StoredDynamodbItem = Readonly<
  Record<
    string,
    {
      readonly S?: string | undefined
      readonly N?: string | undefined
      readonly B?: Uint8Array | undefined
      readonly BOOL?: boolean | undefined
      readonly NULL?: boolean | undefined
    }
  >
>

export interface DynamodbCondition {
  readonly ConditionExpression: string
  readonly ExpressionAttributeNames: Readonly<Record<string, string>>
  readonly ExpressionAttributeValues?: DynamodbItem
  readonly ReturnValuesOnConditionCheckFailure: 'ALL_OLD'
}

export interface DynamodbUpdate extends DynamodbCondition {
  readonly TableName: string
  readonly Key: DynamodbItem
  readonly UpdateExpression: string
}

/** Why one item of a transaction was refused. */
export interface DynamodbCancellationReason {
  readonly Code?: string | undefined
  readonly Message?: string | undefined
  readonly Item?: StoredDynamodbItem | undefined
}

/** One of the caller's own writes, in the SDK's form, sent to DynamoDB unchanged. */
export interface TransactWriteItem {
  readonly Put?: TransactPut | undefined
  readonly Update?: TransactUpdate | undefined
  readonly Delete?: TransactDelete | undefined
  readonly ConditionCheck?: TransactCheck | undefined
}

interface TransactCondition {
  readonly TableName: string | undefined
  readonly ConditionExpression?: string | undefined
  readonly ExpressionAttributeNames?: Readonly<Record<string, string>> | undefined
  readonly ExpressionAttributeValues?: Readonly<Record<string, object>> | undefined
  readonly ReturnValuesOnConditionCheckFailure?: 'ALL_OLD' | 'NONE' | undefined
}

/** `Put` of TransactWriteItems, and so on: attribute values are the SDK's own, `{ S: 'text' }`. */
export interface TransactPut extends TransactCondition {
  readonly Item: Readonly<Record<string, object>> | undefined
}

export interface TransactUpdate extends TransactCondition {
  readonly Key: Readonly<Record<string, object>> | undefined
  readonly UpdateExpression: string | undefined
}

export interface TransactDelete extends TransactCondition {
  readonly Key: Readonly<Record<string, object>> | undefined
}

export interface TransactCheck extends TransactDelete {
  readonly ConditionExpression: string | undefined
}

export interface DynamodbRead {
  readonly TableName: string
  readonly ConsistentRead: true
  readonly FilterExpression?: string
  readonly KeyConditionExpression?: string
  readonly ProjectionExpression?: string
  readonly ExpressionAttributeNames: Readonly<Record<string, string>>
  readonly ExpressionAttributeValues: DynamodbItem
  readonly ExclusiveStartKey?: DynamodbItem
  readonly Limit?: number
}

export interface DynamodbPage {
  readonly Items?: StoredDynamodbItem[] | undefined
  readonly LastEvaluatedKey?: StoredDynamodbItem | undefined
}

export interface DynamodbCallOptions {
  readonly abortSignal: AbortSignal
}

/** `new DynamoDB({ region })` of @aws-sdk/client-dynamodb, 3.363 or later (the first to return what a condition failed on). */
export interface DynamodbClient {
  getItem(
    input: { TableName: string; Key: DynamodbItem; ConsistentRead: true },
    options?: DynamodbCallOptions,
  ): Promise<{ Item?: StoredDynamodbItem | undefined }>
  putItem(
    input: { TableName: string; Item: DynamodbItem } & Partial<DynamodbCondition>,
    options?: DynamodbCallOptions,
  ): Promise<unknown>
  updateItem(input: DynamodbUpdate, options?: DynamodbCallOptions): Promise<unknown>
  deleteItem(
    input: { TableName: string; Key: DynamodbItem } & DynamodbCondition,
    options?: DynamodbCallOptions,
  ): Promise<unknown>
  query(input: DynamodbRead, options?: DynamodbCallOptions): Promise<DynamodbPage>
  scan(input: DynamodbRead, options?: DynamodbCallOptions): Promise<DynamodbPage>
  transactWriteItems(
    input: { TransactItems: TransactWriteItem[] | undefined },
    options?: DynamodbCallOptions,
  ): Promise<unknown>
  createTable(input: object, options?: DynamodbCallOptions): Promise<unknown>
  describeTable(
    input: { TableName: string },
    options?: DynamodbCallOptions,
  ): Promise<{ Table?: DynamodbTable | undefined }>
  describeTimeToLive(
    input: { TableName: string },
    options?: DynamodbCallOptions,
  ): Promise<{ TimeToLiveDescription?: DynamodbTimeToLive | undefined }>
  updateTimeToLive(input: object, options?: DynamodbCallOptions): Promise<unknown>
  /** Where replies are listened to, see dynamodb/fitness.ts. */
  readonly middlewareStack?: object
}

export interface DynamodbTable {
  readonly TableStatus?: string | undefined
  readonly KeySchema?:
    | readonly { readonly AttributeName: string | undefined; readonly KeyType: string | undefined }[]
    | undefined
  /** Of a global table: one per region, this one included. */
  readonly Replicas?: readonly object[] | undefined
  readonly MultiRegionConsistency?: string | undefined
}

export interface DynamodbTimeToLive {
  readonly TimeToLiveStatus?: string | undefined
  readonly AttributeName?: string | undefined
}

/** Returns the item that a failed condition found. Undefined for any other error. */
export function refusedBy(error: unknown): { readonly item: StoredDynamodbItem | undefined } | undefined {
  if (errorNameOf(error) !== 'ConditionalCheckFailedException') return undefined
  return { item: (error as { Item?: StoredDynamodbItem }).Item }
}

/** Why a transaction was cancelled, one reason per item, in their order. Undefined for any other error. */
export function cancellationOf(error: unknown): readonly DynamodbCancellationReason[] | undefined {
  if (errorNameOf(error) !== 'TransactionCanceledException') return undefined
  return (error as { CancellationReasons?: readonly DynamodbCancellationReason[] }).CancellationReasons ?? []
}

/** The transaction of another caller has the item at this moment. Nothing was written. */
export function isTransactionConflict(error: unknown): boolean {
  return errorNameOf(error) === 'TransactionConflictException'
}

export function errorNameOf(error: unknown): string {
  return error instanceof Error ? error.name : ''
}

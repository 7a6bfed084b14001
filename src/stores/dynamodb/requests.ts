// Requests to DynamoDB on behalf of one store: what they have in common, their time limit, and the pages of what they read.

import type {
  DynamodbCallOptions,
  DynamodbClient,
  DynamodbItem,
  DynamodbPage,
  DynamodbRead,
  StoredDynamodbItem,
} from '../../clients/dynamodb.ts'
import type { Clock } from '../../core/clock.ts'
import type { OnceError } from '../../core/errors.ts'

/** What the parts of one store have in common. */
export interface DynamodbContext {
  readonly client: DynamodbClient
  readonly table: string
  readonly clock: Clock
  /** By how much the clocks of any two machines may differ. */
  readonly clockSkewMs: number
  /** Throws STORE_UNSAFE when the clock of this machine is known to be wrong. */
  checkClock(): void
  /** Why the table breaks the promise. Undefined when the table keeps it, or when that is unknown. Never rejects. */
  tableObjection(): Promise<OnceError | undefined>
  readonly timeoutMs: number
  readonly expects: 'fresh' | 'replays'
}

/** Every request goes through here. The SDK itself would wait without limit for a server that does not reply. */
export async function call<T>(
  context: DynamodbContext,
  request: (options: DynamodbCallOptions) => Promise<T>,
): Promise<T> {
  const ended = new AbortController()
  const cancel = context.clock.schedule(() => ended.abort(), context.timeoutMs)
  try {
    return await request({ abortSignal: ended.signal })
  } catch (error) {
    if (!ended.signal.aborted) throw error
    throw new Error(`no answer within ${context.timeoutMs} ms`, { cause: error })
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
  context: DynamodbContext,
  read: 'query' | 'scan',
  input: Omit<DynamodbRead, 'TableName' | 'ConsistentRead'>,
): AsyncGenerator<StoredDynamodbItem[]> {
  let from: DynamodbItem | undefined
  do {
    const page: DynamodbPage = await call(context, (options) =>
      context.client[read](
        { TableName: context.table, ConsistentRead: true, ...input, ...(from && { ExclusiveStartKey: from }) },
        options,
      ),
    )
    yield page.Items ?? []
    from = page.LastEvaluatedKey && primaryKeyOf(page.LastEvaluatedKey)
  } while (from)
}

export function primaryKeyOf(item: StoredDynamodbItem): DynamodbItem {
  return { key: { S: item['key']?.S ?? '' }, part: { S: item['part']?.S ?? '' } }
}

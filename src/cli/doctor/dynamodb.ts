// What a DynamoDB table must be like: ours, in one region, and rid of what has expired. Its time is told by the Date of a reply.

import type { DynamodbClient } from '../../clients/dynamodb.ts'
import { check, judge } from '../../core/fitness.ts'
import type { FitnessCheck } from '../../core/fitness.ts'

interface Reply {
  readonly response?: { readonly headers?: Readonly<Record<string, string>> }
}

type Next = (request: unknown) => Promise<Reply>

interface MiddlewareStack {
  add(middleware: (next: Next) => Next, options: { step: 'deserialize'; priority: 'low' }): void
}

// A question that is not answered in this time is answered "unknown".
const answerMs = 10_000
const call = (): { abortSignal: AbortSignal } => ({ abortSignal: AbortSignal.timeout(answerMs) })

/** Answers in whole seconds, cut down. */
export function dynamodbClock(client: DynamodbClient, table: string): () => Promise<number> {
  let told = Number.NaN
  const stack = client.middlewareStack as MiddlewareStack
  stack.add(
    (next) => async (request) => {
      const reply = await next(request)
      told = Date.parse(reply.response?.headers?.['date'] ?? '')
      return reply
    },
    { step: 'deserialize', priority: 'low' },
  )
  return async () => {
    await client.describeTable({ TableName: table }, call())
    if (Number.isNaN(told)) throw new Error('the reply has no Date')
    return told
  }
}

export async function dynamodbChecks(client: DynamodbClient, table: string): Promise<FitnessCheck[]> {
  return [await tableCheck(client, table), await timeToLiveCheck(client, table)]
}

function tableCheck(client: DynamodbClient, table: string): Promise<FitnessCheck> {
  const why =
    'A global table is written in several regions at once, and the last writer wins: a key can be claimed in each of them.'
  return check({ name: 'dynamodb-table', lookedAt: `DescribeTable ${table}`, why }, async () => {
    const { Table: found } = await client.describeTable({ TableName: table }, call())
    const { TableStatus: status, Replicas: replicas = [] } = found as { TableStatus?: string; Replicas?: unknown[] }
    if (replicas.length > 0) {
      return judge(
        'violated',
        `a global table, ${replicas.length} replicas`,
        'Use a table of one region, or one table a region.',
      )
    }
    return judge(
      status === 'ACTIVE' || status === 'UPDATING' ? 'ok' : 'warning',
      `${status}, in one region`,
      'Wait until it is ACTIVE.',
    )
  })
}

function timeToLiveCheck(client: DynamodbClient, table: string): Promise<FitnessCheck> {
  const why = 'What has expired is deleted by DynamoDB itself, free of charge; without that it stays until it is swept.'
  return check({ name: 'dynamodb-time-to-live', lookedAt: `DescribeTimeToLive ${table}`, why }, async () => {
    const { TimeToLiveDescription: found } = await client.describeTimeToLive({ TableName: table }, call())
    const { TimeToLiveStatus: status, AttributeName: attribute } = (found ?? {}) as Record<string, string | undefined>
    const on = (status === 'ENABLED' || status === 'ENABLING') && (attribute ?? 'removeAt') === 'removeAt'
    const words = `${status ?? 'not told'}${attribute === undefined ? '' : ` on ${attribute}`}`
    return judge(on ? 'ok' : 'warning', words, 'onceonly migrate switches it on (attribute removeAt).')
  })
}

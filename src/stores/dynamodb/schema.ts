// The one table. All items of a key are under one partition key, which spreads keys over all partitions. There is no index,
// because every write would pay for it.

import { pausesMs } from '../../core/backoff.ts'
import { sleep } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { call } from './requests.ts'
import type { DynamodbTable } from '../../clients/dynamodb.ts'
import type { DynamodbContext } from './requests.ts'
import { messageOf } from '../failures.ts'

export interface TableSchema {
  readonly createTable: object
  readonly updateTimeToLive: { readonly TableName: string; readonly TimeToLiveSpecification: object }
}

const keySchema = [
  { AttributeName: 'key', KeyType: 'HASH' },
  { AttributeName: 'part', KeyType: 'RANGE' },
] as const

export const timeToLiveAttribute = 'removeAt'

export function tableSchema(table: string): TableSchema {
  return {
    createTable: {
      TableName: table,
      BillingMode: 'PAY_PER_REQUEST',
      KeySchema: keySchema,
      AttributeDefinitions: keySchema.map(({ AttributeName }) => ({ AttributeName, AttributeType: 'S' })),
    },
    updateTimeToLive: {
      TableName: table,
      TimeToLiveSpecification: { AttributeName: timeToLiveAttribute, Enabled: true },
    },
  }
}

/** Creates what is missing. Safe from several processes at once. */
export async function migrate(context: DynamodbContext): Promise<void> {
  if (!(await describeTable(context))) {
    await ignoring('ResourceInUseException', () =>
      call(context, (options) => context.client.createTable(tableSchema(context.table).createTable, options)),
    )
  }
  checkTable(context.table, await whenActive(context))
  await enableTimeToLive(context)
}

// DynamoDB creates a table within seconds, and half a minute is far beyond.
const createMsMax = 30_000

async function whenActive(context: DynamodbContext): Promise<DynamodbTable> {
  const startedMs = context.clock.elapsed()
  for (;;) {
    const found = await describeTable(context)
    // A table that is being updated serves as before.
    if (found?.TableStatus === 'ACTIVE' || found?.TableStatus === 'UPDATING') return found
    if (context.clock.elapsed() - startedMs > createMsMax) {
      throw new OnceError('STORE_UNAVAILABLE', {
        message: `The table ${context.table} was not ready ${createMsMax} ms after it was created (${found?.TableStatus ?? 'it is not there'}). Run migrate() again.`,
      })
    }
    await sleep(context.clock, pausesMs.tableCreation)
  }
}

async function describeTable(context: DynamodbContext): Promise<DynamodbTable | undefined> {
  const found = await ignoring('ResourceNotFoundException', () =>
    call(context, (options) => context.client.describeTable({ TableName: context.table }, options)),
  )
  return found?.Table
}

/** A table with other keys is the table of something else. */
export function hasOurKeys({ KeySchema: found = [] }: DynamodbTable): boolean {
  return (
    found.length === keySchema.length &&
    keySchema.every(({ AttributeName: name, KeyType: type }) =>
      found.some((each) => each.AttributeName === name && each.KeyType === type),
    )
  )
}

function checkTable(table: string, found: DynamodbTable): void {
  if (hasOurKeys(found)) return
  throw new OnceError('SCHEMA_MISSING', {
    message: `The table ${table} is there with other keys (${JSON.stringify(found.KeySchema)}), so it is not ours. Give the store a table of its own.`,
  })
}

async function enableTimeToLive(context: DynamodbContext): Promise<void> {
  const { TimeToLiveDescription: found } = await call(context, (options) =>
    context.client.describeTimeToLive({ TableName: context.table }, options),
  )
  if (found?.TimeToLiveStatus === 'ENABLED' || found?.TimeToLiveStatus === 'ENABLING') return
  try {
    const { updateTimeToLive } = tableSchema(context.table)
    await call(context, (options) => context.client.updateTimeToLive(updateTimeToLive, options))
  } catch (error) {
    // Another process enabled it between our question and this call.
    if (!/already enabled/i.test(messageOf(error))) throw error
  }
}

async function ignoring<T>(name: string, request: () => Promise<T>): Promise<T | undefined> {
  try {
    return await request()
  } catch (error) {
    if (error instanceof Error && error.name === name) return undefined
    throw error
  }
}

// The one table: a key has all of its items under one partition key, which spreads keys over all partitions; no index, as
// every index would be paid for with each write.

import { sleep } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { call } from '../../clients/dynamodb.ts'
import type { DynamodbGround, TableDescription } from '../../clients/dynamodb.ts'
import { messageOf } from './errors.ts'

export interface TableSchema {
  readonly createTable: object
  readonly updateTimeToLive: { readonly TableName: string; readonly TimeToLiveSpecification: object }
}

const keySchema = [
  { AttributeName: 'key', KeyType: 'HASH' },
  { AttributeName: 'part', KeyType: 'RANGE' },
] as const

const timeToLiveAttribute = 'removeAt'

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

/** Makes what is missing; safe from several processes at once. */
export async function migrate(ground: DynamodbGround): Promise<void> {
  if (!(await describeTable(ground))) {
    await ignoring('ResourceInUseException', () =>
      call(ground, (options) => ground.client.createTable(tableSchema(ground.table).createTable, options)),
    )
  }
  checkTable(ground.table, await whenActive(ground))
  await enableTimeToLive(ground)
}

// A table of DynamoDB is there within seconds; half a minute is far beyond.
const createMsMax = 30_000
const pollMs = 200

async function whenActive(ground: DynamodbGround): Promise<TableDescription> {
  const startedMs = ground.clock.elapsed()
  for (;;) {
    const found = await describeTable(ground)
    // A table that is being updated serves as before.
    if (found?.TableStatus === 'ACTIVE' || found?.TableStatus === 'UPDATING') return found
    if (ground.clock.elapsed() - startedMs > createMsMax) {
      throw new OnceError('STORE_UNAVAILABLE', {
        message: `The table ${ground.table} was not ready ${createMsMax} ms after it was created (${found?.TableStatus ?? 'it is not there'}). Run migrate() again.`,
      })
    }
    await sleep(ground.clock, pollMs)
  }
}

async function describeTable(ground: DynamodbGround): Promise<TableDescription | undefined> {
  const found = await ignoring('ResourceNotFoundException', () =>
    call(ground, (options) => ground.client.describeTable({ TableName: ground.table }, options)),
  )
  return found?.Table
}

function checkTable(table: string, { KeySchema: found = [] }: TableDescription): void {
  const isOurs =
    found.length === keySchema.length &&
    keySchema.every(({ AttributeName: name, KeyType: type }) =>
      found.some((each) => each.AttributeName === name && each.KeyType === type),
    )
  if (isOurs) return
  throw new OnceError('SCHEMA_MISSING', {
    message: `The table ${table} is there with other keys (${JSON.stringify(found)}), so it is not ours. Give the store a table of its own.`,
  })
}

async function enableTimeToLive(ground: DynamodbGround): Promise<void> {
  const { TimeToLiveDescription: found } = await call(ground, (options) =>
    ground.client.describeTimeToLive({ TableName: ground.table }, options),
  )
  if (found?.TimeToLiveStatus === 'ENABLED' || found?.TimeToLiveStatus === 'ENABLING') return
  try {
    const { updateTimeToLive } = tableSchema(ground.table)
    await call(ground, (options) => ground.client.updateTimeToLive(updateTimeToLive, options))
  } catch (error) {
    // Another process was there between our question and this.
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

// The writes on DynamoDB keep the contract.
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { AttributeValue, DynamoDB } from '@aws-sdk/client-dynamodb'
import { dynamodbWrites } from '../../src/writes/index.ts'
import { createClient } from '../subjects/dynamodb.ts'
import { startDynamodb } from '../servers/dynamodb.ts'
import { needs } from '../servers/needs.ts'
import { writesContract } from './contract.ts'
import { asTexts, type WritesGround } from './ground.ts'

const keys: Record<string, [name: string, type: 'S' | 'N'][]> = {
  things: [['id', 'S']],
  marks: [['event_id', 'S']],
  event_ids: [['event_id', 'S']],
  events: [
    ['stream', 'S'],
    ['version', 'N'],
  ],
}

async function createTable(client: DynamoDB, table: string): Promise<void> {
  await client.createTable({
    TableName: table,
    BillingMode: 'PAY_PER_REQUEST',
    KeySchema: keys[table]!.map(([name], index) => ({ AttributeName: name, KeyType: index === 0 ? 'HASH' : 'RANGE' })),
    AttributeDefinitions: keys[table]!.map(([name, type]) => ({ AttributeName: name, AttributeType: type })),
  })
}

const plain = (value: AttributeValue): unknown => (value.NULL ? null : Object.values(value)[0])

async function startGround(): Promise<WritesGround & { client: DynamoDB }> {
  const server = await startDynamodb()
  const client = createClient(server.url)
  const writes = dynamodbWrites(client, { eventIdTable: 'event_ids' })
  const scan = async (table: string) => (await client.scan({ TableName: table, ConsistentRead: true })).Items ?? []
  for (const table of Object.keys(keys)) await createTable(client, table)
  return {
    client,
    run: (work) => work(writes),
    async row(table, key) {
      const [column, value] = Object.entries(key)[0]!
      const found = (await scan(table)).find((item) => item[column]?.S === value)
      return found && asTexts(Object.fromEntries(Object.entries(found).map(([name, each]) => [name, plain(each)])))
    },
    async reset() {
      for (const table of Object.keys(keys)) {
        for (const item of await scan(table)) {
          const key = Object.fromEntries(keys[table]!.map(([name]) => [name, item[name]!]))
          await client.deleteItem({ TableName: table, Key: key })
        }
      }
    },
    async [Symbol.asyncDispose]() {
      client.destroy()
      await server.stop()
    },
  }
}

needs('dynamodb').describe('the writes on DynamoDB', () => {
  let ground: Awaited<ReturnType<typeof startGround>>
  beforeAll(async () => void (ground = await startGround()))
  afterAll(() => ground[Symbol.asyncDispose]())

  const none = 'DynamoDB has no transactions that stay open'
  writesContract({
    ground: () => ground,
    cannot: {
      'what is rolled back was not written, and can be written again': none,
      'a write that fails in the middle leaves neither mark nor count': 'every attribute is there once it is counted',
      'is an error, and neither "already" nor a write to the other row': 'DynamoDB has no other unique constraints',
    },
    once: (event) => ({ table: 'marks', key: { event_id: event } }),
  })

  describe('what is DynamoDB alone', () => {
    test('appendOnce wants a table for the event ids, and no write takes a Date', async () => {
      const writes = dynamodbWrites(ground.client)
      const event = { key: { event_id: 'e' }, stream: { stream: 's' }, after: 0 }
      await expect(writes.appendOnce('events', event)).rejects.toThrow(/eventIdTable/)
      const dated = writes.insertOnce('things', { key: { id: 'a' }, set: { name: new Date(0) } })
      await expect(dated).rejects.toThrow(/DynamoDB has no times/)
    })

    test('bytes, booleans and a null that is a missing attribute are compared as what they are', async () => {
      await ground.reset()
      const writes = dynamodbWrites(ground.client)
      const key = { id: 'a' }
      const set = { name: Uint8Array.of(1, 2), note: true }
      expect(await writes.upsert('things', { key, set })).toBe('applied')
      expect(await writes.upsert('things', { key, set })).toBe('already')
      const swap = { key, expect: { email: null, note: true }, set: { name: Uint8Array.of(3), visits: 1e21 } }
      expect(await writes.compareAndSet('things', swap)).toBe('applied')
      expect(await writes.compareAndSet('things', { ...swap, set: { name: Uint8Array.of(3) } })).toBe('already')
    })
  })
})

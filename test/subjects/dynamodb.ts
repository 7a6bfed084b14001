// What the DynamoDB store lends to the contract: one server for a test file, an empty table for each case, and a clock that
// stands still. The clock is the process's own, as DynamoDB has none; a second process may have another.
import { randomBytes } from 'node:crypto'
import { DynamoDB } from '@aws-sdk/client-dynamodb'
import { systemClock } from '../../src/core/clock.ts'
import {
  dynamodbStore,
  type DynamodbStore,
  type DynamodbStoreOptions,
  type DynamodbTransaction,
} from '../../src/stores/dynamodb.ts'
import type { ContractSubject } from '../../src/testing/store-contract.ts'
import { startDynamodb } from '../servers/dynamodb.ts'
import { type FaultProxy, startFaultProxy } from '../servers/fault-proxy.ts'
import type { Running } from '../servers/server.ts'
import type { DumpedSubject } from './swept.ts'

export interface DynamodbGround extends AsyncDisposable {
  readonly server: Running
  readonly proxy: FaultProxy
  // Straight to the server, for the tests' own questions.
  readonly admin: DynamoDB
  createSubject(options?: StoreOptions): Promise<DynamodbSubject>
}

export interface DynamodbSubject extends DumpedSubject {
  readonly store: DynamodbStore
  readonly table: string
  open(process: { clockSkewMs: number }, options?: StoreOptions): DynamodbStore
}

export type StoreOptions = Omit<Partial<DynamodbStoreOptions>, 'client' | 'table' | 'clock'>

// A busy machine must not look like a server that does not answer: a thousand claims wait for their turn in the SDK.
const timeoutMs = 60_000

export function createClient(url: string): DynamoDB {
  return new DynamoDB({
    endpoint: url,
    region: 'local',
    credentials: { accessKeyId: 'onceonly', secretAccessKey: 'onceonly' },
    requestHandler: { socketAcquisitionWarningTimeout: timeoutMs },
  })
}

export async function startDynamodbGround(): Promise<DynamodbGround> {
  const server = await startDynamodb()
  const proxy = await startFaultProxy({ target: server })
  const admin = createClient(server.url)
  return {
    server,
    proxy,
    admin,
    createSubject: (options = {}) => createSubject({ server, proxy, admin }, options),
    async [Symbol.asyncDispose]() {
      admin.destroy()
      await proxy.close()
      await server.stop()
    },
  }
}

type Around = Pick<DynamodbGround, 'server' | 'proxy' | 'admin'>

async function createSubject({ server, proxy, admin }: Around, options: StoreOptions): Promise<DynamodbSubject> {
  const table = `onceonly-${randomBytes(6).toString('hex')}`
  // From the real time on: what lies in the past, the server's own TTL removes.
  let now = systemClock.now()
  const clients: DynamoDB[] = []
  const open = (process: { clockSkewMs: number }, more: StoreOptions = {}): DynamodbStore => {
    const client = createClient(proxy.url)
    clients.push(client)
    // The time of entries stands still; waiting for the server takes the time it takes.
    const clock = { ...systemClock, now: () => now + process.clockSkewMs }
    return dynamodbStore({ client, table, clock, clockSkewMs: 0, timeoutMs, ...options, ...more })
  }
  const store = open({ clockSkewMs: 0 })
  await store.migrate()
  // Beside the entries, under a name that is no key's: a table of its own would cost every case its creation.
  const effectKey = (name: string) => ({ key: { S: `effect of the test: ${name}` }, part: { S: 'effect' } })
  return {
    store,
    table,
    open,
    another: async (process) => open({ clockSkewMs: process?.clockSkewMs ?? 0 }),
    async advance(ms) {
      now += ms
    },
    async corrupt({ scope, id }, bytes) {
      await admin.updateItem({
        TableName: table,
        Key: { key: { S: `${scope}\n${id}` }, part: { S: 'entry' } },
        UpdateExpression: 'SET outcome = :bytes',
        ExpressionAttributeValues: { ':bytes': { B: bytes } },
      })
    },
    collecting: {
      addEffect: (tx, name) =>
        (tx as DynamodbTransaction).update({
          TableName: table,
          Key: effectKey(name),
          UpdateExpression: 'ADD #count :one',
          ExpressionAttributeNames: { '#count': 'count' },
          ExpressionAttributeValues: { ':one': { N: '1' } },
        }),
      addRefused: (tx) =>
        (tx as DynamodbTransaction).check({
          TableName: table,
          Key: effectKey('that nobody has written'),
          ConditionExpression: 'attribute_exists(#key)',
          ExpressionAttributeNames: { '#key': 'key' },
        }),
      async countEffects(name) {
        const { Item } = await admin.getItem({ TableName: table, Key: effectKey(name), ConsistentRead: true })
        return Number(Item?.['count']?.N ?? 0)
      },
    },
    async dump() {
      const { Items = [] } = await admin.scan({ TableName: table, ConsistentRead: true })
      return Items.map((item) => Object.values(item).map((attribute) => Object.values(attribute)[0] as unknown))
    },
    faults: faults(server, proxy),
    async destroy() {
      await proxy.setMode('pass')
      for (const client of clients) client.destroy()
      await admin.deleteTable({ TableName: table })
    },
  }
}

function faults(server: Running, proxy: FaultProxy): NonNullable<ContractSubject['faults']> {
  return {
    async crashServer() {
      await server.crash()
      await server.restart()
    },
    async cutOff() {
      await proxy.setMode('refuse')
      proxy.resetConnections()
    },
    heal: () => proxy.setMode('pass'),
    async cutAtCommit() {
      throw new Error('DynamoDB has no COMMIT to cut at')
    },
    // A reply is one chunk, or its first is lost, which is as good.
    async dropNextReply() {
      proxy.cutAt({ direction: 'reply', side: 'before' })
    },
  }
}

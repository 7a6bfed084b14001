// Several processes on one table, how the table is made, and what is refused at the start.

import { spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { DynamoDBClient } from '@aws-sdk/client-dynamodb'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import {
  createClient,
  startDynamodbGround,
  type DynamodbGround,
  type DynamodbSubject,
} from '../../../test/subjects/dynamodb.ts'
import { needs } from '../../../test/servers/needs.ts'
import { aKey, assertSettled, ask, bytesOf, failureOf, finish } from '../../testing/store-contract.ts'
import { dynamodbStore } from '../dynamodb.ts'

interface Child {
  line(): Promise<string>
  say(line: string): void
}

/** Another process that claims one key 500 times at once when it is told to, settles what it is granted, and tells. */
function startClaimer(url: string, table: string): Child {
  const of = (path: string): string => JSON.stringify(new URL(path, import.meta.url).href)
  const code = `
    import { createInterface } from 'node:readline'
    import { createClient } from ${of('../../../test/subjects/dynamodb.ts')}
    import { dynamodbStore } from ${of('../dynamodb.ts')}
    import { aKey, bytesOf, request, retention } from ${of('../../testing/store-contract.ts')}
    const [url, table] = process.argv.slice(1)
    const store = dynamodbStore({ client: createClient(url), table, timeoutMs: 60_000 })
    const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
    await store.show(aKey)
    process.stdout.write('ready\\n')
    await lines.next()
    const verdicts = await Promise.all(Array.from({ length: 500 }, async () => {
      const verdict = await store.claim(aKey, request())
      if (verdict.is === 'granted') await store.settle(verdict.claim, bytesOf(verdict.claim.token), retention)
      return verdict.is
    }))
    process.stdout.write(JSON.stringify(verdicts) + '\\n')
    process.exit()
  `
  const child = spawn(process.execPath, ['--input-type=module', '-e', code, url, table], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  return {
    line: async () => String((await lines.next()).value),
    say: (line) => void child.stdin.write(`${line}\n`),
  }
}

needs('dynamodb').describe('DynamoDB and several processes', () => {
  let ground: DynamodbGround
  let subject: DynamodbSubject
  beforeAll(async () => {
    ground = await startDynamodbGround()
  })
  afterAll(async () => {
    await ground[Symbol.asyncDispose]()
  })
  beforeEach(async () => {
    subject = await ground.createSubject()
  })
  afterEach(() => subject.destroy())

  test('of 1,000 claims of one key by two processes at once, one is granted', async () => {
    const children = [startClaimer(ground.server.url, subject.table), startClaimer(ground.server.url, subject.table)]
    for (const child of children) expect(await child.line()).toBe('ready')
    for (const child of children) child.say('go')
    const answers = await Promise.all(children.map(async (child) => JSON.parse(await child.line()) as string[]))
    const counts = Object.groupBy(answers.flat(), (is) => is)
    expect(counts['granted']).toHaveLength(1)
    expect(Object.keys(counts).filter((is) => !['granted', 'busy', 'settled'].includes(is))).toEqual([])
    expect((await ask(subject.store, aKey)).is).toBe('settled')
  })

  test('migrate can be run by several processes at once, and again, and turns TTL on', async () => {
    const table = `${subject.table}-new`
    const stores = Array.from({ length: 5 }, () =>
      dynamodbStore({ client: createClient(ground.server.url), table, timeoutMs: 60_000 }),
    )
    await Promise.all(stores.map((store) => store.migrate()))
    await finish(stores[0]!, aKey, bytesOf('kept'))
    await stores[1]!.migrate()
    assertSettled(await ask(stores[2]!, aKey), bytesOf('kept'))
    const { TimeToLiveDescription } = await ground.admin.describeTimeToLive({ TableName: table })
    expect(TimeToLiveDescription).toMatchObject({ TimeToLiveStatus: 'ENABLED', AttributeName: 'removeAt' })
    await ground.admin.deleteTable({ TableName: table })
  })

  test('schema() is what creates the table, for those who do it themselves', async () => {
    const table = `${subject.table}-own`
    const store = dynamodbStore({ client: createClient(ground.server.url), table, timeoutMs: 60_000 })
    const { createTable, updateTimeToLive } = JSON.parse(store.schema())
    await ground.admin.createTable(createTable)
    await ground.admin.updateTimeToLive(updateTimeToLive)
    await finish(store, aKey, bytesOf('kept'))
    await store.migrate()
    assertSettled(await ask(store, aKey), bytesOf('kept'))
    await ground.admin.deleteTable({ TableName: table })
  })

  test('a table with other keys is not touched', async () => {
    const table = `${subject.table}-theirs`
    await ground.admin.createTable({
      TableName: table,
      BillingMode: 'PAY_PER_REQUEST',
      KeySchema: [{ AttributeName: 'id', KeyType: 'HASH' }],
      AttributeDefinitions: [{ AttributeName: 'id', AttributeType: 'S' }],
    })
    const store = dynamodbStore({ client: createClient(ground.server.url), table, timeoutMs: 60_000 })
    const error = await failureOf(store.migrate())
    expect(error.code).toBe('SCHEMA_MISSING')
    expect(error.message).toContain('Give the store a table of its own')
    await ground.admin.deleteTable({ TableName: table })
  })
})

describe('the options of dynamodbStore', () => {
  const client = createClient('http://127.0.0.1:1')

  test.each([
    [
      { client: new DynamoDBClient({ region: 'local' }) },
      'expected client to be a DynamoDB of @aws-sdk/client-dynamodb (write `new DynamoDB(…)` for `new DynamoDBClient(…)`',
    ],
    [{ table: 'x' }, 'expected table to be the name of a table'],
    [{ clockSkew: 5 }, 'unknown option "clockSkew", did you mean "clockSkewMs"?'],
    [{ clockSkewMs: -1 }, 'expected clockSkewMs to be a positive integer of milliseconds, got -1'],
    [{ expects: 'replay' }, 'expected expects to be "fresh" or "replays", did you mean "replays"?, got "replay"'],
  ])('%# is refused with what was expected', (options, message) => {
    expect(() => dynamodbStore({ client, table: 'onceonly', ...options } as never)).toThrow(message)
  })

  test('a table may be named by its ARN', () => {
    dynamodbStore({ client, table: 'arn:aws:dynamodb:eu-central-1:123456789012:table/onceonly' })
  })
})

// How often DynamoDB is asked, and for what: each request is paid for.

import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { createClient, startDynamodbGround } from '../../../test/subjects/dynamodb.ts'
import type { DynamodbGround, DynamodbSubject } from '../../../test/subjects/dynamodb.ts'
import { needs } from '../../../test/servers/needs.ts'
import { aKey, ask, assertGranted, assertSettled, bytesOf, retention, take } from '../../testing/store-contract.ts'
import { dynamodbStore } from '../dynamodb.ts'
import type { DynamodbClient, DynamodbStore, DynamodbStoreOptions } from '../dynamodb.ts'

needs('dynamodb').describe('the requests of the DynamoDB store', () => {
  let ground: DynamodbGround
  let subject: DynamodbSubject
  let sent: string[]
  const closing: (() => void)[] = []
  beforeAll(async () => {
    ground = await startDynamodbGround()
  })
  afterAll(() => ground[Symbol.asyncDispose]())
  beforeEach(async () => {
    subject = await ground.createSubject()
    sent = []
  })
  afterEach(() => {
    for (const close of closing.splice(0)) close()
    return subject.destroy()
  })

  /** A store whose requests are written down. Those in `instead` are answered here. */
  function watched(
    options: Partial<DynamodbStoreOptions> = {},
    instead: Readonly<Record<string, object>> = {},
  ): DynamodbStore {
    const client = createClient(ground.server.url)
    closing.push(() => client.destroy())
    const asked = new Proxy(client, {
      get(target, name: string) {
        const method = Reflect.get(target, name) as (...given: unknown[]) => unknown
        if (typeof method !== 'function') return method
        return (...given: unknown[]) => {
          sent.push(name)
          const answer = instead[name]
          if (answer instanceof Error) return Promise.reject(answer)
          return answer ? Promise.resolve(answer) : method.apply(target, given)
        }
      },
    })
    return dynamodbStore({ client: asked as DynamodbClient, table: subject.table, timeoutMs: 60_000, ...options })
  }

  /** The table is looked at once for each store. */
  const ofKeys = (): readonly string[] => sent.splice(0).filter((name) => name.endsWith('Item'))

  describe.each([
    ['fresh', { fresh: ['putItem'], replay: ['putItem'] }],
    ['replays', { fresh: ['getItem', 'putItem'], replay: ['getItem'] }],
  ] as const)('a store that expects %s', (expects, cost) => {
    test('asks as often as its docs say', async () => {
      const store = watched({ expects })
      const claim = await take(store, aKey)
      expect(ofKeys()).toEqual(cost.fresh)
      expect(await store.settle(claim, bytesOf('once'), retention)).toBe('done')
      expect(ofKeys()).toEqual(['updateItem'])
      assertSettled(await ask(store, aKey), bytesOf('once'))
      expect(ofKeys()).toEqual(cost.replay)
    })
  })

  test('a table whose expired items are removed already is not asked to remove them again', async () => {
    for (const TimeToLiveStatus of ['ENABLED', 'ENABLING']) {
      await watched({}, { describeTimeToLive: { TimeToLiveDescription: { TimeToLiveStatus } } }).migrate()
      expect(sent.splice(0)).toEqual(['describeTable', 'describeTable', 'describeTimeToLive'])
    }
  })

  test('of two processes that migrate at once the later one finds it done', async () => {
    const outdated = { describeTimeToLive: { TimeToLiveDescription: { TimeToLiveStatus: 'DISABLED' } } }
    await watched({}, outdated).migrate()
    expect(sent.splice(0).at(-1)).toBe('updateTimeToLive')
    assertGranted(await ask(subject.store, aKey), 'fresh', 1)
    const refused = { ...outdated, updateTimeToLive: new Error('the table is being restored') }
    await expect(watched({}, refused).migrate()).rejects.toThrow(
      'DynamoDB could not migrate: the table is being restored.',
    )
  })
})

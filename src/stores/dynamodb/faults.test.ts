// Throttling, lost replies and silence. A request that the SDK sends again although it had landed recognises itself by its
// token; what cannot be had is an error, soon, and says so.

import { DynamoDB } from '@aws-sdk/client-dynamodb'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test, vi } from 'vitest'
import { type Relay, startRelay } from '../../../test/subjects/dynamodb/relay.ts'
import {
  createClient,
  startDynamodbGround,
  type DynamodbGround,
  type DynamodbSubject,
} from '../../../test/subjects/dynamodb.ts'
import { needs } from '../../../test/servers/needs.ts'
import { systemRandom } from '../../core/clock.ts'
import { createOnce } from '../../core/once.ts'
import {
  aKey,
  ask,
  assertBusy,
  assertGranted,
  assertSettled,
  bounded,
  bytesOf,
  failureOf,
  grantedOf,
  leaseMs,
  request,
  retention,
  take,
} from '../../testing/store-contract.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import { dynamodbStore } from '../dynamodb.ts'
import type { DynamodbClient, DynamodbStore } from '../dynamodb.ts'

const throttled = { error: 'ProvisionedThroughputExceededException' }

needs('dynamodb').describe('DynamoDB under faults', () => {
  let ground: DynamodbGround
  let subject: DynamodbSubject
  let relay: Relay
  let relayed: DynamodbStore
  beforeAll(async () => {
    ground = await startDynamodbGround()
  })
  afterAll(async () => {
    await ground[Symbol.asyncDispose]()
  })
  beforeEach(async () => {
    subject = await ground.createSubject()
    relay = await startRelay(ground.server.url)
    relayed = dynamodbStore({ client: createClient(relay.url), table: subject.table, timeoutMs: 60_000 })
  })
  afterEach(async () => {
    await relay[Symbol.asyncDispose]()
    await subject.destroy()
  })

  for (const { error } of [throttled, { error: 'ThrottlingException' }, { error: 'RequestLimitExceeded' }]) {
    test(`a claim and its settle that ${error} refused once go through`, async () => {
      relay.answer('PutItem', { error }, 1)
      relay.answer('UpdateItem', { error }, 1)
      const claim = assertGranted(await ask(relayed, aKey), 'fresh', 1)
      expect(await relayed.settle(claim, bytesOf('once'), retention)).toBe('done')
      expect(relay.asked).toMatchObject({ PutItem: 2, UpdateItem: 2 })
      assertSettled(await ask(relayed, aKey), bytesOf('once'))
    })
  }

  test('a claim that landed and was answered with throttling is granted by the retry of the SDK: one attempt', async () => {
    relay.answer('PutItem', throttled, 1, 'landed')
    assertGranted(await ask(relayed, aKey), 'fresh', 1)
    expect(relay.asked['PutItem']).toBeGreaterThanOrEqual(2)
    assertBusy(await ask(relayed, aKey), leaseMs)
  })

  test('a takeover that landed and was answered with throttling is the same attempt', async () => {
    // It reads first, so that its next write is the one that reopens.
    const reading = dynamodbStore({ client: createClient(relay.url), table: subject.table, expects: 'replays' })
    await reading.release(await take(reading, aKey), 'open')
    const before = relay.asked['PutItem']!
    relay.answer('PutItem', throttled, 1, 'landed')
    assertGranted(await ask(reading, aKey), 'reopened', 2)
    expect(relay.asked['PutItem']).toBeGreaterThanOrEqual(before + 2)
    assertBusy(await ask(reading, aKey), leaseMs)
  })

  test('writes of a holder that landed and were answered with throttling are done', async () => {
    const claim = await take(relayed, aKey)
    relay.answer('UpdateItem', throttled, 1, 'landed')
    expect(await relayed.extend(claim, leaseMs)).toBe('done')
    relay.answer('UpdateItem', throttled, 1, 'landed')
    expect(await relayed.settle(claim, bytesOf('once'), retention)).toBe('done')
    const other = { scope: 'contract', id: 'another key' }
    for (const how of ['open', 'forget'] as const) {
      const released = await take(relayed, other)
      relay.answer('UpdateItem', throttled, 1, 'landed')
      expect(await relayed.release(released, how)).toBe('done')
    }
    expect(relay.asked['UpdateItem']).toBeGreaterThanOrEqual(8)
    assertSettled(await ask(relayed, aKey), bytesOf('once'))
  })

  test('a table that stays throttled is STORE_UNAVAILABLE, to be retried, and says what to do', async () => {
    relay.answer('PutItem', throttled, 100) // more often than any release of the SDK tries
    const error = await failureOf(ask(relayed, aKey))
    expect([error.code, error.executed, error.retryable]).toEqual(['STORE_UNAVAILABLE', 'no', true])
    expect(error.message).toMatch(
      /ProvisionedThroughputExceededException.* The table is throttled: give it more capacity/,
    )
  })

  test('a key that is in somebody’s transaction at this moment is busy', async () => {
    relay.answer('PutItem', { error: 'TransactionConflictException' }, 1)
    assertBusy(await ask(relayed, aKey), 1_000)
    assertGranted(await ask(relayed, aKey), 'fresh', 1)
  })

  test.each([
    'AccessDeniedException',
    'ExpiredTokenException',
    'IncompleteSignatureException',
    'InvalidSignatureException',
    'MissingAuthenticationTokenException',
    'RequestExpired',
    'UnrecognizedClientException',
  ])('%s is no matter of retries, and the cure is named', async (error) => {
    relay.answer('PutItem', { error }, 1)
    const refused = await failureOf(ask(relayed, aKey))
    expect(refused).toMatchObject({ code: 'STORE_UNAVAILABLE', executed: 'no', retryable: false })
    expect(refused.message).toMatch(/Correct the credentials, the rights \(IAM\) or the region .* or the clock/)
  })

  test('a client without credentials, or with TLS to a server that has none, is no matter of retries', async () => {
    // The SDK finds no credentials anywhere on this machine.
    const nowhere = {
      AWS_EC2_METADATA_DISABLED: 'true',
      AWS_SHARED_CREDENTIALS_FILE: '/dev/null',
      AWS_CONFIG_FILE: '/dev/null',
      AWS_ACCESS_KEY_ID: undefined,
      AWS_PROFILE: undefined,
    }
    for (const [name, value] of Object.entries(nowhere)) vi.stubEnv(name, value)
    const clients = [
      new DynamoDB({ endpoint: ground.server.url, region: 'local' }),
      createClient(ground.server.url.replace('http:', 'https:')),
    ]
    for (const client of clients) {
      const refused = await failureOf(ask(dynamodbStore({ client, table: subject.table }), aKey))
      expect(refused).toMatchObject({ code: 'STORE_UNAVAILABLE', executed: 'no', retryable: false })
      client.destroy()
    }
    vi.unstubAllEnvs()
  })

  test('credentials that are renewed while an outcome waits to be stored let it through: one effect', async () => {
    const once = createOnce({ store: relayed, scope: 'shop', waitMs: 0, sweepEveryMs: false })
    let runs = 0
    const run = () =>
      once.run('order-1', () => {
        relay.answer('UpdateItem', { error: 'ExpiredTokenException' }, 2)
        return ++runs
      })
    expect(await run()).toMatchObject({ value: 1, replayed: false })
    expect(await run()).toMatchObject({ value: 1, replayed: true })
    const commit = await once.transaction('order-2', (tx) => {
      relay.answer('TransactWriteItems', { error: 'ExpiredTokenException' }, 2)
      tx.put({ TableName: subject.table, Item: { key: { S: 'of the test' }, part: { S: 'effect' } } })
    })
    expect(commit).toMatchObject({ replayed: false, attempt: 1 })
    await once.close()
  })

  test('every call whose reply is lost is sent again by the SDK and answered as if nothing had been', async () => {
    const { store } = subject
    const losingReply = async <T>(work: () => Promise<T>): Promise<T> => {
      const cut = ground.proxy.cutAt({ direction: 'reply', side: 'before' })
      const answer = await work()
      await cut.happened
      return answer
    }
    const asked = request()
    const claim = assertGranted(await losingReply(() => store.claim(aKey, asked)), 'fresh', 1)
    expect(await losingReply(() => store.extend(claim, leaseMs))).toBe('done')
    expect(await losingReply(() => store.release(claim, 'open'))).toBe('done')
    const second = assertGranted(await losingReply(() => ask(store, aKey)), 'reopened', 2)
    expect(await losingReply(() => store.settle(second, bytesOf('once'), retention))).toBe('done')
    assertSettled(await losingReply(() => ask(store, aKey)), bytesOf('once'))
  })

  test('a server that says nothing is STORE_UNAVAILABLE after timeoutMs, and the key is free for the next', async () => {
    const hasty = subject.open({ clockSkewMs: 0 }, { timeoutMs: 200 })
    await ground.proxy.setMode('blackHole')
    const error = await failureOf(bounded('a claim into a black hole', ask(hasty, aKey)))
    expect([error.code, error.executed]).toEqual(['STORE_UNAVAILABLE', 'no'])
    expect(error.message).toContain('no answer within 200 ms')
    await ground.proxy.setMode('pass')
    assertGranted(await ask(subject.store, aKey), 'fresh', 1)
  })

  test('a claim that stood still before it renewed what it had seen does not bring that back in a later life of its token', async () => {
    // Of the next century: TTL, which goes by the real time, removes what is over.
    const clock = manualClock(4_200_000_000_000)
    const open = (client: DynamodbClient): DynamodbStore => dynamodbStore({ client, table: subject.table, clock })
    const store = open(ground.admin)
    const asked = request()
    const zombie = grantedOf(await store.claim(aKey, asked))
    let puts = 0
    let revived = zombie
    const putItem: DynamodbClient['putItem'] = async (input) => {
      // The first is refused with what is there; the second would write that with its lease anew.
      if (++puts === 2) {
        clock.setNow(clock.now() + 2 * (leaseMs + retention.keepMs + retention.tombstoneMs))
        await store.sweep({ limit: 10 })
        revived = grantedOf(await store.claim(aKey, asked))
      }
      return ground.admin.putItem(input)
    }
    const stalled = open(Object.create(ground.admin, { putItem: { value: putItem } }) as DynamodbClient)
    expect(grantedOf(await stalled.claim(aKey, asked))).toEqual(revived)
    expect(revived.fence).toBeGreaterThan(zombie.fence)
    expect(await store.settle(zombie, bytesOf('zombie'), retention)).toBe('lost')
    expect(await store.settle(revived, bytesOf('revived'), retention)).toBe('done')
  })

  test('a table that is missing is SCHEMA_MISSING with its cure', async () => {
    const lost = dynamodbStore({ client: createClient(ground.server.url), table: 'not-there', timeoutMs: 60_000 })
    const error = await failureOf(ask(lost, aKey))
    expect(error.code).toBe('SCHEMA_MISSING')
    expect(error.message).toContain('await store.migrate()')
    expect(
      await lost
        .settle({ key: aKey, token: systemRandom.uuid(), attempt: 1, fence: 1 }, bytesOf(''), retention)
        .catch((each: unknown) => each),
    ).toMatchObject({ code: 'SCHEMA_MISSING' })
  })
})

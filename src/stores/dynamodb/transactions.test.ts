// settleWith: the outcome and the caller's own items are written together or not at all.

import { TransactionCanceledException, type TransactWriteItem } from '@aws-sdk/client-dynamodb'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { startRelay } from '../../../test/subjects/dynamodb/relay.ts'
import {
  createClient,
  startDynamodbGround,
  type DynamodbGround,
  type DynamodbSubject,
} from '../../../test/subjects/dynamodb.ts'
import { needs } from '../../../test/servers/needs.ts'
import { systemRandom } from '../../core/clock.ts'
import {
  aKey,
  ask,
  assertBusy,
  assertGranted,
  assertSettled,
  bytesOf,
  failureOf,
  grantedOf,
  leaseMs,
  request,
  retention,
  take,
} from '../../testing/store-contract.ts'
import { dynamodbStore } from '../dynamodb.ts'

needs('dynamodb').describe('settleWith', () => {
  // Its own, also on a server that others use.
  const effects = `effects-${systemRandom.uuid()}`
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
    await ground.admin.createTable({
      TableName: effects,
      BillingMode: 'PAY_PER_REQUEST',
      KeySchema: [{ AttributeName: 'name', KeyType: 'HASH' }],
      AttributeDefinitions: [{ AttributeName: 'name', AttributeType: 'S' }],
    })
  })
  afterEach(async () => {
    await ground.admin.deleteTable({ TableName: effects })
    await subject.destroy()
  })

  // A counter, so that an effect that came twice shows.
  const effect = (name: string): TransactWriteItem => ({
    Update: {
      TableName: effects,
      Key: { name: { S: name } },
      UpdateExpression: 'ADD #count :one',
      ExpressionAttributeNames: { '#count': 'count' },
      ExpressionAttributeValues: { ':one': { N: '1' } },
    },
  })
  const countOf = async (name: string): Promise<number> => {
    const { Item } = await ground.admin.getItem({
      TableName: effects,
      Key: { name: { S: name } },
      ConsistentRead: true,
    })
    return Number(Item?.['count']?.N ?? 0)
  }

  test('writes the outcome and the items together', async () => {
    const claim = await take(subject.store, aKey)
    expect(await subject.store.settleWith(claim, bytesOf('once'), retention, [effect('a'), effect('b')])).toBe('done')
    expect([await countOf('a'), await countOf('b')]).toEqual([1, 1])
    assertSettled(await ask(subject.store, aKey), bytesOf('once'))
  })

  test('repeated with its token is done, and the items are not written again', async () => {
    const claim = await take(subject.store, aKey)
    for (let round = 0; round < 3; round++) {
      expect(await subject.store.settleWith(claim, bytesOf('once'), retention, [effect('a')])).toBe('done')
    }
    expect(await countOf('a')).toBe(1)
  })

  test('of a holder that was taken over is lost and writes nothing', async () => {
    const zombie = await take(subject.store, aKey)
    await subject.advance(2 * leaseMs)
    const holder = await take(subject.store, aKey)
    expect(await subject.store.settleWith(zombie, bytesOf('zombie'), retention, [effect('a')])).toBe('lost')
    expect(await countOf('a')).toBe(0)
    expect(await subject.store.settleWith(holder, bytesOf('holder'), retention, [effect('a')])).toBe('done')
    expect(await countOf('a')).toBe(1)
  })

  test('of a holder whose claim came once more, and has the key again, is lost and writes nothing', async () => {
    const { store } = subject
    const asked = request()
    const zombie = grantedOf(await store.claim(aKey, asked))
    await subject.advance(2 * leaseMs)
    expect(await store.release(await take(store, aKey), 'open')).toBe('done')
    const revived = assertGranted(await store.claim(aKey, asked), 'reopened', 3)
    expect(revived.token).toBe(zombie.token)
    expect(await store.settleWith(zombie, bytesOf('zombie'), retention, [effect('a')])).toBe('lost')
    expect(await store.settleWith(revived, bytesOf('revived'), retention, [effect('a')])).toBe('done')
    expect(await store.settleWith(zombie, bytesOf('zombie'), retention, [effect('a')])).toBe('lost')
    expect(await countOf('a')).toBe(1)
    assertSettled(await ask(store, aKey), bytesOf('revived'))
  })

  test('an outcome that lies apart is settled with the items, too', async () => {
    const outcome = new Uint8Array(2 ** 20).fill(7)
    const claim = await take(subject.store, aKey)
    expect(await subject.store.settleWith(claim, outcome, retention, [effect('a')])).toBe('done')
    assertSettled(await ask(subject.store, aKey), outcome)
  })

  test('a condition of the caller that does not hold is thrown as it is, and the key is still held', async () => {
    const claim = await take(subject.store, aKey)
    const refused: TransactWriteItem = {
      ConditionCheck: {
        TableName: effects,
        Key: { name: { S: 'funds' } },
        ConditionExpression: 'attribute_exists(#name)',
        ExpressionAttributeNames: { '#name': 'name' },
      },
    }
    const error: unknown = await subject.store
      .settleWith(claim, bytesOf('once'), retention, [effect('a'), refused])
      .catch((each: unknown) => each)
    expect(error).toBeInstanceOf(TransactionCanceledException)
    const reasons = (error as TransactionCanceledException).CancellationReasons
    expect(reasons?.map((reason) => reason.Code)).toEqual(['None', 'ConditionalCheckFailed', 'None'])
    expect(await countOf('a')).toBe(0)
    assertBusy(await ask(subject.store, aKey), leaseMs)
    expect(await subject.store.settle(claim, bytesOf('no funds'), retention)).toBe('done')
    assertSettled(await ask(subject.store, aKey), bytesOf('no funds'))
  })

  test('whose reply is lost is sent again by the SDK and is done once', async () => {
    const claim = await take(subject.store, aKey)
    const cut = ground.proxy.cutAt({ direction: 'reply', side: 'before' })
    expect(await subject.store.settleWith(claim, bytesOf('once'), retention, [effect('a')])).toBe('done')
    await cut.happened
    expect(await countOf('a')).toBe(1)
  })

  test('that cannot be known to have happened is OUTCOME_UNKNOWN, and tells when it is called again', async () => {
    const claim = await take(subject.store, aKey)
    const cut = ground.proxy.cutAt({ direction: 'reply', side: 'before' })
    void cut.happened.then(() => subject.faults!.cutOff())
    const settle = () => subject.store.settleWith(claim, bytesOf('once'), retention, [effect('a')])
    expect(await failureOf(settle())).toMatchObject({ code: 'OUTCOME_UNKNOWN', executed: 'unknown', retryable: true })
    await subject.faults!.heal()
    expect(await settle()).toBe('done')
    expect(await countOf('a')).toBe(1)
  })

  test('that meets another transaction is TRANSACTION_CONFLICT and can be called again', async () => {
    await using relay = await startRelay(ground.server.url)
    const store = dynamodbStore({ client: createClient(relay.url), table: subject.table, timeoutMs: 60_000 })
    const claim = await take(store, aKey)
    const conflict = {
      error: 'TransactionCanceledException',
      reasons: [{ Code: 'TransactionConflict' }, { Code: 'None' }],
    }
    relay.answer('TransactWriteItems', conflict, 1)
    const error = await failureOf(store.settleWith(claim, bytesOf('once'), retention, [effect('a')]))
    expect([error.code, error.executed, error.retryable]).toEqual(['TRANSACTION_CONFLICT', 'no', true])
    expect(await store.settleWith(claim, bytesOf('once'), retention, [effect('a')])).toBe('done')
    expect(await countOf('a')).toBe(1)
  })

  test('takes 1 to 99 items', async () => {
    const claim = await take(subject.store, aKey)
    for (const count of [0, 100]) {
      const items = Array.from({ length: count }, (_, index) => effect(`${index}`))
      const error = await failureOf(subject.store.settleWith(claim, bytesOf('once'), retention, items))
      expect(error.message).toBe(`settleWith: expected 1 to 99 items, got ${count}`)
    }
    const most = Array.from({ length: 99 }, (_, index) => effect(`${index}`))
    expect(await subject.store.settleWith(claim, bytesOf('once'), retention, most)).toBe('done')
  })
})

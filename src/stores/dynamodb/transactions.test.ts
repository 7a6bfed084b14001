// settleWith, and once.transaction over it: the outcome and the caller's own items are written together or not at all.

import { TransactionCanceledException, type TransactWriteItem } from '@aws-sdk/client-dynamodb'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type Relay, startRelay } from '../../../test/subjects/dynamodb/relay.ts'
import {
  createClient,
  startDynamodbGround,
  type DynamodbGround,
  type DynamodbSubject,
} from '../../../test/subjects/dynamodb.ts'
import { needs } from '../../../test/servers/needs.ts'
import { systemRandom } from '../../core/clock.ts'
import { FinalError } from '../../core/errors.ts'
import { key } from '../../core/key.ts'
import { createOnce } from '../../core/once.ts'
import type { OnceOptions } from '../../core/settings.ts'
import { idempotency } from '../../http/fetch.ts'
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
import type { DynamodbStore, DynamodbTransaction } from '../dynamodb.ts'

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
  const funds = {
    TableName: effects,
    Key: { name: { S: 'funds' } },
    ConditionExpression: 'attribute_exists(#name)',
    ExpressionAttributeNames: { '#name': 'name' },
  }
  const isThere = async (name: string): Promise<boolean> =>
    (await ground.admin.getItem({ TableName: effects, Key: { name: { S: name } }, ConsistentRead: true })).Item !==
    undefined
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

  test('a condition of the caller that does not hold is COMMIT_REFUSED with the reasons, and the key is still held', async () => {
    const claim = await take(subject.store, aKey)
    const refused: TransactWriteItem = { ConditionCheck: funds }
    const settle = subject.store.settleWith(claim, bytesOf('once'), retention, [effect('a'), refused])
    const error = await failureOf(settle)
    expect([error.code, error.executed, error.retryable]).toEqual(['COMMIT_REFUSED', 'no', false])
    expect(error.message).toContain(
      `item 2 (ConditionCheck of ${effects}): ConditionalCheckFailed (The conditional request failed`,
    )
    expect(error.cause).toBeInstanceOf(TransactionCanceledException)
    const reasons = (error.cause as TransactionCanceledException).CancellationReasons
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

  test('takes up to 99 items, and without any it is a settle', async () => {
    const claim = await take(subject.store, aKey)
    const items = Array.from({ length: 100 }, (_, index) => effect(`${index}`))
    const error = await failureOf(subject.store.settleWith(claim, bytesOf('once'), retention, items))
    expect(error.message).toBe('settleWith: expected up to 99 items, got 100')
    expect(await subject.store.settleWith(claim, bytesOf('once'), retention, items.slice(1))).toBe('done')
    const other = await take(subject.store, key('contract', 'another key'))
    expect(await subject.store.settleWith(other, bytesOf('alone'), retention, [])).toBe('done')
    assertSettled(await ask(subject.store, other.key), bytesOf('alone'))
  })

  test('that DynamoDB does not understand is COMMIT_REFUSED: the same items would be refused again', async () => {
    const claim = await take(subject.store, aKey)
    const twice = subject.store.settleWith(claim, bytesOf('once'), retention, [effect('a'), effect('a')])
    expect(await failureOf(twice)).toMatchObject({ code: 'COMMIT_REFUSED', executed: 'no', retryable: false })
    assertBusy(await ask(subject.store, aKey), leaseMs)
    expect(await countOf('a')).toBe(0)
  })

  describe('once.transaction', () => {
    const onceOf = (store: DynamodbStore = subject.store, options: Partial<OnceOptions<DynamodbStore>> = {}) =>
      createOnce({ store, scope: 'shop', waitMs: 0, ...options })
    const through = (relay: Relay): DynamodbStore =>
      dynamodbStore({ client: createClient(relay.url), table: subject.table, timeoutMs: 60_000 })

    test('commits the items with the result, which is replayed and not written again', async () => {
      const once = onceOf()
      const buy = () =>
        once.transaction('order-1', (tx, op) => {
          tx.update(effect('a').Update!)
          tx.put({ TableName: effects, Item: { name: { S: 'order-1' } } })
          return { receipt: op.keyFor('receipt') }
        })
      const first = await buy()
      expect(first).toMatchObject({ replayed: false, attempt: 1 })
      expect(await buy()).toEqual({ ...first, replayed: true })
      expect(await countOf('a')).toBe(1)
      expect(await isThere('order-1')).toBe(true)
    })

    test('of fifty at once one is committed, and all have its result', async () => {
      const once = onceOf(subject.store, { waitMs: 30_000 })
      const all = Array.from({ length: 50 }, (_, index) =>
        once.transaction('order-1', (tx) => {
          tx.update(effect('a').Update!)
          return index
        }),
      )
      const results = await Promise.all(all)
      expect(new Set(results.map(({ value }) => value)).size).toBe(1)
      expect(await countOf('a')).toBe(1)
    })

    test('an effect that throws writes nothing and leaves no trace: another request may use the key', async () => {
      const once = onceOf()
      const failing = once.transaction(
        'order-1',
        (tx) => {
          tx.update(effect('a').Update!)
          throw new Error('no')
        },
        { fingerprint: 'one' },
      )
      await expect(failing).rejects.toThrow('no')
      const next = await once.transaction('order-1', () => 'another', { fingerprint: 'two' })
      expect(next).toEqual({ value: 'another', replayed: false, attempt: 1 })
      expect(await countOf('a')).toBe(0)
    })

    test('a failure that is the answer is stored without the items', async () => {
      const once = onceOf()
      const decline = () =>
        once.transaction('order-1', (tx) => {
          tx.update(effect('a').Update!)
          throw new FinalError('declined')
        })
      await expect(decline()).rejects.toThrow('declined')
      await expect(decline()).rejects.toBeInstanceOf(FinalError)
      expect(await countOf('a')).toBe(0)
    })

    test('a failure that cannot be stored has executed nothing, and the key is free at once', async () => {
      const once = onceOf()
      const decline = (fingerprint: string) =>
        once.transaction(
          'order-1',
          (tx) => {
            tx.update(effect('a').Update!)
            throw new FinalError('declined', { data: { retry: () => {} } })
          },
          { fingerprint },
        )
      for (const fingerprint of ['one', 'two']) {
        const error = await failureOf(decline(fingerprint))
        expect([error.code, error.executed]).toEqual(['OUTCOME_NOT_STORED', 'no'])
        expect(error.message).toContain('a function in "retry" cannot be stored')
      }
      expect(await countOf('a')).toBe(0)
      expect(await subject.store.show(key('shop', 'order-1'))).toBeUndefined()
    })

    test('a condition that does not hold is COMMIT_REFUSED, writes nothing, and the key is free at once', async () => {
      const once = onceOf()
      const buy = () =>
        once.transaction('order-1', (tx) => {
          tx.update(effect('a').Update!)
          tx.check(funds)
          return 'bought'
        })
      const error = await failureOf(buy())
      expect([error.code, error.executed]).toEqual(['COMMIT_REFUSED', 'no'])
      expect(error.message).toContain('shop/order-1')
      expect(error.message).toContain(`item 2 (ConditionCheck of ${effects}): ConditionalCheckFailed`)
      expect(await countOf('a')).toBe(0)
      await ground.admin.putItem({ TableName: effects, Item: { name: { S: 'funds' } } })
      expect(await buy()).toMatchObject({ value: 'bought', attempt: 1 })
      expect(await countOf('a')).toBe(1)
    })

    test('whose claim was taken over is CLAIM_LOST and writes nothing', async () => {
      const late = onceOf()
      const losing = late.transaction('order-1', async (tx) => {
        tx.update(effect('a').Update!)
        await subject.advance(10 * leaseMs)
        await onceOf(subject.open({ clockSkewMs: 0 })).transaction('order-1', (other) => {
          other.update(effect('b').Update!)
          return 'the winner'
        })
        return 'the loser'
      })
      expect(await failureOf(losing)).toMatchObject({ code: 'CLAIM_LOST' })
      expect([await countOf('a'), await countOf('b')]).toEqual([0, 1])
      expect(await late.transaction('order-1', () => 'never')).toMatchObject({ value: 'the winner', replayed: true })
    })

    test('a process that dies between the effect and the commit has written nothing, and the next attempt does', async () => {
      const dead = Promise.withResolvers<never>()
      const dying = onceOf().transaction('order-1', (tx) => {
        tx.update(effect('a').Update!)
        return dead.promise
      })
      dying.catch(() => {})
      await expect.poll(() => subject.store.show(key('shop', 'order-1'))).toMatchObject({ state: 'running' })
      // The lease is over before its heartbeat comes again.
      await subject.advance(10 * leaseMs)
      const result = await onceOf(subject.open({ clockSkewMs: 0 })).transaction('order-1', (tx) => {
        tx.update(effect('a').Update!)
        return 'second'
      })
      expect(result).toEqual({ value: 'second', replayed: false, attempt: 2 })
      dead.reject(new Error('dead'))
      await expect(dying).rejects.toThrow()
      expect(await countOf('a')).toBe(1)
    })

    // Landed, and answered with an error that the SDK repeats twice before our own repeats begin.
    test.each([1, 4])('whose reply is lost %i times is written once and is a success', async (times) => {
      await using relay = await startRelay(ground.server.url)
      // The SDK's own pauses between its repeats can take longer than the usual 5 s.
      const once = onceOf(through(relay), { storeTimeoutMs: 60_000, leaseMs: 120_000 })
      relay.answer('TransactWriteItems', { error: 'ThrottlingException' }, times, 'landed')
      const result = await once.transaction('order-1', (tx) => {
        tx.update(effect('a').Update!)
        return 'once'
      })
      expect(result).toMatchObject({ value: 'once', replayed: false })
      expect(await countOf('a')).toBe(1)
    })

    test('that meets other transactions goes through when they have ended', async () => {
      await using relay = await startRelay(ground.server.url)
      const once = onceOf(through(relay))
      const reasons = [{ Code: 'TransactionConflict' }, { Code: 'None' }]
      relay.answer('TransactWriteItems', { error: 'TransactionCanceledException', reasons }, 3)
      const result = await once.transaction('order-1', (tx) => {
        tx.update(effect('a').Update!)
        return 'once'
      })
      expect(result).toMatchObject({ value: 'once', replayed: false, attempt: 1 })
      expect(await countOf('a')).toBe(1)
    })

    test('that the store does not confirm is OUTCOME_UNKNOWN, and the retry is told the truth: one effect', async () => {
      await using relay = await startRelay(ground.server.url)
      const once = onceOf(through(relay), { storeTimeoutMs: 500, leaseMs: 1_000 })
      const buy = () =>
        once.transaction('order-1', (tx) => {
          relay.answer('TransactWriteItems', { error: 'ThrottlingException' }, 1_000, 'landed')
          tx.update(effect('a').Update!)
          return 'once'
        })
      expect(await failureOf(buy())).toMatchObject({ code: 'OUTCOME_UNKNOWN', executed: 'unknown' })
      expect(await onceOf().transaction('order-1', () => 'never')).toMatchObject({ value: 'once', replayed: true })
      expect(await countOf('a')).toBe(1)
      await once.close()
    })

    test('an effect that hangs is given up: nothing is written, what it collects later is refused, and the key is free', async () => {
      // The lease does not end here: the key is free because it was given back.
      const once = onceOf(subject.store, { attemptMs: 50, leaseMs: 60_000 })
      const given = Promise.withResolvers<DynamodbTransaction>()
      const hung = once.transaction('order-1', (tx) => {
        tx.update(effect('a').Update!)
        given.resolve(tx)
        return new Promise<never>(() => {})
      })
      expect(await failureOf(hung)).toMatchObject({ code: 'DEADLINE_PASSED', executed: 'no' })
      const tx = await given.promise
      expect(() => tx.update(effect('b').Update!)).toThrow(/the effect for shop\/order-1 has ended/)
      expect(await once.transaction('order-1', () => 'next')).toMatchObject({ value: 'next', attempt: 1 })
      expect([await countOf('a'), await countOf('b')]).toEqual([0, 0])
    })

    test('collects up to 99 items, and what happens to an object later is not written', async () => {
      const once = onceOf()
      const tooMany = once.transaction('order-1', (tx) => {
        for (let index = 0; index < 100; index++) tx.update(effect(`${index}`).Update!)
      })
      const error = await failureOf(tooMany)
      expect(error.message).toMatch(/^tx\.update: expected at most 99 items for shop\/order-1, got one more/)
      expect(await countOf('0')).toBe(0)
      await once.transaction('order-1', (tx) => {
        const item = { TableName: effects, Item: { name: { S: 'kept' } } }
        tx.put(item)
        item.Item.name.S = 'changed'
        for (let index = 1; index < 99; index++) tx.update(effect(`${index}`).Update!)
      })
      expect([await isThere('kept'), await isThere('changed'), await countOf('98')]).toEqual([true, false, 1])
    })

    test('cannot join a transaction of the caller, and says what to use', async () => {
      const once = onceOf() as unknown as {
        within(tx: object): { run(id: string, effect: () => void): Promise<unknown> }
      }
      const error = await failureOf(once.within({}).run('order-1', () => {}))
      expect(error).toMatchObject({ code: 'UNSUPPORTED' })
      expect(error.message).toContain('Use transaction()')
    })

    test('over HTTP a handler writes with idempotency.tx, and a retry is a replay', async () => {
      const guard = idempotency(onceOf(), { tenant: 'shared', transaction: true })
      const handle = guard(async (_request, context) => {
        context.idempotency?.tx.update(effect('a').Update!)
        return Response.json({ bought: true }, { status: 201 })
      })
      for (let round = 0; round < 2; round++) {
        const headers = { 'idempotency-key': '"k-1"' }
        const response = await handle(new Request('http://shop/orders', { method: 'POST', headers, body: '{}' }))
        expect([response.status, await response.json()]).toEqual([201, { bought: true }])
      }
      expect(await countOf('a')).toBe(1)
    })
  })
})

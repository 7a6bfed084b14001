// Outcomes beyond what an item holds: stored apart, whole or not at all, and gone when their time is over.

import { paginateScan } from '@aws-sdk/client-dynamodb'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { startDynamodbGround, type DynamodbGround, type DynamodbSubject } from '../../../test/subjects/dynamodb.ts'
import { needs } from '../../../test/servers/needs.ts'
import {
  aKey,
  ask,
  assertBusy,
  assertGranted,
  assertIs,
  assertSettled,
  bytesOf,
  failureOf,
  finish,
  grantedOf,
  hourMs,
  leaseMs,
  request,
  retention,
  take,
} from '../../testing/store-contract.ts'

const KiB = 1_024

function large(length: number, seed: number): Uint8Array {
  return Uint8Array.from({ length }, (_, index) => (index * 31 + (index >> 8) * 7 + seed) % 256)
}

needs('dynamodb').describe('outcomes in DynamoDB', () => {
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

  const itemsThere = async () => {
    const items = []
    for await (const page of paginateScan(
      { client: ground.admin },
      { TableName: subject.table, ConsistentRead: true },
    )) {
      items.push(...(page.Items ?? []))
    }
    return items
  }
  const partsThere = async (): Promise<string[]> =>
    (await itemsThere()).map((item) => item['part']!.S!.split(' ')[0]!).toSorted()
  const chunkKeys = async () =>
    (await itemsThere())
      .filter((item) => item['part']!.S!.startsWith('outcome '))
      .map((item) => ({ key: item['key']!, part: item['part']! }))

  test.each([
    [32 * KiB, 0],
    [32 * KiB + 1, 1],
    [384 * KiB, 1],
    [384 * KiB + 1, 2],
    [5 * 384 * KiB, 5],
  ])('an outcome of %i bytes comes back byte for byte, from %i items apart', async (length, apart) => {
    await finish(subject.store, aKey, large(length, 1))
    expect(await partsThere()).toEqual(['entry', ...Array.from({ length: apart }, () => 'outcome')])
    assertSettled(await ask(subject.store, aKey), large(length, 1))
    expect((await subject.store.show(aKey))?.outcome).toEqual(large(length, 1))
    expect((await subject.store.list({ limit: 1 }))[0]?.outcome).toEqual(large(length, 1))
  })

  test('a second settle with other bytes changes nothing, though both are apart', async () => {
    const claim = await finish(subject.store, aKey, large(400 * KiB, 1))
    await subject.advance(hourMs)
    expect(await subject.store.settle(claim, large(400 * KiB, 2), retention)).toBe('done')
    assertSettled(await ask(subject.store, aKey), large(400 * KiB, 1))
  })

  test('a settle that was lost leaves items that nobody sees, and the next attempt is not disturbed', async () => {
    const zombie = await take(subject.store, aKey)
    await subject.advance(2 * leaseMs)
    const holder = await take(subject.store, aKey)
    expect(await subject.store.settle(zombie, large(400 * KiB, 1), retention)).toBe('lost')
    assertBusy(await ask(subject.store, aKey), leaseMs)
    expect(await subject.store.settle(holder, large(400 * KiB, 2), retention)).toBe('done')
    assertSettled(await ask(subject.store, aKey), large(400 * KiB, 2))
  })

  test('a settle of an earlier life of the token leaves items that nobody sees, and the outcome of the new life stays', async () => {
    const { store } = subject
    const asked = request()
    const zombie = grantedOf(await store.claim(aKey, asked))
    await subject.advance(2 * leaseMs)
    expect(await store.release(await take(store, aKey), 'open')).toBe('done')
    const revived = grantedOf(await store.claim(aKey, asked))
    expect(await store.settle(zombie, large(400 * KiB, 1), retention)).toBe('lost')
    expect(await store.settle(revived, large(400 * KiB, 2), retention)).toBe('done')
    expect(await store.settle(zombie, large(400 * KiB, 1), retention)).toBe('lost')
    assertSettled(await ask(store, aKey), large(400 * KiB, 2))
  })

  test('a settle that is cut off after its items and before the entry leaves the key running, and can be repeated', async () => {
    const claim = await take(subject.store, aKey)
    const cut = ground.proxy.cutAt({ direction: 'request', match: 'DynamoDB_20120810.UpdateItem', side: 'before' })
    void cut.happened.then(() => subject.faults!.cutOff())
    await failureOf(subject.store.settle(claim, large(400 * KiB, 1), retention))
    await subject.faults!.heal()
    expect(await partsThere()).toEqual(['entry', 'outcome', 'outcome'])
    assertBusy(await ask(subject.store, aKey), leaseMs)
    expect((await subject.store.show(aKey))?.outcome).toBeUndefined()
    expect(await subject.store.settle(claim, large(400 * KiB, 1), retention)).toBe('done')
    assertSettled(await ask(subject.store, aKey), large(400 * KiB, 1))
    expect(await partsThere()).toEqual(['entry', 'outcome', 'outcome'])
  })

  test('an outcome of which an item is missing is OUTCOME_UNREADABLE and never runs again', async () => {
    await finish(subject.store, aKey, large(400 * KiB, 1))
    const [, second] = await chunkKeys()
    await ground.admin.deleteItem({ TableName: subject.table, Key: second! })
    const error = await failureOf(ask(subject.store, aKey, { onExpired: 'run' }))
    expect([error.code, error.executed]).toEqual(['OUTCOME_UNREADABLE', 'yes'])
    expect(error.message).toContain(`the item "${second!['part']!.S}" is missing`)
  })

  test('an outcome of which an item was changed is OUTCOME_UNREADABLE', async () => {
    await finish(subject.store, aKey, large(400 * KiB, 1))
    for (const chunk of await chunkKeys()) {
      await ground.admin.updateItem({
        TableName: subject.table,
        Key: chunk,
        UpdateExpression: 'SET #bytes = :bytes',
        ExpressionAttributeNames: { '#bytes': 'bytes' },
        ExpressionAttributeValues: { ':bytes': { B: bytesOf('others') } },
      })
    }
    expect((await failureOf(ask(subject.store, aKey))).code).toBe('OUTCOME_UNREADABLE')
  })

  test('an entry that somebody else has written over is an error, not absent', async () => {
    await finish(subject.store, aKey, bytesOf('once'))
    await ground.admin.updateItem({
      TableName: subject.table,
      Key: { key: { S: 'contract\na key' }, part: { S: 'entry' } },
      UpdateExpression: 'SET keepMs = :text',
      ExpressionAttributeValues: { ':text': { S: 'for ever' } },
    })
    expect((await failureOf(ask(subject.store, aKey, { onExpired: 'run' }))).code).toBe('OUTCOME_UNREADABLE')
  })

  test('what lies apart may be removed when its answer has expired, not before, and a sweep does it, too', async () => {
    const short = { keepMs: hourMs, tombstoneMs: 100 * hourMs }
    await finish(subject.store, aKey, large(400 * KiB, 1), { retention: short })
    const { expiresAtMs } = (await subject.store.show(aKey))!
    for (const item of (await itemsThere()).filter((each) => each['bytes'])) {
      const removeAtMs = Number(item['removeAt']?.N) * 1_000
      expect(removeAtMs).toBeGreaterThanOrEqual(expiresAtMs)
      expect(removeAtMs).toBeLessThanOrEqual(expiresAtMs + hourMs + 1_000)
    }
    await subject.advance(0.5 * hourMs)
    expect(await subject.store.sweep({ limit: 100 })).toEqual({ tombstoned: 0, forgotten: 0, more: false })
    assertSettled(await ask(subject.store, aKey), large(400 * KiB, 1))
    await subject.advance(3 * hourMs)
    expect(await subject.store.sweep({ limit: 100 })).toEqual({ tombstoned: 1, forgotten: 0, more: false })
    expect(await partsThere()).toEqual(['entry'])
    assertIs(await ask(subject.store, aKey), 'expired')
  })

  test('what is left of forgotten keys is swept, and is not counted as an entry', async () => {
    const claim = await take(subject.store, aKey)
    expect(await subject.store.release(claim, 'forget')).toBe('done')
    expect(await subject.store.show(aKey)).toBeUndefined()
    expect(await partsThere()).toEqual(['entry'])
    expect(await subject.store.sweep({ limit: 100 })).toEqual({ tombstoned: 0, forgotten: 0, more: false })
    expect(await partsThere()).toEqual([])
  })

  test('an input that an item cannot hold is refused before anything is written', async () => {
    const fits = await take(subject.store, aKey, { input: large(200 * KiB, 1) })
    expect(await subject.store.settle(fits, large(32 * KiB, 1), retention)).toBe('done')
    const error = await failureOf(ask(subject.store, aKey, { input: large(200 * KiB + 1, 1) }))
    expect(error.code).toBe('INVALID_ARGUMENT')
    expect(error.message).toContain('expected the input of contract/a key to be at most 204800 bytes, got 204801')
  })

  test('a delayed claim whose token forgot the key is busy for 0 ms: nobody would be there to run it', async () => {
    const claim = await take(subject.store, aKey)
    expect(await subject.store.release(claim, 'forget')).toBe('done')
    expect(await ask(subject.store, aKey, { token: claim.token })).toEqual({ is: 'busy', retryAfterMs: 0 })
    assertGranted(await ask(subject.store, aKey), 'fresh', 1)
  })
})

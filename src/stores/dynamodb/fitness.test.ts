// DynamoDB has no clock, so each process goes by its own. Within clockSkewMs of each other the promises hold; here is also
// what happens beyond it, that DynamoDB's own removal of items (TTL) never decides anything, and what the doctor says of a table. What
// cannot be brought about here is in judgements.test.ts.

import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type Relay, startRelay } from '../../../test/subjects/dynamodb/relay.ts'
import {
  createClient,
  startDynamodbGround,
  type DynamodbGround,
  type DynamodbSubject,
} from '../../../test/subjects/dynamodb.ts'
import { needs } from '../../../test/servers/needs.ts'
import { key } from '../../core/key.ts'
import {
  aKey,
  ask,
  assertGranted,
  assertSettled,
  bytesOf,
  failureOf,
  finish,
  hourMs,
  leaseMs,
  minuteMs,
  retention,
  take,
} from '../../testing/store-contract.ts'
import { storeContractCases } from '../../testing/store-contract.ts'
import { dynamodbFitness, dynamodbStore } from '../dynamodb.ts'
import type { DynamodbClient, DynamodbStore } from '../dynamodb.ts'

const allowedMs = minuteMs
const ahead = { clockSkewMs: allowedMs }
const behind = { clockSkewMs: -allowedMs }

needs('dynamodb').describe('DynamoDB without a clock', () => {
  let ground: DynamodbGround
  let subject: DynamodbSubject
  beforeAll(async () => {
    ground = await startDynamodbGround()
  })
  afterAll(async () => {
    await ground[Symbol.asyncDispose]()
  })
  beforeEach(async () => {
    subject = await ground.createSubject({ clockSkewMs: allowedMs })
  })
  afterEach(() => subject.destroy())

  const itemOf = async () =>
    (
      await ground.admin.getItem({
        TableName: subject.table,
        Key: { key: { S: 'contract\na key' }, part: { S: 'entry' } },
      })
    ).Item

  for (const each of storeContractCases.filter(({ guarantee }) => guarantee === 'clock-skew')) {
    test(`dynamodb with clocks within the allowance of a minute: ${each.name}`, () =>
      each.run({
        ...subject,
        another: async (process) => subject.open({ clockSkewMs: Math.sign(process?.clockSkewMs ?? 0) * allowedMs }),
      }))
  }

  test('a lease is over when it is over by every clock: leaseMs and the allowance after it was written', async () => {
    await take(subject.store, aKey)
    await subject.advance(leaseMs + allowedMs - 1)
    expect(await ask(subject.store, aKey, { onTakeover: 'refuse' })).toEqual({ is: 'busy', retryAfterMs: 1 })
    await subject.advance(1)
    expect(await ask(subject.store, aKey, { onTakeover: 'refuse' })).toEqual({ is: 'doubt', attempt: 1 })
    assertGranted(await ask(subject.store, aKey), 'taken-over', 2)
  })

  test('a busy answer names the earliest end of the lease by any clock, and then the latest', async () => {
    await take(subject.store, aKey)
    expect(await ask(subject.store, aKey)).toEqual({ is: 'busy', retryAfterMs: leaseMs - allowedMs })
    await subject.advance(leaseMs - allowedMs)
    expect(await ask(subject.store, aKey)).toEqual({ is: 'busy', retryAfterMs: 2 * allowedMs })
  })

  test('the lease of a process that is behind is not cut short by one that is ahead', async () => {
    // Two processes, as far apart as allowed.
    await take(subject.store, aKey)
    await subject.advance(leaseMs - 1)
    expect((await ask(subject.open(ahead), aKey)).is).toBe('busy')
  })

  test('an answer is kept, and its tombstone after it, for the allowance longer', async () => {
    await finish(subject.store, aKey, bytesOf('once'), { retention: { keepMs: hourMs, tombstoneMs: hourMs } })
    await subject.advance(hourMs - 1)
    assertSettled(await ask(subject.open(ahead), aKey), bytesOf('once'))
    await subject.advance(allowedMs)
    assertSettled(await ask(subject.store, aKey), bytesOf('once'))
    await subject.advance(1)
    expect(await ask(subject.store, aKey)).toEqual({ is: 'expired' })
    await subject.advance(hourMs - 1)
    expect(await ask(subject.store, aKey)).toEqual({ is: 'expired' })
    await subject.advance(1)
    assertGranted(await ask(subject.store, aKey), 'fresh', 1)
  })

  test('fences grow also when the next life is claimed by a process that is behind', async () => {
    const first = await take(subject.open(ahead), aKey)
    expect(await subject.store.release(first, 'forget')).toBe('done')
    const second = assertGranted(await ask(subject.open(behind), aKey), 'fresh', 1)
    expect(second.fence).toBeGreaterThan(first.fence)
    await subject.store.mend(aKey, 'forget', 'a test')
    const third = assertGranted(await ask(subject.open(behind), aKey), 'fresh', 1)
    expect(third.fence).toBeGreaterThan(second.fence)
  })

  test('beyond the allowance a process that is ahead takes over a living lease; the old holder can no longer write', async () => {
    const holder = await take(subject.store, aKey)
    const wrong = subject.open({ clockSkewMs: hourMs })
    // This is what is not promised: two effects can run at once now. The token still lets only one of them be the answer.
    const thief = assertGranted(await ask(wrong, aKey), 'taken-over', 2)
    expect(await subject.store.settle(holder, bytesOf('holder'), retention)).toBe('lost')
    expect(await wrong.settle(thief, bytesOf('thief'), retention)).toBe('done')
    assertSettled(await ask(subject.store, aKey), bytesOf('thief'))
  })

  test('beyond the allowance a process that is behind waits longer, which is safe', async () => {
    await take(subject.store, aKey)
    await subject.advance(2 * leaseMs)
    expect((await ask(subject.open({ clockSkewMs: -hourMs }), aKey)).is).toBe('busy')
    assertGranted(await ask(subject.store, aKey), 'taken-over', 2)
  })

  test('an item past its times that DynamoDB has not removed is as if it were not there, for everyone', async () => {
    const old = await finish(subject.store, aKey, bytesOf('old'), {
      retention: { keepMs: hourMs, tombstoneMs: hourMs },
    })
    await subject.advance(30 * 24 * hourMs)
    expect(await itemOf()).toBeDefined()
    expect(await subject.store.show(aKey)).toBeUndefined()
    expect(await subject.store.list({ limit: 10 })).toEqual([])
    expect(await subject.store.release(old, 'open')).toBe('lost')
    assertGranted(await ask(subject.store, aKey), 'fresh', 1)
  })

  test('DynamoDB may remove an item only when it is forgotten by every clock, and every write moves that time', async () => {
    const removeAtMs = async (): Promise<number> => Number((await itemOf())?.['removeAt']?.N) * 1_000
    const forgottenAtMs = async (): Promise<number> => (await subject.store.show(aKey))!.forgottenAtMs
    const claim = await take(subject.store, aKey)
    expect(await removeAtMs()).toBeGreaterThan((await forgottenAtMs()) + 2 * allowedMs)
    await subject.advance(leaseMs)
    expect(await subject.store.extend(claim, 100 * hourMs)).toBe('done')
    expect(await removeAtMs()).toBeGreaterThan((await forgottenAtMs()) + 2 * allowedMs)
    expect(await subject.store.settle(claim, bytesOf('once'), { keepMs: hourMs, tombstoneMs: 0 })).toBe('done')
    expect(await removeAtMs()).toBeGreaterThan((await forgottenAtMs()) + 2 * allowedMs)
    // An hour of slack and no more than a second for rounding: the table must not fill with what is over.
    expect(await removeAtMs()).toBeLessThanOrEqual((await forgottenAtMs()) + 2 * allowedMs + hourMs + 2_000)
  })

  describe('a machine whose own clock is wrong', () => {
    let relay: Relay
    let store: DynamodbStore
    beforeEach(async () => {
      relay = await startRelay(ground.server.url)
      store = dynamodbStore({ client: createClient(relay.url), table: subject.table, timeoutMs: 60_000 })
    })
    afterEach(() => relay[Symbol.asyncDispose]())

    test.each([
      [hourMs, 'behind'],
      [-hourMs, 'ahead of'],
    ])('is refused when DynamoDB says that it is %i ms off, and leaves no trace', async (dateOffMs, direction) => {
      relay.dateOffMs = dateOffMs
      const error = await failureOf(ask(store, aKey))
      expect([error.code, error.executed, error.retryable]).toEqual(['STORE_UNSAFE', 'no', false])
      expect(error.message).toMatch(new RegExp(`at least 3[56]\\d{5} ms ${direction} DynamoDB's`))
      relay.dateOffMs = 0
      assertGranted(await ask(store, aKey), 'fresh', 1)
    })

    test('does not get as far as to take a key over', async () => {
      const changes = { leaseMs: 1, retention: { keepMs: 100 * hourMs, tombstoneMs: hourMs } }
      const abandoned = subject.open({ clockSkewMs: -hourMs })
      const holder = await take(abandoned, aKey, changes)
      relay.dateOffMs = -hourMs
      expect((await failureOf(ask(store, aKey))).code).toBe('STORE_UNSAFE')
      expect(await abandoned.settle(holder, bytesOf('unharmed'), retention)).toBe('done')
      assertSettled(await ask(store, aKey), bytesOf('unharmed'))
    })

    test('is believed when replies do not tell the time, or are off by less than a second more than is allowed', async () => {
      relay.dateOffMs = undefined
      assertGranted(await ask(store, aKey), 'fresh', 1)
      relay.dateOffMs = 2_400
      assertGranted(await ask(store, key('contract', 'another key')), 'fresh', 1)
    })
  })

  describe('a table of several regions', () => {
    let relay: Relay
    let client: DynamodbClient
    let store: DynamodbStore
    beforeEach(async () => {
      relay = await startRelay(ground.server.url)
      client = createClient(relay.url)
      store = dynamodbStore({ client, table: subject.table, timeoutMs: 60_000 })
    })
    afterEach(() => relay[Symbol.asyncDispose]())

    // DynamoDB Local has one region, so the relay adds the others to what it says of the table.
    const regions = (more: object = {}): void => {
      relay.changes['DescribeTable'] = ({ Table }) => ({
        Table: { ...(Table as object), Replicas: [{ RegionName: 'eu-west-1' }, { RegionName: 'us-east-1' }], ...more },
      })
    }
    const verdictOf = async (): Promise<string | undefined> =>
      (await dynamodbFitness(client, subject.table).checks(0)).find(({ name }) => name === 'dynamodb-table')?.verdict

    test('is refused before the first effect, leaves no trace, and is looked at again', async () => {
      regions()
      const error = await failureOf(ask(store, aKey))
      expect([error.code, error.executed, error.retryable]).toEqual(['STORE_UNSAFE', 'no', false])
      expect(error.message).toMatch(/a global table, replicas: 2.*Use a table of one region/)
      expect(await verdictOf()).toBe('violated')
      delete relay.changes['DescribeTable']
      assertGranted(await ask(store, aKey), 'fresh', 1)
      expect(await verdictOf()).toBe('ok')
    })

    test('does not get as far as to take a key over', async () => {
      const past = subject.open({ clockSkewMs: -hourMs })
      const holder = await take(past, aKey, { leaseMs: 1, retention: { keepMs: 100 * hourMs, tombstoneMs: hourMs } })
      regions()
      expect((await failureOf(ask(store, aKey))).code).toBe('STORE_UNSAFE')
      expect(await past.settle(holder, bytesOf('unharmed'), retention)).toBe('done')
    })

    test('whose regions are of one mind is fit, and the doctor says what does not work there', async () => {
      regions({ MultiRegionConsistency: 'STRONG' })
      assertGranted(await ask(store, aKey), 'fresh', 1)
      expect(await verdictOf()).toBe('warning')
    })

    test('is asked about once per store, and not again where the right to ask is missing', async () => {
      for (const id of ['a', 'b', 'c']) assertGranted(await ask(store, key('contract', id)), 'fresh', 1)
      expect(relay.asked['DescribeTable']).toBe(1)
      const unentitled = dynamodbStore({ client, table: subject.table, timeoutMs: 60_000 })
      relay.answer('DescribeTable', { error: 'AccessDeniedException' }, 2)
      for (const id of ['d', 'e']) assertGranted(await ask(unentitled, key('contract', id)), 'fresh', 1)
      expect(relay.asked['DescribeTable']).toBe(2)
    })
  })

  describe('the doctor, asked of a table', () => {
    const fit = ['ok', 'ACTIVE, in one region', undefined]
    const mend = 'onceonly migrate switches it on (attribute removeAt).'
    const told = async (table: string): Promise<unknown> =>
      (await dynamodbFitness(ground.admin, table).checks(0)).map((each) => [each.verdict, each.found, each.mend])
    const setTimeToLive = (AttributeName: string, Enabled: boolean): Promise<unknown> =>
      ground.admin.updateTimeToLive({ TableName: subject.table, TimeToLiveSpecification: { AttributeName, Enabled } })

    test('that migrate made finds it fit, and sees when its time to live is off or of something else', async () => {
      expect(await told(subject.table)).toEqual([fit, ['ok', 'ENABLED on removeAt', undefined]])
      await setTimeToLive('removeAt', false)
      expect(await told(subject.table)).toEqual([fit, ['warning', 'DISABLED', mend]])
      await setTimeToLive('until', true)
      const other = ['warning', 'ENABLED on until', `Switch it off for until; then ${mend}`]
      expect(await told(subject.table)).toEqual([fit, other])
    })

    test('of something else finds other keys, and migrate does not touch it', async () => {
      const table = `${subject.table}-theirs`
      const keys = '[{"AttributeName":"id","KeyType":"HASH"}]'
      await ground.admin.createTable({
        TableName: table,
        BillingMode: 'PAY_PER_REQUEST',
        KeySchema: [{ AttributeName: 'id', KeyType: 'HASH' }],
        AttributeDefinitions: [{ AttributeName: 'id', AttributeType: 'S' }],
      })
      const theirs = ['violated', `other keys: ${keys}`, 'Give the store a table of its own.']
      expect(await told(table)).toEqual([theirs, ['warning', 'DISABLED', mend]])
      expect(await failureOf(dynamodbStore({ client: ground.admin, table }).migrate())).toMatchObject({
        code: 'SCHEMA_MISSING',
        message: `The table ${table} is there with other keys (${keys}), so it is not ours. Give the store a table of its own.`,
      })
      await ground.admin.deleteTable({ TableName: table })
    })

    test('of something else is refused with its own error, also when its claim cannot be taken back', async () => {
      const table = `${subject.table}-half`
      await ground.admin.createTable({
        TableName: table,
        BillingMode: 'PAY_PER_REQUEST',
        KeySchema: [{ AttributeName: 'key', KeyType: 'HASH' }],
        AttributeDefinitions: [{ AttributeName: 'key', AttributeType: 'S' }],
      })
      expect(await failureOf(ask(dynamodbStore({ client: ground.admin, table }), aKey))).toMatchObject({
        code: 'STORE_UNSAFE',
        executed: 'no',
        message: expect.stringContaining('other keys: ') as string,
      })
      await ground.admin.deleteTable({ TableName: table })
    })

    test('that is not there knows nothing, not even the time', async () => {
      const said = 'Cannot do operations on a non-existent table'
      const advice = 'Grant this user the right to read it, or run the doctor as a user who has it.'
      const unknown = ['unknown', `the check failed: ${said}`, advice]
      expect(await told('not-there')).toEqual([unknown, unknown])
      await expect(dynamodbFitness(ground.admin, 'not-there').timeMs!()).rejects.toThrow(said)
    })

    test("tells DynamoDB's own time, in whole seconds", async () => {
      const beforeMs = Date.now()
      const timeMs = await dynamodbFitness(ground.admin, subject.table).timeMs!()
      expect(timeMs).toBeGreaterThan(beforeMs - 1_000)
      expect(timeMs).toBeLessThanOrEqual(Date.now())
      expect(timeMs % 1_000).toBe(0)
    })
  })
})

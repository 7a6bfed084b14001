// Lost replies and silence, a server or a collection that is not fit, and what is written with which care. All of it on a
// clock that stands still.

import type { CommandStartedEvent } from 'mongodb'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import {
  createClient,
  database,
  isReplyToStore,
  patientMs,
  startMongodbGround,
  type MongodbGround,
  type MongodbSubject,
} from '../../../test/subjects/mongodb.ts'
import { needs } from '../../../test/servers/needs.ts'
import {
  aKey,
  ask,
  assertBusy,
  assertGranted,
  assertIs,
  assertSettled,
  bounded,
  bytesOf,
  eventually,
  failureOf,
  finish,
  hourMs,
  leaseMs,
  otherFingerprint,
  request,
  retention,
  take,
} from '../../testing/store-contract.ts'
import { mongodbStore } from '../mongodb.ts'

needs('mongodb', { ours: true }).describe('MongoDB under faults', () => {
  let ground: MongodbGround
  let subject: MongodbSubject
  beforeAll(async () => {
    ground = await startMongodbGround()
  })
  afterAll(async () => {
    await ground[Symbol.asyncDispose]()
  })
  beforeEach(async () => {
    subject = await ground.createSubject()
  })
  afterEach(async () => {
    await ground.admin.command({ onceonlyTest: 1, helloMessage: '', majority: 'has all' })
    await subject.destroy()
  })

  test('a takeover and a sweep that stall leave another life of the same token alone', async () => {
    const asked = request({ retention: { keepMs: leaseMs, tombstoneMs: leaseMs } })
    const { documents } = subject
    const dueForSweep = (): Promise<unknown> =>
      documents.updateOne({ _id: `${aKey.scope}\n${aKey.id}` }, { $set: { sweepAt: new Date(0) } })
    /** As MongoDB's own removal and a claim that the network delivers once more: the same token, another life. */
    const nextLife = async (): Promise<void> => {
      await documents.deleteOne({ _id: `${aKey.scope}\n${aKey.id}` })
      assertGranted(await subject.store.claim(aKey, asked), 'fresh', 1)
      await dueForSweep()
    }
    const stalling = (method: 'findOneAndUpdate' | 'deleteOne') => {
      const real = documents[method].bind(documents) as (...given: unknown[]) => Promise<unknown>
      const value = async (...given: unknown[]): Promise<unknown> => {
        await nextLife()
        return real(...given)
      }
      const collection = Object.create(documents, { [method]: { value } }) as typeof documents
      return mongodbStore({ collection, expects: 'replays', timeoutMs: patientMs })
    }
    await subject.store.claim(aKey, asked)
    await subject.advance(leaseMs)
    assertBusy(await ask(stalling('findOneAndUpdate'), aKey), leaseMs)
    await subject.advance(3 * leaseMs)
    expect(await stalling('deleteOne').sweep({ limit: 10 })).toMatchObject({ forgotten: 0 })
    assertBusy(await ask(subject.store, aKey), leaseMs)
  })

  test('every call whose reply is lost is an error, and repeated is answered as if nothing had been', async () => {
    const { store } = subject
    const losingReply = async <T>(work: () => Promise<T>): Promise<T> => {
      // The first call of a store checks the collection; the fault is for what comes after.
      await ask(store, { scope: 'contract', id: 'warm up' })
      const cut = ground.proxy.cutAt({ direction: 'reply', side: 'before', match: isReplyToStore })
      const error = await work().then(
        () => undefined,
        (thrown: unknown) => thrown,
      )
      await cut.happened
      // The driver may have read again by itself; what it wrote it may not write again on a server that stands alone.
      if (error) expect(error).toMatchObject({ code: 'STORE_UNAVAILABLE', retryable: true })
      return eventually(work)
    }
    const asked = request()
    const claim = assertGranted(await losingReply(() => store.claim(aKey, asked)), 'fresh', 1)
    expect(await losingReply(() => store.extend(claim, leaseMs))).toBe('done')
    expect(await losingReply(() => store.release(claim, 'open'))).toBe('done')
    const again = request()
    const second = assertGranted(await losingReply(() => store.claim(aKey, again)), 'reopened', 2)
    expect(await losingReply(() => store.settle(second, bytesOf('once'), retention))).toBe('done')
    assertSettled(await losingReply(() => ask(store, aKey)), bytesOf('once'))
    const other = { scope: 'contract', id: 'forgotten' }
    const forgotten = await take(store, other)
    expect(await losingReply(() => store.release(forgotten, 'forget'))).toBe('done')
    assertGranted(await ask(store, other), 'fresh', 1)
  })

  test('a server that says nothing is STORE_UNAVAILABLE after timeoutMs, and the key is free for the next', async () => {
    const hasty = subject.open({ clockSkewMs: 0 }, { timeoutMs: 500 })
    await eventually(() => hasty.show(aKey))
    await ground.proxy.setMode('blackHole')
    const error = await failureOf(bounded('a claim into a black hole', ask(hasty, aKey)))
    expect([error.code, error.executed]).toEqual(['STORE_UNAVAILABLE', 'no'])
    expect(error.message).toContain('no answer within 500 ms')
    await ground.proxy.setMode('pass')
    assertGranted(await eventually(() => ask(subject.store, aKey)), 'fresh', 1)
  })

  test('a write is acknowledged by a majority and its journal, a read comes from the primary, whatever the collection says', async () => {
    const client = createClient(ground.server.url, { monitorCommands: true })
    const commands: CommandStartedEvent['command'][] = []
    client.on('commandStarted', ({ command }) => commands.push(command))
    const collection = client.db(database).collection(subject.documents.collectionName, {
      writeConcern: { w: 1, journal: false },
      readConcern: { level: 'available' },
      readPreference: 'secondaryPreferred',
      promoteValues: false,
      promoteBuffers: false,
      useBigInt64: false,
    })
    const store = mongodbStore({ collection, timeoutMs: patientMs })
    await finish(store, aKey, bytesOf('once'))
    assertSettled(await ask(store, aKey), bytesOf('once'))
    await store.mend(aKey, 'forget', 'a test')
    await subject.advance(hourMs)
    await store.sweep({ limit: 10 })
    await client.close()
    const writes = commands.filter((each) => each['findAndModify'] ?? each['insert'] ?? each['delete'])
    expect(writes.length).toBeGreaterThanOrEqual(5)
    for (const { writeConcern } of writes) expect(writeConcern).toMatchObject({ w: 'majority', j: true })
    const reads = commands.filter((each) => each['aggregate'])
    expect(reads.length).toBeGreaterThanOrEqual(2)
    const levels = reads.map(({ readConcern }) => readConcern?.level)
    expect(levels[0]).toBe('majority')
    // A replay is what no failover takes back; a change by hand goes by the latest.
    expect(levels).toEqual(expect.arrayContaining(['majority', 'local']))
    expect(levels.filter((level) => level !== 'majority' && level !== 'local')).toEqual([])
    const others = commands.map(({ $readPreference }) => $readPreference?.mode).filter((mode) => mode !== undefined)
    expect(others.filter((mode) => mode !== 'primary' && mode !== 'primaryPreferred')).toEqual([])
  })

  test.each([
    { expects: 'fresh', fresh: 1, busy: 2, replay: 2, reopening: 4 },
    { expects: 'replays', fresh: 2, busy: 1, replay: 1, reopening: 2 },
  ] as const)('expecting $expects, calls take no more commands than docs/stores.md says', async (most) => {
    const client = createClient(ground.server.url, { monitorCommands: true })
    const collection = client.db(database).collection(subject.documents.collectionName)
    const store = mongodbStore({ collection, expects: most.expects, timeoutMs: patientMs })
    await store.show(aKey)
    let commands = 0
    client.on('commandStarted', () => commands++)
    const count = async <T>(work: Promise<T>, expected: number): Promise<T> => {
      commands = 0
      const answer = await work
      expect(commands).toBe(expected)
      return answer
    }
    const claim = assertGranted(await count(ask(store, aKey), most.fresh), 'fresh', 1)
    assertBusy(await count(ask(store, aKey), most.busy), leaseMs)
    await count(store.extend(claim, leaseMs), 1)
    await count(store.release(claim, 'open'), 1)
    const second = assertGranted(await count(ask(store, aKey), most.reopening), 'reopened', 2)
    await count(store.settle(second, bytesOf('once'), retention), 1)
    assertSettled(await count(ask(store, aKey), most.replay), bytesOf('once'))
    await client.close()
  })

  test('MongoDB is never told to remove an entry before it is forgotten, however its clock is put on', async () => {
    const { store, documents } = subject
    const assertNotEarly = async (): Promise<void> => {
      const [entry, document] = [await store.show(aKey), await documents.findOne()]
      const removeAt = document?.['removeAt'] as Date
      expect(removeAt.getTime()).toBeGreaterThanOrEqual(entry!.forgottenAtMs)
    }
    const jumpMs = 100 * 24 * hourMs
    const long = { keepMs: 1_000 * 24 * hourMs, tombstoneMs: hourMs }
    const claim = await take(store, aKey, { retention: long })
    await assertNotEarly()
    for (const write of [
      () => store.extend(claim, leaseMs),
      () => store.release(claim, 'open'),
      () => ask(store, aKey, { retention: long }),
      () => store.mend(aKey, 'release', 'a test'),
      async () => store.settle(await take(store, aKey, { retention: long }), bytesOf('once'), long),
    ]) {
      await subject.advance(jumpMs)
      await write()
      await assertNotEarly()
    }
  })

  test('what TTL has not removed is as good as gone when its time is over', async () => {
    const { store, documents } = subject
    await finish(store, aKey, bytesOf('once'))
    await subject.advance(retention.keepMs + 1)
    assertIs(await ask(store, aKey), 'expired')
    await subject.advance(retention.tombstoneMs)
    expect(await documents.countDocuments()).toBe(1)
    expect(await store.show(aKey)).toBeUndefined()
    assertGranted(await ask(store, aKey), 'fresh', 1)
  })

  test('a sweep takes what a tombstone held out of its document', async () => {
    const { store, documents } = subject
    await finish(store, aKey, bytesOf('once'), { input: bytesOf('asked') })
    expect(Object.keys((await documents.findOne())!)).toEqual(expect.arrayContaining(['outcome', 'input']))
    await subject.advance(retention.keepMs + 1)
    expect(await store.sweep({ limit: 10 })).toEqual({ tombstoned: 1, forgotten: 0, more: false })
    const left = Object.keys((await documents.findOne())!)
    expect(left).toContain('fingerprint')
    expect(left.filter((name) => name === 'outcome' || name === 'input')).toEqual([])
  })

  test('a sweep removes what its holder forgot, and does not tell it as forgotten once more', async () => {
    const { store, documents } = subject
    await store.release(await take(store, aKey), 'forget')
    expect(await documents.countDocuments()).toBe(1)
    await subject.advance(hourMs)
    expect(await store.sweep({ limit: 10 })).toEqual({ tombstoned: 0, forgotten: 0, more: false })
    expect(await documents.countDocuments()).toBe(0)
  })

  test('a collection that is missing is SCHEMA_MISSING with its cure, until it is there', async () => {
    const name = `${subject.documents.collectionName}-later`
    const store = mongodbStore({ collection: ground.admin.collection(name), timeoutMs: patientMs })
    const error = await failureOf(ask(store, aKey))
    expect(error.code).toBe('SCHEMA_MISSING')
    expect(error.message).toContain('await store.migrate()')
    await store.migrate()
    assertGranted(await ask(store, aKey), 'fresh', 1)
    await ground.admin.dropCollection(name)
  })

  test('a collection that takes different keys for one is refused, by migrate, too', async () => {
    const name = `${subject.documents.collectionName}-collated`
    await ground.admin.createCollection(name, { collation: { locale: 'en', strength: 2 } })
    const store = mongodbStore({ collection: ground.admin.collection(name), timeoutMs: patientMs })
    for (const work of [() => ask(store, aKey), () => store.migrate()]) {
      const error = await failureOf(work())
      expect(error.code).toBe('STORE_UNSAFE')
      expect(error.message).toContain('collated by "en"')
    }
    await ground.admin.dropCollection(name)
  })

  test('a mongos is refused unless it is said aloud', async () => {
    await ground.admin.command({ onceonlyTest: 1, helloMessage: 'isdbgrid' })
    const error = await failureOf(ask(subject.open({ clockSkewMs: 0 }), aKey))
    expect(error.code).toBe('STORE_UNSAFE')
    expect(error.message).toContain("sharding: 'accept'")
    assertGranted(await ask(subject.open({ clockSkewMs: 0 }, { sharding: 'accept' }), aKey), 'fresh', 1)
  })

  test.each([{ token: 'mine' }, {}, { revision: 1, wrote: 'settle' }])(
    'a document that somebody else wrote (%j) is an error, never a free key',
    async (document) => {
      await subject.documents.insertOne({ _id: 'contract\na key', ...document })
      const error = await failureOf(ask(subject.store, aKey))
      expect([error.code, error.retryable]).toEqual(['OUTCOME_UNREADABLE', false])
      expect(error.message).toContain('has no readable')
    },
  )

  describe.each(['fresh', 'replays'] as const)('while a majority has not got it yet, expecting %s', (expects) => {
    const until = (majority: 'has all' | 'has nothing'): Promise<unknown> =>
      ground.admin.command({ onceonlyTest: 1, majority })

    test('a key that was just claimed is busy, and its own claim once more is granted', async () => {
      const store = subject.open({ clockSkewMs: 0 }, { expects })
      await until('has nothing')
      const asked = request()
      const claim = assertGranted(await store.claim(aKey, asked), 'fresh', 1)
      assertBusy(await ask(store, aKey), leaseMs)
      assertIs(await ask(store, aKey, { fingerprint: otherFingerprint }), 'mismatch')
      expect(assertGranted(await store.claim(aKey, asked), 'fresh', 1)).toEqual(claim)
      expect(await store.release(claim, 'open')).toBe('done')
      assertGranted(await ask(store, aKey), 'reopened', 2)
    })

    test('an answer that a failover could take back is not given: busy, for a moment', async () => {
      const store = subject.open({ clockSkewMs: 0 }, { expects })
      await finish(store, aKey, bytesOf('once'))
      await until('has nothing')
      expect(await ask(store, aKey)).toEqual({ is: 'busy', retryAfterMs: 10 })
      await until('has all')
      assertSettled(await ask(store, aKey), bytesOf('once'))
    })

    test('a repeated settle is neither done nor lost, but to be asked again', async () => {
      const store = subject.open({ clockSkewMs: 0 }, { expects })
      const claim = await finish(store, aKey, bytesOf('once'))
      await until('has nothing')
      const error = await failureOf(store.settle(claim, bytesOf('once'), retention))
      expect([error.code, error.executed, error.retryable]).toEqual(['STORE_UNAVAILABLE', 'unknown', true])
      await until('has all')
      expect(await store.settle(claim, bytesOf('once'), retention)).toBe('done')
    })
  })
})

describe('the options of mongodbStore', () => {
  const collection = createClient('mongodb://127.0.0.1:1').db(database).collection('entries')

  test.each([
    [{ collection: 'entries' }, 'expected collection to be a Collection of the mongodb driver, version 7'],
    [{ collection: { db: collection.db } }, 'expected collection to be a Collection of the mongodb driver, version 7'],
    [{ timeout: 5 }, 'unknown option "timeout", did you mean "timeoutMs"?'],
    [{ timeoutMs: '5s' }, 'expected timeoutMs to be a positive integer of milliseconds, got "5s"'],
    [{ expects: 'replay' }, 'expected expects to be "fresh" or "replays", did you mean "replays"?, got "replay"'],
    [{ sharding: true }, 'expected sharding to be "refuse" or "accept", got true'],
  ])('%# is refused with what was expected', (options, message) => {
    expect(mongodbStore({ collection }).name).toBe('mongodb')
    expect(() => mongodbStore({ collection, ...options } as never)).toThrow(message)
  })
})

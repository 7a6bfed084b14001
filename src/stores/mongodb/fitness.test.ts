// What is said of a deployment in each situation, word for word: at the start of the store, and by the doctor. The tests' server stands
// alone and has neither views nor capped collections, so what the servers of a replica set reply is given as documents here.

import { randomBytes } from 'node:crypto'
import type { Collection, Db, MongoClient } from 'mongodb'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { startMongodb } from '../../../test/servers/mongodb.ts'
import { needs } from '../../../test/servers/needs.ts'
import type { Running } from '../../../test/servers/server.ts'
import { createClient, database, patientMs } from '../../../test/subjects/mongodb.ts'
import { systemClock } from '../../core/clock.ts'
import type { FitnessCheck, FitnessVerdict } from '../../core/fitness.ts'
import { aKey, ask, assertGranted, failureOf } from '../../testing/store-contract.ts'
import { mongodbFitness, mongodbStore } from '../mongodb.ts'
import type { MongodbCollection } from '../mongodb.ts'
import { checkReady, serverTime } from './fitness.ts'
import { removalTimes } from './removal.ts'
import type { MongodbContext } from './requests.ts'

type Words = readonly [verdict: FitnessVerdict, found: string, mend?: string]

const topologyWhy =
  'Writes are acknowledged by a majority. Of a server alone that is itself: what it holds is lost with its disk. Through a mongos a ' +
  'key can be there twice, unless the collection is sharded by _id, and a time is written by one clock and judged by another.'
const collectionWhy = 'In any other collection keys could be taken for one another, or lost.'

const connectToSet =
  'Connect to a replica set. Or make sure that the collection is not sharded, or sharded by _id, and that clocks agree to within ' +
  "a fraction of a lease, and pass sharding: 'accept'."
const threeMembers =
  'Three members with data: with fewer, one that fails leaves no majority, or a majority without the data.'
const plainOne = 'Give the store a plain collection of its own (migrate() makes one).'
const readRight = 'Grant this user the right to read it, or run the doctor as a user who has it.'

const alone: Words = ['warning', 'a server alone, no replica set', 'Make it a replica set of three.']
const mongos: Words = ['violated', 'a mongos', connectToSet]
const plain: Words = ['ok', 'plain, compared byte by byte']
const noPlain: Words = ['violated', 'capped, a view or a time series', plainOne]
const journalled: Words = ['ok', 'a majority has it in the journal']

/** All that the doctor says, when it says these words. */
function saying(
  collection: string,
  words: { topology: Words; writeConcern: Words; collection: Words; indexes: Words },
): FitnessCheck[] {
  const questions = [
    { name: 'mongodb-topology', lookedAt: 'hello', why: topologyWhy },
    {
      name: 'mongodb-write-concern',
      lookedAt: 'replSetGetConfig, writeConcernMajorityJournalDefault',
      why: 'The store asks for a majority with its journal, whatever the defaults are; a set that cannot give it refuses.',
    },
    { name: 'mongodb-collection', lookedAt: `the collection ${collection}`, why: collectionWhy },
    {
      name: 'mongodb-indexes',
      lookedAt: `the indexes of ${collection}`,
      why: 'Without them expired entries are not removed, or are found by reading the whole collection.',
    },
  ]
  const judgements = [words.topology, words.writeConcern, words.collection, words.indexes]
  return questions.map((question, at) => {
    const [verdict, found, mend] = judgements[at]!
    return { ...question, verdict, found, ...(mend !== undefined && { mend }) }
  })
}

needs('mongodb', { ours: true }).describe('a server', () => {
  let server: Running
  let client: MongoClient
  let db: Db
  let collection: Collection
  let name: string
  beforeAll(async () => {
    server = await startMongodb()
    client = createClient(server.url)
    db = client.db(database)
  })
  afterAll(async () => {
    await client.close()
    await server.stop()
  })
  beforeEach(() => {
    name = `entries-${randomBytes(6).toString('hex')}`
    collection = db.collection(name)
  })
  afterEach(() => db.command({ onceonlyTest: 1, helloMessage: '' }))

  const told = () => mongodbFitness(collection).checks(0)
  const store = (options: { sharding?: 'accept' } = {}) =>
    mongodbStore({ collection, timeoutMs: patientMs, ...options })
  const writeConcern: Words = ['unknown', 'it is no member of a replica set']

  test('with what migrate made is fit but for being alone', async () => {
    await store().migrate()
    // Their order is the server's.
    const names = (await collection.indexes()).map((index) => index.name!)
    expect(names.toSorted()).toEqual(['_id_', 'onceonly_sweep', 'onceonly_ttl'])
    const indexes: Words = ['ok', names.join(', ')]
    expect(await told()).toEqual(saying(name, { topology: alone, writeConcern, collection: plain, indexes }))
    assertGranted(await ask(store(), aKey), 'fresh', 1)
  })

  test('without the collection is told what makes it, until it is there', async () => {
    const indexes: Words = ['warning', 'none', 'onceonly migrate makes onceonly_sweep, onceonly_ttl.']
    const missing: Words = ['violated', 'there is none', 'onceonly migrate']
    expect(await told()).toEqual(saying(name, { topology: alone, writeConcern, collection: missing, indexes }))
    const refusing = store()
    expect(await failureOf(ask(refusing, aKey))).toMatchObject({
      code: 'SCHEMA_MISSING',
      executed: 'no',
      retryable: false,
      message: `MongoDB has no collection "${name}". Run "await store.migrate()" once, or run what store.schema() says, and check the names of database and collection.`,
    })
    await refusing.migrate()
    assertGranted(await ask(refusing, aKey), 'fresh', 1)
  })

  test('with a collection that somebody else made lacks its indexes', async () => {
    await db.createCollection(name)
    const indexes: Words = ['warning', '_id_', 'onceonly migrate makes onceonly_sweep, onceonly_ttl.']
    expect(await told()).toEqual(saying(name, { topology: alone, writeConcern, collection: plain, indexes }))
    assertGranted(await ask(store(), aKey), 'fresh', 1)
  })

  test('with a collection that takes different keys for one is refused', async () => {
    await db.createCollection(name, { collation: { locale: 'en', strength: 2 } })
    expect((await told())[2]).toMatchObject({ verdict: 'violated', found: 'collated by "en"', mend: plainOne })
    expect(await failureOf(ask(store(), aKey))).toMatchObject({
      code: 'STORE_UNSAFE',
      executed: 'no',
      retryable: false,
      message: `The collection "${name}" is collated by "en". ${collectionWhy} ${plainOne}`,
    })
  })

  test('that is a mongos is refused, unless that is accepted', async () => {
    await store().migrate()
    await db.command({ onceonlyTest: 1, helloMessage: 'isdbgrid' })
    const [verdict, found, mend] = mongos
    expect((await told())[0]).toMatchObject({ verdict, found, mend })
    expect(await failureOf(ask(store(), aKey))).toMatchObject({
      code: 'STORE_UNSAFE',
      executed: 'no',
      retryable: false,
      message: `The client is connected to a mongos. ${topologyWhy} ${connectToSet}`,
    })
    assertGranted(await ask(store({ sharding: 'accept' }), aKey), 'fresh', 1)
  })

  test('with another message in its hello is no mongos', async () => {
    await db.command({ onceonlyTest: 1, helloMessage: 'welcome' })
    const [verdict, found, mend] = alone
    expect((await told())[0]).toMatchObject({ verdict, found, mend })
  })

  test('tells its own time', async () => {
    const nowMs = 1_700_000_000_123
    await db.command({ onceonlyTest: 1, nowMs })
    expect(await mongodbFitness(collection).timeMs!()).toBe(nowMs)
  })
})

const localTime = new Date('2026-03-01T12:00:00.250Z')
const ofSet = { isWritablePrimary: true, setName: 'rs0', hosts: ['a:27017', 'b:27017', 'c:27017'], localTime }
const ourIndexes = ['_id_', 'onceonly_sweep', 'onceonly_ttl']
const entries = { name: 'entries', type: 'collection', options: {} }

interface Replies {
  readonly hello?: object
  readonly config?: object
  readonly indexes?: readonly string[]
  /** What listCollections says of the collection. */
  readonly entries?: object
}

const unasked = createClient('mongodb://127.0.0.1:1').db(database)

/** A collection of a replica set that is as it should be, but for these replies. */
function collectionOf(given: Replies): MongodbCollection {
  const replies: Readonly<Record<string, object>> = {
    '{"hello":1}': given.hello ?? ofSet,
    '{"replSetGetConfig":1}': given.config ?? { config: { writeConcernMajorityJournalDefault: true } },
    '{"listIndexes":"entries"}': {
      cursor: { firstBatch: (given.indexes ?? ourIndexes).map((each) => ({ name: each })) },
    },
  }
  const command = async (asked: object): Promise<object> => {
    const reply = replies[JSON.stringify(asked)]
    if (reply === undefined) throw new Error(`no such command: ${JSON.stringify(asked)}`)
    return reply
  }
  const listCollections = () => ({ toArray: async () => [given.entries ?? entries] })
  const db = Object.create(unasked, { command: { value: command }, listCollections: { value: listCollections } }) as Db
  return Object.create(unasked.collection('entries'), { db: { value: db } }) as MongodbCollection
}

function contextOf(given: Replies, sharding: 'refuse' | 'accept' = 'refuse'): MongodbContext {
  const removal = removalTimes(systemClock)
  return { collection: collectionOf(given), clock: systemClock, timeoutMs: 4_000, expects: 'fresh', sharding, removal }
}

/** The server's time, from which the hints of what is written next are counted. */
function notedBy({ removal }: MongodbContext): Date {
  return removal.hints(0, { keepMs: 0, tombstoneMs: 0 }).sweepAt
}

const threeOk: Words = ['ok', 'the replica set rs0, members with data: 3, arbiters: 0']
const saidOf = (members: string): Words => ['warning', `the replica set rs0, ${members}`, threeMembers]
const sweepAndTtl = 'onceonly migrate makes onceonly_sweep, onceonly_ttl.'

describe('what the doctor says of a replica set', () => {
  test('that is as it should be', async () => {
    const words = {
      topology: threeOk,
      writeConcern: journalled,
      collection: plain,
      indexes: ['ok', '_id_, onceonly_sweep, onceonly_ttl'] as const,
    }
    expect(await mongodbFitness(collectionOf({})).checks(0)).toEqual(saying('entries', words))
  })

  test.each<[check: string, given: Replies, ...words: Words]>([
    ['topology', { hello: { ...ofSet, hosts: ['a', 'b'] } }, ...saidOf('members with data: 2, arbiters: 0')],
    ['topology', { hello: { ...ofSet, hosts: ['a', 'b'], passives: ['c'] } }, ...threeOk],
    ['topology', { hello: { ...ofSet, arbiters: [] } }, ...threeOk],
    ['topology', { hello: { ...ofSet, arbiters: ['d'] } }, ...saidOf('members with data: 3, arbiters: 1')],
    [
      'topology',
      { hello: { ...ofSet, hosts: ['a', 'b'], arbiters: ['c'] } },
      ...saidOf('members with data: 2, arbiters: 1'),
    ],
    [
      'topology',
      { hello: { ...ofSet, hosts: ['a', 'b', 'c', 'd'] } },
      'ok',
      'the replica set rs0, members with data: 4, arbiters: 0',
    ],
    ['topology', { hello: { setName: 'rs0' } }, ...saidOf('members with data: 0, arbiters: 0')],
    [
      'topology',
      { hello: { ...ofSet, isWritablePrimary: false } },
      'violated',
      'not the primary',
      'Give the URL of the whole set.',
    ],
    ['topology', { hello: { isWritablePrimary: true } }, ...alone],
    ['topology', { hello: { isWritablePrimary: true, msg: 'isdbgrid' } }, ...mongos],
    [
      'write-concern',
      { config: { config: { writeConcernMajorityJournalDefault: false } } },
      'warning',
      'a majority may acknowledge from memory',
      'Set writeConcernMajorityJournalDefault to true.',
    ],
    ['write-concern', { config: { config: {} } }, ...journalled],
    ['write-concern', { config: {} }, 'unknown', 'the check failed: the reply has no config', readRight],
    ['write-concern', { hello: { isWritablePrimary: true } }, 'unknown', 'it is no member of a replica set'],
    ['collection', { entries: { name: 'entries' } }, ...plain],
    ['collection', { entries: { ...entries, options: { capped: false } } }, ...plain],
    ['collection', { entries: { ...entries, options: { capped: true } } }, ...noPlain],
    ['collection', { entries: { name: 'entries', type: 'view' } }, ...noPlain],
    ['collection', { entries: { ...entries, type: 'timeseries' } }, ...noPlain],
    ['collection', { entries: { ...entries, options: { collation: { locale: 'simple' } } } }, ...plain],
    [
      'collection',
      { entries: { ...entries, options: { collation: { locale: 'de' } } } },
      'violated',
      'collated by "de"',
      plainOne,
    ],
    [
      'collection',
      { entries: { ...entries, options: { capped: true, collation: { locale: 'de' } } } },
      'violated',
      'collated by "de"',
      plainOne,
    ],
    ['collection', { entries: { ...entries, name: 'entries2' } }, 'violated', 'there is none', 'onceonly migrate'],
    ['indexes', { indexes: [] }, 'warning', 'none', sweepAndTtl],
    ['indexes', { indexes: ['_id_', 'sweepAt_1'] }, 'warning', '_id_, sweepAt_1', sweepAndTtl],
    [
      'indexes',
      { indexes: ['_id_', 'onceonly_sweep'] },
      'warning',
      '_id_, onceonly_sweep',
      'onceonly migrate makes onceonly_ttl.',
    ],
    ['indexes', { indexes: [...ourIndexes, 'theirs'] }, 'ok', '_id_, onceonly_sweep, onceonly_ttl, theirs'],
  ])('%s of %j', async (check, given, ...words) => {
    const checks = await mongodbFitness(collectionOf(given)).checks(0)
    const { verdict, found, mend } = checks.find(({ name }) => name === `mongodb-${check}`)!
    expect(mend === undefined ? [verdict, found] : [verdict, found, mend]).toEqual(words)
  })

  test('the time is that of hello, and without it there is none', async () => {
    expect(await mongodbFitness(collectionOf({})).timeMs!()).toBe(localTime.getTime())
    await expect(mongodbFitness(collectionOf({ hello: { setName: 'rs0' } })).timeMs!()).rejects.toThrow(
      /^the server did not tell its time \(hello\)$/,
    )
  })
})

describe('the start of the store', () => {
  test.each([
    [{ options: { capped: true } }, 'capped, a view or a time series'],
    [{ type: 'view' }, 'capped, a view or a time series'],
    [{ options: { collation: { locale: 'de' } } }, 'collated by "de"'],
  ])('refuses a collection of %j', async (more, found) => {
    await expect(checkReady(contextOf({ entries: { ...entries, ...more } }))).rejects.toMatchObject({
      code: 'STORE_UNSAFE',
      message: `The collection "entries" is ${found}. ${collectionWhy} ${plainOne}`,
    })
  })

  test.each<[what: string, hello: object, sharding?: 'accept']>([
    ['the primary of a replica set', ofSet],
    // Its own error for a write says what it is, and can be retried.
    ['a server that is not the primary now', { ...ofSet, isWritablePrimary: false }],
    ['a server alone', { localTime }],
    ['a mongos that is accepted', { ...ofSet, msg: 'isdbgrid' }, 'accept'],
  ])('takes %s, and notes its time', async (_, hello, sharding) => {
    const context = contextOf({ hello }, sharding)
    await checkReady(context)
    expect(notedBy(context)).toEqual(localTime)
    expect(await serverTime(context)).toBe(localTime.getTime())
  })

  test('a mongos is refused, and its time is not noted', async () => {
    const context = contextOf({ hello: { ...ofSet, msg: 'isdbgrid' } })
    for (const look of [checkReady, serverTime])
      await expect(look(context)).rejects.toMatchObject({
        code: 'STORE_UNSAFE',
        message: `The client is connected to a mongos. ${topologyWhy} ${connectToSet}`,
      })
    expect(notedBy(context)).toEqual(new Date(0))
  })

  test('a server that does not tell its time is told as an error that may pass', async () => {
    const store = mongodbStore({ collection: collectionOf({ hello: { setName: 'rs0' } }) })
    expect(await failureOf(ask(store, aKey))).toMatchObject({
      code: 'STORE_UNAVAILABLE',
      executed: 'no',
      retryable: true,
      message: expect.stringMatching(
        /^MongoDB could not claim .*: the server did not tell its time \(hello\)\. The effect was not run\. Retry\.$/,
      ) as string,
    })
  })
})

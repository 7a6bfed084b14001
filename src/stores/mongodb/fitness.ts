// Is this MongoDB deployment fit to hold entries? It must be a replica set whose majority is more than one machine, reached at its
// primary, and the collection must be a plain one. Judged once, for the store's start and for `onceonly doctor`.

import type { MongodbCollection, MongodbDocument } from '../../clients/mongodb.ts'
import { systemClock } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { check, judge } from '../../core/fitness.ts'
import type { Fitness, FitnessCheck, Judgement } from '../../core/fitness.ts'
import { timeOf } from './entries.ts'
import { ask, defaultTimeoutMs, describeCollection } from './requests.ts'
import type { MongodbContext, MongodbLink } from './requests.ts'
import { indexes } from './schema.ts'

const topologyWhy =
  'Writes are acknowledged by a majority. Of a server alone that is itself: what it holds is lost with its disk. Through a mongos a ' +
  'key can be there twice, unless the collection is sharded by _id, and a time is written by one clock and judged by another.'

const mongosMend =
  'Connect to a replica set. Or make sure that the collection is not sharded, or sharded by _id, and that clocks agree to within ' +
  "a fraction of a lease, and pass sharding: 'accept'."

const isMongos = (hello: MongodbDocument): boolean => hello['msg'] === 'isdbgrid'

function judgeTopology(hello: MongodbDocument): Judgement {
  if (isMongos(hello)) return judge('violated', 'a mongos', mongosMend)
  if (hello['isWritablePrimary'] === false)
    return judge('violated', 'not the primary', 'Give the URL of the whole set.')
  if (typeof hello['setName'] !== 'string') {
    return judge('warning', 'a server alone, no replica set', 'Make it a replica set of three.')
  }
  const count = (name: string): number => (Array.isArray(hello[name]) ? hello[name].length : 0)
  // Those that are never elected have the data, too.
  const members = count('hosts') + count('passives')
  const arbiters = count('arbiters')
  const found = `the replica set ${hello['setName']}, members with data: ${members}, arbiters: ${arbiters}`
  const mend = 'Three members with data: with fewer, one that fails leaves no majority, or a majority without the data.'
  return judge(members >= 3 && arbiters === 0 ? 'ok' : 'warning', found, mend)
}

const collectionWhy = 'In any other collection keys could be taken for one another, or lost.'

/** `collection` is what listCollections says of it. */
function judgeCollection(collection: MongodbDocument): Judgement {
  const options = collection['options'] as { collation?: { locale?: string }; capped?: boolean } | undefined
  const locale = options?.collation?.locale ?? 'simple'
  const isPlain = (collection['type'] ?? 'collection') === 'collection' && options?.capped !== true
  if (locale === 'simple' && isPlain) return { verdict: 'ok', found: 'plain, compared byte by byte' }
  const found = locale === 'simple' ? 'capped, a view or a time series' : `collated by "${locale}"`
  return judge('violated', found, 'Give the store a plain collection of its own (migrate() makes one).')
}

/** Rejects when the collection or the server is not fit for the promise. */
export async function checkReady(context: MongodbContext): Promise<void> {
  const { collectionName } = context.collection
  const collection = await describeCollection(context)
  if (!collection) {
    throw new OnceError('SCHEMA_MISSING', {
      message: `MongoDB has no collection "${collectionName}". Run "await store.migrate()" once, or run what store.schema() says, and check the names of database and collection.`,
    })
  }
  const { verdict, found, mend } = judgeCollection(collection)
  if (verdict === 'violated') {
    throw new OnceError('STORE_UNSAFE', {
      message: `The collection "${collectionName}" is ${found}. ${collectionWhy} ${mend}`,
    })
  }
  await serverTime(context)
}

/** Returns the server's time, and notes it for the hints of what is written next. A mongos is refused. */
export async function serverTime(context: MongodbContext): Promise<number> {
  const hello = await ask(context, { hello: 1 })
  // A server that is not the primary now may be in a failover: its own error for a write says so, and can be retried.
  if (isMongos(hello) && context.sharding === 'refuse') {
    throw new OnceError('STORE_UNSAFE', {
      message: `The client is connected to a mongos. ${topologyWhy} ${mongosMend}`,
    })
  }
  const nowMs = timeIn(hello)
  context.removal.note(nowMs)
  return nowMs
}

function timeIn(hello: MongodbDocument): number {
  const nowMs = timeOf(hello['localTime'])
  if (nowMs === undefined) throw new Error('the server did not tell its time (hello)')
  return nowMs
}

/**
 * The checks that `onceonly doctor` prints for a MongoDB deployment.
 *
 * @example
 * ```ts
 * import { MongoClient } from 'mongodb'
 * import { mongodbFitness } from 'onceonly/mongodb'
 *
 * const client = new MongoClient('mongodb://127.0.0.1:27017/?replicaSet=rs0')
 * const checks = await mongodbFitness(client.db('app').collection('onceonly')).checks(Date.now())
 * ```
 */
export function mongodbFitness(collection: MongodbCollection): Fitness {
  const link: MongodbLink = { collection, clock: systemClock, timeoutMs: defaultTimeoutMs }
  return {
    timeMs: async () => timeIn(await ask(link, { hello: 1 })),
    checks: async () => [
      await topologyCheck(link),
      await writeConcernCheck(link),
      await collectionCheck(link),
      await indexCheck(link),
    ],
  }
}

function topologyCheck(link: MongodbLink): Promise<FitnessCheck> {
  const question = { name: 'mongodb-topology', lookedAt: 'hello', why: topologyWhy }
  return check(question, async () => judgeTopology(await ask(link, { hello: 1 })))
}

function writeConcernCheck(link: MongodbLink): Promise<FitnessCheck> {
  const why =
    'The store asks for a majority with its journal, whatever the defaults are; a set that cannot give it refuses.'
  const lookedAt = 'replSetGetConfig, writeConcernMajorityJournalDefault'
  return check({ name: 'mongodb-write-concern', lookedAt, why }, async () => {
    const { setName } = await ask(link, { hello: 1 })
    if (setName === undefined) return { verdict: 'unknown', found: 'it is no member of a replica set' }
    const { config } = (await ask(link, { replSetGetConfig: 1 })) as { config?: MongodbDocument }
    if (!config) throw new Error('the reply has no config')
    const journal = config['writeConcernMajorityJournalDefault']
    const found = journal === false ? 'a majority may acknowledge from memory' : 'a majority has it in the journal'
    return judge(journal === false ? 'warning' : 'ok', found, 'Set writeConcernMajorityJournalDefault to true.')
  })
}

function collectionCheck(link: MongodbLink): Promise<FitnessCheck> {
  const lookedAt = `the collection ${link.collection.collectionName}`
  return check({ name: 'mongodb-collection', lookedAt, why: collectionWhy }, async () => {
    const collection = await describeCollection(link)
    return collection ? judgeCollection(collection) : judge('violated', 'there is none', 'onceonly migrate')
  })
}

function indexCheck(link: MongodbLink): Promise<FitnessCheck> {
  const why = 'Without them expired entries are not removed, or are found by reading the whole collection.'
  const { collectionName } = link.collection
  return check({ name: 'mongodb-indexes', lookedAt: `the indexes of ${collectionName}`, why }, async () => {
    const { cursor } = (await ask(link, { listIndexes: collectionName })) as {
      cursor: { firstBatch: { name: string }[] }
    }
    const found = cursor.firstBatch.map(({ name }) => name)
    const missing = indexes.map(({ name }) => name).filter((name) => !found.includes(name))
    return judge(
      missing.length === 0 ? 'ok' : 'warning',
      found.join(', ') || 'none',
      `onceonly migrate makes ${missing.join(', ')}.`,
    )
  })
}

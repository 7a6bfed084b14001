// What a MongoDB deployment must be like: a replica set whose majority is more than one machine, reached at its primary.

import type { MongodbCollection } from '../../clients/mongodb.ts'
import { check, judge } from '../../core/fitness.ts'
import type { FitnessCheck } from '../../core/fitness.ts'

type Document = Readonly<Record<string, unknown>>

async function command(collection: MongodbCollection, given: object): Promise<Document> {
  return (await collection.db.command(given, { readPreference: 'primary' })) as Document
}

export async function mongodbTimeMs(collection: MongodbCollection): Promise<number> {
  const { localTime } = await command(collection, { hello: 1 })
  if (localTime instanceof Date) return localTime.getTime()
  throw new Error('the server did not tell its time (hello)')
}

export async function mongodbChecks(collection: MongodbCollection): Promise<FitnessCheck[]> {
  return [await topologyCheck(collection), await writeConcernCheck(collection), await indexCheck(collection)]
}

function topologyCheck(collection: MongodbCollection): Promise<FitnessCheck> {
  const why =
    'Writes are acknowledged by a majority. Of a server alone that is itself: what it holds is lost with its disk. Through a ' +
    'mongos a key can be there twice, unless the collection is sharded by _id.'
  return check({ name: 'mongodb-topology', lookedAt: 'hello', why }, async () => {
    const hello = await command(collection, { hello: 1 })
    if (hello['msg'] === 'isdbgrid') {
      return judge(
        'violated',
        'a mongos',
        'Connect to a replica set; docs/stores.md says when sharding can be accepted.',
      )
    }
    if (hello['isWritablePrimary'] === false)
      return judge('violated', 'not the primary', 'Give the URL of the whole set.')
    if (typeof hello['setName'] !== 'string') {
      return judge('warning', 'a server alone, no replica set', 'Make it a replica set of three.')
    }
    const hosts = Array.isArray(hello['hosts']) ? hello['hosts'].length : 0
    const arbiters = Array.isArray(hello['arbiters']) ? hello['arbiters'].length : 0
    const found = `the replica set ${hello['setName']}, ${hosts} members with data, ${arbiters} arbiters`
    const mend =
      'Three members with data: with fewer, one that fails leaves no majority, or a majority without the data.'
    return judge(hosts >= 3 && arbiters === 0 ? 'ok' : 'warning', found, mend)
  })
}

function writeConcernCheck(collection: MongodbCollection): Promise<FitnessCheck> {
  const why =
    'The store asks for a majority with its journal, whatever the defaults are; a set that cannot give it refuses.'
  const lookedAt = 'replSetGetConfig, writeConcernMajorityJournalDefault'
  return check({ name: 'mongodb-write-concern', lookedAt, why }, async () => {
    const { config } = (await command(collection, { replSetGetConfig: 1 })) as { config?: Document }
    const journal = config?.['writeConcernMajorityJournalDefault']
    const found = journal === false ? 'a majority may acknowledge from memory' : 'a majority has it in the journal'
    return judge(journal === false ? 'warning' : 'ok', found, 'Set writeConcernMajorityJournalDefault to true.')
  })
}

const indexNames = ['onceonly_sweep', 'onceonly_ttl']

function indexCheck(collection: MongodbCollection): Promise<FitnessCheck> {
  const why = 'Without them expired entries are not removed, or are found by reading the whole collection.'
  const lookedAt = `the indexes of ${collection.collectionName}`
  return check({ name: 'mongodb-indexes', lookedAt, why }, async () => {
    const { cursor } = (await command(collection, { listIndexes: collection.collectionName })) as {
      cursor: { firstBatch: { name: string }[] }
    }
    const found = cursor.firstBatch.map(({ name }) => name)
    const missing = indexNames.filter((name) => !found.includes(name))
    return judge(
      missing.length === 0 ? 'ok' : 'warning',
      found.join(', ') || 'none',
      `onceonly migrate makes ${missing.join(', ')}.`,
    )
  })
}

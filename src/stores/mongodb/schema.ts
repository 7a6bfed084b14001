// The one collection, its two indexes, and what must be true of it and of the server before anything rests on them.

import { OnceError } from '../../core/errors.ts'
import { ask, inTime } from './requests.ts'
import type { MongodbDocument } from '../../clients/mongodb.ts'
import type { MongodbContext } from './requests.ts'
import { timeOf } from './entries.ts'

// Of the names that keys and audit records are kept under, no two may be equal that differ in a byte.
const collation = { locale: 'simple' }

const indexes = [
  { key: { sweepAt: 1 as const }, name: 'onceonly_sweep' },
  // MongoDB removes a document when this time has passed. It never decides.
  { key: { removeAt: 1 as const }, name: 'onceonly_ttl', expireAfterSeconds: 0 },
]

/** Makes what is missing; safe from several processes at once. */
export async function migrate(context: MongodbContext): Promise<void> {
  const { db, collectionName } = context.collection
  if (!(await describeCollection(context))) {
    try {
      await inTime(context, () => db.createCollection(collectionName, { collation }))
    } catch (error) {
      // Of several that make it at once one does, and what the others are told is each server's own. It must be there now.
      if (!(await describeCollection(context))) throw error
    }
  }
  await checkReady(context)
  await inTime(context, () => context.collection.createIndexes(indexes, {}))
}

export function schema({ collection }: MongodbContext): string {
  const name = JSON.stringify(collection.collectionName)
  const create = `db.createCollection(${name}, ${JSON.stringify({ collation })})`
  const each = indexes.map(({ key, ...options }) => {
    return `db.getCollection(${name}).createIndex(${JSON.stringify(key)}, ${JSON.stringify(options)})`
  })
  return [create, ...each, ''].join('\n')
}

/** The server's time, which is also noted for the hints of what is written next. */
export async function serverTime(context: MongodbContext): Promise<number> {
  const hello = await ask(context, { hello: 1 })
  if (hello['msg'] === 'isdbgrid' && context.sharding === 'refuse') throw sharded()
  const now = timeOf(hello['localTime'])
  if (now === undefined) throw new Error('the server did not tell its time (hello)')
  context.removal.note(now)
  return now
}

/** Rejects when the collection or the server is not fit for the promise. */
export async function checkReady(context: MongodbContext): Promise<void> {
  const found = await describeCollection(context)
  const { collectionName } = context.collection
  if (!found) {
    throw new OnceError('SCHEMA_MISSING', {
      message: `MongoDB has no collection "${collectionName}". Run "await store.migrate()" once, or run what store.schema() says, and check the names of database and collection.`,
    })
  }
  const options = found['options'] as { collation?: { locale?: string }; capped?: boolean } | undefined
  const locale = options?.collation?.locale ?? 'simple'
  const isPlain = (found['type'] ?? 'collection') === 'collection' && options?.capped !== true
  if (locale !== 'simple' || !isPlain) {
    const what = locale === 'simple' ? 'capped, a view or a time series' : `collated by "${locale}"`
    throw new OnceError('STORE_UNSAFE', {
      message: `The collection "${collectionName}" is ${what}: keys could be taken for one another, or lost. Give the store a plain collection of its own (migrate() makes one).`,
    })
  }
  await serverTime(context)
}

async function describeCollection(context: MongodbContext): Promise<MongodbDocument | undefined> {
  const { db, collectionName: name } = context.collection
  const found = await inTime(context, () => db.listCollections({ name }, { readPreference: 'primary' }).toArray())
  return (found as MongodbDocument[]).find((each) => each['name'] === name)
}

function sharded(): OnceError {
  return new OnceError('STORE_UNSAFE', {
    message:
      'The client is connected to a mongos. A collection that is sharded by anything but _id can hold a key twice, and times ' +
      'are judged by the clock of mongos and written by that of a shard. Connect to a replica set; or see to it that the ' +
      "collection is not sharded, or sharded by _id, and that clocks agree to within a fraction of a lease, and say sharding: 'accept'.",
  })
}

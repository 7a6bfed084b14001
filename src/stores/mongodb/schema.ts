// The one collection and its two indexes.

import { describeCollection, inTime } from './requests.ts'
import type { MongodbContext } from './requests.ts'

// Two names of keys or audit records that differ in a byte must not be equal.
const collation = { locale: 'simple' }

interface Index {
  readonly key: Record<string, 1>
  readonly name: string
  readonly expireAfterSeconds?: number
}

export const indexes: Index[] = [
  { key: { sweepAt: 1 }, name: 'onceonly_sweep' },
  // MongoDB removes a document when this time has passed. It never decides.
  { key: { removeAt: 1 }, name: 'onceonly_ttl', expireAfterSeconds: 0 },
]

/** Creates the collection if it is missing. Safe from several processes at once. */
export async function makeCollection(context: MongodbContext): Promise<void> {
  const { db, collectionName } = context.collection
  if (await describeCollection(context)) return
  try {
    await inTime(context, () => db.createCollection(collectionName, { collation }))
  } catch (error) {
    // Of several processes that create it at once one succeeds, and the error of the others depends on the server. It must be
    // there now.
    if (!(await describeCollection(context))) throw error
  }
}

export async function makeIndexes(context: MongodbContext): Promise<void> {
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

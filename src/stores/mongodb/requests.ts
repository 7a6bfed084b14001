// Commands to MongoDB on behalf of one store: what they have in common and their time limit. Each goes to the primary, and a write
// is acknowledged when a majority has it in the journal, whatever the collection says.

import type { MongodbCollection, MongodbDocument, MongodbFilter } from '../../clients/mongodb.ts'
import type { Clock } from '../../core/clock.ts'
import type { RemovalTimes } from './removal.ts'

export interface MongodbLink {
  readonly collection: MongodbCollection
  readonly clock: Clock
  readonly timeoutMs: number
}

// Below the 5 s of storeTimeoutMs, so that the error of this store is seen.
export const defaultTimeoutMs = 4_000

/** What the parts of one store have in common. */
export interface MongodbContext extends MongodbLink {
  readonly expects: 'fresh' | 'replays'
  readonly sharding: 'refuse' | 'accept'
  readonly removal: RemovalTimes
}

// The client's settings for values (raw, bigint, Binary objects) must not change how we read our own documents.
const asWeReadIt = { raw: false, promoteValues: true, promoteLongs: true, promoteBuffers: true, useBigInt64: false }

const durably = { writeConcern: { w: 'majority', journal: true } }

/**
 * What a majority has, which no failover takes back, or the latest that the primary has, on which its updates are judged. The two
 * differ right after a write of another caller.
 */
export type MongodbView = 'majority' | 'latest'

const readConcerns = { majority: { level: 'majority' }, latest: { level: 'local' } }

// A reply can be 16 MB, and a writer knows what it wrote.
const withoutContents = { projection: { outcome: 0, input: 0 } }

export async function read(
  context: MongodbContext,
  pipeline: object[],
  view: MongodbView = 'majority',
): Promise<readonly MongodbDocument[]> {
  const options = {
    ...asWeReadIt,
    readPreference: 'primary',
    readConcern: readConcerns[view],
    maxTimeMS: context.timeoutMs,
  }
  return inTime(context, () => context.collection.aggregate(pipeline, options).toArray()) as Promise<MongodbDocument[]>
}

/** The document as it is after the update. Undefined when no document matched the filter. */
export async function update(
  context: MongodbContext,
  filter: MongodbFilter,
  change: object,
  otherwise?: 'insert',
): Promise<MongodbDocument | undefined> {
  const options = {
    ...asWeReadIt,
    ...durably,
    ...withoutContents,
    upsert: otherwise === 'insert',
    returnDocument: 'after',
    includeResultMetadata: false,
    maxTimeMS: context.timeoutMs,
  }
  const found = await inTime(context, () => context.collection.findOneAndUpdate(filter, change, options))
  return (found ?? undefined) as MongodbDocument | undefined
}

export async function insert(context: MongodbContext, document: object): Promise<void> {
  await inTime(context, () => context.collection.insertOne(document, durably))
}

export async function remove(context: MongodbContext, filter: MongodbFilter): Promise<boolean> {
  const { deletedCount } = await inTime(context, () => context.collection.deleteOne(filter, durably))
  return deletedCount > 0
}

export async function ask(context: MongodbLink, command: object): Promise<MongodbDocument> {
  const options = { ...asWeReadIt, readPreference: 'primary' }
  return inTime(context, () => context.collection.db.command(command, options)) as Promise<MongodbDocument>
}

/** What listCollections says of the collection. Undefined when there is none. */
export async function describeCollection(context: MongodbLink): Promise<MongodbDocument | undefined> {
  const { db, collectionName: name } = context.collection
  const found = await inTime(context, () => db.listCollections({ name }, { readPreference: 'primary' }).toArray())
  return (found as MongodbDocument[]).find((each) => each['name'] === name)
}

/** The driver itself would wait half a minute for a server to come back, and without limit for one that does not reply. */
export async function inTime<T>(context: MongodbLink, command: () => Promise<T>): Promise<T> {
  const { clock, timeoutMs } = context
  let cancel = (): void => {}
  const late = new Promise<never>((_, reject) => {
    cancel = clock.schedule(() => reject(new Error(`no answer within ${timeoutMs} ms`)), timeoutMs)
  })
  try {
    return await Promise.race([command(), late])
  } finally {
    cancel()
  }
}

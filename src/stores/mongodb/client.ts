// The slice of the MongoDB driver that we use: the user's Collection, and the Db that it belongs to. Every command goes through
// here, to the primary, and a write is acknowledged when a majority has it in the journal, whatever the collection says.

import type { Clock } from '../../core/clock.ts'
import type { RemovalTimes } from './removal.ts'

/** A document as MongoDB gives it back; it must be looked at before it is believed. */
export type StoredDocument = Readonly<Record<string, unknown>>

/** A Collection of the `mongodb` driver, version 7. */
export interface MongodbCollection {
  readonly collectionName: string
  readonly db: MongodbDatabase
  aggregate(pipeline: object[], options: object): { toArray(): Promise<object[]> }
  findOneAndUpdate(filter: object, update: object, options: object): Promise<object | null>
  insertOne(document: object, options: object): Promise<object>
  deleteOne(filter: object, options: object): Promise<{ readonly deletedCount: number }>
  createIndexes(indexes: { key: Record<string, 1>; name: string }[], options: object): Promise<unknown>
}

export interface MongodbDatabase {
  command(command: object, options: object): Promise<object>
  createCollection(name: string, options: object): Promise<unknown>
  listCollections(filter: object, options: object): { toArray(): Promise<object[]> }
}

/** What the parts of one store have in common. */
export interface MongodbGround {
  readonly collection: MongodbCollection
  readonly clock: Clock
  readonly timeoutMs: number
  readonly expects: 'fresh' | 'replays'
  readonly sharding: 'refuse' | 'accept'
  readonly removal: RemovalTimes
}

/** Nobody has written since: the token and the number of the last write. */
export type Filter = Readonly<Record<string, unknown>>

// What a client was told to do with values (raw, bigint, Binary objects) must not change how we read our own documents.
const asWeReadIt = { raw: false, promoteValues: true, promoteLongs: true, promoteBuffers: true, useBigInt64: false }

const durably = { writeConcern: { w: 'majority', journal: true } }

/**
 * What a majority has, which no failover takes back, or the latest that the primary has, on which its updates are judged. Right
 * after a write of somebody else the two differ.
 */
export type View = 'majority' | 'latest'

const readConcerns = { majority: { level: 'majority' }, latest: { level: 'local' } }

// An answer can be 16 MB, and a writer knows what it wrote.
const withoutContents = { projection: { outcome: 0, input: 0 } }

export async function read(
  ground: MongodbGround,
  pipeline: object[],
  view: View = 'majority',
): Promise<readonly StoredDocument[]> {
  const options = {
    ...asWeReadIt,
    readPreference: 'primary',
    readConcern: readConcerns[view],
    maxTimeMS: ground.timeoutMs,
  }
  return inTime(ground, () => ground.collection.aggregate(pipeline, options).toArray()) as Promise<StoredDocument[]>
}

/** The document as it is after the update; undefined when none was as the filter wants it. */
export async function update(
  ground: MongodbGround,
  filter: Filter,
  change: object,
  otherwise?: 'insert',
): Promise<StoredDocument | undefined> {
  const options = {
    ...asWeReadIt,
    ...durably,
    ...withoutContents,
    upsert: otherwise === 'insert',
    returnDocument: 'after',
    includeResultMetadata: false,
    maxTimeMS: ground.timeoutMs,
  }
  const found = await inTime(ground, () => ground.collection.findOneAndUpdate(filter, change, options))
  return (found ?? undefined) as StoredDocument | undefined
}

export async function insert(ground: MongodbGround, document: object): Promise<void> {
  await inTime(ground, () => ground.collection.insertOne(document, durably))
}

export async function remove(ground: MongodbGround, filter: Filter): Promise<boolean> {
  const { deletedCount } = await inTime(ground, () => ground.collection.deleteOne(filter, durably))
  return deletedCount > 0
}

export async function ask(ground: MongodbGround, command: object): Promise<StoredDocument> {
  const options = { ...asWeReadIt, readPreference: 'primary' }
  return inTime(ground, () => ground.collection.db.command(command, options)) as Promise<StoredDocument>
}

/** The driver itself would wait half a minute for a server to come back, and for ever for one that does not answer. */
export async function inTime<T>(ground: MongodbGround, command: () => Promise<T>): Promise<T> {
  const { clock, timeoutMs } = ground
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

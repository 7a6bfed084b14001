// The slice of the MongoDB driver that stores and writes use: the user's Collection, and the Db that it belongs to. `object` stands
// for documents and options: the driver's own types are generic in the collection's.

/** A Collection of the `mongodb` driver, version 7. */
export interface MongodbCollection {
  readonly collectionName: string
  readonly db: MongodbDatabase
  aggregate(pipeline: object[], options: object): { toArray(): Promise<object[]> }
  findOne(filter: object, options: object): Promise<object | null>
  findOneAndUpdate(filter: object, update: object, options: object): Promise<object | null>
  insertOne(document: object, options: object): Promise<object>
  updateOne(filter: object, update: object, options: object): Promise<MongodbUpdated>
  deleteOne(filter: object, options: object): Promise<{ readonly deletedCount: number }>
  createIndexes(indexes: { key: Record<string, 1>; name: string }[], options: object): Promise<unknown>
}

export interface MongodbUpdated {
  readonly matchedCount: number
  readonly modifiedCount: number
  readonly upsertedCount: number
}

export interface MongodbDatabase {
  collection(name: string): unknown
  command(command: object, options: object): Promise<object>
  createCollection(name: string, options: object): Promise<unknown>
  listCollections(filter: object, options: object): { toArray(): Promise<object[]> }
}

/** A document as MongoDB returns it. Its reader must check it first. */
export type MongodbDocument = Readonly<Record<string, unknown>>

export type MongodbFilter = Readonly<Record<string, unknown>>

/** A unique index has a document with this key already. */
export function isDuplicateKey(error: unknown): boolean {
  return typeof error === 'object' && error !== null && (error as { code?: unknown }).code === 11_000
}

// The writes on MongoDB: each is one document, which MongoDB changes as a whole or not at all, and needs no transaction. The key
// must be `_id` or have a unique index: without one, two inserts at the same moment are two documents.

import { rounds } from '../core/backoff.ts'
import { isDuplicateKey } from '../clients/mongodb.ts'
import type { MongodbCollection, MongodbDatabase, MongodbUpdated } from '../clients/mongodb.ts'
import { checkGiven, withMethods } from '../core/options.ts'
import type { Rule } from '../core/options.ts'
import { eachWrite, requestChecks, scalar, versionColumn } from './requests.ts'
import { restless } from './steps.ts'
import type {
  AddOnce,
  Answers,
  AppendOnce,
  CompareAndSet,
  InsertOnce,
  Row,
  Upsert,
  UpsertIf,
  UpsertIfNewer,
  Writes,
} from './writes.ts'

/** A Db of the `mongodb` driver, version 6 or later. */
export type MongodbWritesDatabase = Pick<MongodbDatabase, 'collection'>

export interface MongodbWritesOptions {
  /** A ClientSession of the driver, to take part in a transaction of yours. */
  readonly session?: object | undefined
}

const collectionName: Rule = (value) =>
  typeof value === 'string' && /^(?!system\.)[A-Za-z_][A-Za-z0-9_.-]{0,119}$/.test(value)
    ? undefined
    : 'a name of 1 to 120 letters, digits, underscores, dots and hyphens that begins with a letter or an underscore'

// An object could carry an operator ({ $gt: '' }), so the only object let through is the driver's ObjectId, which JSON cannot
// make. Of a larger bigint the driver silently writes the lower 64 bits.
const mongodbValue: Rule = (value) => {
  if (typeof value === 'bigint' && BigInt.asIntN(64, value) !== value) return 'a bigint of 64 bits'
  const isObjectId =
    typeof value === 'object' &&
    value !== null &&
    Object.getPrototypeOf(value) !== Object.prototype &&
    (value as { _bsontype?: unknown })._bsontype === 'ObjectId'
  return isObjectId ? undefined : scalar(value)
}

const check = requestChecks({ table: collectionName, value: mongodbValue, marks: 'field' })

/**
 * Writes that may be repeated, on your own collections in MongoDB. With `session` they belong to its transaction.
 *
 * @example
 * import { MongoClient } from 'mongodb'
 * import { mongodbWrites } from 'onceonly/writes'
 *
 * const client = new MongoClient('mongodb://127.0.0.1:27017')
 * // 'applied' the first time, 'already' the second time.
 * const written = await mongodbWrites(client.db('shop')).insertOnce('orders', { key: { _id: 'order-42' }, set: { cents: 500 } })
 */
export function mongodbWrites(database: MongodbWritesDatabase, options: MongodbWritesOptions = {}): Writes {
  checkGiven('mongodbWrites', { database }, { database: withMethods('collection') })
  checkGiven('mongodbWrites', options, { session: () => undefined })
  const writes = { insertOnce, upsert, upsertIfNewer, upsertIf, compareAndSet, addOnce, appendOnce }
  return eachWrite<Writes>((name) => async (table, request) => {
    check(name, table, request)
    const documents = documentsOf(database.collection(table) as MongodbCollection, options)
    return writes[name](documents, request, table)
  })
}

interface Documents {
  /** The error, when a unique index has the value already. */
  insert(document: object): Promise<{ readonly duplicate: unknown } | undefined>
  update(filter: object, change: object, otherwise?: 'insert'): Promise<MongodbUpdated>
  has(filter: object): Promise<boolean>
}

function documentsOf(collection: MongodbCollection, { session }: MongodbWritesOptions): Documents {
  const durably = session ? { session } : { writeConcern: { w: 'majority', journal: true } }
  return {
    async insert(document) {
      try {
        await collection.insertOne({ ...document }, durably)
        return undefined
      } catch (error) {
        if (isDuplicateKey(error)) return { duplicate: error }
        throw error
      }
    },
    update: (filter, change, otherwise) =>
      collection.updateOne(filter, change, { ...durably, upsert: otherwise === 'insert' }),
    has: async (filter) =>
      (await collection.findOne(filter, {
        projection: { _id: 1 },
        ...(session ? { session } : { readPreference: 'primary' }),
      })) !== null,
  }
}

/** Explicit equality: no value is read as an operator or as a pattern. */
function equal(row: Row): object {
  return Object.fromEntries(Object.entries(row).map(([name, value]) => [name, { $eq: value }]))
}

async function insertOnce(documents: Documents, { key, set }: InsertOnce): Promise<Answers['insertOnce']> {
  const refused = await documents.insert({ ...key, ...set })
  if (!refused) return 'applied'
  if (await documents.has(equal(key))) return 'already'
  // A duplicate of something other than the key is the caller's error.
  throw refused.duplicate
}

async function upsert(documents: Documents, { key, set, setOnInsert }: Upsert): Promise<Answers['upsert']> {
  const change = { $set: set, ...(Object.keys(setOnInsert ?? {}).length > 0 && { $setOnInsert: setOnInsert }) }
  for (let round = 0; ; round++) {
    try {
      const { modifiedCount, upsertedCount } = await documents.update(equal(key), change, 'insert')
      return modifiedCount + upsertedCount > 0 ? 'applied' : 'already'
    } catch (error) {
      // Two upserts found nothing and both inserted. The refused one finds the document now.
      if (!isDuplicateKey(error) || round === rounds.write) throw error
    }
  }
}

async function upsertIfNewer(
  documents: Documents,
  { key, set, setOnInsert, newer }: UpsertIfNewer,
  table: string,
): Promise<Answers['upsertIfNewer']> {
  const [field, version] = Object.entries(newer)[0]!
  const older = { $or: [{ [field]: { $eq: null } }, { [field]: { $lt: version } }] }
  for (let round = 0; round < rounds.write; round++) {
    const updated = await documents.update({ ...equal(key), ...older }, { $set: { ...set, ...newer } })
    if (updated.matchedCount > 0) return 'applied'
    const refused = await documents.insert({ ...key, ...setOnInsert, ...set, ...newer })
    if (!refused) return 'applied'
    if (await documents.has(equal({ ...key, ...newer }))) return 'already'
    if (await documents.has({ ...equal(key), [field]: { $gt: version } })) return 'stale'
    if (!(await documents.has(equal(key)))) throw refused.duplicate
  }
  throw restless('upsertIfNewer', table)
}

async function upsertIf(
  documents: Documents,
  { key, expect, set, setOnInsert }: UpsertIf,
  table: string,
): Promise<Answers['upsertIf']> {
  for (let round = 0; round < rounds.write; round++) {
    const updated = await documents.update({ $and: [equal(key), equal(expect)] }, { $set: set })
    if (updated.modifiedCount > 0) return 'applied'
    if (await documents.has({ $and: [equal(key), equal(set)] })) return 'already'
    // One read for both: between two reads a document could become the one that was meant.
    if (await documents.has({ $and: [equal(key), { $nor: [equal(expect), equal(set)] }] })) return 'conflict'
    const refused = await documents.insert({ ...key, ...setOnInsert, ...set })
    if (!refused) return 'applied'
    // A duplicate of something other than the key is the caller's error. A duplicate of the key is read in the next round.
    if (!(await documents.has(equal(key)))) throw refused.duplicate
  }
  throw restless('upsertIf', table)
}

async function compareAndSet(
  documents: Documents,
  { key, expect, set }: CompareAndSet,
): Promise<Answers['compareAndSet']> {
  const updated = await documents.update({ $and: [equal(key), equal(expect)] }, { $set: set })
  if (updated.modifiedCount > 0) return 'applied'
  if (await documents.has({ $and: [equal(key), equal(set)] })) return 'already'
  return (await documents.has(equal(key))) ? 'conflict' : 'missing'
}

async function addOnce(documents: Documents, { key, add, once }: AddOnce): Promise<Answers['addOnce']> {
  const [field, event] = Object.entries(once.key)[0]!
  const updated = await documents.update(
    { ...equal(key), [field]: { $ne: event } },
    { $inc: add, $push: { [field]: event } },
  )
  if (updated.matchedCount > 0) return 'applied'
  return (await documents.has(equal(key))) ? 'already' : 'missing'
}

async function appendOnce(documents: Documents, request: AppendOnce): Promise<Answers['appendOnce']> {
  const { key, stream, after, set } = request
  const version = versionColumn(request)
  // Events are never deleted: what is there now will be.
  if (after === 0 || (await documents.has(equal({ ...stream, [version]: after })))) {
    const refused = await documents.insert({ ...key, ...stream, [version]: after + 1, ...set })
    if (!refused) return 'appended'
  }
  return (await documents.has(equal({ ...key, ...stream }))) ? 'already' : 'conflict'
}

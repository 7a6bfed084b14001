// MongoDB, experimental: it has not run on a real mongod yet. One collection, one document per key. A claim is one update that
// inserts the document, or that MongoDB refuses because the document is there. Every other write is an update on the condition
// that the token still holds the key. All time is the server's.
//
// How it keeps the invariants, and what that costs:
// - an upsert on `_id` that inserts or is refused, updates conditional on token and revision, the primary's time
//   (`$currentDate`, `$$NOW`), majority writes. Run on a server that speaks the protocol, never on a real mongod
//   (docs/stores.md).

import { systemClock } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import { mendingName } from '../core/entry.ts'
import { checkedOnce } from '../core/fitness.ts'
import { describeKey } from '../core/key.ts'
import type { Key } from '../core/key.ts'
import { checkOptions, oneOf, optional, positiveInteger, positiveMs, withMethods } from '../core/options.ts'
import type { Rule } from '../core/options.ts'
import type { Inspectable, Migratable, Store, Sweepable } from '../core/store.ts'
import { claim } from './mongodb/claims.ts'
import type { MongodbCollection } from '../clients/mongodb.ts'
import { storeError } from './mongodb/errors.ts'
import { checkReady } from './mongodb/fitness.ts'
import { audit, list, mend, show } from './mongodb/inspection.ts'
import { removalTimes } from './mongodb/removal.ts'
import { defaultTimeoutMs } from './mongodb/requests.ts'
import type { MongodbContext } from './mongodb/requests.ts'
import { makeCollection, makeIndexes, schema } from './mongodb/schema.ts'
import { sweep } from './mongodb/sweep.ts'
import { extend, release, settle } from './mongodb/writes.ts'

export type { MongodbCollection } from '../clients/mongodb.ts'
export { mongodbFitness } from './mongodb/fitness.ts'

export interface MongodbStoreOptions {
  /** `client.db('app').collection('onceonly')` of the `mongodb` driver, version 7: a collection for this store alone. */
  readonly collection: MongodbCollection
  /**
   * What most claims will be. 'fresh' writes at once: a fresh claim is one round trip, all others two. 'replays' reads first: a
   * replay is one round trip and no write, a fresh claim two.
   */
  readonly expects?: 'fresh' | 'replays'
  /** The store refuses a mongos unless this is 'accept'. See docs/stores.md for what must then be true. */
  readonly sharding?: 'refuse' | 'accept'
  /** How long a command may take, the driver's own retries included. */
  readonly timeoutMs?: number
  /** Measures how long commands take. The time of entries is the server's. */
  readonly clock?: Clock
}

export interface MongodbStore extends Store, Sweepable, Inspectable, Migratable {}

const aCollection: Rule = (value) => {
  const methods = withMethods('aggregate', 'findOneAndUpdate', 'insertOne', 'deleteOne', 'createIndexes')
  const hasDatabase = withMethods('command', 'listCollections', 'createCollection')
  return methods(value) === undefined && hasDatabase((value as MongodbCollection).db) === undefined
    ? undefined
    : "a Collection of the mongodb driver, version 7 (client.db('app').collection('onceonly'))"
}

const rules = {
  collection: aCollection,
  expects: optional(oneOf('fresh', 'replays')),
  sharding: optional(oneOf('refuse', 'accept')),
  timeoutMs: optional(positiveMs),
  clock: optional(withMethods('now', 'elapsed', 'schedule')),
}

/**
 * Keeps entries in one collection of MongoDB, through the mongodb driver (7). Experimental: it has not run on a real mongod yet.
 * Run `await store.migrate()` once before its first use.
 *
 * @example
 * import { MongoClient } from 'mongodb'
 * import { createOnce } from 'onceonly'
 * import { mongodbStore } from 'onceonly/mongodb'
 *
 * const client = new MongoClient('mongodb://127.0.0.1:27017')
 * const store = mongodbStore({ collection: client.db('shop').collection('onceonly') })
 * await store.migrate()
 * const once = createOnce({ store, scope: 'payments' })
 */
export function mongodbStore(options: MongodbStoreOptions): MongodbStore {
  checkOptions('mongodbStore', options, rules)
  const clock = options.clock ?? systemClock
  const context: MongodbContext = {
    collection: options.collection,
    clock,
    timeoutMs: options.timeoutMs ?? defaultTimeoutMs,
    expects: options.expects ?? 'fresh',
    sharding: options.sharding ?? 'refuse',
    removal: removalTimes(clock),
  }
  const ready = checkedOnce(checkReady)
  const told = async <T>(
    what: string,
    key: Key | undefined,
    executed: 'no' | 'unknown',
    work: () => Promise<T>,
  ): Promise<T> => {
    try {
      await ready(context)
      return await work()
    } catch (error) {
      throw storeError(error, key ? `${what} ${describeKey(key)}` : what, executed)
    }
  }
  return {
    name: 'mongodb',
    claim: (key, request) => told('claim', key, 'no', () => claim(context, key, request)),
    extend: (held, leaseMs) => told('extend', held.key, 'unknown', () => extend(context, held, leaseMs)),
    settle: (held, outcome, kept) => told('settle', held.key, 'unknown', () => settle(context, held, outcome, kept)),
    release: (held, how) => told('release', held.key, 'unknown', () => release(context, held, how)),
    async sweep(given) {
      checkOptions('sweep', given, { limit: positiveInteger })
      return told('sweep', undefined, 'no', () => sweep(context, given.limit))
    },
    show: (key) => told('show', key, 'no', () => show(context, key)),
    list: (filter) => told('list entries', undefined, 'no', () => list(context, filter)),
    mend: (key, action, reason) => told(mendingName(action), key, 'unknown', () => mend(context, key, action, reason)),
    audit: (key) => told('read the audit records of', key, 'no', () => audit(context, key)),
    async migrate() {
      try {
        await makeCollection(context)
        await checkReady(context)
        await makeIndexes(context)
      } catch (error) {
        throw storeError(error, 'migrate', 'no')
      }
    },
    schema: () => schema(context),
  }
}

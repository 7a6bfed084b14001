// The store beyond one machine: one DynamoDB table, shared by any number of processes. The store relies on conditional writes
// alone: a claim is one PutItem, which DynamoDB refuses with the item that is there. DynamoDB has no clock for us, so each
// process uses its own clock. A time has passed when it has passed by every clock that is no more than clockSkewMs off another.
//
// How it keeps the invariants, and what that costs:
// - conditional writes only. There is no server clock: the store judges times at `now - clockSkewMs`, so that everything ends
//   late and never early. It refuses a machine that the `Date` of a reply shows to be off, before that machine takes over.

import { systemClock } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import { mendingName } from '../core/entry.ts'
import { describeKey } from '../core/key.ts'
import type { Key } from '../core/key.ts'
import {
  checkOptions,
  nonNegativeMs,
  oneOf,
  optional,
  positiveInteger,
  positiveMs,
  withMethods,
} from '../core/options.ts'
import type { Fitness } from '../core/fitness.ts'
import type { Rule } from '../core/options.ts'
import type { Collecting, Inspectable, Migratable, Store, Sweepable } from '../core/store.ts'
import { claim } from './dynamodb/claims.ts'
import type { DynamodbClient, TransactWriteItem } from '../clients/dynamodb.ts'
import { call } from './dynamodb/requests.ts'
import type { DynamodbContext } from './dynamodb/requests.ts'
import { clockCheck, fitness, tableCheck } from './dynamodb/fitness.ts'
import { storeError } from './dynamodb/errors.ts'
import { audit, list, mend, show } from './dynamodb/inspection.ts'
import { sweep } from './dynamodb/sweep.ts'
import type { SweepCursor } from './dynamodb/sweep.ts'
import { migrate, tableSchema } from './dynamodb/schema.ts'
import { collect, settleWith } from './dynamodb/transactions.ts'
import type { DynamodbTransaction } from './dynamodb/transactions.ts'
import { extend, release, settle } from './dynamodb/writes.ts'

export type {
  DynamodbClient,
  TransactCheck,
  TransactDelete,
  TransactPut,
  TransactUpdate,
  TransactWriteItem,
} from '../clients/dynamodb.ts'
export type { DynamodbTransaction } from './dynamodb/transactions.ts'

export interface DynamodbStoreOptions {
  /** `new DynamoDB({ region })` of @aws-sdk/client-dynamodb: a DynamoDBClient that has the operations as methods. */
  readonly client: DynamodbClient
  /** Name or ARN of the table. */
  readonly table: string
  /**
   * By how much the clocks of any two machines that use the table may differ. Set the same value on all of them. A lease ends,
   * and an entry expires, that much later than by the machine's own clock. Beyond this difference nothing is promised, as two
   * machines could hold a key at once. The store refuses the claims of a machine that is seen to be more than half of it off
   * DynamoDB's own time (STORE_UNSAFE).
   */
  readonly clockSkewMs?: number
  /**
   * What most claims will be. 'fresh' writes at once: every claim is one round trip, and a replay costs write units.
   * 'replays' reads first: a replay costs read units (a fifth of the price or less), a fresh claim two round trips.
   */
  readonly expects?: 'fresh' | 'replays'
  /** How long a request may take, the SDK's own retries included. */
  readonly timeoutMs?: number
  /** In place of the machine's clock. The store does not compare it with DynamoDB's time. */
  readonly clock?: Clock
}

/**
 * DynamoDB has no transaction that stays open. `once.transaction` gives the effect a `tx` that collects items, and settles in one
 * TransactWriteItems with them. `settleWith` is the same for a caller who claims manually.
 */
export interface DynamodbStore
  extends Store, Collecting<DynamodbTransaction, readonly TransactWriteItem[]>, Sweepable, Inspectable, Migratable {}

// Machines that keep their time (NTP, chrony) differ by milliseconds. A machine that is seconds off has just woken. The takeover
// after a crash comes this much later than by the lease alone, which is little beside 30 s.
const defaultClockSkewMs = 5_000

// Below the 5 s of storeTimeoutMs, so that the error of this store is seen.
const defaultTimeoutMs = 4_000

const methods = ['getItem', 'putItem', 'updateItem', 'deleteItem', 'query', 'scan', 'transactWriteItems'] as const

const aClient: Rule = (value) =>
  withMethods(...methods)(value) === undefined
    ? undefined
    : 'a DynamoDB of @aws-sdk/client-dynamodb (write `new DynamoDB(…)` for `new DynamoDBClient(…)`: it is one, with methods)'

const aTable: Rule = (value) =>
  typeof value === 'string' && /^([\w.-]{3,255}|arn:[\w:/.-]{1,1020})$/.test(value)
    ? undefined
    : 'the name of a table (3 to 255 letters, digits, ".", "-" and "_") or its ARN'

const rules = {
  client: aClient,
  table: aTable,
  clockSkewMs: optional(nonNegativeMs),
  expects: optional(oneOf('fresh', 'replays')),
  timeoutMs: optional(positiveMs),
  clock: optional(withMethods('now', 'elapsed', 'schedule')),
}

/**
 * Keeps entries in one table of DynamoDB, through the AWS SDK (v3). Run `await store.migrate()` once before its first use.
 *
 * @example
 * import { DynamoDB } from '@aws-sdk/client-dynamodb'
 * import { createOnce } from 'onceonly'
 * import { dynamodbStore } from 'onceonly/dynamodb'
 *
 * const store = dynamodbStore({ client: new DynamoDB({ region: 'eu-central-1' }), table: 'onceonly' })
 * await store.migrate()
 * const once = createOnce({ store, scope: 'payments' })
 */
export function dynamodbStore(options: DynamodbStoreOptions): DynamodbStore {
  checkOptions('dynamodbStore', options, rules)
  const { client, clockSkewMs = defaultClockSkewMs } = options
  const context: DynamodbContext = {
    client,
    table: options.table,
    clock: options.clock ?? systemClock,
    clockSkewMs,
    // A clock that the caller supplies need not be the time of day.
    checkClock: options.clock ? () => undefined : clockCheck(client, systemClock, clockSkewMs),
    tableObjection: tableCheck(options.table, () =>
      call(context, (limit) => client.describeTable({ TableName: options.table }, limit)),
    ),
    timeoutMs: options.timeoutMs ?? defaultTimeoutMs,
    expects: options.expects ?? 'fresh',
  }
  const cursor: SweepCursor = { after: undefined }
  return {
    name: 'dynamodb',
    isSweptByServer: true,
    claim: (key, request) => told('claim', key, 'no', claim(context, key, request)),
    extend: (held, leaseMs) => told('extend', held.key, 'unknown', extend(context, held, leaseMs)),
    settle: (held, outcome, retention) =>
      told('settle', held.key, 'unknown', settle(context, held, outcome, retention)),
    release: (held, how) => told('release', held.key, 'unknown', release(context, held, how)),
    collect,
    settleWith: (held, outcome, retention, items) => settleWith(context, held, outcome, retention, items),
    async sweep(given) {
      checkOptions('sweep', given, { limit: positiveInteger })
      return told('sweep', undefined, 'no', sweep(context, cursor, given.limit))
    },
    show: (key) => told('show', key, 'no', show(context, key)),
    list: (filter) => told('list entries', undefined, 'no', list(context, filter)),
    mend: (key, action, reason) => told(mendingName(action), key, 'unknown', mend(context, key, action, reason)),
    audit: (key) => told('read the audit records of', key, 'no', audit(context, key)),
    migrate: () => told('migrate', undefined, 'no', migrate(context)),
    schema: () => JSON.stringify(tableSchema(context.table), undefined, 2),
  }
}

/**
 * For `onceonly doctor`: whether the table is ours, is written in one region, and whether expired items are removed. The store
 * checks the first two itself before its first effect.
 *
 * @example
 * import { DynamoDB } from '@aws-sdk/client-dynamodb'
 * import { dynamodbFitness } from 'onceonly/dynamodb'
 *
 * const checks = await dynamodbFitness(new DynamoDB({ region: 'eu-central-1' }), 'onceonly').checks(Date.now())
 */
export function dynamodbFitness(client: DynamodbClient, table: string): Fitness {
  return fitness(client, table, systemClock)
}

async function told<T>(what: string, key: Key | undefined, executed: 'no' | 'unknown', work: Promise<T>): Promise<T> {
  try {
    return await work
  } catch (error) {
    throw storeError(error, key ? `${what} ${describeKey(key)}` : what, executed)
  }
}

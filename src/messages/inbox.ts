// The idempotent consumer: a message that comes twice has its effect once. The mark and what the handler writes commit in one
// transaction of the database, so neither a crash nor a second consumer nor a redelivery can come between them.
//
// Delivery is a choice, and each is what its name says:
//   effectively-once  mark and effect together, then acknowledge (the default)
//   at-most-once      mark, acknowledge, then run: a crash loses the effect, and never repeats it
//   at-least-once     run, then acknowledge: no mark, so a redelivery runs again

import { databaseOf } from '../clients/sql-database.ts'
import type { SqlDatabase } from '../clients/sql-database.ts'
import { systemClock, systemRandom } from '../core/clock.ts'
import type { Clock, Random } from '../core/clock.ts'
import { OnceError } from '../core/errors.ts'
import { key } from '../core/key.ts'
import { aFunction, checkOptions, oneOf, optional, positiveInteger, positiveMs, withMethods } from '../core/options.ts'
import type { Codec } from '../core/outcome.ts'
import { checkRecordedReason, onRecord } from '../core/once.ts'
import type { MessageChange, OnceRunner, TxOf } from '../core/once.ts'
import type { Store } from '../core/store.ts'
import type { BatchHandler, Message, MessageHandler, Receiver, StoredOffsets } from './broker.ts'
import { byClaim } from './inbox/by-claim.ts'
import { byTransaction } from './inbox/by-transaction.ts'
import { deliverOne, deliverMany, handleMany } from './inbox/delivery.ts'
import type { Delivering } from './inbox/delivery.ts'
import type { DeadLetterReason, MessageDelivery, Handled, InboxSettings } from './inbox/ground.ts'
import { bodyOfMessage, idOfMessage } from './inbox/message.ts'
import type { EntityVersion } from './inbox/message.ts'
import { offsetsOn } from './inbox/offsets.ts'
import { parkingOn } from './inbox/parked.ts'
import type { ParkedFilter, ParkedMessage, Parking } from './inbox/parked.ts'
import { redriven } from './inbox/redrive.ts'
import { inboxSchema } from './inbox/schema.sql.ts'
import { withCure } from '../clients/missing-tables.ts'

export type { BatchHandler, Consuming, Delivered, Message, MessageHandler, Receiver } from './broker.ts'
export type { DeadLetterReason, MessageDelivery, Handled, RefusedCode } from './inbox/ground.ts'
export type { EntityVersion } from './inbox/message.ts'
export type { ParkedCode, ParkedFilter, ParkedMessage } from './inbox/parked.ts'

export interface InboxOptions<M = Message> {
  /** Names the consumer. Each has its own marks: two consumers of one message have an effect each. */
  readonly consumer: string
  /** 'effectively-once' unless given. */
  readonly delivery?: MessageDelivery
  /**
   * The id of the logical message: the same when its sender sends it again. Unless given: source and id of a CloudEvent, else the id that
   * the sender or the broker gave it. A business id from the body is safer where a broker draws a new id for every send (SQS).
   */
  idOf?(message: M): string | undefined
  /** What the fingerprint is taken of. The body unless given. */
  bodyOf?(message: M): unknown
  /** The entity that the message changes, and its version: one that is not newer than the applied one is refused as STALE. SQL stores only. */
  versionOf?(message: M): EntityVersion | undefined
  /** How long a message is remembered. One that was sent longer ago is refused as TOO_OLD, and never run. 7 days unless given. */
  readonly windowMs?: number
  /** How often a message is tried before it is parked. 10 unless given. */
  readonly attempts?: number
  /** How long a handler may run. The `attemptMs` of `once` unless given. */
  readonly attemptMs?: number
  /** Encodes what is kept of a parked message, and what its handler said. Give it the codec of `once` where that encrypts. */
  readonly codec?: Codec
  /** Called for a message that is not run, before it is acknowledged. If it fails, the message comes again. */
  deadLetter?(message: M, reason: DeadLetterReason): unknown
  readonly clock?: Clock
  readonly random?: Random
}

export interface Inbox<Tx = unknown, M = Message> extends Receiver<Tx> {
  readonly delivery: MessageDelivery
  /** 'one-transaction' on a SQL store. Elsewhere 'claim-and-settle': a crash between effect and record runs the handler again. */
  readonly guarantee: 'one-transaction' | 'claim-and-settle'
  /** For a consumer that keeps its offsets in the transactions of its handlers. Undefined on a store without SQL. */
  readonly offsets: StoredOffsets | undefined
  /** Creates the tables of the inbox. Does nothing on a store without SQL. */
  migrate(): Promise<void>
  /** The same as SQL, for people who run their own migrations. */
  schema(): string
  /**
   * Handle a message, once. Resolves when it is done with (acknowledge it then). Throws what the handler threw, or IN_FLIGHT while
   * another process handles it: do not acknowledge it then.
   */
  handle(message: M, handler: MessageHandler<Tx, M>): Promise<Handled>
  /** Handle many in one transaction. `failed` and `busy` in the answers must come again, all others may be acknowledged. */
  handleBatch(messages: readonly M[], handler: BatchHandler<Tx, M>): Promise<readonly Handled[]>
  /** Messages that wait for a person, in the order of their ids. */
  parked(filter?: Omit<ParkedFilter, 'scope'>): Promise<readonly ParkedMessage[]>
  /**
   * Ask for parked messages to be run again, up to 1,000 of them. Returns how many. A consumer runs them with `runRedriven`. With a reason it
   * is audited.
   */
  redrive(filter?: Omit<ParkedFilter, 'scope'>, reason?: string): Promise<number>
  /**
   * Remove parked messages that are never to be run, up to 1,000 of them. Returns how many. Audited. One that comes again within the window is
   * refused as before.
   */
  discard(filter: Omit<ParkedFilter, 'scope'>, reason: string): Promise<number>
  /** Run the parked messages that somebody has redriven, each once. Returns how many were done. */
  runRedriven(handler: MessageHandler<Tx, M>): Promise<number>
}

const consumerRule = (value: unknown): string | undefined =>
  typeof value === 'string' && /^[\w.:-]{1,100}$/.test(value)
    ? undefined
    : '1 to 100 letters, digits, underscores, dots, colons and dashes'

const rules = {
  consumer: consumerRule,
  delivery: optional(oneOf('effectively-once', 'at-most-once', 'at-least-once')),
  idOf: optional(aFunction),
  bodyOf: optional(aFunction),
  versionOf: optional(aFunction),
  windowMs: optional(positiveMs),
  attempts: optional(positiveInteger),
  attemptMs: optional(positiveMs),
  codec: optional(withMethods('encode', 'decode')),
  deadLetter: optional(aFunction),
  clock: optional(withMethods('now', 'elapsed', 'schedule')),
  random: optional(withMethods('uuid', 'fraction')),
}

const dayMs = 86_400_000

/**
 * The idempotent consumer on the store of `once`: handlers are given a transaction, and the message is marked in it.
 *
 * @example
 * import pg from 'pg'
 * import { createOnce } from 'onceonly'
 * import { createInbox } from 'onceonly/inbox'
 * import { postgresStore } from 'onceonly/postgres'
 *
 * const once = createOnce({ store: postgresStore({ pool: new pg.Pool() }), scope: 'shop' })
 * const inbox = createInbox(once, { consumer: 'mailer' })
 * await inbox.migrate()
 * const message = { id: 'order-42', topic: 'orders', body: Buffer.from('{}'), headers: {}, raw: undefined }
 * await inbox.handle(message, (tx) => tx.query('insert into mails (order_id) values (42)'))
 */
export function createInbox<S extends Store, M = Message>(
  once: OnceRunner<S>,
  options: InboxOptions<M>,
): Inbox<[TxOf<S>] extends [never] ? undefined : TxOf<S>, M>
export function createInbox(once: OnceRunner, options: InboxOptions<never>): Inbox<unknown, never> {
  checkOptions('createInbox', options, rules)
  const found = databaseOf(once.store)
  const database = found && withCure(found, 'inbox')
  const given = options as InboxOptions<unknown>
  if (!database && given.versionOf) {
    throw new OnceError('UNSUPPORTED', {
      message: `createInbox: versionOf needs a SQL store (postgres, mysql, sqlite), and this one is ${once.store.name}.`,
    })
  }
  const settings = settingsOf(once, given)
  const delivering: Delivering<unknown> = {
    settings,
    delivery: given.delivery ?? 'effectively-once',
    ground: database ? byTransaction(database, settings) : byClaim(once, settings),
    reading: {
      idOf: given.idOf ?? ((message) => idOfMessage(message as Partial<Message>)),
      bodyOf: given.bodyOf ?? bodyOfMessage,
      versionOf: given.versionOf,
    },
    sweepAfterMs: settings.clock.elapsed(),
  }
  const { scope } = settings
  return {
    consumer: given.consumer,
    attempts: settings.attempts,
    delivery: delivering.delivery,
    guarantee: delivering.ground.guarantee,
    offsets: database && offsetsOn(database, scope),
    migrate: async () => database?.migrate(inboxSchema(database)),
    schema: () => (database ? `${inboxSchema(database).join(';\n\n')};\n` : ''),
    async handle(message, handler) {
      const run = (tx: unknown, [only]: readonly unknown[]): unknown => handler(tx, only as never)
      const [handled] = await handleMany(delivering, [message], run)
      if (handled!.is === 'failed') throw handled!.error
      if (handled!.is === 'busy') throw inFlight(scope, handled!.retryAfterMs)
      return handled!
    },
    handleBatch: (messages, handler) => handleMany(delivering, messages, (tx, fresh) => handler(tx, fresh as never)),
    deliver: (message, handler, acknowledge) =>
      deliverOne(delivering, message, (tx, [only]) => handler(tx, only as Message), acknowledge),
    deliverBatch: (messages, handler, acknowledge) =>
      deliverMany(delivering, messages, (tx, fresh) => handler(tx, fresh as readonly Message[]), acknowledge),
    parked: (filter = {}) => parkingOf(database, once, given.codec).list({ ...filter, scope }),
    redrive: (filter = {}, reason) => changeParked(database, once, { ...filter, scope }, { what: 'redrive', reason }),
    discard: (filter, reason) => changeParked(database, once, { ...filter, scope }, { what: 'discard', reason }),
    runRedriven: (handler) => {
      parkingOf(database, once)
      const run = (tx: unknown, message: unknown): unknown => handler(tx, message as never)
      return redriven({ database: database!, settings, reading: delivering.reading, handler: run })
    },
  }
}

/** What a person can do with parked messages, on any SQL store. */
export interface InboxByHand {
  migrate(): Promise<void>
  parked(filter?: ParkedFilter): Promise<readonly ParkedMessage[]>
  /** With a reason it is audited. */
  redrive(filter?: ParkedFilter, reason?: string): Promise<number>
  /** Audited. */
  discard(filter: ParkedFilter, reason: string): Promise<number>
}

/**
 * Parked messages of all consumers of a store, for tools. A consumer has the same for its own as `inbox.parked` and `inbox.redrive`.
 *
 * @example
 * import { inboxByHand } from 'onceonly/inbox'
 * import { sqliteStore } from 'onceonly/sqlite'
 *
 * const parked = await inboxByHand(sqliteStore({ path: 'once.db' })).parked({ code: 'ATTEMPTS' })
 */
export function inboxByHand(store: Store): InboxByHand {
  const found = databaseOf(store)
  const database = found && withCure(found, 'inbox')
  const parking = parkingOf(database, { store })
  return {
    migrate: () => database!.migrate(inboxSchema(database!)),
    parked: (filter = {}) => parking.list(filter),
    redrive: (filter = {}, reason) => changeParked(database, { store }, filter, { what: 'redrive', reason }),
    discard: (filter, reason) => changeParked(database, { store }, filter, { what: 'discard', reason }),
  }
}

interface ParkedChange {
  readonly what: MessageChange
  readonly reason: string | undefined
}

// More than a person looks through, and few enough for one call.
const changedMax = 1_000

async function changeParked(
  database: SqlDatabase | undefined,
  { store }: { readonly store: Store },
  filter: ParkedFilter,
  { what, reason }: ParkedChange,
): Promise<number> {
  const parking = parkingOf(database, { store })
  if (what === 'discard' || reason !== undefined) checkRecordedReason(`inbox.${what}`, reason)
  const found = await parking.list({ limit: changedMax, ...filter })
  let changed = 0
  for (const parked of found) {
    if (what === 'redrive' && parked.isRedriven) continue
    const change = (): Promise<boolean> => parking[what](parked)
    if (reason === undefined ? await change() : await onRecord(store, parked, { what, reason }, change)) changed += 1
  }
  return changed
}

function parkingOf(database: SqlDatabase | undefined, { store }: { readonly store: Store }, codec?: Codec): Parking {
  if (database) return parkingOn(database, codec)
  throw new OnceError('UNSUPPORTED', {
    message:
      `The ${store.name} store keeps no parked messages: give createInbox a deadLetter function, or use a SQL store ` +
      '(postgres, mysql, sqlite).',
  })
}

function settingsOf(once: OnceRunner, options: InboxOptions<unknown>): InboxSettings<unknown> {
  const { consumer, windowMs = 7 * dayMs, attempts = 10, clock = systemClock, random = systemRandom } = options
  return {
    scope: key(`${once.scope}/inbox/${consumer}`, 'a message').scope,
    attempts,
    attemptMs: options.attemptMs ?? once.settings.attemptMs,
    windowMs,
    clock,
    random,
    codec: options.codec,
    deadLetter: options.deadLetter,
  }
}

function inFlight(scope: string, retryAfterMs: number): OnceError {
  return new OnceError('IN_FLIGHT', {
    message: `Another process handles this message of ${scope} now. Do not acknowledge it: it comes again, and is a duplicate then.`,
    retryAfterMs,
  })
}

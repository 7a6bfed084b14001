// The transactional outbox: an event is a row that commits with what it tells of, or does not exist. A relay publishes it afterwards.
//
// Order. Every ordering key belongs to one of 1,024 lanes by its hash. `add` locks the lane in the caller's transaction and takes the
// row's position under that lock, which the database holds until the commit. So within a lane, and hence for a key, the order of
// positions is the order of commits, and nothing can commit behind a position that a relay has seen. The lock is a row of a small table:
// it works with every client library and under PgBouncer in transaction mode. On PostgreSQL the row is only locked, and positions come
// from a sequence. On MySQL and SQLite the row is the counter.
//
// What it costs: a transaction that has added to the outbox keeps others of its lane waiting until it ends, also a few that have another
// key (1 of 1,024). So add last, and all events in one call: `add` locks the lanes of one call in their order, while transactions that call
// it several times with several keys can meet in a deadlock, which the database resolves by a conflict. Two round trips on
// PostgreSQL, four on MySQL.
//
// Sent marks are not in the table of the events, which is only inserted into, as change-data-capture expects it: a cursor per lane
// stands in the row of a shard, with the epoch of the relay that works on it.

import { databaseOf } from '../clients/sql-database.ts'
import { backoffMs, countedBackoffs } from '../core/backoff.ts'
import { sleep, systemClock, systemRandom } from '../core/clock.ts'
import type { Clock, Random } from '../core/clock.ts'
import { OnceError } from '../core/errors.ts'
import { newId } from '../core/key.ts'
import { aFunction, checkOptions, oneOf, optional, positiveMs, withMethods } from '../core/options.ts'
import type { Store } from '../core/store.ts'
import { addRows } from './outbox/adding.ts'
import { checkEvent, rowOf, shortLine } from './outbox/envelope.ts'
import type { EnvelopeMode, OutboxEvent, OutboxRow } from './outbox/envelope.ts'
import { heldCalls } from './outbox/held.ts'
import type { HeldCalls } from './outbox/held.ts'
import { laneOf, lanesCount } from './outbox/lanes.ts'
import { markCalls } from './outbox/marking.ts'
import { readCalls } from './outbox/reading.ts'
import { retainCalls } from './outbox/retention.ts'
import { mysqlOutbox, postgresOutbox, sqliteOutbox } from './outbox/schema.sql.ts'
import { shardCalls } from './outbox/shards.ts'
import { statusCalls } from './outbox/status.ts'
import { offerTables, outboxTables } from './outbox/tables.ts'
import type { OutboxTables } from './outbox/tables.ts'
import { orMissingTable } from '../clients/missing-tables.ts'
import type { RelayOutbox, RelaySource, RelayStatus } from './relay.ts'

export { createRelay, functionPublisher } from './relay.ts'
export type {
  FailurePolicy,
  HeldState,
  Relay,
  RelayOptions,
  RelayOutbox,
  RelayRun,
  RelaySource,
  RelayStatus,
} from './relay.ts'
export { createDecoding } from './outbox/decoding.ts'
export type { Decoding, DecodingOptions, ReplicationLibrary, ReplicationService } from './outbox/decoding.ts'
export type { OutboxEvent } from './outbox/envelope.ts'
export type { DeadLetter, DeadLetterFilter } from './outbox/held.ts'
export type { Outgoing, Published, Publisher, ShardedPublisher } from './broker.ts'

export interface OutboxOptions<Tx> {
  /** A store on PostgreSQL, MySQL, MariaDB or SQLite. The tables of the outbox lie beside its own. */
  readonly store: Store & { within(tx: Tx): unknown }
  /** The `source` of every CloudEvent: which service speaks. 1 to 255 bytes. */
  readonly source: string
  /** 'binary' unless given: attributes are headers, and the body is the data. 'structured': the body is the whole event as JSON. */
  readonly envelope?: EnvelopeMode
  /** How many relays can work at once. The first `migrate` fixes it. 8 unless given. */
  readonly shards?: number
  /** How long sent rows are kept at least. 3 days unless given. PostgreSQL keeps them up to twice as long. */
  readonly keepMs?: number
  /** The trace context of the moment, for events that have none of their own. */
  readonly traceparent?: () => string | undefined
  readonly clock?: Clock
  readonly random?: Random
}

export interface Outbox<Tx> extends RelayOutbox, HeldCalls {
  /**
   * Adds events in the caller's transaction: they leave if it commits. Resolves to their ids (UUIDv7), which every transport uses to
   * recognise duplicates.
   */
  add(tx: Tx, event: OutboxEvent): Promise<string>
  add(tx: Tx, events: readonly OutboxEvent[]): Promise<readonly string[]>
  /** Looks for rows at once, in relays of this process: for a caller that has just committed. */
  wake(): void
  /** Creates the tables. Safe to run from several processes. */
  migrate(): Promise<void>
  /** The same as SQL, for migrations of your own. */
  schema(): string
  status(): Promise<RelayStatus>
  /** For a relay. */
  readonly rows: RelaySource
}

const dayMs = 86_400_000

/**
 * An outbox beside the tables of a SQL store: events that commit with the caller's transaction, for a relay to publish.
 *
 * @example
 * ```ts
 * import pg from 'pg'
 * import { createOnce } from 'onceonly'
 * import { createOutbox } from 'onceonly/outbox'
 * import { postgresStore } from 'onceonly/postgres'
 *
 * const store = postgresStore({ pool: new pg.Pool({ connectionString: 'postgres://127.0.0.1/shop' }) })
 * const once = createOnce({ store, scope: 'shop' })
 * const outbox = createOutbox({ store, source: 'shop' })
 *
 * await once.transaction('order-42', async (tx) => {
 *   await tx.query('insert into orders values ($1)', ['order-42'])
 *   await outbox.add(tx, { topic: 'orders', key: 'order-42', type: 'order.placed', data: { total: 1999 } })
 * })
 * ```
 */
export function createOutbox<Tx>(options: OutboxOptions<Tx>): Outbox<Tx> {
  checkOptions('createOutbox', options, {
    store: withMethods('claim'),
    source: shortLine,
    envelope: optional(oneOf('binary', 'structured')),
    shards: optional((value) =>
      Number.isInteger(value) && (value as number) > 0 && (value as number) <= lanesCount
        ? undefined
        : `an integer from 1 to ${lanesCount}`,
    ),
    keepMs: optional(positiveMs),
    traceparent: optional(aFunction),
    clock: optional(withMethods('now', 'schedule')),
    random: optional(withMethods('bytes')),
  })
  const tables = tablesOf(options.store)
  const { shards = 8, keepMs = 3 * dayMs } = options
  const periodMs = Math.ceil(keepMs / 2)
  const statements = schemaOf(tables, shards)
  const listeners = new Set<(lanes?: readonly number[]) => void>()
  const wake = (lanes?: readonly number[]): void => listeners.forEach((listener) => listener(lanes))

  async function add(tx: Tx, given: OutboxEvent | readonly OutboxEvent[]): Promise<string | readonly string[]> {
    const isOne = !Array.isArray(given)
    const rows = rowsOf(options, isOne ? [given as OutboxEvent] : (given as readonly OutboxEvent[]))
    const session = tables.database.join(tx, 'outbox.add')
    try {
      if (rows.length > 0) await addRows({ tables, periodMs }, session, rows)
    } catch (error) {
      throw orMissingTable(error, 'outbox')
    }
    wake(rows.map(({ lane }) => lane))
    return isOne ? rows[0]!.id : rows.map(({ id }) => id)
  }

  const cure = (error: unknown): never => {
    throw orMissingTable(error, 'outbox')
  }
  const held = heldCalls(tables, options.store)
  const rows: RelaySource = {
    ...shardCalls(tables),
    ...readCalls(tables),
    ...markCalls(tables),
    ...retainCalls(tables, keepMs, periodMs),
    ...statusCalls(tables),
  }
  const outbox: Outbox<Tx> = {
    add: add as Outbox<Tx>['add'],
    wake: () => wake(),
    onAdded(listener) {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
    migrate: () => migrate(tables, statements, options.clock ?? systemClock),
    schema: () => `${statements.join(';\n')};\n`,
    status: () => rows.status().catch(cure),
    rows,
    deadLetters: (filter) => held.deadLetters(filter).catch(cure),
    redrive: (filter, reason) => held.redrive(filter, reason).catch(cure).finally(wake),
    discard: (filter, reason) => held.discard(filter, reason).catch(cure).finally(wake),
  }
  return offerTables(outbox, tables)
}

/** What a person can do with an outbox. */
export type OutboxByHand = Pick<Outbox<never>, 'migrate' | 'status' | 'deadLetters' | 'redrive' | 'discard'>

/**
 * The outbox of a store, for tools: how far behind its relays are, and what they could not publish. It adds nothing.
 *
 * @example
 * import { outboxByHand } from 'onceonly/outbox'
 * import { sqliteStore } from 'onceonly/sqlite'
 *
 * const { unsent, parked } = await outboxByHand(sqliteStore({ path: 'once.db' })).status()
 */
export function outboxByHand(store: Store): OutboxByHand {
  // Nothing is added, so nobody sees its source.
  return createOutbox<never>({ store: store as Store & { within(tx: never): unknown }, source: 'onceonly' })
}

// Every statement leaves alone what is there. Two processes that insert the same rows can meet in a deadlock on MySQL.
async function migrate({ database }: OutboxTables, statements: readonly string[], clock: Clock): Promise<void> {
  for (let tries = 1; ; tries++) {
    try {
      return await database.migrate(statements)
    } catch (error) {
      if (!isConflict(error) || tries === countedBackoffs.statement.triesMax) throw error
      await sleep(clock, backoffMs(countedBackoffs.statement, tries, systemRandom))
    }
  }
}

function isConflict(error: unknown): boolean {
  return error instanceof OnceError && error.code === 'TRANSACTION_CONFLICT'
}

function tablesOf(store: Store): OutboxTables {
  const database = databaseOf(store)
  if (database) return outboxTables(database)
  throw new OnceError('UNSUPPORTED', {
    message: `An outbox needs a store on PostgreSQL, MySQL, MariaDB or SQLite, and ${store.name} is none. Its events must commit with the caller's transaction.`,
  })
}

function schemaOf({ database, names }: OutboxTables, shards: number): readonly string[] {
  if (database.dialect === 'postgres') return postgresOutbox(names, shards)
  return database.dialect === 'mysql' ? mysqlOutbox(names, shards) : sqliteOutbox(names, shards)
}

function rowsOf<Tx>(options: OutboxOptions<Tx>, events: readonly OutboxEvent[]): readonly OutboxRow[] {
  const { source, envelope: mode = 'binary', clock = systemClock, random = systemRandom } = options
  for (const event of events) checkEvent(event)
  const traceparent = options.traceparent?.()
  const atMs = clock.now()
  const ids = events.map(() => newId(clock, random))
  // Rows without a key need no order: those of one call share a lane, and so a lock.
  const lane = ids.length > 0 ? laneOf(ids[0]!) : 0
  return events.map((event, index) => rowOf(event, lane, { mode, source, id: ids[index]!, atMs, traceparent }))
}

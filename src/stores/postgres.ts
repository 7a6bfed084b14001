// The durable store. Claims and writes of one moment share one statement, one round trip and one commit, and none of them waits
// for a transaction of others. Functions in the database decide (postgres/decisions.sql.ts). This file says which is called when.
// The store keeps no session state, so a pooler in transaction mode (PgBouncer) may stand in between.
//
// How it keeps the invariants, and what that costs:
// - the decisions are versioned plpgsql functions (`postgres/decisions.sql.ts`) that `migrate()` creates.
// - Atomic, one round trip, planned once: a batch of claims or settles is one statement. Look-ups are pinned to the primary key
//   (`SET enable_seqscan = off` on the functions), so that a plan made on an empty table does no harm on a full one, and is kept
//   (`plan_cache_mode`). Costs: the role that migrates must be allowed to create functions, and a change of logic is a new version
//   of them.
// - No call waits: an entry is inserted only under `pg_try_advisory_xact_lock` of its key and by a statement that looked for it
//   after that, and changed only under `FOR UPDATE SKIP LOCKED`. Costs: slots of the lock table, and some 50 B of WAL per settle.
// - Retention at scale (`periodMs`, `postgres/periods.sql.ts`): the table becomes a ring of five tables, by the period in which
//   an entry is forgotten. Each is emptied whole by TRUNCATE, and what would outlive its table is moved. No index spans the ring:
//   uniqueness rests on the key's lock and the look after it. Costs: six index descents per look-up, entries up to a period
//   longer on disk, tombstones with their contents until then. `periodMs` must be at least a quarter of keepMs + tombstoneMs, or
//   entries are swept row by row.
// - One set of functions for both layouts, so the switch is online and old processes keep working. The lock's seed is the number
//   of the audit table, because the switch replaces the entries table. Costs: a claim reads whether there are periods.
// - The straight way (`postgres/straight.ts`, `postgres/operate.ts`): through a pool of pg, claims, settles, enlistings and advances are
//   prepared statements with binary parameters, and so is what begins and ends a transaction of ours. Where a pooler does not keep
//   prepared statements apart, they go without names, and transactions as text. Costs: a second way to claim, which is right only on
//   the simple table at READ COMMITTED, and leaves every other case to the first.
// - All other statements of the store, and all through postgres.js, are text without parameters, with every value through one
//   quoting function. So pg, postgres.js, Drizzle, Kysely and Knex share one path, several statements fit one round trip, and PgBouncer
//   in transaction mode works. Costs: base64 is a third longer.
// - `begin` writes nothing for a new key: it takes the lock and reads. The settled row is inserted just before COMMIT, in the
//   same message. At REPEATABLE READ an old snapshot can let a second begin through. Its transaction is then refused as a
//   conflict at its commit, and tried again.
// - COMMIT is never repeated, and its tag is checked. A connection in an unknown state is destroyed. `sweep_at` is the only
//   indexed time. Settle and extend do not touch `sweep_at`, so that they are HOT updates (fillfactor 30).
// - `unfinished` has its own index (in MySQL, too). Costs: some 130 B of WAL per enlisting. A plain claim does not touch it.
// - An index is created only when it is not there: IF NOT EXISTS waits for every transaction that has written to the table, and
//   claims wait behind it.

import { backoffMs, countedBackoffs } from '../core/backoff.ts'
import { sleep, systemClock, systemRandom } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import { checkOptions, identifier, oneOf, optional, positiveMs, withMethods } from '../core/options.ts'
import type {
  InTransaction,
  Inspectable,
  Migratable,
  Recoverable,
  StepLedger,
  Store,
  Sweepable,
  Transactional,
  TransactionalSteps,
} from '../core/store.ts'
import { watchingLent } from '../clients/lent-connections.ts'
import { offerDatabase } from '../clients/sql-database.ts'
import { bindsValues, connectionsOf, firstAnswer, poolSizeOf, postgresTransactionOf } from '../clients/postgres.ts'
import type {
  PgPool,
  PgPoolClient,
  PostgresConnections,
  PostgresJs,
  PostgresJsReserved,
  PostgresTransaction,
} from '../clients/postgres.ts'
import { alone, batching } from './postgres/batches.ts'
import type { Batched } from './postgres/batches.ts'
import type { PostgresContext } from './postgres/context.ts'
import { postgresDatabase } from './postgres/database.ts'
import { isConflict, lockNotAvailable, sqlStateOf, storeError } from './postgres/errors.ts'
import { readiness } from './postgres/fitness.ts'
import { inspection } from './postgres/inspection.ts'
import { operations, sweepOperationsStatement } from './postgres/operations.ts'
import { periodsSteps } from './postgres/periods.sql.ts'
import { schemaSql } from './postgres/schema.sql.ts'
import {
  inPeriodsStatement,
  migratedStatement,
  migrationLock,
  shortLockTimeout,
  sweepStatement,
  writeCall,
} from './postgres/statements.ts'
import { straightClaim, straightSettle } from './postgres/straight.ts'
import { begin, within } from './postgres/transactions.ts'
import { askForClaim, askForWrite } from './sql-answers.ts'

export type { PostgresTransaction } from '../clients/postgres.ts'
export { postgresFitness } from './postgres/fitness.ts'
export type { PostgresFitnessOptions } from './postgres/fitness.ts'

export interface PostgresStoreOptions<Pool extends PgPool | PostgresJs = PgPool | PostgresJs> {
  /** A `Pool` of pg, or the `sql` of postgres.js. */
  readonly pool: Pool
  /** 'onceonly' unless given. */
  readonly table?: string
  /** Unless given, the search path decides. */
  readonly schema?: string
  /**
   * 'full' refuses to work with a setting that loses acknowledged commits in a crash (fsync, full_page_writes or
   * synchronous_commit off, an unlogged table). 'relaxed' accepts it, and warns once with process.emitWarning.
   */
  readonly durability?: 'full' | 'relaxed'
  /**
   * For tables that are large: `migrate()` puts the table into periods of this length. Entries that are forgotten in the same
   * period lie together, and a sweep empties them at once instead of deleting row by row. At least a quarter of the longest
   * keepMs + tombstoneMs. What is kept for longer is still deleted row by row. See docs/operating.md.
   */
  readonly periodMs?: number
  readonly clock?: Clock
}

/** What the effect of `once.transaction` writes with: the client of a pg pool, the reserved sql of postgres.js. */
export type PostgresClientOf<Pool> = Pool extends { reserve(): Promise<infer Reserved> }
  ? Reserved
  : Pool extends { connect: { (): Promise<infer Client>; (...rest: never): unknown } }
    ? Client
    : PgPoolClient | PostgresJsReserved

export interface PostgresStore<Client = PgPoolClient | PostgresJsReserved>
  extends
    Store,
    Transactional<Client>,
    StepLedger,
    TransactionalSteps<Client>,
    Recoverable,
    Sweepable,
    Inspectable,
    Migratable {
  /** An open transaction of pg, postgres.js, Drizzle, Kysely, Knex or Prisma on the same database. */
  within(tx: Client | PostgresTransaction): InTransaction
}

/**
 * Keeps entries in PostgreSQL, through a pool of pg or the `sql` of postgres.js. Run `await store.migrate()` once before its first use.
 *
 * @example
 * import pg from 'pg'
 * import { createOnce } from 'onceonly'
 * import { postgresStore } from 'onceonly/postgres'
 *
 * const store = postgresStore({ pool: new pg.Pool({ connectionString: 'postgres://127.0.0.1/shop' }) })
 * await store.migrate()
 * const once = createOnce({ store, scope: 'payments' })
 */
export function postgresStore<Pool extends PgPool | PostgresJs>(
  options: PostgresStoreOptions<Pool>,
): PostgresStore<PostgresClientOf<Pool>> {
  checkOptions('postgresStore', options, {
    pool: (value) =>
      clientRules.some((rule) => rule(value) === undefined) ? undefined : 'a Pool of pg or the sql of postgres.js',
    table: optional(identifier),
    schema: optional(identifier),
    durability: optional(oneOf('full', 'relaxed')),
    periodMs: optional(positiveMs),
    clock: optional(withMethods('schedule')),
  })
  type Client = PostgresClientOf<Pool>
  const { clock = systemClock, durability = 'full', periodMs, schema, table = 'onceonly' } = options
  const names = { table, schema }
  const size = poolSizeOf(options.pool)
  const connections: PostgresConnections<Client> = watchingLent(connectionsOf<Client>(options.pool, { clock }), {
    clock,
    size,
  })
  const protocol = { binds: bindsValues(options.pool), keepsPrepared: true }
  const context: PostgresContext<Client> = { names, clock, connections, protocol, ready: readiness(names, durability) }
  const batched = batching(context)
  const runAlone = alone(context)
  const store: PostgresStore<Client> = {
    name: 'postgres',
    ...batchedCalls(clock, batched),
    ...operations(context, batched, runAlone),
    within: (tx) => within(context, postgresTransactionOf(tx, 'postgresStore')),
    begin: (key, request) => begin(context, key, request),
    isConflict,
    async sweep({ limit }) {
      const [answer] = await runAlone(sweepStatement(names, limit), 'sweep')
      const [tombstoned, forgotten, more] = answer!.split(' ').map(Number)
      const [moreOperations] = await runAlone(sweepOperationsStatement(names, limit), 'sweep')
      return { tombstoned: tombstoned!, forgotten: forgotten!, more: more === 1 || moreOperations === '1' }
    },
    ...inspection(names, clock, runAlone),
    migrate: () => migrate(context, periodMs),
    schema: () => [schemaSql(names), ...(periodMs === undefined ? [] : periodsSteps(names, periodMs))].join('\n'),
  }
  return offerDatabase(store, postgresDatabase(context))
}

const clientRules = [withMethods('query', 'connect'), withMethods('unsafe', 'reserve')]

function batchedCalls(clock: Clock, batched: Batched): Pick<Store, 'claim' | 'extend' | 'settle' | 'release'> {
  const server = { clock, storeError }
  return {
    async claim(key, request) {
      const call = straightClaim(key, request)
      return askForClaim(server, key, request, () => batched(call))
    },
    async extend(claim, leaseMs) {
      const call = writeCall('extend', claim, leaseMs)
      return askForWrite(server, claim, 'extend', () => batched(call))
    },
    async settle(claim, outcome, retention) {
      const call = straightSettle(claim, outcome, retention)
      return askForWrite(server, claim, 'settle', () => batched(call))
    },
    async release(claim, how) {
      const call = writeCall(how, claim, 0)
      return askForWrite(server, claim, 'release', () => batched(call))
    },
  }
}

// One message, hence one transaction, per step. When there is nothing to do it locks nothing: CREATE INDEX IF NOT EXISTS waits
// for every transaction that writes to the table, and claims would wait behind it.
async function migrate(
  { names, clock, connections }: PostgresContext<unknown>,
  periodMs: number | undefined,
): Promise<void> {
  try {
    const isDone = async (statement: string): Promise<boolean> =>
      firstAnswer(await connections.run([statement])) === 'yes'
    if (!(await isDone(migratedStatement(names)))) await connections.run([migrationLock, schemaSql(names)])
    if (periodMs === undefined || (await isDone(inPeriodsStatement(names, periodMs)))) return
    for (const step of periodsSteps(names, periodMs)) await putIntoPeriods(clock, connections, step)
  } catch (error) {
    throw storeError(error, 'migrate', 'no')
  }
}

// These steps need a table for themselves that others use. Each waits a moment, lets the others pass, and tries again.
async function putIntoPeriods(clock: Clock, connections: PostgresConnections<unknown>, step: string): Promise<void> {
  for (let tries = 1; ; tries++) {
    try {
      await connections.run([migrationLock, shortLockTimeout, step])
      return
    } catch (error) {
      if (sqlStateOf(error) !== lockNotAvailable || tries === countedBackoffs.migration.triesMax) throw error
      await sleep(clock, backoffMs(countedBackoffs.migration, tries, systemRandom))
    }
  }
}

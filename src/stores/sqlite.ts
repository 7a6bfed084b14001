// The embedded store: one SQLite file, shared by any number of processes. Calls of one moment share one transaction and one
// commit. A read returns what is settled, and in WAL mode a read waits for no writer. The machine's clock is the store's clock.
//
// "A claim never waits for anyone": SQLite has one writer, and shows no other connection what is not committed. A claim that must
// write waits for the writer, for lockWaitMs at most, and is STORE_UNAVAILABLE after that. For a key that is uncommitted in a
// transaction of this store the claim is `busy` at once.
//
// How it keeps the invariants, and what that costs:
// - one row per entry in a WAL file with `synchronous` at least FULL, verified.
// - Atomic: `BEGIN IMMEDIATE`, and the decisions (`sqlite/entries.ts`) are synchronous. Calls of one moment share one transaction
//   and one commit. A verdict that a read can decide (settled, busy, mismatch) takes no write lock.
// - Never blocks the event loop: busy time-out 0 and asynchronous retry. SQLite has one writer. A claim that must write waits for
//   the writer, `lockWaitMs` at most, and is `STORE_UNAVAILABLE` then. A key uncommitted in a transaction of this store is `busy`
//   at once.
// - Its own connections, also when the store is given the user's database: on a shared handle the store's writes would fall into
//   whatever transaction is open there. Costs: pragmas and functions of the user's handle are missing on the `tx` of
//   `once.transaction`.
// - One library per file: two copies of SQLite in one process drop each other's locks (POSIX locks belong to the process,
//   measured). With better-sqlite3 give `{ database }`, never `{ path }` of the same file. `within` refuses a handle of another
//   library.
// - The dispatch of a batch waits one turn of the event loop, because a commit blocks it: 2.3k/s became 14.9k/s with effects of a
//   few milliseconds at c=64. Costs about 0.1 ms at c=1.
// - Time: the machine's clock is read once, what passes is counted, and the file keeps a mark of the latest time at which any
//   process wrote (`sqlite/time.ts`). A clock that is set, in a living process or before a restart, revives nothing and freezes
//   no lease.

import type { DatabaseSync } from 'node:sqlite'
import { offerDatabase } from '../clients/sql-database.ts'
import { fileOf } from '../clients/sqlite.ts'
import type { SqliteDatabase } from '../clients/sqlite.ts'
import { systemClock } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import { invalidArgument } from '../core/errors.ts'
import type { Key } from '../core/key.ts'
import {
  aString,
  checkOptions,
  identifier,
  oneOf,
  optional,
  positiveInteger,
  positiveMs,
  withMethods,
} from '../core/options.ts'
import type {
  ClaimRequest,
  Inspectable,
  Migratable,
  Recoverable,
  StepLedger,
  Store,
  Sweepable,
  SyncTransactional,
  Transactional,
  TransactionalSteps,
  Verdict,
} from '../core/store.ts'
import { callsOn } from './sqlite/batches.ts'
import type { SqliteGround } from './sqlite/batches.ts'
import { isConflict, sqliteDatabase } from './sqlite/database.ts'
import { asOnceError, isBusy } from './sqlite/errors.ts'
import { checkDurability } from './sqlite/fitness.ts'
import type { Durability } from './sqlite/fitness.ts'
import { schemaSql } from './sqlite/schema.ts'
import { moments } from './sqlite/time.ts'
import { transactionsOn } from './sqlite/transactions.ts'
import { turns } from './sqlite/turns.ts'
import { uncommittedKeys, withinOn } from './sqlite/within.ts'

export type { SqliteDatabase, SqliteStatement, SqliteValue } from '../clients/sqlite.ts'
export { sqliteFitness } from './sqlite/fitness.ts'
export type { Durability, SqliteFitnessOptions } from './sqlite/fitness.ts'

interface CommonOptions {
  /** The name of the table, and the beginning of the names of those that belong to it. */
  readonly table?: string
  /** 'relaxed' gives up the promise for power cuts: commits need not be synced, neither ours nor those of `database`. */
  readonly durability?: Durability
  /**
   * How long a call waits for its turn among the writers of this process, and then for the lock of another process. Below
   * the 5 s of storeTimeoutMs, so that the error of this store is seen.
   */
  readonly lockWaitMs?: number
  readonly clock?: Clock
}

export interface SqliteFileOptions extends CommonOptions {
  /** The file, created when it is not there. Opened with node:sqlite. */
  readonly path: string
  readonly database?: undefined
}

/**
 * An open database of node:sqlite or better-sqlite3, for `within` and `withinSync`. The store's own calls run on separate
 * connections to the same file, by the same library: on the user's, they would fall into whatever transaction is open there.
 */
export interface SqliteDatabaseOptions<Database extends SqliteDatabase> extends CommonOptions {
  readonly database: Database
  readonly path?: undefined
}

export interface SqliteStore<Tx extends SqliteDatabase = DatabaseSync>
  extends
    Store,
    Transactional<Tx>,
    SyncTransactional<Tx>,
    StepLedger,
    TransactionalSteps<Tx>,
    Recoverable,
    Sweepable,
    Inspectable,
    Migratable {
  /** Closes the connections of the store. `database` stays open. */
  close(): void
}

const rules = {
  path: optional(aString),
  database: optional(withMethods('exec', 'prepare', 'close')),
  table: optional(identifier),
  durability: optional(oneOf('full', 'relaxed')),
  lockWaitMs: optional(positiveMs),
  clock: optional(withMethods('now', 'elapsed', 'schedule')),
}

/**
 * The tables of the store as SQL, for your own tool that creates them. Opens no file.
 *
 * @example
 * import { sqliteSchema } from 'onceonly/sqlite'
 *
 * console.log(sqliteSchema({ table: 'payments_once' }))
 */
export function sqliteSchema(options: Pick<SqliteFileOptions, 'table'> = {}): string {
  checkOptions('sqliteSchema', options, { table: rules.table })
  return schemaSql(options.table ?? 'onceonly')
}

/**
 * A store in one SQLite file, which any number of processes share.
 *
 * @example
 * import { createOnce } from 'onceonly'
 * import { sqliteStore } from 'onceonly/sqlite'
 *
 * const once = createOnce({ store: sqliteStore({ path: 'once.db' }), scope: 'payments' })
 * const { value } = await once.run('order-42', () => ({ receipt: 'r1' }))
 */
export function sqliteStore(options: SqliteFileOptions): SqliteStore<DatabaseSync>
export function sqliteStore<Database extends SqliteDatabase>(
  options: SqliteDatabaseOptions<Database>,
): SqliteStore<Database>
export function sqliteStore(
  options: SqliteFileOptions | SqliteDatabaseOptions<SqliteDatabase>,
): SqliteStore<SqliteDatabase> {
  checkOptions('sqliteStore', options, rules)
  const ground = layGround(options)
  const calls = callsOn(ground)
  // At once, so that a wrong path fails here and not at the first request. While another process has the lock, the first request
  // does it.
  try {
    calls.makeReady()
  } catch (error) {
    if (!isBusy(error)) {
      calls.close()
      throw asOnceError(error)
    }
  }
  const uncommitted = uncommittedKeys()
  const transactions = transactionsOn(ground, uncommitted)
  const look = (key: Key, request: ClaimRequest): Verdict | undefined =>
    calls.look(key, request) ?? uncommitted.verdict(key)
  const store: SqliteStore<SqliteDatabase> = {
    name: 'sqlite',
    claim: async (key, request) => look(key, request) ?? calls.write((entries) => entries.claim(key, request)),
    extend: (claim, leaseMs) => calls.write((entries) => entries.extend(claim, leaseMs)),
    settle: (claim, outcome, retention) => calls.write((entries) => entries.settle(claim, outcome, retention)),
    release: (claim, how) => calls.write((entries) => entries.release(claim, how)),
    async begin(key, request) {
      await calls.read(() => undefined) // makes sure that the tables are there
      const verdict = look(key, request)
      return verdict ? { verdict } : transactions.begin(key, request)
    },
    ...withinOn(ground, uncommitted),
    isConflict,
    async sweep(given) {
      checkOptions('sweep', given, { limit: positiveInteger })
      return calls.write((entries) => entries.sweep(given.limit))
    },
    enlist: async (key, request) => look(key, request) ?? calls.write((all) => all.enlist(key, request)),
    ledger: (key) => calls.read((all) => all.ledger(key)),
    advance: (claim, change) => calls.write((all) => all.advance(claim, change)),
    beginStep: (claim) => transactions.beginStep(claim),
    // Mostly nothing is due, and a read waits for no writer.
    due: async (scope, { limit, holdMs }) =>
      (await calls.read((all) => all.isAnyDue(scope))) ? calls.write((all) => all.due(scope, limit, holdMs)) : [],
    dismiss: (operation) => calls.write((all) => all.dismiss(operation)),
    requestCancel: (key, reason) => calls.write((all) => all.requestCancel(key, reason)),
    unfinished: (scope, { after = '', limit }) => calls.read((all) => all.unfinished(scope, after, limit)),
    show: (key) => calls.read((entries) => entries.show(key)),
    list: (filter) => calls.read((entries) => entries.list(filter)),
    mend: (key, action, reason) => calls.write((entries) => entries.mend(key, action, reason)),
    audit: (key) => calls.read((entries) => entries.audit(key)),
    migrate: () => calls.migrate(),
    schema: () => schemaSql(ground.table),
    close() {
      transactions.close()
      calls.close()
    },
  }
  return offerDatabase(store, sqliteDatabase(ground, calls, transactions))
}

function layGround(options: SqliteFileOptions | SqliteDatabaseOptions<SqliteDatabase>): SqliteGround {
  const { path, database, table = 'onceonly', durability = 'full', lockWaitMs = 4_000, clock = systemClock } = options
  if ((path === undefined) === (database === undefined)) {
    throw invalidArgument('sqliteStore: expected either path or database')
  }
  const common = { table, durability, lockWaitMs, clock, moments: moments(clock), turns: turns(clock) }
  try {
    // WAL is a property of the file: the store sets it on its own file, and only checks it on the user's.
    if (database === undefined) return { ...common, ...connectWithNode(path), journal: 'wal' }
    checkDurability(database, durability)
    return { ...common, ...connectLike(database), journal: 'as it is' }
  } catch (error) {
    throw asOnceError(error)
  }
}

type Connect = Pick<SqliteGround, 'first' | 'connect'>

function connectWithNode(path: string): Connect {
  const { DatabaseSync } = process.getBuiltinModule('node:sqlite')
  const first = new DatabaseSync(path)
  // The same file also for those that come later, when the process may be in another folder.
  const file = fileInDisk(first)
  return { first, connect: () => new DatabaseSync(file) }
}

/**
 * By the library of this database: two copies of SQLite in one process (node:sqlite and better-sqlite3 bring one each) do
 * not know of each other's POSIX locks. When one closes the file, the system drops the other's locks, and two can write.
 */
function connectLike(database: SqliteDatabase): Connect {
  const Library = database.constructor as new (file: string) => SqliteDatabase
  if ((Library as unknown) === Object) {
    throw invalidArgument('sqliteStore: expected a database of node:sqlite or better-sqlite3, got a plain object')
  }
  const file = fileInDisk(database)
  return { first: new Library(file), connect: () => new Library(file) }
}

function fileInDisk(database: SqliteDatabase): string {
  const file = fileOf(database)
  if (file !== '') return file
  throw invalidArgument(
    'sqliteStore: expected a file, got a database in memory, which no second connection can see. Use memoryStore().',
  )
}

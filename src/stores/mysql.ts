// MySQL and MariaDB. Claims of one moment share one statement, one round trip and one commit, and so do settles. None of them waits
// for another transaction. The decisions are procedures in the database (mysql/decisions.sql.ts). This file sends the calls. The one
// atomic statement that a fresh claim rests on is an INSERT against the primary key.
//
// How it keeps the invariants, and what that costs:
// - the same idea in procedures. A step of an operation locks nothing until its commit, which waits a second at most for the row.
//   A savepoint marks the step's transaction, so that after a deadlock or a manual commit nothing is committed. Keys are
//   VARBINARY, as every collation folds something. Run on MariaDB 10.11 and on MySQL 9.7 (docs/stores.md).

import { systemClock } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import { checkOptions, identifier, oneOf, optional, positiveInteger, withMethods } from '../core/options.ts'
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
import { connectionsOf, poolSizeOf, sessionOf } from '../clients/mysql.ts'
import type {
  MysqlCallbackPool,
  MysqlConnections,
  MysqlPool,
  MysqlPoolConnection,
  MysqlTransaction,
} from '../clients/mysql.ts'
import type { Fitness } from '../core/fitness.ts'
import { batchAnswers, claimsStatement, settlesStatement, together } from './mysql/batches.ts'
import { isConflict, storeError } from './mysql/errors.ts'
import { fitness, readiness } from './mysql/fitness.ts'
import { inspection } from './mysql/inspection.ts'
import { operations } from './mysql/operations.ts'
import { migrate, schemaStatements } from './mysql/schema.ts'
import {
  claimCall,
  putStatement,
  settleCall,
  sweepStatement,
  sweepStepsStatement,
  takeStatement,
  writeCall,
} from './mysql/statements.ts'
import type { MysqlCall, MysqlWriteVerb } from './mysql/statements.ts'
import { begin, refuseTooLarge, within } from './mysql/transactions.ts'
import { retried } from './mysql/context.ts'
import type { MysqlAskingContext, MysqlContext } from './mysql/context.ts'
import { mysqlDatabase } from './mysql/database.ts'
import { askForClaim, askForWrite } from './sql-answers.ts'

export type { MysqlTransaction } from '../clients/mysql.ts'

export interface MysqlStoreOptions<Pool extends MysqlPool | MysqlCallbackPool = MysqlPool | MysqlCallbackPool> {
  /** What `createPool` of mysql2/promise or mysql2 returns, with a database. */
  readonly pool: Pool
  /** 'onceonly' unless given. The names of the other tables and of the procedures begin with it. */
  readonly table?: string
  /**
   * What to do about a setting with which a crash loses acknowledged commits (innodb_flush_log_at_trx_commit other than 1,
   * innodb_doublewrite off). 'full', the default, refuses to work. 'relaxed' warns once with process.emitWarning.
   */
  readonly durability?: 'full' | 'relaxed'
  readonly clock?: Clock
}

/** What the effect of `once.transaction` writes with: a connection of mysql2/promise, also when the pool has callbacks. */
export type MysqlClientOf<Pool> = Pool extends { promise(): { getConnection(): Promise<infer Client> } }
  ? Client
  : Pool extends { getConnection(): Promise<infer Client> }
    ? Client
    : MysqlPoolConnection

export interface MysqlStore<Client = MysqlPoolConnection>
  extends
    Store,
    Transactional<Client, Client | MysqlTransaction>,
    StepLedger,
    TransactionalSteps<Client>,
    Recoverable,
    Sweepable,
    Inspectable,
    Migratable {
  /** An open transaction of mysql2, Drizzle, Kysely or Knex on the same database. */
  within(tx: Client | MysqlTransaction): InTransaction
}

const rules = {
  pool: (value: unknown): string | undefined =>
    clientRules.some((rule) => rule(value) === undefined) ? undefined : 'a pool of mysql2 or mysql2/promise',
  table: optional(identifier),
  durability: optional(oneOf('full', 'relaxed')),
  clock: optional(withMethods('schedule')),
}

const clientRules = [withMethods('query', 'getConnection'), withMethods('promise')]

/**
 * Keeps entries in MySQL 8 or MariaDB, through a pool of mysql2. Run `await store.migrate()` once before its first use.
 *
 * @example
 * ```ts
 * import { createPool } from 'mysql2/promise'
 * import { createOnce } from 'onceonly'
 * import { mysqlStore } from 'onceonly/mysql'
 *
 * const store = mysqlStore({ pool: createPool('mysql://root@127.0.0.1:3306/shop') })
 * await store.migrate()
 * const once = createOnce({ store, scope: 'payments' })
 * ```
 */
export function mysqlStore<Pool extends MysqlPool | MysqlCallbackPool>(
  options: MysqlStoreOptions<Pool>,
): MysqlStore<MysqlClientOf<Pool>> {
  checkOptions('mysqlStore', options, rules)
  type Client = MysqlClientOf<Pool>
  const { clock = systemClock, durability = 'full', table = 'onceonly' } = options
  const size = poolSizeOf(options.pool)
  const connections: MysqlConnections<Client> = watchingLent(connectionsOf<Client>(options.pool), { clock, size })
  const ready = readiness(table, durability)
  const context: MysqlContext<Client> = { table, clock, connections, ready }
  const single: MysqlAskingContext<Client>['single'] = (statement, what, executed) =>
    ready(connections)
      .then(() => retried(clock, () => connections.run(statement)))
      .catch((error: unknown) => Promise.reject(storeError(error, what, executed ?? 'no')))
  const asking = { ...context, single }
  const store: MysqlStore<Client> = {
    name: 'mysql',
    claim: claiming(context),
    ...writing(context),
    ...operations(asking),
    within: (tx) => within(context, sessionOf(tx, 'mysqlStore')),
    begin: (key, request) => begin(context, key, request),
    isConflict,
    async sweep(given) {
      checkOptions('sweep', given, { limit: positiveInteger })
      const [row] = await single(sweepStatement(table, given.limit), 'sweep')
      const [tombstoned, forgotten, more] = row![0]!.split(' ').map(Number)
      const [operationsRow] = await single(sweepStepsStatement(table, given.limit), 'sweep')
      return { tombstoned: tombstoned!, forgotten: forgotten!, more: more === 1 || operationsRow![0] === '1' }
    },
    ...inspection(asking),
    migrate: () => migrate(table, connections),
    schema: () => `${schemaStatements(table).join(';\n\n')};\n`,
  }
  return offerDatabase(store, mysqlDatabase(context))
}

export interface MysqlFitnessOptions {
  readonly pool: MysqlPool | MysqlCallbackPool
  /** 'onceonly' unless given. */
  readonly table?: string
  /** How long an attempt may take, and so a transaction that serves one. */
  readonly longestMs: number
}

/**
 * Checks whether a server is fit for the store: its settings, its schema, entries that nothing sweeps, transactions left open.
 * `onceonly doctor` prints these checks.
 *
 * @example
 * ```ts
 * import { createPool } from 'mysql2/promise'
 * import { mysqlFitness } from 'onceonly/mysql'
 *
 * const fitness = mysqlFitness({ pool: createPool('mysql://root@127.0.0.1:3306/shop'), longestMs: 60_000 })
 * const nowMs = await fitness.timeMs?.()
 * const violated = (await fitness.checks(nowMs ?? 0)).filter(({ verdict }) => verdict === 'violated')
 * ```
 */
export function mysqlFitness({ pool, table = 'onceonly', longestMs }: MysqlFitnessOptions): Fitness {
  return fitness(connectionsOf(pool), table, longestMs)
}

function claiming<Client>(context: MysqlContext<Client>): Store['claim'] {
  const { table, clock, connections } = context
  const ask = together(context, {
    together: (calls) => claimsStatement(table, calls),
    answers: (found, count) => batchAnswers(found, count, (fence) => `granted f 1 ${fence}`),
    alone: (call) => takeStatement(table, call, 'entry'),
  })
  return (key, request) =>
    askForClaim({ clock, storeError }, key, request, async () => {
      const call = claimCall(key, request)
      refuseTooLarge(call.length, await context.ready(connections), key, 'input')
      return ask(call)
    })
}

function writing<Client>(context: MysqlContext<Client>): Pick<Store, 'extend' | 'settle' | 'release'> {
  const { table, clock, connections } = context
  const settle = together(context, {
    together: (calls) => settlesStatement(table, calls),
    answers: (found, count) => batchAnswers(found, count, () => 'done'),
    alone: (call) => putStatement(table, 'settle', call),
  })
  const put = async (verb: MysqlWriteVerb, call: MysqlCall): Promise<string> => {
    await context.ready(connections)
    return (await retried(clock, () => connections.run(putStatement(table, verb, call))))[0]![0]!
  }
  const server = { clock, storeError }
  return {
    extend: (claim, leaseMs) =>
      askForWrite(server, claim, 'extend', async () => put('extend', writeCall(claim, leaseMs))),
    settle: (claim, outcome, retention) =>
      askForWrite(server, claim, 'settle', async () => {
        const call = settleCall(claim, outcome, retention)
        refuseTooLarge(call.length, await context.ready(connections), claim.key, 'outcome')
        return settle(call)
      }),
    release: (claim, how) => askForWrite(server, claim, 'release', async () => put(how, writeCall(claim, 0))),
  }
}

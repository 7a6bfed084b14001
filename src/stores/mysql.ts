// MySQL and MariaDB. Claims of one moment share one statement, one round trip and one commit, and so do settles; none of them
// waits for somebody's transaction. The decisions are procedures in the database (mysql/schema.ts); here is only who asks what,
// when. The one atomic statement that a fresh claim rests on is an INSERT against the primary key.

import { systemClock } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import { describeKey } from '../core/key.ts'
import { checkOptions, identifier, oneOf, optional, positiveInteger, withMethods } from '../core/options.ts'
import type {
  Claim,
  Fenced,
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
import { together } from './mysql/batches.ts'
import { connectionsOf, sessionOf } from '../clients/mysql.ts'
import type {
  Connections,
  MysqlCallbackPool,
  MysqlPool,
  MysqlPoolConnection,
  MysqlTransaction,
} from '../clients/mysql.ts'
import { readiness } from './mysql/fitness.ts'
import { isConflict, storeError } from './mysql/errors.ts'
import { inspection } from './mysql/inspection.ts'
import { operations } from './mysql/operations.ts'
import { procedureNames, schemaStatements } from './mysql/schema.ts'
import {
  batchAnswers,
  callStatement,
  claimCall,
  claimsStatement,
  foundStatement,
  putStatement,
  settleCall,
  settlesStatement,
  sweepStatement,
  sweepStepsStatement,
  writeCall,
} from './mysql/statements.ts'
import type { Call, WriteVerb } from './mysql/statements.ts'
import { begin, refuseTooLarge, retried, within } from './mysql/transactions.ts'
import type { MysqlGround } from './mysql/transactions.ts'
import { askForWrite, claimWhileLocked, verdictOf } from './sql-answers.ts'

export type { MysqlTransaction } from '../clients/mysql.ts'

export interface MysqlStoreOptions<Pool extends MysqlPool | MysqlCallbackPool = MysqlPool | MysqlCallbackPool> {
  /** What `createPool` of mysql2/promise or mysql2 gives, with a database. */
  readonly pool: Pool
  /** 'onceonly' unless given; also the beginning of the names of what belongs to it. */
  readonly table?: string
  /**
   * What to do about a setting that loses acknowledged commits in a crash (innodb_flush_log_at_trx_commit other than 1,
   * innodb_doublewrite off): refuse to work, or say so once with process.emitWarning.
   */
  readonly durability?: 'full' | 'relaxed'
  readonly clock?: Clock
}

/** What the effect of `once.transaction` writes with: a connection of mysql2/promise, also when the pool is one with callbacks. */
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

export function mysqlStore<Pool extends MysqlPool | MysqlCallbackPool>(
  options: MysqlStoreOptions<Pool>,
): MysqlStore<MysqlClientOf<Pool>> {
  checkOptions('mysqlStore', options, rules)
  type Client = MysqlClientOf<Pool>
  const { clock = systemClock, durability = 'full', table = 'onceonly' } = options
  const connections: Connections<Client> = connectionsOf<Client>(options.pool)
  const ready = readiness(table, durability)
  const ground: MysqlGround<Client> = { table, clock, connections, ready }
  const single = (statement: string, during: string): Promise<readonly (readonly (string | null)[])[]> =>
    ready(connections)
      .then(() => retried(clock, () => connections.run(statement)))
      .catch((error: unknown) => Promise.reject(storeError(error, during, 'no')))
  return {
    name: 'mysql',
    claim: claiming(ground),
    ...writing(ground),
    ...operations({ ...ground, single }),
    within: (tx) => within(ground, sessionOf(tx)),
    begin: (key, request) => begin(ground, key, request),
    isConflict,
    async sweep(given) {
      checkOptions('sweep', given, { limit: positiveInteger })
      const [row] = await single(sweepStatement(table, given.limit), 'sweep')
      const [tombstoned, forgotten, more] = row![0]!.split(' ').map(Number)
      const [operationsRow] = await single(sweepStepsStatement(table, given.limit), 'sweep')
      return { tombstoned: tombstoned!, forgotten: forgotten!, more: more === 1 || operationsRow![0] === '1' }
    },
    ...inspection(table, clock, single),
    migrate: () => migrate(table, connections),
    schema: () => `${schemaStatements(table).join(';\n\n')};\n`,
  }
}

function claiming<Client>(ground: MysqlGround<Client>): Store['claim'] {
  const { table, clock, connections } = ground
  const ask = together(ground, {
    together: (calls) => claimsStatement(table, calls),
    answers: (found, count) => batchAnswers(found, count, (fence) => `granted f 1 ${fence}`),
    alone: (call) => callStatement(table, 'take', call.values),
  })
  return async (key, request) => {
    try {
      const call = claimCall(key, request)
      refuseTooLarge(call.length, await ground.ready(connections), key, 'input')
      return verdictOf(key, request, await claimWhileLocked(clock, () => ask(call)))
    } catch (error) {
      throw storeError(error, `claim of ${describeKey(key)}`, 'no')
    }
  }
}

function writing<Client>(ground: MysqlGround<Client>): Pick<Store, 'extend' | 'settle' | 'release'> {
  const { table, clock, connections } = ground
  const settle = together(ground, {
    together: (calls) => settlesStatement(table, calls),
    answers: (found, count) => batchAnswers(found, count, () => 'done'),
    alone: (call) => putStatement(table, 'settle', call),
  })
  const put = async (verb: WriteVerb, call: Call): Promise<string> => {
    await ground.ready(connections)
    return (await retried(clock, () => connections.run(putStatement(table, verb, call))))[0]![0]!
  }
  const write = (claim: Claim, during: 'extend' | 'settle' | 'release', ask: () => Promise<string>): Promise<Fenced> =>
    askForWrite({ clock, storeError }, claim, during, ask)
  return {
    extend: async (claim, leaseMs) => write(claim, 'extend', () => put('extend', writeCall(claim, leaseMs))),
    async settle(claim, outcome, retention) {
      const call = settleCall(claim, outcome, retention)
      return write(claim, 'settle', async () => {
        refuseTooLarge(call.length, await ground.ready(connections), claim.key, 'outcome')
        return settle(call)
      })
    },
    release: async (claim, how) => write(claim, 'release', () => put(how, writeCall(claim, 0))),
  }
}

/** Another process may be migrating a server that is busy with other things. */
const migrationWaitS = 60

// DDL commits by itself, so a lock of the session keeps several processes that start at once apart. When there is nothing to
// do, nothing is locked.
async function migrate(table: string, connections: Connections<unknown>): Promise<void> {
  const connection = await connections.connect().catch((error: unknown) => {
    throw storeError(error, 'migration', 'no')
  })
  const isMigrated = async (): Promise<boolean> => {
    const [[engine, count]] = (await connection.run(foundStatement(table))) as [[string | null, string]]
    return engine !== null && Number(count) === procedureNames.length
  }
  // Destroyed, not released: that ends the lock, whatever happened.
  try {
    if (await isMigrated()) return
    const [row] = await connection.run(
      `select get_lock(concat('onceonly ', md5(concat_ws('.', database(), '${table}'))), ${migrationWaitS})`,
    )
    if (row![0] !== '1') throw new Error(`another process has been migrating for ${migrationWaitS} s`)
    if (await isMigrated()) return
    for (const statement of schemaStatements(table)) await connection.run(statement)
  } catch (error) {
    throw storeError(error, 'migration', 'no')
  } finally {
    connection.destroy()
  }
}

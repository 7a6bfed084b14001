// MySQL and MariaDB. Claims of one moment share one statement, one round trip and one commit, and so do settles; none of them
// waits for somebody's transaction. The decisions are procedures in the database (mysql-schema.ts); here is only who asks what,
// when. The one atomic statement that a fresh claim rests on is an INSERT against the primary key.

import { backoffMs } from '../core/backoff.ts'
import { sleep, systemClock, systemRandom } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import { OnceError } from '../core/errors.ts'
import { describeKey } from '../core/key.ts'
import { checkOptions, identifier, oneOf, optional, positiveInteger, withMethods } from '../core/options.ts'
import type {
  Claim,
  Fenced,
  InTransaction,
  Inspectable,
  Migratable,
  Store,
  Sweepable,
  Transactional,
} from '../core/store.ts'
import { lane } from './lane.ts'
import { connectionsOf, sessionOf } from './mysql-client.ts'
import type {
  Connections,
  MysqlCallbackPool,
  MysqlPool,
  MysqlPoolConnection,
  MysqlTransaction,
} from './mysql-client.ts'
import { readiness } from './mysql-durability.ts'
import type { ServerLimits } from './mysql-durability.ts'
import { isConflict, storeError } from './mysql-errors.ts'
import { inspection } from './mysql-inspection.ts'
import { procedureNames, schemaStatements } from './mysql-schema.ts'
import {
  batchAnswers,
  byKey,
  callStatement,
  claimCall,
  claimsStatement,
  fencedOf,
  foundStatement,
  putStatement,
  settleCall,
  settlesStatement,
  sweepStatement,
  verdictOf,
  writeCall,
} from './mysql-statements.ts'
import type { Call, WriteVerb } from './mysql-statements.ts'
import { begin, refuseTooLarge, retried, within } from './mysql-transactions.ts'
import type { MysqlGround } from './mysql-transactions.ts'

export type { MysqlTransaction } from './mysql-client.ts'

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
  extends Store, Transactional<Client, Client | MysqlTransaction>, Sweepable, Inspectable, Migratable {
  /** An open transaction of mysql2, Drizzle, Kysely or Knex on the same database. */
  within(tx: Client | MysqlTransaction): InTransaction
}

// Beyond some dozens a larger batch saves little, and its callers wait for each other. Four at once, as the server syncs the
// log for all that commit meanwhile: with two, 64 callers got through a third less; with more, the batches become small.
const batching = { batchMax: 128, dispatchesMax: 4 }

/** A statement is one message that client and server hold in memory whole: a few outcomes of a mebibyte, not hundreds. */
const statementLengthMax = 4 * 1024 * 1024

/** A row that is locked now is mostly free a moment later; a transaction that took the key over may last. */
const lockedBackoff = { firstMs: 2, factor: 2, maxMs: 200 }
const claimTriesMax = 8
const writeTriesMax = 30

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
    within: (tx) => within(ground, sessionOf(tx)),
    begin: (key, request) => begin(ground, key, request),
    isConflict,
    async sweep(given) {
      checkOptions('sweep', given, { limit: positiveInteger })
      const [row] = await single(sweepStatement(table, given.limit), 'sweep')
      const [tombstoned, forgotten, more] = row![0]!.split(' ').map(Number)
      return { tombstoned: tombstoned!, forgotten: forgotten!, more: more === 1 }
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
    whenWritten: (fence) => `granted f 1 ${fence}`,
    alone: (call) => callStatement(table, 'take', call.values),
  })
  return async (key, request) => {
    try {
      const call = claimCall(key, request)
      refuseTooLarge(call.length, await ground.ready(connections), key, 'input')
      return verdictOf(key, request, await whileLocked(clock, claimTriesMax, () => ask(call)))
    } catch (error) {
      throw storeError(error, `claim of ${describeKey(key)}`, 'no')
    }
  }
}

function writing<Client>(ground: MysqlGround<Client>): Pick<Store, 'extend' | 'settle' | 'release'> {
  const { table, clock, connections } = ground
  const settle = together(ground, {
    together: (calls) => settlesStatement(table, calls),
    whenWritten: () => 'done',
    alone: (call) => putStatement(table, 'settle', call),
  })
  const put = async (verb: WriteVerb, call: Call): Promise<string> => {
    await ground.ready(connections)
    return (await retried(clock, () => connections.run(putStatement(table, verb, call))))[0]![0]!
  }
  const write = (claim: Claim, during: string, ask: () => Promise<string>): Promise<Fenced> =>
    writeUntilKnown(clock, ask).catch((error: unknown) =>
      Promise.reject(storeError(error, `${during} of ${describeKey(claim.key)}`, 'unknown')),
    )
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

interface Statements {
  together(calls: readonly Call[]): string
  /** The answer of each when all of them were written. */
  whenWritten(fence: string): string
  alone(call: Call): string
}

/** Calls of one moment by one statement; a lone one, and what that statement cannot decide, by one of its own. */
function together<Client>(
  { clock, connections, ready }: MysqlGround<Client>,
  statements: Statements,
): (call: Call) => Promise<string> {
  const askAlone = async (call: Call): Promise<string> =>
    (await retried(clock, () => connections.run(statements.alone(call))))[0]![0]!
  const dispatch = async (batch: readonly Call[]): Promise<readonly (string | undefined)[]> => {
    // A batch of one would cost it half as much again.
    if (batch.length === 1) return [await askAlone(batch[0]!)]
    const answers = new Map<Call, string | undefined>()
    for (const part of partsOf(batch.toSorted(byKey), await ready(connections))) {
      const found = await retried(clock, () => connections.run(statements.together(part)))
      const ofPart = batchAnswers(found, part.length, (fence) => statements.whenWritten(fence))
      ofPart.forEach((answer, index) => answers.set(part[index]!, answer))
    }
    return batch.map((call) => answers.get(call))
  }
  const ask = lane({ ...batching, dispatch })
  return async (call) => (await ask(call)) ?? askAlone(call)
}

/** As many calls as fit into one message, in their order. */
function partsOf(batch: readonly Call[], { packetBytesMax }: ServerLimits): Call[][] {
  // Half of it, as there is more to a statement than the values.
  const lengthMax = Math.min(statementLengthMax, packetBytesMax / 2)
  const parts: Call[][] = [[]]
  let length = 0
  for (const call of batch) {
    if (length > 0 && length + call.length > lengthMax) {
      parts.push([])
      length = 0
    }
    parts.at(-1)!.push(call)
    length += call.length
  }
  return parts
}

async function writeUntilKnown(clock: Clock, write: () => Promise<string>): Promise<Fenced> {
  const answer = fencedOf(await whileLocked(clock, writeTriesMax, write))
  if (answer !== 'locked') return answer
  const message = `Another transaction has had the entry locked for seconds, and has neither committed nor rolled back. Ask again.`
  throw new OnceError('STORE_UNAVAILABLE', { message, executed: 'unknown' })
}

async function whileLocked(clock: Clock, triesMax: number, ask: () => Promise<string>): Promise<string> {
  for (let tries = 1; ; tries++) {
    const answer = await ask()
    if (answer !== 'locked' || tries === triesMax) return answer
    await sleep(clock, backoffMs(lockedBackoff, tries - 1, systemRandom))
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

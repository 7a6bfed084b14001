// The durable store. Claims and writes of one moment share one statement, one round trip and one commit, and none of them
// ever waits for somebody's transaction. The decisions are functions in the database (postgres/schema.sql.ts); here is only who
// asks what, when. No session state is kept, so a pooler in transaction mode (PgBouncer) may stand in between.

import { sleep, systemClock } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import { describeKey } from '../core/key.ts'
import { checkOptions, identifier, oneOf, optional, positiveMs, withMethods } from '../core/options.ts'
import type {
  Claim,
  Fenced,
  InTransaction,
  Migratable,
  Recoverable,
  StepLedger,
  Store,
  Sweepable,
  Inspectable,
  Transactional,
  TransactionalSteps,
} from '../core/store.ts'
import { lane } from '../core/lane.ts'
import { connectionsOf, firstAnswer, sessionOf } from '../clients/postgres.ts'
import type {
  Connections,
  PgPool,
  PgPoolClient,
  PostgresJs,
  PostgresJsReserved,
  PostgresTransaction,
} from '../clients/postgres.ts'
import { readiness } from './postgres/fitness.ts'
import { isConflict, isPassing, lockNotAvailable, sqlStateOf, storeError } from './postgres/errors.ts'
import { inspection } from './postgres/inspection.ts'
import { operations, sweepOperationsStatement } from './postgres/operations.ts'
import { periodsSteps } from './postgres/periods.sql.ts'
import { schemaSql } from './postgres/schema.sql.ts'
import type { SchemaNames } from './postgres/names.ts'
import {
  batchStatement,
  claimCall,
  inPeriodsStatement,
  migratedStatement,
  migrationLock,
  shortLockTimeout,
  sweepStatement,
} from './postgres/statements.ts'
import { writeCall } from './postgres/statements.ts'
import type { Call } from './postgres/statements.ts'
import { begin, retried, within } from './postgres/transactions.ts'
import { claimWhileLocked, verdictOf, writeUntilKnown } from './sql-answers.ts'

export type { PostgresTransaction } from '../clients/postgres.ts'

export interface PostgresStoreOptions<Pool extends PgPool | PostgresJs = PgPool | PostgresJs> {
  /** A `Pool` of pg, or the `sql` of postgres.js. */
  readonly pool: Pool
  /** 'onceonly' unless given. */
  readonly table?: string
  /** Unless given, the search path decides. */
  readonly schema?: string
  /**
   * 'full' refuses to work with a setting that loses acknowledged commits in a crash (fsync, full_page_writes or
   * synchronous_commit off, an unlogged table); 'relaxed' accepts it, and says so once with process.emitWarning.
   */
  readonly durability?: 'full' | 'relaxed'
  /**
   * For tables that are large: `migrate()` puts the table into periods of this length. Entries that are forgotten in the same
   * period lie together, and a sweep empties them at once instead of deleting row by row. At least a quarter of the longest
   * keepMs + tombstoneMs; what is kept for longer is still deleted row by row. See docs/operating.md.
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

/** Beyond some hundreds a larger batch saves nothing more, and its callers wait for each other. */
const batchMax = 256

/** One batch is on its way back while the next is being worked on; more would only make the batches smaller. */
const dispatchesMax = 2

/** A statement is one message that client and server hold in memory whole: a few outcomes of a mebibyte, not hundreds. */
const statementLengthMax = 8 * 1024 * 1024

/** A minute and a half in all: open transactions have mostly ended by then, and somebody is waiting for this migration. */
const stepTriesMax = 300
const stepPauseMs = 300

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
  const connections: Connections<Client> = connectionsOf<Client>(options.pool)
  const ready = readiness(names, durability)
  const ground = { names, clock, connections, ready }
  const single = (statement: string, during: string): Promise<readonly string[]> =>
    ready(connections)
      .then((prefix) => retried(clock, isPassing, () => connections.run([...prefix, statement])))
      .then((results) => results.at(-1)!.answers)
      .catch((error: unknown) => Promise.reject(storeError(error, during, 'no')))
  const ask = batching(names, clock, connections, ready)
  return {
    name: 'postgres',
    ...batchedCalls(clock, ask),
    ...operations({ ...ground, ask, single }),
    within: (tx) => within(ground, sessionOf(tx)),
    begin: (key, request) => begin(ground, key, request),
    isConflict,
    async sweep({ limit }) {
      const [answer] = await single(sweepStatement(names, limit), 'sweep')
      const [tombstoned, forgotten, more] = answer!.split(' ').map(Number)
      const [moreOperations] = await single(sweepOperationsStatement(names, limit), 'sweep')
      return { tombstoned: tombstoned!, forgotten: forgotten!, more: more === 1 || moreOperations === '1' }
    },
    ...inspection(names, clock, single),
    migrate: () => migrate(names, periodMs, clock, connections),
    schema: () => [schemaSql(names), ...(periodMs === undefined ? [] : periodsSteps(names, periodMs))].join('\n'),
  }
}

const clientRules = [withMethods('query', 'connect'), withMethods('unsafe', 'reserve')]

/** Calls of one moment share one message. */
function batching<Client>(
  names: SchemaNames,
  clock: Clock,
  connections: Connections<Client>,
  ready: (session: Connections<Client>) => Promise<readonly string[]>,
): (call: Call) => Promise<string> {
  const dispatch = async (batch: readonly Call[]): Promise<readonly string[]> => {
    const prefix = await ready(connections)
    const answers: string[] = []
    for (const part of partsOf(batch)) {
      answers.push(...(await retried(clock, isPassing, () => carryOut(names, connections, prefix, part))))
    }
    return answers
  }
  return lane({ dispatch, batchMax, dispatchesMax })
}

function batchedCalls(
  clock: Clock,
  ask: (call: Call) => Promise<string>,
): Pick<Store, 'claim' | 'extend' | 'settle' | 'release'> {
  const write = (call: Call, claim: Claim, during: string): Promise<Fenced> =>
    writeUntilKnown(clock, () => ask(call)).catch((error: unknown) =>
      Promise.reject(storeError(error, `${during} of ${describeKey(claim.key)}`, 'unknown')),
    )
  return {
    async claim(key, request) {
      const call = claimCall(key, request)
      try {
        return verdictOf(key, request, await claimWhileLocked(clock, () => ask(call)))
      } catch (error) {
        throw storeError(error, `claim of ${describeKey(key)}`, 'no')
      }
    },
    extend: async (claim, leaseMs) => write(writeCall('extend', claim, leaseMs), claim, 'extend'),
    settle: async (claim, outcome, retention) =>
      write(writeCall('settle', claim, retention.keepMs, retention, outcome), claim, 'settle'),
    release: async (claim, how) => write(writeCall(how, claim, 0), claim, 'release'),
  }
}

/** As many calls as fit into one message, in their order. */
function partsOf(batch: readonly Call[]): Call[][] {
  const parts: Call[][] = [[]]
  let length = 0
  for (const call of batch) {
    if (length > 0 && length + call.length > statementLengthMax) {
      parts.push([])
      length = 0
    }
    parts.at(-1)!.push(call)
    length += call.length
  }
  return parts
}

// Writes before claims: a key that is settled and asked for in the same moment is answered with its outcome.
async function carryOut(
  names: SchemaNames,
  session: Connections<unknown>,
  prefix: readonly string[],
  calls: readonly Call[],
): Promise<readonly string[]> {
  const kinds = (['write', 'advance', 'claim', 'enlist'] as const)
    .map((to) => ({ to, calls: calls.filter((call) => call.to === to) }))
    .filter((kind) => kind.calls.length > 0)
  const statements = kinds.map((kind) => batchStatement(names, kind.to, kind.calls))
  const results = (await session.run([...prefix, ...statements])).filter((result) => result.answers.length > 0)
  const answers = new Map<Call, string>()
  kinds.forEach((kind, index) => kind.calls.forEach((call, row) => answers.set(call, results[index]!.answers[row]!)))
  return calls.map((call) => answers.get(call)!)
}

// A message, hence a transaction, a step. When there is nothing to do nothing is locked: CREATE INDEX IF NOT EXISTS waits for
// every transaction that writes to the table, and claims would wait behind it.
async function migrate(
  names: SchemaNames,
  periodMs: number | undefined,
  clock: Clock,
  connections: Connections<unknown>,
): Promise<void> {
  try {
    const isDone = async (statement: string): Promise<boolean> =>
      firstAnswer(await connections.run([statement])) === 'yes'
    if (!(await isDone(migratedStatement(names)))) await connections.run([migrationLock, schemaSql(names)])
    if (periodMs === undefined || (await isDone(inPeriodsStatement(names, periodMs)))) return
    for (const step of periodsSteps(names, periodMs)) await putIntoPeriods(clock, connections, step)
  } catch (error) {
    throw storeError(error, 'migration', 'no')
  }
}

// These steps want a table for themselves that others use: each waits a moment, lets everybody pass, and tries again.
async function putIntoPeriods(clock: Clock, connections: Connections<unknown>, step: string): Promise<void> {
  for (let tries = 1; ; tries++) {
    try {
      await connections.run([migrationLock, shortLockTimeout, step])
      return
    } catch (error) {
      if (sqlStateOf(error) !== lockNotAvailable || tries === stepTriesMax) throw error
      await sleep(clock, stepPauseMs)
    }
  }
}

// The slice of the PostgreSQL clients that we use, and one shape for all of them. `run` sends statements as text without
// parameters, and each row that comes back has one text column named `answer`. So a whole phase (BEGIN, claim, SAVEPOINT) is one
// round trip wherever the client lets several statements through, and nothing depends on how a client maps names and types.
// `query` sends one statement with its values. Where a pool binds values as it is given them (pg), `run` takes a bound statement.

import type { Clock } from '../core/clock.ts'
import { inOneSync } from './postgres/sync.ts'
import type { SyncedClient } from './postgres/sync.ts'
import { textOf } from './sql-statement.ts'
import type { SqlStatement, SqlValue } from './sql-statement.ts'
import { drizzleQuery, has, kyselyQuery, libraryTransactionOf, noTransaction } from './sql-transaction.ts'
import type { DrizzleTransaction, KnexTransaction, KyselyTransaction, PrismaTransaction } from './sql-transaction.ts'

export interface StatementResult {
  /** The command tag: a COMMIT of an aborted transaction resolves, and only its tag says ROLLBACK. */
  readonly command: string | undefined
  readonly answers: readonly string[]
}

export interface PostgresSession {
  /**
   * Runs the statements in order, in one round trip where the client can. A statement without rows may be missing in the
   * results (postgres.js folds a ROLLBACK and the BEGIN after it into one). The last one is always there.
   */
  run(statements: readonly string[]): Promise<readonly StatementResult[]>
}

export interface PostgresConnection<Client> extends PostgresSession {
  readonly client: Client
  /** Runs bound statements in order, in one round trip. Undefined where the client cannot. */
  readonly runBound: ((statements: readonly BoundStatement[]) => Promise<readonly StatementResult[]>) | undefined
  release(): void
  /** For a connection whose state is unknown. It must not go back to the pool, because it may be inside a transaction. */
  destroy(error: unknown): void
}

export interface PostgresConnections<Client> extends PostgresSession {
  /** Without a limit of time, unless it is asked for: a migration may last. */
  run(statements: readonly string[] | Limited): Promise<readonly StatementResult[]>
  connect(): Promise<PostgresConnection<Client>>
}

/** What must be answered in time (`answerMsMax`). A bound statement only where `bindsValues`. */
export interface Limited {
  readonly limited: readonly string[] | BoundStatement
}

/**
 * How long a batch, or a message of a transaction of ours, may stay without an answer. A connection that fell silent (a failover, a
 * firewall that forgot it) is kept by TCP for some 15 minutes, and two of them are all that a store sends through at once. 30 s is
 * a default lease, and core has told its caller long before (storeTimeoutMs, 5 s). Then pg destroys the connection. postgres.js
 * has no way to destroy one: the store goes on, and the connection is in its pool until TCP gives it up.
 */
const answerMsMax = 30_000

export interface AnswerLimit {
  readonly clock: Pick<Clock, 'schedule'>
  readonly limitMs?: number
}

/** The same connections, with the limit of time for everything. */
export function limited(connections: PostgresConnections<unknown>): PostgresSession {
  return { run: (statements) => connections.run({ limited: statements }) }
}

/** One statement with its values, each text or, as a Buffer, in the server's binary form. */
export interface BoundStatement {
  /** The connection keeps the statement prepared under this name. Undefined: it is parsed every time. */
  readonly name: string | undefined
  readonly text: string
  readonly values: readonly (string | Buffer | null)[]
}

export function firstAnswer(results: readonly StatementResult[]): string {
  return results.find((result) => result.answers.length > 0)!.answers[0]!
}

/** pg: a Client, or what `pool.connect()` gives. */
export interface PgClient {
  query(text: string, values?: never): Promise<unknown>
}

export interface PgPoolClient extends PgClient {
  release(error?: Error | boolean): void
  on(event: 'error', listener: (error: Error) => void): unknown
  off(event: 'error', listener: (error: Error) => void): unknown
}

export interface PgPool<Client extends PgPoolClient = PgPoolClient> {
  query(text: string): Promise<unknown>
  connect(): Promise<Client>
}

/** postgres.js: what `sql.begin` hands to its function, or what `sql.reserve()` gives. */
export interface PostgresJsTransaction {
  unsafe(text: string, values?: never): PromiseLike<unknown>
}

export interface PostgresJsReserved extends PostgresJsTransaction {
  release(): void
}

export interface PostgresJs<Client extends PostgresJsReserved = PostgresJsReserved> extends PostgresJsTransaction {
  reserve(): Promise<Client>
}

/** What `within` takes: an open transaction of one of these libraries, on the store's database. */
export type PostgresTransaction =
  | PgClient
  | PostgresJsTransaction
  | KyselyTransaction
  | DrizzleTransaction
  | KnexTransaction
  | PrismaTransaction

export function connectionsOf<Client>(
  pool: PgPool | PostgresJs,
  { clock, limitMs = answerMsMax }: AnswerLimit,
): PostgresConnections<Client> {
  const limit = { clock, limitMs }
  return has(pool, 'unsafe') ? postgresJsConnections(pool as PostgresJs, limit) : pgConnections(pool as PgPool, limit)
}

/** Fails when there is no answer in time, after `silent`. What comes later is dropped. */
function answered<T>(
  work: PromiseLike<T>,
  { clock, limitMs }: Required<AnswerLimit>,
  silent?: (error: Error) => void,
): Promise<T> {
  return new Promise((resolve, reject) => {
    const cancel = clock.schedule(() => {
      const error = new Error(`no answer within ${limitMs} ms`)
      silent?.(error)
      reject(error)
    }, limitMs)
    work.then(
      (result) => {
        cancel()
        resolve(result)
      },
      (error: Error) => {
        cancel()
        reject(error)
      },
    )
  })
}

/**
 * A `Pool` of pg itself, with its own client: it sends a Buffer in binary form. The client above libpq (pg-native) does not, and
 * an object that only looks like a pool may take nothing but text.
 */
export function bindsValues(pool: PgPool | PostgresJs): boolean {
  const { Client } = pool as { readonly Client?: { readonly prototype?: object } }
  return 'totalCount' in pool && Client?.prototype !== undefined && '_handleReadyForQuery' in Client.prototype
}

/** How many connections the pool can have. Undefined where it does not say: both libraries have it in their options. */
export function poolSizeOf(pool: PgPool | PostgresJs): number | undefined {
  const max = (pool as { readonly options?: { readonly max?: unknown } }).options?.max
  return typeof max === 'number' ? max : undefined
}

function pgConnections<Client>(pool: PgPool, limit: Required<AnswerLimit>): PostgresConnections<Client> {
  const binds = bindsValues(pool)
  const { query_timeout: ownLimitMs } = (pool as { options?: { query_timeout?: number } }).options ?? {}
  // A pool destroys a connection on which it fails. A shorter one of the pool's own stays.
  const query_timeout = Math.min(limit.limitMs, ownLimitMs || limit.limitMs)
  const queryOf = (statement: readonly string[] | BoundStatement): unknown => {
    if ('text' in statement) return { ...statement, query_timeout }
    const text = statement.join(';\n')
    return binds ? { text, query_timeout } : text
  }
  return {
    async run(asked) {
      if (!('limited' in asked)) return resultsOf(await pool.query(asked.join(';\n')))
      return resultsOf(await answered(pool.query(queryOf(asked.limited) as string), limit))
    },
    async connect() {
      const client = await pool.connect()
      // A connection that breaks while it is idle emits an error event, which without a listener ends the process. The next
      // query on it fails, and that error is enough.
      const ignore = (): void => {}
      client.on('error', ignore)
      let hasEnded = false
      const runBound = async (statements: readonly BoundStatement[]): Promise<readonly StatementResult[]> => {
        if (hasEnded) throw transactionEnded()
        return answered(inOneSync(client as unknown as SyncedClient, statements), limit, release)
      }
      const release = (error?: Error): void => {
        if (hasEnded) return
        hasEnded = true
        client.off('error', ignore)
        client.release(error)
      }
      return {
        client: client as Client,
        async run(statements) {
          if (hasEnded) throw transactionEnded()
          return resultsOf(await answered(client.query(statements.join(';\n')), limit, release))
        },
        runBound: binds && (client as { pipeline?: boolean }).pipeline !== true ? runBound : undefined,
        release: () => release(),
        destroy: (error) => release(error instanceof Error ? error : new Error(String(error))),
      }
    },
  }
}

function postgresJsConnections<Client>(sql: PostgresJs, limit: Required<AnswerLimit>): PostgresConnections<Client> {
  return {
    async run(asked) {
      if (!('limited' in asked)) return resultsOf(await sql.unsafe(asked.join(';\n')))
      return resultsOf(await answered(sql.unsafe((asked.limited as readonly string[]).join(';\n')), limit))
    },
    async connect() {
      const reserved = await sql.reserve()
      const { guarded, hasEnded, end } = untilEnd(reserved)
      return {
        client: guarded as Client,
        runBound: undefined,
        async run(statements) {
          if (hasEnded()) throw transactionEnded()
          return resultsOf(await answered(reserved.unsafe(statements.join(';\n')), limit))
        },
        release() {
          if (hasEnded()) return
          end()
          reserved.release()
        },
        // postgres.js has no way to destroy one connection. A connection that responds is clean after ROLLBACK. postgres.js
        // itself replaces one that does not respond, and that one must not be released: it would come back without a socket.
        destroy() {
          if (hasEnded()) return
          end()
          void reserved.unsafe('ROLLBACK').then(
            () => reserved.release(),
            () => {},
          )
        },
      }
    },
  }
}

// After a transaction's end its connection may serve another caller. What an effect that still runs sends must not get there.
function untilEnd<T extends object>(reserved: T): { readonly guarded: T; hasEnded(): boolean; end(): void } {
  let ended = false
  const check = (): void => {
    if (ended) throw transactionEnded()
  }
  const guarded = new Proxy(reserved, {
    apply(target, self, args) {
      check()
      return Reflect.apply(target as (...given: unknown[]) => unknown, self, args)
    },
    get(target, name) {
      check()
      return Reflect.get(target, name) as unknown
    },
  })
  return { guarded, hasEnded: () => ended, end: () => void (ended = true) }
}

// A late ROLLBACK (core rolls back a step whose commit was refused) would end the transaction of another caller.
function transactionEnded(): Error {
  return new Error('This transaction has ended, and its connection may be in use by others.')
}

export type PostgresLibrary = 'pg' | 'postgres.js' | 'Drizzle' | 'Kysely' | 'Knex' | 'Prisma'

/** A transaction that the caller opened and will end. */
export interface PostgresOpenTransaction extends PostgresSession {
  readonly library: PostgresLibrary
  /** Sends one statement with its values, and returns its rows. */
  query(statement: SqlStatement): Promise<readonly unknown[]>
}

/** Recognises by its shape which library a transaction belongs to. `caller` begins the message of a refusal: "postgresStore". */
export function postgresTransactionOf(tx: unknown, caller: string): PostgresOpenTransaction {
  if (has(tx, 'unsafe')) return ofPostgresJs(tx as PostgresJsTransaction)
  const of = libraryTransactionOf(tx, caller)
  if (of?.library === 'Kysely') return ofKysely(of.tx)
  if (of?.library === 'Drizzle') return ofDrizzle(of.tx)
  if (of?.library === 'Knex') return ofKnex(of.tx)
  if (of?.library === 'Prisma') return ofPrisma(of.tx)
  // A pool would send each statement over another connection, outside of every transaction.
  if (has(tx, 'query') && !('totalCount' in (tx as object))) return ofPg(tx as PgClient)
  return noTransaction(tx, caller, 'pg (a client, not the pool), postgres.js, Drizzle, Kysely, Knex or Prisma')
}

const numbered = (position: number): string => `$${position}`

function ofPg(tx: PgClient): PostgresOpenTransaction {
  return {
    library: 'pg',
    run: together((text) => tx.query(text)),
    query: async (statement) => rowsOf(await tx.query(textOf(statement, numbered), bound(statement) as never)),
  }
}

// postgres.js asks the server for the type of a text, and makes JSON of one that is for a JSON column. A text of unknown type
// goes out as it is.
const unknownType = 705

function ofPostgresJs(tx: PostgresJsTransaction): PostgresOpenTransaction {
  const { typed } = tx as { typed?: (value: string, type: number) => unknown }
  const asIs = (value: unknown): unknown => (typeof value === 'string' && typed ? typed(value, unknownType) : value)
  return {
    library: 'postgres.js',
    run: together((text) => tx.unsafe(text)),
    query: async (statement) =>
      rowsOf(await tx.unsafe(textOf(statement, numbered), bound(statement).map(asIs) as never)),
  }
}

function ofDrizzle(tx: DrizzleTransaction): PostgresOpenTransaction {
  return {
    library: 'Drizzle',
    run: together((text) => tx.execute(text as never)),
    query: async (statement) => rowsOf(await tx.execute(drizzleQuery(textOf(statement, numbered), bound(statement)))),
  }
}

function ofKnex(tx: KnexTransaction): PostgresOpenTransaction {
  const questionMark = (): string => '?'
  return {
    library: 'Knex',
    run: together((text) => tx.raw(text)),
    query: async (statement) => rowsOf(await tx.raw(textOf(statement, questionMark), bound(statement) as never)),
  }
}

// Kysely keeps only the rows of a single result, so each statement goes alone.
function ofKysely(tx: KyselyTransaction): PostgresOpenTransaction {
  return {
    library: 'Kysely',
    run: alone((text) => tx.executeQuery(kyselyQuery(text))),
    query: async (statement) =>
      rowsOf(await tx.executeQuery(kyselyQuery(textOf(statement, numbered), bound(statement)))),
  }
}

// Prisma prepares everything that it sends, and several statements cannot be prepared as one.
function ofPrisma(tx: PrismaTransaction): PostgresOpenTransaction {
  return {
    library: 'Prisma',
    run: alone(async (text) => {
      if (!/^select/i.test(text)) return { rows: [], affected: await tx.$executeRawUnsafe(text) }
      return { rows: await tx.$queryRawUnsafe(text) }
    }),
    query: async (statement) =>
      rowsOf(await tx.$queryRawUnsafe(textOf(statement, numbered), ...(bound(statement) as never[]))),
  }
}

function bound({ values }: SqlStatement): unknown[] {
  return values.map(asText)
}

// Numbers go as text, for the column to read. A client that says "double" would make 9007199254740993 another number.
function asText(value: SqlValue): unknown {
  if (typeof value === 'number' || typeof value === 'bigint') return String(value)
  return value instanceof Uint8Array ? Buffer.from(value.buffer, value.byteOffset, value.byteLength) : value
}

function together(send: (text: string) => PromiseLike<unknown>): PostgresSession['run'] {
  return async (statements) => resultsOf(await send(statements.join(';\n')))
}

function alone(send: (text: string) => Promise<unknown>): PostgresSession['run'] {
  return async (statements) => {
    const results: StatementResult[] = []
    for (const statement of statements) results.push(...resultsOf(await send(statement)))
    return results
  }
}

// pg returns a result, or an array of them for several statements. postgres.js returns an array of rows that has the command as
// a property, or an array of those.
function resultsOf(raw: unknown): StatementResult[] {
  const results = Array.isArray(raw) && !('command' in raw) ? (raw as unknown[]) : [raw]
  return results.map((result) => {
    const { command } = result as { command?: string }
    const rows = rowsOf(result) as readonly { readonly answer: string }[]
    return { command, answers: rows.map((row) => row.answer) }
  })
}

// postgres.js, and Drizzle and Prisma above it, return an array of rows. The others return an object that has one.
function rowsOf(result: unknown): readonly unknown[] {
  return Array.isArray(result) ? (result as unknown[]) : ((result as { rows?: unknown[] }).rows ?? [])
}

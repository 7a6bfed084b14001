// The slice of the PostgreSQL clients that we use, and one shape for all of them: statements go out as text without
// parameters (every value is a literal from postgres/statements.ts), and each row that comes back has one text column named
// `answer`. So a whole phase (BEGIN, claim, SAVEPOINT) can be one round trip wherever the client lets several statements
// through, and nothing depends on how a client maps names and types.

import { invalidArgument } from '../core/errors.ts'

export interface StatementResult {
  /** The command tag: a COMMIT of an aborted transaction resolves, and only its tag says ROLLBACK. */
  readonly command: string | undefined
  readonly answers: readonly string[]
}

export interface Session {
  /**
   * Carries the statements out in order, in one round trip where the client can. A statement that answers nothing may be
   * missing in the results (postgres.js folds a ROLLBACK and the BEGIN after it into one); the last one never is.
   */
  run(statements: readonly string[]): Promise<readonly StatementResult[]>
}

export interface Connection<Client> extends Session {
  readonly client: Client
  release(): void
  /** For a connection whose state is unknown: it must not go back to the pool, it may be inside a transaction. */
  destroy(error: unknown): void
}

export interface Connections<Client> extends Session {
  connect(): Promise<Connection<Client>>
}

export function firstAnswer(results: readonly StatementResult[]): string {
  return results.find((result) => result.answers.length > 0)!.answers[0]!
}

/** pg: a Client, or what `pool.connect()` gives. */
export interface PgClient {
  query(text: string): Promise<unknown>
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
  unsafe(text: string): PromiseLike<unknown>
}

export interface PostgresJsReserved extends PostgresJsTransaction {
  release(): void
}

export interface PostgresJs<Client extends PostgresJsReserved = PostgresJsReserved> extends PostgresJsTransaction {
  reserve(): Promise<Client>
}

export interface KyselyTransaction {
  readonly isTransaction: boolean
  // What kysely's CompiledQuery is, without its types.
  executeQuery(query: never): Promise<{ readonly rows: readonly unknown[] }>
}

export interface DrizzleTransaction {
  execute(query: string): PromiseLike<unknown>
  rollback(): never
}

export interface KnexTransaction {
  readonly isTransaction?: boolean
  raw(text: string): PromiseLike<unknown>
}

export interface PrismaTransaction {
  $queryRawUnsafe(text: string): Promise<unknown>
  $executeRawUnsafe(text: string): Promise<number>
}

/** Whatever `within` takes: an open transaction of one of these libraries, on the store's database. */
export type PostgresTransaction =
  | PgClient
  | PostgresJsTransaction
  | KyselyTransaction
  | DrizzleTransaction
  | KnexTransaction
  | PrismaTransaction

export function connectionsOf<Client>(pool: PgPool | PostgresJs): Connections<Client> {
  return has(pool, 'unsafe') ? postgresJsConnections(pool as PostgresJs) : pgConnections(pool as PgPool)
}

function pgConnections<Client>(pool: PgPool): Connections<Client> {
  return {
    run: async (statements) => resultsOf(await pool.query(statements.join(';\n'))),
    async connect() {
      const client = await pool.connect()
      // A connection that breaks while nothing is asked of it emits an error event; without a listener, that ends the process.
      // Whoever asks next is told.
      const ignore = (): void => {}
      client.on('error', ignore)
      let isOver = false
      const giveBack = (error?: Error): void => {
        if (isOver) return
        isOver = true
        client.off('error', ignore)
        client.release(error)
      }
      return {
        client: client as Client,
        async run(statements) {
          if (isOver) throw transactionOver()
          return resultsOf(await client.query(statements.join(';\n')))
        },
        release: () => giveBack(),
        destroy: (error) => giveBack(error instanceof Error ? error : new Error(String(error))),
      }
    },
  }
}

function postgresJsConnections<Client>(sql: PostgresJs): Connections<Client> {
  return {
    run: async (statements) => resultsOf(await sql.unsafe(statements.join(';\n'))),
    async connect() {
      const reserved = await sql.reserve()
      const { guarded, isOver, end } = untilEnd(reserved)
      return {
        client: guarded as Client,
        async run(statements) {
          if (isOver()) throw transactionOver()
          return resultsOf(await reserved.unsafe(statements.join(';\n')))
        },
        release() {
          if (isOver()) return
          end()
          reserved.release()
        },
        // postgres.js has no way to destroy one connection. One that answers is clean after ROLLBACK; one that does not is
        // replaced by postgres.js itself, and must not be released: it would come back without a socket.
        destroy() {
          if (isOver()) return
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

// After its end the connection is somebody else's: what an effect that still runs sends over it must not get there.
function untilEnd<T extends object>(reserved: T): { readonly guarded: T; isOver(): boolean; end(): void } {
  let over = false
  const check = (): void => {
    if (over) throw transactionOver()
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
  return { guarded, isOver: () => over, end: () => void (over = true) }
}

// A ROLLBACK that comes late (core rolls a step back whose commit was refused) would end the transaction of others.
function transactionOver(): Error {
  return new Error('This transaction is over: its connection may be in use by others.')
}

/** A transaction that the caller opened, by its shape. */
export function sessionOf(tx: unknown): Session {
  if (has(tx, 'unsafe')) return joined((text) => (tx as PostgresJsTransaction).unsafe(text))
  if (has(tx, 'executeQuery')) return kyselySession(tx as KyselyTransaction)
  if (has(tx, '$queryRawUnsafe')) return prismaSession(tx as PrismaTransaction)
  if (has(tx, 'execute') && has(tx, 'rollback')) return joined((text) => (tx as DrizzleTransaction).execute(text))
  if (has(tx, 'raw') && (tx as KnexTransaction).isTransaction) {
    return joined((text) => (tx as KnexTransaction).raw(text))
  }
  // A pool would send each statement over another connection, outside of every transaction.
  if (has(tx, 'query') && !('totalCount' in (tx as object))) return joined((text) => (tx as PgClient).query(text))
  throw invalidArgument(
    `postgresStore: expected an open transaction of pg (a client, not the pool), postgres.js, Drizzle, Kysely, Knex or ` +
      `Prisma, got ${tx === null ? 'null' : Array.isArray(tx) ? 'an array' : `a value of type ${typeof tx}`}`,
  )
}

function joined(send: (text: string) => PromiseLike<unknown>): Session {
  return { run: async (statements) => resultsOf(await send(statements.join(';\n'))) }
}

// Kysely keeps only the rows of a single result, so each statement goes alone.
function kyselySession(tx: KyselyTransaction): Session {
  if (!tx.isTransaction) {
    throw invalidArgument('postgresStore: expected a Kysely transaction, got a Kysely instance outside of one')
  }
  return alone(async (sql) => {
    const query = { kind: 'RawNode', sqlFragments: [sql], parameters: [] }
    return tx.executeQuery({ sql, query, parameters: [], queryId: { queryId: 'onceonly' } } as never)
  })
}

// Prisma prepares everything that it sends, and several statements cannot be prepared as one.
function prismaSession(tx: PrismaTransaction): Session {
  return alone(async (text) => {
    if (!/^select/i.test(text)) return { rows: [], affected: await tx.$executeRawUnsafe(text) }
    return { rows: await tx.$queryRawUnsafe(text) }
  })
}

function alone(send: (text: string) => Promise<unknown>): Session {
  return {
    async run(statements) {
      const results: StatementResult[] = []
      for (const statement of statements) results.push(...resultsOf(await send(statement)))
      return results
    },
  }
}

// pg answers with a result, or an array of them for several statements; postgres.js with an array of rows that has the
// command beside them, or an array of those.
function resultsOf(raw: unknown): StatementResult[] {
  const results = Array.isArray(raw) && !('command' in raw) ? (raw as unknown[]) : [raw]
  return results.map((result) => {
    const { command, rows } = result as { command?: string; rows?: unknown }
    const found = (Array.isArray(result) ? result : (rows ?? [])) as readonly { readonly answer: string }[]
    return { command, answers: found.map((row) => row.answer) }
  })
}

function has(value: unknown, method: string): boolean {
  const able = typeof value === 'object' || typeof value === 'function'
  return able && value !== null && typeof (value as Record<string, unknown>)[method] === 'function'
}

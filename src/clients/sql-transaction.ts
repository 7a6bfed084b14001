// The libraries that stand above several databases: the slice of their transactions that we use. This file recognises a
// transaction by its shape. It hands Kysely and Drizzle a statement with its values in the form that these libraries make
// themselves.

import { invalidArgument } from '../core/errors.ts'

export interface KyselyTransaction {
  readonly isTransaction: boolean
  // Kysely's CompiledQuery, without its types.
  executeQuery(query: never): Promise<{ readonly rows: readonly unknown[] }>
}

export interface DrizzleTransaction {
  // A text, or Drizzle's SQLWrapper without its types.
  execute(query: never): PromiseLike<unknown>
  rollback(): never
}

export interface KnexTransaction {
  readonly isTransaction?: boolean
  raw(text: string, values?: never): PromiseLike<unknown>
}

export interface PrismaTransaction {
  $queryRawUnsafe(text: string, ...values: never[]): Promise<unknown>
  $executeRawUnsafe(text: string, ...values: never[]): Promise<number>
}

/** A transaction that the caller opened, with the library that it belongs to. */
export type LibraryTransaction =
  | { readonly library: 'Kysely'; readonly tx: KyselyTransaction }
  | { readonly library: 'Drizzle'; readonly tx: DrizzleTransaction }
  | { readonly library: 'Knex'; readonly tx: KnexTransaction }
  | { readonly library: 'Prisma'; readonly tx: PrismaTransaction }

/**
 * Which of these libraries a transaction belongs to. Undefined for everything else. A Kysely instance outside of a transaction is
 * refused: each of its statements would go over another connection. `caller` begins the message: "postgresStore".
 */
export function libraryTransactionOf(tx: unknown, caller: string): LibraryTransaction | undefined {
  if (has(tx, 'executeQuery')) {
    const kysely = tx as KyselyTransaction
    if (kysely.isTransaction) return { library: 'Kysely', tx: kysely }
    throw invalidArgument(`${caller}: expected a Kysely transaction, got a Kysely instance outside of one`)
  }
  if (has(tx, '$queryRawUnsafe')) {
    // Only the client itself can connect. What `prisma.$transaction` hands to its function cannot.
    if (!has(tx, '$connect')) return { library: 'Prisma', tx: tx as PrismaTransaction }
    throw invalidArgument(
      `${caller}: expected a Prisma transaction (prisma.$transaction(async (tx) => …)), got a Prisma client outside of one`,
    )
  }
  if (has(tx, 'raw') && (tx as KnexTransaction).isTransaction) return { library: 'Knex', tx: tx as KnexTransaction }
  // A connection of mysql2 can execute and roll back, too, and has a `query` that is a method.
  if (has(tx, 'execute') && has(tx, 'rollback') && !has(tx, 'query')) {
    return { library: 'Drizzle', tx: tx as DrizzleTransaction }
  }
  return undefined
}

/** Says what was given instead of a transaction. `expected` completes "expected an open transaction of …". */
export function noTransaction(tx: unknown, caller: string, expected: string): never {
  const got = tx === null ? 'null' : Array.isArray(tx) ? 'an array' : `a value of type ${typeof tx}`
  throw invalidArgument(`${caller}: expected an open transaction of ${expected}, got ${got}`)
}

export function has(value: unknown, method: string): boolean {
  const able = typeof value === 'object' || typeof value === 'function'
  return able && value !== null && typeof (value as Record<string, unknown>)[method] === 'function'
}

/** Kysely's CompiledQuery. */
export function kyselyQuery(text: string, values: readonly unknown[] = []): never {
  const query = { kind: 'RawNode', sqlFragments: [text], parameters: [] }
  return { sql: text, query, parameters: values, queryId: { queryId: 'onceonly' } } as never
}

/** Drizzle's SQLWrapper. */
export function drizzleQuery(text: string, values: readonly unknown[]): never {
  const built = { getSQL: () => built, toQuery: () => ({ sql: text, params: values }) }
  return built as never
}

// The operation under test, five steps: two in a transaction, two in systems that honour keys, one in a system that can only be
// asked. Its effects in the database go to a table without any constraint.

import { DatabaseSync } from 'node:sqlite'
import pg from 'pg'
import { createOnce } from '../../src/core/once.ts'
import type { Operation } from '../../src/core/operations.ts'
import type { Recovery } from '../../src/core/operations.ts'
import { postgresStore } from '../../src/stores/postgres.ts'
import type { PostgresStore } from '../../src/stores/postgres.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import type { SqliteStore } from '../../src/stores/sqlite.ts'

export const stepNames = ['reserve', 'charge', 'order', 'parcel', 'mail'] as const

/** Where an operation works: what a process is told, as JSON. */
export interface Place {
  /** postgres://… or the path of a SQLite file. */
  readonly store: string
  readonly outside: string
  /** The carrier is not asked what became of a parcel: what the ledgers must be able to show. */
  readonly careless?: true
}

/** Every call that leaves the process goes through here. */
export type Pass = <T>(name: string, call: () => Promise<T>) => Promise<T>

export interface Checkout {
  readonly operation: Operation<Order, string[]>
  recover(everyMs: number): Recovery
  close(): Promise<void>
}

export interface Order {
  readonly id: string
}

// Short, so that a takeover comes soon. Nothing depends on it being long enough: an attempt that is too slow is taken over, too.
const shortLeaseMs = 1_000

type Tx = pg.PoolClient | DatabaseSync

interface OpenStore {
  readonly store: PostgresStore<pg.PoolClient> | SqliteStore
  close(): Promise<unknown>
}

export function openStore(place: Place): OpenStore {
  if (!place.store.startsWith('postgres:')) {
    const store = sqliteStore({ path: place.store })
    return { store, close: async () => store.close() }
  }
  const pool = new pg.Pool({ connectionString: place.store, max: 10 })
  return { store: postgresStore({ pool }), close: () => pool.end() }
}

/** The effects table, and the store's own. */
export async function prepare(place: Place): Promise<void> {
  const { store, close } = openStore(place)
  await store.migrate()
  await close()
  const table = 'create table effects (step text, "order" text)'
  if (!place.store.startsWith('postgres:')) {
    const database = new DatabaseSync(place.store)
    database.exec(table)
    return database.close()
  }
  const client = new pg.Client(place.store)
  await client.connect()
  await client.query(table)
  return client.end()
}

/** A line for every effect in the database: "reserve order-1". */
export async function effectsInDatabase(place: Place): Promise<string[]> {
  const lines = `select step || ' ' || "order" as line from effects`
  if (!place.store.startsWith('postgres:')) {
    const database = new DatabaseSync(place.store)
    const rows = database.prepare(lines).all()
    database.close()
    return rows.map((row) => String(row['line']))
  }
  const client = new pg.Client(place.store)
  await client.connect()
  const { rows } = await client.query<{ line: string }>(lines)
  await client.end()
  return rows.map((row) => row.line)
}

/** In a scope of its own, so that a worker finds no other operation. */
export function openCheckout(
  place: Place,
  scope: string,
  store: OpenStore['store'],
  pass: Pass,
  leaseMs = shortLeaseMs,
): Checkout {
  const once = createOnce({ store: watched(store, pass), scope, leaseMs, waitMs: 0 })
  const backoff = { firstMs: 50, factor: 1, maxMs: 50 }
  const operation = once.operation('checkout', { backoff }, async (op, order: Order) => {
    const insert = (step: string) => async (tx: unknown) => {
      await write(tx as Tx, step, order.id)
      return `${step}-row`
    }
    const ask = (system: string, key: string): Promise<string> =>
      pass(`outside.${system}`, () => post(`${place.outside}/${system}/${order.id}`, key))
    const lookup = async (): Promise<'not-found' | { found: string }> => {
      const found = await pass('outside.lookup', () => get(`${place.outside}/carrier/${order.id}`))
      return found === '' ? 'not-found' : { found }
    }
    return [
      await op.transaction('reserve', insert('reserve')),
      await op.step('charge', ({ key }) => ask('bank', key)),
      await op.transaction('order', insert('order')),
      await op.step('parcel', {
        run: ({ key }) => ask('carrier', key),
        ...(!place.careless && { lookup }),
      }),
      await op.step('mail', ({ key }) => ask('mail', key)),
    ]
  })
  return {
    operation,
    recover: (everyMs) => once.recover([operation], { everyMs }),
    close: () => once.close(),
  }
}

// The heartbeat (extend) comes by the clock: numbered with the others, a slow machine would shift their numbers.
const watchedCalls: readonly (string | symbol)[] = [
  'enlist',
  'ledger',
  'advance',
  'beginStep',
  'due',
  'dismiss',
  'show',
]

/** The same store; what an operation asks of it goes through `pass`, and so does the commit of a transaction that it opened. */
function watched<Store extends object>(store: Store, pass: Pass): Store {
  return new Proxy(store, {
    get(target, name) {
      const member: unknown = Reflect.get(target, name, target)
      if (typeof member !== 'function' || !watchedCalls.includes(name)) return member
      const call = (...args: unknown[]): unknown => Reflect.apply(member, target, args)
      return async (...args: unknown[]) => {
        const answer = await pass(`store.${String(name)}`, async () => call(...args))
        return name === 'beginStep' && answer ? watchedStep(answer, pass) : answer
      }
    },
  })
}

function watchedStep(begun: object, pass: Pass): object {
  const { commit } = begun as { commit(change: unknown): Promise<unknown> }
  return { ...begun, commit: (change: unknown) => pass('store.beginStep.commit', () => commit(change)) }
}

async function write(tx: Tx, step: string, order: string): Promise<void> {
  if ('prepare' in tx) tx.prepare('insert into effects values (?, ?)').run(step, order)
  else await tx.query('insert into effects values ($1, $2)', [step, order])
}

async function post(url: string, key: string): Promise<string> {
  const response = await fetch(url, { method: 'POST', headers: { 'idempotency-key': key } })
  return response.text()
}

async function get(url: string): Promise<string> {
  return (await fetch(url)).text()
}

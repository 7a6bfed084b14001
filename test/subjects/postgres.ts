// What the PostgreSQL store lends to the contract: one server and one database for a test file, empty tables for each case,
// and a clock that stands still. The clock is the server's: a function named clock_timestamp in a schema that the search
// path puts before the real one.
import pg from 'pg'
import type { ContractSubject } from '../../src/testing/store-contract.ts'
import type { DumpedSubject } from './swept.ts'
import { postgresStore } from '../../src/stores/postgres.ts'
import { type FaultProxy, startFaultProxy } from '../servers/fault-proxy.ts'
import { versionVariable } from '../servers/postgres/programs.ts'
import { type RunningPostgres, startPostgres } from '../servers/postgres.ts'

// Names the store in the matrix of contracts, with its version where the run names one.
export function contractName(store: string): string {
  const version = process.env[versionVariable]
  return version === undefined ? store : `${store}, PostgreSQL ${version}`
}

export interface PostgresGround extends AsyncDisposable {
  readonly server: RunningPostgres
  // A database with the fake clock, the store's tables and a table of effects; straight to the server.
  readonly url: string
  // For the tests' own questions.
  readonly admin: pg.Pool
  // Empty tables, the clock at its start.
  reset(): Promise<void>
  advance(ms: number): Promise<void>
  createSubject(pool?: pg.PoolConfig): Promise<DumpedSubject<pg.PoolClient>>
}

const fakeClock = `
  create schema fake;
  create table fake.clock (at timestamptz not null);
  insert into fake.clock values (date_trunc('milliseconds', now()));
  create function fake.clock_timestamp() returns timestamptz language sql volatile as 'select at from fake.clock';
  create table effects (name text not null);
`

export interface PostgresGroundOptions {
  // The table in periods of this length, the first of which begins with every reset; otherwise the simple table.
  readonly periodMs?: number
}

export async function startPostgresGround({ periodMs }: PostgresGroundOptions = {}): Promise<PostgresGround> {
  const server = await startPostgres()
  const url = await server.createDatabase()
  const admin = createPool(url)
  await admin.query(fakeClock)
  const database = new URL(url).pathname.slice(1)
  await admin.query(`alter database ${database} set search_path = public, fake, pg_catalog`)
  const migrating = createPool(url)
  await postgresStore({ pool: migrating, ...(periodMs && { periodMs }) }).migrate()
  await migrating.end()
  const proxy = await startFaultProxy({ target: { url }, framer: 'postgres' })
  const reset = async (): Promise<void> => {
    await admin.query(
      'truncate public.onceonly, public.onceonly_audit, public.onceonly_operations, public.onceonly_steps, public.effects',
    )
    await admin.query(`update public.onceonly_periods
      set ends_at_ms = (select extract(epoch from at) * 1000 from fake.clock) + slot * period_ms`)
  }
  const advance = async (ms: number): Promise<void> => {
    await admin.query(`update fake.clock set at = at + $1 * interval '1 millisecond'`, [ms])
  }
  return {
    server,
    url,
    admin,
    reset,
    advance,
    async createSubject(config) {
      await reset()
      return createSubject({ server, proxy, admin, advance, newPool: () => createPool(proxy.url, config) })
    },
    async [Symbol.asyncDispose]() {
      await proxy.close()
      await admin.end()
      await server.stop()
    },
  }
}

// Errors of idle connections are expected here: servers crash and proxies cut.
export function createPool(url: string, options: pg.PoolConfig = {}): pg.Pool {
  const pool = new pg.Pool({ connectionString: url, connectionTimeoutMillis: 10_000, ...options })
  pool.on('error', () => {})
  return pool
}

interface Around {
  readonly server: RunningPostgres
  readonly proxy: FaultProxy
  readonly admin: pg.Pool
  advance(ms: number): Promise<void>
  newPool(): pg.Pool
}

function createSubject({ server, proxy, admin, advance, newPool }: Around): DumpedSubject<pg.PoolClient> {
  const pools = [newPool()]
  const pool = pools[0]!
  return {
    store: postgresStore({ pool }),
    async another() {
      pools.push(newPool())
      return postgresStore({ pool: pools.at(-1)! })
    },
    advance,
    async corrupt({ scope, id }, bytes) {
      await admin.query('update public.onceonly set outcome = $3 where scope = $1 and id = $2', [scope, id, bytes])
    },
    async dump() {
      const { rows: tables } = await admin.query<{ name: string }>(
        `select tablename as name from pg_tables where schemaname = 'public' and tablename like 'onceonly%'`,
      )
      const found = await Promise.all(tables.map(({ name }) => admin.query<object>(`select * from public.${name}`)))
      return found.flatMap(({ rows }) => rows)
    },
    transactions: {
      run: (work) => inTransaction(pool, work),
      async addEffect(tx, name) {
        await tx.query('insert into effects values ($1)', [name])
      },
      commitByHand: async (tx) => void (await tx.query('commit')),
      async countEffects(name) {
        const { rows } = await admin.query<{ count: string }>('select count(*) from public.effects where name = $1', [
          name,
        ])
        return Number(rows[0]!.count)
      },
    },
    faults: faults(server, proxy),
    async destroy() {
      await proxy.setMode('pass')
      await Promise.all(pools.map((each) => each.end()))
    },
  }
}

export async function inTransaction<T>(pool: pg.Pool, work: (tx: pg.PoolClient) => Promise<T>): Promise<T> {
  const client = await pool.connect()
  try {
    await client.query('begin')
    const value = await work(client)
    await client.query('commit')
    return value
  } catch (error) {
    await client.query('rollback')
    throw error
  } finally {
    client.release()
  }
}

const commandComplete = 'C'.charCodeAt(0)

function faults(server: RunningPostgres, proxy: FaultProxy): NonNullable<ContractSubject['faults']> {
  return {
    async crashServer() {
      await server.crash()
      await server.restart()
    },
    async cutOff() {
      await proxy.setMode('refuse')
      proxy.resetConnections()
    },
    heal: () => proxy.setMode('pass'),
    async cutAtCommit(side) {
      if (side === 'before') proxy.cutAt({ direction: 'request', match: 'COMMIT', side: 'before' })
      else proxy.cutAt({ direction: 'reply', match: isCompletion('COMMIT'), side: 'before' })
    },
    // The server sends it after it has committed.
    async dropNextReply() {
      proxy.cutAt({ direction: 'reply', match: isCompletion('SELECT'), side: 'before' })
    },
  }
}

function isCompletion(tag: string): (message: Buffer) => boolean {
  return (message) => message[0] === commandComplete && message.includes(tag)
}

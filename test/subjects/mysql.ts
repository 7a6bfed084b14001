// What the MySQL store lends to the contract: one server and one database for a test file, empty tables for each case, and a
// clock that stands still. The clock is in the schema: the text that reads it is replaced by one that reads a table, which is
// of an engine without transactions, so that every snapshot sees it move.
import mysql from 'mysql2/promise'
import type { Pool, PoolConnection, PoolOptions, RowDataPacket } from 'mysql2/promise'
import { clockSql } from '../../src/stores/mysql/pieces.sql.ts'
import { schemaStatements } from '../../src/stores/mysql/schema.ts'
import { mysqlStore } from '../../src/stores/mysql.ts'
import type { ContractSubject } from '../../src/testing/store-contract.ts'
import type { DumpedSubject } from './swept.ts'
import { type FaultProxy, startFaultProxy } from '../servers/fault-proxy.ts'
import { type MariadbOptions, type RunningMariadb, startMariadb } from '../servers/mariadb.ts'

export interface MysqlGround extends AsyncDisposable {
  readonly server: RunningMariadb
  // A database with the fake clock, the store's tables and a table of effects; straight to the server.
  readonly url: string
  // For the tests' own questions.
  readonly admin: Pool
  // Empty tables.
  reset(): Promise<void>
  advance(ms: number): Promise<void>
  createSubject(): Promise<DumpedSubject<PoolConnection>>
}

const effects = 'create table effects (name varchar(100) not null) engine = InnoDB'

const fakeClock = [
  'create table fake_clock (at_us bigint not null) engine = MyISAM',
  'insert into fake_clock select floor(unix_timestamp() * 1000000)',
  effects,
]

export async function startMysqlGround(options: MariadbOptions = {}, start = startMariadb): Promise<MysqlGround> {
  const server = await start(options)
  const url = await server.createDatabase()
  const admin = createPool(url)
  const schema = schemaStatements('onceonly').map((each) =>
    each.replaceAll(clockSql, '(select c.at_us from fake_clock c)'),
  )
  for (const statement of [...fakeClock, ...schema]) await admin.query(statement)
  const proxy = await startFaultProxy({ target: { url } })
  const reset = async (): Promise<void> => {
    const tables = ['onceonly', 'onceonly_audit', 'onceonly_operations', 'onceonly_steps', 'effects']
    for (const table of tables) await admin.query(`delete from ${table}`)
  }
  const advance = async (ms: number): Promise<void> => {
    await admin.query('update fake_clock set at_us = at_us + ?', [ms * 1000])
  }
  return {
    server,
    url,
    admin,
    reset,
    advance,
    async createSubject() {
      await reset()
      return createSubject({ server, proxy, admin, advance })
    },
    async [Symbol.asyncDispose]() {
      await proxy.close()
      await admin.end()
      await server.stop()
    },
  }
}

// A database as users have it: its own clock, the store migrated, a table of effects.
export async function createMysqlDatabase(server: RunningMariadb): Promise<string> {
  const url = await server.createDatabase()
  const pool = createPool(url)
  await mysqlStore({ pool }).migrate()
  await pool.query(effects)
  await pool.end()
  return url
}

export function createPool(url: string, options: PoolOptions = {}): Pool {
  return mysql.createPool({ uri: url, connectTimeout: 10_000, ...options })
}

interface Around {
  readonly server: RunningMariadb
  readonly proxy: FaultProxy
  readonly admin: Pool
  advance(ms: number): Promise<void>
}

function createSubject({ server, proxy, admin, advance }: Around): DumpedSubject<PoolConnection> {
  const pools = [createPool(proxy.url)]
  const pool = pools[0]!
  return {
    store: mysqlStore({ pool }),
    async another() {
      pools.push(createPool(proxy.url))
      return mysqlStore({ pool: pools.at(-1)! })
    },
    advance,
    async corrupt({ scope, id }, bytes) {
      const values = [Buffer.from(bytes), Buffer.from(scope), Buffer.from(id)]
      await admin.query('update onceonly set outcome = ? where scope = ? and id = ?', values)
    },
    async dump() {
      const [tables] = await admin.query<RowDataPacket[]>(
        `select table_name as name from information_schema.tables where table_schema = database() and table_name like 'onceonly%'`,
      )
      const found = tables.map(({ name }) => admin.query<RowDataPacket[]>(`select * from \`${name as string}\``))
      return (await Promise.all(found)).flatMap(([rows]) => rows)
    },
    transactions: {
      run: (work) => inTransaction(pool, work),
      async addEffect(tx, name) {
        await tx.query('insert into effects values (?)', [name])
      },
      commitByHand: async (tx) => void (await tx.query('commit')),
      countEffects: (name) => countEffects(admin, name),
    },
    faults: faults(server, proxy),
    async destroy() {
      await proxy.setMode('pass')
      await Promise.all(pools.map((each) => each.end()))
    },
  }
}

export async function countEffects(pool: Pool, name: string): Promise<number> {
  const [rows] = await pool.query<RowDataPacket[]>('select count(*) as count from effects where name = ?', [name])
  return Number(rows[0]!['count'])
}

export async function inTransaction<T>(pool: Pool, work: (tx: PoolConnection) => Promise<T>): Promise<T> {
  const client = await pool.getConnection()
  try {
    await client.beginTransaction()
    const value = await work(client)
    await client.commit()
    return value
  } catch (error) {
    await client.rollback()
    throw error
  } finally {
    client.release()
  }
}

// Each call is one request and one reply, and the next reply is that of the next call.
function faults(server: RunningMariadb, proxy: FaultProxy): NonNullable<ContractSubject['faults']> {
  const dropNextReply = async (): Promise<void> => {
    proxy.cutAt({ direction: 'reply', side: 'before' })
  }
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
      if (side === 'before') proxy.cutAt({ direction: 'request', match: '_commit_', side: 'before' })
      else await dropNextReply()
    },
    // The server sends it after it has committed.
    dropNextReply,
  }
}

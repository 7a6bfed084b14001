// PostgreSQL for the writes: one database, its tables, a transaction of pg.
import type pg from 'pg'
import { postgresWrites } from '../../src/writes/index.ts'
import { createPool, inTransaction } from '../subjects/postgres.ts'
import { startPostgres } from '../servers/postgres.ts'
import { asTexts, tables, type WritesGround } from './ground.ts'

export interface PostgresWritesGround extends WritesGround {
  readonly url: string
  readonly pool: pg.Pool
}

const schema = `
  create table things (id text primary key, name text, note text, visits bigint, version bigint, email text unique);
  create table marks (event_id text primary key);
  create table events (
    event_id text primary key, stream text not null, version bigint not null, body text, unique (stream, version)
  )`

export async function startPostgresWritesGround(): Promise<PostgresWritesGround> {
  const server = await startPostgres()
  const url = await server.createDatabase()
  const pool = createPool(url)
  await pool.query(schema)
  return {
    url,
    pool,
    run: (work) => inTransaction(pool, (tx) => work(postgresWrites(tx))),
    async row(table, key) {
      const [column, value] = Object.entries(key)[0]!
      const { rows } = await pool.query<object>(`select * from ${table} where ${column} = $1`, [value])
      return rows[0] && asTexts(rows[0])
    },
    reset: async () => void (await pool.query(`truncate ${tables.join(', ')}`)),
    async [Symbol.asyncDispose]() {
      await pool.end()
      await server.stop()
    },
  }
}

// Two sessions on PostgreSQL, interleaved by hand at each isolation level, and the transactions of every client library.
import { drizzle as drizzlePg } from 'drizzle-orm/node-postgres'
import { drizzle as drizzlePostgresJs } from 'drizzle-orm/postgres-js'
import knex from 'knex'
import { CamelCasePlugin, Kysely, PostgresDialect } from 'kysely'
import type pg from 'pg'
import postgres from 'postgres'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { postgresWrites, type PostgresWritesClient } from '../../src/writes/index.ts'
import { createPool, inTransaction } from '../subjects/postgres.ts'
import { needs } from '../servers/needs.ts'
import { pollUntil } from '../servers/poll.ts'
import { startPostgresWritesGround, type PostgresWritesGround } from './postgres-ground.ts'
import { oldRow, sessionCases, walkedId, walkedRow, walkThrough } from './session-cases.ts'

needs('postgres').describe('sessions on PostgreSQL', () => {
  let ground: PostgresWritesGround
  let one: pg.PoolClient
  let two: pg.PoolClient
  beforeAll(async () => void (ground = await startPostgresWritesGround()))
  afterAll(() => ground[Symbol.asyncDispose]())
  beforeEach(async () => {
    await ground.reset()
    await ground.pool.query(oldRow)
    one = await ground.pool.connect()
    two = await ground.pool.connect()
  })
  afterEach(async () => {
    for (const client of [one, two]) {
      await client.query('rollback')
      client.release()
    }
  })

  async function pidOf(client: pg.PoolClient): Promise<number> {
    return (await client.query<{ pid: number }>('select pg_backend_pid() as pid')).rows[0]!.pid
  }

  async function waits(pid: number): Promise<void> {
    await pollUntil('the second session to wait for the first', async () => {
      const { rows } = await ground.pool.query('select 1 where cardinality(pg_blocking_pids($1)) > 0', [pid])
      return rows.length > 0
    })
  }

  describe.each(sessionCases)('$name', ({ call, first, repeated }) => {
    test('the second waits for the first and is told what it committed', async () => {
      await one.query('begin')
      await two.query('begin')
      const pid = await pidOf(two)
      expect(await call(postgresWrites(one))).toBe(first)
      const second = call(postgresWrites(two))
      await waits(pid)
      await one.query('commit')
      expect(await second).toBe(repeated)
      await two.query('commit')
    })

    test('the second is applied when the first is rolled back', async () => {
      await one.query('begin')
      await two.query('begin')
      const pid = await pidOf(two)
      expect(await call(postgresWrites(one))).toBe(first)
      const second = call(postgresWrites(two))
      await waits(pid)
      await one.query('rollback')
      expect(await second).toBe(first)
      await two.query('commit')
      expect(await call(postgresWrites(one))).toBe(repeated)
    })

    test.each(['repeatable read', 'serializable'])(
      'with an older snapshot at %s it is a conflict, and the whole transaction again tells the truth',
      async (isolation) => {
        await two.query(`begin isolation level ${isolation}`)
        await two.query('select count(*) from things')
        await one.query('begin')
        expect(await call(postgresWrites(one))).toBe(first)
        await one.query('commit')
        await expect(call(postgresWrites(two))).rejects.toMatchObject({ code: '40001' })
        await two.query('rollback')
        await two.query(`begin isolation level ${isolation}`)
        expect(await call(postgresWrites(two))).toBe(repeated)
        await two.query('commit')
      },
    )
  })

  test('a client outside of a transaction: each write is a commit of its own', async () => {
    await walkThrough(postgresWrites(one))
    expect(await ground.row('things', { id: walkedId })).toMatchObject(walkedRow)
  })

  test('a JSON column takes text as it is, also through postgres.js, which would make JSON of it again', async () => {
    const sql = postgres(ground.url, { max: 1 })
    await ground.pool.query(
      'create table documents (id uuid primary key, body jsonb, at timestamptz, data bytea, ok bool)',
    )
    const key = { id: '0b4f3c1e-5d0f-4f3e-8d2a-0c9f6a3b2d11' }
    const set = { body: '{"a": 1}', at: new Date(86_400_000), data: Uint8Array.of(0, 255), ok: true }
    const answers = await sql.begin(async (tx) => [
      await postgresWrites(tx).upsert('documents', { key, set }),
      await postgresWrites(tx).upsert('documents', { key, set }),
    ])
    expect(answers).toEqual(['applied', 'already'])
    await sql.end()
    expect(await postgresWrites(one).upsert('documents', { key, set })).toBe('already')
    const { rows } = await ground.pool.query('select * from documents')
    expect(rows).toEqual([{ ...key, ...set, body: { a: 1 }, data: Buffer.from([0, 255]) }])
  })

  test('a table without the constraint that a key needs is an error', async () => {
    await ground.pool.query('create table loose (id text, name text)')
    const insert = postgresWrites(one).insertOnce('public.loose', { key: { id: 'a' } })
    await expect(insert).rejects.toThrow(/no unique or exclusion constraint/)
  })
})

interface Client {
  readonly name: string
  run(work: (tx: PostgresWritesClient) => Promise<void>): Promise<unknown>
  close(): Promise<unknown>
}

function clients(url: string): Client[] {
  const pool = createPool(url)
  const sql = postgres(url, { max: 3, onnotice: () => {} })
  const kysely = new Kysely<object>({
    dialect: new PostgresDialect({ pool: createPool(url) }),
    plugins: [new CamelCasePlugin()],
  })
  const knexed = knex({ client: 'pg', connection: url })
  return [
    { name: 'pg', run: (work) => inTransaction(pool, work), close: async () => {} },
    { name: 'postgres.js', run: (work) => sql.begin((tx) => work(tx)), close: async () => {} },
    { name: 'Drizzle on pg', run: (work) => drizzlePg(pool).transaction((tx) => work(tx)), close: () => pool.end() },
    {
      name: 'Drizzle on postgres.js',
      run: (work) => drizzlePostgresJs(sql).transaction((tx) => work(tx)),
      close: () => sql.end(),
    },
    { name: 'Kysely', run: (work) => kysely.transaction().execute((tx) => work(tx)), close: () => kysely.destroy() },
    { name: 'Knex', run: (work) => knexed.transaction((tx) => work(tx)), close: () => knexed.destroy() },
  ]
}

needs('postgres').describe('transactions of other libraries', () => {
  let ground: PostgresWritesGround
  let all: Client[]
  beforeAll(async () => {
    ground = await startPostgresWritesGround()
    all = clients(ground.url)
  })
  afterAll(async () => {
    await Promise.all(all.map((client) => client.close()))
    await ground[Symbol.asyncDispose]()
  })

  test.each(['pg', 'postgres.js', 'Drizzle on pg', 'Drizzle on postgres.js', 'Kysely', 'Knex'])(
    '%s: every answer, committed and rolled back',
    async (name) => {
      const client = all.find((each) => each.name === name)!
      await ground.reset()
      const failing = client.run(async (tx) => {
        await walkThrough(postgresWrites(tx))
        throw new Error('taken back')
      })
      await expect(failing).rejects.toThrow('taken back')
      expect(await ground.row('things', { id: walkedId })).toBeUndefined()
      await client.run((tx) => walkThrough(postgresWrites(tx)))
      expect(await ground.row('things', { id: walkedId })).toMatchObject(walkedRow)
    },
  )
})

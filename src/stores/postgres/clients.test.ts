// The transactions of the client libraries that people use with PostgreSQL, each for real.

import { sql as drizzleSql } from 'drizzle-orm'
import { drizzle as drizzlePg } from 'drizzle-orm/node-postgres'
import { drizzle as drizzlePostgresJs } from 'drizzle-orm/postgres-js'
import knex from 'knex'
import { CamelCasePlugin, Kysely, PostgresDialect } from 'kysely'
import type pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import {
  bytesOf,
  claimed,
  clientTransactionCases,
  request,
  retention,
  type TransactionClient,
} from '../../../test/subjects/client-transactions.ts'
import { createPool, inTransaction, type PostgresGround, startPostgresGround } from '../../../test/subjects/postgres.ts'
import { needs } from '../../../test/servers/needs.ts'
import { key, newId } from '../../core/key.ts'
import { postgresStore } from '../postgres.ts'
import type { PostgresTransaction } from '../postgres.ts'

// Every character that means something to one of the layers on the way.
const odd = key(`it's "quoted"`, String.raw`\ ? $1 :name {a,b} %s -- ; ' 🙂`)

type Client = TransactionClient<PostgresTransaction>

function clients(url: string): Client[] {
  const pool = createPool(url)
  const sql = postgres(url, { max: 3, onnotice: () => {} })
  const kysely = new Kysely<{ effects: { name: string } }>({
    dialect: new PostgresDialect({ pool: createPool(url) }),
    plugins: [new CamelCasePlugin()],
  })
  const knexed = knex({ client: 'pg', connection: url })
  const drizzled = drizzlePostgresJs(sql)
  return [
    {
      name: 'pg',
      run: (work) =>
        inTransaction(pool, (tx) => work(tx, (name) => tx.query('insert into effects values ($1)', [name]))),
      close: async () => undefined,
    },
    {
      name: 'postgres.js',
      run: async (work) => void (await sql.begin((tx) => work(tx, (name) => tx`insert into effects values (${name})`))),
      close: async () => undefined,
    },
    {
      name: 'Drizzle on pg',
      run: (work) =>
        drizzlePg(pool).transaction((tx) =>
          work(tx, (name) => tx.execute(drizzleSql`insert into effects values (${name})`)),
        ),
      close: () => pool.end(),
    },
    {
      name: 'Drizzle on postgres.js',
      run: (work) =>
        drizzled.transaction((tx) => work(tx, (name) => tx.execute(drizzleSql`insert into effects values (${name})`))),
      close: () => sql.end(),
    },
    {
      name: 'Kysely',
      run: (work) =>
        kysely.transaction().execute((tx) => work(tx, (name) => tx.insertInto('effects').values({ name }).execute())),
      close: () => kysely.destroy(),
    },
    {
      name: 'Knex',
      run: (work) => knexed.transaction((tx) => work(tx, async (name) => tx('effects').insert({ name }))),
      close: () => knexed.destroy(),
    },
  ]
}

const clientNames = ['pg', 'postgres.js', 'Drizzle on pg', 'Drizzle on postgres.js', 'Kysely', 'Knex']

// The only way to have every library see these errors from the server itself.
const raisingTrigger = `
  create function public.raising() returns trigger language plpgsql as $$ begin
    if new.name like 'raise %' then raise exception using errcode = substring(new.name from 7); end if;
    return new;
  end $$;
  create trigger raising before insert on public.effects for each row execute function public.raising();
`

needs('postgres', { ours: true }).describe('transactions of other libraries', () => {
  let ground: PostgresGround
  let pool: pg.Pool
  let all: readonly Client[]
  beforeAll(async () => {
    ground = await startPostgresGround()
    await ground.admin.query(raisingTrigger)
    pool = createPool(ground.url)
    all = clients(ground.url)
  })
  beforeEach(() => ground.reset())
  afterAll(async () => {
    await Promise.all(all.map((client) => client.close()))
    await pool.end()
    await ground[Symbol.asyncDispose]()
  })

  const effects = async (): Promise<string[]> => {
    const { rows } = await ground.admin.query<{ name: string }>('select name from public.effects order by name')
    return rows.map((row) => row.name)
  }

  const errors = {
    title: 'a serialization failure is a conflict, however it is wrapped; others are not',
    conflicts: { 40001: true, '40P01': true, 23505: false, 57014: false },
  }
  clientTransactionCases<PostgresTransaction>(
    { clientNames, odd, errors },
    {
      store: () => postgresStore({ pool }),
      clients: () => all,
      effects,
      wrong: async () => ({
        values: [
          pool,
          new Kysely<object>({ dialect: new PostgresDialect({ pool }) }),
          drizzlePg(pool),
          // The shape of a PrismaClient. What its transactions are given has no $connect.
          { $connect: () => {}, $transaction: () => {}, $queryRawUnsafe: () => {}, $executeRawUnsafe: () => {} },
        ],
        close: async () => undefined,
      }),
      async outside() {
        const tx = await pool.connect()
        return { tx, release: () => tx.release() }
      },
    },
  )

  test('postgres.js can be the pool, too: batches, begin, commit, undo, rollback and abandon', async () => {
    const sql = postgres(ground.url, { max: 2, onnotice: () => {} })
    const store = postgresStore({ pool: sql })
    const keys = Array.from({ length: 300 }, () => key('many', newId()))
    const claims = await Promise.all(keys.map((each) => claimed(store, each)))
    const settled = await Promise.all(claims.map((claim) => store.settle(claim, Buffer.from(claim.key.id), retention)))
    expect(new Set(settled)).toEqual(new Set(['done']))
    expect(await store.claim(keys[7]!, request())).toMatchObject({ outcome: bytesOf(keys[7]!.id) })

    for (const end of ['commit', 'undo', 'rollback', 'abandon'] as const) {
      const { granted } = await store.begin(key('begin', end), request())
      await granted!.tx`insert into effects values (${end})`
      if (end === 'undo') await granted!.undoEffect()
      if (end === 'rollback') await granted!.rollback()
      else if (end === 'abandon') await granted!.abandon()
      else expect(await granted!.commit(Buffer.from(end), retention)).toBe('done')
      expect(() => granted!.tx`insert into effects values ('too late')`).toThrow('has ended')
    }
    expect(await effects()).toEqual(['commit'])
    // There are two connections: two transactions at once show that all of them were given back. (Only then may the pool be
    // ended: postgres.js waits for ever for a connection that is reserved at that moment.)
    const both = await Promise.all(['one', 'two'].map((id) => store.begin(key('both', id), request())))
    await Promise.all(both.map(({ granted }) => granted!.rollback()))
    await sql.end()
  })
})

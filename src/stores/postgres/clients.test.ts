// The transactions of the client libraries that people use, each for real: what commits has its effect and its outcome,
// what rolls back has neither, and what is undone leaves the transaction usable.

import { sql as drizzleSql } from 'drizzle-orm'
import { drizzle as drizzlePg } from 'drizzle-orm/node-postgres'
import { drizzle as drizzlePostgresJs } from 'drizzle-orm/postgres-js'
import knex from 'knex'
import { CamelCasePlugin, Kysely, PostgresDialect } from 'kysely'
import type pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { createPool, inTransaction, type PostgresGround, startPostgresGround } from '../../../test/subjects/postgres.ts'
import { needs } from '../../../test/servers/needs.ts'
import { OnceError } from '../../core/errors.ts'
import { key, newId } from '../../core/key.ts'
import type { Claim, ClaimRequest, InTransaction } from '../../core/store.ts'
import { postgresStore } from '../postgres.ts'
import type { PostgresTransaction } from '../postgres.ts'

const retention = { keepMs: 3_600_000, tombstoneMs: 3_600_000 }
// Every character that means something to one of the layers on the way.
const odd = key(`it's "quoted"`, String.raw`\ ? $1 :name {a,b} %s -- ; ' 🙂`)

interface Client {
  readonly name: string
  /** Commits when the work resolves, rolls back when it throws. */
  run(work: (tx: PostgresTransaction, addEffect: (name: string) => Promise<unknown>) => Promise<void>): Promise<void>
  close(): Promise<unknown>
}

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

function request(changes: Partial<ClaimRequest> = {}): ClaimRequest {
  const token = crypto.randomUUID()
  const fingerprint = 'f'.repeat(43)
  const policies = { onTakeover: 'run', onExpired: 'refuse' } as const
  return { token, fingerprint, leaseMs: 60_000, retention, version: 1, ...policies, ...changes }
}

async function claimed(store: Pick<InTransaction, 'claim'>, subject = odd): Promise<Claim> {
  const verdict = await store.claim(subject, request({ input: Buffer.from('input?') }))
  if (verdict.is !== 'granted') throw new Error(`expected granted, got ${verdict.is}`)
  return verdict.claim
}

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text)

// The only way to have every library see these errors from the server itself.
const raisingTrigger = `
  create function public.raising() returns trigger language plpgsql as $$ begin
    if new.name like 'raise %' then raise exception using errcode = substring(new.name from 7); end if;
    return new;
  end $$;
  create trigger raising before insert on public.effects for each row execute function public.raising();
`

class Rollback extends Error {}

needs('postgres', { ours: true }).describe('transactions of other libraries', () => {
  let ground: PostgresGround
  let pool: pg.Pool
  let all: Map<string, Client>
  beforeAll(async () => {
    ground = await startPostgresGround()
    await ground.admin.query(raisingTrigger)
    pool = createPool(ground.url)
    all = new Map(clients(ground.url).map((client) => [client.name, client]))
  })
  beforeEach(() => ground.reset())
  afterAll(async () => {
    await Promise.all([...all.values()].map((client) => client.close()))
    await pool.end()
    await ground[Symbol.asyncDispose]()
  })

  const effects = async (): Promise<string[]> => {
    const { rows } = await ground.admin.query<{ name: string }>('select name from public.effects order by name')
    return rows.map((row) => row.name)
  }

  test('every library is tested', () => expect([...all.keys()]).toEqual(clientNames))

  test.each(clientNames)('%s: a commit has the effect and its outcome, and the key of odd characters', async (name) => {
    const store = postgresStore({ pool })
    await all.get(name)!.run(async (tx, addEffect) => {
      const inside = store.within(tx)
      const claim = await claimed(inside)
      await addEffect('effect')
      expect(await store.claim(odd, request())).toMatchObject({ is: 'busy' })
      expect(await inside.settle(claim, Buffer.from([0, 255, 39, 63, 92]), retention)).toBe('done')
    })
    expect(await effects()).toEqual(['effect'])
    expect(await store.claim(odd, request())).toMatchObject({
      is: 'settled',
      outcome: Uint8Array.of(0, 255, 39, 63, 92),
    })
    expect((await store.list({ limit: 10 })).map((entry) => entry.key)).toEqual([odd])
  })

  test.each(clientNames)('%s: a rollback has neither', async (name) => {
    const store = postgresStore({ pool })
    const work = all.get(name)!.run(async (tx, addEffect) => {
      const inside = store.within(tx)
      const claim = await claimed(inside)
      await addEffect('effect')
      await inside.settle(claim, Buffer.from('never'), retention)
      throw new Rollback()
    })
    await expect(work).rejects.toThrow(Rollback)
    expect(await effects()).toEqual([])
    expect(await store.claim(odd, request())).toMatchObject({ is: 'granted', how: 'fresh' })
  })

  test.each(clientNames)('%s: effects and claims are undone one by one, nested ones too', async (name) => {
    const store = postgresStore({ pool })
    const inner = key('nested', newId())
    await all.get(name)!.run(async (tx, addEffect) => {
      const inside = store.within(tx)
      const outerClaim = await claimed(inside)
      await addEffect('outer')
      const innerClaim = await claimed(inside, inner)
      await addEffect('inner')
      await inside.undoClaim(innerClaim)
      await addEffect('after the inner')
      expect(await inside.claim(odd, request())).toMatchObject({ is: 'busy' })
      await inside.undoEffect(outerClaim)
      await addEffect('instead')
      expect(await inside.settle(outerClaim, Buffer.from('declined'), retention)).toBe('done')
    })
    expect(await effects()).toEqual(['instead'])
    expect(await store.claim(odd, request())).toMatchObject({ is: 'settled', outcome: bytes('declined') })
    expect(await store.claim(inner, request())).toMatchObject({ is: 'granted', how: 'fresh' })
  })

  test.each(clientNames)(
    '%s: a serialization failure is a conflict, however it is wrapped; others are not',
    async (name) => {
      const store = postgresStore({ pool })
      for (const [state, conflict] of Object.entries({ 40001: true, '40P01': true, 23505: false, 57014: false })) {
        const work = all.get(name)!.run(async (_tx, addEffect) => void (await addEffect(`raise ${state}`)))
        const error = await work.catch((thrown: unknown) => thrown)
        expect(error).toBeInstanceOf(Error)
        expect(store.isConflict(error)).toBe(conflict)
      }
    },
  )

  test('what is not an open transaction is refused by name, and nothing is claimed', async () => {
    const store = postgresStore({ pool })
    const kysely = new Kysely<object>({ dialect: new PostgresDialect({ pool }) })
    for (const wrong of [undefined, null, 'tx', 42, {}, [], pool, kysely, drizzlePg(pool)]) {
      expect(() => store.within(wrong as never)).toThrow(OnceError)
    }
    const client = await pool.connect()
    const error = await store
      .within(client)
      .claim(odd, request())
      .catch((thrown: unknown) => thrown)
    client.release()
    expect(error).toMatchObject({ code: 'INVALID_ARGUMENT', executed: 'no' })
    expect(await store.list({ limit: 10 })).toEqual([])
  })

  test('postgres.js can be the pool, too: batches, begin, commit, undo, rollback and abandon', async () => {
    const sql = postgres(ground.url, { max: 2, onnotice: () => {} })
    const store = postgresStore({ pool: sql })
    const keys = Array.from({ length: 300 }, () => key('many', newId()))
    const claims = await Promise.all(keys.map((each) => claimed(store, each)))
    const settled = await Promise.all(claims.map((claim) => store.settle(claim, Buffer.from(claim.key.id), retention)))
    expect(new Set(settled)).toEqual(new Set(['done']))
    expect(await store.claim(keys[7]!, request())).toMatchObject({ outcome: bytes(keys[7]!.id) })

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

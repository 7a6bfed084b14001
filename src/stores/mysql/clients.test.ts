// The transactions of the client libraries that people use, each for real: what commits has its effect and its outcome,
// what rolls back has neither, and what is undone leaves the transaction usable.

import { sql as drizzleSql } from 'drizzle-orm'
import { drizzle } from 'drizzle-orm/mysql2'
import knex from 'knex'
import { CamelCasePlugin, Kysely, MysqlDialect } from 'kysely'
import mysqlWithCallbacks from 'mysql2'
import type { Pool, RowDataPacket } from 'mysql2/promise'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { createPool, inTransaction, type MysqlGround, startMysqlGround } from '../../../test/subjects/mysql.ts'
import { needs } from '../../../test/servers/needs.ts'
import { OnceError } from '../../core/errors.ts'
import { key, newId } from '../../core/key.ts'
import type { Claim, InTransaction } from '../../core/store.ts'
import { bytesOf, request, retention } from '../../testing/store-contract.ts'
import { mysqlStore } from '../mysql.ts'
import type { MysqlTransaction } from '../mysql.ts'

// Every character that means something to one of the layers on the way.
const odd = key(`it's "quoted"`, String.raw`\ ? ?? $1 :name {a,b} %s -- # ; ' 🙂`)

interface Client {
  readonly name: string
  /** Commits when the work resolves, rolls back when it throws. */
  run(work: (tx: MysqlTransaction, addEffect: (name: string) => Promise<unknown>) => Promise<void>): Promise<void>
  close(): Promise<unknown>
}

const insertEffect = 'insert into effects values (?)'

function clients(url: string): Client[] {
  const pool = createPool(url)
  const callbackPool = mysqlWithCallbacks.createPool({ uri: url })
  const drizzled = drizzle(createPool(url))
  const kysely = new Kysely<{ effects: { name: string } }>({
    dialect: new MysqlDialect({ pool: mysqlWithCallbacks.createPool({ uri: url }) }),
    plugins: [new CamelCasePlugin()],
  })
  const knexed = knex({ client: 'mysql2', connection: url })
  return [
    {
      name: 'mysql2/promise',
      run: (work) => inTransaction(pool, (tx) => work(tx, (name) => tx.query(insertEffect, [name]))),
      close: () => pool.end(),
    },
    {
      name: 'mysql2 with callbacks',
      run: (work) =>
        inTransaction(callbackPool.promise() as unknown as Pool, (tx) =>
          // The connection under the promises is what somebody who uses callbacks has.
          work(tx.connection as unknown as MysqlTransaction, (name) => tx.query(insertEffect, [name])),
        ),
      close: () => callbackPool.promise().end(),
    },
    {
      name: 'Drizzle',
      run: (work) =>
        drizzled.transaction((tx) => work(tx, (name) => tx.execute(drizzleSql`insert into effects values (${name})`))),
      close: async () => (drizzled.$client as unknown as Pool).end(),
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

const clientNames = ['mysql2/promise', 'mysql2 with callbacks', 'Drizzle', 'Kysely', 'Knex']

async function claimed(store: Pick<InTransaction, 'claim'>, subject = odd): Promise<Claim> {
  const verdict = await store.claim(subject, request({ input: Buffer.from('input?') }))
  if (verdict.is !== 'granted') throw new Error(`expected granted, got ${verdict.is}`)
  return verdict.claim
}

// The only way to have every library see these errors from the server itself.
const raisingTrigger = `create trigger raising before insert on effects for each row begin
  if new.name = 'raise 1213' then signal sqlstate '40001' set mysql_errno = 1213; end if;
  if new.name = 'raise 1205' then signal sqlstate 'HY000' set mysql_errno = 1205; end if;
  if new.name = 'raise 1062' then signal sqlstate '23000' set mysql_errno = 1062; end if;
end`

class Rollback extends Error {}

needs('mariadb', { ours: true }).describe('transactions of other libraries', () => {
  let ground: MysqlGround
  let pool: Pool
  let all: Map<string, Client>
  beforeAll(async () => {
    ground = await startMysqlGround()
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
    const [rows] = await ground.admin.query<RowDataPacket[]>('select name from effects order by name')
    return rows.map((row) => row['name'] as string)
  }

  test('every library is tested', () => expect([...all.keys()]).toEqual(clientNames))

  test.each(clientNames)('%s: a commit has the effect and its outcome, and the key of odd characters', async (name) => {
    const store = mysqlStore({ pool })
    await all.get(name)!.run(async (tx, addEffect) => {
      // A store of its own, so that its first questions go over the transaction, too.
      const inside = mysqlStore({ pool }).within(tx)
      const claim = await claimed(inside)
      await addEffect('effect')
      expect(await store.claim(odd, request())).toMatchObject({ is: 'busy' })
      expect(await inside.settle(claim, Buffer.from([0, 255, 39, 63, 92]), retention)).toBe('done')
      expect(await inside.claim(odd, request())).toMatchObject({ is: 'settled' })
    })
    expect(await effects()).toEqual(['effect'])
    expect(await store.claim(odd, request())).toMatchObject({
      is: 'settled',
      outcome: Uint8Array.of(0, 255, 39, 63, 92),
    })
    expect((await store.list({ limit: 10 })).map((entry) => entry.key)).toEqual([odd])
  })

  test.each(clientNames)('%s: a rollback has neither', async (name) => {
    const store = mysqlStore({ pool })
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
    const store = mysqlStore({ pool })
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
    expect(await store.claim(odd, request())).toMatchObject({ is: 'settled', outcome: bytesOf('declined') })
    expect(await store.claim(inner, request())).toMatchObject({ is: 'granted', how: 'fresh' })
  })

  test.each(clientNames)('%s: a deadlock is a conflict, however it is wrapped; others are not', async (name) => {
    const store = mysqlStore({ pool })
    for (const [errno, conflict] of Object.entries({ 1213: true, 1205: true, 1062: false })) {
      const work = all.get(name)!.run(async (_tx, addEffect) => void (await addEffect(`raise ${errno}`)))
      const error = await work.catch((thrown: unknown) => thrown)
      expect(error).toBeInstanceOf(Error)
      expect(store.isConflict(error)).toBe(conflict)
    }
  })

  test('what is not an open transaction is refused by name, and nothing is claimed', async () => {
    const store = mysqlStore({ pool })
    const callbackPool = mysqlWithCallbacks.createPool({ uri: ground.url })
    const kysely = new Kysely<object>({ dialect: new MysqlDialect({ pool: callbackPool }) })
    for (const wrong of [undefined, null, 'tx', 42, {}, [], pool, callbackPool, kysely, drizzle(pool)]) {
      expect(() => store.within(wrong as never)).toThrow(OnceError)
    }
    const client = await pool.getConnection()
    const error = await store
      .within(client)
      .claim(odd, request())
      .catch((thrown: unknown) => thrown)
    client.release()
    await callbackPool.promise().end()
    expect(error).toMatchObject({ code: 'INVALID_ARGUMENT', executed: 'no' })
    expect(await store.list({ limit: 10 })).toEqual([])
  })

  test('a pool with callbacks will do, too: batches, begin, commit, undo, rollback and abandon', async () => {
    const callbackPool = mysqlWithCallbacks.createPool({ uri: ground.url, connectionLimit: 2 })
    const store = mysqlStore({ pool: callbackPool })
    const keys = Array.from({ length: 300 }, () => key('many', newId()))
    const claims = await Promise.all(keys.map((each) => claimed(store, each)))
    const settled = await Promise.all(claims.map((claim) => store.settle(claim, Buffer.from(claim.key.id), retention)))
    expect(new Set(settled)).toEqual(new Set(['done']))
    expect(await store.claim(keys[7]!, request())).toMatchObject({ outcome: bytesOf(keys[7]!.id) })

    for (const end of ['commit', 'undo', 'rollback', 'abandon'] as const) {
      const { granted } = await store.begin(key('begin', end), request())
      await granted!.tx.query(insertEffect, [end])
      if (end === 'undo') await granted!.undoEffect()
      if (end === 'rollback') await granted!.rollback()
      else if (end === 'abandon') await granted!.abandon()
      else expect(await granted!.commit(Buffer.from(end), retention)).toBe('done')
    }
    expect(await effects()).toEqual(['commit'])
    // With two connections, a third transaction shows that all of them were given back.
    const { granted } = await store.begin(key('begin', 'another'), request())
    await granted!.rollback()
    await callbackPool.promise().end()
  })
})

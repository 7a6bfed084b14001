// The transactions of the client libraries that people use with MySQL and MariaDB, each for real.

import { sql as drizzleSql } from 'drizzle-orm'
import { drizzle } from 'drizzle-orm/mysql2'
import knex from 'knex'
import { CamelCasePlugin, Kysely, MysqlDialect } from 'kysely'
import mysqlWithCallbacks from 'mysql2'
import type { Pool, RowDataPacket } from 'mysql2/promise'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import {
  bytesOf,
  claimed,
  clientTransactionCases,
  request,
  retention,
  type TransactionClient,
} from '../../../test/subjects/client-transactions.ts'
import { createPool, inTransaction, type MysqlGround, startMysqlGround } from '../../../test/subjects/mysql.ts'
import { needs } from '../../../test/servers/needs.ts'
import { key, newId } from '../../core/key.ts'
import { mysqlStore } from '../mysql.ts'
import type { MysqlTransaction } from '../mysql.ts'

// Every character that means something to one of the layers on the way.
const odd = key(`it's "quoted"`, String.raw`\ ? ?? $1 :name {a,b} %s -- # ; ' 🙂`)

type Client = TransactionClient<MysqlTransaction>

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

// The only way to have every library see these errors from the server itself.
const raisingTrigger = `create trigger raising before insert on effects for each row begin
  if new.name = 'raise 1213' then signal sqlstate '40001' set mysql_errno = 1213; end if;
  if new.name = 'raise 1205' then signal sqlstate 'HY000' set mysql_errno = 1205; end if;
  if new.name = 'raise 1062' then signal sqlstate '23000' set mysql_errno = 1062; end if;
end`

needs('mariadb', { ours: true }).describe('transactions of other libraries', () => {
  let ground: MysqlGround
  let pool: Pool
  let all: readonly Client[]
  beforeAll(async () => {
    ground = await startMysqlGround()
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
    const [rows] = await ground.admin.query<RowDataPacket[]>('select name from effects order by name')
    return rows.map((row) => row['name'] as string)
  }

  clientTransactionCases<MysqlTransaction>(
    {
      clientNames,
      odd,
      errors: {
        title: 'a deadlock is a conflict, however it is wrapped; others are not',
        conflicts: { 1213: true, 1205: true, 1062: false },
      },
    },
    {
      store: () => mysqlStore({ pool }),
      clients: () => all,
      effects,
      async wrong() {
        const callbackPool = mysqlWithCallbacks.createPool({ uri: ground.url })
        const kysely = new Kysely<object>({ dialect: new MysqlDialect({ pool: callbackPool }) })
        return { values: [pool, callbackPool, kysely, drizzle(pool)], close: () => callbackPool.promise().end() }
      },
      async outside() {
        const tx = await pool.getConnection()
        return { tx, release: () => tx.release() }
      },
    },
  )

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

// Two sessions on MariaDB, interleaved by hand at each isolation level, the flags and modes that change what a server says, and
// the transactions of every client library.
import { drizzle } from 'drizzle-orm/mysql2'
import knex from 'knex'
import { CamelCasePlugin, Kysely, MysqlDialect } from 'kysely'
import mysqlWithCallbacks from 'mysql2'
import type { Pool, PoolConnection, RowDataPacket } from 'mysql2/promise'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { mysqlWrites, type MysqlWritesClient } from '../../src/writes/index.ts'
import { createPool, inTransaction } from '../subjects/mysql.ts'
import { needs } from '../servers/needs.ts'
import { pollUntil } from '../servers/poll.ts'
import { startMysqlWritesGround, type MysqlWritesGround } from './mysql-ground.ts'
import { oldRow, sessionCases, walkedId, walkedRow, walkThrough } from './session-cases.ts'

needs('mariadb').describe('sessions on MariaDB', () => {
  let ground: MysqlWritesGround
  let one: PoolConnection
  let two: PoolConnection
  beforeAll(async () => void (ground = await startMysqlWritesGround()))
  afterAll(() => ground[Symbol.asyncDispose]())
  beforeEach(async () => {
    await ground.reset()
    await ground.pool.query(oldRow)
    one = await ground.pool.getConnection()
    two = await ground.pool.getConnection()
  })
  afterEach(async () => {
    for (const client of [one, two]) {
      await client.query('rollback')
      client.release()
    }
  })

  async function waits(client: PoolConnection): Promise<void> {
    const probe = async (): Promise<boolean> => {
      const [rows] = await ground.pool.query<RowDataPacket[]>(
        `select 1 from information_schema.innodb_trx where trx_mysql_thread_id = ? and trx_state = 'LOCK WAIT'`,
        [client.threadId],
      )
      return rows.length > 0
    }
    // The server answers this from a copy, which it renews only when nobody has asked for a tenth of a second.
    await pollUntil('the second session to wait for the first', probe, { intervalMs: 150 })
  }

  describe.each(sessionCases)('$name', ({ call, first, repeated }) => {
    test.each(['commit', 'rollback'] as const)(
      'the second waits for the first to %s and is told the truth',
      async (end) => {
        await one.query('begin')
        await two.query('begin')
        expect(await call(mysqlWrites(one))).toBe(first)
        const second = call(mysqlWrites(two))
        await waits(two)
        await one.query(end)
        expect(await second).toBe(end === 'commit' ? repeated : first)
        await two.query('commit')
      },
    )

    test.each(['read committed', 'repeatable read'])(
      'an older snapshot at %s does not deceive it',
      async (isolation) => {
        await two.query(`set transaction isolation level ${isolation}`)
        await two.query('begin')
        await two.query('select count(*) from things')
        await one.query('begin')
        expect(await call(mysqlWrites(one))).toBe(first)
        await one.query('commit')
        expect(await call(mysqlWrites(two))).toBe(repeated)
        await two.query('commit')
      },
    )

    test('at serializable, where reads lock and no snapshot is old, the answers are the same', async () => {
      for (const [session, answer] of [
        [one, first],
        [two, repeated],
      ] as const) {
        await session.query('set transaction isolation level serializable')
        await session.query('begin')
        expect(await call(mysqlWrites(session))).toBe(answer)
        await session.query('commit')
      }
    })
  })

  test.each([['+FOUND_ROWS'], ['-FOUND_ROWS']])('the flag %s changes no answer', async (flag) => {
    const pool = createPool(ground.url, { flags: [flag] })
    await inTransaction(pool, (tx) => walkThrough(mysqlWrites(tx)))
    await pool.end()
  })

  test.each(['NO_BACKSLASH_ESCAPES', 'ANSI_QUOTES', 'ANSI,TRADITIONAL'])(
    'the mode %s changes nothing',
    async (mode) => {
      await two.query(`set session sql_mode = '${mode}'`)
      await two.query('begin')
      await walkThrough(mysqlWrites(two))
      await two.query('commit')
      await two.query('set session sql_mode = default')
      expect(await ground.row('things', { id: walkedId })).toMatchObject(walkedRow)
    },
  )

  test('a key of an auto-increment table beside it: an upsert by the unique column tells the truth, too', async () => {
    await one.query(
      'create table if not exists people (n bigint auto_increment primary key, email varchar(99) unique, name text)',
    )
    const writes = mysqlWrites(one)
    const upsert = (email: string, name: string): Promise<string> =>
      writes.upsert('people', { key: { email }, set: { name } })
    const answers = []
    for (const [email, name] of [
      ['a', '1'],
      ['b', '1'],
      ['a', '1'],
      ['a', '2'],
      ['b', '2'],
      ['b', '2'],
    ] as const) {
      answers.push(await upsert(email, name))
    }
    expect(answers).toEqual(['applied', 'applied', 'already', 'applied', 'applied', 'already'])
  })

  test('outside of a transaction addOnce is refused, as mark and count would be two commits', async () => {
    const count = { key: { id: 'a' }, add: { visits: 1 }, once: { table: 'marks', key: { event_id: 'e' } } }
    await expect(mysqlWrites(one).addOnce('things', count)).rejects.toThrow(
      /expected a connection inside a transaction/,
    )
    expect(await ground.row('marks', { event_id: 'e' })).toBeUndefined()
    expect(await mysqlWrites(one).insertOnce('things', { key: { id: 'b' } })).toBe('applied')
  })

  test('a count that fails takes its mark back, and the transaction goes on', async () => {
    await one.query('begin')
    const count = { key: { id: 'a' }, add: { nothing: 1 }, once: { table: 'marks', key: { event_id: 'e' } } }
    await expect(mysqlWrites(one).addOnce('things', count)).rejects.toThrow(/Unknown column/)
    expect(await mysqlWrites(one).addOnce('things', { ...count, add: { visits: 1 } })).toBe('applied')
    await one.query('commit')
    expect(await ground.row('things', { id: 'a' })).toMatchObject({ visits: '2' })
  })

  test('money is added exactly', async () => {
    await one.query('create table if not exists money (id int primary key, amount decimal(30, 2))')
    await one.query(`replace into money values (1, 12345678901234567890.10)`)
    await one.query('begin')
    const once = { table: 'marks', key: { event_id: 'e' } }
    await mysqlWrites(one).addOnce('money', { key: { id: 1 }, add: { amount: 0.2 }, once })
    await one.query('commit')
    expect(await ground.row('money', { id: '1' })).toMatchObject({ amount: '12345678901234567890.30' })
  })
})

interface Client {
  readonly name: string
  run(work: (tx: MysqlWritesClient) => Promise<void>): Promise<unknown>
  close(): Promise<unknown>
}

function clients(url: string): Client[] {
  const pool = createPool(url)
  const callbackPool = mysqlWithCallbacks.createPool({ uri: url })
  const drizzled = drizzle(createPool(url))
  const kysely = new Kysely<object>({
    dialect: new MysqlDialect({ pool: mysqlWithCallbacks.createPool({ uri: url }) }),
    plugins: [new CamelCasePlugin()],
  })
  const knexed = knex({ client: 'mysql2', connection: url })
  return [
    { name: 'mysql2/promise', run: (work) => inTransaction(pool, work), close: () => pool.end() },
    {
      name: 'mysql2 with callbacks',
      run: (work) =>
        inTransaction(callbackPool.promise() as unknown as Pool, (tx) =>
          work(tx.connection as unknown as MysqlWritesClient),
        ),
      close: () => callbackPool.promise().end(),
    },
    {
      name: 'Drizzle',
      run: (work) => drizzled.transaction((tx) => work(tx)),
      close: async () => (drizzled.$client as unknown as Pool).end(),
    },
    { name: 'Kysely', run: (work) => kysely.transaction().execute((tx) => work(tx)), close: () => kysely.destroy() },
    { name: 'Knex', run: (work) => knexed.transaction((tx) => work(tx)), close: () => knexed.destroy() },
  ]
}

needs('mariadb').describe('transactions of other libraries', () => {
  let ground: MysqlWritesGround
  let all: Client[]
  beforeAll(async () => {
    ground = await startMysqlWritesGround()
    all = clients(ground.url)
  })
  afterAll(async () => {
    await Promise.all(all.map((client) => client.close()))
    await ground[Symbol.asyncDispose]()
  })

  test.each(['mysql2/promise', 'mysql2 with callbacks', 'Drizzle', 'Kysely', 'Knex'])(
    '%s: every answer, committed and rolled back',
    async (name) => {
      const client = all.find((each) => each.name === name)!
      await ground.reset()
      const failing = client.run(async (tx) => {
        await walkThrough(mysqlWrites(tx))
        throw new Error('taken back')
      })
      await expect(failing).rejects.toThrow('taken back')
      expect(await ground.row('things', { id: walkedId })).toBeUndefined()
      await client.run((tx) => walkThrough(mysqlWrites(tx)))
      expect(await ground.row('things', { id: walkedId })).toMatchObject(walkedRow)
    },
  )
})

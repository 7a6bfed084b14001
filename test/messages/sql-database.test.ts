// The database behind a store, for tables beside its own: the same promises on every SQL store.
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { sql } from '../../src/clients/sql-statement.ts'
import { needs } from '../servers/needs.ts'
import { grounds, insertEffect, type MessagesGround, type OpenStore } from './grounds.ts'

const key = { scope: 'shop/inbox/mailer', id: 'message-1' }

for (const { name, server, start } of grounds) {
  const suite = server === undefined ? describe : needs(server, { ours: true }).describe
  suite(`the database behind a store, on ${name}`, () => {
    let ground: MessagesGround
    let open: OpenStore
    beforeAll(async () => {
      ground = await start()
    })
    afterAll(() => ground[Symbol.asyncDispose]())
    beforeEach(async () => {
      await ground.ask('delete from effects')
      open = await ground.openStore()
    })
    afterEach(async () => {
      await ground.proxy?.setMode('pass')
      await open[Symbol.asyncDispose]()
    })
    const insert = (tx: unknown, effect: string): Promise<void> => insertEffect(ground, open.database, tx, effect)

    test('what commits is there, and what is rolled back or abandoned is not', async () => {
      const { database } = open
      const committed = await database.begin(key)
      await insert(committed.tx, 'committed')
      await committed.commit()
      const back = await database.begin(key)
      await insert(back.tx, 'rolled back')
      await back.rollback()
      const abandoned = await database.begin(key)
      await insert(abandoned.tx, 'abandoned')
      await abandoned.abandon()
      await insert(abandoned.tx, 'after the end').catch(() => {})
      expect(await ground.effects()).toEqual(['committed'])
      // The connections serve others, each statement a transaction by itself.
      await database.query(sql`insert into effects (name) values (${'alone'})`)
      expect(await ground.effects()).toEqual(['committed', 'alone'])
    })

    test('a handler that ends the transaction itself is told that the outcome is unknown', async () => {
      const transaction = await open.database.begin(key)
      await insert(transaction.tx, 'by hand')
      await open.database.join(transaction.tx, 'test').query(sql`commit`)
      await expect(transaction.commit()).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN', retryable: false })
      expect(await ground.effects()).toEqual(['by hand'])
      const next = await open.database.begin(key)
      await next.rollback()
    })

    test('nor is one taken for ours that the handler has begun instead', async () => {
      const transaction = await open.database.begin(key)
      const session = open.database.join(transaction.tx, 'test')
      await insert(transaction.tx, 'by hand')
      await session.query(sql`commit`)
      await session.query(sql`begin`)
      await insert(transaction.tx, 'in another one')
      await expect(transaction.commit()).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN', retryable: false })
      expect(await ground.effects()).toEqual(['by hand'])
    })

    test('a value is a value, whatever it holds, and now is the time of the database', async () => {
      const { database } = open
      const hostile = `'; drop table effects; -- ? $1 \\ "ü" 🙂`
      const transaction = await database.begin(key)
      await insert(transaction.tx, hostile)
      await transaction.commit()
      expect(await ground.effects()).toEqual([hostile])
      const [now] = await database.query(sql`select ${database.nowMs()} as answer`)
      expect(Math.abs(Number(now) - Date.now())).toBeLessThan(60_000)
    })

    test('a connection that is lost at COMMIT never says that nothing was written when it may have been', async () => {
      if (!ground.proxy) return // a file has no connection to lose
      const transaction = await open.database.begin(key)
      await insert(transaction.tx, 'perhaps')
      await ground.proxy.setMode('reset')
      // MySQL is asked first whether the transaction is still open, and COMMIT was never sent.
      const said = name === 'mariadb' ? { code: 'STORE_UNAVAILABLE', executed: 'no' } : { code: 'OUTCOME_UNKNOWN' }
      await expect(transaction.commit()).rejects.toMatchObject(said)
      await ground.proxy.setMode('pass')
      const next = await open.database.begin(key)
      await insert(next.tx, 'next')
      await next.commit()
      expect(await ground.effects()).toContain('next')
    })

    test('tables are created once, by any number of processes at once', async () => {
      const name = open.database.tableName('trial')
      const create = [`create table if not exists ${name} (id integer primary key)`]
      const stores = await Promise.all([1, 2, 3].map(() => ground.openStore()))
      await Promise.all(stores.map((each) => each.database.migrate(create)))
      await open.database.query(sql`insert into ${open.database.table('trial')} (id) values (1)`)
      for (const each of stores) await each[Symbol.asyncDispose]()
    })
  })
}

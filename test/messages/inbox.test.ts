// The cases of the inbox on every SQL server. SQLite is in src/messages/inbox.test.ts.
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, expect, test, vi } from 'vitest'
import { needs } from '../servers/needs.ts'
import { sql } from '../../src/clients/sql-statement.ts'
import type { Message } from '../../src/messages/inbox.ts'
import { grounds, type MessagesGround } from './grounds.ts'
import { inboxCases } from './inbox-cases.ts'
import { inboxSubject } from './inbox-subject.ts'

const message = (id: string): Message => ({ id, topic: 'orders', headers: {}, body: Buffer.from('{}'), raw: undefined })

for (const { name, server, start } of grounds) {
  if (server === undefined) continue
  needs(server, { ours: true }).describe(`inbox on ${name}`, () => {
    let ground: MessagesGround
    beforeAll(async () => {
      ground = await start()
    })
    afterAll(() => ground[Symbol.asyncDispose]())
    for (const [what, check] of Object.entries(inboxCases)) {
      test(what, async () => {
        const subject = await inboxSubject(ground)
        try {
          await check(subject)
        } finally {
          await subject.close()
        }
      })
    }

    if (name !== 'postgres') return
    test('a batch is found by the index alone, however many marks there are', async () => {
      const subject = await inboxSubject(ground)
      const { inbox } = await subject.consumer()
      let messages = 0
      const handleSome = async (): Promise<void> => {
        const batch = Array.from({ length: 100 }, () => message(`grown-${++messages}`))
        const handled = await inbox.handleBatch(batch, () => undefined)
        expect(handled.every(({ is }) => is === 'handled')).toBe(true)
      }
      await handleSome()
      await ground.ask(`insert into onceonly_inbox select scope, n::text, 'f', 'd', 1, 1
        from onceonly_inbox cross join generate_series(1, 20000) n where id = 'grown-1'`)
      const rowsRead = async (): Promise<number> => {
        const [found] = await ground.ask(
          `select (idx_tup_fetch + seq_tup_read)::text from pg_stat_user_tables where relname = 'onceonly_inbox'`,
        )
        return Number(found)
      }
      // A connection tells the server's statistics once per second what it has read.
      const settled = async (): Promise<number> => {
        await sleep(1_100)
        await handleSome()
        return rowsRead()
      }
      const before = await settled()
      const since = messages
      for (let round = 0; round < 10; round++) await handleSome()
      expect(((await settled()) - before) / (messages - since)).toBeLessThan(10)
      await subject.close()
    })

    test('of a message that two consumers receive at the same moment, the second is told what became of it', async () => {
      const subject = await inboxSubject(ground)
      const { inbox, open } = await subject.consumer()
      await inbox.handle(message('first'), () => undefined)
      const other = await open.database.begin({ scope: 'test', id: 'other' })
      await other.query(sql`insert into onceonly_inbox
        select scope, 'both', fingerprint, 'd', 1, at_ms from onceonly_inbox where id = 'first'`)
      const effects: string[] = []
      const handled = inbox.handleBatch(['before', 'both', 'later'].map(message), (_tx, fresh) => {
        effects.push(...fresh.map(({ id }) => id!))
      })
      const waiting = `select 'waits' from pg_stat_activity where wait_event_type = 'Lock' and query like '%inbox_receive%'`
      await vi.waitFor(async () => expect(await ground.ask(waiting)).toEqual(['waits']), 10_000)
      await other.commit()
      expect((await handled).map(({ is }) => is)).toEqual(['handled', 'duplicate', 'handled'])
      expect(effects.toSorted()).toEqual(['before', 'later'])
      await subject.close()
    })

    test('before its functions are there, an upgrade is told what to run', async () => {
      const subject = await inboxSubject(ground)
      const { inbox } = await subject.consumer()
      await ground.ask('drop function onceonly_inbox_receive_v1')
      await expect(inbox.handle(message('upgraded'), () => undefined)).rejects.toMatchObject({
        code: 'SCHEMA_MISSING',
        message: expect.stringMatching(
          /function .*onceonly_inbox_receive_v1.* does not exist\. Run "await inbox\.migrate/,
        ),
      })
      await inbox.migrate()
      expect(await inbox.handle(message('upgraded'), () => undefined)).toEqual({ is: 'handled' })
      await subject.close()
    })

    test('a mark that is done is not taken again, and one that another transaction has is passed over', async () => {
      const subject = await inboxSubject(ground)
      const { inbox, open } = await subject.consumer()
      await inbox.handle(message('taken'), () => undefined)
      const take = `select onceonly_inbox_take_v1(scope, id) from onceonly_inbox where id = 'taken'`
      expect(await ground.ask(take)).toEqual(['taken'])
      await ground.ask(`update onceonly_inbox set state = 'r' where id = 'taken'`)
      const other = await open.database.begin({ scope: 'test', id: 'other' })
      await other.query(sql`select id as answer from onceonly_inbox where id = 'taken' for update`)
      expect(await ground.ask(take)).toEqual(['taken'])
      await other.rollback()
      expect(await ground.ask(take)).toEqual([])
      await subject.close()
    })
  })
}

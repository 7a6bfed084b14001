// The cases of the inbox on every SQL server. SQLite is in src/messages/inbox.test.ts.
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { needs } from '../servers/needs.ts'
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
  })
}

// Cases that pass everything prove nothing: each of these inboxes is wrong in one way that is common, and its case must fail.
import { afterAll, beforeAll, expect, test } from 'vitest'
import { databaseOf } from '../../src/clients/sql-database.ts'
import { sql } from '../../src/clients/sql-statement.ts'
import { createInbox, type Handled, type Inbox, type Message, type MessageHandler } from '../../src/messages/inbox.ts'
import { startSqliteMessages, type MessagesGround } from './grounds.ts'
import { inboxCases } from './inbox-cases.ts'
import { inboxSubject } from './inbox-subject.ts'

type Broken = (inbox: Inbox, store: object) => Inbox

const handled: Handled = { is: 'handled' }
const duplicate: Handled = { is: 'duplicate' }

// Runs the handler in a transaction of its own, as all of these do.
async function inTransaction(store: object, message: Message, handler: MessageHandler<unknown>): Promise<void> {
  const open = await databaseOf(store)!.begin({ scope: 'broken', id: message.id ?? '' })
  try {
    await handler(open.tx, message)
    await open.commit()
  } catch (error) {
    await open.rollback()
    throw error
  }
}

const marks = sql`broken_marks`
const isMarked = async (store: object, { id }: Message): Promise<boolean> =>
  (await databaseOf(store)!.query(sql`select id as answer from ${marks} where id = ${id!}`)).length > 0
const mark = (store: object, { id }: Message): Promise<unknown> =>
  databaseOf(store)!.query(sql`insert into ${marks} (id) values (${id!}) on conflict do nothing`)

/** An inbox that handles like this. */
const handling =
  (handle: (store: object, message: Message, handler: MessageHandler<unknown>) => Promise<Handled>): Broken =>
  (inbox, store) => ({ ...inbox, handle: (message, handler) => handle(store, message, handler) })

const broken: readonly [what: string, noticedBy: string, make: Broken][] = [
  [
    'remembers what its own process has handled',
    'a message that comes again is a duplicate, whichever process gets it',
    (inbox, store) => {
      const seen = new Set<string>()
      return handling(async (_store, message, handler) => {
        if (seen.has(message.id!)) return duplicate
        await inTransaction(store, message, handler)
        seen.add(message.id!)
        return handled
      })(inbox, store)
    },
  ],
  [
    'looks, runs, and marks afterwards',
    'of many deliveries at once, through two processes, one has its effect',
    handling(async (store, message, handler) => {
      if (await isMarked(store, message)) return duplicate
      await inTransaction(store, message, handler)
      await mark(store, message)
      return handled
    }),
  ],
  [
    'marks in a transaction before the effect',
    'a handler that fails leaves neither effect nor mark, and the next delivery runs it',
    handling(async (store, message, handler) => {
      if (await isMarked(store, message)) return duplicate
      await mark(store, message)
      await inTransaction(store, message, handler)
      return handled
    }),
  ],
  [
    'has one mark for all consumers',
    'each consumer has its own marks',
    handling(async (store, message, handler) => {
      if (await isMarked(store, message)) return duplicate
      await inTransaction(store, message, handler)
      await mark(store, message)
      return handled
    }),
  ],
  [
    'takes another body under the same id for a duplicate',
    'the same id with another body is not run, and is kept for a person',
    (inbox) => ({
      ...inbox,
      handle: async (message, handler) => {
        const ended = await inbox.handle(message, handler)
        return ended.is === 'refused' ? duplicate : ended
      },
    }),
  ],
  [
    'handles a batch message by message in one transaction, and fails as a whole',
    'a poison message does not sink its batch',
    (inbox, store) => ({
      ...inbox,
      async handleBatch(messages, handler) {
        try {
          await inTransaction(store, messages[0]!, (tx) => handler(tx, messages))
          return messages.map(() => handled)
        } catch (error) {
          return messages.map(() => ({ is: 'failed', error, attempts: 1, retryAfterMs: 1 }))
        }
      },
    }),
  ],
  [
    'counts an attempt when the handler has failed',
    'an attempt is counted before the handler runs, so that a message which ends the process is parked',
    (inbox, store) => {
      const failures = new Map<string, number>()
      return handling(async (_store, message, handler) => {
        const before = failures.get(message.id!) ?? 0
        if (before >= 3) return { is: 'refused', code: 'PARKED', detail: 'tried too often' }
        try {
          await inTransaction(store, message, handler)
        } catch (error) {
          failures.set(message.id!, before + 1)
          throw error
        }
        return handled
      })(inbox, store)
    },
  ],
  [
    'acknowledges when it begins',
    'acknowledged after the commit, and not at all when the handler failed',
    (inbox) => ({
      ...inbox,
      async deliver(message, handler, acknowledge) {
        await acknowledge()
        return inbox.deliver(message, handler, async () => {})
      },
    }),
  ],
]

let ground: MessagesGround
beforeAll(async () => {
  ground = await startSqliteMessages()
  await ground.ask('create table broken_marks (id text primary key)')
})
afterAll(() => ground[Symbol.asyncDispose]())

test.each(broken)('an inbox that %s is noticed by: %s', async (_what, noticedBy, make) => {
  await ground.ask('delete from broken_marks')
  const create = ((once: never, options: never) =>
    make(createInbox(once, options) as Inbox, (once as { store: object }).store)) as typeof createInbox
  const subject = await inboxSubject(ground, create)
  // By an assertion of the case, and not by whatever else goes wrong.
  await expect(inboxCases[noticedBy]!(subject)).rejects.toMatchObject({ name: 'AssertionError' })
  await subject.close()
})

test('the sound one passes all of them', async () => {
  for (const noticedBy of new Set(broken.map(([, each]) => each))) {
    const subject = await inboxSubject(ground)
    await inboxCases[noticedBy]!(subject)
    await subject.close()
  }
})

// The inbox on SQLite, and on a store that cannot commit with the effect. The servers are in test/messages/inbox.test.ts.

import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { startSqliteMessages } from '../../test/messages/grounds.ts'
import type { MessagesGround } from '../../test/messages/grounds.ts'
import { inboxCases } from '../../test/messages/inbox-cases.ts'
import { inboxSubject, message } from '../../test/messages/inbox-subject.ts'
import { offerDatabase } from '../clients/sql-database.ts'
import { eventNames } from '../core/events.ts'
import { createOnce } from '../core/once.ts'
import { memoryStore } from '../stores/memory.ts'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { createInbox } from './inbox.ts'
import type { DeadLetterReason, Inbox, InboxOptions, Message } from './inbox.ts'

describe('on SQLite', () => {
  let ground: MessagesGround
  beforeAll(async () => {
    ground = await startSqliteMessages()
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

  test('marks of messages that nobody can redeliver any more are deleted, and parked ones stay', async () => {
    const subject = await inboxSubject(ground)
    const { inbox, open } = await subject.consumer({ windowMs: 60_000, attempts: 1 })
    await inbox.handle(message('old'), () => {})
    const fail = (): never => {
      throw new Error('no')
    }
    await inbox.handle(message('old and parked'), fail)
    const table = open.database.tableName('inbox')
    await ground.ask(`update ${table} set at_ms = at_ms - 7200000 where id like 'old%'`)
    // Another process: it sweeps with the first message that it handles.
    const next = await subject.consumer({ windowMs: 60_000 })
    await next.inbox.handle(message('new'), () => {})
    await expect
      .poll(() => ground.ask(`select id from ${table} where id in ('old', 'old and parked', 'new') order by id`))
      .toEqual(['new', 'old and parked'])
    await subject.close()
  })

  test('a consumer that remembers for a short time forgets nothing of one that remembers for longer', async () => {
    const subject = await inboxSubject(ground)
    const ledger = await subject.consumer({ consumer: 'ledger', windowMs: 7 * 86_400_000 })
    await ledger.inbox.handle(message('m-1'), () => {})
    const table = ledger.open.database.tableName('inbox')
    await ground.ask(`update ${table} set at_ms = at_ms - 7200000 where id = 'm-1'`)
    const brief = await subject.consumer({ consumer: 'brief', windowMs: 60_000 })
    await brief.inbox.handle(message('old'), () => {})
    await ground.ask(`update ${table} set at_ms = at_ms - 7200000 where id = 'old'`)
    const next = await subject.consumer({ consumer: 'brief', windowMs: 60_000 })
    await next.inbox.handle(message('new'), () => {})
    await expect.poll(() => ground.ask(`select id from ${table} where id = 'old'`)).toEqual([])
    expect(await ledger.inbox.handle(message('m-1'), () => {})).toEqual({ is: 'duplicate' })
    await subject.close()
  })

  test('at-most-once acknowledges nothing that idOf could not read', async () => {
    const subject = await inboxSubject(ground)
    const idOf = ({ id }: Message): string => {
      if (id === 'odd') throw new Error('no such field')
      return id!
    }
    const { inbox } = await subject.consumer({ delivery: 'at-most-once', idOf })
    const acknowledged: (readonly number[])[] = []
    const acknowledge = async (positions: readonly number[]): Promise<void> => void acknowledged.push(positions)
    const odd = await inbox.deliverBatch([message('odd')], () => {}, acknowledge)
    expect(odd).toMatchObject([{ acknowledged: false, error: new Error('no such field') }])
    const both = await inbox.deliverBatch([message('odd'), message('m-1')], () => {}, acknowledge)
    expect(both).toMatchObject([{ acknowledged: false }, { acknowledged: true }])
    expect(acknowledged).toEqual([[1]])
    await subject.close()
  })

  test('what became of each message is told, with a hash and never with the id or the body', async () => {
    expect(eventNames).toContain('message')
    const told: unknown[] = []
    const listen = (event: unknown): void => void told.push(event)
    subscribe('onceonly:message', listen)
    const subject = await inboxSubject(ground)
    const { inbox } = await subject.consumer()
    await inbox.handle(message('secret-id', { text: 'secret body' }), () => {})
    await inbox.handle(message('secret-id', { text: 'secret body' }), () => {})
    await inbox.handle(message('secret-id', { text: 'other' }), () => {})
    unsubscribe('onceonly:message', listen)
    await subject.close()
    expect(told).toMatchObject([{ is: 'handled' }, { is: 'duplicate' }, { is: 'refused', code: 'MISMATCH' }])
    expect(JSON.stringify(told)).not.toContain('secret')
  })

  test('a table that is missing is an error that says what to run', async () => {
    const subject = await inboxSubject(ground)
    const { open } = await subject.consumer()
    const once = createOnce({ store: open.store, scope: 'shop', sweepEveryMs: false })
    const inbox = createInbox(once, { consumer: 'mailer' })
    expect(inbox.guarantee).toBe('one-transaction')
    expect(inbox.schema()).toContain('create table if not exists "onceonly_inbox"')
    await ground.ask('drop table onceonly_inbox')
    await expect(inbox.handle(message('m-1'), () => {})).rejects.toThrow(/inbox\.migrate\(\)/)
    await inbox.migrate()
    expect(await inbox.handle(message('m-1'), () => {})).toEqual({ is: 'handled' })
    await subject.close()
  })

  test('a redrive by code leaves a message alone that was run and parked again meanwhile, for another reason', async () => {
    const subject = await inboxSubject(ground)
    const options = { attempts: 1, windowMs: 60_000 }
    const { inbox, open, effect } = await subject.consumer(options)
    await inbox.handle(message('m-1'), () => {
      throw new Error('not now')
    })
    const { scope } = (await inbox.parked())[0]!
    // Between the look at what is parked and the request, another process runs it, and its broker delivers it long after the window.
    let between = async (): Promise<void> => {
      between = async () => {}
      await inbox.redrive()
      expect(await inbox.runRedriven((tx) => effect(tx, 'm-1'))).toBe(1)
      await inbox.handle(message('m-1', { sentAtMs: 0 }), () => {})
    }
    const { database } = open
    offerDatabase(open.store, {
      ...database,
      async query(statement) {
        const answers = await database.query(statement)
        if (statement.texts[0]!.includes('select')) await between()
        return answers
      },
    })
    const once = createOnce({ store: open.store, scope: scope.split('/inbox/')[0]!, sweepEveryMs: false })
    await createInbox(once, { consumer: 'mailer', ...options }).redrive({ code: 'ATTEMPTS' })
    expect(await inbox.parked()).toMatchObject([{ code: 'TOO_OLD', isRedriven: false }])
    expect(await inbox.runRedriven((tx) => effect(tx, 'm-1'))).toBe(0)
    await subject.close()
  })
})

describe('on a store that claims and settles', () => {
  const create = (options: Partial<InboxOptions> = {}): Inbox<undefined> =>
    createInbox(createOnce({ store: memoryStore(), scope: 'shop' }), { consumer: 'mailer', ...options })

  test('it says so, and a message that comes again is a duplicate', async () => {
    const inbox = create()
    expect(inbox.guarantee).toBe('claim-and-settle')
    let runs = 0
    const handler = (tx: undefined): void => {
      expect(tx).toBeUndefined()
      runs++
    }
    expect(await inbox.handle(message('m-1'), handler)).toEqual({ is: 'handled' })
    expect(await inbox.handle(message('m-1'), handler)).toEqual({ is: 'duplicate' })
    expect(await inbox.handle(message('m-1', { text: 'x' }), handler)).toMatchObject({ code: 'MISMATCH' })
    expect(runs).toBe(1)
  })

  test('while one handles it, it is in flight', async () => {
    const inbox = create()
    let end = (): void => {}
    const running = new Promise<void>((resolve) => (end = resolve))
    const first = inbox.handle(message('m-1'), () => running)
    await expect(inbox.handle(message('m-1'), () => {})).rejects.toMatchObject({ code: 'IN_FLIGHT' })
    end()
    expect(await first).toEqual({ is: 'handled' })
  })

  test('a message that keeps failing goes to the dead letters, once, and is never run again', async () => {
    const letters: [string | undefined, DeadLetterReason][] = []
    const deadLetter = ({ id }: Message, reason: DeadLetterReason): void => void letters.push([id, reason])
    const inbox = create({ attempts: 2, deadLetter })
    let runs = 0
    const fail = (): never => {
      runs++
      throw new Error('no mail server')
    }
    await expect(inbox.handle(message('m-1'), fail)).rejects.toThrow('no mail server')
    for (let delivery = 2; delivery < 5; delivery++) {
      expect(await inbox.handle(message('m-1'), fail)).toMatchObject({ is: 'refused', code: 'PARKED' })
    }
    expect(runs).toBe(2)
    expect(letters).toEqual([['m-1', { code: 'ATTEMPTS', detail: 'no mail server' }]])
  })

  test('a batch is handled one by one, and a failure holds up its key alone', async () => {
    const inbox = create()
    const done: string[] = []
    const handled = await inbox.handleBatch(
      [
        message('a-1', { key: 'a' }),
        message('b-1', { key: 'b' }),
        message('a-2', { key: 'a' }),
        message('b-1', { key: 'b' }),
      ],
      (_tx, [only]) => {
        if (only!.id === 'a-1') throw new Error('later')
        done.push(only!.id!)
      },
    )
    expect(handled.map(({ is }) => is)).toEqual(['failed', 'handled', 'busy', 'duplicate'])
    expect(done).toEqual(['b-1'])
  })

  test('what such a store cannot do is refused by name', async () => {
    expect(() => create({ versionOf: () => ({ entity: 'a', version: 1 }) })).toThrow(/versionOf needs a SQL store/)
    expect(() => create().parked()).toThrow(/deadLetter/)
    expect(() => create({ consumer: 'a/b' })).toThrow(/consumer/)
  })
})

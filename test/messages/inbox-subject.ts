// What an inbox is tried on: consumers of one service on one database, and a table of effects that nothing keeps from having two.
import { createInbox, type Inbox, type InboxOptions, type Message } from '../../src/messages/inbox.ts'
import { createOnce } from '../../src/index.ts'
import { insertEffect, type MessagesGround, type OpenStore, type SqlStore } from './grounds.ts'

export interface Consumer {
  readonly inbox: Inbox
  readonly open: OpenStore
  // Writes an effect in the transaction of a handler.
  effect(tx: unknown, name: string): Promise<void>
}

export interface InboxSubject {
  readonly ground: MessagesGround
  // Another process of the same consumer, unless the options name another one.
  consumer(options?: Partial<InboxOptions>): Promise<Consumer>
  close(): Promise<void>
}

let run = 0

export async function inboxSubject(
  ground: MessagesGround,
  create: typeof createInbox = createInbox,
): Promise<InboxSubject> {
  const opened: OpenStore[] = []
  // A scope of its own for every case: what one leaves is not seen by another.
  const scope = `shop-${process.pid}-${++run}`
  let isMigrated = false
  await ground.ask('delete from effects')
  return {
    ground,
    async consumer(options) {
      const open = await ground.openStore()
      opened.push(open)
      const once = createOnce<SqlStore>({ store: open.store, scope, sweepEveryMs: false })
      const inbox = create(once, { consumer: 'mailer', ...options }) as Inbox
      if (!isMigrated) await inbox.migrate()
      isMigrated = true
      return { inbox, open, effect: (tx, name) => insertEffect(ground, open.database, tx, name) }
    },
    async close() {
      await ground.proxy?.setMode('pass')
      for (const open of opened) await open[Symbol.asyncDispose]()
    },
  }
}

export function message(id: string, given: Partial<Message> & { readonly text?: string } = {}): Message {
  const { text = `body of ${id}`, ...rest } = given
  return { id, topic: 'orders', body: Buffer.from(text), headers: {}, raw: undefined, ...rest }
}

// The admin server over an inbox and an outbox, asked over HTTP as its page does.
import { createOnce } from '../../src/index.ts'
import { createInbox, type Inbox } from '../../src/messages/inbox.ts'
import { createRelay, functionPublisher, type FailurePolicy, type OutboxEvent } from '../../src/messages/outbox.ts'
import { adminOver, type AskedAdmin } from '../admin/asked.ts'
import type { MessagesGround, SqlOnce, SqlStore } from './grounds.ts'
import { message } from './inbox-subject.ts'
import { emptyOutbox, type OpenOutbox, openOutbox } from './outbox-ground.ts'

export const secret = 'card wxyz wxyz wxyz wxyz'
export const scope = 'shop/inbox/mailer'

export interface Parked {
  readonly id: string
  readonly fingerprint: string
  readonly isRedriven: boolean
}

export interface DashboardSubject extends AskedAdmin {
  readonly open: OpenOutbox
  readonly inbox: Inbox
  // The rows of a page of parked messages.
  parked(query?: Record<string, string>): Promise<{ rows: Parked[]; more: boolean }>
  // A message that its handler refuses, with a secret.
  park(id: string, text?: string): Promise<void>
  // Events that the broker refuses, with a secret.
  refuse(onFailure: FailurePolicy, ...events: Partial<OutboxEvent>[]): Promise<string[]>
}

export { token, withToken } from '../admin/asked.ts'

// The store that the admin server is given can be another than the one of the consumer.
export async function dashboardSubject(
  ground: MessagesGround,
  given: (store: SqlStore) => SqlStore = (store) => store,
): Promise<DashboardSubject> {
  const open = await openOutbox(ground)
  const once: SqlOnce = createOnce<SqlStore>({ store: open.store, scope: 'shop', sweepEveryMs: false })
  const inbox = createInbox(once, { consumer: 'mailer', attempts: 1 }) as Inbox
  await inbox.migrate()
  await open.outbox.migrate()
  await emptyOutbox(ground)
  for (const table of ['onceonly_inbox', 'onceonly_inbox_parked', 'onceonly_audit'])
    await ground.ask(`delete from ${table}`)
  const admin = await adminOver(given(open.store))
  return {
    ...admin,
    open,
    inbox,
    parked: async (query) =>
      JSON.parse((await admin.get('/api/parked', query)).text) as { rows: Parked[]; more: boolean },
    async park(id, text = `{"paid with":"${secret}"}`) {
      await inbox.handle(message(id, { text }), () => {
        throw new Error(secret)
      })
    },
    async refuse(onFailure, ...events) {
      const ids: string[] = []
      // A broker that takes nothing at all is down, and holds nothing.
      await open.addOne({ topic: 'fine' })
      const publisher = functionPublisher(({ topic }) => {
        if (topic !== 'fine') throw new Error(secret)
      })
      const relay = createRelay({ outbox: open.outbox, publisher, onFailure })
      await relay.runOnce()
      for (const event of events) ids.push(await open.addOne(event))
      await relay.runOnce()
      return ids
    },
    async [Symbol.asyncDispose]() {
      await admin[Symbol.asyncDispose]()
      await once.close()
      await open[Symbol.asyncDispose]()
    },
  }
}

// The admin server over an inbox and an outbox, asked over HTTP as its page does.
import { startAdmin } from '../../src/gateway/admin.ts'
import { createOnce } from '../../src/index.ts'
import { createInbox, type Inbox } from '../../src/messages/inbox.ts'
import { createRelay, functionPublisher, type FailurePolicy, type OutboxEvent } from '../../src/messages/outbox.ts'
import type { MessagesGround, SqlOnce, SqlStore } from './grounds.ts'
import { message } from './inbox-subject.ts'
import { emptyOutbox, type OpenOutbox, openOutbox } from './outbox-ground.ts'

export const token = 'a token of enough characters'
export const secret = 'card 4242 4242 4242 4242'
export const scope = 'shop/inbox/mailer'

export interface Answered {
  readonly status: number
  readonly text: string
}

export interface Parked {
  readonly id: string
  readonly fingerprint: string
  readonly isRedriven: boolean
}

export interface DashboardSubject extends AsyncDisposable {
  readonly url: string
  readonly open: OpenOutbox
  readonly inbox: Inbox
  get(path: string, query?: Record<string, string>, headers?: Record<string, string>): Promise<Answered>
  post(path: string, body: object, headers?: Record<string, string>): Promise<Answered>
  // The rows of a page of parked messages.
  parked(query?: Record<string, string>): Promise<{ rows: Parked[]; more: boolean }>
  // A message that its handler refuses, with a secret.
  park(id: string, text?: string): Promise<void>
  // Events that the broker refuses, with a secret.
  refuse(onFailure: FailurePolicy, ...events: Partial<OutboxEvent>[]): Promise<string[]>
}

export const withToken = { authorization: `Bearer ${token}` }

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
  const admin = await startAdmin({
    once,
    store: given(open.store),
    metrics: { text: () => '' },
    listen: { host: '127.0.0.1', port: 0 },
    token,
    notReady: () => undefined,
  })
  const answered = async (response: Response): Promise<Answered> => ({
    status: response.status,
    text: await response.text(),
  })
  const get: DashboardSubject['get'] = async (path, query = {}, headers = {}) =>
    answered(await fetch(`${admin.url}${path}?${new URLSearchParams(query)}`, { headers }))
  return {
    url: admin.url,
    open,
    inbox,
    get,
    post: async (path, body, headers = withToken) =>
      answered(
        await fetch(`${admin.url}${path}`, {
          method: 'POST',
          headers: { 'content-type': 'application/json', ...headers },
          body: JSON.stringify(body),
        }),
      ),
    parked: async (query) => JSON.parse((await get('/api/parked', query)).text) as { rows: Parked[]; more: boolean },
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
      await admin.close()
      await once.close()
      await open[Symbol.asyncDispose]()
    },
  }
}

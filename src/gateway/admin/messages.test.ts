// The view of messages on SQLite, and on stores that have none. The servers are in test/admin/messages.test.ts.

import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { dashboardCases, expectNoMessages } from '../../../test/messages/dashboard-cases.ts'
import { dashboardSubject, scope } from '../../../test/messages/dashboard-subject.ts'
import { startSqliteMessages } from '../../../test/messages/grounds.ts'
import type { MessagesGround, SqlStore } from '../../../test/messages/grounds.ts'
import { databaseOf, offerDatabase } from '../../clients/sql-database.ts'
import { key } from '../../core/key.ts'
import { createOnce } from '../../core/once.ts'
import type { Inspectable, Store } from '../../core/store.ts'
import { memoryStore } from '../../stores/memory.ts'

const reason = 'the address was mended'

describe('on SQLite', () => {
  let ground: MessagesGround
  beforeAll(async () => {
    ground = await startSqliteMessages()
  })
  afterAll(() => ground[Symbol.asyncDispose]())
  for (const [what, check] of Object.entries(dashboardCases)) {
    test(what, async () => {
      await using subject = await dashboardSubject(ground)
      await check(subject)
    })
  }

  test('a redrive that cannot be put on record does not take place', async () => {
    const withoutAudit = (store: SqlStore): SqlStore => {
      const mend = (): Promise<never> => Promise.reject(new Error('the audit trail is full'))
      return offerDatabase({ ...store, mend }, databaseOf(store)!) as SqlStore
    }
    await using subject = await dashboardSubject(ground, withoutAudit)
    const { park, parked, post, refuse, open } = subject
    for (const id of ['order-1', 'order-2']) await park(id)
    const [{ fingerprint } = { fingerprint: '' }] = (await parked()).rows
    // Each its own: the first try leaves the key claimed for a minute.
    expect((await post('/api/redrive', { scope, id: 'order-1', fingerprint, reason })).status).toBe(503)
    expect((await post('/api/discard', { scope, id: 'order-2', fingerprint, reason })).status).toBe(503)
    expect((await parked()).rows).toMatchObject([{ isRedriven: false }, { isRedriven: false }])
    const [first] = await refuse({ parkAfter: 1 }, {})
    const [second] = await refuse({ parkAfter: 1 }, {})
    expect((await post('/api/redrive-letter', { id: first, reason })).status).toBe(503)
    expect((await post('/api/discard-letter', { id: second, reason })).status).toBe(503)
    expect(await open.outbox.deadLetters()).toHaveLength(2)
  })

  test('a message that its consumer ran in the meantime is not told as redriven', async () => {
    // Between the look at the message and the redrive, as a second person and a consumer would.
    const runMeanwhile = (store: SqlStore): SqlStore => {
      const mend = async (...given: Parameters<SqlStore['mend']>): ReturnType<SqlStore['mend']> => {
        await subject.inbox.redrive({ id: 'meanwhile' })
        await subject.inbox.runRedriven(() => {})
        return store.mend(...given)
      }
      return offerDatabase({ ...store, mend }, databaseOf(store)!) as SqlStore
    }
    await using subject = await dashboardSubject(ground, runMeanwhile)
    const { park, parked, post } = subject
    await park('meanwhile')
    const [{ fingerprint } = { fingerprint: '' }] = (await parked()).rows
    const told: unknown[] = []
    const hear = (event: unknown): void => void told.push(event)
    subscribe('onceonly:mended', hear)
    const { status, text } = await post('/api/redrive', { scope, id: 'meanwhile', fingerprint, reason })
    unsubscribe('onceonly:mended', hear)
    expect([status, text, told]).toEqual([400, expect.stringContaining('nothing was changed'), []])
  })

  test('an entry that has the key of a message is left as it is', async () => {
    await using subject = await dashboardSubject(ground)
    const { park, parked, post, open } = subject
    const once = createOnce<SqlStore>({ store: open.store, scope, sweepEveryMs: false })
    await once.run('taken', () => 'of another service')
    await park('taken')
    const [{ fingerprint } = { fingerprint: '' }] = (await parked()).rows
    expect((await post('/api/redrive', { scope, id: 'taken', fingerprint, reason })).status).toBe(409)
    expect(await open.store.show(key(scope, 'taken'))).toMatchObject({ state: 'settled' })
    expect((await parked()).rows).toMatchObject([{ isRedriven: false }])
  })
})

const inMemory = async (): Promise<Place> => ({ store: memoryStore(), close: async () => {} })

async function onNewFile(): Promise<Place> {
  const ground = await startSqliteMessages()
  const { store } = await ground.openStore()
  return { store, close: async () => ground[Symbol.asyncDispose]() }
}

interface Place {
  readonly store: Store & Inspectable
  close(): Promise<void>
}

describe.each<[name: string, open: () => Promise<Place>, words: string]>([
  ['a store without SQL', inMemory, 'The memory store keeps no messages.'],
  ['a store without the tables', onNewFile, 'onceonly migrate --messages'],
])('on %s', (_name, open, words) => {
  test('the view says so, and nothing is logged', async () => {
    const { store, close } = await open()
    try {
      await expectNoMessages(store, words)
    } finally {
      await close()
    }
  })
})

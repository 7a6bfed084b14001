// What the dashboard asks about messages, on every SQL database.
import { expect } from 'vitest'
import { key } from '../../src/core/key.ts'
import type { Inspectable, Store } from '../../src/core/store.ts'
import { createRelay, type DeadLetter, functionPublisher } from '../../src/messages/outbox.ts'
import { adminOver, expectNothingKept } from '../admin/asked.ts'
import { type DashboardSubject, scope, secret, withToken } from './dashboard-subject.ts'
import { message } from './inbox-subject.ts'

type Case = (subject: DashboardSubject) => Promise<void>

const reason = 'the address was mended'

export const dashboardCases: Readonly<Record<string, Case>> = {
  async 'a parked message is shown without what it says, and with the token in full'({ get, park, parked }) {
    await park('order-1')
    const { rows, more } = await parked()
    expect([rows.length, more]).toEqual([1, false])
    const bytes = expect.any(Number) as number
    expect(rows[0]).toMatchObject({ scope, id: 'order-1', code: 'ATTEMPTS', attempts: 1, isRedriven: false, bytes })
    expect(JSON.stringify(rows)).not.toContain('wxyz')
    const name = { scope, id: 'order-1', fingerprint: rows[0]!.fingerprint }
    expect((await get('/api/parked-message', name)).status).toBe(401)
    const { text } = await get('/api/parked-message', name, withToken)
    const revealed = JSON.parse(text) as { detail: string; text: string; cut: boolean }
    expect([revealed.detail, revealed.cut]).toEqual([secret, false])
    // The body of the message is text, not base64.
    expect(JSON.parse(revealed.text)).toMatchObject({ topic: 'orders', body: `{"paid with":"${secret}"}` })
    const other = await get('/api/parked-message', { ...name, id: 'order-2' }, withToken)
    expect([other.status, other.text]).toEqual([200, '{}'])
  },

  async 'redriving needs the token and a reason, is audited, and the consumer runs the message once'(subject) {
    const { post, park, parked, inbox, open, get } = subject
    await park('order-1')
    const [{ fingerprint } = { fingerprint: '' }] = (await parked()).rows
    const asked = { scope, id: 'order-1', fingerprint, reason }
    const status = async (body: object, headers?: Record<string, string>): Promise<number> =>
      (await post('/api/redrive', body, headers)).status
    expect(await status(asked, {})).toBe(401)
    expect(await status(asked, { ...withToken, origin: 'https://evil.example' })).toBe(403)
    expect(await status(asked, { ...withToken, 'content-type': 'text/plain' })).toBe(400)
    for (const wrong of [
      { reason: ' ' },
      { reason: 'x'.repeat(501) },
      { id: 'order-2' },
      { fingerprint: '' },
      { all: 1 },
    ])
      expect(await status({ ...asked, ...wrong }), JSON.stringify(wrong)).toBe(400)
    expect((await parked()).rows).toMatchObject([{ isRedriven: false }])
    expect(await open.store.audit(key(scope, 'order-1'))).toEqual([])
    expect(await status(asked)).toBe(200)
    expect((await parked()).rows).toMatchObject([{ isRedriven: true }])
    const again = await post('/api/redrive', asked)
    expect([again.status, again.text]).toEqual([400, expect.stringContaining('redriven already')])
    const life = await get('/api/entry', { scope, id: 'order-1' })
    expect(life.text).toContain('redriven manually')
    expect(life.text).toContain(`It was parked. Reason: redrive: ${reason}`)
    // No entry is left of what was claimed for the audit trail.
    expect(life.text).not.toContain('"entry"')
    const ran: string[] = []
    expect(await inbox.runRedriven((_tx, { id }) => void ran.push(id!))).toBe(1)
    expect([ran, (await parked()).rows]).toEqual([['order-1'], []])
  },

  async 'of two messages that have one id, the one that a person looked at is redriven'({ inbox, park, parked, post }) {
    await inbox.handle(message('order-1', { text: 'the first' }), () => {})
    for (const text of ['the second', 'the third']) await park('order-1', text)
    const { rows } = await parked({ code: 'MISMATCH', id: 'order-1' })
    expect(rows).toHaveLength(2)
    const [one, other] = rows
    expect((await post('/api/redrive', { scope, id: 'order-1', fingerprint: other!.fingerprint, reason })).status).toBe(
      200,
    )
    const left = (await parked()).rows.map(({ fingerprint, isRedriven }) => [fingerprint, isRedriven])
    expect(left).toEqual([
      [one!.fingerprint, false],
      [other!.fingerprint, true],
    ])
  },

  async 'pages of parked messages follow each other without a gap, also between messages of one id'(subject) {
    const { inbox, park, parked } = subject
    for (let at = 0; at < 24; at++) await park(`k-${String(at).padStart(2, '0')}`)
    await inbox.handle(message('same', { text: 'the first' }), () => {})
    for (const text of ['2', '3', '4']) await park('same', text)
    await park('zé "\'\\ %_')
    const seen: string[] = []
    let query: Record<string, string> = { scope }
    for (let pages = 1; ; pages++) {
      const { rows, more } = await parked(query)
      seen.push(...rows.map(({ id, fingerprint }) => `${id} ${fingerprint}`))
      const { id: afterId, fingerprint: afterFingerprint } = rows.at(-1)!
      query = { scope, afterScope: scope, afterId, afterFingerprint }
      if (more) continue
      expect(pages).toBe(2)
      break
    }
    expect([seen.length, new Set(seen).size]).toEqual([28, 28])
    expect((await parked({ id: 'zé "\'\\ %_' })).rows).toHaveLength(1)
    expect((await parked({ scope: 'shop/inbox/other' })).rows).toEqual([])
    expect((await parked({ code: 'TOO_OLD' })).rows).toEqual([])
  },

  async 'the outbox shows how far behind it is, and its dead letters without why they failed'({ open, refuse, get }) {
    const [parkedId] = await refuse({ parkAfter: 1 }, { topic: 'orders', key: 'order-1', type: 'order.placed' })
    const [deadId] = await refuse({ skipAfter: 1 }, { topic: 'mails', key: 'order-2', type: 'mail.due' })
    await open.addOne({ topic: 'orders', key: 'order-3' })
    const read = async (query: Record<string, string> = {}): Promise<{ rows: unknown[]; status: object }> => {
      const { status, text } = await get('/api/outbox', query)
      expect([status, text]).toEqual([200, expect.not.stringContaining('wxyz')])
      return JSON.parse(text) as { rows: unknown[]; status: object }
    }
    const lagMs = expect.any(Number) as number
    expect(await read()).toMatchObject({
      status: { unsent: 1, lagMs, blockedKeys: 0, parked: 1, dead: 1, waiting: 0, shards: 4, shardsIdle: 4 },
      rows: [
        { id: parkedId, topic: 'orders', key: 'order-1', type: 'order.placed', state: 'parked', tries: 1 },
        { id: deadId, topic: 'mails', key: 'order-2', state: 'dead' },
      ],
      more: false,
    })
    expect((await read({ topic: 'mails' })).rows).toMatchObject([{ id: deadId }])
    expect((await read({ state: 'parked' })).rows).toMatchObject([{ id: parkedId }])
    expect((await read({ key: 'order-9' })).rows).toEqual([])
    const name = { id: parkedId! }
    expect((await get('/api/dead-letter', name)).status).toBe(401)
    const { text } = await get('/api/dead-letter', { ...name, state: 'parked' }, withToken)
    expect(JSON.parse(text)).toEqual({ detail: expect.stringContaining(secret) as string })
  },

  async 'a dead letter is redriven after a reason, and audited'({ open, refuse, get, post }) {
    const [id] = await refuse({ parkAfter: 1 }, { topic: 'orders', key: 'order-1' })
    const redrive = (body: object, headers?: Record<string, string>): Promise<{ status: number; text: string }> =>
      post('/api/redrive-letter', body, headers)
    expect((await redrive({ id, reason }, {})).status).toBe(401)
    expect((await redrive({ id, reason: '' })).status).toBe(400)
    expect((await redrive({ id: 'nobody', reason })).status).toBe(400)
    expect(await open.outbox.deadLetters()).toHaveLength(1)
    expect((await redrive({ id, reason })).status).toBe(200)
    expect(await open.outbox.deadLetters()).toEqual([])
    expect(await open.outbox.deadLetters({ state: 'waiting' })).toMatchObject([{ id, tries: 0 }])
    expect((await get('/api/entry', { scope: 'orders', id: id! })).text).toContain(`redrive: ${reason}`)
    const again = await redrive({ id, reason })
    expect([again.status, again.text]).toEqual([400, expect.stringContaining('nothing was changed')])
  },

  async 'a parked message and a dead letter are discarded after a reason, audited, and never run or sent'(subject) {
    const { park, parked, inbox, refuse, open, get, post } = subject
    for (const id of ['order-1', 'order-2']) await park(id)
    const [{ fingerprint } = { fingerprint: '' }] = (await parked({ id: 'order-1' })).rows
    const asked = { scope, id: 'order-1', fingerprint, reason }
    for (const path of ['/api/discard', '/api/discard-letter']) expect((await post(path, asked, {})).status).toBe(401)
    expect((await post('/api/discard', { ...asked, reason: ' ' })).status).toBe(400)
    expect((await parked()).rows).toHaveLength(2)
    // One that waits for its consumer can be discarded, too.
    await inbox.redrive({ id: 'order-1' }, 'too early')
    expect((await post('/api/discard', asked)).status).toBe(200)
    expect((await parked()).rows.map(({ id }) => id)).toEqual(['order-2'])
    const ran: unknown[] = []
    const run = (): void => void ran.push('ran')
    expect(await inbox.runRedriven(run)).toBe(0)
    expect(await inbox.handle(message('order-1', { text: `{"paid with":"${secret}"}` }), run)).toMatchObject({
      is: 'refused',
      code: 'PARKED',
    })
    expect(ran).toEqual([])
    const life = await get('/api/entry', { scope, id: 'order-1' })
    expect(life.text).toContain('discarded manually')
    expect(life.text).toContain(`It was parked. Reason: discard: ${reason}`)
    expect((await post('/api/discard', asked)).text).toContain('nothing was changed')

    const first = { topic: 'orders', key: 'order-1' }
    const [head, behind] = await refuse({ parkAfter: 1 }, first, first)
    expect((await post('/api/discard-letter', { id: head, reason: '' })).status).toBe(400)
    expect((await post('/api/discard-letter', { id: head, reason })).status).toBe(200)
    expect((await get('/api/entry', { scope: 'orders', id: head! })).text).toContain(`discard: ${reason}`)
    expect(await open.outbox.deadLetters()).toEqual([])
    // What waited behind it leaves, and it does not.
    const sent: string[] = []
    const relay = createRelay({ outbox: open.outbox, publisher: functionPublisher(({ id }) => void sent.push(id)) })
    await relay.runOnce()
    expect(sent).toEqual([behind])
    expect((await post('/api/discard-letter', { id: head, reason })).text).toContain('nothing was changed')
  },

  async 'pages of dead letters follow each other without a gap, also within a millisecond'({ open, refuse }) {
    // Of one call, so all of one moment.
    const events = Array.from({ length: 7 }, () => ({ topic: 'orders', key: 'order-1', type: 'order.placed' }))
    const ids = await open.transaction((tx) => open.outbox.add(tx, events))
    await refuse({ skipAfter: 1 })
    const seen: DeadLetter[] = []
    for (;;) {
      const after = seen.at(-1)
      const page = await open.outbox.deadLetters({ limit: 3, ...(after && { after }) })
      if (page.length === 0) break
      seen.push(...page)
    }
    expect(seen.map(({ id }) => id).toSorted()).toEqual(ids.toSorted())
    const after = { addedAtMs: 1, id: "' or 1 = 1 --" }
    await expect(open.outbox.deadLetters({ after })).rejects.toThrow(/after.*addedAtMs, id/)
  },

  async 'what no message can be called is refused, and is no failure of the store'({ get, post, park, parked }) {
    await park('order-1')
    const [{ fingerprint } = { fingerprint: '' }] = (await parked()).rows
    const hostile = ['\0', 'a\nb', '\u009b31m', 'x'.repeat(300), 'é'.repeat(200)]
    for (const id of hostile) {
      expect((await get('/api/parked', { id })).status, JSON.stringify(id)).toBe(400)
      expect((await get('/api/parked', { afterScope: scope, afterId: id, afterFingerprint: 'x' })).status).toBe(400)
      expect((await get('/api/parked-message', { scope, id, fingerprint }, withToken)).status).toBe(400)
      expect((await get('/api/outbox', { topic: id })).status).toBe(400)
      expect((await get('/api/dead-letter', { id }, withToken)).status).toBe(400)
      expect((await post('/api/redrive', { scope, id, fingerprint, reason })).status).toBe(400)
      expect((await post('/api/redrive-letter', { id, reason })).status).toBe(400)
    }
    for (const odd of ["' or 1 = 1 --", '%', '"; drop table onceonly_inbox_parked', '\\', '<script>', '$1', '?']) {
      expect((await parked({ id: odd })).rows, odd).toEqual([])
      expect((await get('/api/outbox', { topic: odd, key: odd })).text, odd).toContain('"rows":[]')
    }
    expect((await get('/api/parked', { code: 'SLEEPY' })).status).toBe(400)
    expect((await get('/api/outbox', { state: 'sleepy' })).status).toBe(400)
    expect((await parked()).rows).toHaveLength(1)
  },
}

// On a store that has none, or no tables for them.
export async function expectNoMessages(store: Store & Inspectable, words: string): Promise<void> {
  await expectNothingKept(store, ['/api/parked', '/api/outbox'], words)
  await using admin = await adminOver(store)
  const query = { scope, id: 'order-1', fingerprint: 'x' }
  for (const path of ['/api/parked-message', '/api/dead-letter'])
    expect((await admin.get(path, query, withToken)).status).toBe(501)
}

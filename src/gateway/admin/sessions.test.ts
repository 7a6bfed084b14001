// The view of sessions in memory and on SQLite, and on stores that have none. What the databases themselves answer is in test/sessions.

import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { adminOver, expectNothingKept, withToken } from '../../../test/admin/asked.ts'
import type { AskedAdmin } from '../../../test/admin/asked.ts'
import { startSqliteMessages } from '../../../test/messages/grounds.ts'
import { key } from '../../core/key.ts'
import type { Inspectable, Store } from '../../core/store.ts'
import { createSessions } from '../../sessions/sessions.ts'
import type { Sessions } from '../../sessions/sessions.ts'
import { memoryStore } from '../../stores/memory.ts'

const scope = 'tills/sessions'
const reason = 'the till was stolen'

interface Place {
  readonly store: Store & Inspectable
  close(): Promise<void>
}

const places: Readonly<Record<string, () => Promise<Place>>> = {
  'in memory': async () => ({ store: memoryStore(), close: async () => {} }),
  async 'on SQLite'() {
    const ground = await startSqliteMessages()
    const { store } = await ground.openStore()
    return { store, close: async () => ground[Symbol.asyncDispose]() }
  },
}

describe.each(Object.entries(places))('%s', (_name, open) => {
  let place: Place
  let admin: AskedAdmin
  let sessions: Sessions
  beforeAll(async () => {
    place = await open()
    sessions = createSessions({ store: place.store, scope: 'tills', window: 3 }) as Sessions
    await sessions.migrate()
    admin = await adminOver(place.store)
  })
  afterAll(async () => {
    await admin[Symbol.asyncDispose]()
    await place.close()
  })

  const page = async (query: Record<string, string> = {}): Promise<{ rows: { session: string }[]; more: boolean }> => {
    const { status, text } = await admin.get('/api/sessions', query)
    expect(status, text).toBe(200)
    return JSON.parse(text) as { rows: { session: string }[]; more: boolean }
  }

  test('a session is shown with its floor, window, lease and numbers, and without its answers', async () => {
    const { session, epoch } = await sessions.register('till-7')
    for (const sequence of [1, 2]) {
      const request = { session, epoch, sequence, acknowledged: sequence - 1 }
      await sessions.apply(request, () => 'card wxyz')
    }
    await sessions.apply({ session, epoch, sequence: 4 }, () => Promise.reject(new Error('no printer'))).catch(() => {})
    const shown = { scope, session, epoch, state: 'open', floor: 1, last: 4, requests: 2, window: 3 }
    const { rows, more } = await page({ begins: 'till-7' })
    expect([rows, more]).toEqual([[{ ...shown, leaseUntilMs: expect.any(Number) as number }], false])
    const { text } = await admin.get('/api/session', { scope, session })
    expect(JSON.parse(text)).toMatchObject({ ...shown, answered: [2], unanswered: [4] })
    expect(text + JSON.stringify(rows)).not.toContain('wxyz')
    expect(await admin.get('/api/session', { scope, session: 'nobody' })).toEqual({ status: 200, text: '{}' })
  })

  test('pages of sessions follow each other without a gap, however many there are', async () => {
    for (let at = 0; at < 60; at++) await sessions.register(`page-${String(at).padStart(2, '0')}`)
    const seen: string[] = []
    let query: Record<string, string> = { scope, begins: 'page-' }
    for (;;) {
      const { rows, more } = await page(query)
      expect(rows.length).toBeLessThanOrEqual(25)
      seen.push(...rows.map(({ session }) => session))
      if (!more) break
      query = { ...query, afterScope: scope, afterSession: seen.at(-1)! }
    }
    expect([seen.length, new Set(seen).size]).toEqual([60, 60])
    expect((await page({ scope: 'shop/sessions' })).rows).toEqual([])
    for (const odd of ["' or 1 = 1 --", '%', '_', '\\', '<script>', '$1', '?'])
      expect((await page({ begins: odd })).rows, odd).toEqual([])
    for (const hostile of ['\0', 'a\nb', 'x'.repeat(300)]) {
      expect((await admin.get('/api/sessions', { begins: hostile })).status).toBe(400)
      expect((await admin.get('/api/sessions', { afterScope: scope, afterSession: hostile })).status).toBe(400)
      expect((await admin.get('/api/session', { scope, session: hostile })).status).toBe(400)
    }
  })

  test('closing needs the token and a reason, takes the epoch that was looked at, and is audited', async () => {
    const old = await sessions.register('till-8')
    const { session, epoch } = await sessions.register('till-8')
    const asked = { scope, session, epoch, reason }
    const status = async (body: object, headers?: Record<string, string>): Promise<number> =>
      (await admin.post('/api/close-session', body, headers)).status
    expect(await status(asked, {})).toBe(401)
    expect(await status(asked, { ...withToken, origin: 'https://evil.example' })).toBe(403)
    expect(await status(asked, { ...withToken, 'content-type': 'text/plain' })).toBe(400)
    for (const wrong of [{ reason: ' ' }, { reason: 'x'.repeat(501) }, { session: 'nobody' }, { epoch: 0 }, { all: 1 }])
      expect(await status({ ...asked, ...wrong }), JSON.stringify(wrong)).toBe(400)
    const late = await admin.post('/api/close-session', { ...asked, epoch: old.epoch })
    expect([late.status, late.text]).toEqual([
      400,
      expect.stringContaining('registered again since: nothing was changed'),
    ])
    expect(await sessions.show(session)).toMatchObject({ state: 'open' })
    expect(await place.store.audit(key(scope, session))).toEqual([])
    expect(await status(asked)).toBe(200)
    await expect(sessions.keepAlive({ session, epoch })).rejects.toMatchObject({ code: 'SESSION_EXPIRED' })
    const again = await admin.post('/api/close-session', asked)
    expect([again.status, again.text]).toEqual([400, expect.stringContaining('closed already')])
    const life = (await admin.get('/api/entry', { scope, id: session })).text
    expect(life).toContain('closed manually')
    expect(life).toContain(`"detail":"Reason: close: ${reason}"`)
    expect(life).not.toContain('"entry"')
  })
})

test('a store that keeps no sessions, or has no tables for them, says so, and nothing is logged', async () => {
  const ground = await startSqliteMessages()
  const { store } = await ground.openStore()
  const homemade = { ...memoryStore(), name: 'homemade' }
  await expectNothingKept(homemade, ['/api/sessions'], 'The homemade store keeps no sessions.')
  await expectNothingKept(store, ['/api/sessions'], 'onceonly migrate --sessions')
  await ground[Symbol.asyncDispose]()
})

// The view of webhooks on SQLite, and on stores that have none. What the databases themselves answer is in test/webhooks/sender.test.ts.

import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { adminOver, expectNothingKept, withToken } from '../../../test/admin/asked.ts'
import type { AskedAdmin } from '../../../test/admin/asked.ts'
import { startSqliteMessages } from '../../../test/messages/grounds.ts'
import type { MessagesGround, SqlStore } from '../../../test/messages/grounds.ts'
import { startHookServer } from '../../../test/webhooks/hook-server.ts'
import type { HookServer } from '../../../test/webhooks/hook-server.ts'
import { key } from '../../core/key.ts'
import { memoryStore } from '../../stores/memory.ts'
import { createWebhookSender } from '../../webhooks.ts'
import type { WebhookSender } from '../../webhooks.ts'

const reason = 'their outage is over'
const secretBody = '{"card":"wxyz"}'
const secretAnswer = 'token 77'

let ground: MessagesGround
let store: SqlStore
let hooks: HookServer
let webhooks: WebhookSender
let admin: AskedAdmin
beforeAll(async () => {
  ground = await startSqliteMessages()
  store = (await ground.openStore()).store
  hooks = await startHookServer()
  // One attempt, and it has failed.
  webhooks = createWebhookSender({ store, allow: ['127.0.0.1'], scheduleMs: [0] })
  await webhooks.migrate()
  admin = await adminOver(store)
})
afterAll(async () => {
  await admin[Symbol.asyncDispose]()
  await hooks[Symbol.asyncDispose]()
  await ground[Symbol.asyncDispose]()
})
beforeEach(async () => {
  for (const table of ['endpoints', 'events', 'deliveries', 'attempts'])
    await ground.ask(`delete from onceonly_webhooks_${table}`)
  hooks.answer((_hook, res) => res.writeHead(500).end(secretAnswer))
})

const publish = async (...ids: string[]): Promise<void> => {
  const headers = { 'ce-type': 'order.paid' }
  await webhooks.publisher.publish(ids.map((id) => ({ id, topic: 'acme', body: Buffer.from(secretBody), headers })))
}

const addEndpoint = async (path = '/'): Promise<string> =>
  (await webhooks.endpoints.add({ topic: 'acme', url: `${hooks.url}${path}` })).id

async function read<Row>(path: string, query: Record<string, string> = {}): Promise<{ rows: Row[]; more: boolean }> {
  const { status, text } = await admin.get(path, query)
  expect(status, text).toBe(200)
  return JSON.parse(text) as { rows: Row[]; more: boolean }
}

test('endpoints are shown with their state, since when they fail and what waits for them, and without their secrets', async () => {
  const { id: failing, secret } = await webhooks.endpoints.add({ topic: 'acme', url: `${hooks.url}/` })
  await publish('event-1')
  await webhooks.runOnce()
  await publish('event-2', 'event-3')
  const { id: other } = await webhooks.endpoints.add({ topic: 'umbrella', url: `${hooks.url}/` })
  const { rows } = await read<object>('/api/webhook-endpoints', { topic: 'acme' })
  const shown = {
    id: failing,
    state: 'active',
    waiting: 2,
    moreWaiting: false,
    failingSinceMs: expect.any(Number) as number,
  }
  expect(rows).toMatchObject([shown])
  expect(JSON.parse((await admin.get('/api/webhook-endpoint', { id: failing })).text)).toMatchObject(shown)
  expect((await read('/api/webhook-endpoints', { state: 'disabled' })).rows).toEqual([])
  expect((await read('/api/webhook-endpoints', { after: other })).rows).toEqual([])
  expect(JSON.stringify(rows)).not.toContain(secret.slice('whsec_'.length))
  expect((await admin.get('/api/webhook-endpoints', { state: 'asleep' })).status).toBe(400)
  expect(await admin.get('/api/webhook-endpoint', { id: 'nobody' })).toEqual({ status: 200, text: '{}' })
})

test('a delivery is shown with its attempts, and what was sent and answered with the token alone', async () => {
  const endpoint = await addEndpoint()
  await publish('event-1')
  await webhooks.runOnce()
  const { rows } = await read<object>('/api/webhook-deliveries', { state: 'failed' })
  expect(rows).toMatchObject([{ id: 'event-1', endpoint, topic: 'acme', type: 'order.paid', attempts: 1, status: 500 }])
  const name = { id: 'event-1', endpoint }
  const { text } = await admin.get('/api/webhook-delivery', name)
  expect(JSON.parse(text)).toMatchObject({ delivery: rows[0], attempts: [{ number: 1, status: 500 }] })
  expect(text + JSON.stringify(rows)).not.toMatch(/wxyz|token 77/)
  expect((await admin.get('/api/webhook-sent', name)).status).toBe(401)
  expect(JSON.parse((await admin.get('/api/webhook-sent', name, withToken)).text)).toEqual({
    text: secretBody,
    cut: false,
    responses: [{ number: 1, response: secretAnswer }],
  })
  for (const path of ['/api/webhook-delivery', '/api/webhook-sent'])
    expect(await admin.get(path, { id: 'nobody', endpoint }, withToken)).toEqual({ status: 200, text: '{}' })
})

test('of two deliveries of one event, the one that a person looked at is replayed, after a reason', async () => {
  const [one, other] = [await addEndpoint('/one'), await addEndpoint('/other')]
  await publish('event-1')
  await webhooks.runOnce()
  hooks.answer((_hook, res) => res.end())
  hooks.sent.length = 0
  const asked = { id: 'event-1', endpoint: other, reason }
  const status = async (body: object, headers?: Record<string, string>): Promise<number> =>
    (await admin.post('/api/replay-delivery', body, headers)).status
  expect(await status(asked, {})).toBe(401)
  expect(await status(asked, { ...withToken, origin: 'https://evil.example' })).toBe(403)
  expect(await status(asked, { ...withToken, 'content-type': 'text/plain' })).toBe(400)
  for (const wrong of [{ reason: ' ' }, { id: 'event-2' }, { endpoint: 'nobody' }, { endpoint: '' }, { all: 1 }])
    expect(await status({ ...asked, ...wrong }), JSON.stringify(wrong)).toBe(400)
  expect(await status(asked)).toBe(200)
  expect((await read<object>('/api/webhook-deliveries', { state: 'pending' })).rows).toMatchObject([
    { endpoint: other },
  ])
  expect((await read<object>('/api/webhook-deliveries', { endpoint: one })).rows).toMatchObject([{ state: 'failed' }])
  expect(await webhooks.runOnce()).toMatchObject({ delivered: 1 })
  expect(hooks.sent.map(({ path, id }) => [path, id])).toEqual([['/other', 'event-1']])
  const life = (await admin.get('/api/entry', { scope: 'acme', id: 'event-1' })).text
  expect(life).toContain('replayed manually')
  expect(life).toContain(`"detail":"Reason: replay: ${reason}"`)
})

test('an endpoint is disabled and enabled after a reason, and audited', async () => {
  const id = await addEndpoint()
  const asked = { id, reason }
  for (const path of ['/api/disable-endpoint', '/api/enable-endpoint']) {
    expect((await admin.post(path, asked, {})).status).toBe(401)
    expect((await admin.post(path, { id, reason: '' })).status).toBe(400)
    const none = await admin.post(path, { id: 'nobody', reason })
    expect([none.status, none.text]).toEqual([400, expect.stringContaining('nothing was changed')])
  }
  expect((await admin.post('/api/disable-endpoint', asked)).status).toBe(200)
  expect(await webhooks.endpoints.get(id)).toMatchObject({ state: 'disabled', disabledReason: reason })
  expect((await admin.post('/api/enable-endpoint', asked)).status).toBe(200)
  expect(await webhooks.endpoints.get(id)).toMatchObject({ state: 'active', disabledReason: undefined })
  expect((await store.audit(key('webhooks', id))).map((each) => each.reason).toSorted()).toEqual([
    `disable: ${reason}`,
    `enable: ${reason}`,
  ])
  const life = (await admin.get('/api/entry', { scope: 'webhooks', id })).text
  for (const words of ['disabled manually', 'enabled manually']) expect(life).toContain(words)
})

test('pages of endpoints and deliveries follow each other without a gap, and what waits is counted up to a bound', async () => {
  const endpoints: string[] = []
  for (let at = 0; at < 30; at++) endpoints.push(await addEndpoint(`/${at}`))
  await publish('event-1', 'event-2')
  const follow = async <Row>(path: string, afterOf: (row: Row) => string): Promise<Row[]> => {
    const seen: Row[] = []
    for (;;) {
      const page = await read<Row>(path, seen.length > 0 ? { after: afterOf(seen.at(-1)!) } : {})
      expect(page.rows.length).toBeLessThanOrEqual(25)
      seen.push(...page.rows)
      if (!page.more) return seen
    }
  }
  const found = await follow<{ id: string }>('/api/webhook-endpoints', ({ id }) => id)
  expect(found.map(({ id }) => id)).toEqual(endpoints.toSorted())
  const deliveries = await follow<{ position: number }>('/api/webhook-deliveries', ({ position }) => String(position))
  expect(new Set(deliveries.map(({ position }) => position)).size).toBe(60)
  expect((await admin.get('/api/webhook-deliveries', { after: '1 or 1 = 1' })).status).toBe(400)
  const [endpoint] = endpoints
  await ground.ask(`insert into onceonly_webhooks_deliveries (event_id, endpoint_id, state, since_at_ms, due_at_ms)
    with recursive n(i) as (select 1 union all select i + 1 from n where i < 1200)
    select 'more-' || i, '${endpoint}', 'pending', 0, 0 from n`)
  await ground.ask(`insert into onceonly_webhooks_events (id, topic, type, payload, headers, added_at_ms)
    with recursive n(i) as (select 1 union all select i + 1 from n where i < 1200)
    select 'more-' || i, 'acme', 'order.paid', '', '{}', 0 from n`)
  expect(JSON.parse((await admin.get('/api/webhook-endpoint', { id: endpoint! })).text)).toMatchObject({
    waiting: 1000,
    moreWaiting: true,
  })
})

test('a store that keeps no webhooks, or has no tables for them, says so, and nothing is logged', async () => {
  const empty = await startSqliteMessages()
  const paths = ['/api/webhook-endpoints', '/api/webhook-deliveries']
  await expectNothingKept(memoryStore(), paths, 'The memory store keeps no webhooks.')
  await expectNothingKept((await empty.openStore()).store, paths, 'onceonly migrate --webhooks')
  await empty[Symbol.asyncDispose]()
})

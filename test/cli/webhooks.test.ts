// `onceonly webhooks` as an operator uses it: a delivery failed, is looked at, replayed, and its endpoint is disabled and enabled.
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { key } from '../../src/core/key.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import { createWebhookSender } from '../../src/webhooks.ts'
import { startHookServer } from '../webhooks/hook-server.ts'
import { makeFolder, onceonly } from './program.ts'

test('failed, listed, shown, replayed, its endpoint disabled and enabled', async () => {
  using folder = makeFolder()
  const path = join(folder.path, 'shop.db')
  const store = sqliteStore({ path })
  await using hooks = await startHookServer()
  const webhooks = createWebhookSender({ store, allow: ['127.0.0.1'], scheduleMs: [0] })
  const inStore = (...args: string[]): ReturnType<typeof onceonly> =>
    onceonly(['webhooks', ...args, '--store', `sqlite:${path}`])

  await store.migrate()
  const untold = await inStore('list')
  expect(untold).toMatchObject({ code: 1, out: '' })
  expect(untold.error).toContain(`onceonly migrate --webhooks --store sqlite:${path}`)
  expect(await onceonly(['migrate', '--webhooks', '--store', `sqlite:${path}`])).toMatchObject({ code: 0 })
  expect(await inStore('list')).toMatchObject({ code: 0, out: 'No such delivery.\n' })
  expect(await inStore('endpoints')).toMatchObject({ code: 0, out: 'No such endpoint.\n' })

  const { id: to, secret } = await webhooks.endpoints.add({ topic: 'acme', url: `${hooks.url}/`, types: ['order.*'] })
  const event = {
    id: 'event-1',
    topic: 'acme',
    body: Buffer.from('{"card":"wxyz"}'),
    headers: { 'ce-type': 'order.paid' },
  }
  await webhooks.publisher.publish([event])
  hooks.answer((_hook, res) => res.writeHead(500).end('token 77'))
  await webhooks.runOnce()

  const endpoints = await inStore('endpoints', '--topic', 'acme')
  expect(endpoints.out).toMatch(new RegExp(`${to} +acme +${hooks.url}/ +order\\.\\* +active +\\S.* +0\n`))
  expect(endpoints.out + (await inStore('endpoints', '--json')).out).not.toContain(secret)
  expect((await inStore('list', '--state', 'failed')).out).toMatch(/event-1 +\S+ +acme +order\.paid +failed +1 +500/)
  expect(await inStore('list', '--from', '2100-01-01')).toMatchObject({ code: 0, out: 'No such delivery.\n' })
  const shown = await inStore('show', 'event-1')
  expect(shown.out).toMatch(/acme \/ event-1[^]*failed[^]*1\. .*: 500/)
  expect(shown.out).not.toMatch(/wxyz|token 77/)
  expect((await inStore('show', 'event-1', '--reveal')).out).toMatch(/wxyz[^]*500 token 77/)
  expect(await inStore('show', 'event-2')).toMatchObject({
    code: 3,
    error: expect.stringContaining('no webhook event-2'),
  })

  expect(await inStore('replay', '--reason', 'r')).toMatchObject({
    code: 2,
    error: expect.stringContaining('which? Give --id'),
  })
  expect(await inStore('replay', '--id', 'event-1')).toMatchObject({ code: 2, error: expect.stringContaining('why?') })
  expect(await inStore('replay', '--topic', 'other', '--reason', 'r')).toMatchObject({ code: 3 })
  expect((await inStore('replay', '--topic', 'acme', '--reason', 'their outage')).out).toContain('1 to be sent again')
  hooks.answer((_hook, res) => res.end())
  expect(await webhooks.runOnce()).toMatchObject({ delivered: 1 })
  expect(hooks.ids()).toEqual(['event-1', 'event-1'])
  expect(await store.audit(key('acme', 'event-1'))).toMatchObject([{ reason: 'replay: their outage' }])

  expect((await inStore('disable', to, '--reason', 'not paid')).out).toBe(`${to} is disabled.\n`)
  expect((await inStore('endpoints', '--state', 'disabled')).out).toContain('disabled: not paid')
  expect(JSON.parse((await inStore('enable', to, '--reason', 'paid', '--json')).out)).toEqual({
    endpoint: to,
    state: 'active',
  })
  expect(await inStore('disable', 'nobody', '--reason', 'r')).toMatchObject({ code: 3 })
  expect(await store.audit(key('webhooks', to))).toMatchObject([
    { reason: 'disable: not paid' },
    { reason: 'enable: paid' },
  ])
  store.close()
})

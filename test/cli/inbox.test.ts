// `onceonly inbox` as an operator uses it: a message is parked, looked at, redriven, and run by the consumer.
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { key } from '../../src/core/key.ts'
import { createOnce } from '../../src/core/once.ts'
import { createInbox, type Inbox, type Message } from '../../src/messages/inbox.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import { makeFolder, onceonly } from './program.ts'

const message = (id: string): Message => ({
  id,
  topic: 'orders',
  headers: {},
  body: Buffer.from('{"card":"wxyz"}'),
  raw: undefined,
})

test('parked, listed, shown, redriven, run once', async () => {
  using folder = makeFolder()
  const path = join(folder.path, 'shop.db')
  const store = sqliteStore({ path })
  const inbox = createInbox(createOnce({ store, scope: 'shop' }), { consumer: 'mailer', attempts: 1 }) as Inbox
  const inStore = (...args: string[]): ReturnType<typeof onceonly> =>
    onceonly(['inbox', ...args, '--store', `sqlite:${path}`])

  const untold = await inStore('list')
  expect(untold).toMatchObject({ code: 1, out: '' })
  expect(untold.error).toContain(`onceonly migrate --messages --store sqlite:${path}`)
  expect(await onceonly(['migrate', '--messages', '--store', `sqlite:${path}`])).toMatchObject({ code: 0 })
  expect(await inStore('list')).toMatchObject({ code: 0, out: 'No parked message.\n' })

  for (const id of ['order-1', 'order-2']) {
    await inbox.handle(message(id), () => {
      throw new Error('card wxyz was declined')
    })
  }
  const listed = await inStore('list')
  expect(listed.out).toMatch(/SCOPE +ID +CODE +ATTEMPTS +PARKED +REDRIVEN\n/)
  expect(listed.out).toMatch(/shop\/inbox\/mailer +order-1 +ATTEMPTS +1 /)
  expect(listed.out).not.toContain('wxyz')
  expect(await inStore('list', '--limit', '1', '--json')).toMatchObject({ code: 0 })
  expect(JSON.parse((await inStore('list', '--limit', '1', '--json')).out)).toMatchObject({
    parked: [{ scope: 'shop/inbox/mailer', id: 'order-1', code: 'ATTEMPTS', isRedriven: false }],
    more: true,
  })

  const shown = await inStore('show', 'shop/inbox/mailer', 'order-1')
  expect(shown.out).not.toContain('wxyz')
  expect(shown.out).toContain(
    `onceonly inbox redrive --scope shop/inbox/mailer --id order-1 --reason TEXT --store sqlite:${path}`,
  )
  const revealed = await inStore('show', 'shop/inbox/mailer', 'order-1', '--reveal')
  expect(revealed.out).toContain('card wxyz was declined')
  // The body is text, not base64.
  expect(revealed.out).toContain('"body": "{\\"card\\":\\"wxyz\\"}"')
  expect(await inStore('show', 'shop/inbox/mailer', 'order-9')).toMatchObject({ code: 3 })

  const why = ['--reason', 'the card is new']
  expect(await inStore('redrive', '--id', 'order-1', '--scope', 'shop/inbox/mailer', ...why)).toMatchObject({ code: 0 })
  expect(await inStore('redrive', '--id', 'order-1', ...why)).toMatchObject({ code: 3 })
  expect(await store.audit(key('shop/inbox/mailer', 'order-1'))).toMatchObject([{ reason: 'redrive: the card is new' }])
  expect((await inStore('list')).out).toMatch(/order-1 .* yes\n/)
  const ran: string[] = []
  expect(await inbox.runRedriven((_tx, { id }) => void ran.push(id!))).toBe(1)
  expect(ran).toEqual(['order-1'])
  expect(JSON.parse((await inStore('redrive', '--all', '--json', ...why)).out)).toEqual({ redriven: 1 })
  expect(JSON.parse((await inStore('discard', '--id', 'order-2', '--json', ...why)).out)).toEqual({ discarded: 1 })
  expect(await inStore('discard', '--all', ...why)).toMatchObject({ code: 3 })
  expect((await store.audit(key('shop/inbox/mailer', 'order-2'))).map(({ reason }) => reason).toSorted()).toEqual([
    'discard: the card is new',
    'redrive: the card is new',
  ])
  expect(await inbox.runRedriven((_tx, { id }) => void ran.push(id!))).toBe(0)
  expect(await inStore('list')).toMatchObject({ out: 'No parked message.\n' })
  store.close()
})

test('what a codec wrote is told as that, and not as text', async () => {
  using folder = makeFolder()
  const path = join(folder.path, 'shop.db')
  const store = sqliteStore({ path })
  const secret = { encode: () => Uint8Array.of(255, 254, 253), decode: (): unknown => 'never asked' }
  const options = { consumer: 'mailer', attempts: 1, codec: secret }
  const inbox = createInbox(createOnce({ store, scope: 'shop' }), options) as Inbox
  await inbox.migrate()
  await inbox.handle(message('order-1'), () => {
    throw new Error('card wxyz was declined')
  })
  const { out } = await onceonly([
    'inbox',
    'show',
    'shop/inbox/mailer',
    'order-1',
    '--reveal',
    '--store',
    `sqlite:${path}`,
  ])
  expect(out).toContain('3 bytes that cannot be read here: a codec of the service wrote them.')
  expect(out).toContain('//79')
  expect(out).not.toContain('$codec:')
  store.close()
})

test('a store that keeps no parked messages says so', async () => {
  const ended = await onceonly(['inbox', 'list', '--store', 'memory:'])
  expect(ended.code).toBe(1)
  expect(ended.error).toContain('keeps no parked messages')
})

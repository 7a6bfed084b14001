// `onceonly outbox` as an operator uses it: an event cannot be published, is looked at, redriven, and leaves.
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { expect, test } from 'vitest'
import { key } from '../../src/core/key.ts'
import { createOnce } from '../../src/core/once.ts'
import { createOutbox, createRelay } from '../../src/messages/outbox.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import { listBroker } from '../messages/outbox-ground.ts'
import { makeFolder, onceonly } from './program.ts'

test('a backlog that is as large as a server counts is told as that or more', async () => {
  using folder = makeFolder()
  const path = join(folder.path, 'shop.db')
  const store = sqliteStore({ path })
  await createOutbox({ store, source: 'shop' }).migrate()
  store.close()
  using database = new DatabaseSync(path)
  const told = async (unsent: number): Promise<string> => {
    database.exec(`UPDATE onceonly_outbox_lanes SET position = ${unsent} WHERE lane = 1`)
    return (await onceonly(['outbox', 'status', '--store', `sqlite:${path}`])).out
  }
  expect(await told(9_999)).toMatch(/^Unsent +9999$/m)
  expect(await told(10_000)).toMatch(/^Unsent +10000 or more$/m)
})

test('parked, seen in the status, listed, redriven, published', async () => {
  using folder = makeFolder()
  const path = join(folder.path, 'shop.db')
  const store = sqliteStore({ path })
  const once = createOnce({ store, scope: 'shop' })
  const outbox = createOutbox({ store, source: 'shop' })
  const inStore = (...args: string[]): ReturnType<typeof onceonly> =>
    onceonly(['outbox', ...args, '--store', `sqlite:${path}`])

  for (const part of ['status', 'list']) {
    const untold = await inStore(part)
    expect(untold).toMatchObject({ code: 1, out: '' })
    expect(untold.error).toContain(`onceonly migrate --messages --store sqlite:${path}`)
  }
  expect(await onceonly(['migrate', '--messages', '--store', `sqlite:${path}`])).toMatchObject({ code: 0 })
  expect(await inStore('list')).toMatchObject({ code: 0, out: 'No such row.\n' })
  expect((await inStore('status')).out).toContain('no relay works on 8 of them')

  const { value: ids } = await once.transaction('order-1', (tx) =>
    outbox.add(tx, [
      { topic: 'orders', key: 'order-1', type: 'order.placed' },
      { topic: 'orders', key: 'order-1', type: 'order.paid' },
      { topic: 'mails', key: 'mail-1', type: 'mail' },
    ]),
  )
  expect(JSON.parse((await inStore('status', '--json')).out)).toMatchObject({ unsent: 3, parked: 0, shards: 8 })
  let isBroken = true
  const broker = listBroker(({ key }) => (isBroken && key === 'order-1' ? new Error('card wxyz') : undefined))
  const relay = createRelay({ outbox, publisher: broker, onFailure: { parkAfter: 1 } })
  await relay.runOnce()

  const { out } = await inStore('status')
  expect(out).toMatch(/^Unsent +0$/m)
  expect(out).toMatch(/^Parked +1$/m)
  const listed = await inStore('list')
  expect(listed.out).toMatch(/ID +TOPIC +KEY +TYPE +STATE +TRIES +FAILED\n/)
  expect(listed.out).toMatch(/orders +order-1 +order\.placed +parked +1 /)
  expect(listed.out).not.toContain('wxyz')
  expect((await inStore('list', '--reveal')).out).toContain('Error: card wxyz')
  expect(JSON.parse((await inStore('list', '--state', 'waiting', '--json')).out)).toMatchObject({
    letters: [{ id: ids[1], type: 'order.paid', tries: 0 }],
    more: false,
  })
  expect(await inStore('list', '--topic', 'mails')).toMatchObject({ out: 'No such row.\n' })

  const why = ['--reason', 'the card is new']
  expect(await inStore('redrive', '--topic', 'mails', ...why)).toMatchObject({ code: 3 })
  isBroken = false
  expect(await inStore('redrive', '--id', ids[0]!, ...why)).toMatchObject({ code: 0 })
  expect(await inStore('redrive', '--all', ...why)).toMatchObject({ code: 3 })
  expect(await store.audit(key('orders', ids[0]!))).toMatchObject([{ reason: 'redrive: the card is new' }])
  await relay.runOnce()
  expect(broker.ofKey('order-1')).toEqual(ids.slice(0, 2))

  isBroken = true
  const { value: more } = await once.transaction('order-1 again', (tx) =>
    outbox.add(tx, [
      { topic: 'orders', key: 'order-1', type: 'order.refunded' },
      { topic: 'orders', key: 'order-1', type: 'order.closed' },
      { topic: 'mails', key: 'mail-2', type: 'mail' },
    ]),
  )
  await relay.runOnce()
  expect(await inStore('discard', '--id', more[0]!, ...why)).toMatchObject({
    code: 0,
    out: '1 discarded: they are never sent.\n',
  })
  expect(await store.audit(key('orders', more[0]!))).toMatchObject([{ reason: 'discard: the card is new' }])
  isBroken = false
  await relay.runOnce()
  expect(broker.ofKey('order-1')).toEqual([...ids.slice(0, 2), more[1]])
  await once.close()
  store.close()
})

// The webhook sender on every SQL database: one delivery per event and endpoint, the schedule, order, concurrency, the fence, and what
// people do with endpoints and deliveries.
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { systemClock } from '../../src/core/clock.ts'
import { newId } from '../../src/core/key.ts'
import type { Outgoing } from '../../src/messages/broker.ts'
import { createOutbox, createRelay } from '../../src/messages/outbox.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { createWebhookSender, standardWebhooks } from '../../src/webhooks.ts'
import type { NewWebhookEndpoint, WebhookSender, WebhookSenderOptions } from '../../src/webhooks.ts'
import { eventually } from '../messages/eventually.ts'
import { grounds, type MessagesGround, type OpenStore } from '../messages/grounds.ts'
import { needs } from '../servers/needs.ts'
import { soon } from '../soon.ts'
import { type HookServer, startHookServer } from './hook-server.ts'

const nothing = { delivered: 0, again: 0, exhausted: 0, gone: 0, lost: 0 }

function message(given: Partial<Outgoing> & { readonly type?: string } = {}): Outgoing {
  const { type = 'order.placed', ...rest } = given
  const id = newId()
  const headers = { 'ce-id': id, 'ce-type': type, 'content-type': 'application/json', tenant: 'ours' }
  return { id, topic: 'acme', body: Buffer.from(`{"of":"${id}"}`), headers, ...rest }
}

// What a handler on the server's side waits for.
function gate(): { readonly passed: Promise<void>; open(): void } {
  const { promise, resolve } = Promise.withResolvers<void>()
  return { passed: promise, open: resolve }
}

for (const { name, server, start } of grounds) {
  const suite = server === undefined ? describe : needs(server, { ours: true }).describe
  suite(`a webhook sender on ${name}`, () => {
    let ground: MessagesGround
    let open: OpenStore
    let hooks: HookServer
    let senders: WebhookSender[]
    beforeAll(async () => {
      ground = await start()
      open = await ground.openStore()
      const webhooks = createWebhookSender({ store: open.store })
      await expect(webhooks.endpoints.list()).rejects.toMatchObject({
        code: 'SCHEMA_MISSING',
        message: expect.stringContaining('Run "await webhooks.migrate()" once'),
      })
      await Promise.all([webhooks.migrate(), webhooks.migrate()])
      await open[Symbol.asyncDispose]()
    })
    afterAll(() => ground[Symbol.asyncDispose]())
    beforeEach(async () => {
      for (const table of ['endpoints', 'events', 'deliveries', 'attempts'])
        await ground.ask(`delete from onceonly_webhooks_${table}`)
      open = await ground.openStore()
      hooks = await startHookServer()
      senders = []
    })
    afterEach(async () => {
      await Promise.all(senders.map((sender) => sender.stop()))
      await hooks[Symbol.asyncDispose]()
      await open[Symbol.asyncDispose]()
    })

    const sender = (options: Partial<WebhookSenderOptions> = {}): WebhookSender => {
      senders.push(createWebhookSender({ store: open.store, allow: ['127.0.0.1'], ...options }))
      return senders.at(-1)!
    }
    const endpoint = (webhooks: WebhookSender, given: Partial<NewWebhookEndpoint> = {}) =>
      webhooks.endpoints.add({ topic: 'acme', url: `${hooks.url}/`, ...given })
    const makeDue = (): Promise<unknown> => ground.ask('update onceonly_webhooks_deliveries set due_at_ms = 0')
    const dueInMs = async (id: string): Promise<number> => {
      const [found] = await ground.ask(
        `select d.due_at_ms - (a.at_ms + a.duration_ms) from onceonly_webhooks_deliveries d
 join onceonly_webhooks_attempts a on a.delivery = d.position and a.number = d.attempts where d.event_id = '${id}'`,
      )
      return Number(found)
    }

    test('an event has one delivery per endpoint that wants its topic and its type, however often it is published', async () => {
      const webhooks = sender()
      const all = await endpoint(webhooks, { url: `${hooks.url}/all` })
      await endpoint(webhooks, { url: `${hooks.url}/orders`, types: ['order.*'] })
      await endpoint(webhooks, { url: `${hooks.url}/paid`, types: ['invoice.paid', 'order.paid'] })
      await endpoint(webhooks, { url: `${hooks.url}/other`, topic: 'acme ' })
      const placed = message()
      const paid = message({ type: 'invoice.paid' })
      const unwanted = message({ topic: 'nobody' })
      for (let round = 0; round < 2; round++) {
        expect(await webhooks.publisher.publish([placed, paid, unwanted])).toEqual([undefined, undefined, undefined])
      }
      expect(await webhooks.runOnce()).toEqual({ ...nothing, delivered: 4 })
      expect(await webhooks.publisher.publish([placed, paid])).toEqual([undefined, undefined])
      expect(await webhooks.runOnce()).toEqual(nothing)
      expect(hooks.ids('/all').toSorted()).toEqual([placed.id, paid.id].toSorted())
      expect(hooks.ids('/orders')).toEqual([placed.id])
      expect(hooks.ids('/paid')).toEqual([paid.id])
      const scheme = standardWebhooks({ secrets: all.secret })
      for (const { headers, body, id } of hooks.sent.filter(({ path }) => path === '/all')) {
        expect(scheme.verify({ headers, body })).toMatchObject({ id })
        expect(body.toString()).toBe(`{"of":"${id}"}`)
        expect(headers).toMatchObject({ 'content-type': 'application/json', 'ce-id': id })
        expect(headers).not.toHaveProperty('tenant')
      }
    })

    test('what a transaction adds to the outbox arrives if it commits, and never if it is rolled back', async () => {
      const webhooks = sender()
      const outbox = createOutbox<unknown>({ store: open.store as never, source: 'shop', shards: 1 })
      await outbox.migrate()
      await endpoint(webhooks)
      const undone = await open.database.begin({ scope: 'test', id: newId() })
      await outbox.add(undone.tx, { topic: 'acme', type: 'order.placed', data: { total: 1 } })
      await undone.rollback()
      const done = await open.database.begin({ scope: 'test', id: newId() })
      const id = await outbox.add(done.tx, {
        topic: 'acme',
        type: 'order.placed',
        subject: 'Größe 100%',
        data: { total: 2 },
      })
      await done.commit()
      expect(await createRelay({ outbox, publisher: webhooks.publisher }).runOnce()).toMatchObject({ sent: 1 })
      await webhooks.runOnce()
      expect(hooks.sent).toHaveLength(1)
      expect(hooks.sent[0]).toMatchObject({
        id,
        headers: { 'ce-type': 'order.placed', 'ce-subject': 'Gr%C3%B6%C3%9Fe%20100%25' },
      })
      expect(JSON.parse(hooks.sent[0]!.body.toString())).toEqual({ total: 2 })
    })

    test('every attempt has the id of the event and a time of its own, and is kept with its status, its duration and the first bytes', async () => {
      let nowMs = 1_700_000_000_000
      const webhooks = sender({ clock: { ...systemClock, now: () => nowMs } })
      const { id: to } = await endpoint(webhooks)
      hooks.answer((_hook, res) => res.writeHead(hooks.sent.length < 3 ? 500 : 201).end('x'.repeat(5_000)))
      const event = message()
      await webhooks.publisher.publish([event])
      expect(await webhooks.runOnce()).toEqual({ ...nothing, again: 1 })
      for (const is of ['again', 'delivered'] as const) {
        nowMs += 60_000
        expect(await webhooks.runOnce()).toEqual(nothing)
        await makeDue()
        expect(await webhooks.runOnce()).toEqual({ ...nothing, [is]: 1 })
      }
      expect(hooks.ids()).toEqual([event.id, event.id, event.id])
      expect(hooks.sent.map(({ atMs }) => atMs - 1_700_000_000_000)).toEqual([0, 60_000, 120_000])
      const attempts = await webhooks.deliveries.attempts(event.id, to)
      expect(attempts.map(({ number, status, response }) => [number, status, response.length])).toEqual([
        [1, 500, 1_024],
        [2, 500, 1_024],
        [3, 201, 1_024],
      ])
      expect(await webhooks.deliveries.list()).toMatchObject([
        { id: event.id, endpoint: to, state: 'delivered', attempts: 3, status: 201 },
      ])
      expect(Buffer.from((await webhooks.deliveries.body(event.id))!)).toEqual(event.body)
    })

    test('the schedule is the published one with a tenth of jitter, and after the last attempt the delivery has failed', async () => {
      const hour = 3_600_000
      const pauses = [5_000, 300_000, hour / 2, 2 * hour, 5 * hour, 10 * hour, 14 * hour, 20 * hour, 24 * hour]
      const webhooks = sender()
      await endpoint(webhooks)
      hooks.answer((_hook, res) => res.writeHead(404).end())
      const event = message()
      await webhooks.publisher.publish([event])
      for (const pauseMs of pauses) {
        expect(await webhooks.runOnce()).toEqual({ ...nothing, again: 1 })
        const inMs = await dueInMs(event.id)
        expect(inMs).toBeGreaterThanOrEqual(pauseMs * 0.9)
        // The clock of the database may have gone on between two statements.
        expect(inMs).toBeLessThanOrEqual(pauseMs * 1.1 + 1_000)
        await makeDue()
      }
      expect(await webhooks.runOnce()).toEqual({ ...nothing, exhausted: 1 })
      await makeDue()
      expect(await webhooks.runOnce()).toEqual(nothing)
      expect(await webhooks.deliveries.list({ state: 'failed' })).toMatchObject([
        { id: event.id, attempts: 10, status: 404 },
      ])
    })

    test('Retry-After lengthens a pause up to an hour, and shortens none', async () => {
      const webhooks = sender()
      await endpoint(webhooks)
      const asked = ['600', '864000', '1']
      hooks.answer((_hook, res) => res.writeHead(503, { 'retry-after': asked[hooks.sent.length - 1] }).end())
      const event = message()
      await webhooks.publisher.publish([event])
      const pauses: number[] = []
      for (const _ of asked) {
        await webhooks.runOnce()
        pauses.push(await dueInMs(event.id))
        await makeDue()
      }
      expect(Math.abs(pauses[0]! - 600_000)).toBeLessThan(10_000)
      expect(Math.abs(pauses[1]! - 3_600_000)).toBeLessThan(10_000)
      expect(pauses[2]).toBeGreaterThanOrEqual(1_800_000 * 0.9)
    })

    test('of an endpoint in order a webhook that fails holds back those of its key and no others', async () => {
      const webhooks = sender()
      await endpoint(webhooks, { order: 'key' })
      const [a1, a2, b1, free] = [message({ key: 'a' }), message({ key: 'a' }), message({ key: 'b' }), message()]
      const a3 = message({ key: 'a' })
      let isDown = true
      hooks.answer(({ id }, res) => res.writeHead(isDown && id === a1.id ? 500 : 200).end())
      await webhooks.publisher.publish([a1, a2, b1, free, a3])
      expect(await webhooks.runOnce()).toEqual({ ...nothing, delivered: 2, again: 1 })
      expect(hooks.ids().toSorted()).toEqual([a1.id, b1.id, free.id].toSorted())
      isDown = false
      await makeDue()
      expect(await webhooks.runOnce()).toEqual({ ...nothing, delivered: 3 })
      expect(hooks.ids().slice(3)).toEqual([a1.id, a2.id, a3.id])
    })

    test('an endpoint has at most as many requests at once as it says', async () => {
      const webhooks = sender()
      await endpoint(webhooks, { concurrency: 3 })
      let [now, most] = [0, 0]
      const full = gate()
      hooks.answer(async (_hook, res) => {
        most = Math.max(most, ++now)
        if (now === 3) full.open()
        await full.passed
        now--
        res.end()
      })
      await webhooks.publisher.publish(Array.from({ length: 12 }, () => message()))
      expect(await webhooks.runOnce()).toEqual({ ...nothing, delivered: 12 })
      expect(most).toBe(3)
    })

    test('a sender that lost its endpoint records nothing, whatever its attempt came to', async () => {
      // Of an endpoint with room a sender asks again and again, and keeps its lease by that.
      const zombie = sender()
      const { id: to } = await endpoint(zombie, { concurrency: 1 })
      const answered = gate()
      hooks.answer(async (_hook, res) => {
        if (hooks.sent.length === 1) await answered.passed
        res.writeHead(hooks.sent.length === 1 ? 200 : 500).end()
      })
      const event = message()
      await zombie.publisher.publish([event])
      const late = zombie.runOnce()
      await eventually('the first attempt', () => hooks.sent.length === 1)
      const other = sender()
      expect(await other.runOnce()).toEqual(nothing)
      await ground.ask('update onceonly_webhooks_endpoints set lease_until_ms = 0')
      expect(await other.runOnce()).toEqual({ ...nothing, again: 1 })
      answered.open()
      expect(await soon('the zombie', late)).toEqual({ ...nothing, lost: 1 })
      expect(await other.deliveries.attempts(event.id, to)).toMatchObject([{ number: 1, status: 500 }])
      expect(await other.deliveries.list()).toMatchObject([{ state: 'pending', attempts: 1, status: 500 }])
    })

    test('410 disables an endpoint, its events wait, and they are sent when it is enabled', async () => {
      const webhooks = sender()
      const { id } = await endpoint(webhooks)
      hooks.answer((_hook, res) => res.writeHead(410).end())
      const [first, second] = [message(), message()]
      await webhooks.publisher.publish([first])
      expect(await webhooks.runOnce()).toEqual({ ...nothing, gone: 1 })
      expect(await webhooks.endpoints.get(id)).toMatchObject({ state: 'disabled', disabledReason: 'gone' })
      await webhooks.publisher.publish([second])
      await makeDue()
      expect(await webhooks.runOnce()).toEqual(nothing)
      hooks.answer((_hook, res) => res.end())
      expect(await webhooks.endpoints.enable(id, 'it moved back')).toBe(true)
      expect(await webhooks.runOnce()).toEqual({ ...nothing, delivered: 2 })
      expect(await webhooks.endpoints.get(id)).toMatchObject({ state: 'active', disabledReason: undefined })
      expect(await webhooks.endpoints.disable(id, 'no longer a customer')).toBe(true)
      expect(await webhooks.endpoints.get(id)).toMatchObject({ disabledReason: 'no longer a customer' })
      expect(await webhooks.endpoints.disable(newId(), 'no such')).toBe(false)
    })

    test('an endpoint of which every attempt failed for a time is disabled, and one success begins the time anew', async () => {
      const webhooks = sender({ disableAfterMs: 3_600_000 })
      const { id } = await endpoint(webhooks)
      let status = 500
      hooks.answer((_hook, res) => res.writeHead(status).end())
      const longAgo = (): Promise<unknown> =>
        ground.ask('update onceonly_webhooks_endpoints set failing_since_ms = 1 where failing_since_ms is not null')
      const sendOne = async (): Promise<void> => {
        await webhooks.publisher.publish([message()])
        await webhooks.runOnce()
      }
      await sendOne()
      expect(await webhooks.endpoints.get(id)).toMatchObject({ state: 'active', failingSinceMs: expect.any(Number) })
      await longAgo()
      status = 200
      await sendOne()
      expect(await webhooks.endpoints.get(id)).toMatchObject({ state: 'active', failingSinceMs: undefined })
      status = 500
      await sendOne()
      expect(await webhooks.endpoints.get(id)).toMatchObject({ state: 'active' })
      await longAgo()
      await sendOne()
      expect(await webhooks.endpoints.get(id)).toMatchObject({
        state: 'disabled',
        disabledReason: 'failing',
        disabledAtMs: expect.any(Number),
      })
    })

    test('a delivery is replayed by id and by range, with the same id and a schedule of its own, and its reason is on record', async () => {
      const webhooks = sender({ scheduleMs: [0] })
      const { id: to } = await endpoint(webhooks)
      await endpoint(webhooks, { topic: 'other', url: `${hooks.url}/other` })
      let status = 200
      hooks.answer((_hook, res) => res.writeHead(status).end())
      const [fine, lost1, lost2] = [message(), message(), message()]
      await webhooks.publisher.publish([fine])
      await webhooks.runOnce()
      status = 500
      await webhooks.publisher.publish([lost1, lost2, message({ topic: 'other' })])
      expect(await webhooks.runOnce()).toEqual({ ...nothing, exhausted: 3 })
      status = 200
      expect(await webhooks.deliveries.replay({ id: fine.id, endpoint: to }, 'the customer asked')).toBe(1)
      expect(await webhooks.runOnce()).toEqual({ ...nothing, delivered: 1 })
      expect(hooks.ids('/').filter((id) => id === fine.id)).toHaveLength(2)
      const audited = await open.store.audit({ scope: 'acme', id: fine.id })
      expect(audited).toMatchObject([{ reason: 'replay: the customer asked' }])
      const [from] = await ground.ask(`select added_at_ms from onceonly_webhooks_events where id = '${lost1.id}'`)
      expect(await webhooks.deliveries.replay({ topic: 'acme', untilMs: Number(from) })).toBe(0)
      expect(await webhooks.deliveries.replay({ topic: 'acme', fromMs: Number(from) })).toBe(2)
      expect(await webhooks.runOnce()).toEqual({ ...nothing, delivered: 2 })
      expect(await webhooks.deliveries.list({ state: 'failed' })).toMatchObject([{ topic: 'other' }])
      const counts = [{}, { endpoint: to, state: 'delivered' }, { topic: 'acme', limit: 2 }, { id: 'none' }] as const
      expect(await Promise.all(counts.map((filter) => webhooks.deliveries.count(filter)))).toEqual([4, 3, 2, 0])
      expect(await webhooks.deliveries.attempts(lost1.id, to)).toMatchObject([
        { status: 500 },
        { number: 2, status: 200 },
      ])
      await expect(webhooks.deliveries.replay({ limit: 5 })).rejects.toThrow('which? Give id, endpoint')
    })

    test('while a secret is changed every webhook is signed with the old and the new one', async () => {
      const webhooks = sender({
        codec: {
          encode: (value) => Buffer.from(String(value)).reverse(),
          decode: (bytes) => Buffer.from(bytes).reverse().toString(),
        },
      })
      const { id, secret: old } = await endpoint(webhooks)
      const [stored] = await ground.ask('select secrets from onceonly_webhooks_endpoints')
      expect(stored).not.toContain(old)
      const verifies = async (secret: string): Promise<boolean> => {
        await webhooks.publisher.publish([message()])
        await webhooks.runOnce()
        const { headers, body } = hooks.sent.at(-1)!
        try {
          standardWebhooks({ secrets: secret }).verify({ headers, body })
          return true
        } catch {
          return false
        }
      }
      const fresh = await webhooks.endpoints.rotate(id)
      expect(fresh).not.toBe(old)
      expect([await verifies(old), await verifies(fresh)]).toEqual([true, true])
      expect(await webhooks.endpoints.secrets(id)).toEqual([
        { secret: fresh },
        { secret: old, untilMs: expect.any(Number) },
      ])
      const last = await webhooks.endpoints.rotate(id, { keepOldMs: 0 })
      // The first one still has its day.
      expect((await webhooks.endpoints.secrets(id)).map(({ secret }) => secret)).toEqual([last, old])
      expect([await verifies(fresh), await verifies(last)]).toEqual([false, true])
      await expect(webhooks.endpoints.rotate(newId())).rejects.toThrow('there is no endpoint')
    })

    test('an endpoint is changed, and what was to be sent to one that is removed is not sent', async () => {
      const webhooks = sender()
      const { id } = await endpoint(webhooks)
      expect(
        await webhooks.endpoints.change(id, {
          url: `${hooks.url}/new`,
          types: ['order.*'],
          concurrency: 1,
          order: 'key',
        }),
      ).toBe(true)
      expect(await webhooks.endpoints.list({ topic: 'acme', state: 'active' })).toMatchObject([
        { id, url: `${hooks.url}/new`, types: ['order.*'], concurrency: 1, order: 'key' },
      ])
      await webhooks.publisher.publish([message({ type: 'invoice.paid' }), message()])
      await webhooks.runOnce()
      expect(hooks.sent.map(({ path }) => path)).toEqual(['/new'])
      await webhooks.publisher.publish([message()])
      expect(await webhooks.endpoints.remove(id)).toBe(true)
      expect(await webhooks.endpoints.remove(id)).toBe(false)
      expect(await webhooks.endpoints.change(id, { concurrency: 2 })).toBe(false)
      expect(await webhooks.runOnce()).toEqual(nothing)
      expect(await webhooks.deliveries.list({ state: 'failed' })).toHaveLength(1)
    })

    test('what waited too long is given up, and what ended long ago is removed', async () => {
      const webhooks = sender({ giveUpAfterMs: 3_600_000, keepMs: 7_200_000 })
      const { id } = await endpoint(webhooks)
      const [old, fresh] = [message(), message()]
      await webhooks.publisher.publish([old, fresh])
      await webhooks.endpoints.disable(id, 'a test')
      await ground.ask(`update onceonly_webhooks_deliveries set since_at_ms = 1 where event_id = '${old.id}'`)
      await webhooks.runOnce()
      await webhooks.endpoints.enable(id, 'a test')
      expect(await webhooks.runOnce()).toEqual({ ...nothing, delivered: 1 })
      expect(await webhooks.deliveries.list()).toMatchObject([
        { id: old.id, state: 'failed' },
        { id: fresh.id, state: 'delivered' },
      ])
      await ground.ask(`update onceonly_webhooks_deliveries set ended_at_ms = 1 where event_id = '${fresh.id}'`)
      await ground.ask('update onceonly_webhooks_events set added_at_ms = 1')
      await webhooks.runOnce()
      expect(await webhooks.deliveries.list()).toMatchObject([{ id: old.id }])
      expect(await ground.ask('select count(*) from onceonly_webhooks_attempts')).toEqual(['0'])
      expect(await ground.ask('select id from onceonly_webhooks_events')).toEqual([old.id])
    })

    test('an endpoint whose address is not public fails, and nothing connects to it', async () => {
      const webhooks = sender({ allow: [] })
      await expect(endpoint(webhooks)).rejects.toThrow('whose address is public or allowed')
      const { id } = await endpoint(webhooks, { url: hooks.url.replace('127.0.0.1', 'localhost') })
      const event = message()
      await webhooks.publisher.publish([event])
      expect(await webhooks.runOnce()).toEqual({ ...nothing, again: 1 })
      const [attempt] = await webhooks.deliveries.attempts(event.id, id)
      expect(attempt).toMatchObject({
        status: undefined,
        failure: expect.stringMatching(/^ADDRESS_REFUSED: localhost is .* not a public address/),
      })
      expect(hooks.sent).toEqual([])
    })

    test('secrets that cannot be read are a failure of their endpoint, and hold up no other', async () => {
      const webhooks = sender()
      const { id: broken } = await endpoint(webhooks, { url: `${hooks.url}/broken` })
      await endpoint(webhooks, { url: `${hooks.url}/fine` })
      await ground.ask(`update onceonly_webhooks_endpoints set secrets = '$codec:AAAA' where id = '${broken}'`)
      const event = message()
      await webhooks.publisher.publish([event])
      expect(await webhooks.runOnce()).toEqual({ ...nothing, delivered: 1, again: 1 })
      expect(hooks.ids('/fine')).toEqual([event.id])
      expect(await webhooks.deliveries.attempts(event.id, broken)).toMatchObject([
        { failure: expect.stringContaining('could not be signed') },
      ])
    })

    test('several senders that run at once share the endpoints: each event is sent to each endpoint once', async () => {
      const [first, second] = [sender(), sender()]
      for (const path of ['/1', '/2', '/3']) await endpoint(first, { url: `${hooks.url}${path}` })
      first.start()
      second.start()
      const events = Array.from({ length: 30 }, () => message())
      for (let at = 0; at < events.length; at += 10) await first.publisher.publish(events.slice(at, at + 10))
      await eventually(
        'all of them',
        async () => (await first.deliveries.list({ state: 'delivered', limit: 500 })).length === 90,
      )
      await Promise.all([first.stop(), second.stop()])
      for (const path of ['/1', '/2', '/3']) {
        expect(hooks.ids(path).toSorted()).toEqual(events.map(({ id }) => id).toSorted())
      }
      expect(
        await ground.ask('select count(*) from onceonly_webhooks_endpoints where lease_until_ms > 9000000000000'),
      ).toEqual(['0'])
    })
  })
}

test('options are checked, and a store without SQL is refused', () => {
  expect(() => createWebhookSender({ store: memoryStore() })).toThrow(
    'needs a store on PostgreSQL, MySQL, MariaDB or SQLite',
  )
  expect(() => createWebhookSender({ store: memoryStore(), scheduleMs: [] })).toThrow('one for each attempt')
  expect(() => createWebhookSender({ store: memoryStore(), allow: ['10.0.0.0/99'] })).toThrow('a range such as')
})

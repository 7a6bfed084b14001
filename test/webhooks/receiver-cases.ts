// What a receiver of webhooks must do on every SQL database. A case is given a subject of its own.
import { createHmac } from 'node:crypto'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createOnce } from '../../src/index.ts'
import type { Answer } from '../../src/http/exchange.ts'
import { createWebhookReceiver, stripeWebhooks } from '../../src/webhooks.ts'
import type { WebhookEvent, WebhookReceiver, WebhookReceiverOptions, WebhookRequest } from '../../src/webhooks.ts'
import { eventually } from '../messages/eventually.ts'
import { insertEffect, type MessagesGround, type OpenStore, type SqlStore } from '../messages/grounds.ts'
import { scheme, secret, sent, signer } from './signed.ts'

type Effect = (name: string) => Promise<void>
type Handler = (effect: Effect, event: WebhookEvent) => unknown

export interface Process {
  readonly receiver: WebhookReceiver
  readonly open: OpenStore
}

export interface ReceiverSubject {
  readonly ground: MessagesGround
  /** Another process of the same service. The handler writes one effect by the id of the event unless given. */
  process(options?: Partial<WebhookReceiverOptions>, handler?: Handler): Promise<Process>
  /** How many marks there are of this subject. */
  marks(): Promise<number>
  close(): Promise<void>
}

let run = 0

export async function receiverSubject(ground: MessagesGround): Promise<ReceiverSubject> {
  const opened: OpenStore[] = []
  // A scope of its own for every case: what one leaves is not seen by another.
  const scope = `hooks-${process.pid}-${++run}`
  await ground.ask('delete from effects')
  return {
    ground,
    async process(options, handler = (effect, { id }) => effect(id)) {
      const open = await ground.openStore()
      opened.push(open)
      const once = createOnce<SqlStore>({ store: open.store, scope, leaseMs: 1_000, sweepEveryMs: false })
      const receiver = createWebhookReceiver<SqlStore>(once, { consumer: 'shop', scheme, ...options }, (tx, event) =>
        handler((name) => insertEffect(ground, open.database, tx, name), event),
      ) as WebhookReceiver
      await receiver.migrate()
      return { receiver, open }
    },
    async marks() {
      const rows = await ground.ask('select scope from onceonly_inbox')
      return rows.filter((row) => Buffer.from(row).toString().includes(scope)).length
    },
    async close() {
      await ground.proxy?.setMode('pass')
      for (const open of opened) await open[Symbol.asyncDispose]()
    },
  }
}

/** What a sender sees of an answer. */
export function shown({ status, headers, body }: Answer): {
  status: number
  is?: string
  code?: string
  retryAfter?: string
} {
  // Senders disable an endpoint that says 410.
  expect(status).not.toBe(410)
  const { is, code } = JSON.parse(Buffer.from(body).toString()) as { is?: string; code?: string }
  const retryAfter = headers.find(([name]) => name === 'Retry-After')?.[1]
  return { status, ...(is && { is }), ...(code && { code }), ...(retryAfter && { retryAfter }) }
}

export const receiverCases: Readonly<Record<string, (subject: ReceiverSubject) => Promise<void>>> = {
  async 'an event that comes again has one effect, and is answered 200'({ ground, process }) {
    const [one, two] = [await process(), await process()]
    expect(shown(await one.receiver.respond(sent('e1')))).toEqual({ status: 200, is: 'handled' })
    expect(shown(await one.receiver.respond(sent('e1')))).toEqual({ status: 200, is: 'duplicate' })
    expect(shown(await two.receiver.respond(sent('e1')))).toEqual({ status: 200, is: 'duplicate' })
    expect(await ground.effects()).toEqual(['e1'])
  },

  async 'twenty deliveries of an event at once through two processes have one effect'({ ground, process }) {
    const processes = [await process(), await process()]
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, index) => processes[index % 2]!.receiver.respond(sent('e1'))),
    )
    const statuses = answers.map(shown)
    expect(statuses.filter(({ is }) => is === 'handled')).toHaveLength(1)
    // The others were duplicates, or came while it was in hand.
    for (const { status, is } of statuses) expect([200, 503]).toContain(is === undefined ? status : 200)
    expect(await ground.effects()).toEqual(['e1'])
  },

  async 'what is not authenticated leaves no mark and reaches no handler'({ ground, process, marks }) {
    let calls = 0
    const { receiver } = await process({}, (effect, { id }) => (calls++, effect(id)))
    const { headers, body } = sent('e1')
    const forged: WebhookRequest[] = [
      { headers, body: Buffer.from('{"event":"another"}') },
      { headers: { ...headers, 'webhook-id': 'e2' } as Record<string, string>, body },
      { headers: {}, body },
      { headers: { ...signer.sign({ id: 'e1', sentAtMs: Date.now() - 3_600_000, body }) }, body },
    ]
    for (const request of forged)
      expect(shown(await receiver.respond(request))).toEqual({ status: 401, code: 'webhook-unauthenticated' })
    expect(calls).toBe(0)
    expect(await marks()).toBe(0)
    expect(await ground.effects()).toEqual([])
    expect(shown(await receiver.respond({ headers, body }))).toEqual({ status: 200, is: 'handled' })
    expect(await marks()).toBe(1)
  },

  async 'a handler that fails does not burn the id, and what it wrote is gone'({ ground, process }) {
    let failures = 2
    const { receiver } = await process({}, async (effect, { id }) => {
      await effect(id)
      if (failures-- > 0) throw new Error('the mail server is down')
    })
    const { status, body } = await receiver.respond(sent('e1'))
    expect(status).toBe(500)
    expect(Buffer.from(body).toString()).not.toContain('mail server')
    expect(await ground.effects()).toEqual([])
    expect((await receiver.respond(sent('e1'))).status).toBe(500)
    expect(shown(await receiver.respond(sent('e1')))).toEqual({ status: 200, is: 'handled' })
    expect(await ground.effects()).toEqual(['e1'])
  },

  async 'an event that fails too often is parked, its sender is told that it is kept, and a person can redrive it'({
    ground,
    process,
  }) {
    let isDown = true
    const { receiver } = await process({ attempts: 2 }, async (effect, { id, json }) => {
      if (isDown) throw new Error('poison')
      await effect(`${id} ${JSON.stringify(json())}`)
    })
    expect((await receiver.respond(sent('e1'))).status).toBe(500)
    const parked = { status: 200, is: 'refused', code: 'PARKED' }
    expect(shown(await receiver.respond(sent('e1')))).toEqual(parked)
    expect(shown(await receiver.respond(sent('e1')))).toEqual(parked)
    expect(await receiver.inbox.parked()).toMatchObject([{ id: 'e1', code: 'ATTEMPTS', detail: 'poison' }])
    isDown = false
    expect(await receiver.inbox.redrive({}, 'the handler is mended')).toBe(1)
    expect(await receiver.runRedriven()).toBe(1)
    expect(await ground.effects()).toEqual(['e1 {"event":"e1"}'])
    expect(shown(await receiver.respond(sent('e1')))).toEqual({ status: 200, is: 'duplicate' })
  },

  async 'the same id with another body is parked, and never run'({ ground, process }) {
    const { receiver } = await process()
    await receiver.respond(sent('e1'))
    expect(shown(await receiver.respond(sent('e1', '{"event":"other"}')))).toEqual({
      status: 200,
      is: 'refused',
      code: 'MISMATCH',
    })
    expect(await ground.effects()).toEqual(['e1'])
    expect(await receiver.inbox.parked()).toMatchObject([{ id: 'e1', code: 'MISMATCH' }])
  },

  async 'an event of Stripe is known by its id alone, and one from before the window is not run'({ ground, process }) {
    const { receiver } = await process({ scheme: stripeWebhooks({ secrets: secret }) })
    const nowSeconds = Math.floor(Date.now() / 1_000)
    const event = (id: string, created: number, pending: number): WebhookRequest => {
      const body = JSON.stringify({ id, created, pending_webhooks: pending })
      const v1 = createHmac('sha256', secret).update(`${nowSeconds}.${body}`).digest('hex')
      return { headers: { 'stripe-signature': `t=${nowSeconds},v1=${v1}` }, body: Buffer.from(body) }
    }
    expect(shown(await receiver.respond(event('evt_1', nowSeconds, 2)))).toEqual({ status: 200, is: 'handled' })
    expect(shown(await receiver.respond(event('evt_1', nowSeconds, 1)))).toEqual({ status: 200, is: 'duplicate' })
    const old = event('evt_0', nowSeconds - 8 * 86_400, 1)
    expect(shown(await receiver.respond(old))).toEqual({ status: 200, is: 'refused', code: 'TOO_OLD' })
    expect(await ground.effects()).toEqual(['evt_1'])
  },

  async 'the headers of a CloudEvent do not change the id that was signed'({ ground, process }) {
    const { receiver } = await process()
    for (const id of ['x', 'y']) {
      const { headers, body } = sent('e1')
      await receiver.respond({ headers: { ...headers, 'ce-id': id, 'ce-source': 's' } as Record<string, string>, body })
    }
    expect(await ground.effects()).toEqual(['e1'])
  },

  async 'when queued: the sender is answered before the handler ends, and a duplicate is queued once'({
    ground,
    process,
  }) {
    const gate = Promise.withResolvers<void>()
    const { receiver } = await process({ acknowledge: 'when-queued' }, async (effect, { id }) => {
      await gate.promise
      await effect(id)
    })
    expect(shown(await receiver.respond(sent('e1')))).toEqual({ status: 202, is: 'queued' })
    expect(shown(await receiver.respond(sent('e1')))).toEqual({ status: 202, is: 'queued' })
    expect(await ground.effects()).toEqual([])
    gate.resolve()
    await eventually('the effect', async () => (await ground.effects()).length === 1)
    expect(shown(await receiver.respond(sent('e1')))).toEqual({ status: 202, is: 'queued' })
    const worker = receiver.work({ everyMs: 50 })
    // What comes later has passed the same queue.
    await receiver.respond(sent('e2'))
    await eventually('the second effect', async () => (await ground.effects()).includes('e2'))
    await worker.stop()
    expect(await ground.effects()).toEqual(['e1', 'e2'])
  },

  async 'when queued: a handler that fails is tried again, and then parked'({ ground, process }) {
    let calls = 0
    const { receiver } = await process({ acknowledge: 'when-queued', attempts: 2 }, async (effect, { id }) => {
      calls++
      await effect(id)
      throw new Error('poison')
    })
    const worker = receiver.work({ everyMs: 50 })
    expect(shown(await receiver.respond(sent('e1')))).toEqual({ status: 202, is: 'queued' })
    await eventually('it is parked', async () => (await receiver.inbox.parked()).length === 1)
    await worker.stop()
    expect(calls).toBe(2)
    expect(await ground.effects()).toEqual([])
  },

  async 'an event that was handled before is a duplicate for the queue, too'({ ground, process }) {
    const after = await process()
    await after.receiver.respond(sent('e1'))
    const queued = await process({ acknowledge: 'when-queued' })
    const worker = queued.receiver.work({ everyMs: 50 })
    await queued.receiver.respond(sent('e1'))
    await queued.receiver.respond(sent('e2'))
    await eventually('a second effect', async () => (await ground.effects()).length > 1)
    await worker.stop()
    expect(await ground.effects()).toEqual(['e1', 'e2'])
  },
}

/** SQLite has one writer: a second delivery waits for it, and is told that the store is busy. */
export const serverCases: typeof receiverCases = {
  async 'a database that is gone is 503 with Retry-After, and the event is handled when it is back'({
    ground,
    process,
  }) {
    const { receiver } = await process()
    await ground.proxy!.setMode('refuse')
    ground.proxy!.resetConnections()
    expect(shown(await receiver.respond(sent('e1')))).toEqual({
      status: 503,
      code: 'webhook-store-unavailable',
      retryAfter: '1',
    })
    await ground.proxy!.setMode('pass')
    expect(shown(await receiver.respond(sent('e1')))).toEqual({ status: 200, is: 'handled' })
    expect(await ground.effects()).toEqual(['e1'])
  },

  async 'an event that is in hand is answered 503 with Retry-After, and 200 when it is settled'({ ground, process }) {
    const entered = Promise.withResolvers<void>()
    const gate = Promise.withResolvers<void>()
    const { receiver } = await process({ attemptMs: 5_000 }, async (effect, { id }) => {
      entered.resolve()
      await gate.promise
      await effect(id)
    })
    const first = receiver.respond(sent('e1'))
    await entered.promise
    const second = shown(await receiver.respond(sent('e1')))
    gate.resolve()
    expect(second).toEqual({ status: 503, code: 'webhook-in-progress', retryAfter: '1' })
    expect(shown(await first)).toEqual({ status: 200, is: 'handled' })
    expect(shown(await receiver.respond(sent('e1')))).toEqual({ status: 200, is: 'duplicate' })
    expect(await ground.effects()).toEqual(['e1'])
  },
}

/** Where closing a store is the death of its process, as far as the database can tell. */
export const embeddedCases: typeof receiverCases = {
  async 'when queued: an event that could not be stored is not acknowledged'({ process }) {
    const { receiver, open } = await process({ acknowledge: 'when-queued' })
    await open.die()
    expect((await receiver.respond(sent('e1'))).status).toBeGreaterThanOrEqual(500)
  },

  async 'when queued: what a process that died had taken is handled by a worker of another one'({ ground, process }) {
    const entered = Promise.withResolvers<void>()
    const dead = await process({ acknowledge: 'when-queued' }, async () => {
      entered.resolve()
      await new Promise(() => {})
    })
    expect(shown(await dead.receiver.respond(sent('e1')))).toEqual({ status: 202, is: 'queued' })
    await entered.promise
    await dead.open.die()
    const other = await process({ acknowledge: 'when-queued' })
    const worker = other.receiver.work({ everyMs: 50 })
    await eventually('the effect', async () => (await ground.effects()).length > 0)
    await worker.stop()
    expect(await ground.effects()).toEqual(['e1'])
  },
}

/** A test for each case, on a ground that all of them share. */
export function testReceiver(start: () => Promise<MessagesGround>, cases: typeof receiverCases): void {
  let ground: MessagesGround
  beforeAll(async () => {
    ground = await start()
  })
  afterAll(() => ground[Symbol.asyncDispose]())
  for (const [what, check] of Object.entries(cases)) {
    test(what, async () => {
      const subject = await receiverSubject(ground)
      try {
        await check(subject)
      } finally {
        await subject.close()
      }
    })
  }
}

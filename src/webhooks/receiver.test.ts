// The receiver of webhooks on the stores that need no server.

import { createHmac } from 'node:crypto'
import { describe, expect, test } from 'vitest'
import { startSqliteMessages } from '../../test/messages/grounds.ts'
import { embeddedCases, receiverCases, shown, testReceiver } from '../../test/webhooks/receiver-cases.ts'
import { scheme, sent } from '../../test/webhooks/signed.ts'
import { createOnce } from '../core/once.ts'
import { memoryStore } from '../stores/memory.ts'
import { manualClock } from '../testing/manual-clock.ts'
import {
  createWebhookReceiver,
  createWebhookSigner,
  newWebhookSecret,
  slackWebhooks,
  standardWebhooks,
} from '../webhooks.ts'
import type { WebhookReceiver, WebhookReceiverOptions } from '../webhooks.ts'

describe('on SQLite', () => {
  testReceiver(startSqliteMessages, { ...receiverCases, ...embeddedCases })
})

const hourMs = 3_600_000
const dayMs = 24 * hourMs

function inMemory(
  options: Partial<WebhookReceiverOptions> = {},
  handler: () => unknown = () => undefined,
): WebhookReceiver<undefined> {
  const once = createOnce({ store: memoryStore(), scope: 'shop', sweepEveryMs: false })
  return createWebhookReceiver(once, { consumer: 'hooks', scheme, ...options }, handler)
}

test('an id is remembered for the whole schedule of Standard Webhooks, of which 5 minutes are the first two attempts', async () => {
  const clock = manualClock()
  const secrets = newWebhookSecret()
  const signer = createWebhookSigner({ secrets })
  const once = createOnce({ store: memoryStore({ clock }), scope: 'shop', clock })
  let effects = 0
  const options = { consumer: 'hooks', scheme: standardWebhooks({ secrets, clock }), clock }
  const receiver = createWebhookReceiver(once, options, () => effects++)
  const body = Buffer.from('{}')
  const deliver = async (): Promise<string> =>
    (await receiver.receive({ headers: { ...signer.sign({ id: 'e1', sentAtMs: clock.now(), body }) }, body })).is
  expect(await deliver()).toBe('handled')
  // 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h and 24 h after the attempt before: 75 hours and 35 minutes.
  for (const pauseMs of [5_000, 300_000, 1_800_000, ...[2, 5, 10, 14, 20, 24].map((hours) => hours * hourMs)]) {
    await clock.advance(pauseMs)
    expect(await deliver()).toBe('duplicate')
  }
  expect(effects).toBe(1)
  await once.close()
})

test('a window that is shorter than the retries of the sender is refused', () => {
  expect(() => inMemory({ windowMs: 5 * 60_000 })).toThrow(
    /remembered for windowMs 300000 \(5 min\), and its sender may send it again for horizonMs 345600000 \(4 d\): the last retry would run/,
  )
  expect(() => inMemory({ windowMs: 4 * dayMs })).not.toThrow()
  expect(() => inMemory({ horizonMs: 10 * dayMs })).toThrow('horizonMs 864000000 (10 d)')
  expect(() => inMemory({ horizonMs: 10 * dayMs, windowMs: 10 * dayMs })).not.toThrow()
})

test('on a store that keeps no parked events, the sender is told to keep it, unless a dead-letter function takes it', async () => {
  const poison = (): never => {
    throw new Error('poison')
  }
  const lone = inMemory({ attempts: 1 }, poison)
  expect(shown(await lone.respond(sent('e1')))).toEqual({ status: 500, code: 'webhook-refused' })
  const dead: string[] = []
  const kept = inMemory({ attempts: 1, deadLetter: ({ id }, { code }) => dead.push(`${id} ${code}`) }, poison)
  expect(shown(await kept.respond(sent('e1')))).toEqual({ status: 200, is: 'refused', code: 'PARKED' })
  expect(dead).toEqual(['e1 ATTEMPTS'])
})

test('in memory, an event that is in hand is answered 503 with Retry-After, and 200 when it is settled', async () => {
  const gate = Promise.withResolvers<void>()
  const receiver = inMemory({}, () => gate.promise)
  const first = receiver.respond(sent('e1'))
  expect(shown(await receiver.respond(sent('e1')))).toEqual({
    status: 503,
    code: 'webhook-in-progress',
    retryAfter: '1',
  })
  gate.resolve()
  expect(shown(await first)).toEqual({ status: 200, is: 'handled' })
  expect(shown(await receiver.respond(sent('e1')))).toEqual({ status: 200, is: 'duplicate' })
})

test('a handshake of Slack is answered with its challenge, and is no event', async () => {
  let calls = 0
  const nowMs = 1_700_000_000_000
  const secrets = '8f742231b10e8888abcd99yyyzzz85a5'
  const receiver = inMemory({ scheme: slackWebhooks({ secrets, clock: { now: () => nowMs } }) }, () => calls++)
  const text = '{"type":"url_verification","challenge":"3eZbrw"}'
  const signature = createHmac('sha256', secrets)
    .update(`v0:${nowMs / 1_000}:${text}`)
    .digest('hex')
  const headers = { 'x-slack-signature': `v0=${signature}`, 'x-slack-request-timestamp': String(nowMs / 1_000) }
  const { status, body } = await receiver.respond({ headers, body: Buffer.from(text) })
  expect([status, Buffer.from(body).toString(), calls]).toEqual([200, '3eZbrw', 0])
})

test('wrong options are refused by name', () => {
  expect(() => inMemory({ consumer: 'a b' })).toThrow('expected consumer to be')
  expect(() => inMemory({ scheme: {} as never })).toThrow('expected scheme to be an object with the methods verify')
  expect(() => inMemory({ acknowledge: 'fast' as never })).toThrow('"after-effect" or "when-queued"')
  expect(() => inMemory({ horizon: 5 } as never)).toThrow('unknown option "horizon", did you mean "horizonMs"?')
  expect(() => inMemory({}, 5 as never)).toThrow('expected a handler')
  expect(() => inMemory().work()).toThrow("nothing is queued with acknowledge 'after-effect'")
})

test('a body that was parsed is thrown to the framework, and not answered as a wrong signature', async () => {
  const { headers } = sent('e1')
  await expect(inMemory().respond({ headers, body: {} as Uint8Array })).rejects.toThrow(
    'verify before a body parser runs',
  )
})

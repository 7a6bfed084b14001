// The schemes of well-known senders: what each accepts, and that nothing else passes.

import { createHmac } from 'node:crypto'
import Stripe from 'stripe'
import { describe, expect, test } from 'vitest'
import {
  githubWebhooks,
  hmacWebhooks,
  onlyHeader,
  shopifyWebhooks,
  slackWebhooks,
  stripeWebhooks,
} from '../webhooks.ts'
import type { WebhookScheme } from '../webhooks.ts'

const nowMs = 1_700_000_000_000
const seconds = String(nowMs / 1_000)
const clock = { now: () => nowMs }
const secret = 'a secret of theirs'
const digest = (encoding: 'hex' | 'base64', text: string, key = secret): string =>
  createHmac('sha256', key).update(text).digest(encoding)

interface Sent {
  readonly headers: Record<string, string>
  readonly body: Uint8Array
}

const stripeBody = '{"id":"evt_1","object":"event","created":1699999000,"pending_webhooks":1}'
const slackBody = '{"type":"event_callback","event_id":"Ev1","event_time":1699999000}'

interface Subject {
  readonly name: string
  readonly make: (secrets: string | readonly string[]) => WebhookScheme
  readonly signature: string
  readonly sent: (key?: string) => Sent
  readonly verified: object
}

const subjects: readonly Subject[] = [
  {
    name: 'stripe',
    make: (secrets) => stripeWebhooks({ secrets, clock }),
    signature: 'stripe-signature',
    sent: (key) => ({
      headers: { 'stripe-signature': `t=${seconds},v1=${digest('hex', `${seconds}.${stripeBody}`, key)},v0=junk` },
      body: Buffer.from(stripeBody),
    }),
    verified: { id: 'evt_1', sentAtMs: nowMs, occurredAtMs: 1_699_999_000_000, content: 'evt_1' },
  },
  {
    name: 'github',
    make: (secrets) => githubWebhooks({ secrets }),
    signature: 'x-hub-signature-256',
    sent: (key) => ({
      headers: { 'x-hub-signature-256': `sha256=${digest('hex', '{}', key)}`, 'x-github-delivery': 'd1' },
      body: Buffer.from('{}'),
    }),
    verified: { id: 'd1' },
  },
  {
    name: 'shopify',
    make: (secrets) => shopifyWebhooks({ secrets }),
    signature: 'x-shopify-hmac-sha256',
    sent: (key) => ({
      headers: {
        'x-shopify-hmac-sha256': digest('base64', '{}', key),
        'x-shopify-topic': 'orders/create',
        'x-shopify-event-id': 'e1',
      },
      body: Buffer.from('{}'),
    }),
    verified: { id: 'orders/create/e1' },
  },
  {
    name: 'slack',
    make: (secrets) => slackWebhooks({ secrets, clock }),
    signature: 'x-slack-signature',
    sent: (key) => ({
      headers: {
        'x-slack-signature': `v0=${digest('hex', `v0:${seconds}:${slackBody}`, key)}`,
        'x-slack-request-timestamp': seconds,
      },
      body: Buffer.from(slackBody),
    }),
    verified: { id: 'Ev1', sentAtMs: nowMs, occurredAtMs: 1_699_999_000_000 },
  },
]

function refusal(scheme: WebhookScheme, sent: Sent): string {
  try {
    scheme.verify(sent)
  } catch (error) {
    expect(error).toMatchObject({ code: 'UNAUTHENTICATED', executed: 'no' })
    return (error as Error).message
  }
  return 'accepted'
}

describe.each(subjects)('$name', ({ name, make, signature, sent, verified }) => {
  test('is verified, with any of several secrets', () => {
    expect(make(secret).verify(sent())).toEqual(verified)
    expect(make(['another', secret]).verify(sent())).toEqual(verified)
    expect(refusal(make(secret), sent('another'))).toContain(`no signature of ${name} is from one of our 1 secrets`)
  })

  test('is refused with another body, and with a signature that is missing, twice, cut, in another case or of junk', () => {
    const { headers, body } = sent()
    const value = headers[signature]!
    const withSignature = (given: string): string =>
      refusal(make(secret), { body, headers: { ...headers, [signature]: given } })
    expect(refusal(make(secret), { headers, body: Buffer.concat([body, Buffer.from(' ')]) })).toContain('no signature')
    const { [signature]: _, ...without } = headers
    expect(refusal(make(secret), { headers: without, body })).toContain(`the header ${signature} is missing`)
    for (const wrong of [`${value}, ${value}`, value.replaceAll(/[a-f]/g, (letter) => letter.toUpperCase()), 'junk'])
      expect(withSignature(wrong)).not.toBe('accepted')
    const cut = value.replace(/[0-9a-zA-Z+/]{10}(?==?(,v0.*)?$)/, '')
    expect(cut).not.toBe(value)
    expect(withSignature(cut)).not.toBe('accepted')
    expect(withSignature('x'.repeat(5_000))).toContain('5000 characters')
  })

  test('takes no empty secret, none with a line end, and no parsed body', () => {
    for (const wrong of ['', ' ', `${secret}\n`, [], [secret, ''], undefined, 5])
      expect(() => make(wrong as string)).toThrow(/expected (a secret|secrets) to/)
    const parsed = { ...sent(), body: { id: 'evt_1' } as unknown as Uint8Array }
    expect(() => make(secret).verify(parsed)).toThrow('verify before a body parser runs')
  })
})

describe.each(subjects.filter(({ name }) => name === 'stripe' || name === 'slack'))(
  'the time of $name',
  ({ sent, name }) => {
    test('may be away by the tolerance in both directions', () => {
      const at = (now: number): WebhookScheme => {
        const options = { secrets: secret, clock: { now: () => now } }
        return name === 'stripe' ? stripeWebhooks(options) : slackWebhooks(options)
      }
      for (const away of [-300_000, 300_000]) {
        expect(refusal(at(nowMs + away), sent())).toBe('accepted')
        expect(refusal(at(nowMs + away + Math.sign(away)), sent())).toContain('the tolerance is 300 s')
      }
    })
  },
)

test('stripe: two times, none, a time with junk, and too many parts are refused', () => {
  const scheme = stripeWebhooks({ secrets: secret, clock })
  const given = (header: string): string =>
    refusal(scheme, { headers: { 'stripe-signature': header }, body: Buffer.from(stripeBody) })
  const v1 = `v1=${digest('hex', `${seconds}.${stripeBody}`)}`
  expect(given(`t=${seconds},${v1}`)).toBe('accepted')
  expect(given(`t=${seconds},v1=${'0'.repeat(64)},${v1}`)).toBe('accepted')
  expect(given(`t=1,t=${seconds},${v1}`)).toContain('2 times (t=)')
  expect(given(v1)).toContain('0 times (t=)')
  expect(given(`t=${seconds}x,${v1}`)).toContain('must be an integer of seconds')
  expect(given(`t=${seconds},${Array.from({ length: 20 }, () => v1).join(',')}`)).toContain('21 parts')
  expect(given(`t=${seconds},${v1.replace('v1', 'v0')}`)).toContain('no signature')
})

test('stripe-node verifies the same, and what it signs is verified', () => {
  const stripe = new Stripe('sk_test_nothing')
  const at = Math.floor(Date.now() / 1_000)
  const header = stripe.webhooks.generateTestHeaderString({ payload: stripeBody, secret, timestamp: at })
  const scheme = stripeWebhooks({ secrets: secret })
  const body = Buffer.from(stripeBody)
  expect(scheme.verify({ headers: { 'stripe-signature': header }, body }).id).toBe('evt_1')
  const ours = `t=${at},v1=${digest('hex', `${at}.${stripeBody}`)}`
  expect(ours).toBe(header)
  expect(stripe.webhooks.constructEvent(body, ours, secret).id).toBe('evt_1')
  for (const wrong of [ours.replace(/.$/, (last) => (last === '0' ? '1' : '0')), ours.replace('v1=', 'v0=')]) {
    expect(() => stripe.webhooks.constructEvent(body, wrong, secret)).toThrow()
    expect(refusal(scheme, { headers: { 'stripe-signature': wrong }, body })).toContain('no signature of stripe')
  }
})

test('slack: a verified url_verification is a handshake, and an unverified one is nothing', () => {
  const scheme = slackWebhooks({ secrets: secret, clock })
  const text = '{"type":"url_verification","challenge":"3eZbrw"}'
  const headers = (key = secret): Record<string, string> => ({
    'x-slack-signature': `v0=${digest('hex', `v0:${seconds}:${text}`, key)}`,
    'x-slack-request-timestamp': seconds,
  })
  expect(scheme.verify({ headers: headers(), body: Buffer.from(text) }).handshake).toBe('3eZbrw')
  expect(refusal(scheme, { headers: headers('wrong'), body: Buffer.from(text) })).toContain('no signature')
})

test('an event without an id is refused with what to do, and idOf finds another', () => {
  const text = 'payload=%7B%22trigger_id%22%3A%2213345224609%22%7D'
  const sent = {
    headers: {
      'x-slack-signature': `v0=${digest('hex', `v0:${seconds}:${text}`)}`,
      'x-slack-request-timestamp': seconds,
    },
    body: Buffer.from(text),
  }
  expect(refusal(slackWebhooks({ secrets: secret, clock }), sent)).toContain('Give the scheme an idOf that finds one')
  const idOf = ({ body }: { readonly body: Uint8Array }): string =>
    (JSON.parse(new URLSearchParams(Buffer.from(body).toString()).get('payload')!) as { trigger_id: string }).trigger_id
  expect(slackWebhooks({ secrets: secret, clock, idOf }).verify(sent).id).toBe('13345224609')
})

test('any other sender is a function away', () => {
  const linear = hmacWebhooks({
    name: 'linear',
    secrets: secret,
    header: 'Linear-Signature',
    encoding: 'hex',
    idOf: (request) => onlyHeader(request, 'linear-delivery'),
  })
  const headers = { 'linear-signature': digest('hex', '{}'), 'linear-delivery': 'l1' }
  expect(linear.verify({ headers, body: Buffer.from('{}') })).toEqual({ id: 'l1' })
  expect(refusal(linear, { headers, body: Buffer.from('{ }') })).toContain('no signature of linear')
})

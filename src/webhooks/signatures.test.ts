// Standard Webhooks: what is verified is what was signed, byte for byte. That the official package agrees: test/webhooks/official.test.ts.

import { createHmac } from 'node:crypto'
import { describe, expect, test } from 'vitest'
import { createWebhookSigner, newWebhookKeyPair, newWebhookSecret, standardWebhooks } from '../webhooks.ts'
import type { WebhookHeaderSource, WebhookScheme, WebhookSecret } from '../webhooks.ts'

const secret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'
const nowMs = 1_700_000_000_000
const clock = { now: () => nowMs }
const body = Buffer.from('{"test": 2432232314}')
const scheme = standardWebhooks({ secrets: secret, clock })
const signed = (given: Partial<{ id: string; sentAtMs: number; body: Uint8Array }> = {}): Record<string, string> => ({
  ...createWebhookSigner({ secrets: secret }).sign({ id: 'msg_1', sentAtMs: nowMs, body, ...given }),
})

/** The headers that sign any id and any time, well-formed or not. */
function forged(id: string, timestamp: string, bytes: Uint8Array = body): Record<string, string> {
  const key = Buffer.from(secret.slice(6), 'base64')
  const signature = createHmac('sha256', key).update(`${id}.${timestamp}.`).update(bytes).digest('base64')
  return { 'webhook-id': id, 'webhook-timestamp': timestamp, 'webhook-signature': `v1,${signature}` }
}

function refusal(headers: WebhookHeaderSource, bytes: Uint8Array = body, by: WebhookScheme = scheme): string {
  try {
    by.verify({ headers, body: bytes })
  } catch (error) {
    expect(error).toMatchObject({ code: 'UNAUTHENTICATED', executed: 'no', retryable: false })
    return (error as Error).message
  }
  return 'accepted'
}

describe('a signature', () => {
  test('is verified, and gives the id and the time that were signed', () => {
    expect(scheme.verify({ headers: signed(), body })).toEqual({ id: 'msg_1', sentAtMs: nowMs })
    expect(scheme.verify({ headers: new Headers(signed()), body })).toEqual({ id: 'msg_1', sentAtMs: nowMs })
  })

  test('is the one of the published vectors', () => {
    const vectors = [
      [1_614_265_330, '{"test": 2432232314}', 'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='],
      [
        1_696_200_454,
        '{"type": "example.created", "timestamp":"2023-09-28T19:20:22+00:00", "data":{"str":"string","bool":true,"int":42}}',
        'v1,GgjvufBlIj71MBIVQotYGb+xEC3LNXCsIZp0HsDC8qs=',
      ],
    ] as const
    for (const [seconds, text, signature] of vectors) {
      const id = 'msg_p5jXN8AQM9LWM0D4loKWxJek'
      const headers = signed({ id, sentAtMs: seconds * 1_000, body: Buffer.from(text) })
      expect(headers['webhook-signature']).toBe(signature)
      const then = standardWebhooks({ secrets: secret, clock: { now: () => seconds * 1_000 } })
      expect(then.verify({ headers: { ...headers }, body: Buffer.from(text) }).id).toBe(id)
    }
  })

  test('covers every byte of the body, also what is not UTF-8', () => {
    const bytes = Buffer.from([0x7b, 0xff, 0x7d])
    const headers = signed({ body: bytes })
    expect(scheme.verify({ headers, body: bytes }).id).toBe('msg_1')
    for (let at = 0; at < bytes.length; at++)
      for (let bit = 0; bit < 8; bit++) {
        const other = Buffer.from(bytes)
        other[at]! ^= 1 << bit
        expect(refusal(headers, other)).toContain('no signature of msg_1')
      }
    expect(refusal(headers, bytes.subarray(0, 2))).toContain('no signature')
    expect(refusal(headers, Buffer.concat([bytes, Buffer.of(0)]))).toContain('no signature')
  })

  test('covers the id and the time', () => {
    expect(refusal({ ...signed(), 'webhook-id': 'msg_2' })).toContain('no signature of msg_2')
    expect(refusal({ ...signed(), 'webhook-timestamp': '1700000001' })).toContain('no signature')
  })

  test('of any of several secrets is enough, on either side', () => {
    const [one, two, other] = [newWebhookSecret(), newWebhookSecret(), newWebhookSecret()]
    const sign = (secrets: WebhookSecret[]): Record<string, string> => ({
      ...createWebhookSigner({ secrets }).sign({ id: 'msg_1', sentAtMs: nowMs, body }),
    })
    const by = (secrets: WebhookSecret[]): WebhookScheme => standardWebhooks({ secrets, clock })
    for (const secrets of [[one], [two], [one, other], [other, two]]) {
      expect(by(secrets).verify({ headers: sign([one, two]), body }).id).toBe('msg_1')
      expect(by([one, two]).verify({ headers: sign(secrets), body }).id).toBe('msg_1')
    }
    expect(refusal(sign([one, two]), body, by([other]))).toContain('from one of our 1 secrets')
  })

  test('of ed25519 is verified with the public key alone, and the public key cannot sign', () => {
    const { privateKey, publicKey } = newWebhookKeyPair()
    const headers = {
      ...createWebhookSigner({ secrets: [privateKey, secret] }).sign({ id: 'm', sentAtMs: nowMs, body }),
    }
    expect(headers['webhook-signature']).toMatch(/^v1a,\S{88} v1,\S{44}$/)
    const by = standardWebhooks({ secrets: publicKey, clock })
    expect(by.verify({ headers, body }).id).toBe('m')
    expect(scheme.verify({ headers, body }).id).toBe('m')
    expect(refusal(headers, Buffer.from('{}'), by)).toContain('no signature of m')
    // A signature of one algorithm under the name of the other is none.
    const renamed = headers['webhook-signature'].replace('v1a,', 'v9,').replace('v1,', 'v1a,')
    expect(refusal({ ...headers, 'webhook-signature': renamed }, body, by)).toContain('no signature')
    expect(() => createWebhookSigner({ secrets: publicKey })).toThrow('a public key (whpk_) cannot sign')
    // The seed alone is the same key.
    const seed = Buffer.from(privateKey.slice(5), 'base64').subarray(0, 32)
    const fromSeed = createWebhookSigner({ secrets: `whsk_${seed.toString('base64')}` })
    expect(by.verify({ headers: { ...fromSeed.sign({ id: 'm', sentAtMs: nowMs, body }) }, body }).id).toBe('m')
  })

  test('under the headers of Svix is verified where that is said', () => {
    const headers = Object.fromEntries(
      Object.entries(signed()).map(([name, value]) => [name.replace('webhook', 'svix'), value]),
    )
    expect(standardWebhooks({ secrets: secret, prefix: 'svix', clock }).verify({ headers, body }).id).toBe('msg_1')
    expect(refusal(headers)).toContain('webhook-id is missing')
  })
})

describe('the time', () => {
  test('may be away by the tolerance in both directions, and no second more', () => {
    for (const away of [-300, 300]) {
      expect(refusal(signed({ sentAtMs: nowMs + away * 1_000 }))).toBe('accepted')
      const more = refusal(signed({ sentAtMs: nowMs + (away + Math.sign(away)) * 1_000 }))
      expect(more).toContain(away < 0 ? '301 s old, and the tolerance is 300 s' : '301 s in the future')
    }
    const narrow = standardWebhooks({ secrets: secret, toleranceMs: 1_000, clock })
    expect(refusal(signed({ sentAtMs: nowMs - 2_000 }), body, narrow)).toContain('the tolerance is 1 s')
  })

  test.each([
    '1700000000abc',
    '1700000000.0',
    '1.7e9',
    '+1700000000',
    '-1',
    '01700000000',
    '0x6553f100',
    ' 1700000000',
    '',
  ])('must be a plain integer of seconds: %j is refused although it is signed', (timestamp) => {
    expect(refusal(forged('msg_1', timestamp))).toMatch(/must be an integer of seconds|is empty or not printable/)
  })
})

describe('hostile headers are refused', () => {
  test.each(['webhook-id', 'webhook-timestamp', 'webhook-signature'])(
    '%s missing, empty, twice, huge, not ASCII',
    (name) => {
      const headers: Record<string, string> = signed()
      const { [name]: value, ...without } = headers
      expect(refusal(without)).toContain(`the header ${name} is missing`)
      expect(refusal({ ...headers, [name]: '' })).toContain(`${name} is empty`)
      expect(refusal({ ...headers, [name]: [value!, value!] })).toContain(`${name} is there 2 times`)
      expect(refusal({ ...headers, [name.toUpperCase()]: value! })).toContain(`${name} is there 2 times`)
      expect(refusal({ ...headers, [name]: `${value!}, ${value!}` })).not.toBe('accepted')
      expect(refusal({ ...headers, [name]: value!.padEnd(5_000, 'A') })).toContain('5000 characters')
      expect(refusal({ ...headers, [name]: `${value!}é` })).toContain('not printable ASCII')
      // Cut to its low byte, this letter would be an A.
      expect(refusal({ ...headers, [name]: `${value!}\u0141` })).toContain('not printable ASCII')
      expect(refusal({ ...headers, [name]: `${value!}\n` })).toContain('not printable ASCII')
    },
  )

  test('names in any case are read, and an array of one is one', () => {
    const { 'webhook-id': id, ...rest } = signed()
    expect(refusal({ ...rest, 'Webhook-Id': id! })).toBe('accepted')
    expect(refusal({ ...rest, 'webhook-id': [id!] })).toBe('accepted')
  })

  test.each(['a.b', 'a b', 'x'.repeat(257)])('an id like %j, although it is signed', (id) => {
    expect(refusal(forged(id, '1700000000'))).toContain('its id has more than 256 characters, a blank or a full stop')
    expect(() => signed({ id })).toThrow('expected id to be 1 to 256 printable ASCII')
  })

  test('hundreds of signatures', () => {
    const { 'webhook-signature': good, ...rest } = signed()
    const many = (count: number): string => Array.from({ length: count }, () => `v2,${'A'.repeat(4)}`).join(' ')
    expect(refusal({ ...rest, 'webhook-signature': `${many(19)} ${good!}` })).toBe('accepted')
    expect(refusal({ ...rest, 'webhook-signature': `${many(300)} ${good!}` })).toContain(
      '301 signatures, and at most 20',
    )
  })

  test('signatures of a wrong length, and other ways to write the same base64', () => {
    // 32 bytes have four spare bits in the 43rd character of base64: 15 other letters decode to the same bytes.
    const { 'webhook-signature': good, ...rest } = signed()
    const text = good!.slice(3)
    const tail = text[42]!
    const letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'
    const sibling = letters[letters.indexOf(tail) ^ 1]!
    const variants = [
      text.slice(0, 42) + sibling + '=',
      text.slice(0, 43),
      `${text}=`,
      `${text}AAAA`,
      text.slice(0, 40),
      text.toLowerCase(),
      `=${text}`,
      `${text.slice(0, 20)}\t${text.slice(20)}`,
      Buffer.from(text, 'base64').toString('hex'),
      '',
    ]
    expect(Buffer.from(variants[0]!, 'base64').equals(Buffer.from(text, 'base64'))).toBe(true)
    for (const variant of variants)
      expect(refusal({ ...rest, 'webhook-signature': `v1,${variant}` })).not.toBe('accepted')
    expect(refusal({ ...rest, 'webhook-signature': text })).toContain('malformed')
  })

  test('a body that a framework has parsed is refused with what to do', () => {
    for (const parsed of [{ test: 2432232314 }, body.toString(), undefined, null]) {
      expect(() => scheme.verify({ headers: signed(), body: parsed as unknown as Uint8Array })).toThrow(
        /^webhook: expected body to be the raw bytes .* verify before a body parser runs, or have it keep the bytes\. Express: express\.raw/,
      )
    }
  })
})

describe('secrets', () => {
  test.each([
    ['', 'begin with whsec_'],
    ['whsec_', 'at least 24 bytes after whsec_, got 0'],
    ['whsec_c2hvcnQ=', 'at least 24 bytes after whsec_, got 5'],
    ['whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS!', 'expected base64 after whsec_'],
    ['whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLa-_', 'expected base64 after whsec_'],
    ['MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', 'Give a secret of another form as bytes'],
    ['whpk_AAAA', '32 bytes after whpk_, got 3'],
    ['whsk_AAAA', '32 or 64 bytes after whsk_, got 3'],
    [`whsk_${Buffer.alloc(64).toString('base64')}`, 'do not belong together'],
    [new Uint8Array(), 'at least one byte'],
    [[], 'at least one, got none'],
    [undefined, 'a string or bytes'],
  ])('%j is refused, and not shown', (given, why) => {
    for (const make of [standardWebhooks, createWebhookSigner]) {
      const fail = (): unknown => make({ secrets: given as string })
      expect(fail).toThrow(why)
      if (typeof given === 'string' && given.length > 20) expect(fail).not.toThrow(given)
    }
  })

  test('bytes are a secret of any length', () => {
    const secrets = Buffer.from('key')
    const headers = { ...createWebhookSigner({ secrets }).sign({ id: 'm', sentAtMs: nowMs, body: 'ü' }) }
    expect(standardWebhooks({ secrets, clock }).verify({ headers, body: Buffer.from('ü') }).id).toBe('m')
  })

  test('a text that UTF-8 cannot carry, and a time that is none, are not signed', () => {
    const signer = createWebhookSigner({ secrets: secret })
    expect(() => signer.sign({ id: 'm', sentAtMs: nowMs, body: '\ud800' })).toThrow('half a surrogate pair')
    expect(() => signer.sign({ id: 'm', sentAtMs: Number.NaN, body })).toThrow('milliseconds since 1970')
  })
})

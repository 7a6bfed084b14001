import fc from 'fast-check'
import { expect, test } from 'vitest'
import { decodeStored, encodeAnswer, encodeNotStored, storedResponse } from './stored-response.ts'
import type { Answer, HeaderLine } from './stored-response.ts'

const keep = { replaySetCookie: false, replayHeader: 'Idempotent-Replayed' }

function kept(headers: HeaderLine[], options = keep, status = 200): readonly HeaderLine[] {
  const stored = decodeStored(encodeAnswer({ status, headers, body: new Uint8Array() }, options))
  return stored.is === 'answer' ? stored.answer.headers : []
}

test('what is stored is read back as it was', () => {
  const name = fc.stringMatching(/^X-[A-Za-z]{1,12}$/)
  const value = fc.string({ unit: fc.integer({ min: 0x20, max: 0xff }).map((code) => String.fromCharCode(code)) })
  const answer = fc.record({
    status: fc.integer({ min: 200, max: 599 }),
    headers: fc.array(
      fc.tuple(name, value).filter(([each]) => !/^x-b3-/i.test(each)),
      { maxLength: 8 },
    ),
    body: fc.uint8Array({ maxLength: 2_000 }),
  })
  fc.assert(
    fc.property(answer, (given) => {
      const stored = decodeStored(new Uint8Array(encodeAnswer(given as Answer, keep)))
      expect(stored).toMatchObject({ is: 'answer', answer: { status: given.status, headers: given.headers } })
      expect(Buffer.from((stored as { answer: Answer }).answer.body)).toEqual(Buffer.from(given.body))
    }),
  )
})

test('what belongs to one connection, one client or one moment is not kept', () => {
  const gone = [
    'Connection',
    'Keep-Alive',
    'Transfer-Encoding',
    'Trailer',
    'Upgrade',
    'Date',
    'Content-Length',
    'Set-Cookie',
    'WWW-Authenticate',
    'Proxy-Authenticate',
    'Authentication-Info',
    'traceparent',
    'Server-Timing',
    'X-Request-Id',
    'RateLimit',
    'RateLimit-Policy',
    'X-RateLimit-Remaining',
    'Idempotency-Window',
    'Idempotent-Replayed',
  ]
  expect(kept(gone.map((name) => [name, 'x']))).toEqual([])
  expect(
    kept([
      ['Connection', 'close, X-Hop'],
      ['x-hop', '1'],
      ['X-Kept', '1'],
    ]),
  ).toEqual([['X-Kept', '1']])
})

test('cookies are kept when that is asked for, each as a line of its own', () => {
  const cookies: HeaderLine[] = [
    ['Set-Cookie', 'a=1; Expires=Wed, 09 Jun 2027 10:18:14 GMT'],
    ['Set-Cookie', 'b=2'],
  ]
  expect(kept(cookies, { ...keep, replaySetCookie: true })).toEqual(cookies)
})

test('a time to wait is not kept where it would be over', () => {
  expect(kept([['Retry-After', '5']], keep, 202)).toHaveLength(1)
  expect(kept([['Retry-After', '5']], keep, 429)).toHaveLength(0)
})

test('what cannot be read is an error and never an empty answer', () => {
  const whole = encodeAnswer({ status: 200, headers: [['a', 'b']], body: Buffer.from('body') }, keep)
  expect(decodeStored(encodeNotStored())).toEqual({ is: 'not-stored' })
  for (const damaged of [
    new Uint8Array(),
    Uint8Array.of(9),
    whole.subarray(0, 3),
    whole.subarray(0, 12),
    'text',
    undefined,
  ])
    expect(() => decodeStored(damaged)).toThrow(/cannot be read/)
})

test.each<[refused: string, response: object]>([
  ['an integer from 200 to 599, got 103', { status: 103 }],
  ['an integer from 200 to 599, got 600', { status: 600 }],
  ['got "X-A": "a\\r\\nb: c"', { status: 201, headers: { 'X-A': 'a\r\nb: c' } }],
  ['got "X A": "a"', { status: 201, headers: { 'X A': 'a' } }],
  ['got "X-A": "€"', { status: 201, headers: { 'X-A': '€' } }],
  ['names and values that HTTP can send, got "X-A": 5', { status: 201, headers: { 'X-A': 5 } }],
  ['body to be a string or bytes, got a value of type object', { status: 201, body: { receipt: 'r1' } }],
])('a response that no retry could be sent is refused: %s', (refused, response) => {
  expect(() => storedResponse(response as { status: number })).toThrow(refused)
})

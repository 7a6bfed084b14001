import fc from 'fast-check'
import { expect, test, vi } from 'vitest'
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

test('the form of a stored answer is that of every version before: a replay of an older process is the same', () => {
  const head = '{"status":201,"message":"Made","headers":[["Content-Type","text/plain"]],"version":2}'
  const stored = Buffer.from(`\x01\0\0\0${String.fromCharCode(head.length)}${head}body`, 'latin1')
  const answer: Answer = {
    status: 201,
    message: 'Made',
    headers: [['Content-Type', 'text/plain']],
    body: Buffer.from('body'),
  }
  expect(decodeStored(stored)).toEqual({ is: 'answer', answer, version: 2 })
  expect(Buffer.from(encodeAnswer(answer, { ...keep, version: 2 }))).toEqual(stored)
})

test('an answer takes nothing from the one before it, however alike the two are', () => {
  const line = (value: string, name = 'X-A'): HeaderLine[] => [
    ['content-length', value],
    [name, value],
  ]
  const answers = [
    { status: 200, headers: line('1') },
    { status: 201, headers: line('1') },
    { status: 200, headers: line('2') },
    { status: 200, headers: line('1', 'X-B') },
    { status: 200, message: 'Fine', headers: line('1') },
    { status: 200, headers: [...line('1'), ...line('1')] },
    { status: 429, headers: [['Retry-After', '5']] },
    { status: 202, headers: [['Retry-After', '5']] },
  ].map((each, at) => ({ ...each, body: Buffer.from(`body ${at}`) }) as Answer)
  const read = (answer: Answer, options: typeof keep): unknown => decodeStored(encodeAnswer(answer, options))
  const alone = answers.map((answer) => {
    const headers = answer.headers.filter(([name]) => name !== 'content-length' && answer.status !== 429)
    return { is: 'answer', answer: { ...answer, headers }, version: 0 }
  })
  for (const [at, one] of answers.entries()) {
    for (const [then, other] of answers.entries()) {
      expect(read(one, keep)).toEqual(alone[at])
      expect(read(other, keep)).toEqual(alone[then])
    }
  }
  const cookie: Answer = { status: 200, headers: [['Set-Cookie', 'a=1']], body: Buffer.from('') }
  for (const replaySetCookie of [true, false, true]) {
    expect(read(cookie, { ...keep, replaySetCookie })).toMatchObject({
      answer: { headers: replaySetCookie ? cookie.headers : [] },
    })
  }
})

test('cookies are kept when that is asked for, each as a line of its own', () => {
  const cookies: HeaderLine[] = [
    ['Set-Cookie', 'a=1; Expires=Wed, 09 Jun 2027 10:18:14 GMT'],
    ['Set-Cookie', 'b=2'],
  ]
  expect(kept(cookies, { ...keep, replaySetCookie: true })).toEqual(cookies)
})

test('every header that belongs to one exchange is left out, whatever its case; its neighbours are kept', () => {
  const gone =
    `connection keep-alive proxy-connection te trailer transfer-encoding upgrade proxy-authenticate proxy-authorization
    http2-settings content-length date age set-cookie2 www-authenticate authentication-info proxy-authentication-info authorization
    traceparent tracestate traceresponse baggage server-timing b3 x-request-id request-id x-correlation-id x-amzn-trace-id
    x-amzn-requestid x-cloud-trace-context uber-trace-id ratelimit x-retry-after idempotency-window idempotency-status
    ratelimit-limit x-ratelimit-limit x-rate-limit-limit x-b3-traceid set-cookie idempotent-replayed`.split(/\s+/)
  const near = ['x-date', 'dates', 'my-ratelimit-limit', 'x-b3', 'idempotent', 'x-set-cookie', 'cookie']
  for (const name of gone) for (const each of [name, name.toUpperCase()]) expect(kept([[each, 'x']]), each).toEqual([])
  for (const name of near) expect(kept([[name, 'x']])).toEqual([[name, 'x']])
  expect(kept([['X-Mark', '1']], { ...keep, replayHeader: 'X-MARK' })).toEqual([])
  expect(
    kept([
      ['CONNECTION', 'a ,\tB'],
      ['A', '1'],
      ['b', '1'],
      ['c', 'a, b'],
    ]),
  ).toEqual([['c', 'a, b']])
})

test('only Connection names headers of one connection: a name in another header is a value like any other', () => {
  const lines: HeaderLine[] = [
    ['Vary', 'X-Kept, Accept'],
    ['X-Kept', '1'],
  ]
  expect(kept(lines)).toEqual(lines)
})

test('a time to wait is not kept where it would be over', () => {
  expect(kept([['Retry-After', '5']], keep, 503)).toHaveLength(0)
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
    ofHead('{"status":"200","headers":[]}'),
    ofHead('{"status":200.5,"headers":[]}'),
    ofHead('{"status":200,"headers":{}}'),
    ofHead('{"status":200}'),
    ofHead('null'),
    ofHead('{'),
  ])
    expect(() => decodeStored(damaged)).toThrow(
      expect.objectContaining({
        code: 'OUTCOME_UNREADABLE',
        message: expect.stringContaining('cannot be read') as string,
      }),
    )
})

/** A stored answer with this head and no body. */
function ofHead(head: string): Uint8Array {
  return Buffer.from(`\x01\0\0\0${String.fromCharCode(head.length)}${head}`, 'latin1')
}

test('an answer of which nothing but the head is stored is whole', () => {
  expect(decodeStored(ofHead('{"status":204,"headers":[]}'))).toEqual({
    is: 'answer',
    answer: { status: 204, headers: [], body: Buffer.from('') },
    version: 0,
  })
})

test('a head like the one before, but for its length, is neither written nor read anew', () => {
  const answer = (length: number, status = 200): Answer => {
    const headers: HeaderLine[] = [
      ['content-length', String(length)],
      ['X-A', '1'],
    ]
    return { status, headers, body: Buffer.alloc(length) }
  }
  const headersOf = (stored: Uint8Array): unknown => (decodeStored(stored) as { answer: Answer }).answer.headers
  const first = encodeAnswer(answer(1), keep)
  const written = vi.spyOn(JSON, 'stringify')
  const read = vi.spyOn(JSON, 'parse')
  try {
    const second = encodeAnswer(answer(2), keep)
    expect(headersOf(second)).toBe(headersOf(first))
    expect([written.mock.calls.length, read.mock.calls.length]).toEqual([0, 1])
    encodeAnswer(answer(2, 201), keep)
    expect(written).toHaveBeenCalledTimes(1)
  } finally {
    written.mockRestore()
    read.mockRestore()
  }
})

test('what a stored answer begins with is named where it is none', () => {
  expect(() => decodeStored(new Uint8Array())).toThrow('it begins with byte none')
  expect(() => decodeStored(Uint8Array.of(9))).toThrow('it begins with byte 9')
})

test('a head that was kept for the next answer is not changed by who made it', () => {
  const headers: [string, string][] = [['X-A', '1']]
  const read = (): unknown => decodeStored(encodeAnswer({ status: 200, headers, body: Buffer.from('') }, keep))
  read()
  headers[0]![1] = '2'
  expect(read()).toMatchObject({ answer: { headers: [['X-A', '2']] } })
})

test('a response that a person gives is replayed by every version, or by those that know its version', () => {
  const headers = {
    'Content-Type': 'text/plain',
    'X-Mark': '\t ~\u00ff',
    'Set-Cookie': 'a=1',
    "!#$%&'*+.^_`|~0Az-": '',
  }
  const kept = Object.entries(headers).filter(([name]) => name !== 'Set-Cookie')
  const given = storedResponse({ status: 200, headers, body: 'caf\u00e9' })
  expect(decodeStored(given)).toEqual({
    is: 'answer',
    answer: { status: 200, headers: kept, body: Buffer.from('caf\u00e9') },
    version: 'any',
  })
  const bytes = Uint8Array.of(0, 255)
  expect(decodeStored(storedResponse({ status: 599, body: bytes, version: 3 }))).toEqual({
    is: 'answer',
    answer: { status: 599, headers: [], body: Buffer.from(bytes) },
    version: 3,
  })
  expect(decodeStored(storedResponse({ status: 200, version: 0 }))).toMatchObject({ version: 0 })
  expect(decodeStored(storedResponse({ status: 200 }))).toMatchObject({ answer: { body: Buffer.from('') } })
})

test.each<[refused: string, response: object]>([
  ['an integer from 200 to 599, got 103', { status: 103 }],
  ['an integer from 200 to 599, got 600', { status: 600 }],
  ['an integer from 200 to 599, got 199', { status: 199 }],
  ['an integer from 200 to 599, got 200.5', { status: 200.5 }],
  ['got -1', { status: 200, version: -1 }],
  ['got "": "a"', { status: 200, headers: { '': 'a' } }],
  ['got "X-A": "\\u0000"', { status: 200, headers: { 'X-A': '\0' } }],
  ['got "X-A": "\u007f"', { status: 200, headers: { 'X-A': '\u007f' } }],
  ['got "X-A": "a\\r\\nb: c"', { status: 201, headers: { 'X-A': 'a\r\nb: c' } }],
  ['got "X A": "a"', { status: 201, headers: { 'X A': 'a' } }],
  ['got "X-A": "€"', { status: 201, headers: { 'X-A': '€' } }],
  ['names and values that HTTP can send, got "X-A": 5', { status: 201, headers: { 'X-A': 5 } }],
  ['body to be a string or bytes, got a value of type object', { status: 201, body: { receipt: 'r1' } }],
])('a response that no retry could be sent is refused: %s', (refused, response) => {
  expect(() => storedResponse(response as { status: number })).toThrow(refused)
})

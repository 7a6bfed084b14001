// An answer as it goes over the wire, octet for octet, whichever of the two ways it is written.

import { createServer } from 'node:http'
import type { ServerResponse } from 'node:http'
import { connect } from 'node:net'
import type { AddressInfo } from 'node:net'
import { buffer } from 'node:stream/consumers'
import { expect, test } from 'vitest'
import type { Answer, HeaderLine } from '../exchange.ts'
import { encodingOf, hasBody, sendAnswer, setHeaders, toBuffer } from './send.ts'

interface Sent {
  readonly first: string
  readonly lines: readonly string[]
  readonly body: Buffer
}

async function sent(write: (res: ServerResponse) => void, method = 'POST'): Promise<Sent> {
  const server = createServer((_req, res) => {
    res.sendDate = false
    write(res)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const client = connect((server.address() as AddressInfo).port, '127.0.0.1')
  client.write(`${method} / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n`)
  const all = await buffer(client)
  server.close()
  const end = all.indexOf('\r\n\r\n')
  const [first, ...lines] = all.subarray(0, end).toString('latin1').split('\r\n')
  return { first: first!, lines: lines.filter((line) => line !== 'Connection: close'), body: all.subarray(end + 4) }
}

const octets = Buffer.from(Array.from({ length: 256 }, (_, at) => at))
const answerOf = (more: Partial<Answer> = {}): Answer => ({ status: 201, headers: [], body: octets, ...more })

/** The way of a response that is wrapped, or has headers. */
const wrapped = (answer: Answer) => (res: ServerResponse) => {
  const { end } = res
  res.end = ((...body: unknown[]) => Reflect.apply(end, res, body) as ServerResponse) as typeof res.end
  sendAnswer(res, answer)
}
const plain = (answer: Answer) => (res: ServerResponse) => sendAnswer(res, answer)

test.each<[string, Partial<Answer>, first: string]>([
  ['the usual phrase', { status: 201 }, 'HTTP/1.1 201 Created'],
  ['a phrase of its own', { status: 201, message: 'Made' }, 'HTTP/1.1 201 Made'],
  ['a status without a phrase', { status: 299 }, 'HTTP/1.1 299 unknown'],
])('%s is the same both ways, with all octets and its length', async (_, more, first) => {
  const headers: HeaderLine[] = [
    ['X-A', 'one'],
    ['x-b', '\u00e9'],
  ]
  for (const way of [plain, wrapped]) {
    const found = await sent(way(answerOf({ headers, ...more })))
    expect(found.first).toBe(first)
    expect([...found.lines].sort()).toEqual(['Content-Length: 256', 'X-A: one', 'x-b: \u00e9'])
    expect(found.body).toEqual(octets)
  }
})

test.each([16_384, 16_385, 100_000])('a body of %i octets arrives as it is', async (length) => {
  const body = Buffer.alloc(length, octets)
  const found = await sent(plain(answerOf({ body })))
  expect([found.lines, found.body.equals(body)]).toEqual([[`Content-Length: ${length}`], true])
})

test('a part of a larger buffer is sent, and no more of it', async () => {
  const whole = Uint8Array.from(Buffer.from('before middle after'))
  for (const way of [plain, wrapped])
    expect((await sent(way(answerOf({ body: whole.subarray(7, 13) })))).body.toString()).toBe('middle')
})

test('lines of one name stay lines of their own, whatever their case', async () => {
  const headers: HeaderLine[] = [
    ['Set-Cookie', 'a=1'],
    ['X-A', '1'],
    ['set-cookie', 'b=2'],
    ['Set-Cookie', 'c=3'],
  ]
  for (const way of [plain, wrapped]) {
    const { lines } = await sent(way(answerOf({ headers })))
    expect(lines.filter((line) => /^set-cookie/i.test(line)).map((line) => line.slice(12))).toEqual([
      'a=1',
      'b=2',
      'c=3',
    ])
    expect(lines).toContain('X-A: 1')
  }
})

test('a name that every object has is a name like any other', async () => {
  const headers: HeaderLine[] = [['constructor', 'a']]
  expect((await sent(plain(answerOf({ headers })))).lines).toContain('constructor: a')
})

test.each([204, 304])('%i has no body, whatever the answer has', async (status) => {
  for (const way of [plain, wrapped]) {
    const found = await sent(way(answerOf({ status, headers: [['X-A', '1']] })))
    expect([found.body.length, found.lines]).toEqual([0, ['X-A: 1']])
  }
})

test('an empty body is empty, and its length is told', async () => {
  for (const way of [plain, wrapped]) {
    const found = await sent(way(answerOf({ body: new Uint8Array() })))
    expect([found.first, found.body.length, found.lines]).toEqual(['HTTP/1.1 201 Created', 0, ['Content-Length: 0']])
  }
})

test('what the framework will write is on the response first, and what the answer says wins', async () => {
  const before = { 'x-a': 'before', 'x-b': ['1', '2'], 'x-c': undefined }
  const { lines } = await sent((res) => sendAnswer(res, answerOf({ headers: [['X-A', 'answer']] }), before))
  expect([...lines].sort()).toEqual(['Content-Length: 256', 'X-A: answer', 'x-b: 1', 'x-b: 2'])
})

test('a header that is on the response stays, and both wrappers of a response are called', async () => {
  const called: string[] = []
  const { lines } = await sent((res) => {
    res.setHeader('X-Before', '1')
    const { writeHead, end } = res
    res.writeHead = ((...head: unknown[]) => {
      called.push('writeHead')
      return Reflect.apply(writeHead, res, head) as ServerResponse
    }) as typeof writeHead
    res.end = ((...body: unknown[]) => {
      called.push('end')
      return Reflect.apply(end, res, body) as ServerResponse
    }) as typeof end
    sendAnswer(res, answerOf())
  })
  expect(lines).toContain('X-Before: 1')
  expect(called).toEqual(['end', 'writeHead'])
})

test('a head that is wrapped sees its answer, though its end is not', async () => {
  const called: unknown[] = []
  await sent((res) => {
    const { writeHead } = res
    res.writeHead = ((...head: unknown[]) => {
      called.push(res.statusCode)
      return Reflect.apply(writeHead, res, head) as ServerResponse
    }) as typeof writeHead
    sendAnswer(res, answerOf())
  })
  expect(called).toEqual([201])
})

test('a wrapper of the end alone is given the body as bytes, as compression expects it', async () => {
  const given: unknown[] = []
  await sent((res) => {
    const { end } = res
    res.end = ((...body: unknown[]) => {
      given.push(body)
      return Reflect.apply(end, res, body) as ServerResponse
    }) as typeof end
    sendAnswer(res, answerOf())
  })
  expect(given).toEqual([[octets]])
})

test('the one who ends it is given the body, or nothing where there is none', async () => {
  const ends: unknown[] = []
  for (const more of [{}, { status: 204 }, { body: new Uint8Array() }]) {
    await sent((res) => {
      res.setHeader('X-Held', '1')
      sendAnswer(res, answerOf(more), {}, (body) => {
        ends.push(body)
        res.end()
      })
    })
  }
  expect(ends).toEqual([[octets], [], []])
})

test('one header line is set as it is, and of several each name once', () => {
  const set: unknown[] = []
  const res = { setHeader: (...line: unknown[]) => set.push(line) } as unknown as ServerResponse
  setHeaders(res, [])
  setHeaders(res, [['A', '1']])
  setHeaders(res, [
    ['B', '1'],
    ['c', '2'],
    ['b', '3'],
  ])
  expect(set).toEqual([
    ['A', '1'],
    ['B', ['1', '3']],
    ['c', '2'],
  ])
})

test('which status has a body', () => {
  expect([100, 199, 200, 203, 204, 205, 303, 304, 305, 500].map(hasBody)).toEqual([
    false,
    false,
    true,
    true,
    false,
    true,
    true,
    false,
    true,
    true,
  ])
})

test('a text is bytes by its encoding, which is UTF-8 unless one is named', () => {
  expect(toBuffer('\u00e9', undefined)).toEqual(Buffer.from([0xc3, 0xa9]))
  expect(toBuffer('\u00e9', 'latin1')).toEqual(Buffer.from([0xe9]))
  expect([encodingOf(undefined), encodingOf(() => {}), encodingOf('hex')]).toEqual(['utf8', 'utf8', 'hex'])
  const part = Uint8Array.from([1, 2, 3]).subarray(1)
  expect(toBuffer(part, undefined)).toEqual(Buffer.from([2, 3]))
})

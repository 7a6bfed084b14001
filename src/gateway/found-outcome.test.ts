import { expect, test } from 'vitest'
import { decodeOutcome } from '../core/outcome.ts'
import type { Entry } from '../core/store.ts'
import { decodeStored } from '../http/exchange.ts'
import { foundIn, readResponse } from './found-outcome.ts'

const key = { scope: 'gateway:shop/acme', id: '42' }
const entry: Entry = {
  key,
  state: 'abandoned',
  attempt: 1,
  fence: 1,
  fingerprint: 'f',
  version: 0,
  firstClaimedAtMs: 0,
  leaseUntilMs: 1_000,
  expiresAtMs: 5_000,
  forgottenAtMs: 12_000,
}

const response = (...lines: string[]): Uint8Array => Buffer.from(lines.join('\r\n'))

test('a response is what curl -i prints, and is stored as the exchange would have stored it', () => {
  const bytes = response(
    'HTTP/1.1 201 Created',
    'Content-Type: text/plain',
    'Date: today',
    'Set-Cookie: a=1',
    '',
    'a\r\nb\n',
  )
  const { mending, what } = foundIn(entry, { response: bytes })
  expect(what).toContain('201 with a body of 5 bytes, without Date, Set-Cookie')
  if (typeof mending === 'string' || !('resolve' in mending)) throw new Error('no resolve')
  expect(mending.retention).toEqual({ keepMs: 4_000, tombstoneMs: 7_000 })
  const outcome = decodeOutcome(mending.resolve, undefined, key)
  if (outcome.kind !== 'value') throw new Error(outcome.kind)
  const stored = decodeStored(outcome.value)
  if (stored.is !== 'answer') throw new Error(stored.is)
  expect(stored.answer).toMatchObject({ status: 201, headers: [['Content-Type', 'text/plain']] })
  expect(Buffer.from(stored.answer.body).toString()).toBe('a\r\nb\n')
})

test('HTTP/2, line feeds alone, a reason phrase of its own and no body are read', () => {
  expect(readResponse(Buffer.from('HTTP/2 204 \nX-A: b\n\n'))).toMatchObject({ status: 204, headers: [['X-A', 'b']] })
  expect(readResponse(Buffer.from('HTTP 201 Made\n\nx'))).toMatchObject({ status: 201, message: 'Made', headers: [] })
  expect(readResponse(Buffer.from('HTTP/1.1 200 OK\n\n'))).not.toHaveProperty('message')
})

test.each([
  ['HTTP/1.1 200 OK\nX: y', 'an empty line between the headers and the body'],
  ['200 OK\n\n', 'its first line to be such as "HTTP/1.1 201 Created"'],
  ['HTTP/1.1 100 Continue\n\n', 'a status from 200 to 599'],
  ['HTTP/1.1 200 OK\nno header\n\n', '"Name: value" in every header line, got "no header"'],
  ['HTTP/1.1 200 OK\nX: a\u0007b\n\n', '"Name: value" in every header line'],
  ['HTTP/1.1 204 No Content\n\nx', 'a 204 to have no body, got 1 bytes'],
  ['HTTP/1.1 200 OK\nContent-Length: 1\n\nx\n', 'a body of Content-Length 1, got 2 bytes'],
])('%j is refused', (text, expected) => {
  expect(() => readResponse(Buffer.from(text))).toThrow(expected)
})

// Node refuses such a status line, so that every replay would be a 500.
test('a reason phrase that HTTP cannot carry is refused', () => {
  expect(() => readResponse(Buffer.from('HTTP/1.1 201 Ma\u0001de\n\n'))).toThrow('its first line')
})

test('blanks around a header value are left out, and nothing else of it, in linear time', () => {
  const { headers } = readResponse(Buffer.from('HTTP/1.1 200 OK\nX-A: \t voil\u00e0 \t\n\n'))
  expect(headers).toEqual([['X-A', Buffer.from('voil\u00e0').toString('latin1')]])
  expect(() => readResponse(Buffer.from(`HTTP/1.1 200 OK\nX-A: ${' '.repeat(300_000)}\u0001\n\n`))).toThrow(
    'in every header line',
  )
})

test('a key of a gateway takes a response and nothing else: a replay of a value would be a 500', () => {
  for (const text of [{ value: '1' }, { failure: 'no' }, { done: true }] as const) {
    expect(() => foundIn(entry, text)).toThrow('gateway:shop/acme holds keys of a gateway')
    expect(foundIn({ ...entry, key: { scope: 'shop', id: '42' } }, text).mending).toHaveProperty('resolve')
  }
})

test('values and failures are JSON', () => {
  const plain = { ...entry, key: { scope: 'shop', id: '42' } }
  expect(() => foundIn(plain, { value: 'r1' })).toThrow('expected the value to be JSON')
  expect(() => foundIn(plain, { failureJson: '{"data":1}' })).toThrow('expected the failure to be { "message": TEXT')
  const { mending } = foundIn(plain, { failureJson: '{"message":"no","data":1}' })
  if (typeof mending === 'string' || !('resolve' in mending)) throw new Error('no resolve')
  expect(decodeOutcome(mending.resolve, undefined, key)).toMatchObject({
    kind: 'failure',
    error: { message: 'no', data: 1 },
  })
})

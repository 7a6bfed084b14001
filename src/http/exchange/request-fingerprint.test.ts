import { createHash } from 'node:crypto'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { createOnce } from '../../core/once.ts'
import { memoryStore } from '../../stores/memory.ts'
import { readHttpOptions } from './options.ts'
import type { HttpOptions } from './options.ts'
import { requestFingerprint } from './request-fingerprint.ts'
import { parseStrictJson } from './strict-json.ts'

interface Asked {
  readonly method?: string
  readonly target?: string
  readonly headers?: Record<string, string>
  readonly body?: string | Uint8Array
}

function print(asked: Asked, options: Partial<HttpOptions> = {}): string {
  const settings = readHttpOptions(createOnce({ store: memoryStore(), scope: 's' }), { tenant: 'shared', ...options })
  const headers = { 'content-type': 'application/json', ...asked.headers } as Record<string, string>
  const request = {
    method: asked.method ?? 'POST',
    target: asked.target ?? '/a',
    header: (name: string) => headers[name],
  }
  return requestFingerprint(settings, request, { bytes: Buffer.from(asked.body ?? '{}') })
}

const jcs = { fingerprint: { body: 'jcs' } } as const

test('method, path, query, media type, content coding and body each make another request', () => {
  const asked: Asked[] = [
    {},
    { method: 'PATCH' },
    { target: '/b' },
    { target: '/a?x=1' },
    { target: '/a?' },
    { headers: { 'content-type': 'text/plain' } },
    { headers: { 'content-type': 'application/json; charset=latin1' } },
    { headers: { 'content-encoding': 'gzip' } },
    { body: '' },
    { body: '{ }' },
  ]
  expect(new Set(asked.map((each) => print(each))).size).toBe(asked.length)
})

test('no two requests meet by moving a character from one part to the next', () => {
  expect(print({ target: '/a', body: 'b' })).not.toBe(print({ target: '/ab', body: '' }))
  expect(print({ target: '/a","' })).not.toBe(print({ target: '/a' }))
})

test('what clients and proxies write in two ways is one request', () => {
  expect(print({ headers: { 'content-type': 'Application/JSON; charset="UTF-8"' } })).toBe(print({}))
  expect(print({ target: 'http://other.example/a?b=1&a=%7e' })).toBe(print({ target: '/a?a=~&b=1' }))
  expect(print({ target: '/a?x=%2f' })).toBe(print({ target: '/a?x=%2F' }))
  expect(print({ target: 'http://other.example?a=1' })).toBe(print({ target: '/?a=1' }))
  expect(print({ target: 'http://other.example?a=1' })).not.toBe(print({ target: 'http://other.example?a=2' }))
})

test('a form that is sent again is the same request, whatever its boundary', () => {
  const form = (boundary: string, value: string, more = {}): Asked => ({
    headers: { 'content-type': `multipart/form-data; boundary=${boundary}`, ...more },
    body: `--${boundary}\r\nContent-Disposition: form-data; name="a"\r\n\r\n${value}\r\n--${boundary}--\r\n`,
  })
  expect(print(form('one', 'x'))).toBe(print(form('two', 'x')))
  expect(print(form('one', 'x'))).not.toBe(print(form('two', 'y')))
  // What is coded cannot be read, and what has no end may be half a form: both are compared as bytes.
  const coded = { 'content-encoding': 'gzip' }
  expect(print(form('one', 'x', coded))).not.toBe(print(form('two', 'x', coded)))
})

test('a query keeps its meaning', () => {
  expect(print({ target: '/a?t=1&t=2' })).not.toBe(print({ target: '/a?t=2&t=1' }))
  expect(print({ target: '/a?x=1%262' })).not.toBe(print({ target: '/a?x=1&2' }))
  const bytes = { fingerprint: { query: 'bytes' } } as const
  expect(print({ target: '/a?a=1&b=2' }, bytes)).not.toBe(print({ target: '/a?b=2&a=1' }, bytes))
})

test('named headers are part of the request, and one that is missing is not one that is empty', () => {
  const options = { headers: ['X-Tenant', 'x-tenant'] }
  const without = print({}, options)
  expect(print({ headers: { 'x-tenant': '' } }, options)).not.toBe(without)
  expect(print({ headers: { 'x-tenant': 'a' } }, options)).not.toBe(print({ headers: { 'x-tenant': 'b' } }, options))
  expect(print({ headers: { authorization: 'b', date: 'x' } }, options)).toBe(without)
})

test('a digest that is claimed is the same as one that is computed', () => {
  const settings = readHttpOptions(createOnce({ store: memoryStore(), scope: 's' }), { tenant: 'shared' })
  const request = { method: 'POST', target: '/a', header: () => undefined }
  const sha256 = createHash('sha256').update('abc').digest('base64')
  expect(requestFingerprint(settings, request, { sha256 })).toBe(
    requestFingerprint(settings, request, { bytes: Buffer.from('abc') }),
  )
})

describe('jcs', () => {
  test('order and white space do not matter', () => {
    expect(print({ body: '{"b":[1.0,"\\u00e9"],"a":1}' }, jcs)).toBe(print({ body: ' {"a" : 1, "b":[1, "é"]}\n' }, jcs))
    expect(print({ body: '{"a":1}' }, jcs)).not.toBe(print({ body: '{"a":2}' }, jcs))
  })

  test.each([
    ['numbers beyond a double', '{"n":9007199254740993}', '{"n":9007199254740992}'],
    ['decimals beyond a double', '{"n":0.1000000000000000055}', '{"n":0.1}'],
    ['a number that is infinite', '{"n":1e400}', '{"n":1e401}'],
    ['a member twice', '{"a":1,"a":2}', '{"a":2}'],
    ['a member twice by an escape', '{"a":1,"\\u0061":2}', '{"a":2}'],
    ['what is no JSON', '{a:1}', '{a: 1}'],
    ['broken UTF-8', '{"a":"\u00ff"}', '{"a":"\u00fe"}'],
    ['too deep', `${'['.repeat(600)}1${']'.repeat(600)}`, `${'['.repeat(600)}2${']'.repeat(600)}`],
    ['__proto__', '{"__proto__":{"x":1}}', '{"__proto__":{"x":2}}'],
  ])('never equates %s', (_, one, other) => {
    expect(print({ body: Buffer.from(one, 'latin1') }, jcs)).not.toBe(
      print({ body: Buffer.from(other, 'latin1') }, jcs),
    )
    expect(print({ body: one }, jcs)).toBe(print({ body: one }, jcs))
  })

  test('a text and its bytes under another media type never meet', () => {
    expect(print({ body: '{}' }, jcs)).not.toBe(print({ body: '{}' }))
    expect(print({ headers: { 'content-type': 'application/vnd.x+json' }, body: '{"a":1}' }, jcs)).toBe(
      print({ headers: { 'content-type': 'application/vnd.x+json' }, body: '{ "a": 1 }' }, jcs),
    )
  })

  test('members that a retry may change can be left out', () => {
    const options = { fingerprint: { body: 'jcs', omit: ['/sentAt', '/meta/try~1no'] } } as const
    const body = (sentAt: number, attempt: number, a = 1): string =>
      JSON.stringify({ a, sentAt, meta: { 'try/no': attempt } })
    expect(print({ body: body(1, 1) }, options)).toBe(print({ body: body(2, 2) }, options))
    expect(print({ body: body(1, 1) }, options)).not.toBe(print({ body: body(1, 1, 2) }, options))
    expect(print({ body: '[1]' }, options)).toBe(print({ body: '[ 1 ]' }, options))
  })

  test('whatever JSON writes is taken by its value', () => {
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        const text = JSON.stringify(value, undefined, 1)
        const parsed = parseStrictJson(Buffer.from(text))
        // -0 is written as 0, and JSON.stringify writes a lone surrogate as an escape.
        expect(JSON.stringify(parsed?.value)).toBe(JSON.stringify(value))
      }),
    )
  })
})

test('a function stands for the body, and then a boundary does not matter', () => {
  const options = {
    fingerprint: { body: (body: Uint8Array) => ({ parts: Buffer.from(body).toString().split('--')[2] }) },
  }
  const multipart = (boundary: string, part: string): Asked => ({
    headers: { 'content-type': `multipart/form-data; boundary=${boundary}` },
    body: `--${boundary}--${part}`,
  })
  expect(print(multipart('a', 'x'), options)).toBe(print(multipart('b', 'x'), options))
  expect(print(multipart('a', 'x'), options)).not.toBe(print(multipart('a', 'y'), options))
})

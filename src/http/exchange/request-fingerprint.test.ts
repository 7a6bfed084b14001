import { createHash } from 'node:crypto'
import fc from 'fast-check'
import { describe, expect, test, vi } from 'vitest'
import { createOnce } from '../../core/once.ts'
import { memoryStore } from '../../stores/memory.ts'
import { readHttpOptions } from './options.ts'
import type { FingerprintedRequest, HttpOptions } from './options.ts'
import { normalEscape, requestFingerprint, splitTarget } from './request-fingerprint.ts'
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

test('the text is the JSON that every version wrote: an upgrade of the service makes no request another one', () => {
  const empty = 'bytes:RBNvo1WzZ4oRRq0W9+hknpT7T8If536DEMBg9hyq/4o='
  expect(print({})).toBe(`["POST","/a","","application/json","","${empty}"]`)
  const all = { target: '/"ä\\?b=2&a=1', headers: { 'content-encoding': ' GZip', 'x-a': 'q"' } }
  expect(print(all, { headers: ['X-B', 'X-A'] })).toBe(
    `["POST","/\\"ä\\\\","?a=1&b=2","application/json","gzip","${empty}","x-a","q\\"","x-b","\\n"]`,
  )
})

test('a request is told from the one before it by every part, on one service', () => {
  const once = createOnce({ store: memoryStore(), scope: 's' })
  const settings = readHttpOptions(once, { tenant: 'shared' })
  const parts = { method: 'POST', target: '/a', type: 'text/plain', coding: 'gzip' }
  const asked = [
    parts,
    { ...parts, method: 'PATCH' },
    { ...parts, target: '/a?x' },
    { ...parts, type: 'text/html' },
    { ...parts, coding: 'br' },
    { ...parts, coding: undefined },
  ]
  const printed = (each: (typeof asked)[number]): string => {
    const headers: Record<string, string | undefined> = { 'content-type': each.type, 'content-encoding': each.coding }
    const request = { method: each.method, target: each.target, header: (name: string) => headers[name] }
    return requestFingerprint(settings, request, { bytes: Buffer.from('{}') })
  }
  const pairs = asked.flatMap((one) => asked.map((other) => [one, other] as const))
  for (const [one, other] of pairs) expect(printed(one) === printed(other)).toBe(one === other)
})

test('another service that shares the process reads the query by its own rules', () => {
  const once = createOnce({ store: memoryStore(), scope: 's' })
  const request = { method: 'POST', target: '/a?b&a', header: () => undefined }
  const [canonical, bytes] = (['canonical', 'bytes'] as const).map((query) =>
    requestFingerprint(readHttpOptions(once, { tenant: 'shared', fingerprint: { query } }), request, {
      bytes: Buffer.from('{}'),
    }),
  )
  expect(canonical).toContain('"?a&b"')
  expect(bytes).toContain('"?b&a"')
})

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

test('parameters of a media type: an empty one and their order do not matter, their values do', () => {
  const typed = (type: string): string => print({ headers: { 'content-type': type } })
  expect(typed('application/json;')).toBe(print({}))
  expect(typed('application/json; ; charset=UTF-8')).toBe(print({}))
  expect(typed('text/plain;b=2;A=1')).toBe(typed('Text/Plain; a=1 ; b = 2'))
  expect(typed('text/plain;a=b=c')).not.toBe(typed('text/plain;a=bc'))
  expect(typed('text/plain;a=B')).not.toBe(typed('text/plain;a=b'))
  expect(typed('text/plain;a')).not.toBe(typed('text/plain;a='))
})

test('what comes before the body is put together once for requests that differ only in their bodies', () => {
  const settings = readHttpOptions(createOnce({ store: memoryStore(), scope: 's' }), { tenant: 'shared' })
  const request = { method: 'POST', target: '/once', header: () => undefined }
  const text = (body: string): string => requestFingerprint(settings, request, { bytes: Buffer.from(body) })
  const first = text('a')
  const written = vi.spyOn(JSON, 'stringify')
  try {
    expect([text('b') === first, text('a') === first]).toEqual([false, true])
    expect(written).not.toHaveBeenCalled()
  } finally {
    written.mockRestore()
  }
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

test.each([
  ['/a?b=1', '/a', '?b=1'],
  ['/a', '/a', ''],
  ['/a?', '/a', '?'],
  ['/a?b?c', '/a', '?b?c'],
  ['/a#b?c', '/a', ''],
  ['/a?b#c', '/a', '?b'],
  ['#a', '/', ''],
  ['?a', '/', '?a'],
  ['*', '*', ''],
  ['/http://b/c?d', '/http://b/c', '?d'],
  ['http://a', '/', ''],
  ['http://a/', '/', ''],
  ['http://a?b', '/', '?b'],
  ['http://a/b?c', '/b', '?c'],
  ['http://a?b/c', '/', '?b/c'],
  ['http:///b', '/b', ''],
  ['://a/b', '/b', ''],
])('of %s the path is %s and the query "%s"', (target, path, query) => {
  expect(splitTarget(target)).toEqual({ path, query })
})

test.each([
  ['%7e', '~'],
  ['%41', 'A'],
  ['%7A', 'z'],
  ['%30', '0'],
  ['%2d', '-'],
  ['%2E', '.'],
  ['%5f', '_'],
  ['%2f', '%2F'],
  ['%26', '%26'],
  ['%e9', '%E9'],
])('the escape %s is %s', (escape, normal) => expect(normalEscape(escape)).toBe(normal))

test('one parameter alone is as it came, and a name comes before one that it begins', () => {
  expect(print({ target: '/a?=1' })).toContain('"?=1"')
  expect(print({ target: '/a?ab=1&a=2&a' })).toContain('"?a=2&a&ab=1"')
  expect(print({ target: '/a?b=%7E&a=%7e' })).toContain('"?a=~&b=~"')
  const names = Array.from({ length: 40 }, (_, at) => `p${String(at).padStart(2, '0')}`)
  expect(print({ target: `/a?${names.toReversed().join('&')}` })).toContain(`"?${names.join('&')}"`)
})

test('jcs reads only what is said to be JSON, and what is coded is compared as bytes', () => {
  const isByValue = (type: string, more: Record<string, string> = {}): boolean => {
    const headers = { 'content-type': type, ...more }
    return print({ headers, body: '{"a":1}' }, jcs) === print({ headers, body: '{ "a":1}' }, jcs)
  }
  const json = ['application/json', 'Application/JSON ; charset=utf-8', 'application/a.b+json', 'application/a+b+json']
  for (const type of json) expect(isByValue(type), type).toBe(true)
  const others = [
    'text/json',
    'xapplication/json',
    'application/jsonx',
    'application/+json',
    'application/a b+json',
    '',
  ]
  for (const type of others) expect(isByValue(type), type).toBe(false)
  expect(isByValue('application/json', { 'content-encoding': 'gzip' })).toBe(false)
  expect(isByValue('application/json', { 'content-encoding': '' })).toBe(true)
})

test('a member is left out by its pointer, and by no other way', () => {
  const same = (pointer: string, one: unknown, other: unknown): boolean => {
    const options = { fingerprint: { body: 'jcs', omit: [pointer] } } as const
    return print({ body: JSON.stringify(one) }, options) === print({ body: JSON.stringify(other) }, options)
  }
  expect(same('/a/b', { a: { b: 1 } }, { a: { b: 2 } })).toBe(true)
  expect(same('/a/b', { a: { b: 1 }, b: 1 }, { a: { b: 2 }, b: 2 })).toBe(false)
  expect(same('/a~1b', { 'a/b': 1 }, { 'a/b': 2 })).toBe(true)
  expect(same('/~01', { '~1': 1 }, { '~1': 2 })).toBe(true)
  expect(same('/', { '': 1 }, { '': 2 })).toBe(true)
  expect(same('/0/a', [{ a: 1 }], [{ a: 2 }])).toBe(true)
  // A place in a list is no member, and what is not there is nothing to leave out.
  expect(same('/0', [1, 2], [3, 2])).toBe(false)
  expect(same('/a/0', { a: [1] }, { a: [2] })).toBe(false)
  for (const value of [null, 'text', 5, { b: 1 }, { a: null }, { a: 'text' }]) {
    expect(same('/a/b', value, value)).toBe(true)
    expect(same('/a/b/c', value, value)).toBe(true)
    expect(same('/a/b', value, { other: 1 })).toBe(false)
  }
})

test('a pointer does not reach what a value inherits', () => {
  const names = Object.getOwnPropertyNames(Object.prototype)
  const options = {
    fingerprint: { body: 'jcs', omit: ['/__proto__/valueOf', '/constructor/prototype/valueOf'] },
  } as const
  print({ body: '{"a":1}' }, options)
  expect(Object.getOwnPropertyNames(Object.prototype)).toEqual(names)
})

test('a function is given the bytes and the request, whose header it may take by itself', () => {
  const seen: unknown[] = []
  const body = (bytes: Uint8Array, { method, target, header }: FingerprintedRequest): string => {
    seen.push([Buffer.from(bytes).toString(), method, target, header('x-a'), header('x-b')])
    return 'the same'
  }
  const asked = { method: 'PATCH', target: '/a?b', headers: { 'x-a': '1' } }
  const printed = print({ ...asked, body: 'one' }, { fingerprint: { body } })
  expect(print({ ...asked, body: 'two' }, { fingerprint: { body } })).toBe(printed)
  expect(seen).toEqual([
    ['one', 'PATCH', '/a?b', '1', undefined],
    ['two', 'PATCH', '/a?b', '1', undefined],
  ])
  expect(printed).toContain(',"custom:')
})

test('a charset is the same in quotes and in any case, and other values are not', () => {
  const typed = (type: string): string => print({ headers: { 'content-type': type } })
  expect(typed('text/plain; charset="Latin1"')).toBe(typed('text/plain; CHARSET=latin1'))
  expect(typed('text/plain; charset="latin1')).not.toBe(typed('text/plain; charset=latin1'))
  expect(typed('text/plain; charset=latin1"')).not.toBe(typed('text/plain; charset=latin1'))
  expect(typed('text/plain; a="x"')).not.toBe(typed('text/plain; a=x'))
  expect(typed('text/plain; charset')).not.toBe(typed('text/plain'))
})

test('a request without a type or a coding is not one with an empty list of them', () => {
  const bare = (headers: Record<string, string>): string => {
    const settings = readHttpOptions(createOnce({ store: memoryStore(), scope: 's' }), { tenant: 'shared' })
    const request = { method: 'POST', target: '/a', header: (name: string) => headers[name] }
    return requestFingerprint(settings, request, { bytes: Buffer.from('{}') })
  }
  expect(bare({})).toMatch(/^\["POST","\/a","","","","bytes:/)
  expect(bare({ 'content-type': '' })).toBe(bare({}))
  expect(bare({ 'content-type': ' text/plain ' })).toBe(bare({ 'content-type': 'text/plain' }))
})

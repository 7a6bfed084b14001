// Hostile requests over raw sockets: whatever two readers could read in two ways never reaches the upstream, and nothing in a
// request chooses where it goes.
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { pollUntil } from '../servers/poll.ts'
import { closeAll, closing, dial, type Ground, say, startGround } from './ground.ts'
import { answerWith, rawUpstream, type RawUpstream, valueIn } from './raw-upstream.ts'

let upstream: RawUpstream
let elsewhere: RawUpstream
let ground: Ground

beforeEach(async () => {
  upstream = closing(await rawUpstream(answerWith('from the upstream')))
  elsewhere = closing(await rawUpstream(answerWith('from elsewhere')))
  ground = await startGround(upstream.url, { tenantHeader: 'X-Account' })
})
afterEach(closeAll)

const lines = (...all: readonly string[]): string => `${all.join('\r\n')}\r\n\r\n`
const smuggled = 'POST /smuggled HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n'

describe('smuggling: refused, and the upstream sees nothing', () => {
  test.each<[string, string]>([
    [
      'a length and chunks',
      `${lines('POST / HTTP/1.1', 'Host: a', 'Content-Length: 4', 'Transfer-Encoding: chunked')}0\r\n\r\n${smuggled}`,
    ],
    [
      'chunks and a length',
      `${lines('POST / HTTP/1.1', 'Host: a', 'Transfer-Encoding: chunked', 'Content-Length: 4')}0\r\n\r\n${smuggled}`,
    ],
    ['two lengths', `${lines('POST / HTTP/1.1', 'Host: a', 'Content-Length: 0', 'Content-Length: 60')}${smuggled}`],
    [
      'two lengths that are the same',
      `${lines('POST / HTTP/1.1', 'Host: a', 'Content-Length: 2', 'Content-Length: 2')}{}`,
    ],
    ['a list of lengths', `${lines('POST / HTTP/1.1', 'Host: a', 'Content-Length: 2, 2')}{}`],
    ['a length with a sign', `${lines('POST / HTTP/1.1', 'Host: a', 'Content-Length: +2')}{}`],
    ['a length in another base', `${lines('POST / HTTP/1.1', 'Host: a', 'Content-Length: 0x2')}{}`],
    ['a negative length', `${lines('POST / HTTP/1.1', 'Host: a', 'Content-Length: -1')}`],
    ['a length beyond all numbers', `${lines('POST / HTTP/1.1', 'Host: a', 'Content-Length: 99999999999999999999')}{}`],
    [
      'a folded header',
      lines('POST / HTTP/1.1', 'Host: a', 'X-One: 1', ' Transfer-Encoding: chunked', 'Content-Length: 0'),
    ],
    [
      'a folded transfer coding',
      `${lines('POST / HTTP/1.1', 'Host: a', 'Transfer-Encoding:', ' chunked')}0\r\n\r\n${smuggled}`,
    ],
    ['a blank before the colon', lines('POST / HTTP/1.1', 'Host: a', 'Content-Length : 0')],
    [
      'a transfer coding that is nearly chunked',
      `${lines('POST / HTTP/1.1', 'Host: a', 'Transfer-Encoding: xchunked')}0\r\n\r\n`,
    ],
    ['chunked that is not last', `${lines('POST / HTTP/1.1', 'Host: a', 'Transfer-Encoding: chunked, gzip')}0\r\n\r\n`],
    [
      'another coding before chunked',
      `${lines('POST / HTTP/1.1', 'Host: a', 'Transfer-Encoding: gzip, chunked', 'Connection: close')}0\r\n\r\n`,
    ],
    [
      'chunked twice',
      `${lines('POST / HTTP/1.1', 'Host: a', 'Transfer-Encoding: chunked', 'Transfer-Encoding: chunked', 'Connection: close')}0\r\n\r\n`,
    ],
    [
      'a coding with a vertical tab',
      `${lines('POST / HTTP/1.1', 'Host: a', 'Transfer-Encoding: \x0bchunked')}0\r\n\r\n`,
    ],
    [
      'a chunk size with an underscore',
      `${lines('POST / HTTP/1.1', 'Host: a', 'Transfer-Encoding: chunked')}0_1\r\nx\r\n0\r\n\r\n`,
    ],
    ['bare line feeds', 'POST / HTTP/1.1\nHost: a\nContent-Length: 0\n\n'],
    [
      'a bare carriage return in a value',
      lines('POST / HTTP/1.1', 'Host: a', 'X-One: 1\rX-Two: 2', 'Content-Length: 0'),
    ],
    ['a NUL in a value', lines('POST / HTTP/1.1', 'Host: a', 'X-One: 1\0', 'Content-Length: 0')],
    ['a NUL in a name', lines('POST / HTTP/1.1', 'Host: a', 'X\0-One: 1', 'Content-Length: 0')],
    [
      'an underscore of a control character in the target',
      lines('POST /a\x01b HTTP/1.1', 'Host: a', 'Content-Length: 0'),
    ],
    ['a target with a blank', lines('POST /a b HTTP/1.1', 'Host: a', 'Content-Length: 0')],
    ['no Host', lines('POST / HTTP/1.1', 'Content-Length: 0')],
    ['two Hosts', lines('POST / HTTP/1.1', 'Host: a', 'Host: b', 'Content-Length: 0', 'Connection: close')],
    [
      'chunks in HTTP/1.0',
      `${lines('POST / HTTP/1.0', 'Host: a', 'Transfer-Encoding: chunked')}2\r\n{}\r\n0\r\n\r\n${smuggled}`,
    ],
    ['a version to come', lines('POST / HTTP/9.9', 'Host: a', 'Content-Length: 0')],
  ])('%s', async (_name, text) => {
    const answer = await say(ground.port, text)
    expect(answer).toMatch(/^HTTP\/1\.1 (?:400|501|505) /)
    expect(upstream.seen).toEqual([])
  })

  test('what follows a request with chunks is the next request, and its body stays its body', async () => {
    const body = `5\r\nhello\r\n0\r\n\r\n`
    const two = `${lines('POST /one HTTP/1.1', 'Host: a', 'Transfer-Encoding: chunked')}${body}${lines('GET /two HTTP/1.1', 'Host: a', 'Connection: close')}`
    expect((await say(ground.port, two)).match(/from the upstream/g)).toHaveLength(2)
    expect(upstream.seen.map(({ head }) => head.split(' HTTP')[0])).toEqual(['POST /one', 'GET /two'])
    expect(upstream.seen[0]!.body).toBe('5\r\nhello\r\n')
  })

  test('requests in one packet are answered in their order, each with its own key', async () => {
    const post = (id: string, more: string): string =>
      `${lines(`POST /${id} HTTP/1.1`, 'Host: a', 'X-Account: acme', `Idempotency-Key: ${id}`, 'Content-Length: 2', `Connection: ${more}`)}{}`
    const answer = await say(ground.port, post('a', 'keep-alive') + post('b', 'keep-alive') + post('c', 'close'))
    expect(answer.match(/HTTP\/1\.1 201 /g)).toHaveLength(3)
    expect(new Set(upstream.seen.flatMap(({ head }) => valueIn(head, 'Idempotency-Key')))).toEqual(
      new Set(['a', 'b', 'c']),
    )
  })
})

describe('nothing in a request chooses the upstream', () => {
  const aimed = (...more: readonly string[]): string => lines(...more, 'Connection: close')
  test.each<[string, () => string, string]>([
    ['an absolute form', () => aimed(`GET http://127.0.0.1:${elsewhere.port}/a?b=c HTTP/1.1`, 'Host: x'), 'GET /a?b=c'],
    [
      'an absolute form without a path',
      () => aimed(`GET http://127.0.0.1:${elsewhere.port} HTTP/1.1`, 'Host: x'),
      'GET /',
    ],
    [
      'an absolute form with a query only',
      () => aimed(`GET http://127.0.0.1:${elsewhere.port}?b=c HTTP/1.1`, 'Host: x'),
      'GET /?b=c',
    ],
    ['a Host', () => aimed('GET /a HTTP/1.1', `Host: 127.0.0.1:${elsewhere.port}`), 'GET /a'],
    ['a Host with a user', () => aimed('GET /a HTTP/1.1', `Host: user@127.0.0.1:${elsewhere.port}`), 'GET /a'],
    [
      'a path that looks like an authority',
      () => aimed(`GET //127.0.0.1:${elsewhere.port}/a HTTP/1.1`, 'Host: x'),
      `GET //127.0.0.1:`,
    ],
    [
      'a path with an at sign',
      () => aimed(`GET /@127.0.0.1:${elsewhere.port}/a HTTP/1.1`, 'Host: x'),
      'GET /@127.0.0.1:',
    ],
    [
      'X-Forwarded-Host',
      () => aimed('GET /a HTTP/1.1', 'Host: x', `X-Forwarded-Host: 127.0.0.1:${elsewhere.port}`),
      'GET /a',
    ],
  ])('%s', async (_name, text, begins) => {
    expect(await say(ground.port, text())).toMatch(/from the upstream/)
    expect(upstream.seen[0]!.head.startsWith(begins)).toBe(true)
    expect(valueIn(upstream.seen[0]!.head, 'Host')).toEqual([`127.0.0.1:${upstream.port}`])
    expect(elsewhere.seen).toEqual([])
  })

  test('a redirect is passed on and not followed', async () => {
    const redirecting = closing(
      await rawUpstream(answerWith('', [`Location: http://127.0.0.1:${elsewhere.port}/`], '307 Temporary Redirect')),
    )
    const other = await startGround(redirecting.url)
    const answer = await fetch(other.gateway.url, { redirect: 'manual' })
    expect([answer.status, answer.headers.get('location')]).toEqual([307, `http://127.0.0.1:${elsewhere.port}/`])
    expect(elsewhere.seen).toEqual([])
  })

  test.each<[string, string]>([
    ['CONNECT', lines('CONNECT 127.0.0.1:80 HTTP/1.1', 'Host: 127.0.0.1:80')],
    ['TRACE', lines('TRACE / HTTP/1.1', 'Host: a', 'Connection: close')],
    [
      'an upgrade to a web socket',
      lines('GET / HTTP/1.1', 'Host: a', 'Connection: Upgrade, close', 'Upgrade: websocket'),
    ],
    [
      'an upgrade to HTTP/2',
      lines(
        'GET / HTTP/1.1',
        'Host: a',
        'Connection: Upgrade, HTTP2-Settings, close',
        'Upgrade: h2c',
        'HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA',
      ),
    ],
    ['OPTIONS for all of the server', lines('OPTIONS * HTTP/1.1', 'Host: a', 'Connection: close')],
    ['another scheme', lines('GET ftp://a/ HTTP/1.1', 'Host: a', 'Connection: close')],
    ['the preface of HTTP/2', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'],
  ])('%s is refused', async (_name, text) => {
    expect(await say(ground.port, text)).toMatch(/^HTTP\/1\.1 (?:400|501|505) /)
    expect(upstream.seen).toEqual([])
  })

  test('a gateway that leads to itself says so instead of going round', async () => {
    const socket = await dial(ground.port)
    socket.write(lines('GET / HTTP/1.1', 'Host: a'))
    await pollUntil('the upstream', () => upstream.seen.length === 1)
    const [via] = valueIn(upstream.seen[0]!.head, 'Via')
    expect(await say(ground.port, lines('GET / HTTP/1.1', 'Host: a', `Via: ${via}`, 'Connection: close'))).toMatch(
      /^HTTP\/1\.1 508 /,
    )
    socket.destroy()
  })
})

describe('keys and tenants', () => {
  const post = (...more: readonly string[]): string =>
    `${lines('POST /payments HTTP/1.1', 'Host: a', 'Content-Length: 2', 'Connection: close', ...more)}{}`

  test.each<[string, string, number]>([
    ['two lines of keys', post('X-Account: acme', 'Idempotency-Key: a', 'Idempotency-Key: b'), 400],
    ['the same key twice', post('X-Account: acme', 'Idempotency-Key: a', 'idempotency-key: a'), 400],
    ['an empty key', post('X-Account: acme', 'Idempotency-Key:'), 400],
    ['a key of another alphabet', post('X-Account: acme', 'Idempotency-Key: \xe9'), 400],
    ['no tenant', post('Idempotency-Key: a'), 400],
    ['an empty tenant', post('X-Account:', 'Idempotency-Key: a'), 400],
    ['two tenants', post('X-Account: acme', 'X-Account: evil', 'Idempotency-Key: a'), 400],
  ])('%s: refused', async (_name, text, status) => {
    expect(await say(ground.port, text)).toMatch(new RegExp(`^HTTP/1\\.1 ${status} `))
    expect(upstream.seen).toEqual([])
  })

  test.each(['Idempotency-Key', 'X-Account', 'Host', 'Content-Type'])(
    'a Connection header that would take %s out is refused: the service would see another request than the gateway',
    async (name) => {
      const text = `${lines('POST / HTTP/1.1', 'Host: a', 'Content-Length: 2', 'X-Account: acme', 'Idempotency-Key: a', `Connection: close, ${name}`)}{}`
      expect(await say(ground.port, text)).toMatch(/^HTTP\/1\.1 400 /)
      expect(upstream.seen).toEqual([])
    },
  )

  test('so is one that would take out the key header of a route, and an alias of it', async () => {
    const routes = [{ path: '/paypal', header: 'PayPal-Request-Id', required: true }]
    const { port } = await startGround(upstream.url, { tenantHeader: 'X-Account', routes })
    const ask = (...more: readonly string[]): Promise<string> =>
      say(port, `${lines('POST /paypal HTTP/1.1', 'Host: a', 'X-Account: acme', 'Content-Length: 2', ...more)}{}`)
    const keyed = 'PayPal-Request-Id: a'
    expect(await ask(keyed, 'Connection: close, PayPal-Request-Id')).toMatch(/^HTTP\/1\.1 400 /)
    expect(await ask('PayPal_Request_Id: b', keyed, 'Connection: close')).toMatch(/^HTTP\/1\.1 400 /)
    // Another header is no key there.
    expect(await ask('Idempotency-Key: a', 'Connection: close')).toContain(
      'The PayPal-Request-Id header is required here',
    )
    expect(upstream.seen).toEqual([])
    expect(await ask(keyed, 'Connection: close')).toMatch(/^HTTP\/1\.1 201 /)
    expect(await ask(keyed, 'Connection: close')).toMatch(/^Idempotent-Replayed: true/m)
    expect(upstream.seen).toHaveLength(1)
  })

  test('a key behind two thousand other headers is still a key', async () => {
    const many = Array.from({ length: 2_100 }, () => 'a:')
    const text = post(...many, 'X-Account: acme', 'Idempotency-Key: a')
    expect(await say(ground.port, text)).toMatch(/^HTTP\/1\.1 201 /)
    expect(await say(ground.port, text)).toMatch(/^Idempotent-Replayed: true/m)
    expect(upstream.seen).toHaveLength(1)
  })

  test('the same key of two tenants is two keys; a credential that names the tenant is not in the store', async () => {
    const asks = ['acme', 'evil', 'acme'].map((tenant) => post(`X-Account: ${tenant}`, 'Idempotency-Key: a'))
    const answers: string[] = []
    for (const ask of asks) answers.push(await say(ground.port, ask))
    expect(answers.map((each) => /^Idempotent-Replayed/m.test(each))).toEqual([false, false, true])
    const other = await startGround(upstream.url, { tenantHeader: 'Authorization' })
    const secret = 'Bearer top-secret'
    await say(other.port, post(`Authorization: ${secret}`, 'Idempotency-Key: a'))
    expect(valueIn(upstream.seen.at(-1)!.head, 'Authorization')).toEqual([secret])
    const { store } = other.gateway.once
    const entries = await (
      store as unknown as { list(filter: { limit: number }): Promise<{ key: { scope: string } }[]> }
    ).list({ limit: 10 })
    expect(entries.map(({ key }) => key.scope)).toEqual([expect.stringMatching(/^gateway:default\/[\w-]{43}$/)])
  })

  test('neither key, tenant, query, header nor body is in the log', async () => {
    const text = `${lines('POST /payments?token=query-secret HTTP/1.1', 'Host: a', 'Content-Length: 13', 'Connection: close', 'X-Account: tenant-secret', 'Authorization: header-secret', 'Idempotency-Key: key-secret')}{"body-secret"`
    await say(ground.port, text)
    await pollUntil('the record', () => ground.records.length === 1)
    expect(ground.records[0]).toMatchObject({
      path: '/payments',
      result: 'executed',
      keyHash: expect.stringMatching(/^[0-9a-f]{32}$/),
    })
    expect(JSON.stringify(ground.records)).not.toContain('secret')
  })
})

test('beyond inFlightMax a request is 503 at once, and those under way are not disturbed', async () => {
  const release = Promise.withResolvers<void>()
  const slow = closing(
    await rawUpstream((socket) => void release.promise.then(() => answerWith('late')(socket, undefined as never))),
  )
  const small = await startGround(slow.url, { inFlightMax: 2 })
  const first = [small.post('a'), small.post('b')]
  await pollUntil('two under way', () => small.gateway.inFlight === 2)
  const third = await small.post('c')
  expect([third.status, third.headers.get('retry-after')]).toEqual([503, '1'])
  release.resolve()
  expect((await Promise.all(first)).map(({ status }) => status)).toEqual([201, 201])
})

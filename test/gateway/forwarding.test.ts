// What passes through unchanged, what is taken out, what is added; and what a service behind the gateway can say.
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, describe, expect, test } from 'vitest'
import { createOnce } from '../../src/core/once.ts'
import { idempotency } from '../../src/http/node.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { manualClock } from '../../src/testing/manual-clock.ts'
import { pollUntil } from '../servers/poll.ts'
import { closeAll, closing, dial, say, startGround } from './ground.ts'
import { answerWith, rawUpstream, response, valueIn } from './raw-upstream.ts'

afterEach(closeAll)

const lines = (...all: readonly string[]): string => `${all.join('\r\n')}\r\n\r\n`

type Listener = (req: IncomingMessage, res: ServerResponse) => unknown

async function service(listener: Listener): Promise<{ url: string; close(): Promise<void> }> {
  const server = createServer((req, res) => void listener(req, res))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return closing({
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async close() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  })
}

async function bodyOf(req: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of req as AsyncIterable<Buffer>) chunks.push(chunk)
  return Buffer.concat(chunks)
}

describe('to the upstream', () => {
  test('the request as it came, without what belongs to the connection', async () => {
    const upstream = closing(await rawUpstream(answerWith('ok')))
    const { port } = await startGround(upstream.url)
    const head = lines(
      'POST /a/%7Eb?x=1&x=2;y=%20 HTTP/1.1',
      'Host: shop.example',
      'X-Custom: first',
      'x-custom: second',
      'Accept-Language: de;q=0.5',
      'X-Bytes: \xe9\xff',
      'Content-Type: text/plain',
      'Content-Length: 3',
      'Keep-Alive: timeout=5',
      'Proxy-Connection: keep-alive',
      'Proxy-Authorization: Basic eA==',
      'TE: gzip',
      'Connection: close, X-Hop',
      'X-Hop: 1',
      'Idempotency-Attempt: 99',
      'Idempotency-Key: "k-1"',
    )
    expect(await say(port, `${head}abc`)).toMatch(/^HTTP\/1\.1 201 /)
    const seen = upstream.seen[0]!
    expect(seen.head.split('\r\n')[0]).toBe('POST /a/%7Eb?x=1&x=2;y=%20 HTTP/1.1')
    expect(seen.body).toBe('abc')
    expect(valueIn(seen.head, 'x-custom')).toEqual(['first', 'second'])
    expect(valueIn(seen.head, 'x-bytes')).toEqual(['\xe9\xff'])
    expect(valueIn(seen.head, 'Idempotency-Key')).toEqual(['"k-1"'])
    expect(valueIn(seen.head, 'Idempotency-Attempt')).toEqual(['1'])
    for (const name of ['Keep-Alive', 'Proxy-Connection', 'Proxy-Authorization', 'TE', 'X-Hop', 'Transfer-Encoding'])
      expect(valueIn(seen.head, name), name).toEqual([])
    expect(valueIn(seen.head, 'X-Forwarded-For')).toEqual(['127.0.0.1'])
    expect(valueIn(seen.head, 'X-Forwarded-Host')).toEqual(['shop.example'])
    expect(valueIn(seen.head, 'X-Forwarded-Proto')).toEqual(['http'])
    expect(valueIn(seen.head, 'Forwarded')).toEqual(['for=127.0.0.1;host="shop.example";proto=http'])
    expect(valueIn(seen.head, 'Via')).toEqual([expect.stringMatching(/^1\.1 onceonly-\w+$/)])
  })

  test.each([
    [false, '127.0.0.1', 'http', 'for=127.0.0.1;host="a";proto=http'],
    [true, '192.0.2.1, 127.0.0.1', 'https', 'for=192.0.2.1, for=127.0.0.1;host="a";proto=http'],
  ])(
    'with trustForwarded %s what came in Forwarded is kept or replaced',
    async (trustForwarded, address, proto, chain) => {
      const upstream = closing(await rawUpstream(answerWith('ok')))
      const { port } = await startGround(upstream.url, { trustForwarded })
      const spoofed = ['X-Forwarded-For: 192.0.2.1', 'X-Forwarded-Proto: https', 'Forwarded: for=192.0.2.1']
      await say(port, lines('GET / HTTP/1.1', 'Host: a', 'Connection: close', ...spoofed))
      const { head } = upstream.seen[0]!
      expect(valueIn(head, 'X-Forwarded-For')).toEqual([address])
      expect(valueIn(head, 'X-Forwarded-Proto')).toEqual([proto])
      expect(valueIn(head, 'Forwarded')).toEqual([chain])
    },
  )

  test('a large body without a key streams: the upstream has its beginning before its end was sent', async () => {
    let begun = 0
    const { url } = await service(async (req, res) => {
      for await (const chunk of req) begun += (chunk as Buffer).length
      res.end(String(begun))
    })
    const { port } = await startGround(url)
    const socket = await dial(port)
    const read: Buffer[] = []
    socket.on('data', (chunk: Buffer) => void read.push(chunk))
    const part = Buffer.alloc(100_000, 'x')
    socket.write(lines('POST / HTTP/1.1', 'Host: a', 'Content-Length: 200000'))
    socket.write(part)
    await pollUntil('the first half', () => begun === 100_000)
    socket.write(part)
    await pollUntil('the answer', () => Buffer.concat(read).toString().endsWith('200000'))
    socket.destroy()
  })

  test('an upstream that answers before it has read everything is heard, and the connection ends with its answer', async () => {
    const { url } = await service((_req, res) => res.writeHead(413).end('too much'))
    const { port } = await startGround(url)
    const socket = await dial(port)
    const read: Buffer[] = []
    socket.on('data', (chunk: Buffer) => void read.push(chunk))
    socket.write(lines('POST / HTTP/1.1', 'Host: a', 'Content-Length: 1000000'))
    socket.write('the beginning')
    await pollUntil('the connection to end', () => socket.destroyed || socket.readableEnded)
    expect(Buffer.concat(read).toString()).toMatch(/^HTTP\/1\.1 413 [^]*^Connection: close\r\n[^]*too much$/m)
  })

  test('a large body with a key and its digest streams, too; one that is not what the digest says is never complete upstream', async () => {
    const bodies: number[] = []
    const { url } = await service(async (req, res) => {
      try {
        bodies.push((await bodyOf(req)).length)
        res.end('taken')
      } catch {
        res.destroy()
      }
    })
    const { gateway } = await startGround(url, { bodyBytesMax: 1_000 })
    const body = Buffer.alloc(300_000, 'x')
    const digest = Buffer.from(await crypto.subtle.digest('SHA-256', body)).toString('base64')
    const ask = (key: string, sent: Buffer): Promise<Response> =>
      fetch(gateway.url, {
        method: 'POST',
        body: sent,
        headers: { 'idempotency-key': key, 'content-digest': `sha-256=:${digest}:` },
      })
    expect(await (await ask('right', body)).text()).toBe('taken')
    expect((await ask('right', body)).headers.get('idempotent-replayed')).toBe('true')
    const wrong = await ask('wrong', Buffer.alloc(300_000, 'y'))
    expect([wrong.status, ((await wrong.json()) as { code: string }).code]).toEqual([
      400,
      'idempotency-digest-mismatch',
    ])
    expect(bodies).toEqual([300_000])
  })
})

describe('to the client', () => {
  test('the answer as it came, without what belongs to the connection; the replay is the same', async () => {
    const body = Buffer.from(Array.from({ length: 256 }, (_, octet) => octet))
    const head = [
      '201 Made',
      'Content-Length: 256',
      'X-Custom: one',
      'X-Custom: two',
      'Set-Cookie: a=1',
      'Connection: X-Hop',
      'X-Hop: 1',
      'Keep-Alive: timeout=9',
      'Via: 1.1 inner',
    ]
    const upstream = closing(
      await rawUpstream(
        (socket) => void socket.write(Buffer.concat([Buffer.from(`HTTP/1.1 ${head.join('\r\n')}\r\n\r\n`), body])),
      ),
    )
    const { port } = await startGround(upstream.url)
    const ask = lines('POST / HTTP/1.1', 'Host: a', 'Content-Length: 0', 'Connection: close', 'Idempotency-Key: k')
    const [first, second] = [await say(port, ask), await say(port, ask)]
    for (const answer of [first, second]) {
      expect(answer).toMatch(/^HTTP\/1\.1 201 Made\r\n/)
      expect(valueIn(answer, 'X-Custom')).toEqual(['one', 'two'])
      expect(valueIn(answer, 'Via')).toEqual([expect.stringMatching(/^1\.1 inner, 1\.1 onceonly-\w+$/)])
      expect(valueIn(answer, 'X-Hop')).toEqual([])
      expect(answer.endsWith(body.toString('latin1'))).toBe(true)
    }
    expect([valueIn(first, 'Set-Cookie'), valueIn(second, 'Set-Cookie')]).toEqual([['a=1'], []])
    expect([valueIn(first, 'Idempotent-Replayed'), valueIn(second, 'Idempotent-Replayed')]).toEqual([[], ['true']])
    expect(upstream.seen).toHaveLength(1)
  })

  test('trailers reach a client that asked for them', async () => {
    const upstream = closing(
      await rawUpstream(
        (socket) =>
          void socket.write('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 42\r\n\r\n'),
      ),
    )
    const { port } = await startGround(upstream.url)
    const asked = await say(port, lines('GET / HTTP/1.1', 'Host: a', 'TE: trailers', 'Connection: close, TE'))
    expect(asked).toMatch(/\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 42\r\n\r\n$/)
    const keyed = await say(
      port,
      lines('POST / HTTP/1.1', 'Host: a', 'TE: trailers', 'Connection: close', 'Idempotency-Key: k'),
    )
    expect(keyed).toMatch(/\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 42\r\n\r\n$/)
    const unasked = await say(port, lines('GET / HTTP/1.1', 'Host: a', 'Connection: close'))
    expect(unasked).not.toContain('X-Sum')
  })

  test('HEAD, 204, 304 and news before the answer', async () => {
    const upstream = closing(
      await rawUpstream((socket, { head }) => {
        if (head.startsWith('HEAD')) socket.write('HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n')
        else if (head.startsWith('GET /304')) socket.write('HTTP/1.1 304 Not Modified\r\nETag: "a"\r\n\r\n')
        else if (head.startsWith('GET /news'))
          socket.write(`HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n${response('after')}`)
        else socket.write('HTTP/1.1 204 No Content\r\n\r\n')
      }),
    )
    const { gateway, post } = await startGround(upstream.url)
    const head = await fetch(gateway.url, { method: 'HEAD' })
    expect([head.status, head.headers.get('content-length')]).toEqual([200, '5000'])
    expect((await fetch(`${gateway.url}/304`)).status).toBe(304)
    expect(await (await fetch(`${gateway.url}/news`)).text()).toBe('after')
    expect([(await post('k')).status, (await post('k')).status]).toEqual([204, 204])
    expect(upstream.seen).toHaveLength(4)
  })

  test('events pass as they come', async () => {
    let gate = Promise.withResolvers<void>()
    const { url } = await service(async (_req, res) => {
      gate = Promise.withResolvers<void>()
      res.writeHead(200, { 'Content-Type': 'text/event-stream' }).write('data: 1\n\n')
      await gate.promise
      res.end('data: 2\n\n')
    })
    const { post } = await startGround(url)
    for (const key of [undefined, 'k']) {
      const reader = (await post(key)).body!.getReader()
      const text = async (): Promise<string> => Buffer.from((await reader.read()).value!).toString()
      expect(await text()).toBe('data: 1\n\n')
      gate.resolve()
      expect(await text()).toBe('data: 2\n\n')
    }
    expect((await post('k')).status).toBe(409)
  })
})

describe('what the service says about its answer', () => {
  const wish =
    (said: string, status: number): Listener =>
    (req, res) => {
      req.resume()
      res.writeHead(status, { 'Idempotency-Answer': said }).end(`${said} ${status}`)
    }
  test.each([
    ['store', 503, [false, true], 503],
    ['release', 201, [false, false], 201],
    ['not-begun', 422, [false, false], 422],
  ])('%s', async (said, status, replays, seen) => {
    const { url } = await service(wish(said, status))
    const { post } = await startGround(url)
    const answers = [await post('k'), await post('k')]
    expect(answers.map(({ headers }) => headers.get('idempotent-replayed') === 'true')).toEqual(replays)
    expect(answers.map((each) => each.status)).toEqual([seen, seen])
    expect(answers.map(({ headers }) => headers.get('idempotency-answer'))).toEqual([null, null])
    // Only what never began leaves the key to another request.
    const problem = (await (await post('k', 'another')).text()).includes('idempotency-key-reused')
    expect(problem).toBe(said !== 'not-begun')
  })
})

describe('layers compose', () => {
  test('a service with onceonly on the same store and the same key: one effect, and both remember', async () => {
    const clock = manualClock()
    const store = memoryStore({ clock })
    const once = createOnce({ store, scope: 'payments', clock })
    let charges = 0
    const attempts: (string | undefined)[] = []
    const guarded = idempotency(once, { tenant: 'shared' })((_req: IncomingMessage, res: ServerResponse) => {
      charges++
      res.writeHead(201).end(`charge ${charges}`)
    })
    const { url } = await service((req, res) => {
      attempts.push(req.headers['idempotency-attempt'] as string)
      void guarded(req, res)
    })
    const { post, gateway } = await startGround(url, { store, clock })
    const answers = [await post('k'), await post('k')]
    expect(await Promise.all(answers.map((each) => each.text()))).toEqual(['charge 1', 'charge 1'])
    expect(charges).toBe(1)
    // The gateway forgets; the service does not, and says so through the gateway.
    await gateway.once.forget({ scope: 'gateway:default/', id: 'k' }, 'test')
    const third = await post('k')
    expect([await third.text(), third.headers.get('idempotent-replayed')]).toEqual(['charge 1', 'true'])
    expect([charges, attempts]).toEqual([1, ['1', '1']])
  })

  test('two gateways in a row, and two services of one store', async () => {
    const store = memoryStore()
    const upstream = closing(await rawUpstream(answerWith('once')))
    const other = closing(await rawUpstream(answerWith('other')))
    const inner = await startGround(upstream.url, { store, service: 'payments' })
    const outer = await startGround(inner.gateway.url, { store, service: 'edge' })
    const orders = await startGround(other.url, { store, service: 'orders' })
    for (const { post } of [outer, outer, inner]) expect(await (await post('k')).text()).toBe('once')
    expect(await (await orders.post('k')).text()).toBe('other')
    expect(upstream.seen).toHaveLength(1)
  })
})

test('the rules are published by the gateway, and are not the service’s to answer', async () => {
  const upstream = closing(await rawUpstream(answerWith('no')))
  const { gateway } = await startGround(upstream.url, { keepMs: 3_600_000, methods: ['POST', 'PUT'] })
  const rules = await fetch(`${gateway.url}/.well-known/idempotency`, { headers: { accept: 'application/json' } })
  expect(await rules.json()).toMatchObject({ windowSeconds: 3_600, methods: ['POST', 'PUT'] })
  expect(upstream.seen).toEqual([])
})

describe('routes', () => {
  test('the first that fits decides; the others are as the gateway says', async () => {
    const upstream = closing(await rawUpstream(answerWith('ok')))
    const { gateway } = await startGround(upstream.url, {
      routes: [
        { path: '/events/**', protect: false },
        { path: '/transfers/*', methods: ['POST', 'PUT'], required: true, keepMs: 7 * 86_400_000 },
      ],
    })
    const ask = (method: string, path: string, key?: string): Promise<Response> =>
      fetch(gateway.url + path, { method, body: '{}', headers: key === undefined ? {} : { 'idempotency-key': key } })
    expect((await ask('PUT', '/transfers/1')).status).toBe(400)
    expect((await ask('PUT', '/transfers//%31/')).status).toBe(400)
    const kept = await ask('PUT', '/transfers/1', 'k')
    expect([kept.status, kept.headers.get('idempotency-window')]).toEqual([201, String(7 * 86_400)])
    expect((await ask('PUT', '/transfers/1', 'k')).headers.get('idempotent-replayed')).toBe('true')
    expect((await ask('PUT', '/other', 'x')).headers.get('idempotency-window')).toBeNull()
    expect((await ask('POST', '/other', 'y')).headers.get('idempotency-window')).toBe('86400')
    for (const _ of [1, 2])
      expect((await ask('POST', '/events/a/b', 'z')).headers.get('idempotent-replayed')).toBeNull()
    expect(upstream.seen).toHaveLength(5)
  })
})

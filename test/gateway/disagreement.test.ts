// Where the gateway and the reader next to it (a client, a service, another proxy) could disagree about a message, and whoever
// holds a connection without using it.
import { once as onceEvent } from 'node:events'
import { connect } from 'node:net'
import type { Socket } from 'node:net'
import { afterEach, describe, expect, test } from 'vitest'
import { pollUntil } from '../servers/poll.ts'
import { closeAll, closing, dial, say, startGround } from './ground.ts'
import { answerWith, rawUpstream, valueIn } from './raw-upstream.ts'

afterEach(closeAll)

const lines = (...all: readonly string[]): string => `${all.join('\r\n')}\r\n\r\n`

describe('services that take X_Name for X-Name (CGI, WSGI, PHP)', () => {
  test('are not told by a client what only the gateway says', async () => {
    const upstream = closing(await rawUpstream(answerWith('ok')))
    const { port } = await startGround(upstream.url)
    await say(
      port,
      lines(
        'POST / HTTP/1.1',
        'Host: a',
        'Idempotency-Key: k',
        'Idempotency_Attempt: 7',
        'X_Forwarded_For: 10.0.0.1',
        'X-Forwarded_Proto: https',
        'Transfer_Encoding: chunked',
        'X_Other: stays',
        'Connection: close',
        'Content-Length: 0',
      ),
    )
    const { head } = upstream.seen[0]!
    expect(head).not.toMatch(/idempotency_attempt|x_forwarded_for|x-forwarded_proto|transfer_encoding/i)
    expect(valueIn(head, 'Idempotency-Attempt')).toEqual(['1'])
    expect(valueIn(head, 'X_Other')).toEqual(['stays'])
  })

  test.each(['X_Account: victim', 'Idempotency_Key: another'])('%s is refused', async (line) => {
    const upstream = closing(await rawUpstream(answerWith('ok')))
    const { port } = await startGround(upstream.url, { tenantHeader: 'X-Account' })
    const asked = lines('POST / HTTP/1.1', 'Host: a', 'X-Account: me', 'Idempotency-Key: k', line, 'Connection: close')
    expect(await say(port, asked)).toMatch(/^HTTP\/1\.1 400 [^]*gateway-bad-request/)
    expect(upstream.seen).toEqual([])
  })
})

describe('paths that servers read in two ways do not lead around a rule', () => {
  test.each([
    ['a backslash', '/events/..\\transfers/1'],
    ['a parameter on a dot segment', '/events/..;/transfers/1'],
    ['the same, escaped', '/events/%2e%2E;x=1/transfers/1'],
  ])('%s is refused', async (_name, path) => {
    const upstream = closing(await rawUpstream(answerWith('ok')))
    const { port } = await startGround(upstream.url, { routes: [{ path: '/events/**', protect: false }] })
    const answer = await say(port, lines(`GET ${path} HTTP/1.1`, 'Host: a', 'Connection: close'))
    expect(answer).toMatch(/^HTTP\/1\.1 400 [^]*gateway-bad-request/)
    expect(upstream.seen).toEqual([])
  })

  test.each([
    '/events/..%2ftransfers/1',
    '/events/%2e%2e%2Ftransfers/1',
    '/events/..%5Ctransfers/1',
    '/x%2f..%2ftransfers/1',
    '/transfers%2F1',
  ])('%s, on one route to some and on another to others, is refused', async (path) => {
    const upstream = closing(await rawUpstream(answerWith('x')))
    const routes = [
      { path: '/events/**', protect: false },
      { path: '/transfers/*', required: true },
    ]
    const { port } = await startGround(upstream.url, { routes })
    const asked = (target: string): Promise<string> =>
      say(port, `POST ${target} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}`)
    expect(await asked(path)).toMatch(/^HTTP\/1\.1 400 [^]*gateway-bad-request/)
    expect(upstream.seen).toEqual([])
    // One that is on the same route for both is a path like all others: the name of a package, of a project.
    expect(await asked('/events/@scope%2Fname')).toMatch(/^HTTP\/1\.1 201 /)
    expect(await asked('/projects/group%2Fname')).toMatch(/^HTTP\/1\.1 201 /)
    expect(upstream.seen.map(({ head }) => head.split(' ')[1])).toEqual([
      '/events/@scope%2Fname',
      '/projects/group%2Fname',
    ])
  })

  test.each(['/v1/a;b/c', '/files/..a', '/search?q=a\\b'])('%s passes as it is', async (path) => {
    const upstream = closing(await rawUpstream(answerWith('ok')))
    const { port } = await startGround(upstream.url)
    await say(port, lines(`GET ${path} HTTP/1.1`, 'Host: a', 'Connection: close'))
    expect(upstream.seen[0]!.head).toContain(`GET ${path} HTTP/1.1`)
  })
})

describe('an answer', () => {
  const answered = async (text: string, ...more: readonly string[]): Promise<string> => {
    const upstream = closing(await rawUpstream((socket) => void socket.end(text)))
    const { port } = await startGround(upstream.url)
    return say(port, lines('GET / HTTP/1.1', 'Host: a', 'Connection: close', ...more))
  }

  test('every Connection line takes out what it names', async () => {
    const answer = await answered(
      'HTTP/1.1 200 OK\r\nConnection: close\r\nConnection: X-Internal\r\nX-Internal: secret\r\nX-Kept: 1\r\nContent-Length: 2\r\n\r\nok',
    )
    expect(answer).toContain('X-Kept: 1')
    expect(answer).not.toMatch(/X-Internal/i)
  })

  test.each([
    ['a length and chunks', 'Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n2\r\nok\r\n0\r\n\r\n'],
    ['chunks after a length', 'Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n'],
    ['two lengths', 'Content-Length: 2\r\nContent-Length: 20\r\n\r\nok'],
    ['another coding than chunked', 'Transfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n'],
    ['chunked that is not last', 'Transfer-Encoding: chunked, gzip\r\n\r\nok'],
  ])('with %s is 502, and never one that ends elsewhere for the client', async (_name, rest) => {
    expect(await answered(`HTTP/1.1 200 OK\r\n${rest}`)).toMatch(/^HTTP\/1\.1 502 [^]*gateway-upstream-broken/)
  })

  test('trailers of one name are kept together, and none of them frames, routes or authenticates', async () => {
    const answer = await answered(
      'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n' +
        'X-Sum: 1\r\nX-Sum: 2\r\nConnection: x\r\nSet-Cookie: a=b\r\nContent-Encoding: gzip\r\nProxy-Authenticate: x\r\n\r\n',
      'TE: trailers',
    )
    const [, trailers] = answer.split('\r\n0\r\n')
    expect(trailers).toBe('X-Sum: 1, 2\r\n\r\n')
  })
})

describe('whoever holds a connection', () => {
  test('and many more of them cannot take all that there are', async () => {
    const upstream = closing(await rawUpstream(answerWith('ok')))
    const { port } = await startGround(upstream.url, { inFlightMax: 1 })
    const idle = []
    for (let count = 0; count < 4; count++) idle.push(await dial(port))
    const refused = connect(port, '127.0.0.1')
    refused.on('error', () => {})
    await new Promise((resolve) => refused.once('close', resolve))
    idle[0]!.destroy()
    await pollUntil('room for another', async () => {
      const asked = fetch(`http://127.0.0.1:${port}/`).then(({ status }) => status)
      return (await asked.catch(() => undefined)) === 201
    })
    for (const socket of idle) socket.destroy()
  })

  test('after CONNECT was refused loses it', async () => {
    const upstream = closing(await rawUpstream(answerWith('ok')))
    const { port } = await startGround(upstream.url)
    const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true })
    socket.on('error', () => {})
    const closed = new Promise((resolve) => socket.once('close', resolve))
    let told = ''
    socket.on('data', (chunk: Buffer) => void (told += chunk.toString()))
    socket.write(lines('CONNECT a:1 HTTP/1.1', 'Host: a:1'))
    await onceEvent(socket, 'end')
    expect(told).toMatch(/^HTTP\/1\.1 501 /)
    // The gateway is gone from the other end: whatever is written now meets a reset.
    const writing = setInterval(() => socket.write('x'), 50)
    await closed.finally(() => clearInterval(writing))
  })

  test('and does not read its answer makes room for others when the upstream would have lost patience, too', async () => {
    const part = Buffer.alloc(64 * 1_024, 'x')
    const flood = (socket: Socket): void => {
      while (!socket.destroyed) if (!socket.write(part)) return void socket.once('drain', () => flood(socket))
    }
    const upstream = closing(
      await rawUpstream((socket) => {
        socket.write('HTTP/1.1 200 OK\r\nContent-Length: 536870912\r\n\r\n')
        flood(socket)
      }),
    )
    const { gateway, port } = await startGround(upstream.url, { upstreamTimeoutMs: 500, connectTimeoutMs: 500 })
    const socket = await dial(port)
    socket.pause()
    socket.write(lines('GET / HTTP/1.1', 'Host: a'))
    await pollUntil('the upstream to be asked', () => upstream.seen.length === 1)
    await pollUntil('the slot to be free again', () => gateway.inFlight === 0)
    await pollUntil('the upstream to be let go', () => upstream.connections[0]!.destroyed)
    socket.destroy()
  })
})

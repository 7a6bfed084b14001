// Answers that are legal and rare, or not legal at all: the client gets what was meant, or an error, and never the octets of one
// answer in another. Over raw sockets on both sides.
import { once } from 'node:events'
import { afterEach, describe, expect, test } from 'vitest'
import { pollUntil } from '../servers/poll.ts'
import { closeAll, closing, dial, type Ground, say, startGround } from './ground.ts'
import { rawUpstream, type RawUpstream, response, type Script } from './raw-upstream.ts'

afterEach(closeAll)

const lines = (...all: readonly string[]): string => `${all.join('\r\n')}\r\n\r\n`
const get = (path: string, ...more: readonly string[]): string => lines(`GET ${path} HTTP/1.1`, 'Host: a', ...more)
const post = (path: string, key: string): string =>
  `${lines(`POST ${path} HTTP/1.1`, 'Host: a', `Idempotency-Key: ${key}`, 'Content-Length: 2', 'Connection: close')}{}`
const raw =
  (text: string): Script =>
  (socket) =>
    void socket.write(Buffer.from(text, 'latin1'))

async function behind(script: Script): Promise<Ground & { upstream: RawUpstream }> {
  const upstream = closing(await rawUpstream(script))
  return { ...(await startGround(upstream.url)), upstream }
}

describe('an answer that ends with its head', () => {
  test.each(['304 Not Modified', '204 No Content'])('%s with a length is whole', async (status) => {
    const { port, upstream } = await behind((socket, { head }) =>
      raw(/\/odd/.test(head) ? `HTTP/1.1 ${status}\r\nContent-Length: 20\r\nETag: "a"\r\n\r\n` : response('next'))(
        socket,
        undefined as never,
      ),
    )
    const two = await say(port, get('/odd') + get('/next', 'Connection: close'))
    expect(two.startsWith(`HTTP/1.1 ${status}\r\n`)).toBe(true)
    expect(two).toMatch(/^ETag: "a"/m)
    expect(two).toMatch(/HTTP\/1\.1 201 Created[^]*\r\n\r\nnext$/)
    for (const replayed of [false, true]) {
      const answer = await say(port, post('/odd', 'k'))
      expect(answer.startsWith(`HTTP/1.1 ${status}\r\n`)).toBe(true)
      expect(/^Idempotent-Replayed/m.test(answer)).toBe(replayed)
    }
    expect(upstream.seen).toHaveLength(3)
  })
})

describe('an answer whose head Node would not write', () => {
  test.each(['\xe9t\xe9', 'a\x01b'])('the reason %j is left out, and the answer is not lost', async (reason) => {
    const { port } = await behind(raw(`HTTP/1.1 200 ${reason}\r\nContent-Length: 2\r\n\r\nok`))
    expect(await say(port, get('/', 'Connection: close'))).toMatch(/^HTTP\/1\.1 200 \r\n[^]*\r\n\r\nok$/)
    expect(await say(port, post('/', 'k'))).toMatch(/^HTTP\/1\.1 200 [^]*\r\n\r\nok$/)
    expect(await say(port, post('/', 'k'))).toMatch(/^Idempotent-Replayed: true/m)
  })

  test.each([
    ['a control character in a value', 'HTTP/1.1 200 OK\r\nX-A: a\x01b\r\nContent-Length: 2\r\n\r\nok'],
    ['no status', 'HTTP/1.1 099 Odd\r\nContent-Length: 2\r\n\r\nok'],
    ['no HTTP', 'SSH-2.0-OpenSSH_9.2\r\n'],
    [
      'a protocol that nobody asked for',
      lines('HTTP/1.1 101 Switching Protocols', 'Upgrade: x', 'Connection: upgrade'),
    ],
    ['a chunk that is none', `${lines('HTTP/1.1 200 OK', 'Transfer-Encoding: chunked')}zz\r\n`],
  ])('%s: 502, framed by itself, and the connection goes on or ends', async (_name, text) => {
    const { port, records } = await behind((socket, { head }) =>
      raw(/\/odd/.test(head) ? text : response('next'))(socket, undefined as never),
    )
    const answers = await say(port, get('/odd') + get('/next', 'Connection: close'))
    const [, first = '', body = ''] = /^([^]*?)\r\n\r\n([^]*)$/.exec(answers) ?? []
    if (first.startsWith('HTTP/1.1 502 ')) {
      const length = Number(/^content-length: (\d+)$/im.exec(first)![1])
      expect(JSON.parse(body.slice(0, length))).toMatchObject({ status: 502 })
      expect(body.slice(length)).toMatch(/^HTTP\/1\.1 201 Created[^]*next$/)
    } else expect(answers).not.toMatch(/0\r\n\r\n$/)
    expect(await say(port, post('/odd', 'k'))).toMatch(/^HTTP\/1\.1 502 /)
    await pollUntil('the record', () => records.at(-1)?.result === 'in-doubt')
  })
})

test.each(['HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nPOISON', 'GARBAGE', '\r\n'])(
  'what a service sends after its answer (%j) is in nobody’s answer',
  async (more) => {
    const { port, upstream } = await behind((socket, { head }) => {
      socket.write(response(`for ${head.split(' ')[1]}`) + more)
    })
    for (const path of ['/1', '/2', '/3']) {
      expect(await say(port, post(path, path))).toMatch(new RegExp(`\r\n\r\nfor ${path}$`))
      expect(await say(port, get(path, 'Connection: close'))).toMatch(new RegExp(`\r\n\r\nfor ${path}$`))
    }
    expect(upstream.seen).toHaveLength(6)
  },
)

test('a client of HTTP/1.0 is told by a reset that an answer broke off: it cannot know it otherwise', async () => {
  const { port } = await behind((socket) => {
    socket.write(`${lines('HTTP/1.1 200 OK', 'Transfer-Encoding: chunked')}5\r\nhello\r\n`)
    socket.end()
  })
  const socket = await dial(port)
  const failed = once(socket, 'error')
  socket.write(lines('GET / HTTP/1.0', 'Host: a'))
  // It comes as the rejection of a read, whatever had been read before.
  socket.resume()
  const [error] = (await failed) as [NodeJS.ErrnoException]
  expect(error.code).toBe('ECONNRESET')
})

test('a request that broke off is logged as one without an answer', async () => {
  const { port, records } = await behind(raw(response('never')))
  const broken = `${lines('POST / HTTP/1.1', 'Host: a', 'Idempotency-Key: k', 'Transfer-Encoding: chunked')}2\r\n{}\r\nzz\r\n`
  expect(await say(port, broken)).toMatch(/^HTTP\/1\.1 400 /)
  await pollUntil('the record', () => records.length === 1)
  expect(records[0]).toMatchObject({ status: 499, clientGone: true })
})

// An upstream that fails in every place where it can: what is said, what is remembered, and how often it was asked.
import { once as onceEvent } from 'node:events'
import type { Socket } from 'node:net'
import { afterEach, describe, expect, test } from 'vitest'
import { freePort } from '../servers/free-port.ts'
import { pollUntil } from '../servers/poll.ts'
import { closeAll, closing, dial, type Ground, say, startGround } from './ground.ts'
import { answerWith, rawUpstream, response, type Script, valueIn } from './raw-upstream.ts'

afterEach(closeAll)

const leaseMs = 30_000
const replayed = (answer: Response): boolean => answer.headers.get('idempotent-replayed') === 'true'
const entryOf = ({ gateway }: Ground, id: string): ReturnType<typeof gateway.once.get> =>
  gateway.once.get({ scope: 'gateway:default/', id })

async function problemOf(answer: Response): Promise<{ status: number; code: string; executed: string }> {
  const { code, executed } = (await answer.json()) as { code: string; executed: string }
  return { status: answer.status, code, executed }
}

describe('before a byte was sent', () => {
  test('an upstream that cannot be reached is 502, nothing is remembered, and the key is free for another request', async () => {
    const ground = await startGround(`http://127.0.0.1:${await freePort()}`)
    expect(await problemOf(await ground.post('k', 'first'))).toEqual({
      status: 502,
      code: 'gateway-upstream-unreachable',
      executed: 'no',
    })
    expect(await entryOf(ground, 'k')).toBeUndefined()
    expect((await ground.post('k', 'another')).status).toBe(502)
    expect(ground.records.map(({ result }) => result)).toEqual(['unreachable', 'unreachable'])
  })

  test('a connection that the upstream closed while it was idle is not written to: each request is sent once', async () => {
    const upstream = closing(
      await rawUpstream((socket) => {
        socket.write(response('done'))
        socket.end()
      }),
    )
    const ground = await startGround(upstream.url)
    for (const key of ['a', 'b', 'c']) {
      expect((await ground.post(key)).status).toBe(201)
      // The close has arrived, and nobody has looked at it.
      await pollUntil('the connection to be closed', () => upstream.connections.every(({ destroyed }) => destroyed))
    }
    expect(upstream.seen.map(({ onConnection }) => onConnection)).toEqual([1, 1, 1])
  })
})

test('a kept connection that is closed under a request is no reason to send the request again, with a key or without', async () => {
  const upstream = closing(
    await rawUpstream(
      (socket) => void (upstream.seen.length === 1 ? socket.write(response('done')) : socket.destroy()),
    ),
  )
  const ground = await startGround(upstream.url, { upstreamIdleMs: 60_000 })
  expect((await ground.post('a')).status).toBe(201)
  expect((await ground.post('b')).status).toBe(502)
  expect(upstream.seen.map(({ onConnection }) => onConnection)).toEqual([1, 2])
  expect((await ground.post(undefined)).status).toBe(502)
  expect((await fetch(ground.gateway.url)).status).toBe(502)
  expect(upstream.seen).toHaveLength(4)
})

const breaks: Readonly<Record<string, Script>> = {
  'resets the connection without an answer': (socket) => void socket.resetAndDestroy(),
  'closes the connection without an answer': (socket) => void socket.end(),
  'breaks off inside the head': (socket) => void socket.write('HTTP/1.1 201 Crea', () => socket.resetAndDestroy()),
  'breaks off inside a body with a length': (socket) =>
    void socket.write('HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\nhalf of it', () => socket.end()),
  'breaks off inside a chunk': (socket) =>
    void socket.write('HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n20\r\nhalf of it', () => socket.end()),
  'breaks off before the last chunk': (socket) =>
    void socket.write('HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n', () =>
      socket.resetAndDestroy(),
    ),
  'answers what is no HTTP': (socket) => void socket.write('SSH-2.0-OpenSSH_9.2p1\r\n'),
  'switches protocols unasked': (socket) =>
    void socket.write('HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n'),
  'answers with two lengths': (socket) =>
    void socket.write('HTTP/1.1 201 Created\r\nContent-Length: 2\r\nContent-Length: 4\r\n\r\nokok'),
  'answers with a length and chunks': (socket) =>
    void socket.write('HTTP/1.1 201 Created\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n'),
  'sends a header that cannot be passed on': (socket) =>
    void socket.write('HTTP/1.1 201 Created\r\nX-Evil: a\x01b\r\nContent-Length: 2\r\n\r\nok'),
}

describe.each(Object.entries(breaks))('an upstream that %s', (_name, script) => {
  test('is 502 and unknown, nothing is stored, and the key is claimed until its lease ends; then the request is sent again', async () => {
    let broken = true
    const upstream = closing(await rawUpstream((socket, seen) => (broken ? script : answerWith('done'))(socket, seen)))
    const ground = await startGround(upstream.url)
    const first = await ground.post('k')
    expect([first.headers.get('retry-after'), first.headers.get('idempotency-window')]).toEqual(['30', '86400'])
    expect(await problemOf(first)).toEqual({ status: 502, code: 'gateway-upstream-broken', executed: 'unknown' })
    expect(await entryOf(ground, 'k')).toMatchObject({ state: 'running', attempt: 1 })
    broken = false
    expect(await problemOf(await ground.post('k'))).toMatchObject({ status: 409, code: 'idempotency-in-progress' })
    expect(upstream.seen).toHaveLength(1)
    await ground.clock.advance(leaseMs)
    const again = await ground.post('k')
    expect([again.status, await again.text(), replayed(again)]).toEqual([201, 'done', false])
    expect(upstream.seen.map(({ head }) => valueIn(head, 'Idempotency-Attempt'))).toEqual([['1'], ['2']])
    expect(replayed(await ground.post('k'))).toBe(true)
    expect(ground.records.map(({ result }) => result)).toEqual(['in-doubt', 'refused', 'executed', 'replayed'])
  })

  test.each(['release-5xx', 'began', 'success-only'] as const)(
    'is asked once for ever with onTakeover refuse, and errorPolicy %s makes no difference',
    async (errorPolicy) => {
      const upstream = closing(await rawUpstream(script))
      const ground = await startGround(upstream.url, { onTakeover: 'refuse', errorPolicy })
      expect((await ground.post('k')).status).toBe(502)
      await ground.clock.advance(leaseMs)
      const second = await ground.post('k')
      expect(await problemOf(second)).toMatchObject({ status: 409, code: 'idempotency-outcome-unknown' })
      expect(upstream.seen).toHaveLength(1)
    },
  )

  test('is 502 without a key, too, and asked once', async () => {
    const upstream = closing(await rawUpstream(script))
    const ground = await startGround(upstream.url)
    const read = async (answer: Response): Promise<string> => `${answer.status} ${await answer.text()}`
    const seen = await ground
      .post(undefined)
      .then(read)
      .catch(() => 'broken')
    // Where the head has left already, the connection breaks: half an answer never looks like a whole one.
    expect(seen).toMatch(/^broken$|^502 .*"gateway-upstream-broken"/)
    expect(upstream.seen).toHaveLength(1)
  })
})

test('an upstream that does not answer in time is 504 and unknown, and keeps its key', async () => {
  const upstream = closing(await rawUpstream(() => {}))
  const ground = await startGround(upstream.url, { upstreamTimeoutMs: 500 })
  expect(await problemOf(await ground.post('k'))).toEqual({
    status: 504,
    code: 'gateway-upstream-timeout',
    executed: 'unknown',
  })
  expect(await entryOf(ground, 'k')).toMatchObject({ state: 'running' })
  expect(ground.records[0]).toMatchObject({ result: 'in-doubt', cause: 'UND_ERR_HEADERS_TIMEOUT' })
})

test('with the store down and onStoreDown run, a broken answer is 502 all the same', async () => {
  const upstream = closing(await rawUpstream(breaks['breaks off inside a chunk']!))
  const down = async (): Promise<never> => {
    throw new Error('down')
  }
  const store = { name: 'down', claim: down, extend: down, settle: down, release: down }
  const ground = await startGround(upstream.url, { store, onStoreDown: 'run' })
  expect(await problemOf(await ground.post('k'))).toMatchObject({ status: 502, executed: 'unknown' })
  expect(upstream.seen).toHaveLength(1)
})

test('a request that passes while the store is down is unprotected: in its record, in the metrics and in its answer', async () => {
  const upstream = closing(
    await rawUpstream((socket) => void socket.end('HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok')),
  )
  const down = async (): Promise<never> => {
    throw new Error('down')
  }
  const store = { name: 'down', claim: down, extend: down, settle: down, release: down }
  const ground = await startGround(upstream.url, { store, onStoreDown: 'run' })
  const answer = await ground.post('k')
  expect([answer.status, answer.headers.get('idempotency-status')]).toEqual([201, 'unprotected'])
  expect(ground.records).toMatchObject([{ result: 'unprotected', status: 201 }])
})

test('an answer that ends with its connection is passed on and not stored: nobody can tell whether it is complete', async () => {
  const upstream = closing(
    await rawUpstream((socket) => void socket.end('HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall of it, or not')),
  )
  const ground = await startGround(upstream.url)
  const first = await ground.post('k')
  expect([first.status, await first.text()]).toEqual([200, 'all of it, or not'])
  expect(await problemOf(await ground.post('k'))).toEqual({
    status: 409,
    code: 'idempotency-response-not-stored',
    executed: 'yes',
  })
  expect(upstream.seen).toHaveLength(1)
})

test('an answer too large to be stored is cut where the upstream cuts it, and is never run again', async () => {
  const part = 'x'.repeat(64 * 1_024)
  const upstream = closing(
    await rawUpstream(
      (socket) =>
        void socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${100 * part.length}\r\n\r\n${part}`, () => socket.end()),
    ),
  )
  const ground = await startGround(upstream.url, { storedBytesMax: 1_024 })
  const first = await ground.post('k')
  expect(first.status).toBe(200)
  await expect(first.text()).rejects.toThrow()
  expect(await problemOf(await ground.post('k'))).toMatchObject({ code: 'idempotency-response-not-stored' })
  expect(upstream.seen).toHaveLength(1)
})

test('a thousand duplicates at once are one request to the upstream, and one answer for all of them', async () => {
  const release = Promise.withResolvers<void>()
  const upstream = closing(
    await rawUpstream((socket) => void release.promise.then(() => socket.write(response('the one')))),
  )
  const ground = await startGround(upstream.url, { waitMs: 60_000 })
  const answers = Array.from({ length: 1_000 }, () =>
    ground.post('k').then(async (each) => [each.status, await each.text()]),
  )
  await pollUntil('all of them to be under way', () => ground.gateway.inFlight === 1_000)
  release.resolve()
  // Duplicates look again by the clock.
  let open = true
  const all = Promise.all(answers).finally(() => void (open = false))
  await pollUntil('all answers', async () => !open || (await ground.clock.advance(50), false), { intervalMs: 5 })
  expect(new Set((await all).map((each) => each.join(' ')))).toEqual(new Set(['201 the one']))
  expect(upstream.seen).toHaveLength(1)
})

describe('a client that goes away', () => {
  const ask = 'POST /payments HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n'

  test('does not lose the outcome of a request with a key', async () => {
    const release = Promise.withResolvers<void>()
    const upstream = closing(
      await rawUpstream((socket) => void release.promise.then(() => socket.write(response('done')))),
    )
    const ground = await startGround(upstream.url)
    const socket = await dial(ground.port)
    socket.write(`${ask}Idempotency-Key: k\r\n\r\n{}`)
    await pollUntil('the upstream to be asked', () => upstream.seen.length === 1)
    socket.destroy()
    await onceEvent(socket, 'close')
    release.resolve()
    await expect.poll(async () => (await entryOf(ground, 'k'))?.state, { timeout: 8_000 }).toBe('settled')
    await pollUntil('the request to be over', () => ground.gateway.inFlight === 0)
    const again = await say(ground.port, `${ask}Idempotency-Key: k\r\nConnection: close\r\n\r\n{}`)
    expect(again).toMatch(/^HTTP\/1\.1 201 Created\r\n[^]*^Idempotent-Replayed: true\r\n[^]*\r\n\r\ndone$/m)
    expect(upstream.seen).toHaveLength(1)
  })

  test('takes a request without a key along', async () => {
    const upstream = closing(await rawUpstream(() => {}))
    const ground = await startGround(upstream.url)
    const socket = await dial(ground.port)
    socket.write(`${ask}\r\n{}`)
    await pollUntil('the upstream to be asked', () => upstream.seen.length === 1)
    socket.destroy()
    await pollUntil('the upstream to be left', () => upstream.connections[0]!.destroyed)
    await pollUntil('the request to be over', () => ground.gateway.inFlight === 0)
  })

  test('in the middle of its request leaves nothing behind', async () => {
    const upstream = closing(await rawUpstream(answerWith('done')))
    const ground = await startGround(upstream.url)
    const socket = await dial(ground.port)
    socket.write(`${ask}Idempotency-Key: k\r\n\r\n{`)
    await pollUntil('the request to be under way', () => ground.gateway.inFlight === 1)
    socket.destroy()
    await pollUntil('the request to be over', () => ground.gateway.inFlight === 0)
    expect(upstream.seen).toHaveLength(0)
    expect(await entryOf(ground, 'k')).toBeUndefined()
  })

  test('and does not read what it is sent holds the upstream back, and nobody else', async () => {
    const part = Buffer.alloc(64 * 1_024, 'x')
    let written = 0
    const flood = (socket: Socket): void => {
      while (!socket.destroyed && written < 512 * 1_024 * 1_024) {
        written += part.length
        if (!socket.write(part)) return void socket.once('drain', () => flood(socket))
      }
    }
    const upstream = closing(
      await rawUpstream((socket, { head }) => {
        if (!head.startsWith('GET /flood')) return void socket.write(response('quick'))
        socket.write('HTTP/1.1 200 OK\r\nContent-Length: 536870912\r\n\r\n')
        flood(socket)
      }),
    )
    const ground = await startGround(upstream.url)
    const socket = await dial(ground.port)
    socket.pause()
    socket.write('GET /flood HTTP/1.1\r\nHost: a\r\n\r\n')
    await pollUntil('the upstream to be asked', () => upstream.seen.length === 1)
    for (let count = 0; count < 20; count++) expect((await ground.post(`k${count}`)).status).toBe(201)
    // It has come to a standstill, with some megabytes of socket buffers on the way, and no more.
    let [before, unchanged] = [0, 0]
    await pollUntil('the flood to stand still', () => {
      unchanged = written === before ? unchanged + 1 : 0
      before = written
      return unchanged > 20 || written > 64 * 1_024 * 1_024
    })
    expect(written).toBeLessThan(64 * 1_024 * 1_024)
    socket.destroy()
  })
})

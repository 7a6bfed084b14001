// Bodies and responses on the web's Request and Response, to the byte: what is read, handed on, held, cut off and told to stop.

import { createHash } from 'node:crypto'
import { expect, test, vi } from 'vitest'
import { createOnce } from '../core/once.ts'
import { createSessions } from '../sessions/sessions.ts'
import { memoryStore } from '../stores/memory.ts'
import { idempotency } from './fetch.ts'
import type { HttpOptions } from './fetch.ts'

type Handler = (request: Request) => Response | Promise<Response>

function guarded(handler: Handler, options: Partial<HttpOptions<Request, false>> = {}) {
  const once = createOnce({ store: memoryStore(), scope: 'shop', sweepEveryMs: false })
  return idempotency(once, { tenant: 'shared', ...options })(handler)
}

const url = 'http://shop.example/orders?a=1'
const digestOf = (text: string): string => `sha-256=:${createHash('sha256').update(text).digest('base64')}:`

interface Sent {
  readonly body?: string | ReadableStream<Uint8Array>
  readonly headers?: Record<string, string>
}

const post = ({ body, headers }: Sent = {}, key = 'k'): Request =>
  new Request(url, {
    method: 'POST',
    headers: { 'Idempotency-Key': key, ...headers },
    ...(body !== undefined && { body, duplex: 'half' }),
  } as RequestInit)

/** A body of unknown length, and what became of it. */
function pieces(...texts: string[]) {
  const seen = { cancelled: false }
  const body = new ReadableStream<Uint8Array>({
    pull(controller) {
      const next = texts.shift()
      if (next === undefined) controller.close()
      else controller.enqueue(Buffer.from(next))
    },
    cancel: () => void (seen.cancelled = true),
  })
  return { body, seen }
}

const isReplay = (response: Response): boolean => response.headers.get('idempotent-replayed') === 'true'
const answered = async (response: Response): Promise<[number, string]> => [response.status, await response.text()]

test('the handler is given the request as it came, whether or not it has a body', async () => {
  const seen: unknown[] = []
  const handle = guarded(async (request) => {
    const { method, headers, bodyUsed } = request
    seen.push([request.url, method, headers.get('x-a'), bodyUsed, await request.text(), request.bodyUsed])
    return new Response('done')
  })
  await handle(post({ body: 'abc', headers: { 'X-A': '1' } }, 'with'))
  await handle(post({ headers: { 'X-A': '1' } }, 'without'))
  expect(seen).toEqual([
    [url, 'POST', '1', false, 'abc', true],
    [url, 'POST', '1', false, '', false],
  ])
})

test('a request without a body is the same again, and another one with it', async () => {
  const handle = guarded(() => new Response('done'))
  expect(isReplay(await handle(post()))).toBe(false)
  expect(isReplay(await handle(post()))).toBe(true)
  expect((await handle(post({ body: 'x' }))).status).toBe(422)
})

test('a body of many pieces is put together in their order', async () => {
  const handle = guarded(async (request) => new Response(await request.text()))
  expect(await answered(await handle(post(pieces('a', 'b', 'c'))))).toEqual([200, 'abc'])
  expect(isReplay(await handle(post(pieces('ab', 'c'))))).toBe(true)
  expect((await handle(post(pieces('a', 'c', 'b')))).status).toBe(422)
})

test('a body may be as large as allowed and not a byte larger, told or untold, and the rest is not asked for', async () => {
  let runs = 0
  const handle = guarded(() => new Response(`${++runs}`), { bodyBytesMax: 4 })
  expect((await handle(post(pieces('ab', 'cd'), 'a'))).status).toBe(200)
  expect((await handle(post({ body: 'abcd', headers: { 'Content-Length': '4' } }, 'b'))).status).toBe(200)
  const large = pieces('ab', 'cd', 'e', 'f')
  expect((await handle(post(large, 'c'))).status).toBe(413)
  expect(large.seen.cancelled).toBe(true)
  const told = pieces('a')
  expect((await handle(post({ ...told, headers: { 'Content-Length': '5' } }, 'd'))).status).toBe(413)
  expect(runs).toBe(2)
})

test.each([
  ['untold', {}],
  ['told', { 'Content-Length': '6' }],
])('a large body of %s length with its digest streams to the handler, and is stored when it holds', async (_, more) => {
  let runs = 0
  const handle = guarded(async (request) => (runs++, new Response(await request.text())), { bodyBytesMax: 4 })
  const headers = { 'Content-Digest': digestOf('abcdef'), ...more }
  const sent = (...texts: string[]): Request => post({ ...pieces(...texts), headers })
  expect(await answered(await handle(sent('ab', 'cd', 'ef')))).toEqual([200, 'abcdef'])
  expect(isReplay(await handle(sent('abcdef')))).toBe(true)
  expect((await handle(sent('abcde', 'g'))).status).toBe(400)
  expect(runs).toBe(1)
})

test('a false digest fails the stream, stores nothing, and leaves the key to the request that was meant', async () => {
  const errors: unknown[] = []
  const handle = guarded(
    async (request) => {
      try {
        return new Response(await request.text())
      } catch (error) {
        errors.push((error as { status?: number }).status)
        throw error
      }
    },
    { bodyBytesMax: 4 },
  )
  const headers = { 'Content-Digest': digestOf('abcdef') }
  const refused = await handle(post({ ...pieces('abc', 'deg'), headers }))
  expect([refused.status, await refused.json()]).toMatchObject([400, { code: 'idempotency-digest-mismatch' }])
  expect(errors).toEqual([400])
  const another = { 'Content-Digest': digestOf('ghijkl') }
  expect(await answered(await handle(post({ ...pieces('ghi', 'jkl'), headers: another })))).toEqual([200, 'ghijkl'])
})

test('what the handler leaves of a large body is read for its digest; half a body proves nothing', async () => {
  const headers = { 'Content-Digest': digestOf('abcdef') }
  const large = (last = 'ef'): Request => post({ ...pieces('abc', 'd', last), headers })
  const unread = guarded(() => new Response('unread'), { bodyBytesMax: 4 })
  expect(await answered(await unread(large()))).toEqual([200, 'unread'])
  expect(isReplay(await unread(large()))).toBe(true)
  const falsely = guarded(() => new Response('unread'), { bodyBytesMax: 4 })
  expect((await falsely(large('eg'))).status).toBe(400)
  const half = guarded(
    async (request) => {
      const reader = request.body!.getReader()
      await reader.read()
      return new Response('half')
    },
    { bodyBytesMax: 4 },
  )
  expect((await half(large())).status).toBe(400)
  const source = pieces('abc', 'de', 'f', 'g', 'h', 'i')
  const given = guarded(
    async (request) => {
      await request.body!.cancel('enough')
      return new Response('cancelled')
    },
    { bodyBytesMax: 4 },
  )
  expect((await given(post({ ...source, headers }))).status).toBe(400)
  expect(source.seen.cancelled).toBe(true)
})

test('a body that was read before us is an error that says so', async () => {
  const request = post({ body: 'abc' })
  await request.text()
  await expect(guarded(() => new Response('ran'))(request)).rejects.toMatchObject({ code: 'UNSUPPORTED' })
})

test('a request of a class of its own stays what it is, and only its body is another one', async () => {
  class Own extends Request {
    readonly own = 'mine'
    name(): string {
      return this.own
    }
  }
  const asked = (key: string, body = 'abc', more: Record<string, string> = {}): Own => {
    const headers = { 'Idempotency-Key': key, 'X-A': '1', ...more }
    return new Own(url, { method: 'POST', headers, body })
  }
  const handle = guarded(
    async (request) => {
      const { own } = request as Own
      const text = await request.clone().text()
      const members = [own, (request as Own).name(), request.headers.get('x-a'), request.bodyUsed, text]
      return Response.json([...members, await request.text(), request.bodyUsed])
    },
    { bodyBytesMax: 4 },
  )
  expect(await (await handle(asked('k'))).json()).toEqual(['mine', 'mine', '1', false, 'abc', 'abc', true])
  expect(isReplay(await handle(asked('k')))).toBe(true)
  const digest = { 'Content-Digest': digestOf('abcdef') }
  const large = await handle(asked('l', 'abcdef', digest))
  expect(await large.json()).toEqual(['mine', 'mine', '1', false, 'abcdef', 'abcdef', true])
})

test.each([
  ['GET', undefined],
  ['POST', undefined],
  ['GET', 'k'],
  ['PUT', 'k'],
])('%s with the key %s passes untouched', async (method, key) => {
  const seen: Request[] = []
  const handle = guarded((request) => (seen.push(request), new Response('passed')))
  const request = new Request(url, { method, ...(key && { headers: { 'Idempotency-Key': key } }) })
  const response = await handle(request)
  expect([await response.text(), response.headers.has('idempotency-window')]).toEqual(['passed', false])
  expect(seen[0]).toBe(request)
})

test.each(['Idempotency-Session', 'Idempotency-Sequence'])('%s alone means a number', async (name) => {
  const handle = guarded(() => new Response('passed'))
  const refused = await handle(new Request(url, { method: 'POST', headers: { [name]: '1' } }))
  expect(await refused.json()).toMatchObject({ code: 'idempotency-sessions-not-offered' })
})

test.each(['GET', 'HEAD'])('the rules are published to %s', async (method) => {
  const handle = guarded(() => new Response('passed'))
  const ask = (path: string, headers = {}): Promise<Response> =>
    handle(new Request(`http://shop.example${path}`, { method, headers }))
  const rules = '/.well-known/idempotency'
  expect((await ask(rules)).headers.get('content-type')).toBe('text/html; charset=utf-8')
  const json = await ask(`${rules}?a`, { accept: 'application/json' })
  expect(json.headers.get('content-type')).toBe('application/json')
  expect(await answered(await ask('/'))).toEqual([200, 'passed'])
})

test('what is not GET or HEAD is never for the rules', async () => {
  const handle = guarded(() => new Response('passed'))
  const asked = new Request('http://shop.example/.well-known/idempotency', { method: 'POST' })
  expect(await answered(await handle(asked))).toEqual([200, 'passed'])
})

test('status, phrase, cookies and headers of a response are its own, and trailers are not announced', async () => {
  const headers: [string, string][] = [
    ['Set-Cookie', 'a=1'],
    ['Set-Cookie', 'b=2'],
    ['X-A', '1'],
    ['Trailer', 'X-Sum'],
  ]
  const handle = guarded(() => new Response('made', { status: 201, statusText: 'Made', headers }))
  for (const replayed of [false, true]) {
    const response = await handle(post())
    expect([response.status, response.statusText, await response.text()]).toEqual([201, 'Made', 'made'])
    expect(response.headers.getSetCookie()).toEqual(replayed ? [] : ['a=1', 'b=2'])
    expect([response.headers.get('x-a'), response.headers.get('trailer')]).toEqual(['1', null])
    expect([isReplay(response), response.headers.get('idempotency-window')]).toEqual([replayed, '86400'])
  }
})

test.each([204, 205, 304])('%i has no body, also when it is replayed', async (status) => {
  const handle = guarded(() => new Response(null, { status }))
  for (const replayed of [false, true]) {
    const response = await handle(post())
    expect([response.status, response.body, isReplay(response)]).toEqual([status, null, replayed])
  }
})

test('an empty response is empty, and replayed so', async () => {
  const handle = guarded(() => new Response(''))
  expect(await answered(await handle(post()))).toEqual([200, ''])
  const replayed = await handle(post())
  expect([replayed.body, ...(await answered(replayed))]).toEqual([null, 200, ''])
})

test('the rest of a response that goes nowhere is not asked for', async () => {
  const source = pieces('ab', 'cd', 'e', 'f', 'g')
  const once = createOnce({ store: memoryStore(), scope: 'shop', sweepEveryMs: false })
  const handle = idempotency(once, { tenant: 'shared', storedBytesMax: 4 })(async (_request, { idempotency: held }) => {
    await once.forget(held!.key, 'so that the claim is lost')
    return new Response(source.body)
  })
  expect((await handle(post())).status).toBe(409)
  await vi.waitFor(() => expect(source.seen.cancelled).toBe(true), 30_000)
})

test('a session is registered without a body', async () => {
  const sessions = createSessions({ store: memoryStore(), scope: 'tills' })
  const handle = guarded(() => new Response('not ours'), { sessions })
  const path = 'http://shop.example/.well-known/idempotency/sessions'
  expect((await handle(new Request(path, { method: 'POST' }))).status).toBe(201)
})

test('what is no response that could be sent is an error of the handler', async () => {
  await expect(guarded(() => Response.error())(post())).rejects.toThrow(/status 0/)
})

test('a response may be as large as is stored, and a larger one passes unstored, whole', async () => {
  const answers = [pieces('ab', 'cd'), pieces('ab', 'cd', 'e', 'f')]
  const handle = guarded(() => new Response(answers.shift()!.body), { storedBytesMax: 4 })
  expect(await answered(await handle(post({}, 'a')))).toEqual([200, 'abcd'])
  expect(isReplay(await handle(post({}, 'a')))).toBe(true)
  const [large] = answers
  const passed = await handle(post({}, 'b'))
  expect(passed.headers.get('idempotency-window')).toBe('86400')
  expect(await answered(passed)).toEqual([200, 'abcdef'])
  expect(large!.seen.cancelled).toBe(false)
  expect(await (await handle(post({}, 'b'))).json()).toMatchObject({ code: 'idempotency-response-not-stored' })
})

test('a client that stops reading a response that passes tells its source', async () => {
  const source = pieces('ab', 'cd', 'e', 'f', 'g')
  const handle = guarded(() => new Response(source.body), { storedBytesMax: 4 })
  await (await handle(post())).body!.cancel()
  expect(source.seen.cancelled).toBe(true)
})

test.each([
  ['text/event-stream', 409],
  [' Text/Event-Stream; charset=utf-8', 409],
  ['text/event-streams', 200],
  ['x-text/event-stream', 200],
])('events pass unstored, by their media type: %s', async (type, again) => {
  const handle = guarded(() => new Response('data: 1\n\n', { headers: { 'Content-Type': type } }))
  expect(await answered(await handle(post()))).toEqual([200, 'data: 1\n\n'])
  expect((await handle(post())).status).toBe(again)
})

test('events are stored where that is asked for', async () => {
  const headers = { 'Content-Type': 'text/event-stream' }
  const handle = guarded(() => new Response('data: 1\n\n', { headers }), { stream: 'record' })
  await handle(post())
  const again = await handle(post())
  expect([isReplay(again), await again.text()]).toEqual([true, 'data: 1\n\n'])
})

test('a response that breaks off is as if the handler had thrown: the key is free', async () => {
  let runs = 0
  const handle = guarded(() => {
    if (++runs > 1) return new Response('whole')
    const body = new ReadableStream({ pull: () => Promise.reject(new Error('provider down')) })
    return new Response(body)
  })
  await expect(handle(post())).rejects.toThrow('provider down')
  expect(await answered(await handle(post()))).toEqual([200, 'whole'])
})

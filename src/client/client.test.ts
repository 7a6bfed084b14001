// The client against the real exchange, on a clock that the tests move.

import { describe, expect, test } from 'vitest'
import { openShop, payments, post } from '../../test/client/shop.ts'
import type { Fault, Shop } from '../../test/client/shop.ts'
import { OnceError } from '../core/errors.ts'
import { keyOf as coreKeyOf } from '../core/key.ts'
import { problemKinds } from '../http/exchange.ts'
import { keyInBody, keyOf, memoryKeys, publishedWindow, retryBudget } from './client.ts'
import type { KeyStore } from './client.ts'

const order = JSON.stringify({ order: 'order-42', cents: 500 })
const pay = { operation: 'pay:order-42' }

/** Keys that tell when they were written, beside the requests that were sent. */
function watched(keys: KeyStore, shop: Shop): { readonly keys: KeyStore; readonly order: string[] } {
  const happened: string[] = []
  return {
    order: happened,
    keys: {
      ...keys,
      async open(record) {
        const standing = await keys.open(record)
        happened.push(`key durable, ${shop.seen.length} sent`)
        return standing
      },
    },
  }
}

async function errorOf(work: Promise<unknown>): Promise<OnceError> {
  const error: unknown = await work.then(
    () => undefined,
    (reason: unknown) => reason,
  )
  expect(error).toBeInstanceOf(OnceError)
  return error as OnceError
}

describe('one key for one intention', () => {
  test('the key is kept before the first attempt, and every attempt has the same key and the same bytes', async () => {
    const shop = openShop()
    shop.script.push('drop', 'lose-reply', 'break-off')
    const { keys, order: happened } = watched(memoryKeys(), shop)
    const client = shop.client({ keys })
    const response = await shop.finish(client.fetch(payments, post(order), pay))
    expect(happened).toEqual(['key durable, 0 sent'])
    expect([response.status, await response.json(), response.replayed]).toEqual([201, { receipt: 'r1' }, true])
    expect(shop.ledger).toEqual([order])
    expect(shop.seen).toHaveLength(4)
    expect(new Set(shop.seen.map(({ key, body }) => `${key} ${body}`)).size).toBe(1)
    expect(shop.seen[0]!.key).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7/)
  })

  test('a process that dies at any point goes on with the same key when it is resumed', async () => {
    const points: readonly [point: string, script: Fault[]][] = [
      ['while the server works', ['hang']],
      ['after the server has done its work', ['lose-reply', 'hang']],
    ]
    for (const [point, script] of points) {
      const shop = openShop()
      shop.script.push(...script)
      const keys = memoryKeys()
      // The process that dies: nobody waits for its call.
      shop
        .client({ keys })
        .fetch(payments, post(order), pay)
        .catch(() => {})
      await shop.clock.advance(2_000)
      const restarted = shop.client({ keys })
      expect(await restarted.pending(), point).toMatchObject([
        { operation: 'pay:order-42', state: 'sent', url: payments },
      ])
      const answers: unknown[] = []
      const resumed = await shop.finish(restarted.resume(async (response) => void answers.push(await response.json())))
      expect(resumed, point).toEqual({ settled: ['pay:order-42'], failed: [] })
      expect([answers, shop.ledger], point).toEqual([[{ receipt: 'r1' }], [order]])
      expect(new Set(shop.seen.map(({ key }) => key)).size).toBe(1)
      expect(await restarted.pending()).toEqual([])
    }
  })

  test('an answer that was not settled is given again without the server', async () => {
    const shop = openShop()
    const keys = memoryKeys()
    const first = await shop.client({ keys }).fetch(payments, post(order), pay)
    const restarted = shop.client({ keys })
    expect(await restarted.pending()).toMatchObject([{ state: 'answered' }])
    const again = await restarted.fetch(payments, post(order), pay)
    expect([again.status, await again.json(), again.replayed, again.url]).toEqual([
      201,
      await first.json(),
      true,
      first.url,
    ])
    expect(shop.seen).toHaveLength(1)
  })

  test('a handler of resume that fails leaves the operation pending', async () => {
    const shop = openShop()
    const keys = memoryKeys()
    await shop.client({ keys }).fetch(payments, post(order), pay)
    const client = shop.client({ keys })
    const failure = new Error('the database is down')
    expect(await client.resume(() => Promise.reject(failure))).toEqual({
      settled: [],
      failed: [{ operation: 'pay:order-42', error: failure }],
    })
    expect(await client.pending()).toHaveLength(1)
    expect(await client.resume(() => {})).toMatchObject({ settled: ['pay:order-42'] })
    expect(shop.ledger).toHaveLength(1)
  })

  test('a settled operation is gone, and `await using` settles it', async () => {
    const shop = openShop()
    const client = shop.client()
    {
      await using response = await client.fetch(payments, post(order), pay)
      expect(await client.pending()).toHaveLength(1)
      expect(response.ok).toBe(true)
    }
    expect(await client.pending()).toEqual([])
    await client.fetch(payments, post(order), pay)
    expect(new Set(shop.seen.map(({ key }) => key)).size).toBe(2)
  })

  test('a late `settled` does not remove the next record of that name', async () => {
    const shop = openShop()
    const keys = memoryKeys()
    const [one, other] = [shop.client({ keys }), shop.client({ keys })]
    const first = await one.fetch(payments, post(order), pay)
    const same = await other.fetch(payments, post(order), pay)
    await first.settled()
    const next = await one.fetch(payments, post(order), pay)
    await same.settled()
    expect(await one.pending()).toMatchObject([{ key: next.key }])
  })

  test('two clients with one operation share one key and one answer', async () => {
    const shop = openShop()
    shop.script.push('lose-reply')
    const keys = memoryKeys()
    const answers = await shop.finish(
      Promise.all(
        [shop.client({ keys }), shop.client({ keys })].map((client) => client.fetch(payments, post(order), pay)),
      ),
    )
    expect(await Promise.all(answers.map((each) => each.text()))).toEqual(['{"receipt":"r1"}', '{"receipt":"r1"}'])
    expect(shop.ledger).toHaveLength(1)
  })

  test('a pending operation with another request is a mismatch, before anything is sent', async () => {
    const shop = openShop()
    const client = shop.client()
    await client.fetch(payments, post(order), pay)
    const error = await errorOf(client.fetch(payments, post('{"cents":600}'), pay))
    expect(error).toMatchObject({ code: 'MISMATCH', executed: 'no', retryable: false })
    expect(shop.seen).toHaveLength(1)
  })

  test('without an operation each call is an intention of its own, and is kept all the same', async () => {
    const shop = openShop()
    const client = shop.client()
    const [one, other] = [await client.fetch(payments, post(order)), await client.fetch(payments, post(order))]
    expect(one.key).not.toBe(other.key)
    expect(await client.pending()).toHaveLength(2)
    expect(shop.ledger).toHaveLength(2)
  })

  test('resume leaves alone what this client has in its hands', async () => {
    const shop = openShop()
    const client = shop.client()
    const response = await client.fetch(payments, post(order), pay)
    expect(await client.resume(() => {})).toEqual({ settled: [], failed: [] })
    await response.settled()
    expect(await client.pending()).toEqual([])
  })

  test('a key that cannot be kept is not sent', async () => {
    const shop = openShop()
    const keys = { ...memoryKeys(), open: () => Promise.reject(new Error('disk full')) }
    await expect(shop.client({ keys }).fetch(payments, post(order), pay)).rejects.toThrow('disk full')
    expect(shop.seen).toEqual([])
  })

  test('credentials are sent, and never written down', async () => {
    const shop = openShop()
    const keys = memoryKeys()
    const headers = { authorization: 'Bearer secret', 'x-trace': 't1', 'content-type': 'application/json' }
    await shop.client({ keys }).fetch(payments, { method: 'POST', headers, body: order }, pay)
    expect(shop.seen[0]!.headers.get('authorization')).toBe('Bearer secret')
    const [record] = await keys.list()
    expect(JSON.stringify(record)).not.toContain('secret')
    expect(record!.request.headers).toContainEqual(['x-trace', 't1'])
    const added = shop.client({ keys: memoryKeys(), headers: () => ({ authorization: 'Bearer fresh' }) })
    await added.fetch(payments, post(order), pay)
    expect(shop.seen[1]!.headers.get('authorization')).toBe('Bearer fresh')
  })
})

describe('what is asked again', () => {
  const busy = (status: number, headers: Record<string, string> = {}, body: object = {}): Response =>
    Response.json(body, { status, headers })
  const progress = { code: 'idempotency-in-progress', retryable: true, executed: 'unknown' }

  test.each([
    ['408', busy(408)],
    ['425', busy(425)],
    ['429', busy(429)],
    ['500', busy(500)],
    ['503', busy(503)],
    ['504', busy(504)],
    ['409 in progress', busy(409, {}, progress)],
    ['409 of Stripe', busy(409, {}, { error: { type: 'invalid_request_error', code: 'idempotency_key_in_use' } })],
    ['a network error', 'drop' as const],
    ['a body that breaks off', 'break-off' as const],
    ['an attempt that takes too long', 'hang' as const],
  ])('%s', async (_, fault) => {
    const shop = openShop()
    shop.script.push(fault)
    const response = await shop.finish(shop.client().fetch(payments, post(order), pay))
    expect([response.status, shop.seen.length, shop.ledger.length]).toEqual([201, 2, 1])
  })

  test.each([
    ['another 4xx', busy(402)],
    ['404', busy(404)],
    ['409 that is no progress', busy(409)],
    ['410 of the handler', busy(410)],
    ['422 of the handler', busy(422)],
    ['a 5xx that is a replay', busy(500, { 'Idempotent-Replayed': 'true' })],
    ['a 429 that is a replay', busy(429, { 'Idempotent-Replayed': 'true' })],
  ])('never %s: it is the answer', async (_, answer) => {
    const shop = openShop()
    shop.script.push(answer)
    const response = await shop.finish(shop.client().fetch(payments, post(order), pay))
    expect([response.status, shop.seen.length]).toEqual([answer.status, 1])
  })

  test('a mismatch at the server is an error, is not retried, and leaves nothing pending', async () => {
    const shop = openShop()
    const keys = { newKey: () => 'key-1' }
    await (await shop.client(keys).fetch(payments, post('{"cents":1}'), { operation: 'first' })).settled()
    const client = shop.client(keys)
    const error = await errorOf(shop.finish(client.fetch(payments, post(order), pay)))
    expect(error).toMatchObject({ code: 'MISMATCH', executed: 'no', retryable: false })
    expect(shop.seen).toHaveLength(2)
    expect(await client.pending()).toEqual([])
  })

  test('a problem that says it is not retryable is not retried, whatever its status', async () => {
    const shop = openShop()
    shop.script.push(busy(503, {}, { code: 'idempotency-store-unavailable', retryable: false, executed: 'no' }))
    const error = await errorOf(shop.finish(shop.client().fetch(payments, post(order), pay)))
    expect([error.code, error.executed, shop.seen.length]).toEqual(['STORE_UNAVAILABLE', 'no', 1])
  })

  test('client and server agree on every problem: what is retried, and what was executed', async () => {
    for (const { code, status, retryable, executed } of Object.values(problemKinds)) {
      const shop = openShop()
      shop.script.push(busy(status, {}, { code, retryable, executed }))
      const ending = shop.finish(shop.client().fetch(payments, post(order), pay))
      if (retryable) expect((await ending).status, code).toBe(201)
      else expect((await errorOf(ending)).executed, code).toBe(executed)
      expect(shop.seen).toHaveLength(retryable ? 2 : 1)
    }
  })

  test('Retry-After is honoured, in seconds and as a date', async () => {
    const shop = openShop()
    const at = new Date(shop.clock.now() + 7_000).toUTCString()
    shop.script.push(busy(429, { 'Retry-After': '3' }), busy(503, { 'Retry-After': at }))
    await shop.finish(shop.client().fetch(payments, post(order), pay))
    const pauses = shop.reports.flatMap(({ retryInMs }) => retryInMs ?? [])
    expect(pauses[0]).toBeGreaterThanOrEqual(3_000)
    expect(pauses[0]).toBeLessThanOrEqual(3_500)
    // The clock moves in steps of 250 ms, and the date has no milliseconds.
    expect(pauses[1]).toBeGreaterThanOrEqual(1_500)
    expect(pauses[1]).toBeLessThanOrEqual(5_000)
  })

  test('pauses grow, with jitter over the whole of them', async () => {
    const pauses: number[][] = []
    for (let round = 0; round < 40; round++) {
      const shop = openShop()
      shop.script.push(...Array.from({ length: 4 }, (): Fault => 'drop'))
      const fractions = [round / 40, 0.999, 0, 0.5]
      const random = {
        uuid: () => '',
        bytes: (count: number) => new Uint8Array(count),
        fraction: () => fractions.shift() ?? 0,
      }
      await shop.finish(shop.client({ random }).fetch(payments, post(order), pay))
      pauses.push(shop.reports.flatMap(({ retryInMs }) => retryInMs ?? []))
    }
    expect(pauses.map(([first]) => first)).toEqual(
      Array.from({ length: 40 }, (_, round) => Math.ceil((round / 40) * 500)),
    )
    expect(pauses[0]!.slice(1)).toEqual([999, 0, 2_000])
  })

  test('one call ends at its time limit, says what it knows, and keeps the key', async () => {
    const shop = openShop()
    shop.script.push(...Array.from({ length: 100 }, (): Fault => 'drop'))
    const client = shop.client({ retry: { totalMs: 10_000 } })
    const error = await errorOf(shop.finish(client.fetch(payments, post(order), pay)))
    expect(error).toMatchObject({ code: 'NO_ANSWER', executed: 'unknown', retryable: true })
    expect(error.message).toMatch(/pay:order-42 .*key .*after \d+ attempts.*10000/)
    expect(shop.clock.elapsed()).toBeLessThanOrEqual(10_250)
    expect(await client.pending()).toMatchObject([{ state: 'sent' }])
    shop.script.length = 0
    expect((await client.fetch(payments, post(order), pay)).status).toBe(201)
    expect(new Set(shop.seen.map(({ key }) => key)).size).toBe(1)
  })

  test('an attempt that hangs is ended by its own limit, and the last by that of the call', async () => {
    const shop = openShop()
    shop.script.push('hang', 'hang', 'hang')
    const retry = { attemptMs: 4_000, totalMs: 9_000 }
    const error = await errorOf(shop.finish(shop.client({ retry }).fetch(payments, post(order), pay)))
    expect(error.message).toMatch(/no response within \d+ ms/)
    expect(shop.clock.elapsed()).toBeLessThanOrEqual(9_250)
    expect(shop.ledger).toHaveLength(1)
  })

  test('"not executed" is said only when the server said so every time', async () => {
    const down = (): Response =>
      busy(503, {}, { code: 'idempotency-store-unavailable', retryable: true, executed: 'no' })
    for (const [between, executed] of [
      [down(), 'no'],
      ['lose-reply', 'unknown'],
    ] as const) {
      const shop = openShop()
      shop.script.push(down(), between, ...Array.from({ length: 50 }, down))
      const client = shop.client({ retry: { totalMs: 5_000 } })
      expect((await errorOf(shop.finish(client.fetch(payments, post(order), pay)))).executed).toBe(executed)
      // The next call does not know what the one before has done.
      shop.script.push(...Array.from({ length: 50 }, down))
      expect((await errorOf(shop.finish(client.fetch(payments, post(order), pay)))).executed).toBe('unknown')
    }
  })

  test('a caller that aborts gets its own reason, and the key is kept', async () => {
    const shop = openShop()
    shop.script.push('drop', 'hang')
    const client = shop.client()
    const controller = new AbortController()
    const ending = client.fetch(payments, { ...post(order), signal: controller.signal }, pay)
    ending.catch(() => {})
    await shop.clock.advance(1_000)
    controller.abort(new Error('the tab is closed'))
    await expect(ending).rejects.toThrow('the tab is closed')
    expect(await client.pending()).toMatchObject([{ state: 'sent' }])
    expect(shop.clock.pending).toBe(0)
  })
})

describe('the retry budget', () => {
  test('bounds the retries of all calls together', async () => {
    const shop = openShop()
    const requests = 200
    const down = (): Response => new Response('', { status: 503 })
    shop.script.push(...Array.from({ length: 10_000 }, down))
    const budget = retryBudget({ share: 0.1, burst: 10, perSecond: 0, clock: shop.clock })
    const client = shop.client({ budget, retry: { totalMs: 600_000, horizonMs: 1_200_000 } })
    const calls = Array.from({ length: requests }, () => errorOf(client.fetch(payments, post(order))))
    const errors = await shop.finish(Promise.all(calls))
    expect(errors.map(({ code }) => code)).toEqual(Array.from({ length: requests }, () => 'NO_ANSWER'))
    expect(errors[0]!.message).toMatch(/budget/)
    expect(shop.seen.length).toBeGreaterThan(requests)
    expect(shop.seen.length).toBeLessThanOrEqual(requests + 10 + 0.1 * requests)
  })

  test('grows with requests and with time, up to its burst', async () => {
    const { clock } = openShop()
    const budget = retryBudget({ share: 0.5, burst: 2, perSecond: 0.5, clock })
    const taken = (): number => {
      let count = 0
      while (budget.retry()) count++
      return count
    }
    expect(taken()).toBe(2)
    budget.request()
    budget.request()
    expect(taken()).toBe(1)
    await clock.advance(2_000)
    expect(taken()).toBe(1)
    await clock.advance(3_600_000)
    expect(taken()).toBe(2)
  })
})

describe('the server’s window', () => {
  test('a window that is shorter than the horizon is reported at the first response, with both figures', async () => {
    const shop = openShop({ keepMs: 3_600_000 })
    const client = shop.client()
    await client.fetch(payments, post(order), pay)
    expect(shop.shortWindows).toEqual([
      expect.objectContaining({ origin: 'https://shop.example', windowMs: 3_600_000, horizonMs: 86_400_000 }),
    ])
    expect(shop.shortWindows[0]!.message).toMatch(/3600 s.*86400 s/)
    await client.fetch(payments, post(order))
    expect(shop.shortWindows).toHaveLength(1)
    await shop.client({ retry: { horizonMs: 3_600_000 } }).fetch(payments, post(order))
    expect(shop.shortWindows).toHaveLength(1)
  })

  test('nothing is sent again after the window: the outcome is unknown, and a person is asked', async () => {
    const shop = openShop({ keepMs: 60_000 })
    const keys = memoryKeys()
    const refuses = Response.json({}, { status: 503, headers: { 'Idempotency-Window': '60' } })
    shop.script.push(refuses, 'lose-reply', 'hang', 'hang', 'hang')
    const first = shop.client({ keys, retry: { totalMs: 20_000, attemptMs: 15_000 } })
    await errorOf(shop.finish(first.fetch(payments, post(order), pay)))
    await shop.clock.advance(60_000)
    const sent = shop.seen.length
    const restarted = shop.client({ keys })
    expect(await restarted.pending()).toMatchObject([{ state: 'expired' }])
    const error = await errorOf(shop.finish(restarted.fetch(payments, post(order), pay)))
    expect(error).toMatchObject({ code: 'EXPIRED', executed: 'unknown', retryable: false })
    expect(error.message).toMatch(/60 s.*86400 s.*ask a person/)
    expect(await shop.finish(restarted.resume(() => {}))).toMatchObject({ failed: [{ operation: 'pay:order-42' }] })
    expect([shop.seen.length, shop.ledger.length]).toEqual([sent, 1])
    await restarted.forget('pay:order-42')
    expect(await restarted.pending()).toEqual([])
  })

  test('a pause that would end after the window ends the call instead', async () => {
    const shop = openShop()
    shop.script.push(Response.json({}, { status: 503, headers: { 'Idempotency-Window': '5', 'Retry-After': '6' } }))
    const error = await errorOf(shop.finish(shop.client().fetch(payments, post(order), pay)))
    expect([error.code, shop.seen.length]).toEqual(['EXPIRED', 1])
  })

  test('410 of the server is unknown, and is never retried with another key', async () => {
    const shop = openShop({ keepMs: 1_000 })
    const keys = memoryKeys()
    const known = { keys, newKey: () => 'key-1' }
    await (await shop.client(known).fetch(payments, post(order), pay)).settled()
    await shop.clock.advance(2_000)
    const client = shop.client(known)
    const error = await errorOf(shop.finish(client.fetch(payments, post(order), pay)))
    expect(error).toMatchObject({ code: 'EXPIRED', executed: 'unknown', retryable: false })
    expect(error.message).toMatch(/ask a person/)
    expect(await client.pending()).toMatchObject([{ key: 'key-1', state: 'expired' }])
    await errorOf(client.fetch(payments, post(order), pay))
    expect([shop.seen.map(({ key }) => key), shop.ledger.length]).toEqual([['key-1', 'key-1'], 1])
  })

  test('the published rules tell the window before the first attempt', async () => {
    const shop = openShop({ keepMs: 30_000 })
    const asked = (url: URL): Promise<Response> => shop.fetch(url.href, { headers: { accept: 'application/json' } })
    const windowMs = await publishedWindow('https://shop.example/anything', asked)
    expect(windowMs).toBe(30_000)
    shop.script.push(...Array.from({ length: 100 }, (): Fault => 'drop'))
    const client = shop.client({ server: { windowMs }, retry: { totalMs: 100_000 } })
    const error = await errorOf(shop.finish(client.fetch(payments, post(order), pay)))
    expect([error.code, shop.ledger.length]).toEqual(['EXPIRED', 0])
    expect(error.message).toContain('30 s')
    expect(shop.clock.elapsed()).toBeLessThanOrEqual(30_250)
    const nothing = (): Promise<Response> => Promise.resolve(new Response('', { status: 404 }))
    await expect(publishedWindow('https://shop.example', nothing)).rejects.toThrow(/404.*windowMs/)
  })
})

describe('bodies', () => {
  const bodiesOf = (shop: Shop): Set<string> => new Set(shop.seen.map(({ body }) => body))

  test('a form is serialised once, with one boundary, and is the same intention under another boundary', async () => {
    const shop = openShop()
    shop.script.push('lose-reply')
    const keys = memoryKeys()
    const form = (cents: string): FormData => {
      const made = new FormData()
      made.set('cents', cents)
      made.set('file', new Blob(['\u0000ÿ'], { type: 'image/png' }), 'a.png')
      return made
    }
    const response = await shop.finish(
      shop.client({ keys }).fetch(payments, { method: 'POST', body: form('500') }, pay),
    )
    expect([response.status, bodiesOf(shop).size, shop.seen.length]).toEqual([201, 1, 2])
    const again = await shop.client({ keys }).fetch(payments, { method: 'POST', body: form('500') }, pay)
    expect(again.replayed).toBe(true)
    const other = shop.client({ keys }).fetch(payments, { method: 'POST', body: form('600') }, pay)
    expect((await errorOf(other)).code).toBe('MISMATCH')
  })

  test('a stream is read once, and sent with every attempt', async () => {
    const shop = openShop()
    shop.script.push('lose-reply')
    const body = new Blob(['a'.repeat(100_000)]).stream()
    await shop.finish(shop.client().fetch(payments, { method: 'POST', body }, pay))
    expect([shop.seen.length, [...bodiesOf(shop)]]).toEqual([2, ['a'.repeat(100_000)]])
  })

  test('where a request has no `body`, as in Firefox, its bytes are sent all the same', async () => {
    const received: string[] = []
    const client = openShop().client({
      fetch(_, init) {
        received.push(new TextDecoder().decode((init.body as Uint8Array<ArrayBuffer> | null) ?? undefined))
        return Promise.resolve(new Response('paid'))
      },
    })
    const { Request: sound } = globalThis
    globalThis.Request = class extends sound {
      constructor(...given: ConstructorParameters<typeof Request>) {
        super(...given)
        Object.defineProperty(this, 'body', { value: undefined })
      }
    }
    try {
      await client.fetch(payments, post(order), pay)
      await client.fetch(payments, { method: 'POST' })
    } finally {
      globalThis.Request = sound
    }
    expect(received).toEqual([order, ''])
  })

  test('bytes arrive as they are', async () => {
    const shop = openShop()
    const bytes = Uint8Array.from({ length: 70_000 }, (_, index) => index % 256)
    const received: Uint8Array[] = []
    const client = shop.client({
      async fetch(input, init) {
        received.push(new Uint8Array(await new Request(input, init).arrayBuffer()))
        return new Response(bytes, { status: 200 })
      },
    })
    const response = await client.fetch(payments, { method: 'POST', body: bytes }, pay)
    expect(Buffer.from(received[0]!).equals(bytes)).toBe(true)
    expect(Buffer.from(await response.arrayBuffer()).equals(bytes)).toBe(true)
    const kept = await client.fetch(payments, { method: 'POST', body: bytes }, pay)
    expect(Buffer.from(await kept.arrayBuffer()).equals(bytes)).toBe(true)
  })

  test('a body that is too large, that fails or that was read already is refused by name, and nothing is sent', async () => {
    const shop = openShop()
    const client = shop.client({ bodyBytesMax: 1_000 })
    const refused = async (body: RequestInit['body']): Promise<string> => {
      const error = await errorOf(client.fetch(payments, { method: 'POST', body: body! }, pay))
      expect([error.code, error.executed]).toEqual(['INVALID_ARGUMENT', 'no'])
      return error.message
    }
    expect(await refused('a'.repeat(1_001))).toMatch(/more than 1000 bytes.*bodyBytesMax/)
    expect(await refused(new Blob(['a'.repeat(1_001)]).stream())).toMatch(/more than 1000 bytes/)
    const failing = new ReadableStream({ pull: (controller) => controller.error(new Error('the disk is gone')) })
    expect(await refused(failing)).toMatch(/cannot be read: the disk is gone/)
    const used = new Response('x')
    await used.text()
    expect(await refused(used.body!)).toMatch(/cannot be read/)
    expect([shop.seen, await client.pending()]).toEqual([[], []])
  })

  interface Source {
    readonly body: ReadableStream<Uint8Array>
    /** How many pieces of it were asked for. */
    asked: number
    cancelled: unknown
  }

  /** A body of 100 pieces of 100 bytes. */
  function longBody(): Source {
    const body = new ReadableStream<Uint8Array>({
      pull(controller) {
        if (source.asked === 100) return controller.close()
        controller.enqueue(new Uint8Array(100).fill(++source.asked))
      },
      cancel: (reason) => void (source.cancelled = reason),
    })
    const source: Source = { body, asked: 0, cancelled: undefined }
    return source
  }

  test('an answer that is too large to be kept passes through, though no Content-Length says so', async () => {
    const source = longBody()
    const headers = { 'content-type': 'application/json' }
    const fetch = (): Promise<Response> => Promise.resolve(new Response(source.body, { status: 201, headers }))
    const client = openShop().client({ answerBytesMax: 1_000, fetch })
    const response = await client.fetch(payments, post(order), pay)
    expect(response.status).toBe(201)
    // Each stream on the way may have one piece in hand.
    expect(source.asked).toBeGreaterThan(10)
    expect(source.asked).toBeLessThanOrEqual(13)
    expect(await client.pending()).toMatchObject([{ state: 'sent' }])
    const reader = response.body!.getReader()
    for (let piece = 1; piece <= 50; piece++) {
      const { value } = await reader.read()
      expect([value!.length, value![0]]).toEqual([100, piece])
    }
    expect(source.asked).toBeLessThanOrEqual(53)
    await reader.cancel('enough')
    expect(source.cancelled).toBe('enough')
  })

  test('an answer of exactly answerBytesMax is kept', async () => {
    const body = 'a'.repeat(1_000)
    const fetch = (): Promise<Response> => Promise.resolve(new Response(body))
    const client = openShop().client({ answerBytesMax: 1_000, fetch })
    expect(await (await client.fetch(payments, post(order), pay)).text()).toBe(body)
    expect(await client.pending()).toMatchObject([{ state: 'answered' }])
  })

  test('an event stream passes through from its first byte', async () => {
    const source = longBody()
    const headers = { 'content-type': 'text/event-stream' }
    const client = openShop().client({ fetch: () => Promise.resolve(new Response(source.body, { headers })) })
    const response = await client.fetch(payments, post(order), pay)
    expect(source.asked).toBeLessThanOrEqual(2)
    await response.body!.cancel()
    expect(await client.pending()).toMatchObject([{ state: 'sent' }])
  })

  test('a body that passes through and is not the answer is let go before the retry', async () => {
    const shop = openShop()
    const signals: AbortSignal[] = []
    const client = shop.client({
      answerBytesMax: 1_000,
      fetch(input, init) {
        signals.push(init.signal!)
        return signals.length === 1
          ? Promise.resolve(new Response(longBody().body, { status: 503 }))
          : shop.fetch(input, init)
      },
    })
    const response = await shop.finish(client.fetch(payments, post(order), pay))
    expect([response.status, signals.map(({ aborted }) => aborted)]).toEqual([201, [true, true]])
  })

  test('a body that passes through ends with the signal of the caller', async () => {
    const controller = new AbortController()
    let given: AbortSignal | undefined
    const client = openShop().client({
      answerBytesMax: 1_000,
      fetch: (_, init) => {
        given = init.signal!
        return Promise.resolve(new Response(longBody().body))
      },
    })
    await client.fetch(payments, { ...post(order), signal: controller.signal }, pay)
    expect(given!.aborted).toBe(false)
    controller.abort()
    expect(given!.aborted).toBe(true)
  })

  test('204 and an empty request are what they are', async () => {
    const shop = openShop({ handler: () => new Response(null, { status: 204 }) })
    const client = shop.client()
    for (let call = 0; call < 2; call++) {
      const response = await client.fetch(payments, { method: 'POST' }, pay)
      expect([response.status, await response.text()]).toEqual([204, ''])
    }
    expect(shop.ledger).toEqual([''])
  })
})

describe('other people’s servers', () => {
  test('keys are bare, quoted when asked, and in another header when asked', async () => {
    const shop = openShop()
    const newKey = (): string => 'key-1'
    await shop.client({ newKey }).fetch(payments, post(order))
    await shop.client({ newKey, server: { quoted: true } }).fetch(payments, post(order))
    await shop.client({ newKey, server: { header: 'PayPal-Request-Id' } }).fetch(payments, post(order))
    expect(shop.seen.map(({ key }) => key)).toEqual(['key-1', '"key-1"', null])
    expect(shop.seen[2]!.headers.get('paypal-request-id')).toBe('key-1')
    // The two forms of one value are one key.
    expect(shop.ledger).toHaveLength(2)
  })

  test('a key in the body is there in every attempt, and no header is sent', async () => {
    const shop = openShop()
    shop.script.push('drop')
    const inBody = (body: string, key: string): string =>
      JSON.stringify({ ...(JSON.parse(body) as object), idempotency_key: key })
    const keys = memoryKeys()
    const options = { keys, server: keyInBody(inBody) }
    const response = await shop.finish(shop.client(options).fetch(payments, post(order), pay))
    expect(shop.seen).toHaveLength(2)
    for (const { key, body } of shop.seen)
      expect([key, JSON.parse(body)]).toEqual([
        null,
        { ...(JSON.parse(order) as object), idempotency_key: response.key },
      ])
    // The same intention, though the next call would draw another key.
    expect((await shop.client(options).fetch(payments, post(order), pay)).key).toBe(response.key)
  })

  test('a key that the caller has set is used', async () => {
    const shop = openShop()
    const headers = { 'idempotency-key': '"mine"' }
    const response = await shop.client().fetch(payments, { method: 'POST', headers, body: order })
    expect([response.key, response.operation, shop.seen[0]!.key]).toEqual(['mine', 'mine', 'mine'])
  })
})

describe('keyOf', () => {
  test('makes the id that the server’s keyOf makes, for every kind of part', async () => {
    for (const parts of [['order-42', 'refund', 2], ['a', 'bc'], ['ab', 'c'], [1], ['1'], [true], [-0], ['', 'é💸']])
      expect(await keyOf(parts)).toBe(coreKeyOf('any', parts).id)
  })

  test('refuses what the server’s keyOf refuses', async () => {
    for (const parts of [[], 'text', [NaN], [null], [{}], ['\ud800'], [undefined]] as never[]) {
      expect(() => coreKeyOf('any', parts)).toThrow(OnceError)
      expect((await errorOf(keyOf(parts))).code).toBe('INVALID_ARGUMENT')
    }
  })

  test('as newKey: an intention that is asked for again after it was settled has the same key, and one effect', async () => {
    const shop = openShop()
    const client = shop.client({ newKey: (operation) => keyOf(['shop', operation]) })
    for (let tab = 1; tab <= 2; tab++) await (await client.fetch(payments, post(order), pay)).settled()
    expect([shop.seen.length, shop.ledger.length]).toEqual([2, 1])
  })
})

describe('what is refused at the start', () => {
  test.each([
    [{ keys: {} }, /expected keys to be a key store/],
    [{ bugdet: {} }, /expected bugdet to be one of keys, fetch, retry, budget/],
    [{ fetch: 'fetch' }, /expected fetch to be a function, got "fetch"/],
    [{ retry: { totalMs: '1s' } }, /expected retry.totalMs to be a number above 0, got "1s"/],
    [{ retry: { totalMs: 0 } }, /expected retry.totalMs to be a number above 0, got 0/],
    [{ server: { headr: 'x' } }, /expected server.headr to be one of header, quoted/],
  ])('%j', (options, message) => {
    expect(() => openShop().client(options as never)).toThrow(message)
  })

  test('an operation without a name, a key that no server takes', async () => {
    const client = openShop().client()
    for (const operation of ['', 'a\nb', '\ud800', 'x'.repeat(256)])
      expect((await errorOf(client.fetch(payments, post(order), { operation }))).message).toMatch(/1 to 255/)
    const bad = openShop().client({ newKey: () => 'a b' })
    expect((await errorOf(bad.fetch(payments, post(order)))).message).toMatch(/ASCII/)
  })
})

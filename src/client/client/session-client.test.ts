// The session client against real sessions, on a clock that the tests move.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { collisionsIn, inStore, openTillServer } from '../../../test/client/till-server.ts'
import type { TillServer } from '../../../test/client/till-server.ts'
import { OnceError } from '../../core/errors.ts'
import { memoryStore } from '../../stores/memory.ts'
import { sqliteStore } from '../../stores/sqlite.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import type { ManualClock } from '../../testing/manual-clock.ts'
import { seededRandom } from '../../testing/seeded-random.ts'
import type { SessionsOptions } from '../../sessions/sessions.ts'
import { createSessionClient, memoryKeys, retryBudget } from '../client.ts'
import type { ClientResponse, KeyStore, PendingRecord, SessionClient, SessionClientOptions } from '../client.ts'

interface Shop {
  readonly clock: ManualClock
  readonly server: TillServer
  readonly keys: KeyStore
  client(options?: Partial<SessionClientOptions>): SessionClient
  /** Moves the clock until the work has ended. */
  finish<T>(work: Promise<T>): Promise<T>
}

function openShop({
  clock = manualClock(),
  ...options
}: Partial<SessionsOptions> & { clock?: ManualClock } = {}): Shop {
  const server = openTillServer({ store: memoryStore({ clock }), clock, window: 4, leaseMs: 3_600_000, ...options })
  const keys = memoryKeys()
  return {
    clock,
    server,
    keys,
    client: (given = {}) =>
      createSessionClient({
        url: 'https://shop.example',
        client: 'till-7',
        keys,
        fetch: server.fetch,
        clock,
        random: seededRandom(1),
        budget: retryBudget({ burst: 1_000, clock }),
        ...given,
      }),
    async finish(work) {
      let hasEnded = false
      const ending = work.finally(() => (hasEnded = true))
      ending.catch(() => {})
      while (!hasEnded) await clock.advance(250)
      return ending
    },
  }
}

async function registered(shop: Shop, options?: Partial<SessionClientOptions>): Promise<SessionClient> {
  const client = shop.client(options)
  await client.register()
  return client
}

const post = (body: string): RequestInit => ({ method: 'POST', body })

async function sell(client: SessionClient, article: string): Promise<string> {
  const response = await client.fetch('/sales', post(article), { operation: article })
  const receipt = await response.text()
  await response.settled()
  return receipt
}

async function errorOf(work: Promise<unknown>): Promise<OnceError> {
  const error: unknown = await work.then(
    () => undefined,
    (reason: unknown) => reason,
  )
  expect(error).toBeInstanceOf(OnceError)
  return error as OnceError
}

/** A copy of what is on record, as a backup has it. */
async function copyOf(keys: KeyStore): Promise<KeyStore> {
  const copy = memoryKeys()
  for (const record of await keys.list()) await copy.open({ ...record })
  return copy
}

const numbersOf = (server: TillServer): number[] => server.sent.map(({ sequence }) => sequence)

describe('numbers', () => {
  test('every request has the next number, and every attempt has the same number and the same bytes', async () => {
    const shop = openShop()
    const client = await registered(shop)
    shop.server.script.push('drop', 'lose-reply', 'well', 'lose-reply')
    expect(await shop.finish(sell(client, 'tea'))).toBe('receipt of tea')
    expect(await shop.finish(sell(client, 'milk'))).toBe('receipt of milk')
    expect(shop.server.sent.map(({ sequence, body }) => `${sequence} ${body}`)).toEqual([
      '1 tea',
      '1 tea',
      '1 tea',
      '2 milk',
      '2 milk',
    ])
    expect(shop.server.effects.map(({ body }) => body)).toEqual(['tea', 'milk'])
  })

  test('number and request are on record before the first attempt', async () => {
    const shop = openShop()
    const found: (readonly PendingRecord[])[] = []
    const client = await registered(shop, {
      async fetch(input, init) {
        found.push(await shop.keys.list())
        return shop.server.fetch(input, init)
      },
    })
    await sell(client, 'tea')
    const [record] = found.at(-1)!.filter(({ key }) => key.endsWith(' tea'))
    expect(record).toMatchObject({ operation: expect.stringMatching(/^till-7\/\d+\/1$/) as string })
    expect([atob(record!.request.body!), record!.sentAtMs]).toEqual(['tea', shop.clock.now()])
  })

  test('what is acknowledged was settled, with all below it', async () => {
    const shop = openShop()
    const client = await registered(shop)
    const [one, two, three] = await Promise.all(['a', 'b', 'c'].map((body) => client.fetch('/sales', post(body))))
    await two!.settled()
    await (await client.fetch('/sales', post('d'))).settled()
    expect(shop.server.sent.at(-1)).toMatchObject({ sequence: 4, acknowledged: 0 })
    await one!.settled()
    await sell(client, 'e')
    expect(shop.server.sent.at(-1)).toMatchObject({ sequence: 5, acknowledged: 2 })
    await three!.settled()
    await sell(client, 'f')
    expect(shop.server.sent.at(-1)).toMatchObject({ sequence: 6, acknowledged: 5 })
    expect(await client.pending()).toEqual([])
  })

  test('an operation has one number while it is pending, and another request under its name is a mismatch', async () => {
    const shop = openShop()
    const client = await registered(shop)
    const asked = Array.from({ length: 3 }, () => client.fetch('/sales', post('tea'), { operation: 'tea' }))
    const keys = (await Promise.all(asked)).map(({ key }) => key)
    expect(new Set(keys).size).toBe(1)
    expect(shop.server.effects).toHaveLength(1)
    const error = await errorOf(client.fetch('/sales', post('coffee'), { operation: 'tea' }))
    expect([error.code, error.executed, shop.server.effects.length]).toEqual(['MISMATCH', 'no', 1])
  })

  test('a request that the server refused leaves its number behind', async () => {
    const shop = openShop()
    const refused = Response.json(
      { code: 'idempotency-body-too-large', executed: 'no', retryable: false },
      { status: 413 },
    )
    let isFirst = true
    const client = await registered(shop, {
      fetch: (input, init) => {
        if (!new Headers(init.headers).has('idempotency-sequence') || !isFirst) return shop.server.fetch(input, init)
        isFirst = false
        return Promise.resolve(refused)
      },
    })
    expect(await errorOf(sell(client, 'tea'))).toMatchObject({ executed: 'no' })
    expect(await client.pending()).toEqual([])
    await sell(client, 'milk')
    expect(shop.server.sent).toMatchObject([{ sequence: 2, acknowledged: 1, body: 'milk' }])
  })
})

describe('the window', () => {
  test('as many requests are in flight as the window has room for, and the next one waits for an answer to be settled', async () => {
    const shop = openShop()
    const client = await registered(shop)
    shop.server.script.push('hold', 'hold', 'hold', 'hold')
    const calls = ['a', 'b', 'c', 'd', 'e', 'f'].map((article) => sell(client, article))
    await shop.clock.advance(1_000)
    expect([numbersOf(shop.server), shop.server.inFlightMax()]).toEqual([[1, 2, 3, 4], 4])
    shop.server.release()
    expect(await shop.finish(Promise.all(calls))).toHaveLength(6)
    expect(numbersOf(shop.server)).toEqual([1, 2, 3, 4, 5, 6])
    expect(shop.server.effects.map(({ body }) => body).toSorted()).toEqual(['a', 'b', 'c', 'd', 'e', 'f'])
  })

  test('an answer that is not settled holds its place, and the wait for room ends', async () => {
    const shop = openShop()
    const client = await registered(shop, { retry: { totalMs: 5_000 } })
    const answers = await Promise.all(['a', 'b', 'c', 'd'].map((body) => client.fetch('/sales', post(body))))
    const late = await shop.finish(errorOf(client.fetch('/sales', post('e'))))
    expect([late.code, late.executed, shop.server.sent.length]).toEqual(['WINDOW_EXCEEDED', 'no', 4])
    await answers[0]!.settled()
    expect(await sell(client, 'e')).toBe('receipt of e')
  })

  test('a call that is given up while it waits has no number', async () => {
    const shop = openShop()
    const client = await registered(shop)
    const answers = await Promise.all(['a', 'b', 'c', 'd'].map((body) => client.fetch('/sales', post(body))))
    const aborting = new AbortController()
    const waiting = client.fetch('/sales', { ...post('e'), signal: aborting.signal })
    const behind = client.fetch('/sales', post('f'))
    await shop.clock.advance(100)
    aborting.abort(new Error('gone'))
    await expect(waiting).rejects.toThrow('gone')
    await answers[0]!.settled()
    await behind
    expect(shop.server.sent.at(-1)).toMatchObject({ sequence: 5, body: 'f' })
  })

  test('a strict server takes numbers in order, however they arrive', async () => {
    const shop = openShop({ strict: true })
    const client = await registered(shop)
    shop.server.script.push('hold')
    const calls = ['a', 'b', 'c'].map((article) => sell(client, article))
    await shop.clock.advance(0)
    expect(numbersOf(shop.server)).toEqual([1, 2, 3])
    shop.server.release()
    await shop.finish(Promise.all(calls))
    expect(shop.server.effects.map(({ body }) => body)).toEqual(['a', 'b', 'c'])
  })
})

describe('after a crash', () => {
  test('what was sent is resumed under its number with the same bytes, and the next number follows', async () => {
    const shop = openShop()
    const client = await registered(shop)
    await sell(client, 'tea')
    shop.server.script.push('lose-reply', 'hold')
    // The process that dies: nobody waits for its call.
    client.fetch('/sales', post('milk'), { operation: 'milk' }).catch(() => {})
    await shop.clock.advance(2_000)
    const restarted = shop.client()
    expect(await restarted.pending()).toMatchObject([{ operation: 'milk', state: 'sent', method: 'POST' }])
    const used: string[] = []
    const resumed = await shop.finish(restarted.resume(async (response) => void used.push(await response.text())))
    expect([resumed, used]).toEqual([{ settled: ['milk'], failed: [] }, ['receipt of milk']])
    await shop.finish(sell(restarted, 'bread'))
    expect(shop.server.effects.map(({ sequence, body }) => `${sequence} ${body}`)).toEqual([
      '1 tea',
      '2 milk',
      '3 bread',
    ])
    expect(collisionsIn(shop.server)).toEqual([])
  })

  test('an answer that was not settled is given again without the server, and was not acknowledged', async () => {
    const shop = openShop()
    const client = await registered(shop)
    const first = await client.fetch('/sales', post('tea'), { operation: 'tea' })
    await sell(client, 'milk')
    expect(shop.server.sent.at(-1)).toMatchObject({ sequence: 2, acknowledged: 0 })
    const restarted = shop.client()
    expect(await restarted.pending()).toMatchObject([{ operation: 'tea', state: 'answered' }])
    const again = await restarted.fetch('/sales', post('tea'), { operation: 'tea' })
    expect([await again.text(), again.replayed, again.key]).toEqual(['receipt of tea', true, first.key])
    await again.settled()
    await sell(restarted, 'bread')
    expect(shop.server.sent.at(-1)).toMatchObject({ sequence: 3, acknowledged: 2 })
  })

  test('a client that had settled everything counts on, however often it starts', async () => {
    const shop = openShop()
    await registered(shop)
    for (const article of ['a', 'b', 'c']) {
      await sell(shop.client(), article)
      expect(await shop.client().pending()).toEqual([])
    }
    expect(numbersOf(shop.server)).toEqual([1, 2, 3])
    // The session, its holder, and the last number.
    expect(await shop.keys.list()).toHaveLength(3)
  })
})

describe('the end of a session', () => {
  test('after SESSION_EXPIRED nothing is sent until the caller registers again, and what was sent is unknown', async () => {
    const shop = openShop()
    const client = await registered(shop)
    shop.server.script.push('lose-reply')
    const lost = client.fetch('/sales', post('tea'), { operation: 'tea' }).catch((error: unknown) => error)
    await shop.clock.advance(0)
    const { session, epoch } = (await client.session())!
    await shop.server.sessions.close({ session: inStore(session), epoch })
    expect(await shop.finish(lost)).toMatchObject({ code: 'SESSION_EXPIRED', executed: 'unknown' })
    const before = shop.server.sent.length
    expect(await errorOf(sell(client, 'milk'))).toMatchObject({ code: 'SESSION_EXPIRED', executed: 'no' })
    expect(await errorOf(client.renew())).toMatchObject({ code: 'SESSION_EXPIRED' })
    expect(await client.pending()).toMatchObject([{ operation: 'tea', state: 'expired' }])
    expect(shop.server.sent).toHaveLength(before)

    expect((await client.register()).epoch).toBeGreaterThan(epoch)
    await sell(client, 'milk')
    expect(shop.server.sent.at(-1)).toMatchObject({ sequence: 1, acknowledged: 0, body: 'milk' })
    // The old one is neither sent again nor forgotten before a person has looked.
    expect(await client.pending()).toMatchObject([{ operation: 'tea', state: 'expired' }])
    expect(await errorOf(sell(client, 'tea'))).toMatchObject({ executed: 'unknown' })
    expect((await client.resume(() => {})).failed).toMatchObject([{ operation: 'tea', error: { executed: 'unknown' } }])
    await client.forget('tea')
    expect(await client.pending()).toEqual([])
    expect(await sell(client, 'tea')).toBe('receipt of tea')
    expect(collisionsIn(shop.server)).toEqual([])
  })

  test('after FENCED, too: those that wait for room are told that nothing was sent', async () => {
    const shop = openShop()
    const client = await registered(shop)
    await Promise.all(['a', 'b', 'c'].map((body) => client.fetch('/sales', post(body))))
    await shop.server.sessions.register(inStore('till-7'))
    const calls = ['d', 'e', 'f'].map((body) => errorOf(client.fetch('/sales', post(body))))
    const errors = await shop.finish(Promise.all(calls))
    expect(errors.map(({ code, executed }) => `${code} ${executed}`)).toEqual([
      'FENCED unknown',
      'FENCED no',
      'FENCED no',
    ])
    expect(shop.server.effects.map(({ body }) => body)).toEqual(['a', 'b', 'c'])
  })

  test('an answer that was kept outlives its session', async () => {
    const shop = openShop()
    const client = await registered(shop)
    await client.fetch('/sales', post('tea'), { operation: 'tea' })
    await client.register()
    const restarted = shop.client()
    expect(await restarted.pending()).toMatchObject([{ operation: 'tea', state: 'answered' }])
    expect(await restarted.resume(() => {})).toEqual({ settled: ['tea'], failed: [] })
    expect([await restarted.pending(), shop.server.sent.length]).toEqual([[], 1])
  })

  test('renew keeps an idle session, and only when it is called', async () => {
    const shop = openShop()
    const client = await registered(shop)
    await shop.clock.advance(3_000_000)
    await client.renew()
    await shop.clock.advance(3_000_000)
    await sell(client, 'tea')
    await shop.clock.advance(3_600_000)
    expect(await errorOf(sell(client, 'milk'))).toMatchObject({ code: 'SESSION_EXPIRED' })
  })

  test('close ends it at the server, also when the reply is lost', async () => {
    const shop = openShop()
    const client = await registered(shop)
    await sell(client, 'tea')
    shop.server.sessionScript.push('lose-reply')
    await shop.finish(client.close())
    expect(await client.session()).toBeUndefined()
    expect(await errorOf(sell(client, 'milk'))).toMatchObject({ code: 'SESSION_EXPIRED', executed: 'no' })
    await client.register()
    expect(await sell(client, 'milk')).toBe('receipt of milk')
  })
})

describe('what the paper’s client table got wrong', () => {
  test('numbers do not collide after a crash that lost the counter: nothing is guessed, and the client must register', async () => {
    const shop = openShop()
    const client = await registered(shop)
    await sell(client, 'tea')
    const lost = shop.client({ keys: memoryKeys() })
    expect(await errorOf(sell(lost, 'coffee'))).toMatchObject({ code: 'SESSION_EXPIRED', executed: 'no' })
    expect(shop.server.sent).toHaveLength(1)
    await lost.register()
    expect(await sell(lost, 'coffee')).toBe('receipt of coffee')
    // What the network still had of the time before.
    expect((await shop.server.again(shop.server.sent[0]!)).status).toBe(409)
    expect(shop.server.effects.map(({ sequence, body }) => `${sequence} ${body}`)).toEqual(['1 tea', '1 coffee'])
  })

  test.each(['FORGOTTEN', 'MISMATCH'])(
    'a counter that came back older is noticed as %s, and ends the session',
    async (code) => {
      const shop = openShop()
      const client = await registered(shop)
      await sell(client, 'tea')
      const backup = await copyOf(shop.keys)
      await sell(client, 'milk')
      if (code === 'FORGOTTEN') await sell(client, 'bread')
      const restored = shop.client({ keys: backup })
      expect(await errorOf(sell(restored, 'coffee'))).toMatchObject({ code })
      const effects = shop.server.effects.length
      expect(await errorOf(sell(restored, 'sugar'))).toMatchObject({ code: 'SESSION_EXPIRED', executed: 'no' })
      expect(shop.server.effects).toHaveLength(effects)
      await restored.register()
      expect(await sell(restored, 'sugar')).toBe('receipt of sugar')
    },
  )

  test('a client is not locked out when the reply to its registration or to its request is lost and another server takes over', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'onceonly-till-'))
    const clock = manualClock()
    const store = sqliteStore({ path: join(folder, 'tills.db') })
    const shop = openShop({ store, clock })
    await shop.server.sessions.migrate()
    let server = shop.server
    const client = shop.client({ fetch: (input, init) => server.fetch(input, init) })
    server.sessionScript.push('lose-reply', 'drop', 'lose-reply')
    await shop.finish(client.register())
    server.script.push('lose-reply')
    const selling = sell(client, 'tea')
    while (shop.server.effects.length === 0) await clock.advance(1)
    // The process is replaced: all that is left is the database.
    server = openTillServer({ store, clock, window: 4, leaseMs: 3_600_000 })
    expect(await shop.finish(selling)).toBe('receipt of tea')
    server.sessionScript.push('lose-reply')
    await shop.finish(client.renew())
    expect(await shop.finish(sell(client, 'milk'))).toBe('receipt of milk')
    const effects = [...shop.server.effects, ...server.effects]
    expect(effects.map(({ sequence, body }) => `${sequence} ${body}`)).toEqual(['1 tea', '2 milk'])
    store.close()
    rmSync(folder, { recursive: true })
  })
})

describe('two clients on the same keys', () => {
  test('the one that took the numbers last has them, and the other one is told', async () => {
    const shop = openShop()
    const one = await registered(shop)
    await sell(one, 'a')
    const other = shop.client({ random: seededRandom(2) })
    // To look is not to take.
    expect([await other.pending(), await other.session()]).toMatchObject([[], { session: 'till-7' }])
    await sell(one, 'b')
    await sell(other, 'c')
    expect(await errorOf(sell(one, 'd'))).toMatchObject({ code: 'FENCED' })
    expect(await errorOf(sell(one, 'e'))).toMatchObject({ code: 'FENCED', executed: 'no' })
    await sell(other, 'f')
    expect(collisionsIn(shop.server)).toEqual([])
    expect(shop.server.effects.map(({ body }) => body)).toEqual(['a', 'b', 'c', 'f'])
    // By the caller's decision it takes them back, in a session of its own.
    await one.register()
    expect(await sell(one, 'g')).toBe('receipt of g')
    expect(await errorOf(sell(other, 'h'))).toMatchObject({ code: 'FENCED' })
  })

  test('a client that slept while another one used its next number and settled it never sends under it, and neither does any other', async () => {
    const shop = openShop()
    const slept = Promise.withResolvers<void>()
    const sleeping: KeyStore = {
      ...shop.keys,
      async open(record) {
        if (record.key.endsWith(' stale')) await slept.promise
        return shop.keys.open(record)
      },
    }
    const one = await registered(shop, { keys: sleeping })
    await sell(one, 'a')
    const stale = errorOf(sell(one, 'stale'))
    await shop.clock.advance(0)
    const other = shop.client({ random: seededRandom(2) })
    for (const article of ['b', 'c', 'd']) await sell(other, article)
    slept.resolve()
    expect(await stale).toMatchObject({ code: 'FENCED' })
    expect((await other.resume(() => {})).settled).toEqual([])
    const third = shop.client({ random: seededRandom(3) })
    expect(await third.resume(() => {})).toEqual({ settled: [], failed: [] })
    await sell(third, 'e')
    expect(collisionsIn(shop.server)).toEqual([])
    expect(shop.server.effects.map(({ body }) => body)).toEqual(['a', 'b', 'c', 'd', 'e'])
    expect(await shop.keys.list()).toHaveLength(3)
  })

  test('an attempt goes on with its own bytes, whatever is written under its number meanwhile', async () => {
    const shop = openShop()
    const client = await registered(shop)
    shop.server.script.push('drop')
    const selling = sell(client, 'tea')
    await shop.clock.advance(0)
    // Another client has settled it, and a third one, which lost the numbers long ago, writes under it.
    const [record] = (await shop.keys.list()).filter(({ key }) => key.endsWith(' tea'))
    await shop.keys.remove(record!.operation, record!.key)
    await shop.keys.open({ ...record!, key: 'other tea', request: { ...record!.request, body: btoa('coffee') } })
    await shop.finish(selling)
    expect(shop.server.sent.map(({ body }) => body)).toEqual(['tea', 'tea'])
    expect(await shop.keys.get(record!.operation)).toMatchObject({ key: 'other tea' })
  })

  test('what it had on record before the other one looked is pending there, and is sent once', async () => {
    const shop = openShop()
    const slept = Promise.withResolvers<void>()
    const sleeping: KeyStore = {
      ...shop.keys,
      async open(record) {
        const opened = await shop.keys.open(record)
        if (record.key.endsWith(' slow')) await slept.promise
        return opened
      },
    }
    const one = await registered(shop, { keys: sleeping })
    const slow = errorOf(sell(one, 'slow'))
    await shop.clock.advance(0)
    const other = shop.client({ random: seededRandom(2) })
    await sell(other, 'b')
    slept.resolve()
    expect(await slow).toMatchObject({ code: 'FENCED', executed: 'unknown' })
    expect(await other.resume(() => {})).toEqual({ settled: ['slow'], failed: [] })
    expect(shop.server.effects.map(({ sequence, body }) => `${sequence} ${body}`)).toEqual(['2 b', '1 slow'])
  })
})

describe('what goes wrong', () => {
  test('keys that fail after a number is on record use it for that request, and for no other', async () => {
    const shop = openShop()
    let failing = false
    const keys: KeyStore = {
      ...shop.keys,
      get: (name) => (failing && name.endsWith('/holder') ? Promise.reject(new Error('disk')) : shop.keys.get(name)),
    }
    const client = await registered(shop, { keys })
    failing = true
    await expect(sell(client, 'tea')).rejects.toThrow('disk')
    failing = false
    await sell(client, 'milk')
    expect(await client.pending()).toMatchObject([{ operation: 'tea' }])
    expect(await sell(client, 'tea')).toBe('receipt of tea')
    expect(shop.server.effects.map(({ sequence, body }) => `${sequence} ${body}`)).toEqual(['2 milk', '1 tea'])
    expect(collisionsIn(shop.server)).toEqual([])
  })

  test('options, and a server without sessions, are refused by name', async () => {
    const shop = openShop()
    for (const given of [{ client: 'till 7' }, { client: '' }, { url: '/relative' }])
      expect(() => shop.client(given)).toThrow(/expected an absolute url, and client to be/)
    expect(() => shop.client({ keys: {} as KeyStore })).toThrow(/expected keys to be a key store/)
    const client = shop.client({ fetch: () => Promise.resolve(new Response('', { status: 404 })) })
    expect(await errorOf(client.register())).toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringContaining('404') as string,
    })
    const other = shop.client({ fetch: () => Promise.resolve(Response.json({})) })
    await expect(other.register()).rejects.toThrow(/without session, epoch and window/)
  })

  test('a response says its operation and its number', async () => {
    const shop = openShop()
    const client = await registered(shop)
    await using response: ClientResponse = await client.fetch('/sales', post('tea'), { operation: 'tea' })
    expect([response.operation, response.replayed]).toEqual(['tea', false])
    expect(response.key).toMatch(/^till-7\/\d+\/1$/)
  })
})

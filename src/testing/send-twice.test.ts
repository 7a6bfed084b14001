import { createServer } from 'node:http'
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import express from 'express'
import { Hono } from 'hono'
import { describe, expect, test } from 'vitest'
import { createOnce } from '../core/once.ts'
import { idempotency } from '../http/express.ts'
import { idempotency as onFetch } from '../http/fetch.ts'
import { memoryStore } from '../stores/memory.ts'
import { sendTwice } from './send-twice.ts'
import type { SendTwiceOptions } from './send-twice.ts'

const order = (key?: string): RequestInit => ({
  method: 'POST',
  headers: { 'Content-Type': 'application/json', ...(key && { 'Idempotency-Key': key }) },
  body: '{"amount":5}',
})

/** Takes an order, each time anew. */
function naive(): { orders: number[]; handle: (request: Request) => Promise<Response> } {
  const orders: number[] = []
  return {
    orders,
    async handle(request) {
      const { amount } = (await request.json()) as { amount: number }
      orders.push(amount)
      return Response.json({ order: orders.length }, { status: 201 })
    },
  }
}

function guarded(options: { waitMs?: number } = {}): ReturnType<typeof naive> {
  const { orders, handle } = naive()
  const service = createOnce({ store: memoryStore(), scope: 'shop', ...options })
  return { orders, handle: onFetch(service, { tenant: 'shared' })(handle) }
}

test('a handler that runs every duplicate is reported with what it did', async () => {
  const { orders, handle } = naive()
  const twice = sendTwice(handle, { effects: () => orders.length })
  const response = await twice.fetch('/orders', order())
  expect([response.status, await response.json()]).toEqual([201, { order: 1 }])
  expect(twice.report().routes).toEqual([
    {
      route: 'POST /orders',
      requests: 1,
      replayedEqual: 0,
      answersDiffer: 1,
      effectRepeated: 1,
      failed: 0,
      alwaysFailed: 0,
      refused: 0,
      messages: [
        'two at once had 2 effects, 1 of them expected: the route runs both',
        'a retry had 1 more: the route runs it again',
        '201 "{\\"order\\":1}" and 201 "{\\"order\\":2}" for one request',
      ],
    },
  ])
  await expect(twice.end()).rejects.toThrow(/NOT idempotent {2}POST \/orders: 1 sent twice/)
})

describe('a service that runs a request once', () => {
  const effects = (orders: number[]): SendTwiceOptions => ({ key: 'add', effects: () => orders.length })

  test('as a handler of Requests: keys are added, and duplicates are replayed or refused', async () => {
    const { orders, handle } = guarded()
    const twice = sendTwice(handle, effects(orders))
    for (let each = 1; each <= 5; each++) expect((await twice.fetch('/orders', order())).status).toBe(201)
    const report = await twice.end()
    expect(orders).toHaveLength(5)
    expect(report).toMatchObject({ isIdempotent: true, routes: [{ requests: 5, replayedEqual: 5 }] })
    expect(report.text).toMatch(/^idempotent {6}POST \/orders: 5 sent twice, 5 replayed equal/)
  })

  test('as a Node server that does not listen yet, which is closed in the end', async () => {
    const orders: number[] = []
    const app = express()
    app.use(idempotency(createOnce({ store: memoryStore(), scope: 'shop' }), { tenant: 'shared' }))
    app.post('/orders/:id/pay', (_request, response) => {
      orders.push(1)
      response.status(201).json({ order: orders.length })
    })
    const server = createServer(app)
    const twice = sendTwice(server, effects(orders))
    await twice.fetch('/orders/17/pay', order())
    await twice.fetch('/orders/8e03978e-40d5-43e8-bc93-6894a57f9324/pay', order('mine'))
    expect(await twice.end()).toMatchObject({ routes: [{ route: 'POST /orders/:id/pay', requests: 2 }] })
    expect([orders.length, server.listening]).toEqual([2, false])
  })

  test('as a base URL, and as an object with a fetch', async () => {
    const app = new Hono()
    const { orders, handle } = guarded()
    app.post('/orders', (context) => handle(context.req.raw))
    await sendAndEnd(app, '/orders', effects(orders))
    const server = createServer((_request, response) => void response.writeHead(204).end()).listen(0, '127.0.0.1')
    await once(server, 'listening')
    await sendAndEnd(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, 'orders', {})
    expect(server.listening).toBe(true)
    server.close()
  })

  async function sendAndEnd(target: Parameters<typeof sendTwice>[0], path: string, options: SendTwiceOptions) {
    const twice = sendTwice(target, options)
    await twice.fetch(path, order())
    expect((await twice.end()).isIdempotent).toBe(true)
  }
})

describe('what is fine, and what is not', () => {
  const answering = (...answers: Response[]): ((request: Request) => Promise<Response>) => {
    const left = [...answers]
    return async () => left.shift()!
  }
  const judged = async (...answers: Response[]): Promise<unknown> => {
    const twice = sendTwice(answering(...answers))
    await twice.fetch('/a', order()).catch(() => {})
    const { routes } = twice.report()
    return routes[0]!.messages
  }
  const text = (status: number, body = 'x'): Response => new Response(body, { status })

  test('a duplicate that is refused while the first is under way is fine', async () => {
    expect(await judged(text(201), text(409), text(201))).toEqual([])
  })
  test('a failure may be tried again', async () => {
    expect(await judged(text(500), text(503), text(201))).toEqual([])
  })
  test('a retry that is refused for ever is not fine', async () => {
    expect(await judged(text(201), text(409), text(409))).toEqual([
      'a retry is told 409 although the first request has been answered',
    ])
  })
  test('a duplicate that fails beside one that succeeds is not fine: its client will think that it failed', async () => {
    expect(await judged(text(201), text(500), text(201))).toEqual(['201 "x" and 500 "x" for one request'])
  })
  test('another body, another status and another place are other answers', async () => {
    expect(await judged(text(201), text(201), text(201, 'y'))).toHaveLength(1)
    expect(await judged(text(201), text(200), text(201))).toHaveLength(1)
    const redirect = (location: string): Response => new Response(null, { status: 303, headers: { location } })
    expect(await judged(redirect('/1'), redirect('/1'), redirect('/2'))).toHaveLength(1)
  })
  test('a request that nobody answers is told, and its error is given to the test', async () => {
    const twice = sendTwice(() => Promise.reject(new Error('down')))
    await expect(twice.fetch('/a', order())).rejects.toThrow('down')
    expect(twice.report().routes[0]).toMatchObject({ failed: 1, messages: ['a request was not answered: Error: down'] })
  })
})

test('a route that fails however often it is asked shows nothing, and is not called idempotent', async () => {
  const twice = sendTwice(() => new Response('broken', { status: 500 }))
  expect((await twice.fetch('/a', order())).status).toBe(500)
  expect(twice.report().text).toBe(
    'not shown       POST /a: 1 sent twice, 0 replayed equal, 1 always failed, which shows nothing',
  )
  await expect(twice.end()).rejects.toThrow('everything failed')
})

test('requests that only look are sent once, and a suite that sent nothing is told so', async () => {
  let asked = 0
  const twice = sendTwice(() => new Response(String(++asked)))
  expect(await (await twice.fetch('/orders')).text()).toBe('1')
  await expect(twice.end()).rejects.toThrow('nothing was sent twice')
})

test('with effects to be counted, requests of the suite are sent one after the other', async () => {
  const { orders, handle } = guarded({ waitMs: 1_000 })
  const twice = sendTwice(handle, { key: 'add', effects: () => orders.length })
  await Promise.all(Array.from({ length: 10 }, () => twice.fetch('/orders', order())))
  expect((await twice.end()).routes[0]).toMatchObject({ requests: 10, replayedEqual: 10, refused: 0 })
  expect(orders).toHaveLength(10)
})

test('options and targets are checked at once', () => {
  expect(() => sendTwice(() => new Response(), { keys: 'add' } as never)).toThrow('did you mean "key"?')
  expect(() => sendTwice(() => new Response(), { methods: ['post'] })).toThrow('a list of methods in upper case')
  expect(() => sendTwice({} as never)).toThrow('expected a base URL, a fetch')
})

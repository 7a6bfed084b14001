// The receiver behind every framework, on real sockets: the raw bytes reach the scheme, and the answer reaches the sender.
import 'reflect-metadata'
import { createServer, request } from 'node:http'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { createRequire } from 'node:module'
import type { AddressInfo } from 'node:net'
import { getRequestListener } from '@hono/node-server'
import { Module } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { ExpressAdapter } from '@nestjs/platform-express'
import type { NestFastifyApplication } from '@nestjs/platform-fastify'
import { FastifyAdapter } from '@nestjs/platform-fastify'
import express5 from 'express'
import fastify from 'fastify'
import { Hono } from 'hono'
import Koa from 'koa'
import { afterEach, describe, expect, test } from 'vitest'
import { createOnce } from '../../src/core/once.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { createWebhookReceiver } from '../../src/webhooks.ts'
import type { WebhookEvent, WebhookReceiver } from '../../src/webhooks.ts'
import { scheme, signer } from './signed.ts'

type Listen = (req: IncomingMessage, res: ServerResponse) => unknown
type Receiver = WebhookReceiver<undefined>

const closing: (() => unknown)[] = []
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close()
})

const express4 = createRequire(import.meta.url)('express4') as typeof express5

function onExpress(express: typeof express5): (receiver: Receiver) => Listen {
  return (receiver) => {
    const app = express()
    app.set('env', 'test')
    app.post('/hooks', receiver.node)
    app.all('/hooks', receiver.node)
    return app
  }
}

function behind(...middleware: express5.RequestHandler[]): (receiver: Receiver) => Listen {
  return (receiver) => {
    const app = express5()
    app.use(...middleware)
    app.post('/hooks', receiver.node)
    app.use(
      (error: Error, _req: unknown, res: express5.Response, _next: unknown) => void res.status(500).send(error.message),
    )
    return app
  }
}

async function onNest(receiver: Receiver, platform: 'express' | 'fastify'): Promise<Listen> {
  class Shop {}
  Module({})(Shop)
  if (platform === 'express') {
    const server = express5()
    const app = await NestFactory.create(Shop, new ExpressAdapter(server), { logger: false })
    app.use('/hooks', receiver.node)
    await app.init()
    closing.push(() => app.close())
    return server
  }
  const adapter = new FastifyAdapter()
  const app = await NestFactory.create<NestFastifyApplication>(Shop, adapter, { logger: false })
  app.use('/hooks', receiver.node)
  await app.init()
  await adapter.getInstance().ready()
  closing.push(() => app.close())
  return (req, res) => adapter.getInstance().routing(req, res)
}

const adapters: Readonly<Record<string, (receiver: Receiver) => Listen | Promise<Listen>>> = {
  node: (receiver) => receiver.node,
  express4: onExpress(express4),
  express5: onExpress(express5),
  'express5 behind express.raw': behind(express5.raw({ type: () => true })),
  'express5 behind a parser that keeps the bytes': behind(
    express5.json({
      type: () => true,
      verify: (req, _res, bytes) => void ((req as { rawBody?: Buffer }).rawBody = bytes),
      strict: false,
    }),
  ),
  koa(receiver) {
    const app = new Koa()
    app.silent = true
    app.use((ctx) => receiver.koa(ctx))
    return app.callback()
  },
  async fastify(receiver) {
    const app = fastify()
    app.post('/json', async ({ body }) => body)
    await app.register(receiver.fastify, { url: '/hooks' })
    await app.ready()
    closing.push(() => app.close())
    return (req, res) => app.routing(req, res)
  },
  hono(receiver) {
    const app = new Hono()
    app.all('/hooks', (c) => receiver.hono(c))
    return getRequestListener(app.fetch)
  },
  fetch: (receiver) => getRequestListener((asked) => receiver.fetch(asked)),
  'nest on express': (receiver) => onNest(receiver, 'express'),
  'nest on fastify': (receiver) => onNest(receiver, 'fastify'),
}

interface Answered {
  readonly status: number
  readonly headers: IncomingMessage['headers']
  readonly body: string
}

type Post = (body: Uint8Array, headers: readonly (readonly [string, string])[], method?: string) => Promise<Answered>

async function connectTo(listener: Listen): Promise<Post> {
  const server = createServer((req, res) => void listener(req, res))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  closing.push(() => (server.closeAllConnections(), new Promise((resolve) => server.close(resolve))))
  const { port } = server.address() as AddressInfo
  return (body, headers, method = 'POST') =>
    new Promise((resolve, reject) => {
      const lines = [...headers, ['Content-Length', String(body.length)], ['Host', 'localhost']] as const
      const asked = request({ port, host: '127.0.0.1', path: '/hooks', method, headers: lines.flat() }, (res) => {
        const chunks: Buffer[] = []
        res.on('data', (chunk: Buffer) => chunks.push(chunk))
        res.on('end', () =>
          resolve({ status: res.statusCode!, headers: res.headers, body: Buffer.concat(chunks).toString() }),
        )
      })
      asked.on('error', reject).end(body)
    })
}

const signed = (id: string, body: Uint8Array, type = 'application/json'): (readonly [string, string])[] => [
  ...Object.entries(signer.sign({ id, sentAtMs: Date.now(), body })),
  ...(type === '' ? [] : [['Content-Type', type] as const]),
]

interface Subject {
  readonly post: Post
  readonly events: WebhookEvent[]
}

async function start(name: string, handler: () => unknown = () => undefined): Promise<Subject> {
  const events: WebhookEvent[] = []
  const once = createOnce({ store: memoryStore(), scope: 'shop', sweepEveryMs: false })
  const options = { consumer: 'hooks', scheme, bodyBytesMax: 100_000 }
  const receiver = createWebhookReceiver(once, options, async (_tx, event) => {
    await handler()
    events.push(event)
  })
  return { post: await connectTo(await adapters[name]!(receiver)), events }
}

describe.each(Object.keys(adapters))('%s', (name) => {
  // Blanks that a parser would not keep, and bytes that no text could carry.
  const bodies = [
    Buffer.from('{ "a" : 1,  "a" : 2 }\n'),
    Buffer.concat([Buffer.from('"'), Buffer.of(0xff, 0xfe), Buffer.from('"')]),
  ]

  test('the bytes that were sent are the ones that are verified and handled, once', async () => {
    const { post, events } = await start(name)
    for (const [index, body] of bodies.entries()) {
      expect(await post(body, signed(`e${index}`, body))).toMatchObject({ status: 200, body: '{"is":"handled"}' })
      expect(await post(body, signed(`e${index}`, body))).toMatchObject({ status: 200, body: '{"is":"duplicate"}' })
    }
    expect(events.map(({ id }) => id)).toEqual(['e0', 'e1'])
    events.forEach((event, index) => expect(Buffer.from(event.body).equals(bodies[index]!)).toBe(true))
    expect(events[0]!.headers).toMatchObject({ 'webhook-id': 'e0', 'content-type': 'application/json' })
    expect(events[0]!.json()).toEqual({ a: 2 })
  })

  test('what is not authenticated is 401, a header that comes twice too, and a failing handler 500', async () => {
    const { post, events } = await start(name, () => {
      throw new Error('no')
    })
    const body = Buffer.from('{}')
    const headers = signed('e1', body)
    expect(await post(Buffer.from('[]'), headers)).toMatchObject({ status: 401 })
    expect(await post(body, [])).toMatchObject({ status: 401 })
    for (const line of headers.slice(0, 3)) {
      const { status, body: text } = await post(body, [...headers, line])
      expect([status, text]).toEqual([401, expect.stringContaining('webhook-unauthenticated')])
    }
    const failed = await post(body, headers)
    expect(failed.status).toBe(500)
    expect(failed.headers['content-type']).toContain('application/problem+json')
    expect(events).toEqual([])
  })
})

const unread = Object.keys(adapters).filter((name) => !name.includes('behind'))

describe.each(unread)('%s', (name) => {
  test('a body of any type is read, and one that is too large is not', async () => {
    const { post, events } = await start(name)
    const body = Buffer.from('a=1&b=%20')
    for (const type of ['application/x-www-form-urlencoded', 'text/plain', 'application/octet-stream', '']) {
      expect(await post(body, signed(`e ${type}`.replace(' ', '-').replace('/', '_'), body, type))).toMatchObject({
        status: 200,
      })
    }
    expect(events).toHaveLength(4)
    const large = Buffer.alloc(100_001, 'x')
    expect((await post(large, signed('large', large))).status).toBe(413)
    expect(events).toHaveLength(4)
  })
})

test.each(['node', 'express5', 'koa', 'hono', 'fetch', 'nest on express'])('%s: only POST', async (name) => {
  const { post } = await start(name)
  const { status, headers } = await post(Buffer.alloc(0), [], 'GET')
  expect([status, headers.allow]).toEqual([405, 'POST'])
})

test('a body parser in front that keeps nothing is told of, with what to do', async () => {
  const once = createOnce({ store: memoryStore(), scope: 'shop', sweepEveryMs: false })
  const receiver = createWebhookReceiver(once, { consumer: 'hooks', scheme }, () => undefined)
  const post = await connectTo(behind(express5.json())(receiver))
  const body = Buffer.from('{}')
  const { status, body: said } = await post(body, signed('e1', body))
  expect(status).toBe(500)
  expect(said).toContain('verify before a body parser runs, or have it keep the bytes. Express: express.raw(')
  const read = new Request('http://localhost/', { method: 'POST', body })
  await read.text()
  await expect(receiver.fetch(read)).rejects.toThrow('Web: new Uint8Array(await request.arrayBuffer())')
})

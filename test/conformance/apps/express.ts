// The fixture on Express, 4 and 5: the middleware first, the body parser behind it.
import { createRequire } from 'node:module'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import express5, { type Express, type Handler, type NextFunction, type Request, type Response } from 'express'
import { idempotency } from '../../../src/http/express.ts'
import type { FixtureResponse } from '../picture.ts'
import { type App, type AppGround, byPath, fixtureRequest, goneSignal, headersByName } from './app.ts'

export async function startExpress4(ground: AppGround): Promise<App> {
  // It has no types of its own; what is used here is the same in both.
  const express4 = createRequire(import.meta.url)('express4') as typeof express5
  return mount(express4(), ground)
}

export async function startExpress5(ground: AppGround): Promise<App> {
  return mount(express5(), ground)
}

function mount(app: Express, ground: AppGround): App {
  const { once, fixture, options } = ground
  const tenant = (request: Request): string | undefined => fixture.scopeOf(request.path, request.headers.authorization)
  const guard = byPath(ground, (protection): Handler =>
    protection === 'none'
      ? (_request, _response, next) => next()
      : idempotency(once, { ...options(protection), tenant }),
  )

  app.use((request, response, next) => {
    const front = fixture.front(request.method, request.path, request.headers.authorization)
    for (const [name, value] of front.headers) response.setHeader(name, value)
    if (front.answer) void send(response, front.answer, next)
    else next()
  })
  app.use((request, response, next) => guard(request.path)(request, response, next))
  app.use(express5.raw({ type: () => true, limit: '64mb' }))
  app.use((request, response, next) => {
    const { body } = request as { body?: unknown }
    const asked = fixtureRequest({
      method: request.method,
      url: request.originalUrl,
      header: (name) => request.get(name),
      body: Buffer.isBuffer(body) ? body : Buffer.alloc(0),
      idempotency: request.idempotency,
      gone: goneSignal(response),
    })
    void send(response, fixture.handle(asked), next)
  })
  return { handler: app, close: async () => {} }
}

/** Express 4 does not look at promises: a failure is handed on. */
async function send(
  response: Response,
  answer: FixtureResponse | Promise<FixtureResponse>,
  next: NextFunction,
): Promise<void> {
  try {
    const { status, headers, body, afterwards } = await answer
    response.status(status).set(headersByName(headers))
    if (!Buffer.isBuffer(body)) await pipeline(Readable.from(body), response)
    else if (body.length === 0) response.end()
    else response.send(body)
    if (afterwards) throw new Error('the handler failed after its answer')
  } catch (error) {
    next(error)
  }
}

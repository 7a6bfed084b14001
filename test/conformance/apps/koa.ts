// The fixture on Koa.
import { Readable } from 'node:stream'
import Koa, { type Context, type Middleware } from 'koa'
import { idempotency } from '../../../src/http/koa.ts'
import type { FixtureResponse } from '../picture.ts'
import { type App, type AppGround, byPath, fixtureRequest, goneSignal, headersByName, readBody } from './app.ts'

export async function startKoa(ground: AppGround): Promise<App> {
  const { once, fixture, options, log } = ground
  const app = new Koa()
  app.on('error', (error: Error) => log(String(error.stack)))
  const tenant = (context: Context): string | undefined =>
    fixture.scopeOf(context.path, context.get('authorization') || undefined)
  const guard = byPath(ground, (protection): Middleware =>
    protection === 'none' ? (_context, next) => next() : idempotency(once, { ...options(protection), tenant }),
  )

  app.use(async (context, next) => {
    const front = fixture.front(context.method, context.path, context.get('authorization') || undefined)
    context.set(Object.fromEntries(front.headers))
    if (front.answer) send(context, front.answer)
    else await next()
  })
  app.use((context, next) => guard(context.path)(context, next))
  app.use(async (context) => {
    const answer = await fixture.handle(
      fixtureRequest({
        method: context.method,
        url: context.originalUrl,
        header: (name) => context.get(name) || undefined,
        body: await readBody(context.req),
        idempotency: context.idempotency,
        gone: goneSignal(context.res),
      }),
    )
    send(context, answer)
  })
  const listener = app.callback()
  return { handler: (request, response) => void listener(request, response), close: async () => {} }
}

function send(context: Context, { status, headers, body }: FixtureResponse): void {
  context.status = status
  context.set(headersByName(headers))
  context.body = Buffer.isBuffer(body) ? (status === 204 ? null : body) : Readable.from(body)
}

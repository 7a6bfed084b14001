// The fixture on Hono, served by its own server for Node.
import { getRequestListener } from '@hono/node-server'
import { type Context, Hono, type MiddlewareHandler } from 'hono'
import { idempotency } from '../../../src/http/hono.ts'
import { type App, type AppGround, asFetchResponse, byPath, fixtureRequest } from './app.ts'

export async function startHono(ground: AppGround): Promise<App> {
  const { once, fixture, options, log } = ground
  const app = new Hono()
  const tenant = (c: Context): string | undefined => fixture.scopeOf(c.req.path, c.req.header('authorization'))
  const guard = byPath(ground, (protection): MiddlewareHandler =>
    protection === 'none' ? (_c, next) => next() : idempotency(once, { ...options(protection), tenant }),
  )

  app.use(async (c, next) => {
    const front = fixture.front(c.req.method, c.req.path, c.req.header('authorization'))
    if (front.answer) c.res = asFetchResponse(front.answer)
    else await next()
    for (const [name, value] of front.headers) c.header(name, value)
  })
  app.use((c, next) => guard(c.req.path)(c, next))
  app.all('*', async (c) => {
    const answer = await fixture.handle(
      fixtureRequest({
        method: c.req.method,
        url: c.req.url,
        header: (name) => c.req.header(name),
        body: Buffer.from(await c.req.arrayBuffer()),
        idempotency: c.get('idempotency'),
        gone: c.req.raw.signal,
      }),
    )
    return asFetchResponse(answer)
  })
  app.onError((error, c) => {
    log(String(error.stack))
    return c.text('Internal Server Error', 500)
  })
  const listener = getRequestListener(app.fetch)
  return { handler: (request, response) => void listener(request, response), close: async () => {} }
}

// The fixture on node:http.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { idempotency } from '../../../src/http/node.ts'
import { type App, type AppGround, byPath, fixtureRequest, goneSignal, pathOf, readBody, writeTo } from './app.ts'

export async function startNode(ground: AppGround): Promise<App> {
  const { once, fixture, options } = ground
  const tenant = (request: IncomingMessage): string | undefined =>
    fixture.scopeOf(pathOf(request.url!), request.headers.authorization)

  async function listener(
    request: IncomingMessage & { idempotency?: unknown },
    response: ServerResponse,
  ): Promise<void> {
    const answer = await fixture.handle(
      fixtureRequest({
        method: request.method!,
        url: request.url!,
        header: (name) => request.headers[name] as string | undefined,
        body: await readBody(request),
        idempotency: request.idempotency,
        gone: goneSignal(response),
      }),
    )
    await writeTo(response, answer)
  }

  const guarded = byPath(ground, (protection) =>
    protection === 'none' ? listener : idempotency(once, { ...options(protection), tenant })(listener),
  )
  return {
    handler(request, response) {
      const path = pathOf(request.url!)
      const front = fixture.front(request.method!, path, request.headers.authorization)
      for (const [name, value] of front.headers) response.setHeader(name, value)
      if (front.answer) return void writeTo(response, front.answer)
      // What a listener throws is nobody's but the adapter's; on the route without one it is a 500 here.
      Promise.resolve(guarded(path)(request, response)).catch(() => {
        if (response.headersSent) response.destroy()
        else response.writeHead(500).end('Internal Server Error')
      })
    },
    close: async () => {},
  }
}

// The fixture as a function from Request to Response, and a bridge from node:http to it: what a runtime like Deno or a
// route handler of Next.js would do.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { Readable } from 'node:stream'
import type { ReadableStream as NodeReadableStream } from 'node:stream/web'
import { idempotency } from '../../../src/http/fetch.ts'
import { type App, type AppGround, asFetchResponse, byPath, fixtureRequest, goneSignal } from './app.ts'

export async function startFetch(ground: AppGround): Promise<App> {
  const { once, fixture, options } = ground
  const tenant = (request: Request): string | undefined =>
    fixture.scopeOf(new URL(request.url).pathname, request.headers.get('authorization') ?? undefined)

  async function handler(request: Request, context?: { idempotency?: unknown }): Promise<Response> {
    const answer = await fixture.handle(
      fixtureRequest({
        method: request.method,
        url: request.url,
        header: (name) => request.headers.get(name) ?? undefined,
        body: Buffer.from(await request.arrayBuffer()),
        idempotency: context?.idempotency,
        gone: request.signal,
      }),
    )
    return asFetchResponse(answer)
  }

  const guarded = byPath(ground, (protection) =>
    protection === 'none' ? handler : idempotency(once, { ...options(protection), tenant })(handler),
  )

  async function answer(request: Request): Promise<Response> {
    const { pathname } = new URL(request.url)
    const front = fixture.front(request.method, pathname, request.headers.get('authorization') ?? undefined)
    const response = front.answer ? asFetchResponse(front.answer) : await guarded(pathname)(request)
    for (const [name, value] of front.headers) response.headers.set(name, value)
    return response
  }

  return { handler: (request, response) => void bridge(answer, request, response), close: async () => {} }
}

async function bridge(
  answer: (request: Request) => Promise<Response>,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  try {
    await write(response, await answer(asRequest(request, goneSignal(response))))
  } catch {
    if (response.headersSent) response.destroy()
    else response.writeHead(500).end('Internal Server Error')
  }
}

function asRequest(request: IncomingMessage, signal: AbortSignal): Request {
  const headers = new Headers()
  for (let index = 0; index < request.rawHeaders.length; index += 2) {
    headers.append(request.rawHeaders[index]!, request.rawHeaders[index + 1]!)
  }
  const method = request.method!
  const body =
    method === 'GET' || method === 'HEAD' ? null : (Readable.toWeb(request) as NodeReadableStream<Uint8Array>)
  return new Request(`http://${request.headers.host}${request.url}`, { method, headers, signal, body, duplex: 'half' })
}

async function write(response: ServerResponse, answer: Response): Promise<void> {
  response.statusCode = answer.status
  for (const [name, value] of answer.headers) response.appendHeader(name, value)
  if (!answer.body) return void response.end()
  for await (const chunk of answer.body) response.write(chunk)
  response.end()
}

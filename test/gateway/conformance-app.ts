// The fixture of the conformance cases as a service behind the gateway: the gateway's own listener, exchange and upstream, on
// the clock and the store of the world; the service is a server of its own that knows nothing of onceonly.
import { createServer } from 'node:http'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { createListener, createProtection } from '../../src/gateway/proxy/listener.ts'
import { openUpstream } from '../../src/gateway/proxy/upstream.ts'
import {
  type App,
  type AppGround,
  byPath,
  fixtureRequest,
  goneSignal,
  pathOf,
  readBody,
  writeTo,
} from '../conformance/apps/app.ts'
import type { FixtureContext } from '../conformance/picture.ts'

export async function startBehindGateway(ground: AppGround): Promise<App> {
  const { once, fixture, options } = ground
  const service = createServer((request, response) => void serve(ground, request, response))
  await new Promise<void>((resolve) => service.listen(0, '127.0.0.1', resolve))
  const upstream = openUpstream({
    origin: new URL(`http://127.0.0.1:${(service.address() as AddressInfo).port}`),
    timeoutMs: 60_000,
    connectTimeoutMs: 5_000,
    idleMs: 1_000,
    profile: options('default')['profile'] as 'draft' | undefined,
    pseudonym: 'conformance',
    trustForwarded: false,
  })
  const guarded = byPath(ground, (protection) =>
    protection === 'none'
      ? undefined
      : createProtection(once, {
          ...options(protection),
          tenant: ({ req }) => fixture.scopeOf(pathOf(req.url!), req.headers.authorization),
        }),
  )
  const listener = createListener({
    clock: fixture.clock,
    upstream,
    published: guarded('/')!,
    protectionOf: (_method, path) => guarded(path),
    pseudonym: 'conformance',
    profile: options('default')['profile'] as 'draft' | undefined,
    patienceMs: 60_000,
    essential: new Set(['idempotency-key', 'authorization']),
    onEnd: () => {},
  })
  return {
    handler(request, response) {
      const front = fixture.front(request.method!, pathOf(request.url!), request.headers.authorization)
      for (const [name, value] of front.headers) response.setHeader(name, value)
      if (front.answer) return void writeTo(response, front.answer)
      listener(request, response)
    },
    async close() {
      await upstream.close()
      service.closeAllConnections()
      await new Promise((resolve) => service.close(resolve))
    },
  }
}

/** What a handler says to its context, a service behind the gateway says in a header. */
function sayingInHeaders(response: ServerResponse): Pick<FixtureContext, 'store' | 'release' | 'notBegun'> {
  const say = (wish: string) => (): void => void response.setHeader('Idempotency-Answer', wish)
  return { store: say('store'), release: say('release'), notBegun: say('not-begun') }
}

async function serve({ fixture }: AppGround, request: IncomingMessage, response: ServerResponse): Promise<void> {
  try {
    const asked = fixtureRequest({
      method: request.method!,
      url: request.url!,
      header: (name) => request.headers[name] as string | undefined,
      body: await readBody(request),
      idempotency: sayingInHeaders(response),
      gone: goneSignal(response),
    })
    await writeTo(response, await fixture.handle(asked))
  } catch {
    if (response.headersSent) response.destroy()
    else response.writeHead(500).end('Internal Server Error')
  }
}

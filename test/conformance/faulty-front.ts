// What stands between a client and the application when things go wrong: it hands every request on, and spoils the answer
// to the first. The effect has happened by then; only the answer is lost.
import { createServer, type IncomingMessage, request as ask, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { readBody } from './apps/app.ts'

/** What becomes of the first answer. */
export type Fault =
  | 'none'
  /** A server error in its place. */
  | '500'
  /** The connection is reset before any octet of it. */
  | 'reset'
  /** The connection is reset in the middle of the body. */
  | 'cut'
  /** It never comes. */
  | 'silence'

export interface Attempt {
  readonly key: string | undefined
  readonly headers: IncomingMessage['headers']
  /** What the application answered. */
  readonly status: number
  readonly replayed: boolean
}

export interface FaultyFront extends AsyncDisposable {
  readonly port: number
  readonly url: string
  readonly attempts: readonly Attempt[]
}

export async function startFaultyFront(upstreamPort: number, fault: Fault): Promise<FaultyFront> {
  const attempts: Attempt[] = []
  const server = createServer((request, response) => {
    handOn(upstreamPort, request)
      .then(({ upstream, body }) => {
        attempts.push({
          key: request.headers['idempotency-key'] as string | undefined,
          headers: request.headers,
          status: upstream.statusCode!,
          replayed: upstream.headers['idempotent-replayed'] === 'true',
        })
        answer(response, upstream, body, attempts.length === 1 ? fault : 'none')
      })
      .catch((error: unknown) => response.destroy(error as Error))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  return {
    port,
    url: `http://127.0.0.1:${port}`,
    attempts,
    async [Symbol.asyncDispose]() {
      const closed = new Promise((resolve) => server.close(resolve))
      server.closeAllConnections()
      await closed
    },
  }
}

async function handOn(port: number, request: IncomingMessage): Promise<{ upstream: IncomingMessage; body: Buffer }> {
  const body = await readBody(request)
  const { method, url: path, headers } = request
  const upstream = await new Promise<IncomingMessage>((resolve, reject) => {
    ask({ port, host: '127.0.0.1', method, path, headers, agent: false }, resolve).on('error', reject).end(body)
  })
  return { upstream, body: await readBody(upstream) }
}

function answer(response: ServerResponse, upstream: IncomingMessage, body: Buffer, fault: Fault): void {
  if (fault === 'silence') return
  if (fault === 'reset') return void response.socket!.resetAndDestroy()
  if (fault === '500') return void response.writeHead(500, { 'Content-Type': 'text/plain' }).end('bad luck')
  const headers = { ...upstream.headers, 'content-length': `${body.length}` }
  delete headers['transfer-encoding']
  // A client that saw an ETag asks for the rest of the same representation.
  if (fault === 'cut') headers.etag = '"v1"'
  response.writeHead(upstream.statusCode!, headers)
  if (fault === 'none') return void response.end(body)
  response.write(body.subarray(0, 10), () => response.socket!.resetAndDestroy())
}

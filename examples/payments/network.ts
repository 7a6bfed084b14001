// The network between two of them, which can lose a request, lose a response or hang, and tells when something passes.

import { createServer } from 'node:http'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { buffer } from 'node:stream/consumers'

export type Fault = 'lose the request' | 'lose the response' | 'hang'

export interface Network {
  readonly url: string
  /** Happens to the next request to this path. */
  next(path: string, fault: Fault, happens?: () => void): void
  close(): void
}

export async function startNetwork(target: () => string): Promise<Network> {
  const faults = new Map<string, { readonly fault: Fault; happens(): void }>()
  const pass = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const { url = '', method = 'GET' } = request
    const { fault, happens } = faults.get(url) ?? {}
    faults.delete(url)
    const body = await buffer(request)
    const lose = (): void => {
      happens?.()
      response.destroy()
    }
    if (fault === 'lose the request') return lose()
    const headers = {
      'content-type': 'application/json',
      'idempotency-key': String(request.headers['idempotency-key']),
    }
    const answer = await fetch(`${target()}${url}`, { method, headers, body }).catch(() => undefined)
    if (!answer || fault === 'lose the response') return lose()
    if (fault === 'hang') return happens?.()
    response.writeHead(answer.status, { 'content-type': 'application/json' })
    response.end(Buffer.from(await answer.arrayBuffer()))
  }
  const server = createServer((request, response) => void pass(request, response))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    next: (path, fault, happens = () => {}) => void faults.set(path, { fault, happens }),
    close: () => void (server.close(), server.closeAllConnections()),
  }
}

// The bank and the carrier, in a process of their own. The bank honours keys; the carrier goes to Earth only. What they did is
// kept as it happened and shown by GET /. It prints its port when it listens.

import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'

const done: { readonly what: string; readonly order: string; readonly key: string }[] = []

const server = createServer((request, response) => {
  if (request.method === 'GET') return response.end(JSON.stringify(done))
  const [, what, order, to] = request.url!.split('/') as [string, string, string, string?]
  const key = String(request.headers['idempotency-key'])
  if (to === 'moon') return response.writeHead(422).end('nobody goes there')
  if (!done.some((each) => each.key === key)) done.push({ what, order, key })
  return response.end(key)
})
server.listen(0, '127.0.0.1', () => console.log((server.address() as AddressInfo).port))

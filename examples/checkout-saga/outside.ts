// The bank and the carrier, in a process of their own. The bank honours keys, and refunds a charge by the key of the charge. The
// carrier goes to Earth only. GET / shows what they did. The process prints its port when it listens.

import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'

const done: { readonly what: string; readonly order: string; readonly key: string }[] = []
const refunded = new Set<string>()

const server = createServer((request, response) => {
  if (request.method === 'GET') return response.end(JSON.stringify(done))
  const [, what, order, name = ''] = request.url!.split('/') as [string, string, string, string?]
  const key = String(request.headers['idempotency-key'])
  const isKnown = (of: string): boolean => done.some((each) => each.key === of)
  if (what === 'ship' && name === 'moon') return response.writeHead(422).end('nobody goes there')
  if (what === 'charge' && refunded.has(key)) return response.writeHead(422).end('it was refunded before it came')
  if (what === 'refund') refunded.add(name)
  const isNothing = what === 'refund' && !isKnown(name)
  if (!isKnown(key) && !isNothing) done.push({ what, order, key })
  return response.end(key)
})
server.listen(0, '127.0.0.1', () => console.log((server.address() as AddressInfo).port))

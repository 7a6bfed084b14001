// The payment provider and the mail server, in a process of their own. Both honour keys: a key that they have seen is answered as
// it was the first time. What they did is a line of a file, which outlives them. node provider.ts FILE [PORT]

import { appendFileSync, existsSync, readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { json } from 'node:stream/consumers'

interface Done {
  readonly key: string
  readonly what: string
  readonly order: string
  readonly receipt: string
}

const [file = 'provider.jsonl', port = '0'] = process.argv.slice(2)
const lines = existsSync(file) ? readFileSync(file, 'utf8').trim().split('\n') : []
const done = new Map(lines.filter(Boolean).map((line) => [(JSON.parse(line) as Done).key, JSON.parse(line) as Done]))

async function serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const key = String(request.headers['idempotency-key'])
  const { order } = (await json(request)) as { order: string }
  if (!done.has(key)) {
    const what = request.url === '/charges' ? 'charge' : 'mail'
    done.set(key, { key, what, order, receipt: `${what}-${done.size + 1}` })
    appendFileSync(file, `${JSON.stringify(done.get(key))}\n`)
  }
  response.setHeader('content-type', 'application/json').end(JSON.stringify(done.get(key)))
}

const server = createServer((request, response) => void serve(request, response))
server.listen(Number(port), '127.0.0.1', () => console.log((server.address() as AddressInfo).port))

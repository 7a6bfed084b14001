// The service behind the gateway in the process tests: it charges whenever it is asked, and writes each charge into a ledger
// that has no unique constraint and dedupes nothing. Its one argument is the ledger; it prints its port when it listens.
import { appendFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

const ledger = process.argv[2]!
let receipts = 0
const held: (() => void)[] = []

const server = createServer((req, res) => void serve(req, res))

async function serve(req: IncomingMessage, res: ServerResponse): Promise<unknown> {
  const chunks: Buffer[] = []
  for await (const chunk of req as AsyncIterable<Buffer>) chunks.push(chunk)
  // Opens what was held back.
  if (req.url === '/release') {
    for (const open of held.splice(0)) open()
    return res.end('released')
  }
  const receipt = ++receipts
  const key = String(req.headers['idempotency-key'])
  appendFileSync(ledger, `${key} ${req.headers['idempotency-attempt']} ${receipt}\n`)
  if (req.url === '/held') await new Promise<void>((resolve) => void held.push(resolve))
  const delayMs = Number(req.headers['x-delay-ms'] ?? 0)
  if (delayMs > 0) await new Promise((resolve) => setTimeout(resolve, delayMs))
  res.writeHead(201, { 'Content-Type': 'application/json' })
  return res.end(JSON.stringify({ receipt, key, body: Buffer.concat(chunks).toString() }))
}
server.listen(0, '127.0.0.1', () => process.stdout.write(`${(server.address() as AddressInfo).port}\n`))
// Nobody is left to be served when the test is gone.
process.stdin.resume().on('end', () => process.exit())

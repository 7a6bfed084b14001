// The systems outside of the operation, in a process of their own: a bank and a mail server that honour keys, and a carrier that
// knows no keys and can only be asked. Every request and every effect is a line of a file that has no unique constraint.
// Its argument is the file; it prints its port when it listens, and ends when its standard input does.

import { appendFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'

const file = process.argv[2]!
const answered = new Map<string, string>()
const parcels = new Map<string, string>()
let effects = 0

function take(system: string, order: string, key: string): string {
  const known = system === 'carrier' ? undefined : answered.get(`${system} ${key}`)
  if (known !== undefined) return known
  const receipt = `${system}-${++effects}`
  appendFileSync(file, `effect ${system} ${order}\n`)
  if (system === 'carrier') parcels.set(order, receipt)
  else answered.set(`${system} ${key}`, receipt)
  return receipt
}

const server = createServer((request, response) => {
  const [, system, order] = decodeURIComponent(request.url!).split('/') as [string, string, string]
  if (request.method === 'GET') return response.end(parcels.get(order) ?? '')
  appendFileSync(file, `asked ${system} ${order}\n`)
  return response.end(take(system, order, String(request.headers['idempotency-key'])))
})
server.listen(0, '127.0.0.1', () => process.stdout.write(`${(server.address() as AddressInfo).port}\n`))
process.stdin.resume().on('end', () => process.exit())

// The payment service of the demo, a separate process: it charges per request, writes each charge to its ledger and knows
// nothing of onceonly. A request may ask it to be slow, or to be killed right after the charge. It ends with the process that
// started it.

import { closeSync, fsyncSync, openSync, readFileSync, writeSync } from 'node:fs'
import { createServer } from 'node:http'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { systemClock } from '../../core/clock.ts'

const [ledger = '', port = '0'] = process.argv.slice(2)
// An order is a few dozen bytes.
const bodyBytesMax = 4_096
// Longer than the page waits for an answer, shorter than the page takes for three tries.
const slowMs = 1_800

interface Order {
  readonly order: string
  readonly cents: number
}

const server = createServer((request, response) => {
  pay(request, response).catch(() => response.destroy())
})

async function pay(request: IncomingMessage, response: ServerResponse): Promise<void> {
  if (request.method === 'GET' && request.url === '/') return answer(response, 200, { charges: countCharges() })
  if (request.method !== 'POST' || request.url !== '/payments') return answer(response, 404, { error: 'not found' })
  const order = readOrder(await readBody(request))
  if (!order) return answer(response, 400, { error: 'expected {"order": "…", "cents": 4900}' })
  const charge = writeCharge(order)
  const fault = String(request.headers['demo-fault'] ?? '')
  if (fault.includes('server-killed')) process.kill(process.pid, 'SIGKILL')
  if (!fault.includes('slow')) return answer(response, 201, charge)
  systemClock.schedule(() => answer(response, 201, charge), slowMs)
}

/** On the disk before the answer: a later kill of this process takes nothing back. */
function writeCharge({ order, cents }: Order): object {
  const charge = { charge: countCharges() + 1, order, cents, atMs: systemClock.now() }
  const file = openSync(ledger, 'a')
  writeSync(file, `${JSON.stringify(charge)}\n`)
  fsyncSync(file)
  closeSync(file)
  return charge
}

function countCharges(): number {
  return readFileSync(ledger, 'utf8').split('\n').length - 1
}

async function readBody(request: IncomingMessage): Promise<string> {
  let text = ''
  for await (const chunk of request.setEncoding('utf8')) {
    text += chunk
    if (text.length > bodyBytesMax) throw new Error('too large')
  }
  return text
}

function readOrder(text: string): Order | undefined {
  try {
    const { order, cents } = JSON.parse(text) as Partial<Order>
    return typeof order === 'string' && Number.isSafeInteger(cents) ? { order, cents: cents! } : undefined
  } catch {
    return undefined
  }
}

function answer(response: ServerResponse, status: number, body: object): void {
  response.writeHead(status, { 'Content-Type': 'application/json' }).end(`${JSON.stringify(body)}\n`)
}

process.on('disconnect', () => process.exit())
// Ctrl-C reaches the whole group. The demo ends this process when the demo is done with it.
process.on('SIGINT', () => {})
// This process must end by itself: the process that started it waits for it, and would never end either.
server.on('error', (error) => process.send?.({ problem: { ...error } }, () => process.exit(1)))
server.listen(Number(port), '127.0.0.1', () => process.send?.({ port: (server.address() as AddressInfo).port }))

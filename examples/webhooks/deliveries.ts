// A sender that does not hear the answers: it sends every event three times, while the receiver is killed again and again. Each payment
// is booked once. node examples/webhooks/deliveries.ts [EVENTS] [KILLS]

import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { once as heard } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { createWebhookSigner, newWebhookSecret } from 'onceonly/webhooks'

const [events = 12, kills = 2] = process.argv.slice(2).map(Number)
const secret = newWebhookSecret()
const signer = createWebhookSigner({ secrets: secret })
const folder = mkdtempSync(join(tmpdir(), 'onceonly-webhooks-'))
const path = join(folder, 'shop.db')

interface Running {
  readonly child: ChildProcess
  readonly port: string
}

async function start(): Promise<Running> {
  const child = spawn(process.execPath, [join(import.meta.dirname, 'receiver.ts'), path], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, WEBHOOK_SECRET: secret },
  })
  const [port] = (await heard(child.stdout, 'data')) as [Buffer]
  return { child, port: port.toString().trim() }
}

// The id is the event's, and the time the attempt's: every attempt is signed anew.
async function send(event: number, { port }: Running): Promise<number> {
  const body = JSON.stringify({ order: `order-${event}`, cents: 100 + event })
  const headers = { ...signer.sign({ id: `evt_${event}`, sentAtMs: Date.now(), body }) }
  const response = await fetch(`http://127.0.0.1:${port}/`, { method: 'POST', headers, body }).catch(() => undefined)
  return response?.status ?? 0
}

const answers: number[] = []
let receiver = await start()
for (let event = 0; event < events; event++) {
  for (let attempt = 0; attempt < 3; attempt++) answers.push(await send(event, receiver))
  if (event % Math.ceil(events / kills) === 0) {
    // In the middle of the next one.
    const pending = send(event + 1, receiver)
    receiver.child.kill('SIGKILL')
    await Promise.all([heard(receiver.child, 'exit'), pending])
    receiver = await start()
  }
}
receiver.child.kill('SIGKILL')
await heard(receiver.child, 'exit')

const database = new DatabaseSync(path)
const { payments, orders } = database
  .prepare('select count(*) as payments, count(distinct order_id) as orders from payments where order_id <> ?')
  .get(`order-${events}`) as { payments: number; orders: number }
database.close()
rmSync(folder, { recursive: true })
const accepted = answers.filter((status) => status === 200).length
console.log(JSON.stringify({ events, kills, accepted, payments, orders }))

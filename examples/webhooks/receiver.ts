// A shop that is told of payments by webhooks, with SQLite and node:http. It may be killed at any moment: a payment is booked once.
// WEBHOOK_SECRET=whsec_… node examples/webhooks/receiver.ts FILE [PORT]

import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { createOnce } from 'onceonly'
import { sqliteStore } from 'onceonly/sqlite'
import { createWebhookReceiver, standardWebhooks } from 'onceonly/webhooks'

const [path = 'shop.db', port = '0'] = process.argv.slice(2)
const once = createOnce({ store: sqliteStore({ path }), scope: 'shop' })
const scheme = standardWebhooks({ secrets: process.env['WEBHOOK_SECRET']! })

// The payment commits with the mark of its event, or neither does.
const receiver = createWebhookReceiver(once, { consumer: 'payments', scheme }, (tx, event) => {
  const { order, cents } = event.json() as { order: string; cents: number }
  tx.exec('create table if not exists payments (order_id text, cents integer)')
  tx.prepare('insert into payments values (?, ?)').run(order, cents)
})
await receiver.migrate()

const server = createServer(receiver.node).listen(Number(port), '127.0.0.1', () => {
  console.log((server.address() as AddressInfo).port)
})

// A shop that tells a customer of each order by a webhook, with SQLite. The event commits with the order. The customer's server fails at
// first, so each webhook is sent twice, with one id and two signatures. node examples/webhooks/sender.ts

import { once as heard } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import type { IncomingHttpHeaders } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { buffer } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import { createOnce } from 'onceonly'
import { createOutbox, createRelay } from 'onceonly/outbox'
import { sqliteStore } from 'onceonly/sqlite'
import { createWebhookSender, newWebhookSecret, standardWebhooks } from 'onceonly/webhooks'

// The customer.
const secret = newWebhookSecret()
const scheme = standardWebhooks({ secrets: secret })
const attempts: string[] = []
const statusFor = (headers: IncomingHttpHeaders, body: Buffer): number => {
  const { id } = scheme.verify({ headers, body })
  const isFirst = !attempts.includes(id)
  attempts.push(id)
  return isFirst ? 503 : 200
}
const customer = createServer((req, res) => {
  void buffer(req).then((body) => res.writeHead(statusFor(req.headers, body)).end())
}).listen(0, '127.0.0.1')
await heard(customer, 'listening')
const { port } = customer.address() as AddressInfo

// The shop. `allow` is for this example: no address of our own network can be reached without it. So are the short pauses.
const folder = mkdtempSync(join(tmpdir(), 'onceonly-webhooks-'))
const store = sqliteStore({ path: join(folder, 'shop.db') })
const once = createOnce({ store, scope: 'shop' })
const outbox = createOutbox({ store, source: 'shop' })
const webhooks = createWebhookSender({ store, allow: ['127.0.0.1'], scheduleMs: [0, 20, 20] })
await outbox.migrate()
await webhooks.migrate()
await webhooks.endpoints.add({ topic: 'acme', url: `http://127.0.0.1:${port}/hooks`, types: ['order.*'], secret })

const relay = createRelay({ outbox, publisher: webhooks.publisher })
relay.start()
webhooks.start()
for (let order = 1; order <= 5; order++) {
  await once.transaction(`order-${order}`, async (tx) => {
    tx.exec('create table if not exists orders (id text)')
    tx.prepare('insert into orders values (?)').run(`order-${order}`)
    await outbox.add(tx, { topic: 'acme', type: 'order.placed', key: `order-${order}`, data: { order } })
  })
}

const delivered = async (): Promise<number> => (await webhooks.deliveries.list({ state: 'delivered' })).length
while ((await delivered()) < 5) await sleep(20)
const [delivery] = await webhooks.deliveries.list()
await relay.stop()
await webhooks.stop()
await once.close()
customer.close()
store.close()
rmSync(folder, { recursive: true })
console.log(
  JSON.stringify({ orders: 5, attempts: attempts.length, events: new Set(attempts).size, state: delivery!.state }),
)

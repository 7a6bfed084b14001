// A sender (with its relay) or a receiver of the chain, as a process that can be killed: `process.ts sender DATABASE`, or
// `process.ts receiver DATABASE PORT SECRET`.
import { once as happened } from 'node:events'
import { createServer } from 'node:http'
import pg from 'pg'
import { createOnce } from '../../../src/core/once.ts'
import { createOutbox, createRelay } from '../../../src/messages/outbox.ts'
import { postgresStore } from '../../../src/stores/postgres.ts'
import { createWebhookReceiver, createWebhookSender, standardWebhooks } from '../../../src/webhooks.ts'

export type ChainRole = 'sender' | 'receiver'

// Short pauses instead of hours, and as many attempts as there can be faults.
const scheduleMs = [0, ...Array.from({ length: 2_000 }, () => 50)]

function sender(pool: pg.Pool): () => Promise<void> {
  const store = postgresStore({ pool })
  const outbox = createOutbox({ store, source: 'chain', shards: 2 })
  // A killed process keeps shards and endpoints for as long as its leases last.
  const webhooks = createWebhookSender({ store, allow: ['127.0.0.1'], scheduleMs, timeoutMs: 500, leaseMs: 1_000 })
  const relay = createRelay({ outbox, publisher: webhooks.publisher, leaseMs: 1_000, batch: 10 })
  relay.start()
  webhooks.start()
  return async () => {
    await relay.stop()
    await webhooks.stop()
  }
}

async function receiver(pool: pg.Pool, port: number, secret: string): Promise<() => Promise<void>> {
  const once = createOnce({ store: postgresStore({ pool }), scope: 'customer' })
  // Every kill counts as an attempt, and no event is to blame for it.
  const options = { consumer: 'ledger', scheme: standardWebhooks({ secrets: secret }), attempts: 1_000 }
  const receiving = createWebhookReceiver(once, options, async (tx, event) => {
    await tx.query('insert into ledger (id) values ($1)', [event.id])
  })
  const server = createServer((req, res) => {
    void pool.query('insert into arrivals (id) values ($1)', [req.headers['webhook-id']]).then(
      () => receiving.node(req, res),
      () => res.destroy(),
    )
  })
  server.listen(port, '127.0.0.1')
  await happened(server, 'listening')
  return async () => {
    server.closeAllConnections()
    server.close()
    await once.close()
  }
}

if (process.argv[1] === import.meta.filename) {
  const [role, database, port, secret] = process.argv.slice(2) as [ChainRole, string, string, string]
  // The supervisor is gone.
  process.on('disconnect', () => process.exit(1))
  const pool = new pg.Pool({ connectionString: database, max: 12 })
  pool.on('error', () => {})
  const stop = role === 'sender' ? sender(pool) : await receiver(pool, Number(port), secret)
  process.on('message', () => void stop().then(() => process.exit(0)))
  process.send?.('started')
}

// The backend: a payment is an operation of three steps. Whatever is lost or killed, a retry or the worker takes it up where it
// was. DATABASE_URL=… PROVIDER_URL=… node backend.ts [PORT]

import type { AddressInfo } from 'node:net'
import express from 'express'
import pg from 'pg'
import { createOnce, OnceError } from 'onceonly'
import { idempotency } from 'onceonly/express'
import { postgresStore } from 'onceonly/postgres'

interface Payment {
  readonly order: string
  readonly cents: number
}

const pool = new pg.Pool({ connectionString: process.env['DATABASE_URL'] })
const store = postgresStore({ pool })
await store.migrate()
await pool.query('create table if not exists orders ("order" text, cents integer, charge text)') // no constraint: it would hide a second row

// Short, for a story: what a killed process held is taken up two seconds later.
const once = createOnce({ store, scope: 'payments', leaseMs: 2_000 })

async function ask(path: string, key: string, body: object, signal: AbortSignal): Promise<{ receipt: string }> {
  const headers = { 'content-type': 'application/json', 'idempotency-key': key }
  const url = `${process.env['PROVIDER_URL']}${path}`
  const response = await fetch(url, { method: 'POST', headers, body: JSON.stringify(body), signal })
  if (!response.ok) throw new Error(`the provider said ${response.status}`)
  return (await response.json()) as { receipt: string }
}

const pay = once.operation('pay', { backoff: { firstMs: 200, maxMs: 1_000 } }, async (op, payment: Payment) => {
  // In doubt when its answer does not come; asked again with the same key, which the provider honours.
  const charge = await op.step('charge', {
    run: ({ key, signal }) => ask('/charges', key, payment, signal),
    timeoutMs: 1_500,
  })
  // The row and the record of the step commit together.
  await op.transaction('order', async (tx) => {
    await tx.query('insert into orders values ($1, $2, $3)', [payment.order, payment.cents, charge.receipt])
  })
  const mail = await op.step('receipt', {
    run: ({ key, signal }) => ask('/mails', key, payment, signal),
    timeoutMs: 1_500,
  })
  return { order: payment.order, charge: charge.receipt, mail: mail.receipt }
})

// Finishes what a killed process began, though no client asks again.
once.recover([pay], { everyMs: 500 })

const app = express()
app.use(idempotency(once, { tenant: 'shared' }))
app.use(express.json())
app.post('/payments', async (req, res) => {
  try {
    // The client's key names the payment.
    const { value } = await pay.run(req.idempotency!.keyFor('payment'), req.body as Payment)
    res.status(201).json(value)
  } catch (error) {
    // Not stored: the client may ask again, and should.
    const reason = error instanceof OnceError ? error.code : (error as Error).message
    res.status(503).set('retry-after', '1').json({ reason })
  }
})
const server = app.listen(Number(process.argv[2] ?? 0), '127.0.0.1', () => {
  console.log((server.address() as AddressInfo).port)
})

// The shop places orders. An order and the event that tells of it commit together, and a retry of the customer adds neither again.
// DATABASE_URL=postgres://… node examples/order-events/shop.ts ORDERS

import pg from 'pg'
import { createOnce } from 'onceonly'
import { createOutbox } from 'onceonly/outbox'
import { postgresStore } from 'onceonly/postgres'

const pool = new pg.Pool({ connectionString: process.env['DATABASE_URL'] })
const store = postgresStore({ pool })
await store.migrate()
const once = createOnce({ store, scope: 'shop' })
const outbox = createOutbox({ store, source: 'shop' })
await outbox.migrate()
await pool.query('create table if not exists orders (id text not null, customer text not null)')

async function placeOrder(id: string, customer: string): Promise<void> {
  await once.transaction(id, async (tx) => {
    await tx.query('insert into orders values ($1, $2)', [id, customer])
    await outbox.add(tx, { topic: 'orders', key: customer, type: 'order.placed', data: { id, customer } })
  })
}

const count = Number(process.argv[2])
for (let number = 0; number < count; number++) {
  const order = [`order-${number}`, `customer-${number % 5}`] as const
  // The customer's network fails, so everything is asked for twice.
  await placeOrder(...order)
  await placeOrder(...order)
}
await once.close()
await pool.end()

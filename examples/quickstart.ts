// The first ten lines: an effect that runs once, however often it is asked for.

import { createOnce } from 'onceonly'
import { sqliteStore } from 'onceonly/sqlite'

const once = createOnce({ store: sqliteStore({ path: process.argv[2] ?? 'onceonly.db' }), scope: 'payments' })

const order = { id: 'order-42', cents: 500 }
const pay = () => once.run(order.id, (op) => charge(order.cents, op.keyFor('charge')), { fingerprint: order })

let charges = 0
async function charge(cents: number, idempotencyKey: string) {
  charges++
  return { receipt: `${cents} cents`, idempotencyKey }
}

const first = await pay()
const second = await pay()
console.log(
  JSON.stringify({
    charges,
    replayed: [first.replayed, second.replayed],
    same: first.value.receipt === second.value.receipt,
  }),
)

// A saga: reserve, charge, ship. When shipping is refused for good, or the order is cancelled, the charge is refunded and the
// reservation released, the last first, each once. DATABASE_URL=… OUTSIDE_URL=… node checkout.ts ORDER DESTINATION [cancel].
// KILL_AT="charge, after" kills the process there.

import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { createOnce, FinalError, OnceError } from 'onceonly'
import { postgresStore } from 'onceonly/postgres'

const [order = 'order-1', to = 'earth', how = 'run'] = process.argv.slice(2)
const pool = new pg.Pool({ connectionString: process.env['DATABASE_URL'] })
const store = postgresStore({ pool })
const once = createOnce({ store, scope: 'shop', leaseMs: 1_000 })

async function ask(what: string, key: string, path: string = ''): Promise<string> {
  dieAt(`${what}, before`)
  const url = `${process.env['OUTSIDE_URL']}/${what}/${order}${path}`
  const response = await fetch(url, { method: 'POST', headers: { 'idempotency-key': key } })
  if (response.status === 422) throw new FinalError(await response.text()) // refused: nothing took effect
  dieAt(`${what}, after`)
  return response.text()
}

function dieAt(place: string): void {
  if (process.env['KILL_AT'] === place) process.kill(process.pid, 'SIGKILL')
}

const checkout = once.operation('checkout', {}, async (op, destination: string) => {
  // In the database: each commits with its record, so that a kill takes both along or neither.
  await op.transaction('reserve', {
    async run(tx) {
      await tx.query('update stock set left_over = left_over - 1')
      dieAt('reserve, before the commit')
    },
    async undo(tx) {
      await tx.query('update stock set left_over = left_over + 1')
      dieAt('release, before the commit')
    },
  })
  // At the bank: an undo has a key of its own, and names the charge by the charge's key. The bank refunds what it finds under
  // that key, and refuses it from then on, so that a charge whose answer never came is refunded as well.
  await op.step('charge', {
    run: ({ key }) => ask('charge', key),
    undo: ({ key, forwardKey }) => ask('refund', key, `/${forwardKey}`),
  })
  return op.step('ship', ({ key }) => ask('ship', key, `/${destination}`))
})

for (;;) {
  try {
    if (how === 'cancel') await checkout.cancel(order, 'the customer has changed her mind')
    const { value } = await checkout.run(order, to)
    console.log(`shipped ${value}`)
    break
  } catch (error) {
    if (error instanceof FinalError) {
      console.log(`failed: ${error.message}`)
      break
    }
    // The process that was killed holds it until its lease ends.
    if (!(error instanceof OnceError && error.retryable)) throw error
    await sleep(100)
  }
}
await once.close()
await pool.end()

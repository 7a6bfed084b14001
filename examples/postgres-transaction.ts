// Effect and record in one PostgreSQL transaction: the order row and the record of the key commit together or not at all.

import pg from 'pg'
import { createOnce, FinalError } from 'onceonly'
import { postgresStore } from 'onceonly/postgres'

const pool = new pg.Pool({ connectionString: process.env['DATABASE_URL'] })
const store = postgresStore({ pool })
await store.migrate()
await pool.query('create table if not exists orders (id text, cents integer)')

const once = createOnce({ store, scope: 'orders' })

const createOrder = (id: string, cents: number) =>
  once.transaction(
    id,
    async (tx) => {
      await tx.query('insert into orders values ($1, $2)', [id, cents])
      if (cents > 10_000) throw new FinalError('over the limit', { data: { limit: 10_000 } }) // stored; the row is not
      return { id, cents }
    },
    { fingerprint: { id, cents } },
  )

const results = await Promise.allSettled(Array.from({ length: 20 }, () => createOrder('order-1', 500)))
await createOrder('order-1', 500)
const declined = await createOrder('order-2', 99_999).catch((error: unknown) => error)
const { rows } = await pool.query('select count(*)::int as orders from orders')
console.log(JSON.stringify({ ...rows[0], asked: results.length + 2, declined: declined instanceof FinalError }))
await once.close()
await pool.end()

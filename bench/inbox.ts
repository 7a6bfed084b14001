// P10: a consumer that handles a hundred messages. One transaction per message by hand (mark, effect, COMMIT) against a batch of the
// inbox, and the same message by message. Every effect is a row; all are durable when they answer.

import pg from 'pg'
import { createOnce } from '../src/core/once.ts'
import { newId } from '../src/core/key.ts'
import { createInbox } from '../src/messages/inbox.ts'
import type { Message } from '../src/messages/inbox.ts'
import { postgresStore } from '../src/stores/postgres.ts'
import { startPostgres } from '../test/servers/postgres.ts'
import { compare } from './measure.ts'
import type { Variant } from './measure.ts'
import { report, reportRates } from './report.ts'

const batch = 100

const messages = (): Message[] =>
  Array.from({ length: batch }, () => ({
    id: newId(),
    topic: 'orders',
    headers: {},
    body: Buffer.from(JSON.stringify({ order: 'x'.repeat(280) })),
    raw: undefined,
  }))

export async function benchInbox(): Promise<void> {
  const server = await startPostgres()
  const pool = new pg.Pool({ connectionString: await server.createDatabase(), max: 10 })
  try {
    await pool.query('create table marks (id text primary key); create table effects (id text not null)')
    const store = postgresStore({ pool })
    await store.migrate()
    const inbox = createInbox(createOnce({ store, scope: 'bench', sweepEveryMs: false }), { consumer: 'bench' })
    await inbox.migrate()
    const byHand: Variant = {
      name: 'one transaction a message, by hand',
      async work() {
        for (const { id } of messages()) await transactionByHand(pool, id!)
      },
    }
    const inBatches: Variant = {
      name: 'inbox.handleBatch',
      work: () =>
        inbox.handleBatch(messages(), (tx, fresh) =>
          tx.query('insert into effects select unnest($1::text[])', [fresh.map(({ id }) => id)]),
        ),
    }
    const oneByOne: Variant = {
      name: 'inbox.handle',
      async work() {
        for (const message of messages()) {
          await inbox.handle(message, (tx, { id }) => tx.query('insert into effects values ($1)', [id]))
        }
      },
    }
    const batched = await compare([byHand, inBatches], { concurrency: 1, operations: 10 })
    const what = `Consumer on PostgreSQL, batches of ${batch} against one transaction per message`
    report({ id: 'P10', what, measured: batched.throughput, atLeast: 20 })
    reportRates([byHand.name, inBatches.name], batched)
    const single = await compare([byHand, oneByOne], { concurrency: 1, operations: 5 })
    report({ id: 'P10', what: 'The same, message by message (attempts are counted too)', measured: single.throughput })
    reportRates([byHand.name, oneByOne.name], single)
  } finally {
    await pool.end()
    await server.stop()
  }
}

async function transactionByHand(pool: pg.Pool, id: string): Promise<void> {
  const client = await pool.connect()
  try {
    await client.query('begin')
    const { rowCount } = await client.query('insert into marks values ($1) on conflict do nothing', [id])
    if (rowCount === 1) await client.query('insert into effects values ($1)', [id])
    await client.query('commit')
  } finally {
    client.release()
  }
}

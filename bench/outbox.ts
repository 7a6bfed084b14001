// P9: rows per second from an outbox to a publisher that does nothing, in one interleaved run on one PostgreSQL: the naive relay (one row
// per transaction), ours with batches of 100 and of 1,000, graphile-worker in its batched mode, and the fetch loop of pg-boss. Only the
// naive relay and ours keep the order per key, and the bench looks whether ours did.

import pg from 'pg'
import { createOutbox, createRelay } from '../src/messages/outbox.ts'
import type { Outbox, Outgoing, Publisher } from '../src/messages/outbox.ts'
import { postgresStore } from '../src/stores/postgres.ts'
import type { RunningPostgres } from '../test/servers/postgres.ts'
import { compareDrains, ratioIn } from './measure.ts'
import type { Ratio } from './measure.ts'
import { installPeers } from './peers.ts'
import { connections, graphileWorker, pgBoss } from './queues.ts'
import type { Queue } from './queues.ts'
import { report, reportComparison } from './report.ts'
import { startPostgres } from './servers.ts'

const rounds = 5
// Each enough for a second or so.
const naiveRows = 500
const rows = 20_000
const keys = 1_000
const data = { total: 1999, note: 'x'.repeat(200) }

export async function benchOutbox(): Promise<void> {
  const server = await startPostgres()
  const senders: Queue[] = []
  try {
    senders.push(await naive(server), await ours(server, 100), await ours(server, 1_000))
    if (installPeers() === 'installed')
      senders.push(
        await graphileWorker(await server.createDatabase(), { rows, data }),
        await pgBoss(await server.createDatabase(), { rows, data, batch: 1_000 }),
      )
    const compared = await compareDrains(senders, rounds)
    const against = (batch: number, other: string): Ratio => ratioIn(compared, 'perSecond', `batch of ${batch}`, other)
    for (const [batch, atLeast] of [
      [100, 40],
      [1_000, 100],
    ] as const) {
      const what = `Outbox relay, batches of ${batch}: rows per second against one per transaction`
      report({ id: 'P9', what, ...against(batch, 'naive'), atLeast })
    }
    for (const peer of compared.names.filter((name) => ['graphile-worker', 'pg-boss'].includes(name))) {
      const what = `Outbox relay, batches of 1000: rows per second against ${peer}`
      report({ id: 'P9', what, ...against(1_000, peer), atLeast: 1 })
    }
    reportComparison('Outbox relay', compared)
  } finally {
    for (const sender of senders) await sender.close()
    await server.stop()
  }
}

async function openPool(server: RunningPostgres): Promise<pg.Pool> {
  return new pg.Pool({ connectionString: await server.createDatabase(), max: connections })
}

async function naive(server: RunningPostgres): Promise<Queue> {
  const pool = await openPool(server)
  await pool.query(
    'create table outbox (id bigint generated always as identity primary key, key text, payload jsonb, sent_at timestamptz)',
  )
  await pool.query('create index on outbox (id) where sent_at is null')
  const sendOne = async (client: pg.PoolClient): Promise<void> => {
    await client.query('begin')
    const found = await client.query<{ id: string }>(
      'select id, payload from outbox where sent_at is null order by id limit 1 for update',
    )
    await client.query('update outbox set sent_at = now() where id = $1', [found.rows[0]!.id])
    await client.query('commit')
  }
  return {
    name: 'naive',
    rows: naiveRows,
    async fill(count) {
      await pool.query('insert into outbox (key, payload) select (n % $2)::text, $3 from generate_series(1, $1) n', [
        count,
        keys,
        JSON.stringify(data),
      ])
    },
    async drain(count) {
      const client = await pool.connect()
      for (let sent = 0; sent < count; sent++) await sendOne(client)
      client.release()
    },
    close: () => pool.end(),
  }
}

async function ours(server: RunningPostgres, batch: number): Promise<Queue> {
  const pool = await openPool(server)
  const store = postgresStore({ pool })
  await store.migrate()
  const outbox = createOutbox({ store, source: 'bench' })
  await outbox.migrate()
  let added = 0
  let arrived: Outgoing[] = []
  return {
    name: `batch of ${batch}`,
    rows: 2 * rows,
    async fill(count) {
      for (let left = count; left > 0; left -= 1_000) added = await addSome(pool, outbox, added, Math.min(left, 1_000))
    },
    async drain(count) {
      arrived = []
      const done = Promise.withResolvers<void>()
      const publisher: Publisher = {
        name: 'bench',
        async publish(messages) {
          arrived.push(...messages)
          if (arrived.length >= count) done.resolve()
          return messages.map(() => undefined)
        },
      }
      const relay = createRelay({ outbox, publisher, batch })
      relay.start()
      await done.promise
      await relay.stop()
    },
    async verify() {
      checkOrder(arrived)
      const { unsent } = await outbox.status()
      if (unsent > 0) throw new Error(`${unsent} rows are not marked`)
    },
    close: () => pool.end(),
  }
}

async function addSome(pool: pg.Pool, outbox: Outbox<never>, added: number, count: number): Promise<number> {
  const client = await pool.connect()
  await client.query('begin')
  const events = Array.from({ length: count }, (_, index) => ({
    topic: 'orders',
    key: `order-${(added + index) % keys}`,
    type: 'order.placed',
    data: { ...data, number: added + index },
  }))
  await outbox.add(client as never, events)
  await client.query('commit')
  client.release()
  return added + count
}

/** Throws when a key is out of order. */
function checkOrder(arrived: readonly Outgoing[]): void {
  const last = new Map<string, number>()
  for (const { key, body } of arrived) {
    const { number } = JSON.parse(Buffer.from(body).toString()) as { number: number }
    if (number <= (last.get(key!) ?? -1)) throw new Error(`${key}: ${number} came after ${last.get(key!)}`)
    last.set(key!, number)
  }
}

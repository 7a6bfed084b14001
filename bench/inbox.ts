// P10: messages per second through a consumer whose effect is a row, in one interleaved run on one PostgreSQL: one transaction per
// message by hand (mark, effect, COMMIT), batches of the inbox and single messages, graphile-worker in its batched mode and pg-boss in
// batches. All are durable when they answer. The batch by hand is the floor: it marks and writes as the inbox does, and counts no
// attempts, so a message that ends its process comes back for ever.

import pg from 'pg'
import { newId } from '../src/core/key.ts'
import { createOnce } from '../src/core/once.ts'
import { createInbox } from '../src/messages/inbox.ts'
import type { Inbox, Message } from '../src/messages/inbox.ts'
import { postgresStore } from '../src/stores/postgres.ts'
import type { RunningPostgres } from '../test/servers/postgres.ts'
import { compareDrains, ratioIn } from './measure.ts'
import type { Ratio } from './measure.ts'
import { installPeers } from './peers.ts'
import { connections, graphileWorker, pgBoss } from './queues.ts'
import type { Queue } from './queues.ts'
import { report, reportComparison } from './report.ts'
import { startPostgres } from './servers.ts'

const batch = 100
const rounds = 7
// Each enough for a second or so.
const singles = 1_000
const rows = 10_000
const body = Buffer.from(JSON.stringify({ order: 'x'.repeat(280) }))

export async function benchInbox(): Promise<void> {
  const server = await startPostgres()
  const consumers: Queue[] = []
  try {
    consumers.push(await byHand(server, 1), await byHand(server, batch))
    consumers.push(await ours(server, 1), await ours(server, batch))
    if (installPeers() === 'installed') consumers.push(...(await peers(server)))
    const compared = await compareDrains(consumers, rounds)
    const against = (of: string, to = nameByHand(1)): Ratio => ratioIn(compared, 'perSecond', of, to)
    const what = 'Consumer on PostgreSQL, messages per second against one transaction per message by hand:'
    report({ id: 'P10', what: `${what} inbox, batches of ${batch}`, ...against(nameOfOurs(batch)), atLeast: 20 })
    report({ id: 'P10', what: `${what} inbox, message by message`, ...against(nameOfOurs(1)) })
    report({ id: 'P10', what: `${what} by hand, batches of ${batch}`, ...against(nameByHand(batch)) })
    for (const peer of compared.names.filter((name) => ['graphile-worker', 'pg-boss'].includes(name))) {
      const beside = `Consumer on PostgreSQL, inbox in batches of ${batch}: messages per second against ${peer}`
      report({ id: 'P10', what: beside, ...against(nameOfOurs(batch), peer), atLeast: 1 })
    }
    reportComparison('Consumer on PostgreSQL', compared)
  } finally {
    for (const consumer of consumers) await consumer.close()
    await server.stop()
  }
}

const nameByHand = (size: number): string => `by hand, ${size === 1 ? 'one transaction each' : `batches of ${size}`}`
const nameOfOurs = (size: number): string => `inbox, ${size === 1 ? 'message by message' : `batches of ${size}`}`

async function withEffects(url: string): Promise<pg.Pool> {
  const pool = new pg.Pool({ connectionString: url, max: connections })
  await pool.query('create table effects (id text not null)')
  return pool
}

const writeEffects = (client: Pick<pg.Pool, 'query'>, ids: readonly string[]): Promise<unknown> =>
  client.query('insert into effects select unnest($1::text[])', [ids])

/** Throws unless every message has had its effect once. */
async function verifyEffects(pool: pg.Pool, count: number): Promise<void> {
  const { rows: found } = await pool.query<{ all: string; different: string }>(
    'select count(*) as all, count(distinct id) as different from effects',
  )
  await pool.query('truncate effects')
  const { all, different } = found[0]!
  if (Number(all) !== count || Number(different) !== count)
    throw new Error(`${count} messages had ${all} effects, ${different} of them different`)
}

/** A consumer of messages that are made outside of the measured time. */
async function consumer(
  pool: pg.Pool,
  name: string,
  size: number,
  consume: (messages: readonly Message[]) => Promise<unknown>,
): Promise<Queue> {
  let waiting: Message[] = []
  let filled = 0
  return {
    name,
    rows: size === 1 ? singles : rows,
    async fill(count) {
      filled = count
      waiting = Array.from({ length: count }, () => ({
        id: newId(),
        topic: 'orders',
        headers: {},
        body,
        raw: undefined,
      }))
    },
    async drain() {
      for (let at = 0; at < waiting.length; at += size) await consume(waiting.slice(at, at + size))
    },
    verify: () => verifyEffects(pool, filled),
    close: () => pool.end(),
  }
}

async function byHand(server: RunningPostgres, size: number): Promise<Queue> {
  const pool = await withEffects(await server.createDatabase())
  await pool.query('create table marks (id text primary key)')
  return consumer(pool, nameByHand(size), size, async (messages) => {
    const client = await pool.connect()
    await client.query('begin')
    const ids = messages.map(({ id }) => id!)
    const marked = await client.query<{ id: string }>(
      'insert into marks select unnest($1::text[]) on conflict do nothing returning id',
      [ids],
    )
    await writeEffects(
      client,
      marked.rows.map(({ id }) => id),
    )
    await client.query('commit')
    client.release()
  })
}

async function ours(server: RunningPostgres, size: number): Promise<Queue> {
  const pool = await withEffects(await server.createDatabase())
  const store = postgresStore({ pool })
  await store.migrate()
  const once = createOnce({ store, scope: 'bench', sweepEveryMs: false })
  const inbox: Inbox<pg.PoolClient> = createInbox(once, { consumer: 'bench' })
  await inbox.migrate()
  const effect = (tx: pg.PoolClient, fresh: readonly Message[]): Promise<unknown> =>
    writeEffects(
      tx,
      fresh.map(({ id }) => id!),
    )
  return consumer(pool, nameOfOurs(size), size, (messages) =>
    size === 1 ? inbox.handle(messages[0]!, (tx, only) => effect(tx, [only])) : inbox.handleBatch(messages, effect),
  )
}

/** Their marks are the deletion or the state of a job, in a commit of its own. */
async function peers(server: RunningPostgres): Promise<Queue[]> {
  const options = { rows: rows / 2, data: { body: body.toString() }, work: writeEffects }
  const withPool = async (open: (url: string) => Promise<Queue>): Promise<Queue> => {
    const url = await server.createDatabase()
    const pool = await withEffects(url)
    const queue = await open(url)
    let filled = 0
    return {
      ...queue,
      fill: (count) => queue.fill((filled = count)),
      verify: () => verifyEffects(pool, filled),
      async close() {
        await queue.close()
        await pool.end()
      },
    }
  }
  return [
    await withPool((url) => graphileWorker(url, options)),
    await withPool((url) => pgBoss(url, { ...options, batch })),
  ]
}

// A relay that has 1 million rows waiting beside one that has few: rows per second, and what it costs to add one more.

import pg from 'pg'
import { createOutbox, createRelay } from '../../src/messages/outbox.ts'
import type { Publisher } from '../../src/messages/outbox.ts'
import { postgresStore } from '../../src/stores/postgres.ts'
import type { RunningPostgres } from '../../test/servers/postgres.ts'
import { compareAll, compareDrains, ratioIn } from '../measure.ts'
import type { Drained, Variant } from '../measure.ts'
import { size } from '../plan.ts'
import { report, reportComparison } from '../report.ts'
import { startPostgres } from '../servers.ts'

const drainedRows = 20_000
const keys = 1_000

export async function benchWaitingRows(): Promise<void> {
  const waiting = size(1_000_000, 100_000)
  const server = await startPostgres({ settings: { max_wal_size: '8GB', checkpoint_timeout: '1h' } })
  const closing: (() => Promise<unknown>)[] = [() => server.stop()]
  try {
    const few = await openOutbox(server, 'few waiting rows', closing)
    const many = await openOutbox(server, `${waiting.toLocaleString('en')} waiting rows`, closing)
    await many.drained.fill(waiting)
    const title = `Outbox with ${waiting.toLocaleString('en')} waiting rows`
    const adding = await compareAll([few.adding, many.adding], { concurrency: 1, operations: 300, rounds: 7 })
    const p50 = ratioIn(adding, 'p50Ms', many.adding.name, few.adding.name)
    report({ id: 'growth', what: `${title}, adding one: p50 to few`, ...p50, atMost: 1.3 })
    reportComparison(`${title}, adding one`, adding)
    const relaying = await compareDrains([few.drained, many.drained], 5)
    const rate = ratioIn(relaying, 'perSecond', many.drained.name, few.drained.name)
    report({ id: 'growth', what: `${title}, relaying: rows per second to few`, ...rate, atLeast: 0.75 })
    reportComparison(`${title}, relaying`, relaying)
  } finally {
    for (const close of closing.toReversed()) await close()
  }
}

interface Opened {
  readonly adding: Variant
  readonly drained: Drained
}

async function openOutbox(server: RunningPostgres, name: string, closing: (() => Promise<unknown>)[]): Promise<Opened> {
  const pool = new pg.Pool({ connectionString: await server.createDatabase(), max: 10 })
  closing.push(() => pool.end())
  const store = postgresStore({ pool })
  await store.migrate()
  const outbox = createOutbox({ store, source: 'bench' })
  await outbox.migrate()
  const add = async (count: number, from: number): Promise<void> => {
    const client = await pool.connect()
    await client.query('begin')
    const events = Array.from({ length: count }, (_, index) => ({
      topic: 'orders',
      key: `order-${(from + index) % keys}`,
      type: 'order.placed',
      data: { total: 1999, note: 'x'.repeat(200) },
    }))
    await outbox.add(client as never, events)
    await client.query('commit')
    client.release()
  }
  return {
    adding: { name, work: (index) => add(1, index) },
    drained: {
      name,
      rows: drainedRows,
      fill: (count) => copyRows(pool, () => add(keys, 0), count),
      drain: (count) => relay(outbox, count),
    },
  }
}

/** One row for each key is added as always, and copied by the server behind it. */
async function copyRows(pool: pg.Pool, addOneEach: () => Promise<void>, count: number): Promise<void> {
  const last = await pool.query<{ position: string }>(
    'select coalesce(max(position), 0) as position from onceonly_outbox',
  )
  await addOneEach()
  const found = await pool.query<{ name: string }>(
    `select attname as name from pg_attribute where attrelid = 'onceonly_outbox'::regclass and attnum > 0 and not attisdropped`,
  )
  const names = found.rows.map(({ name }) => name)
  const renewed: Readonly<Record<string, string>> = {
    position: `nextval('onceonly_outbox_position')`,
    id: 'gen_random_uuid()',
  }
  const values = names.map((name) => renewed[name] ?? name)
  const copies = Math.max(0, Math.ceil(count / keys) - 1)
  await pool.query(`insert into onceonly_outbox (${names.join(', ')}) select ${values.join(', ')}
    from onceonly_outbox, generate_series(1, ${copies}) n where position > ${last.rows[0]!.position}`)
  await pool.query('analyze onceonly_outbox')
}

/** How many were published: it does not stop in the middle of a batch. */
async function relay(outbox: Parameters<typeof createRelay>[0]['outbox'], count: number): Promise<number> {
  const done = Promise.withResolvers<void>()
  const seen = new Set<string>()
  const publisher: Publisher = {
    name: 'bench',
    async publish(messages) {
      for (const { id } of messages) seen.add(id)
      if (seen.size >= count) done.resolve()
      return messages.map(() => undefined)
    },
  }
  const running = createRelay({ outbox, publisher, batch: 1_000 })
  running.start()
  await done.promise
  await running.stop()
  return seen.size
}

// P1, P2, P3: PostgreSQL against what a careful engineer writes by hand, one statement a phase, on the same server and with
// the same number of connections: through pool.query(text, values), as nearly everybody writes it (naive), and with named statements
// (naive, prepared). Fresh = claim + settle of a no-op effect with a 300-byte outcome; replay = a second ask. The same transaction is
// compared with the bare one, whose effect is one small row, and with the same by hand in five round trips.

import pg from 'pg'
import { newId } from '../src/core/key.ts'
import { createOnce } from '../src/core/once.ts'
import type { Once } from '../src/core/once.ts'
import { postgresStore } from '../src/stores/postgres.ts'
import type { PostgresStore } from '../src/stores/postgres.ts'
import { compareAll, ratioIn } from './measure.ts'
import type { Comparison, ComparedAll, Round, Variant } from './measure.ts'
import { wants } from './plan.ts'
import { report, reportComparison } from './report.ts'
import type { Target } from './report.ts'
import { startPostgres } from './servers.ts'

const connections = 20
const outcome = { receipt: 'x'.repeat(280) }
const outcomeBytes = (): Buffer => Buffer.from(JSON.stringify(outcome))
const token = (): string => crypto.randomUUID()

interface Ground {
  readonly pool: pg.Pool
  readonly once: Once<PostgresStore<pg.PoolClient>>
}

export async function benchPostgres(): Promise<void> {
  const server = await startPostgres()
  const pool = new pg.Pool({ connectionString: await server.createDatabase(), max: connections })
  try {
    const store = postgresStore({ pool })
    await store.migrate()
    await pool.query(`create table naive (scope text, id text, state text not null, token uuid not null, fingerprint text not null,
      lease_until timestamptz not null, outcome bytea, primary key (scope, id)); create table effects (id text)`)
    const once = createOnce({ store, scope: 'bench', sweepEveryMs: false })
    if (wants('P1')) await fresh({ pool, once })
    if (wants('P2')) await replay({ pool, once })
    if (wants('P3')) await sameTransaction({ pool, once })
    await once.close()
  } finally {
    await pool.end()
    await server.stop()
  }
}

type Aim = Pick<Target, 'atLeast' | 'atMost'>

function reportRatio(
  id: string,
  what: string,
  compared: ComparedAll,
  measure: keyof Round,
  to: string,
  aim: Aim = {},
): void {
  report({ id, what, ...ratioIn(compared, measure, 'onceonly', to), ...aim })
}

/** A statement by hand. With a name it is prepared once per connection. */
type ByHand = (text: string, values: readonly unknown[]) => { text: string; values: unknown[]; name?: string }

const byHand: Readonly<Record<'naive' | 'naive, prepared', ByHand>> = {
  naive: (text, values) => ({ text, values: [...values] }),
  'naive, prepared': (text, values) => ({ text, values: [...values], name: nameOf(text) }),
}

const preparedNames = new Map<string, string>()

function nameOf(text: string): string {
  const known = preparedNames.get(text)
  if (known !== undefined) return known
  const name = `by_hand_${preparedNames.size}`
  preparedNames.set(text, name)
  return name
}

const claim = `insert into naive values ('bench', $1, 'running', $2, $3, clock_timestamp() + interval '30 s')
  on conflict do nothing returning id`
const settle = `update naive set state = 'settled', outcome = $3
  where scope = 'bench' and id = $1 and token = $2 and state = 'running'`
const look = `select state, fingerprint, outcome from naive where scope = 'bench' and id = $1`
const effect = 'insert into effects values ($1)'

async function fresh({ pool, once }: Ground): Promise<void> {
  const variants: readonly Variant[] = [
    ...Object.entries(byHand).map(([name, statement]) => ({
      name,
      async work() {
        const [id, own] = [newId(), token()]
        const { rowCount } = await pool.query(statement(claim, [id, own, 'bench']))
        const settled = await pool.query(statement(settle, [id, own, outcomeBytes()]))
        if (rowCount !== 1 || settled.rowCount !== 1) throw new Error('not fresh')
      },
    })),
    {
      name: 'onceonly',
      async work() {
        const { replayed } = await once.run(newId(), () => outcome, { fingerprint: 'bench' })
        if (replayed) throw new Error('not fresh')
      },
    },
  ]
  const loads: readonly (Comparison & { readonly atLeast: number })[] = [
    { concurrency: 256, operations: 6_000, atLeast: 6 },
    { concurrency: 64, operations: 4_000, atLeast: 4.5 },
    { concurrency: 16, operations: 2_000, atLeast: 2.5 },
  ]
  for (const { atLeast, ...load } of loads) {
    const title = `Postgres fresh, c=${load.concurrency}`
    const compared = await compareAll(variants, load)
    reportRatio('P1', `${title}: throughput`, compared, 'perSecond', 'naive', { atLeast })
    reportRatio('P1', `${title}: throughput against naive, prepared`, compared, 'perSecond', 'naive, prepared')
    if (load.concurrency === 256) reportRatio('P1', `${title}: p99`, compared, 'p99Ms', 'naive', { atMost: 0.25 })
    reportComparison(title, compared)
  }
  const alone = await compareAll(variants, { concurrency: 1, operations: 400, rounds: 7 })
  reportRatio('P1', 'Postgres fresh, c=1: p50', alone, 'p50Ms', 'naive', { atMost: 1.05 })
  reportRatio('P1', 'Postgres fresh, c=1: p50 against naive, prepared', alone, 'p50Ms', 'naive, prepared')
  reportComparison('Postgres fresh, c=1', alone)
}

async function replay({ pool, once }: Ground): Promise<void> {
  const ids = Array.from({ length: 1_000 }, () => newId())
  for (const id of ids) {
    await once.run(id, () => outcome, { fingerprint: 'bench' })
    await pool.query(`insert into naive values ('bench', $1, 'settled', $2, 'bench', now(), $3)`, [
      id,
      token(),
      outcomeBytes(),
    ])
  }
  const variants: readonly Variant[] = [
    ...Object.entries(byHand).map(([name, statement]) => ({
      name,
      async work(index: number) {
        const id = ids[index % ids.length]!
        const { rowCount } = await pool.query(statement(claim, [id, token(), 'bench']))
        const { rows } = await pool.query<{ outcome: Buffer }>(statement(look, [id]))
        JSON.parse(String(rows[0]!.outcome))
        if (rowCount !== 0) throw new Error('not a replay')
      },
    })),
    {
      name: 'onceonly',
      async work(index) {
        const { replayed } = await once.run(ids[index % ids.length]!, () => outcome, { fingerprint: 'bench' })
        if (!replayed) throw new Error('not a replay')
      },
    },
  ]
  for (const concurrency of [256, 64]) {
    const title = `Postgres replay, c=${concurrency}`
    const compared = await compareAll(variants, { concurrency, operations: 8_000 })
    reportRatio('P2', `${title}: throughput`, compared, 'perSecond', 'naive', { atLeast: 10 })
    reportRatio('P2', `${title}: throughput against naive, prepared`, compared, 'perSecond', 'naive, prepared')
    reportComparison(title, compared)
  }
  await costOfReplays(pool, variants.at(-1)!)
}

// A lone replay is one statement and one round trip. What it writes is read on the server: nothing else runs beside it.
async function costOfReplays(pool: pg.Pool, ours: Variant): Promise<void> {
  const alone = await compareAll([ours], { concurrency: 1, operations: 400, rounds: 1 })
  const calls = alone.serverCalls.get('onceonly')
  if (calls !== undefined) report({ id: 'P2', what: 'Postgres replay, c=1: statements', measured: calls, atMost: 1 })
  const operations = 2_000
  const before = await transactions(pool)
  for (let index = 0; index < operations; index++) await ours.work(index)
  // Without a transaction number nothing was written, and without a write there is no WAL of it.
  const written = ((await transactions(pool)) - before) / operations
  report({ id: 'P2', what: 'Postgres replay, c=1: transactions that write', measured: written, atMost: 0 })
}

async function transactions(pool: pg.Pool): Promise<number> {
  const { rows } = await pool.query<{ at: string }>('select pg_snapshot_xmax(pg_current_snapshot())::text as at')
  return Number(rows[0]!.at)
}

async function sameTransaction({ pool, once }: Ground): Promise<void> {
  const inTransaction = async (work: (client: pg.PoolClient) => Promise<unknown>): Promise<void> => {
    const client = await pool.connect()
    try {
      await client.query('begin')
      await work(client)
      await client.query('commit')
    } finally {
      client.release()
    }
  }
  const variants: readonly Variant[] = [
    {
      name: 'bare transaction',
      work: () => inTransaction((client) => client.query(byHand.naive(effect, [newId()]))),
    },
    ...Object.entries(byHand).map(([name, statement]) => ({
      name: name.replace('naive', 'by hand'),
      work: () =>
        inTransaction(async (client) => {
          const [id, own] = [newId(), token()]
          await client.query(statement(claim, [id, own, 'bench']))
          await client.query(byHand.naive(effect, [id]))
          await client.query(statement(settle, [id, own, outcomeBytes()]))
        }),
    })),
    {
      name: 'onceonly',
      work() {
        const id = newId()
        return once.transaction(id, (tx) => tx.query(byHand.naive(effect, [id])).then(() => outcome), {
          fingerprint: 'bench',
        })
      },
    },
  ]
  const compared = await compareAll(variants, { concurrency: 1, operations: 400, rounds: 7 })
  const title = 'Same transaction, c=1'
  reportRatio('P3', `${title}: p50 against the bare transaction`, compared, 'p50Ms', 'bare transaction', {
    atMost: 1.3,
  })
  reportRatio('P3', `${title}: p50 against the same by hand`, compared, 'p50Ms', 'by hand', { atMost: 0.7 })
  reportRatio('P3', `${title}: p50 against the same by hand, prepared`, compared, 'p50Ms', 'by hand, prepared')
  reportComparison(title, compared)
}

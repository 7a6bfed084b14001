// P6, P7: what a claim costs when there are many entries, and what their expiry costs, in the simple table and in periods.
// 1 million entries, 10 million in a huge run (ONCEONLY_BENCH_ENTRIES changes that), are written by the server itself, a gigabyte
// each 3 million or so.

import pg from 'pg'
import { key, newId } from '../src/core/key.ts'
import type { ClaimRequest } from '../src/core/store.ts'
import { postgresStore } from '../src/stores/postgres.ts'
import type { PostgresStore } from '../src/stores/postgres.ts'
import { startPostgres } from '../test/servers/postgres.ts'
import type { RunningPostgres } from '../test/servers/postgres.ts'
import { compare, median } from './measure.ts'
import type { Variant } from './measure.ts'
import { size, wants } from './plan.ts'
import { report, reportRates } from './report.ts'

const fewEntries = 10_000
const entries = (): number => Number(process.env['ONCEONLY_BENCH_ENTRIES'] ?? size(1_000_000, 100_000, 10_000_000))
const expiringEntries = (): number => Math.min(1_000_000, entries())
const dayMs = 86_400_000
const retention = { keepMs: dayMs, tombstoneMs: 7 * dayMs }
const periodMs = 3 * dayMs

interface Table {
  readonly pool: pg.Pool
  readonly store: PostgresStore<pg.PoolClient>
}

type Layout = 'simple table' | 'periods'
type Ids = 'time-ordered' | 'random'

export async function benchRetention(): Promise<void> {
  say(
    `P6 with ${entries().toLocaleString('en')} entries (ONCEONLY_BENCH_ENTRIES), P7 with ${expiringEntries().toLocaleString('en')}`,
  )
  // A checkpoint in the middle of a round writes whole pages into the WAL, and would be that round's.
  const server = await startPostgres({ settings: { max_wal_size: '8GB', checkpoint_timeout: '1h', autovacuum: 'off' } })
  try {
    if (wants('P7')) await expiry(server)
    if (!wants('P6')) return
    for (const ids of ['time-ordered', 'random'] as const) {
      for (const layout of ['periods', 'simple table'] as const) await growth(server, layout, ids)
    }
  } finally {
    await server.stop()
  }
}

async function openTable(server: RunningPostgres, layout: Layout): Promise<Table> {
  const pool = new pg.Pool({ connectionString: await server.createDatabase(), max: 20 })
  const store = postgresStore({ pool, ...(layout === 'periods' && { periodMs }) })
  await store.migrate()
  return { pool, store }
}

// Settled entries, claimed evenly over the eight days for which they are remembered, packed as they are after a while; each
// where a claim would have put it, under an id like those of newId().
async function fill({ pool }: Table, count: number, ids: Ids, age: 'alive' | 'over' = 'alive'): Promise<void> {
  const tables = await pool.query<{ name: string }>(
    `select oid::regclass::text as name from pg_class where relname ~ '^onceonly(_rest|_[1-5])?$' and relkind = 'r'`,
  )
  const fillTo = (percent: number): Promise<unknown>[] =>
    tables.rows.map(({ name }) => pool.query(`alter table ${name} set (fillfactor = ${percent})`))
  await Promise.all(fillTo(90))
  const hex = `lpad(to_hex(at), 12, '0')`
  const timeOrdered = `left(${hex}, 8) || '-' || right(${hex}, 4) || '-7000-8000-' || lpad(to_hex(n), 12, '0')`
  const id = { 'time-ordered': timeOrdered, random: 'gen_random_uuid()::text' }
  const lifeMs = retention.keepMs + retention.tombstoneMs
  const nowMs = `(extract(epoch from now()) * 1000)::bigint`
  const lastMs = age === 'alive' ? nowMs : `(${nowMs} - ${lifeMs} - 1000)`
  if (age === 'over') await pool.query(`update onceonly_periods set ends_at_ms = ${nowMs} - 1 where slot = 1`)
  await pool.query(`insert into onceonly (fence, lease_until_ms, keep_ms, tombstone_ms, sweep_at_ms, attempt, version, state,
      how, slot, token, fingerprint, scope, id)
    select at * 1000, at, ${retention.keepMs}, ${retention.tombstoneMs}, coalesce(p.ends_at_ms, at + ${retention.keepMs}), 1, 1,
      's', 'f', coalesce(p.slot, 0), gen_random_uuid(), repeat('f', 43), 'bench', ${id[ids]}
    from (
      select n, ${lastMs} - ${lifeMs} + ${lifeMs}::bigint * n / ${count} as at
      from generate_series(1, ${count}) n
    ) g
    left join lateral (select slot, ends_at_ms from onceonly_periods where ends_at_ms >= at + ${lifeMs} order by 2 limit 1) p on true`)
  await Promise.all(fillTo(30))
  await pool.query('checkpoint')
}

function request(): ClaimRequest {
  const policies = { onTakeover: 'run', onExpired: 'refuse' } as const
  const token = crypto.randomUUID()
  return { token, fingerprint: 'f'.repeat(43), leaseMs: 30_000, retention, version: 1, ...policies }
}

function claims(name: string, { store }: Table, ids: Ids): Variant {
  const id = ids === 'random' ? (): string => crypto.randomUUID() : newId
  return {
    name,
    async work() {
      const verdict = await store.claim(key('bench', id()), request())
      if (verdict.is !== 'granted') throw new Error(`expected a grant, got ${verdict.is}`)
    },
  }
}

async function growth(server: RunningPostgres, layout: Layout, ids: Ids): Promise<void> {
  const few = await openTable(server, layout)
  const many = await openTable(server, layout)
  await fill(few, fewEntries, ids)
  await fill(many, entries(), ids)
  const variants = [claims('few', few, ids), claims('many', many, ids)] as const
  const compared = await compare(variants, { concurrency: 1, operations: 300, rounds: 7 })
  const what = `${layout}, ${ids} ids`
  // Random ids are shown, not aimed at: their cost is why time-ordered ones are recommended.
  const aimed = ids === 'time-ordered'
  const p50 = { id: 'P6', what: `${what}: claim p50, many to few entries`, measured: compared.p50 }
  report({ ...p50, ...(aimed && { atMost: 1.3 }) })
  reportRates(['few', 'many'], compared)
  const bytes = await walOfClaims(many, variants[1])
  // The simple table has an index more to write.
  const bytesMax = layout === 'periods' ? 350 : 420
  report({
    id: 'P6',
    what: `${what}: WAL a claim at c=64`,
    measured: bytes,
    unit: 'B',
    ...(aimed && { atMost: bytesMax }),
  })
  for (const { pool } of [few, many]) await dropDatabase(server, pool)
}

async function walOfClaims({ pool }: Table, variant: Variant): Promise<number> {
  const operations = 20_000
  const before = await walPosition(pool)
  await inParallel(64, operations, variant)
  return ((await walPosition(pool)) - before) / operations
}

async function inParallel(concurrency: number, operations: number, { work }: Variant): Promise<void> {
  let started = 0
  const worker = async (): Promise<void> => {
    while (started < operations) await work(started++)
  }
  await Promise.all(Array.from({ length: concurrency }, worker))
}

async function dropDatabase(server: RunningPostgres, pool: pg.Pool): Promise<void> {
  const { rows } = await pool.query<{ name: string }>('select current_database() as name')
  await pool.end()
  const admin = new pg.Client({ connectionString: server.url })
  await admin.connect()
  await admin.query(`drop database "${rows[0]!.name}"`)
  await admin.end()
}

// The same entries, all over: deleted in batches from the simple table as one would by hand, and emptied by a sweep of the
// table in periods. First without anybody beside it, then the latter again with claims, compared with the claims just before.
async function expiry(server: RunningPostgres): Promise<void> {
  const rounds: { readonly byHand: Expiry; readonly ours: Expiry; readonly p99: number; readonly text: string }[] = []
  const expiring = expiringEntries()
  // The p99 of one window is noise: nine of them, each beside its own control.
  for (let round = 0; round < size(9, 3); round++) {
    const simple = await openTable(server, 'simple table')
    await fill(simple, expiring, 'time-ordered', 'over')
    const byHand = await timed(simple, () => deleteInBatches(simple))
    await dropDatabase(server, simple.pool)
    const periods = await openTable(server, 'periods')
    await fill(periods, expiring, 'time-ordered', 'over')
    const ours = await timed(periods, () => sweepAll(periods))
    await fill(periods, expiring, 'time-ordered', 'over')
    const variant = claims('claims', periods, 'time-ordered')
    await p99During(variant, pause(windowMs))
    const calmMs = await p99During(variant, pause(windowMs))
    const busyMs = await p99During(variant, Promise.all([pause(windowMs), sweepAll(periods)]))
    await dropDatabase(server, periods.pool)
    const text = `p99 ${calmMs.toFixed(1)} ms before, ${busyMs.toFixed(1)} ms meanwhile`
    rounds.push({ byHand, ours, p99: busyMs / calmMs, text })
  }
  const speed = median(rounds.map(({ byHand, ours }) => byHand.tookMs / ours.tookMs))
  report({
    id: 'P7',
    what: `expiry of ${expiring} entries against batched DELETE: speed`,
    measured: speed,
    atLeast: 10,
  })
  const p99 = median(rounds.map((each) => each.p99))
  report({ id: 'P7', what: 'claims in the second around an expiry: p99 to before', measured: p99, atMost: 1.3 })
  for (const [what, of] of [
    ['batched DELETE', 'byHand'],
    ['periods', 'ours'],
  ] as const) {
    const tookMs = median(rounds.map((each) => each[of].tookMs))
    const walBytes = median(rounds.map((each) => each[of].walBytes))
    report({ id: 'P7', what: `expiry of ${expiring} entries, ${what}: time`, measured: tookMs / 1_000, unit: 's' })
    report({ id: 'P7', what: `expiry of ${expiring} entries, ${what}: WAL`, measured: walBytes / 1e6, unit: 'MB' })
  }
  for (const { byHand, ours, text } of rounds)
    say(`      DELETE ${shown(byHand)}; periods ${shown(ours)}; claims: ${text}`)
}

interface Expiry {
  readonly tookMs: number
  readonly walBytes: number
}

function shown({ tookMs, walBytes }: Expiry): string {
  return `${(tookMs / 1_000).toFixed(2)} s and ${(walBytes / 1e6).toFixed(1)} MB of WAL`
}

async function timed({ pool }: Table, work: () => Promise<void>): Promise<Expiry> {
  const before = await walPosition(pool)
  const beganMs = performance.now()
  await work()
  return { tookMs: performance.now() - beganMs, walBytes: (await walPosition(pool)) - before }
}

async function deleteInBatches({ pool }: Table): Promise<void> {
  for (let deleted = 1; deleted > 0;) {
    const { rowCount } = await pool.query(`delete from onceonly where ctid = any(array(
      select ctid from onceonly where sweep_at_ms <= extract(epoch from now()) * 1000 limit 10000 for update skip locked))`)
    deleted = rowCount!
  }
}

async function sweepAll({ pool, store }: Table): Promise<void> {
  // The table whose period is over may be in use at just this moment; a sweep that met that comes again.
  const isOver = `select count(*)::integer as many from onceonly_periods where ends_at_ms <= extract(epoch from now()) * 1000`
  for (let many = 1; many > 0;) {
    await store.sweep({ limit: 1_000 })
    many = (await pool.query<{ many: number }>(isOver)).rows[0]!.many
  }
}

/** Short, so that an expiry of a twentieth of a second is seen in the p99 if it holds anybody up. */
const windowMs = 1_000

async function p99During({ work }: Variant, end: Promise<unknown>): Promise<number> {
  const durationsMs: number[] = []
  let over = false
  const worker = async (): Promise<void> => {
    while (!over) {
      const beganMs = performance.now()
      await work(0)
      durationsMs.push(performance.now() - beganMs)
    }
  }
  const workers = Array.from({ length: 16 }, worker)
  await end
  over = true
  await Promise.all(workers)
  durationsMs.sort((a, b) => a - b)
  return durationsMs[Math.floor((durationsMs.length - 1) * 0.99)]!
}

async function walPosition(pool: pg.Pool): Promise<number> {
  const { rows } = await pool.query<{ at: string }>(`select pg_current_wal_insert_lsn() - '0/0'::pg_lsn as at`)
  return Number(rows[0]!.at)
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}

function say(line: string): void {
  process.stdout.write(`${line}\n`)
}

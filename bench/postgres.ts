// P1, P2, P3: PostgreSQL against what a careful engineer writes by hand, one statement a phase, on the same server and with
// the same number of connections, through pool.query(text, values) as nearly everybody writes it. Fresh = claim + settle of a no-op effect with a 300-byte outcome; replay = a second ask.

import pg from 'pg'
import { createOnce } from '../src/core/once.ts'
import type { Once } from '../src/core/once.ts'
import { newId } from '../src/core/key.ts'
import { postgresStore } from '../src/stores/postgres.ts'
import type { PostgresStore } from '../src/stores/postgres.ts'
import { startPostgres } from '../test/servers/postgres.ts'
import { compare } from './measure.ts'
import type { Variant } from './measure.ts'
import { report, reportRates } from './report.ts'

const connections = 20
const outcome = { receipt: 'x'.repeat(280) }
const token = (): string => crypto.randomUUID()

export async function benchPostgres(): Promise<void> {
  const server = await startPostgres()
  const pool = new pg.Pool({ connectionString: await server.createDatabase(), max: connections })
  try {
    const store = postgresStore({ pool })
    await store.migrate()
    await pool.query(`create table naive (scope text, id text, state text not null, token uuid not null, fingerprint text not null,
      lease_until timestamptz not null, outcome bytea, primary key (scope, id)); create table effects (id text)`)
    const once = createOnce({ store, scope: 'bench', sweepEveryMs: false })
    const ours: Variant = { name: 'onceonly', work: () => once.run(newId(), () => outcome, { fingerprint: 'bench' }) }
    await fresh(naiveFresh(pool), ours)
    await replay(pool, once)
    await sameTransaction(pool, once)
    await once.close()
  } finally {
    await pool.end()
    await server.stop()
  }
}

function naiveFresh(pool: pg.Pool): Variant {
  const claim = {
    text: `insert into naive values ('bench', $1, 'running', $2, $3, clock_timestamp() + interval '30 s') on conflict do nothing returning id`,
  }
  const settle = {
    text: `update naive set state = 'settled', outcome = $3 where scope = 'bench' and id = $1 and token = $2 and state = 'running'`,
  }
  return {
    name: 'naive',
    async work() {
      const [id, own] = [newId(), token()]
      await pool.query({ ...claim, values: [id, own, 'bench'] })
      await pool.query({ ...settle, values: [id, own, Buffer.from(JSON.stringify(outcome))] })
    },
  }
}

async function fresh(naive: Variant, ours: Variant): Promise<void> {
  for (const [concurrency, operations, atLeast] of [
    [256, 6_000, 5],
    [64, 4_000, 3.5],
    [16, 2_000, 2],
  ] as const) {
    const compared = await compare([naive, ours], { concurrency, operations })
    report({ id: 'P1', what: `Postgres fresh, c=${concurrency}: throughput`, measured: compared.throughput, atLeast })
    if (concurrency === 256)
      report({ id: 'P1', what: 'Postgres fresh, c=256: p99', measured: compared.p99, atMost: 0.35 })
    reportRates(['naive', 'onceonly'], compared)
  }
  const alone = await compare([naive, ours], { concurrency: 1, operations: 400, rounds: 7 })
  report({ id: 'P1', what: 'Postgres fresh, c=1: p50', measured: alone.p50, atMost: 1.1 })
  reportRates(['naive', 'onceonly'], alone)
}

async function replay(pool: pg.Pool, once: Once<PostgresStore<pg.PoolClient>>): Promise<void> {
  const ids = Array.from({ length: 1_000 }, () => newId())
  const naive = naiveFresh(pool)
  for (const id of ids) {
    await once.run(id, () => outcome, { fingerprint: 'bench' })
    await pool.query(`insert into naive values ('bench', $1, 'settled', $2, 'bench', now(), $3)`, [
      id,
      token(),
      Buffer.from(JSON.stringify(outcome)),
    ])
  }
  const insert = {
    text: `insert into naive values ('bench', $1, 'running', $2, 'bench', clock_timestamp()) on conflict do nothing`,
  }
  const select = {
    text: `select state, fingerprint, outcome from naive where scope = 'bench' and id = $1`,
  }
  const variants: [Variant, Variant] = [
    {
      name: naive.name,
      async work(index) {
        const id = ids[index % ids.length]!
        await pool.query({ ...insert, values: [id, token()] })
        JSON.parse(String((await pool.query({ ...select, values: [id] })).rows[0].outcome))
      },
    },
    {
      name: 'onceonly',
      async work(index) {
        const { replayed } = await once.run(ids[index % ids.length]!, () => outcome, { fingerprint: 'bench' })
        if (!replayed) throw new Error('not a replay')
      },
    },
  ]
  for (const concurrency of [256, 64]) {
    const compared = await compare(variants, { concurrency, operations: 8_000 })
    report({
      id: 'P2',
      what: `Postgres replay, c=${concurrency}: throughput`,
      measured: compared.throughput,
      atLeast: 8,
    })
    reportRates(['naive', 'onceonly'], compared)
  }
}

async function sameTransaction(pool: pg.Pool, once: Once<PostgresStore<pg.PoolClient>>): Promise<void> {
  const insert = { text: 'insert into effects values ($1)' }
  const bare: Variant = {
    name: 'bare transaction',
    async work() {
      const client = await pool.connect()
      try {
        await client.query('begin')
        await client.query({ ...insert, values: [newId()] })
        await client.query('commit')
      } finally {
        client.release()
      }
    },
  }
  const ours: Variant = {
    name: 'once.transaction',
    work() {
      const id = newId()
      return once.transaction(id, (tx) => tx.query({ ...insert, values: [id] }).then(() => outcome), {
        fingerprint: 'bench',
      })
    },
  }
  const compared = await compare([bare, ours], { concurrency: 1, operations: 400, rounds: 7 })
  report({
    id: 'P3',
    what: 'Same transaction, c=1: p50 against the bare transaction',
    measured: compared.p50,
    atMost: 1.15,
  })
  reportRates(['bare', 'onceonly'], compared)
}

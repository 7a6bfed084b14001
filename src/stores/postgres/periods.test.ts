// A table in periods: the whole contract, then the boundaries. No key may run twice because a period ends, because two sessions
// choose different tables for it, because a table is emptied beside it, or because the table is put into periods under it.

import type pg from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import {
  contractName,
  createPool,
  inTransaction,
  type PostgresGround,
  startPostgresGround,
} from '../../../test/subjects/postgres.ts'
import { needs } from '../../../test/servers/needs.ts'
import { contractPart } from '../../../test/subjects/contract-part.ts'
import { startPostgres } from '../../../test/servers/postgres.ts'
import { key, newId } from '../../core/key.ts'
import type { Claim, ClaimRequest, Store, Verdict } from '../../core/store.ts'
import { storeContract, storeContractCases } from '../../testing/store-contract.ts'
import { postgresStore } from '../postgres.ts'
import type { PostgresStore } from '../postgres.ts'

const hourMs = 3_600_000
const periodMs = 60 * hourMs
const leaseMs = hourMs
// Over three periods and a half.
const retention = { keepMs: 24 * hourMs, tombstoneMs: 7 * 24 * hourMs }
const lifeMs = retention.keepMs + retention.tombstoneMs
const outcome = new TextEncoder().encode('outcome')

function request(changes: Partial<ClaimRequest> = {}): ClaimRequest {
  const token = crypto.randomUUID()
  const fingerprint = 'f'.repeat(43)
  const policies = { onTakeover: 'run', onExpired: 'refuse' } as const
  return { token, fingerprint, leaseMs, retention, version: 1, ...policies, ...changes }
}

async function recorded(store: PostgresStore, id: string): Promise<void> {
  const { granted } = await store.begin(key('periods', id), request())
  expect(await granted!.commit(outcome, retention)).toBe('done')
}

async function claimed(store: Pick<Store, 'claim'>, id: string, changes: Partial<ClaimRequest> = {}): Promise<Claim> {
  const verdict = await store.claim(key('periods', id), request(changes))
  if (verdict.is !== 'granted') throw new Error(`expected ${id} to be granted, got ${verdict.is}`)
  return verdict.claim
}

async function sweepAll(store: Pick<PostgresStore, 'sweep'>): Promise<void> {
  for (let more = true; more;) more = (await store.sweep({ limit: 1_000 })).more
}

needs('postgres', { ours: true }).describe('the PostgreSQL store in periods', () => {
  let ground: PostgresGround
  let pool: pg.Pool
  let other: pg.Pool
  beforeAll(async () => {
    ground = await startPostgresGround({ periodMs })
    pool = createPool(ground.url)
    other = createPool(ground.url)
  })
  afterAll(async () => {
    await pool.end()
    await other.end()
    await ground[Symbol.asyncDispose]()
  })

  const cannot = {
    'counted-sweep': 'a table is emptied at once, however many entries it holds',
    collecting: 'its transactions stay open: nothing has to be collected',
  }
  storeContract({ name: contractName('postgres in periods'), create: () => ground.createSubject(), cannot, test })

  const concurrent = ['atomic-claims', 'fencing', 'sweep', 'transactions', 'no-waiting']
  const cases = storeContractCases.filter((each) => concurrent.includes(each.guarantee))
  const repeatable = { options: '-c default_transaction_isolation=repeatable\\ read' }
  describe('when repeatable read is the default', () => {
    contractPart({
      name: 'postgres in periods, repeatable read',
      cases,
      create: () => ground.createSubject(repeatable),
    })
  })

  const slotOf = async (id: string): Promise<number | undefined> => {
    const text = 'select slot from public.onceonly where scope = $1 and id = $2'
    const { rows } = await ground.admin.query<{ slot: number }>(text, ['periods', id])
    expect(rows.length).toBeLessThan(2)
    return rows[0]?.slot
  }
  const ask = async (store: Store, id: string): Promise<Verdict['is']> =>
    (await store.claim(key('periods', id), request())).is

  describe('at a boundary', () => {
    beforeEach(() => ground.reset())

    test('an entry lives to the millisecond, whatever boundaries it meets and however often it is swept', async () => {
      const store = postgresStore({ pool })
      const again = postgresStore({ pool: other })
      // Claimed just before, at and just after the end of the first period.
      await ground.advance(periodMs - 1)
      const born: { id: string; atMs: number }[] = []
      let nowMs = 0
      const step = async (ms: number): Promise<void> => {
        await ground.advance(ms)
        nowMs += ms
      }
      for (const id of ['before', 'at', 'after']) {
        const claim = await claimed(store, id)
        expect(await ask(again, id)).toBe('busy')
        await step(1)
        await sweepAll(again)
        expect(await ask(again, id)).toBe('busy')
        expect(await store.settle(claim, outcome, retention)).toBe('done')
        born.push({ id, atMs: nowMs })
      }
      for (let boundary = 2; boundary < 6; boundary++) {
        await step((boundary - 1) * periodMs - nowMs)
        for (let edge = 0; edge < 3; edge++) {
          await sweepAll(store)
          for (const { id, atMs } of born) {
            const age = nowMs - atMs
            const expected = age < retention.keepMs ? 'settled' : age < lifeMs ? 'expired' : undefined
            if (expected) expect(await ask(again, id), `${id} at ${nowMs}`).toBe(expected)
          }
          await step(1)
        }
      }
      for (const { id } of born) expect(await ask(again, id)).toBe('granted')
    })

    test('the last millisecond of a tombstone is kept by a table whose period ends with it', async () => {
      const store = postgresStore({ pool })
      const claim = await claimed(store, 'edge', { leaseMs: periodMs - 2, retention: { keepMs: 1, tombstoneMs: 1 } })
      expect(await slotOf('edge')).toBe(1)
      await ground.advance(periodMs - 1)
      await sweepAll(store)
      expect(await ask(store, 'edge')).toBe('expired')
      expect(await store.settle(claim, outcome, retention)).toBe('lost')
      await ground.advance(1)
      await sweepAll(store)
      expect(await slotOf('edge')).toBeUndefined()
      expect(await store.settle(claim, outcome, retention)).toBe('lost')
      expect(await ask(store, 'edge')).toBe('granted')
    })

    test('a claim that is extended past the end of its period moves, and its token still finds it', async () => {
      const store = postgresStore({ pool })
      const short = { keepMs: hourMs, tombstoneMs: hourMs }
      const claim = await claimed(store, 'long', { leaseMs: periodMs - 3 * hourMs, retention: short })
      expect(await slotOf('long')).toBe(1)
      for (let round = 0; round < 8; round++) {
        await ground.advance(periodMs / 2)
        expect(await store.extend(claim, periodMs - 3 * hourMs)).toBe('done')
        await sweepAll(store)
        expect(await ask(store, 'long')).toBe('busy')
      }
      expect(await store.settle(claim, outcome, retention)).toBe('done')
      await ground.advance(23 * hourMs)
      await sweepAll(store)
      expect(await ask(store, 'long')).toBe('settled')
    })

    test('every write that prolongs an entry moves it: a repeated claim, a takeover, a release, a longer retention', async () => {
      const store = postgresStore({ pool })
      const short = { keepMs: hourMs, tombstoneMs: 0 }
      const first = { leaseMs: periodMs - 2 * hourMs, retention: short }
      const token = crypto.randomUUID()
      await claimed(store, 'repeated', { ...first, token })
      await claimed(store, 'taken over', first)
      await claimed(store, 'mended', first)
      const opened = await claimed(store, 'opened', first)
      const settled = await Promise.all(['1', '2', '3'].map((id) => claimed(store, id, first)))
      const ids = ['repeated', 'taken over', 'opened', 'mended', '1', '2', '3']
      for (const id of ids) expect(await slotOf(id)).toBe(1)
      await ground.advance(periodMs - 2 * hourMs + 1)
      await claimed(store, 'repeated', { leaseMs, retention: short, token })
      await claimed(store, 'taken over', { leaseMs, retention })
      expect(await store.release(opened, 'open')).toBe('done')
      await store.mend(key('periods', 'mended'), 'release', 'to see it move')
      const done = await Promise.all(settled.map((claim) => store.settle(claim, outcome, retention)))
      expect(done).toEqual(['done', 'done', 'done'])
      await ground.advance(hourMs - 2)
      for (const id of ids) expect(await slotOf(id), id).not.toBe(id === 'opened' || id === 'mended' ? 0 : 1)
      await sweepAll(store)
      expect(await ask(store, 'repeated')).toBe('busy')
      expect(await ask(store, 'taken over')).toBe('busy')
      expect(await ask(store, 'opened')).toBe('granted')
      expect(await ask(store, 'mended')).toBe('granted')
      for (const id of ['1', '2', '3']) expect(await ask(store, id)).toBe('settled')
    })

    test('what is kept for longer than the ring reaches is swept row by row, and what is due is emptied at once', async () => {
      const store = postgresStore({ pool })
      const long = { keepMs: 6 * periodMs, tombstoneMs: 0 }
      await store.settle(await claimed(store, 'long', { retention: long }), outcome, long)
      await store.settle(await claimed(store, 'short'), outcome, retention)
      expect([await slotOf('long'), await slotOf('short')]).toEqual([0, 4])
      await recorded(store, 'in a transaction')
      expect(await slotOf('in a transaction')).toBe(4)
      await ground.advance(4 * periodMs)
      await sweepAll(store)
      expect([await slotOf('long'), await slotOf('short')]).toEqual([0, undefined])
      const { rows } = await ground.admin.query(`select pg_relation_size('public.onceonly_4')::integer as size`)
      expect(rows[0]).toEqual({ size: 0 })
      await ground.advance(2 * periodMs)
      expect(await store.sweep({ limit: 10 })).toMatchObject({ forgotten: 1 })
      // Nobody swept for longer than the ring is: entries go to slot 0 until somebody does.
      await ground.advance(20 * periodMs)
      await claimed(store, 'late')
      expect(await slotOf('late')).toBe(0)
      await sweepAll(store)
      await claimed(store, 'in time')
      expect(await slotOf('in time')).not.toBe(0)
    })
  })

  describe('sessions that race', () => {
    beforeEach(() => ground.reset())

    test('of claims of one key with retentions of different tables, one is granted, in one batch or two sessions', async () => {
      const stores = [postgresStore({ pool }), postgresStore({ pool: other })]
      const retentions = [hourMs, periodMs, 2 * periodMs, 3 * periodMs, 9 * periodMs].map((keepMs) => ({
        retention: { keepMs, tombstoneMs: 0 },
      }))
      for (let round = 0; round < 100; round++) {
        const same = key('periods', `race ${round}`)
        const asked = stores.flatMap((store) => retentions.map((each) => store.claim(same, request(each))))
        const verdicts = await Promise.all(asked)
        expect(verdicts.filter(({ is }) => is === 'granted')).toHaveLength(1)
      }
      const { rows } = await ground.admin.query(
        'select count(*)::integer as entries, count(distinct id)::integer as keys from public.onceonly',
      )
      expect(rows[0]).toEqual({ entries: 100, keys: 100 })
    })

    test.each(['repeatable read', 'serializable'])(
      'at %s a snapshot older than the claim of another session does not run the key twice',
      async (isolation) => {
        const store = postgresStore({ pool })
        const old = postgresStore({ pool: other })
        const longer = { retention: { keepMs: 3 * periodMs, tombstoneMs: 0 } }
        for (const [id, settle] of [
          ['running', false],
          ['settled', true],
        ] as const) {
          const within = inTransaction(other, async (tx) => {
            await tx.query(`set transaction isolation level ${isolation}`)
            await tx.query('select 1 from effects')
            const claim = await claimed(store, id, { retention: { keepMs: hourMs, tombstoneMs: 0 } })
            if (settle) await store.settle(claim, outcome, retention)
            return old.within(tx).claim(key('periods', id), request(longer))
          })
          await expect(within).rejects.toMatchObject({ code: 'TRANSACTION_CONFLICT', executed: 'no' })
        }
        const strict = createPool(ground.url, {
          options: `-c default_transaction_isolation=${isolation.replace(' ', '\\ ')}`,
        })
        const began = await postgresStore({ pool: strict }).begin(key('periods', 'free'), request(longer))
        await began.granted!.tx.query('insert into effects values ($1)', ['free'])
        expect(await began.granted!.commit(outcome, longer.retention)).toBe('done')
        expect(await ask(store, 'free')).toBe('settled')
        await strict.end()
      },
    )

    test('an entry that is uncommitted while its period ends is neither lost nor in the way of others', async () => {
      const store = postgresStore({ pool })
      const sweeper = postgresStore({ pool: other })
      const brief = { keepMs: hourMs, tombstoneMs: 0 }
      await claimed(store, 'due', { leaseMs, retention: brief })
      await inTransaction(pool, async (tx) => {
        const mine = store.within(tx)
        const claim = await claimed(mine, 'uncommitted', { retention: brief })
        await ground.advance(periodMs + 1)
        expect(await sweeper.sweep({ limit: 10 })).toMatchObject({ more: false })
        expect(await slotOf('due')).toBe(1)
        expect(await ask(sweeper, 'uncommitted')).toBe('busy')
        await claimed(sweeper, 'another')
        expect(await mine.settle(claim, outcome, retention)).toBe('done')
      })
      await sweepAll(sweeper)
      expect(await slotOf('due')).toBeUndefined()
      expect(await ask(store, 'uncommitted')).toBe('settled')
    })

    test('while periods end, tables are emptied and entries move, no key is granted before its time', async () => {
      const stores = [postgresStore({ pool }), postgresStore({ pool: other })]
      const brief = { keepMs: 20 * hourMs, tombstoneMs: 30 * hourMs }
      const ids = Array.from({ length: 40 }, (_, index) => `busy ${index}`)
      const grants = new Map<string, number[]>(ids.map((id) => [id, []]))
      let over = false
      let turns = 0
      const work = async (store: Store, offset: number): Promise<void> => {
        for (let turn = offset; !over; turn++) {
          const id = ids[turn % ids.length]!
          turns++
          const verdict = await store.claim(key('periods', id), request({ leaseMs: periodMs, retention: brief }))
          if (verdict.is !== 'granted') continue
          grants.get(id)!.push(verdict.claim.fence)
          if (turn % 3 === 0) expect(await store.extend(verdict.claim, 2 * periodMs)).toBe('done')
          expect(await store.settle(verdict.claim, outcome, brief)).toBe('done')
        }
      }
      const sweeping = async (store: PostgresStore<pg.PoolClient>): Promise<void> => {
        while (!over) await store.sweep({ limit: 100 })
      }
      const workers = [0, 7, 14, 21, 28, 35].map((offset, index) => work(stores[index % 2]!, offset))
      const all = Promise.all([...workers, ...stores.map(sweeping)])
      // Ten periods, each in steps that do not fit into it, so that every kind of boundary is met.
      // Time waits for the workers, or a claim of theirs would be over before they have settled it.
      const steps = async (): Promise<void> => {
        for (let step = 0; step < 85; step++) {
          const enough = turns + 60
          while (turns < enough && !over) await new Promise(setImmediate)
          await ground.advance(7 * hourMs + 1)
        }
      }
      try {
        await Promise.race([steps(), all])
      } finally {
        over = true
      }
      await all
      const counts = [...grants.values()].map((fences) => fences.length)
      expect(Math.min(...counts)).toBeGreaterThan(3)
      for (const [id, fences] of grants) {
        const sorted = fences.toSorted((a, b) => a - b)
        for (let index = 1; index < sorted.length; index++) {
          const betweenMs = (sorted[index]! - sorted[index - 1]!) / 1000
          expect(betweenMs, `${id}, life ${index}`).toBeGreaterThanOrEqual(brief.keepMs + brief.tombstoneMs)
        }
      }
      const { rows } = await ground.admin.query('select id from public.onceonly group by id having count(*) > 1')
      expect(rows).toEqual([])
    })
  })

  test('plans made on empty tables are still look-ups in the index when they have grown, without ANALYZE', async () => {
    await ground.reset()
    const single = createPool(ground.url, { max: 1 })
    const store = postgresStore({ pool: single })
    const work = async (): Promise<void> => {
      for (let round = 0; round < 8; round++) {
        const claims = await Promise.all(Array.from({ length: 4 }, () => claimed(store, newId())))
        await Promise.all(claims.map((claim) => store.settle(claim, outcome, retention)))
        await store.release(await claimed(store, newId()), 'open')
        await store.release(await claimed(store, newId()), 'forget')
        await store.extend(await claimed(store, newId()), periodMs)
        const { granted } = await store.begin(key('periods', newId()), request())
        await granted!.commit(outcome, retention)
        await store.sweep({ limit: 3 })
      }
    }
    await work()
    await ground.admin.query(`insert into public.onceonly
      select n, n, 1e12, 1, 1, 1e14, 1, 1, 's', 'f', n % 6, gen_random_uuid(), 'f', 'grown', n::text from generate_series(1, 60000) n`)
    const scans = async (): Promise<unknown> => {
      await single.query('select pg_stat_force_next_flush()')
      await single.query('select pg_stat_clear_snapshot()')
      const text = `select relname, seq_scan from pg_stat_user_tables where relname ~ '^onceonly_([0-9]|rest)' order by 1`
      return (await single.query(text)).rows
    }
    const before = await scans()
    await work()
    expect(await scans()).toEqual(before)
    await single.end()
  })
})

needs('postgres', { ours: true }).describe('a table that is put into periods', () => {
  test('transactions of a session that knew the table before are recorded in their period', async () => {
    await using server = await startPostgres()
    const [single, another] = [createPool(server.url, { max: 1 }), createPool(server.url)]
    const store = postgresStore({ pool: single })
    await store.migrate()
    // More than five times: that is when PostgreSQL settles for a plan.
    for (let round = 0; round < 8; round++) await recorded(store, `before ${round}`)
    await postgresStore({ pool: another, periodMs }).migrate()
    await recorded(store, 'after')
    const { rows } = await another.query(
      'select slot = 0 as is_beside, count(*)::integer as many from onceonly group by 1 order by 1',
    )
    expect(rows).toEqual([
      { is_beside: false, many: 1 },
      { is_beside: true, many: 8 },
    ])
    await Promise.all([single.end(), another.end()])
  })

  test('under load: no claim fails, no key is granted twice, what was there is replayed and expires in its time', async () => {
    await using server = await startPostgres()
    const pools = [1, 2, 3].map(() => createPool(server.url))
    const stores = pools.map((pool) => postgresStore({ pool }))
    await stores[0]!.migrate()
    const grants = new Map<string, number>()
    const settledBefore = Array.from({ length: 300 }, (_, index) => `before ${index}`)
    for (const store of stores.slice(0, 1)) {
      const claims = await Promise.all(settledBefore.map((id) => claimed(store, id)))
      await Promise.all(claims.map((claim) => store.settle(claim, outcome, retention)))
    }
    const held = await claimed(stores[0]!, 'held')
    let over = false
    let turn = 0
    const work = async (store: Store): Promise<void> => {
      while (!over) {
        const id = `during ${Math.floor(turn++ / 4)}` // four times each, by whoever comes
        const verdict = await store.claim(key('periods', id), request())
        if (verdict.is === 'granted') {
          grants.set(id, (grants.get(id) ?? 0) + 1)
          expect(await store.settle(verdict.claim, outcome, retention)).toBe('done')
        }
        const old = settledBefore[turn % settledBefore.length]!
        expect((await store.claim(key('periods', old), request())).is).toBe('settled')
      }
    }
    const all = Promise.all(stores.flatMap((store) => [work(store), work(store), work(store), work(store)]))
    const until = async (count: number): Promise<void> => {
      while (grants.size < count && !over) await new Promise(setImmediate)
    }
    const switched = createPool(server.url)
    const store = postgresStore({ pool: switched, periodMs })
    const switching = async (): Promise<void> => {
      await until(200)
      await store.migrate()
      await until(grants.size + 400)
    }
    try {
      await Promise.race([switching(), all])
    } finally {
      over = true
    }
    await all
    expect(new Set(grants.values())).toEqual(new Set([1]))
    const { rows } = await switched.query<{ slot: number; many: number }>(
      'select slot, count(*)::integer as many from onceonly group by slot order by slot',
    )
    expect(rows[0]).toMatchObject({ slot: 0 })
    expect(rows.slice(1).reduce((sum, { many }) => sum + many, 0)).toBeGreaterThanOrEqual(400)
    // A claim of before is settled by its token, and every key of before and during is there once.
    expect(await stores[1]!.settle(held, outcome, retention)).toBe('done')
    for (const id of [...grants.keys(), 'held']) {
      expect((await store.claim(key('periods', id), request())).is).toBe('settled')
    }
    await Promise.all([...pools, switched].map((pool) => pool.end()))
  })

  test('once is enough, an open transaction delays it, and whoever might use the table still may', async () => {
    await using server = await startPostgres()
    const pool = createPool(server.url)
    await postgresStore({ pool }).migrate()
    await pool.query('create role app login')
    await pool.query('grant select, insert, update, delete on all tables in schema public to app')
    const store = postgresStore({ pool, periodMs })
    let migration: Promise<void> | undefined
    await inTransaction(pool, async (tx) => {
      await claimed(postgresStore({ pool }).within(tx), 'open')
      migration = store.migrate()
      // Two of its tries, and claims pass in between.
      await claimed(postgresStore({ pool }), 'one')
      await claimed(postgresStore({ pool }), 'two')
    })
    await migration
    await inTransaction(pool, async (tx) => {
      await tx.query('lock table onceonly in access exclusive mode')
      await store.migrate()
    })
    const asApp = createPool(server.url.replace('postgres@', 'app@'))
    const app = postgresStore({ pool: asApp })
    expect((await asApp.query('select current_user as name')).rows).toEqual([{ name: 'app' }])
    expect((await app.claim(key('periods', 'one'), request())).is).toBe('busy')
    await app.settle(await claimed(app, 'three'), outcome, retention)
    await pool.query('update onceonly_periods set ends_at_ms = ends_at_ms - 30 * period_ms')
    await sweepAll(app)
    expect((await app.show(key('periods', 'three')))?.state).toBeUndefined()
    // Another length holds from the next period on.
    await postgresStore({ pool, periodMs: 2 * periodMs }).migrate()
    const { rows } = await pool.query<{ period: string }>('select distinct period_ms as period from onceonly_periods')
    expect(rows).toEqual([{ period: String(2 * periodMs) }])
    await pool.end()
    await asApp.end()
  })

  test('what schema() prints is the whole of it, in one transaction, too, and in a schema of its own', async () => {
    await using server = await startPostgres()
    const pool = createPool(server.url)
    const store = postgresStore({ pool, periodMs, schema: 'tenant', table: 'kept' })
    await inTransaction(pool, (tx) => tx.query(store.schema()))
    await store.migrate()
    await store.settle(await claimed(store, 'one'), outcome, retention)
    expect(await store.sweep({ limit: 10 })).toEqual({ tombstoned: 0, forgotten: 0, more: false })
    expect((await pool.query('select slot from tenant.kept where slot > 0')).rowCount).toBe(1)
    await pool.end()
  })
})

// What is PostgreSQL's own about operations: what they leave there (while they are not finished everything, for as long as it
// takes; then nothing), and what finding them costs.

import type pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createPool, type PostgresGround, startPostgresGround } from '../../../test/subjects/postgres.ts'
import { needs } from '../../../test/servers/needs.ts'
import { key, newId } from '../../core/key.ts'
import { createOnce } from '../../core/once.ts'
import type { Change, LedgerRecord } from '../../core/store.ts'
import { postgresStore } from '../postgres.ts'

const retention = { keepMs: 3_600_000, tombstoneMs: 3_600_000 }

needs('postgres', { ours: true }).describe('operations in PostgreSQL', () => {
  let ground: PostgresGround
  let pool: pg.Pool
  beforeAll(async () => {
    ground = await startPostgresGround({})
    pool = createPool(ground.url)
  })
  afterAll(async () => {
    await pool.end()
    await ground[Symbol.asyncDispose]()
  })

  test('a sweep takes the rows of what is settled when its keepMs is over, and none of what is not finished', async () => {
    const store = postgresStore({ pool, table: 'swept' })
    await store.migrate()
    const once = createOnce({ store, scope: 'shop', ...retention })
    const checkout = once.operation('checkout', {}, async (op, input: string) => {
      await op.step('a', () => input)
      if (input === 'fail') throw new Error('later')
      return input
    })
    await checkout.run('settled', 'fine')
    await expect(checkout.run('unfinished', 'fail')).rejects.toThrow('later')
    const ids = async (of: string): Promise<string[]> => {
      const found = await pool.query<{ id: string }>(`select distinct id from ${of} order by id`)
      return found.rows.map(({ id }) => id)
    }
    await ground.advance(retention.keepMs + retention.tombstoneMs)
    for (let more = true; more;) more = (await store.sweep({ limit: 100 })).more
    expect(await ids('swept_operations')).toEqual(['unfinished'])
    expect(await ids('swept_steps')).toEqual(['unfinished'])
    expect(await ids('swept')).toEqual(['unfinished'])
    expect(await checkout.status('unfinished')).toMatchObject({
      state: 'waiting',
      steps: [{ name: 'a', state: 'done' }],
    })
    await once.close()
  })

  test('unfinished operations are found without reading those that are settled, with and without ANALYZE', async () => {
    const store = postgresStore({ pool, table: 'many' })
    await store.migrate()
    await pool.query(`insert into many_operations (scope, id, life_fence, due_at_ms, sweep_at_ms, settled)
      select 'shop', n::text, 1, null, 1e15, n % 10000 <> 0 from generate_series(1, 40000) n`)
    const reading = createPool(ground.url, { max: 1 })
    const rowsRead = async (): Promise<number> => {
      await reading.query('select pg_stat_force_next_flush()')
      const { rows } = await reading.query<{ read: number }>(`select (seq_tup_read + idx_tup_fetch)::integer as read
        from pg_stat_user_tables where relname = 'many_operations'`)
      return rows[0]!.read
    }
    for (const statistics of ['none', 'analyze']) {
      if (statistics === 'analyze') await pool.query('analyze many_operations')
      const before = await rowsRead()
      const found = await postgresStore({ pool: reading, table: 'many' }).unfinished('shop', { after: '1', limit: 3 })
      expect(found.map(({ id }) => id)).toEqual(['10000', '20000', '30000'])
      expect((await rowsRead()) - before, statistics).toBeLessThanOrEqual(4)
    }
    await reading.end()
  })

  test('a batch of operations reads its own rows alone, with plans from when the tables were empty, and with and without ANALYZE', async () => {
    const single = createPool(ground.url, { max: 1 })
    const store = postgresStore({ pool: single, table: 'grown' })
    await store.migrate()
    const count = 20
    /** Enlists, takes a step and settles, so many at once. */
    const conduct = async (): Promise<void> => {
      const content = new Uint8Array(8)
      const request = { fingerprint: 'f'.repeat(43), leaseMs: 60_000, retention, version: 1, input: content }
      const policies = { onTakeover: 'run', onExpired: 'refuse' } as const
      const verdicts = await Promise.all(
        Array.from({ length: count }, () =>
          store.enlist(key('shop', newId()), { token: crypto.randomUUID(), ...request, ...policies }),
        ),
      )
      const claims = verdicts.flatMap((verdict) => (verdict.is === 'granted' ? [verdict.claim] : []))
      expect(claims).toHaveLength(count)
      const advance = (change: Change): Promise<unknown> =>
        Promise.all(claims.map((claim) => store.advance(claim, change)))
      const record = (revision: number): LedgerRecord => ({ name: 'a', revision, content })
      await advance({ records: [record(1)], becomes: { to: 'running', leaseMs: 60_000 } })
      await advance({ records: [record(2)], becomes: { to: 'settled', outcome: content, retention } })
    }
    const rowsRead = async (): Promise<number> => {
      await single.query('select pg_stat_force_next_flush()')
      const { rows } = await single.query<{ read: number }>(`select sum(seq_tup_read + idx_tup_fetch)::integer as read
        from pg_stat_user_tables where relname like 'grown%'`)
      return rows[0]!.read
    }
    await conduct()
    await pool.query(`
      insert into grown_operations (scope, id, life_fence, due_at_ms, sweep_at_ms, settled)
        select 'shop', '00' || n, 1, null, 1e15, true from generate_series(1, 20000) n;
      insert into grown_steps (revision, at_ms, scope, id, name, content)
        select 1, 1, 'shop', '00' || n, 'a', '' from generate_series(1, 20000) n`)
    for (const statistics of ['none', 'analyze']) {
      if (statistics === 'analyze') await pool.query('analyze grown_operations, grown_steps')
      const before = await rowsRead()
      await conduct()
      expect((await rowsRead()) - before, statistics).toBeLessThanOrEqual(count * 20)
    }
    await single.end()
  })
})

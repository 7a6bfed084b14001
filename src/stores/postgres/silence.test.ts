// Connections that fall silent: nothing comes back, and nothing says that they are gone. TCP finds out after some 15 minutes.

import type pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type FaultProxy, startFaultProxy } from '../../../test/servers/fault-proxy.ts'
import { needs } from '../../../test/servers/needs.ts'
import { pollUntil } from '../../../test/servers/poll.ts'
import { createPool, type PostgresGround, startPostgresGround } from '../../../test/subjects/postgres.ts'
import { bindsValues, connectionsOf } from '../../clients/postgres.ts'
import type { PgPool, PostgresJs } from '../../clients/postgres.ts'
import { sleep, systemClock } from '../../core/clock.ts'
import { key, newId } from '../../core/key.ts'
import { bytesOf, request } from '../../testing/store-contract.ts'
import { batching } from './batches.ts'
import type { PostgresContext } from './context.ts'
import { readiness } from './fitness.ts'
import { straightClaim } from './straight.ts'
import { begin } from './transactions.ts'

// Far longer than an answer takes on a busy machine, as every other call of these tests has the same limit.
const limitMs = 2_000
const retention = { keepMs: 60_000, tombstoneMs: 60_000 }

function contextOf(pool: PgPool | PostgresJs): PostgresContext<pg.PoolClient> {
  const names = { table: 'onceonly', schema: undefined }
  return {
    names,
    clock: systemClock,
    connections: connectionsOf<pg.PoolClient>(pool, { clock: systemClock, limitMs }),
    protocol: { binds: bindsValues(pool), keepsPrepared: true },
    ready: readiness(names, 'full'),
  }
}

// What takes ten times as long as it may is a test that fails, and none that hangs.
function told(work: Promise<unknown>): Promise<unknown> {
  const answer = work.then(
    () => 'answered',
    (error: unknown) => error,
  )
  return Promise.race([answer, sleep(systemClock, limitMs * 10).then(() => 'hangs')])
}

function isGone(pool: pg.Pool): Promise<unknown> {
  return pollUntil('the silent connection to leave the pool', () => pool.totalCount === 0)
}

needs('postgres', { ours: true }).describe('a connection that falls silent', () => {
  let ground: PostgresGround
  let proxy: FaultProxy
  beforeAll(async () => {
    ground = await startPostgresGround()
    proxy = await startFaultProxy({ target: ground, framer: 'postgres' })
  })
  beforeEach(() => ground.reset())
  afterAll(async () => {
    await proxy.close()
    await ground[Symbol.asyncDispose]()
  })

  const silently = async (work: () => Promise<void>): Promise<void> => {
    await proxy.setMode('blackHole')
    try {
      await work()
    } finally {
      await proxy.setMode('pass')
    }
  }

  describe('claims', () => {
    const pools: Readonly<Record<string, () => { pool: PgPool | PostgresJs; end(): Promise<unknown> }>> = {
      pg: () => {
        const pool = createPool(proxy.url)
        return { pool, end: () => pool.end() }
      },
      'what only looks like a pool': () => {
        const pool = createPool(proxy.url)
        const query = (text: string): Promise<unknown> => pool.query(text)
        return { pool: { query, connect: () => pool.connect() }, end: () => pool.end() }
      },
      'postgres.js': () => {
        const sql = postgres(proxy.url, { onnotice: () => {} })
        return { pool: sql, end: () => sql.end({ timeout: 1 }) }
      },
    }

    test.each(Object.keys(pools))('every batch ends after a while, and the next one is sent (%s)', async (name) => {
      const { pool, end } = pools[name]!()
      const batched = batching(contextOf(pool))
      const claim = (): Promise<string> => batched(straightClaim(key('silence', newId()), request()))
      expect(await claim()).toContain('granted')
      await silently(async () => {
        // More than the lane sends at once.
        for (let round = 0; round < 2; round++) {
          expect(await Promise.all([told(claim()), told(claim())])).toEqual([expect.any(Error), expect.any(Error)])
        }
      })
      expect(await claim()).toContain('granted')
      await end()
    })

    test('the first question of all ends, too', async () => {
      const pool = createPool(proxy.url)
      await pool.query('select 1')
      const batched = batching(contextOf(pool))
      const claim = (): Promise<string> => batched(straightClaim(key('silence', newId()), request()))
      await silently(async () => {
        expect(await told(claim())).toBeInstanceOf(Error)
        await isGone(pool)
      })
      expect(await claim()).toContain('granted')
      await pool.end()
    })

    test('the pool of pg gets its connection back', async () => {
      const pool = createPool(proxy.url, { max: 1 })
      const batched = batching(contextOf(pool))
      const claim = (): Promise<string> => batched(straightClaim(key('silence', newId()), request()))
      await claim()
      await silently(async () => {
        expect(await told(claim())).toBeInstanceOf(Error)
        await isGone(pool)
      })
      await pool.end()
    })
  })

  describe('transactions', () => {
    const open = (pool: pg.Pool): ReturnType<typeof begin<pg.PoolClient>> =>
      begin(contextOf(pool), key('silence', newId()), request())

    test.each(['prepared', 'text'])(
      'a COMMIT without an answer is unknown, and the pool is whole (%s)',
      async (way) => {
        const pool = createPool(proxy.url, { max: 1 })
        const { granted } = await open(pool)
        if (way === 'text') await granted!.undoEffect()
        await silently(async () => {
          expect(await told(granted!.commit(bytesOf('x'), retention))).toMatchObject({ code: 'OUTCOME_UNKNOWN' })
          await isGone(pool)
        })
        expect(await open(pool).then(({ granted: next }) => next!.commit(bytesOf('x'), retention))).toBe('done')
        await pool.end()
      },
    )

    test('a BEGIN without an answer was not executed, and the pool is whole', async () => {
      const pool = createPool(proxy.url, { max: 1 })
      await (await open(pool)).granted!.rollback()
      await silently(async () => {
        expect(await told(open(pool))).toMatchObject({ code: 'STORE_UNAVAILABLE', executed: 'no' })
        await isGone(pool)
      })
      await pool.end()
    })

    test('a ROLLBACK without an answer gives the connection up', async () => {
      const pool = createPool(proxy.url, { max: 1 })
      const { granted } = await open(pool)
      await silently(async () => {
        expect(await told(granted!.rollback())).toBe('answered')
        await isGone(pool)
      })
      await pool.end()
    })
  })
})

// Several processes after the same operations, on one PostgreSQL: two workers and a client that keeps asking. And what is asked
// for again as something else, which is refused.

import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createOnce } from '../../src/core/once.ts'
import { postgresStore } from '../../src/stores/postgres.ts'
import { needs } from '../servers/needs.ts'
import { startPostgres } from '../servers/postgres.ts'
import type { RunningPostgres } from '../servers/postgres.ts'
import { effectsInDatabase, openCheckout, openStore, prepare } from './checkout.ts'
import type { Place } from './checkout.ts'
import { openGround } from './processes.ts'
import type { Ground } from './processes.ts'
import type { Said } from './program.ts'

needs('postgres').describe('operations on PostgreSQL', () => {
  let ground: Ground
  let server: RunningPostgres
  beforeAll(async () => {
    ground = await openGround()
    server = await startPostgres()
  })
  afterAll(async () => {
    await server.stop()
    await ground[Symbol.asyncDispose]()
  })

  async function attemptsOf(place: Place, names: readonly string[]): Promise<number[]> {
    const opened = openStore(place)
    const statuses = names.map(async (name) => {
      const { operation, close } = openCheckout(place, name, opened.store, (_, call) => call())
      const status = await operation.status(name)
      await close()
      expect(status).toMatchObject({ state: 'completed', inDoubt: [] })
      return status!.attempt
    })
    const attempts = await Promise.all(statuses)
    await opened.close()
    return attempts
  }

  test('a dozen operations are killed half-way; two workers and a retrying client are after them at once: each effect once', async () => {
    const place: Place = { store: await server.createDatabase(), outside: ground.outside }
    await prepare(place)
    const names = Array.from({ length: 12 }, (_, index) => `race-${index}`)
    // Of 15 calls that each of them makes.
    const kill = { point: 12 * 7, when: 'after' } as const
    expect(await ground.run({ place, do: 'client', names, kill })).toBe('killed')
    const [told] = await Promise.all([
      ground.run({ place, do: 'retry', names }),
      ground.run({ place, do: 'worker', names }),
      ground.run({ place, do: 'worker', names }),
    ])
    expect((told as Said).values.map((value) => (value as string[]).length)).toEqual(names.map(() => 5))
    const lines = [...(await effectsInDatabase(place)), ...ground.outsideLines()]
    const count = (line: string): number => lines.filter((each) => each === line).length
    for (const [index, attempt] of (await attemptsOf(place, names)).entries()) {
      const name = names[index]!
      const effects = ['reserve', 'effect bank', 'order', 'effect carrier', 'effect mail']
      expect(effects.map((effect) => `${effect}: ${count(`${effect} ${name}`)}`)).toEqual(
        effects.map((effect) => `${effect}: 1`),
      )
      // An attempt asks once. Two that ran at the same time would show here as more than there were attempts.
      for (const system of ['bank', 'mail']) expect(count(`asked ${system} ${name}`)).toBeLessThanOrEqual(attempt)
    }
  })

  test('the same key with another input is refused, and so is the same step with another fingerprint', async () => {
    const pool = new pg.Pool({ connectionString: await server.createDatabase() })
    const store = postgresStore({ pool })
    await store.migrate()
    const ran: string[] = []
    const define = (cents: number, fail: 'fail' | 'end') => {
      const once = createOnce({ store, scope: 'shop' })
      return once.operation('pay', { backoff: { firstMs: 1 } }, async (op, order: { total: number }) => {
        const charge = await op.step('charge', {
          fingerprint: { cents },
          run: () => (ran.push(`charge ${cents}`), `charged ${cents} of ${order.total}`),
        })
        if (fail === 'fail') throw new Error('not yet')
        return charge
      })
    }
    await expect(define(500, 'fail').run('1', { total: 5 })).rejects.toThrow('not yet')
    await expect(define(500, 'end').run('1', { total: 6 })).rejects.toMatchObject({ code: 'MISMATCH', executed: 'no' })
    await expect(define(700, 'end').run('1', { total: 5 })).rejects.toMatchObject({ code: 'MISMATCH' })
    expect((await define(500, 'end').run('1', { total: 5 })).value).toBe('charged 500 of 5')
    await expect(define(500, 'end').run('1', { total: 6 })).rejects.toMatchObject({ code: 'MISMATCH' })
    expect(ran).toEqual(['charge 500'])
    await pool.end()
  })
})

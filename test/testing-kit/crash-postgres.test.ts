// crashEverywhere on a real server: what a dead process had open is rolled back by PostgreSQL, and the next one is answered.

import assert from 'node:assert/strict'
import type pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createOnce } from '../../src/core/once.ts'
import type { Store, Transactional } from '../../src/core/store.ts'
import type { ContractSubject } from '../../src/testing/store-contract.ts'
import { crashEverywhere } from '../../src/testing/crash-everywhere.ts'
import { type PostgresGround, startPostgresGround } from '../subjects/postgres.ts'
import { needs } from '../servers/needs.ts'

type Subject = ContractSubject<pg.PoolClient>

needs('postgres', { ours: true }).describe('a transaction of PostgreSQL', () => {
  let ground: PostgresGround
  beforeAll(async () => {
    ground = await startPostgresGround()
  })
  afterAll(() => ground[Symbol.asyncDispose]())

  test('has one effect and one answer, wherever its process falls', async () => {
    const { cells, text } = await crashEverywhere<Subject>({
      setUp: () => ground.createSubject(),
      async run({ wrap, outside, clock }, { store, transactions }) {
        const wrapped = wrap('store', store as Store & Transactional<pg.PoolClient>)
        const once = createOnce({ store: wrapped, scope: 'shop', clock, sweepEveryMs: false })
        const { value } = await once.transaction('order-1', async (tx) => {
          // As a call outside: its clock would run ahead of a server that is slow to carry out what it does not know of.
          await outside('charge', () => transactions!.addEffect(tx, 'charge'))
          return 'charged'
        })
        return value
      },
      check: async ({ transactions }) => assert.equal(await transactions!.countEffects('charge'), 1),
      tearDown: (subject) => subject.destroy(),
    })
    expect(cells, text).toHaveLength(12)
    expect(text).toContain('store.begin.granted.commit  dies before: held, dies after: held')
  })
})

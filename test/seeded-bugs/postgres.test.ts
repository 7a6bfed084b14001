// What a seeded bug asked for, and the contract cannot ask of every store: only this server tells what its connections hold.

import { afterAll, beforeAll, expect, test } from 'vitest'
import { key } from '../../src/core/key.ts'
import { bytesOf, finish, request } from '../../src/testing/contract-case.ts'
import { type PostgresGround, startPostgresGround } from '../postgres-subject.ts'
import { needs } from '../servers/needs.ts'

needs('postgres', { ours: true }).describe('the connections of the PostgreSQL store', () => {
  let ground: PostgresGround
  beforeAll(async () => {
    ground = await startPostgresGround()
  })
  afterAll(() => ground[Symbol.asyncDispose]())

  test('a begin that is refused gives its connection back without a transaction on it', async () => {
    const subject = await ground.createSubject()
    await finish(subject.store, key('refused', '1'), bytesOf('settled'))
    for (let round = 0; round < 5; round++) {
      const began = await subject.store.begin!(key('refused', '1'), request())
      expect(began.verdict.is).toBe('settled')
    }
    const { rows } = await ground.admin.query(
      `select count(*)::integer as open from pg_stat_activity where state like 'idle in transaction%'`,
    )
    expect(rows).toEqual([{ open: 0 }])
    await subject.destroy()
  })
})

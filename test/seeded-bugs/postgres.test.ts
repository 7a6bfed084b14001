// What seeded bugs asked for, and the contract cannot ask of every store: what only this server tells of its connections, and
// where its periods end.

import { afterAll, beforeAll, expect, test } from 'vitest'
import { key } from '../../src/core/key.ts'
import { bytesOf, finish, request, take } from '../../src/testing/store-contract.ts'
import { type PostgresGround, startPostgresGround } from '../subjects/postgres.ts'
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

needs('postgres', { ours: true }).describe('the tables of the PostgreSQL store', () => {
  test('a sweep takes outcome and input of a tombstone out of the table', async () => {
    await using ground = await startPostgresGround()
    const subject = await ground.createSubject()
    const short = { retention: { keepMs: 1_000, tombstoneMs: 3_600_000 }, input: bytesOf('input') }
    await finish(subject.store, key('swept', 'settled'), bytesOf('outcome'), short)
    await ground.advance(60_000)
    expect(await subject.store.sweep!({ limit: 10 })).toMatchObject({ tombstoned: 1, forgotten: 0 })
    const { rows } = await ground.admin.query(`select id, outcome, input from onceonly`)
    expect(rows).toEqual([{ id: 'settled', outcome: null, input: null }])
    await subject.destroy()
  })
})

needs('postgres', { ours: true }).describe('the periods of the PostgreSQL store', () => {
  const periodMs = 3_600_000

  test('an entry that outlives a period by a millisecond is not emptied with it', async () => {
    await using ground = await startPostgresGround({ periodMs })
    const subject = await ground.createSubject()
    const { store } = subject
    // Forgotten a millisecond after the end of the first period.
    const retention = { keepMs: 1, tombstoneMs: periodMs - 1_000 }
    await take(store, key('periods', 'edge'), { leaseMs: 1_000, retention })
    await ground.advance(periodMs)
    while ((await store.sweep!({ limit: 1_000 })).more);
    expect((await store.claim(key('periods', 'edge'), request())).is).toBe('expired')
    await ground.advance(1)
    expect((await store.claim(key('periods', 'edge'), request())).is).toBe('granted')
    await subject.destroy()
  })
})

// What is MySQL's own about operations: round trips and plans, sessions whose settings are put back, snapshots and deadlocks in
// steps, rows that others have locked, packets; and an operation from its start to a worker's end.

import type { Pool, PoolConnection, RowDataPacket } from 'mysql2/promise'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import {
  countEffects,
  createMysqlDatabase,
  createPool,
  inTransaction,
  type MysqlGround,
  startMysqlGround,
} from '../../../test/subjects/mysql.ts'
import { startMariadb } from '../../../test/servers/mariadb.ts'
import { needs } from '../../../test/servers/needs.ts'
import { pollUntil } from '../../../test/servers/poll.ts'
import { key, newId } from '../../core/key.ts'
import { createOnce } from '../../core/once.ts'
import type { Advanced, BegunStep, Change, Claim, LedgerRecord, StepLedger } from '../../core/store.ts'
import {
  bytesOf,
  eventually,
  hourMs,
  leaseMs,
  minuteMs,
  request,
  retention,
  times,
} from '../../testing/store-contract.ts'
import { procedureName } from './names.ts'
import type { ProcedureName } from './names.ts'
import { mysqlStore } from '../mysql.ts'

const scope = 'operations/checkout'
const running: Change['becomes'] = { to: 'running', leaseMs }
const settled: Change['becomes'] = { to: 'settled', outcome: bytesOf('the end'), retention }

function record(name: string, revision: number, content: string): LedgerRecord {
  return { name, revision, content: bytesOf(content) }
}

const done: Change = { records: [record('order', 1, 'done')], becomes: running }

async function enlisted(store: StepLedger, id: string = newId()): Promise<Claim> {
  const verdict = await store.enlist(key(scope, id), { ...request(), input: bytesOf('input') })
  if (verdict.is !== 'granted') throw new Error(`expected ${id} to be granted, got ${verdict.is}`)
  return verdict.claim
}

async function recorded(store: StepLedger, { key: subject }: Claim): Promise<Record<string, string>> {
  const { records } = (await store.ledger(subject))!
  return Object.fromEntries(records.map(({ name, content }) => [name, new TextDecoder().decode(content)]))
}

async function rowOf(pool: Pool | PoolConnection, text: string): Promise<Record<string, unknown>> {
  const [rows] = await pool.query<RowDataPacket[]>(text)
  return { ...rows[0] }
}

// However it ends, unless there is no such procedure with so many arguments.
async function called(pool: Pool, name: ProcedureName, values: string): Promise<void> {
  await pool.query(`call ${procedureName('onceonly', name)}(${values})`).catch((error: unknown) => {
    expect(String(error)).not.toContain('PROCEDURE')
  })
}

needs('mariadb', { ours: true }).describe('operations in MySQL', () => {
  let ground: MysqlGround
  let pool: Pool
  beforeAll(async () => {
    ground = await startMysqlGround()
    pool = createPool(ground.url)
  })
  beforeEach(() => ground.reset())
  afterAll(async () => {
    await pool.end()
    await ground[Symbol.asyncDispose]()
  })

  const begun = async (
    store: ReturnType<typeof mysqlStore<Pool>>,
    claim: Claim,
  ): Promise<BegunStep<PoolConnection>> => {
    const step = await store.beginStep(claim)
    if (!step) throw new Error('expected the step to begin')
    return step
  }

  const whileLocked = (claim: Claim, work: () => Promise<void>): Promise<void> =>
    inTransaction(ground.admin, async (tx) => {
      const row = [Buffer.from(claim.key.scope), Buffer.from(claim.key.id)]
      await tx.query('select state from onceonly where scope = ? and id = ? for update', row)
      await work()
    })

  describe('cost', () => {
    test('every call is one round trip, records of one moment together are one, and a step in a transaction is two', async () => {
      const statements: string[] = []
      const counted = {
        query: (query: { sql: string }) => {
          statements.push(query.sql)
          return pool.query(query)
        },
        async getConnection() {
          const client = await pool.getConnection()
          const query = (sent: { sql: string }): Promise<unknown> => {
            statements.push(sent.sql)
            return client.query(sent)
          }
          return { query, release: () => client.release(), destroy: () => client.destroy() }
        },
      }
      const store = mysqlStore({ pool: counted })
      const claims = [await enlisted(store), ...(await Promise.all(times(99).map(() => enlisted(store))))]
      const claim = claims[0]!
      const count = async (work: () => Promise<unknown>): Promise<number> => {
        statements.length = 0
        await work()
        return statements.length
      }
      expect(await count(() => enlisted(store))).toBe(1)
      expect(await count(() => store.advance(claim, done))).toBe(1)
      let answers: Advanced[] = []
      const all = async (): Promise<unknown> =>
        (answers = await Promise.all(claims.map((each) => store.advance(each, done))))
      expect(await count(all)).toBe(1)
      expect(new Set(answers)).toEqual(new Set(['done']))
      expect(await count(() => store.ledger(claim.key))).toBe(1)
      expect(await count(() => store.due(scope, { limit: 10, holdMs: minuteMs }))).toBe(1)
      const step = async (): Promise<void> => {
        const open = await store.beginStep(claim)
        expect(await open!.commit(done)).toBe('done')
      }
      expect(await count(step)).toBe(2)
    })

    test('every statement is a look-up in an index, also in tables that have grown without ANALYZE', async () => {
      const single = createPool(ground.url, { connectionLimit: 1 })
      const store = mysqlStore({ pool: single })
      const work = async (): Promise<void> => {
        const claims = await Promise.all(times(4).map(() => enlisted(store)))
        await Promise.all(claims.map((claim) => store.advance(claim, done)))
        await store.advance(claims[0]!, { records: [record('order', 2, 'done')], becomes: settled })
        await store.advance(claims[1]!, { records: [], becomes: { to: 'open', afterMs: 0 } })
        await (await begun(store, claims[2]!)).commit(done)
        await store.requestCancel(claims[2]!.key, 'a test')
        await store.ledger(claims[2]!.key)
        for (const found of await store.due(scope, { limit: 3, holdMs: minuteMs })) await store.dismiss(found)
        await store.unfinished(scope, { limit: 3 })
        await store.mend(claims[3]!.key, 'forget', 'a test')
        await store.sweep({ limit: 3 })
      }
      const rowsRead = async (): Promise<number> => {
        const [rows] = await single.query<RowDataPacket[]>(`show session status like 'Handler_read%'`)
        return rows.reduce((sum, row) => sum + Number(row['Value']), 0)
      }
      const cost = async (): Promise<number> => {
        const before = await rowsRead()
        await work()
        return (await rowsRead()) - before
      }
      await work()
      const small = await cost()
      // Settled ones of the same scope, whose ids come before all others: what is due or unfinished is found without them.
      await ground.admin.query(`insert into onceonly_operations
        select '${scope}', concat('!', seq), 1, null, 1e15, true, null from seq_1_to_20000`)
      await ground.admin.query(`insert into onceonly_steps
        select '${scope}', concat('!', seq), 'order', 1, 1, 'x' from seq_1_to_20000`)
      expect(await cost()).toBeLessThan(small + 500)
      await single.end()
    })
  })

  describe('records', () => {
    test('many of one operation and of many, in one moment, with the leases anew; what is not held is left out', async () => {
      const store = mysqlStore({ pool })
      const claims = await Promise.all(times(20).map((n) => enlisted(store, `operation ${n}`)))
      const [zombie, cancelled, ...others] = claims as [Claim, Claim, ...Claim[]]
      await store.mend(zombie.key, 'release', 'a test')
      await enlisted(store, 'operation 0')
      await store.requestCancel(cancelled.key, 'a test')
      await ground.advance(minuteMs)
      const names = times(3).map((n) => `step ${n}`)
      const answers = await Promise.all(
        claims.flatMap((claim) =>
          names.map((name) => store.advance(claim, { records: [record(name, 1, name)], becomes: running })),
        ),
      )
      expect(answers).toEqual([
        ...names.map(() => 'lost'),
        ...names.map(() => 'cancelled'),
        ...others.flatMap(() => names.map(() => 'done')),
      ])
      expect(await recorded(store, zombie)).toEqual({})
      const entry = (await store.show(cancelled.key))!
      for (const claim of [cancelled, ...others]) {
        expect(await recorded(store, claim)).toEqual(Object.fromEntries(names.map((name) => [name, name])))
        expect(await store.show(claim.key)).toMatchObject({ leaseUntilMs: entry.leaseUntilMs })
      }
      expect(entry.leaseUntilMs).toBe(entry.firstClaimedAtMs + minuteMs + leaseMs)
    })

    test('a late record among many of one moment overwrites nothing', async () => {
      const store = mysqlStore({ pool })
      const claims = await Promise.all(times(5).map(() => enlisted(store)))
      const write = (revision: number, content: string): Promise<Advanced[]> =>
        Promise.all(
          claims.map((claim) =>
            store.advance(claim, { records: [record('order', revision, content)], becomes: running }),
          ),
        )
      await write(2, 'done')
      await write(1, 'began')
      await write(2, 'another done')
      for (const claim of claims) expect(await recorded(store, claim)).toEqual({ order: 'done' })
    })

    test('a name that is too long is refused and not cut off, and one of 255 bytes is kept', async () => {
      const store = mysqlStore({ pool })
      const claim = await enlisted(store)
      const tooLong = store.advance(claim, { records: [record('x'.repeat(256), 1, 'x')], becomes: running })
      await expect(tooLong).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' })
      const names = ['a', 'b'].map((last) => `${'x'.repeat(254)}${last}`)
      await store.advance(claim, { records: names.map((name) => record(name, 1, name)), becomes: running })
      expect(Object.keys(await recorded(store, claim)).toSorted()).toEqual(names)
    })
  })

  describe('sessions', () => {
    const settings = `select @@innodb_lock_wait_timeout, @@autocommit, @@tx_isolation, @@in_transaction,
      @@innodb_snapshot_isolation`

    test('whatever a call does, and however it ends, it leaves the settings of its connection as they were', async () => {
      const single = createPool(ground.url, { connectionLimit: 1 })
      await single.query(`set innodb_lock_wait_timeout = 37, innodb_snapshot_isolation = 1`)
      const before = await rowOf(single, settings)
      const store = mysqlStore({ pool: single })
      const claim = await enlisted(store)
      const nowhere = `x'00', x'00', 'token', 1, 1, 1, null, 'extend', null, 'nonsense'`
      const works: (() => Promise<unknown>)[] = [
        () => enlisted(store),
        () => store.advance(claim, done),
        () => Promise.all(times(3).map(() => store.advance(claim, done))),
        () => store.ledger(claim.key),
        () => store.due(scope, { limit: 3, holdMs: 1 }),
        () => store.dismiss({ key: claim.key, heldUntilMs: 1 }),
        () => store.requestCancel(claim.key, 'a test'),
        () => store.unfinished(scope, { limit: 3 }),
        () => store.sweep({ limit: 3 }),
        async () => (await begun(store, claim)).commit(done),
        async () => (await begun(store, claim)).rollback(),
        () => store.beginStep({ ...claim, token: newId() }),
        async () => {
          const step = await begun(store, claim)
          await step.tx.query(`update onceonly set token = 'another'`)
          expect(await step.commit(done)).toBe('lost')
        },
        async () => {
          const step = await begun(store, claim)
          await step.tx.query('rollback')
          await step.commit(done).catch(() => undefined)
        },
        async () => {
          const step = await begun(store, claim)
          const too = { ...done, records: [record('x'.repeat(256), 1, 'x')] }
          await expect(step.commit(too)).rejects.toMatchObject({ code: 'INVALID_ARGUMENT', executed: 'no' })
        },
        () => called(single, 'advance', nowhere),
        () => called(single, 'commit_step', nowhere),
        () => called(single, 'advances', `'nonsense', 'nonsense', null, 'nonsense'`),
      ]
      for (const work of works) {
        await work()
        expect(await rowOf(single, settings), work.toString()).toEqual(before)
      }
      await single.end()
    })

    test('a pool whose connections have autocommit off and are SERIALIZABLE keeps the promise, too', async () => {
      const strict = createPool(ground.url, { connectionLimit: 2 })
      strict.on('connection', (connection) => {
        void connection.query('set autocommit = 0')
        void connection.query('set session transaction isolation level serializable')
      })
      const store = mysqlStore({ pool: strict })
      const claim = await enlisted(store, 'strict')
      for (const revision of [1, 2, 3]) {
        await store.advance(claim, { records: [record('order', revision, String(revision))], becomes: running })
        // Over both connections, so that no snapshot of an earlier look is left on either.
        for (const ledger of await Promise.all([recorded(store, claim), recorded(store, claim)])) {
          expect(ledger).toEqual({ order: String(revision) })
        }
      }
      const step = await begun(store, claim)
      await step.tx.query(`insert into effects values ('strict')`)
      expect(await mysqlStore({ pool }).extend(claim, leaseMs)).toBe('done')
      expect(await step.commit({ records: [record('order', 4, 'committed')], becomes: running })).toBe('done')
      expect(await recorded(mysqlStore({ pool }), claim)).toEqual({ order: 'committed' })
      expect(await countEffects(pool, 'strict')).toBe(1)
      expect(await store.requestCancel(claim.key, 'enough')).toBe(true)
      expect((await mysqlStore({ pool }).due(scope, { limit: 1, holdMs: minuteMs })).length).toBe(1)
      await strict.end()
    })
  })

  describe('steps in a transaction', () => {
    test.each([0, 1])(
      'a heartbeat in the middle is no conflict, whatever the step has read (innodb_snapshot_isolation = %i)',
      async (isolation) => {
        const single = createPool(ground.url, { connectionLimit: 1 })
        await single.query(`set innodb_snapshot_isolation = ${isolation}`)
        const store = mysqlStore({ pool: single })
        const claim = await enlisted(store)
        const step = await begun(store, claim)
        await step.tx.query('select count(*) from onceonly')
        await step.tx.query(`insert into effects values ('snapshot')`)
        await ground.advance(minuteMs)
        expect(await mysqlStore({ pool }).extend(claim, leaseMs)).toBe('done')
        await mysqlStore({ pool }).requestCancel(claim.key, 'a test')
        expect(await step.commit(done)).toMatch(/done|cancelled/)
        expect(await countEffects(pool, 'snapshot')).toBe(1)
        expect(await recorded(store, claim)).toEqual({ order: 'done' })
        expect(await rowOf(single, 'select @@innodb_snapshot_isolation as it')).toEqual({ it: isolation })
        await single.end()
      },
    )

    test('a takeover in the middle rolls it back, also when the step cannot see it', async () => {
      const store = mysqlStore({ pool })
      const zombie = await enlisted(store, 'taken over')
      const step = await begun(store, zombie)
      await step.tx.query('select count(*) from onceonly')
      await step.tx.query(`insert into effects values ('zombie')`)
      await ground.advance(leaseMs + minuteMs)
      await enlisted(store, 'taken over')
      expect(await step.commit(done)).toBe('lost')
      expect(await countEffects(pool, 'zombie')).toBe(0)
      expect(await recorded(store, zombie)).toEqual({})
    })

    test('an entry forgotten by hand in the middle rolls it back', async () => {
      const store = mysqlStore({ pool })
      const claim = await enlisted(store, 'forgotten')
      const step = await begun(store, claim)
      await step.tx.query('select count(*) from onceonly')
      await step.tx.query(`insert into effects values ('forgotten')`)
      await store.mend(claim.key, 'forget', 'a test')
      expect(await step.commit(done)).toBe('lost')
      expect(await countEffects(pool, 'forgotten')).toBe(0)
      expect(await store.ledger(claim.key)).toBeUndefined()
    })

    // The server rolls a transaction back that was chosen as the victim, and the client may go on in another one.
    test('what a step writes after its transaction was rolled back is not committed alone', async () => {
      const store = mysqlStore({ pool })
      const claim = await enlisted(store)
      const step = await begun(store, claim)
      await step.tx.query(`insert into effects values ('before')`)
      await step.tx.query('rollback')
      await step.tx.query(`insert into effects values ('after')`)
      await expect(step.commit(done)).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN', retryable: false })
      expect(await countEffects(pool, 'before')).toBe(0)
      expect(await countEffects(pool, 'after')).toBe(0)
      expect(await recorded(store, claim)).toEqual({})
      expect(await (await begun(store, claim)).commit(done)).toBe('done')
    })

    test('a rollback that comes after the end of a step does not end the transaction of whoever has the connection now', async () => {
      const single = createPool(ground.url, { connectionLimit: 1 })
      const store = mysqlStore({ pool: single })
      const claim = await enlisted(store)
      const ends: ((step: BegunStep<PoolConnection>) => Promise<unknown>)[] = [
        (step) => step.commit(done),
        (step) => step.rollback(),
        async (step) => {
          await step.tx.query('rollback')
          await step.commit(done).catch(() => undefined)
        },
      ]
      for (const [n, end] of ends.entries()) {
        const step = await begun(store, claim)
        await end(step)
        await inTransaction(single, async (tx) => {
          await tx.query(`insert into effects values ('other ${n}')`)
          await step.rollback()
          await step.abandon()
        })
        expect(await countEffects(pool, `other ${n}`)).toBe(1)
      }
      await single.end()
    })

    test('an entry that stays locked is a conflict within seconds, with nothing committed, and the connection is given back', async () => {
      const single = createPool(ground.url, { connectionLimit: 1 })
      await single.query('set innodb_lock_wait_timeout = 100000')
      const store = mysqlStore({ pool: single })
      const claim = await enlisted(store)
      const step = await begun(store, claim)
      await step.tx.query(`insert into effects values ('locked')`)
      await whileLocked(claim, async () => {
        const error = await step.commit(done).catch((thrown: unknown) => thrown)
        expect(error).toMatchObject({ code: 'TRANSACTION_CONFLICT', executed: 'no' })
        expect(store.isConflict(error)).toBe(true)
      })
      expect(await countEffects(pool, 'locked')).toBe(0)
      expect(await recorded(store, claim)).toEqual({})
      await single.end()
    })
  })

  describe('others', () => {
    test('a row that somebody has locked holds up only its own operation, which is told when it is free', async () => {
      const store = mysqlStore({ pool })
      const [mine, ...others] = (await Promise.all(times(10).map(() => enlisted(store)))) as [Claim, ...Claim[]]
      let late: Promise<Advanced> = Promise.resolve('lost')
      await whileLocked(mine, async () => {
        late = store.advance(mine, done)
        const answers = await Promise.all(others.map((claim) => store.advance(claim, done)))
        expect(new Set(answers)).toEqual(new Set(['done']))
      })
      expect(await late).toBe('done')
      expect(await recorded(store, mine)).toEqual({ order: 'done' })
    })

    test('a record that comes again is not left to the life after the one that was forgotten meanwhile', async () => {
      const store = mysqlStore({ pool })
      const claim = await enlisted(store, 'forgotten meanwhile')
      const last: Change = { ...done, becomes: { to: 'open' } }
      await store.advance(claim, last)
      let again: Promise<Advanced> = Promise.resolve('done')
      await inTransaction(ground.admin, async (tx) => {
        // As a `forget` by hand does that has not committed yet.
        for (const table of ['onceonly', 'onceonly_steps', 'onceonly_operations'])
          await tx.query(`delete from ${table} where id = 'forgotten meanwhile'`)
        again = eventually(() => store.advance(claim, last))
        await Promise.race([again, new Promise((resolve) => setTimeout(resolve, 500))])
      })
      expect(await again).toBe('lost')
      expect(await recorded(store, await enlisted(store, 'forgotten meanwhile'))).toEqual({})
    })

    test('an operation whose key is in an open transaction is busy, and nobody waits', async () => {
      const store = mysqlStore({ pool })
      const { granted } = await store.begin(key(scope, 'held'), request())
      expect(await store.enlist(key(scope, 'held'), { ...request(), input: bytesOf('x') })).toMatchObject({
        is: 'busy',
      })
      await granted!.rollback()
      await enlisted(store, 'held')
    })

    test('a sweep leaves the records of an operation that is just being taken up', async () => {
      const store = mysqlStore({ pool })
      const claim = await enlisted(store, 'old')
      await store.advance(claim, done)
      await ground.advance(leaseMs + retention.keepMs + hourMs)
      await inTransaction(ground.admin, async (tx) => {
        // As a takeover does that began in time and has not committed yet.
        await tx.query(`update onceonly set lease_until_ms = lease_until_ms + 1e9 where id = 'old'`)
        await store.sweep({ limit: 10 })
      })
      expect(await recorded(store, claim)).toEqual({ order: 'done' })
      await ground.advance(1e9)
      await store.sweep({ limit: 10 })
      expect(await store.ledger(claim.key)).toBeUndefined()
      expect(await rowOf(ground.admin, 'select count(*) as count from onceonly_steps')).toEqual({ count: 0 })
    })

    test('what was settled to be kept for less, or dismissed because its entry is gone, is swept when that is over', async () => {
      const store = mysqlStore({ pool })
      const [short, gone] = [await enlisted(store, 'short'), await enlisted(store, 'gone')]
      const settledShort = {
        to: 'settled',
        outcome: bytesOf('x'),
        retention: { keepMs: minuteMs, tombstoneMs: 0 },
      } as const
      expect(await store.advance(short, { records: [record('a', 1, 'x')], becomes: settledShort })).toBe('done')
      await store.release(gone, 'forget')
      await ground.advance(leaseMs + minuteMs)
      for (const found of await store.due(scope, { limit: 10, holdMs: minuteMs })) await store.dismiss(found)
      await store.sweep({ limit: 10 })
      expect(await rowOf(ground.admin, 'select count(*) as count from onceonly_operations')).toEqual({ count: 0 })
      expect(await rowOf(ground.admin, 'select count(*) as count from onceonly_steps')).toEqual({ count: 0 })
    })

    test('a sweep goes through operations in bounded steps, and says whether there is more', async () => {
      const store = mysqlStore({ pool })
      await Promise.all(times(5).map(() => enlisted(store)))
      await ground.advance(leaseMs + retention.keepMs + retention.tombstoneMs + hourMs)
      const left = async (): Promise<unknown> =>
        rowOf(ground.admin, 'select count(*) as count from onceonly_operations')
      expect(await store.sweep({ limit: 2 })).toMatchObject({ more: true })
      expect(await left()).toEqual({ count: 3 })
      expect(await store.sweep({ limit: 2 })).toMatchObject({ more: true })
      expect(await store.sweep({ limit: 2 })).toMatchObject({ more: false })
      expect(await left()).toEqual({ count: 0 })
    })
  })
})

needs('mariadb', { ours: true }).describe('operations on other servers', () => {
  test('neither collation nor SQL mode matter: names that differ in a byte are different records', async () => {
    const lax = { 'sql-mode': 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,PIPES_AS_CONCAT' }
    const latin = { 'character-set-server': 'latin1', 'collation-server': 'latin1_swedish_ci' }
    await using server = await startMariadb({ settings: { ...lax, ...latin } })
    const pool = createPool(await createMysqlDatabase(server), { charset: 'latin1_swedish_ci' })
    const store = mysqlStore({ pool })
    const names = ['', 'a', 'A', 'a ', 'ä', 'a\u0308', 'ß', 'ss', '🙂', '🙃', '\\', `'`, '"', '%', '0', '00']
    const claims = await Promise.all(names.map((name) => enlisted(store, name || 'empty')))
    const records = names.map((name) => record(name, 1, `of ${name}`))
    await Promise.all(claims.map((claim) => store.advance(claim, { records, becomes: running })))
    for (const claim of claims) {
      expect(await recorded(store, claim)).toEqual(Object.fromEntries(names.map((name) => [name, `of ${name}`])))
    }
    await store.requestCancel(claims[0]!.key, 'ein „Grund“ 🙂')
    expect((await store.ledger(claims[0]!.key))!.cancelReason).toBe('ein „Grund“ 🙂')
    const found = await store.unfinished(scope, { limit: 100 })
    expect(new Set(found.map(({ id }) => id))).toEqual(new Set(claims.map((claim) => claim.key.id)))
    await pool.end()
  })

  test('a record that does not fit into max_allowed_packet is refused with a word about it, and nothing is written', async () => {
    await using server = await startMariadb({ settings: { 'max-allowed-packet': '1M' } })
    const url = await createMysqlDatabase(server)
    const pool = createPool(url)
    const store = mysqlStore({ pool })
    const claims = await Promise.all(times(5).map(() => enlisted(store)))
    const fits: Change = { records: [record('large', 1, 'x'.repeat(500_000))], becomes: running }
    const tooLarge: Change = { records: [record('large', 2, 'x'.repeat(600_000))], becomes: running }
    const answers = await Promise.all(claims.map((claim) => store.advance(claim, fits)))
    expect(new Set(answers)).toEqual(new Set(['done']))
    for (const claim of claims) expect((await recorded(store, claim))['large']).toHaveLength(500_000)
    const notStored = { code: 'OUTCOME_NOT_STORED', retryable: false }
    await expect(store.advance(claims[0]!, tooLarge)).rejects.toMatchObject(notStored)
    await expect(store.advance(claims[0]!, tooLarge)).rejects.toThrow('max_allowed_packet')
    const step = (await store.beginStep(claims[0]!))!
    await step.tx.query(`insert into effects values ('large')`)
    await expect(step.commit(tooLarge)).rejects.toMatchObject({ ...notStored, executed: 'no' })
    expect(await countEffects(pool, 'large')).toBe(0)
    const large: Change['becomes'] = { to: 'settled', outcome: new Uint8Array(450_000), retention }
    expect(await store.advance(claims[0]!, { records: [record('small', 1, 'x')], becomes: large })).toBe('done')
    // A server that is given less later cannot send what it has: an error, never "nothing is recorded".
    await pool.query('set global max_allowed_packet = 262144')
    const later = createPool(url)
    await expect(mysqlStore({ pool: later }).ledger(claims[1]!.key)).rejects.toMatchObject({
      code: 'OUTCOME_UNREADABLE',
    })
    await later.end()
    await pool.end()
  })

  test('an operation is taken up by a worker where it failed, and each step has taken effect once', async () => {
    await using server = await startMariadb()
    const pool = createPool(await createMysqlDatabase(server))
    const once = createOnce({ store: mysqlStore({ pool }), scope: 'shop' })
    const charges: string[] = []
    let failures = 0
    const checkout = once.operation(
      'checkout',
      { backoff: { firstMs: 1, factor: 1, maxMs: 1 } },
      async (op, input: { order: string }) => {
        const charge = await op.step('charge', ({ key: chargeKey }) => charges.push(chargeKey))
        await op.transaction('order', (tx) => tx.query('insert into effects values (?)', [input.order]))
        if (failures++ === 0) throw new Error('the process had a bad day')
        await op.transaction('receipt', (tx) => tx.query('insert into effects values (?)', [`receipt ${charge}`]))
        return `ordered ${input.order}`
      },
    )
    await checkout.start('1', { order: 'a book' })
    const recovery = once.recover([checkout], { everyMs: 20 })
    const status = await pollUntil('the end of the operation', async () => {
      const seen = await checkout.status('1')
      return seen?.state === 'completed' ? seen : undefined
    })
    await recovery.stop()
    expect(status).toMatchObject({ state: 'completed' })
    expect(await checkout.run('1', { order: 'a book' })).toMatchObject({ value: 'ordered a book' })
    await expect(checkout.run('1', { order: 'a bike' })).rejects.toMatchObject({ code: 'MISMATCH' })
    expect(charges).toHaveLength(1)
    expect(failures).toBe(2)
    expect(await countEffects(pool, 'a book')).toBe(1)
    expect(await countEffects(pool, 'receipt 1')).toBe(1)
    await once.close()
    await pool.end()
  })
})

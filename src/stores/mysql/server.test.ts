// What is MySQL's own: several processes, plans, sessions whose settings are put back, deadlocks, snapshots, packets, and
// settings that would void the promise.

import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
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
import { type RunningMariadb, startMariadb } from '../../../test/servers/mariadb.ts'
import { needs } from '../../../test/servers/needs.ts'
import { pollUntil } from '../../../test/servers/poll.ts'
import { key, newId } from '../../core/key.ts'
import { createOnce } from '../../core/once.ts'
import type { Claim, Store } from '../../core/store.ts'
import { idempotency } from '../../http/fetch.ts'
import { bytesOf, claimWhenFree, request, retention, times } from '../../testing/store-contract.ts'
import { procedureName } from './names.ts'
import type { ProcedureName } from './names.ts'
import { schemaStatements } from './schema.ts'
import { mysqlStore } from '../mysql.ts'

const outcome = bytesOf('outcome')

async function claimed(store: Pick<Store, 'claim'>, id: string): Promise<Claim> {
  const verdict = await store.claim(key('server', id), request())
  if (verdict.is !== 'granted') throw new Error(`expected ${id} to be granted, got ${verdict.is}`)
  return verdict.claim
}

function ids(count: number): string[] {
  return times(count).map(() => newId())
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

// Each child prints one line of JSON.
async function inProcesses(count: number, code: string): Promise<unknown[]> {
  const module = new URL('../mysql.ts', import.meta.url).href
  const whole = `import mysql from 'mysql2/promise'; import { mysqlStore } from '${module}'; ${code}`
  const run = promisify(execFile)
  const children = times(count).map(() =>
    run(process.execPath, ['--input-type=module-typescript', '-e', whole], { cwd: import.meta.dirname }),
  )
  return (await Promise.all(children)).map(({ stdout }) => JSON.parse(stdout) as unknown)
}

needs('mariadb', { ours: true }).describe('the MySQL store and its server', () => {
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

  describe('processes', () => {
    test('of 1,000 claims of one key by two processes at once, one is granted', async () => {
      const verdicts = await inProcesses(
        2,
        `const pool = mysql.createPool(${JSON.stringify(ground.url)})
         const store = mysqlStore({ pool })
         const claims = Array.from({ length: 500 }, () => store.claim({ scope: 'processes', id: 'one' }, {
           ...${JSON.stringify(request())}, token: crypto.randomUUID() }))
         console.log(JSON.stringify((await Promise.all(claims)).map((verdict) => verdict.is)))
         await pool.end()`,
      )
      const all = (verdicts as string[][]).flat()
      expect(all).toHaveLength(1_000)
      expect(all.filter((is) => is === 'granted')).toHaveLength(1)
      expect(all.filter((is) => is === 'busy')).toHaveLength(999)
    })

    test('two processes that race for 500 keys in two orders get each key once, and settle it', async () => {
      const granted = await inProcesses(
        2,
        `const pool = mysql.createPool(${JSON.stringify(ground.url)})
         const store = mysqlStore({ pool })
         const ids = Array.from({ length: 500 }, (_, index) => String(index)).sort(() => Math.random() - 0.5)
         const taken = await Promise.all(ids.map(async (id) => {
           const verdict = await store.claim({ scope: 'raced', id }, {
             ...${JSON.stringify(request())}, token: crypto.randomUUID() })
           if (verdict.is !== 'granted') return []
           return await store.settle(verdict.claim, Buffer.from(id), ${JSON.stringify(retention)}) === 'done' ? [id] : ['lost']
         }))
         console.log(JSON.stringify(taken.flat()))
         await pool.end()`,
      )
      const all = (granted as string[][]).flat().toSorted((a, b) => Number(a) - Number(b))
      expect(all).toEqual(times(500).map(String))
    })

    test('five processes that migrate at once all succeed, and there is one schema that works', async () => {
      const url = await ground.server.createDatabase()
      const migrating = `const pool = mysql.createPool(${JSON.stringify(url)})
        await mysqlStore({ pool, table: 'kept' }).migrate()
        console.log('"migrated"')
        await pool.end()`
      expect(await inProcesses(5, migrating)).toEqual(Array(5).fill('migrated'))
      const fresh = createPool(url)
      const store = mysqlStore({ pool: fresh, table: 'kept' })
      await store.migrate()
      expect(await store.settle(await claimed(store, 'one'), outcome, retention)).toBe('done')
      await fresh.end()
    })
  })

  describe('the schema', () => {
    test('migrate takes no lock when there is nothing to do', async () => {
      await inTransaction(pool, async (tx) => {
        await claimed(mysqlStore({ pool }).within(tx), 'open')
        await mysqlStore({ pool }).migrate()
      })
    })

    test('a table of the version before is migrated under an open transaction, and its procedures stay for old processes', async () => {
      const upgraded = createPool(await ground.server.createDatabase())
      // A lock that is waited for is an error here, not a test that hangs.
      upgraded.on('connection', (connection) => void connection.query('set lock_wait_timeout = 10'))
      const [, version] = /_v(\d+)$/.exec(procedureName('onceonly', 'claim'))!
      const before = Number(version) - 1
      for (const statement of schemaStatements('onceonly')) {
        await upgraded.query(statement.replaceAll(`_v${version}\``, `_v${before}\``))
      }
      await upgraded.query('alter table onceonly_operations drop key unfinished')
      const store = mysqlStore({ pool: upgraded })
      await expect(claimed(store, 'one')).rejects.toMatchObject({ code: 'SCHEMA_MISSING' })
      await inTransaction(upgraded, async (tx) => {
        await tx.query(`insert into onceonly_audit values ('a', 'b', 1, 1, 'forget', 'a test', 'open')`)
        await tx.query(
          `call onceonly_within_v${before}('server', 'open', 'token', 'f', 1, 1, 1, 1, 'run', 'refuse', null)`,
        )
        await store.migrate()
        expect(await store.settle(await claimed(store, 'one'), outcome, retention)).toBe('done')
      })
      const count = (text: string): Promise<unknown> => rowOf(upgraded, `select count(*) as count from ${text}`)
      const of = (which: string): Promise<unknown> =>
        count(`information_schema.routines where routine_schema = database() and routine_name like '%v${which}'`)
      expect(await of(`${before}`)).toEqual(await of(version!))
      expect(
        await count(`information_schema.statistics where index_name = 'unfinished' and table_schema = database()`),
      ).toEqual({
        count: 3,
      })
      await upgraded.end()
    })

    test('what schema() prints is the whole of it', async () => {
      const fresh = createPool(await ground.server.createDatabase(), { multipleStatements: true })
      const store = mysqlStore({ pool: fresh })
      await expect(claimed(store, 'one')).rejects.toMatchObject({ code: 'SCHEMA_MISSING', executed: 'no' })
      await expect(claimed(store, 'one')).rejects.toThrow('store.migrate()')
      await fresh.query(store.schema())
      expect(await store.settle(await claimed(store, 'one'), outcome, retention)).toBe('done')
      await fresh.query(store.schema())
      expect(await store.claim(key('server', 'one'), request())).toMatchObject({ is: 'settled' })
      await fresh.end()
    })

    test('whoever migrates a new database needs the rights that docs/stores.md names, and the others theirs', async () => {
      const url = new URL(await ground.server.createDatabase())
      const database = url.pathname.slice(1)
      const poolOf = async (user: string, rights: string): Promise<Pool> => {
        await ground.admin.query(`create user ${user}@'%' identified by 'secret'`)
        await ground.admin.query(`grant ${rights} on ${database}.* to ${user}@'%'`)
        Object.assign(url, { username: user, password: 'secret' })
        return createPool(url.href)
      }
      const migrating = await poolOf('migrating', 'create, create routine, alter routine')
      await mysqlStore({ pool: migrating }).migrate()
      const working = await poolOf('working', 'select, insert, update, delete, execute')
      const store = mysqlStore({ pool: working })
      expect(await store.settle(await claimed(store, 'one'), outcome, retention)).toBe('done')
      await Promise.all([migrating.end(), working.end()])
    })

    test('the same key in another table is another key, and another lock', async () => {
      const other = mysqlStore({ pool, table: 'other' })
      await other.migrate()
      const { granted } = await mysqlStore({ pool }).begin(key('server', 'same'), request())
      await claimed(other, 'same')
      expect(await granted!.commit(outcome, retention)).toBe('done')
    })

    test('a pool without a database is told so', async () => {
      const url = new URL(ground.url)
      url.pathname = '/'
      const nowhere = createPool(url.href)
      const expected = { code: 'INVALID_ARGUMENT', executed: 'no' }
      await expect(mysqlStore({ pool: nowhere }).migrate()).rejects.toMatchObject(expected)
      await nowhere.end()
    })

    test('names and options are checked at once', () => {
      const expectRefused = (options: object, message: string): void =>
        expect(() => mysqlStore({ pool, ...options })).toThrow(message)
      expectRefused({ table: 'a`; drop table users; --' }, 'expected table to be a name')
      expectRefused({ durability: 'relax' }, 'did you mean "relaxed"?')
      expectRefused({ tables: 'x' }, 'did you mean "table"?')
      expectRefused({ pool: 'mysql://' }, 'expected pool to be a pool of mysql2')
    })
  })

  describe('cost', () => {
    test('claims of one moment are one round trip, settles and replays too; begin and commit are one each', async () => {
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
      await claimed(store, 'warm up')
      const count = async (work: () => Promise<unknown>): Promise<number> => {
        statements.length = 0
        await work()
        return statements.length
      }
      const some = ids(100)
      let claims: Claim[] = []
      expect(await count(async () => (claims = await Promise.all(some.map((id) => claimed(store, id)))))).toBe(1)
      expect(await count(() => Promise.all(claims.map((claim) => store.settle(claim, outcome, retention))))).toBe(1)
      const replay = (id: string): Promise<unknown> => store.claim(key('server', id), request())
      expect(await count(() => Promise.all(some.map(replay)))).toBe(1)
      expect(await count(() => replay(some[0]!))).toBe(1)
      const transaction = async (): Promise<void> => {
        const { granted } = await store.begin(key('server', 'transaction'), request())
        expect(await granted!.commit(outcome, retention)).toBe('done')
      }
      expect(await count(transaction)).toBe(2)
    })

    test('every statement is a look-up in an index, also in a table that has grown without ANALYZE', async () => {
      const single = createPool(ground.url, { connectionLimit: 1 })
      const store = mysqlStore({ pool: single })
      const work = async (): Promise<void> => {
        const claims = await Promise.all(ids(4).map((id) => claimed(store, id)))
        await Promise.all(claims.map((claim) => store.claim(claim.key, request())))
        await Promise.all(claims.map((claim) => store.settle(claim, outcome, retention)))
        await Promise.all(claims.map((claim) => store.settle(claim, outcome, retention)))
        await store.release(await claimed(store, newId()), 'open')
        await store.release(await claimed(store, newId()), 'forget')
        await store.extend(await claimed(store, newId()), 60_000)
        const { granted } = await store.begin(key('server', newId()), request())
        await granted!.commit(outcome, retention)
        await store.show(claims[0]!.key)
        await store.list({ after: claims[0]!.key, limit: 2 })
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
      await ground.admin.query(`insert into onceonly
        select 'grown', seq, 's', 'f', 'token', 'f', 1, 1, 1, 1e15, 1, 1, 1, 1e15, null, 'x' from seq_1_to_20000`)
      // A page more or less of the index, not the table.
      expect(await cost()).toBeLessThan(small + 500)
      await single.end()
    })

    test('outcomes that do not fit into one statement together come back byte for byte', async () => {
      const store = mysqlStore({ pool })
      const claims = await Promise.all(ids(20).map((id) => claimed(store, id)))
      const large = claims.map((_, index) => new Uint8Array(1024 * 1024).fill(index))
      await Promise.all(claims.map((claim, index) => store.settle(claim, large[index]!, retention)))
      const replays = await Promise.all(claims.map((claim) => store.claim(claim.key, request())))
      replays.forEach((replay, index) => {
        if (replay.is !== 'settled') throw new Error(`expected settled, got ${replay.is}`)
        expect(Buffer.compare(replay.outcome, large[index]!)).toBe(0)
      })
    })
  })

  describe('sessions', () => {
    const settings = 'select @@innodb_lock_wait_timeout, @@autocommit, @@tx_isolation, @@in_transaction'

    test('whatever a call does, and however it ends, it leaves the settings of its connection as they were', async () => {
      const single = createPool(ground.url, { connectionLimit: 1 })
      await single.query(`set innodb_lock_wait_timeout = 37`)
      const before = await rowOf(single, settings)
      const store = mysqlStore({ pool: single })
      const begin = async (id: string): Promise<NonNullable<Awaited<ReturnType<typeof store.begin>>['granted']>> =>
        (await store.begin(key('server', id), request())).granted!
      const works: (() => Promise<unknown>)[] = [
        () => Promise.all(ids(3).map((id) => claimed(store, id))),
        async () => store.settle(await claimed(store, newId()), outcome, retention),
        async () => store.release(await claimed(store, newId()), 'open'),
        async () => (await begin(newId())).commit(outcome, retention),
        async () => (await begin(newId())).rollback(),
        async () => {
          await begin('settled').then((granted) => granted.commit(outcome, retention))
          await store.begin(key('server', 'settled'), request())
        },
        async () => {
          const granted = await begin('lost')
          await granted.tx.query(`delete from onceonly where id = 'lost'`)
          expect(await granted.commit(outcome, retention)).toBe('lost')
        },
        () => store.sweep({ limit: 10 }),
        () => store.mend(key('server', 'settled'), 'forget', 'a test'),
        () => called(single, 'batch', `1, 1, 'nonsense', 'nonsense', null`),
        () => called(single, 'take', `null, 'id', 'token', 'f', 1, 1, 1, 1, 'run', 'refuse', null, true`),
        () => called(single, 'begin', `null, 'id', 'token', 'f', 1, 1, 1, 1, 'run', 'refuse', null`),
      ]
      for (const work of works) {
        await work()
        expect(await rowOf(single, settings), work.toString()).toEqual(before)
      }
      await inTransaction(single, async (tx) => {
        const inside = await rowOf(tx, settings)
        const claim = await claimed(store.within(tx), newId())
        await store.within(tx).settle(claim, outcome, retention)
        expect(await rowOf(tx, settings)).toEqual(inside)
      })
      await single.end()
    })

    test('nothing depends on the session: every call may go over another connection', async () => {
      const scattered = {
        async query(query: { sql: string }) {
          const client = await pool.getConnection()
          try {
            return await client.query(query)
          } finally {
            client.destroy()
          }
        },
        getConnection: () => pool.getConnection(),
      }
      const store = mysqlStore({ pool: scattered })
      const claims = await Promise.all(ids(50).map((id) => claimed(store, id)))
      expect(await store.extend(claims[0]!, 1_000)).toBe('done')
      for (const claim of claims) expect(await store.settle(claim, outcome, retention)).toBe('done')
      expect(await store.claim(claims[0]!.key, request())).toMatchObject({ is: 'settled' })
    })

    test('a pool whose connections have autocommit off and are SERIALIZABLE keeps the promise, too', async () => {
      const strict = createPool(ground.url, { connectionLimit: 4 })
      strict.on('connection', (connection) => {
        void connection.query('set autocommit = 0')
        void connection.query('set session transaction isolation level serializable')
      })
      const store = mysqlStore({ pool: strict })
      const claims = await Promise.all(ids(50).map((id) => claimed(store, id)))
      for (const claim of claims) expect(await store.settle(claim, outcome, retention)).toBe('done')
      const { granted } = await store.begin(key('server', 'strict'), request())
      expect(await mysqlStore({ pool }).claim(key('server', 'strict'), request())).toMatchObject({ is: 'busy' })
      expect(await granted!.commit(outcome, retention)).toBe('done')
      const replays = await Promise.all(claims.map((claim) => mysqlStore({ pool }).claim(claim.key, request())))
      expect(new Set(replays.map((replay) => replay.is))).toEqual(new Set(['settled']))
      await strict.end()
    })
  })

  describe('others', () => {
    test('a row that somebody has locked holds up neither the writes nor the claims of its batch', async () => {
      const store = mysqlStore({ pool })
      const [mine, ...others] = await Promise.all(ids(20).map((id) => claimed(store, id)))
      let late: Promise<unknown> = Promise.resolve()
      await inTransaction(ground.admin, async (tx) => {
        const row = [Buffer.from(mine!.key.scope), Buffer.from(mine!.key.id)]
        await tx.query('select state from onceonly where scope = ? and id = ? for update', row)
        late = store.settle(mine!, outcome, retention)
        const answers = others.map((claim) => store.settle(claim, outcome, retention))
        expect(new Set(await Promise.all(answers))).toEqual(new Set(['done']))
        expect(await store.claim(mine!.key, request())).toMatchObject({ is: 'busy' })
      })
      expect(await late).toBe('done')
    })

    /** A store whose batches stop at a look-up, the first of them or the last, until the gate is opened. */
    const gatedAt = async (which: 'first' | 'last') => {
      const gate = await ground.admin.getConnection()
      // One for each: a connection that came through keeps its lock. In hex, as it stands inside of a quoted text.
      const name = `0x${Buffer.from(newId()).toString('hex')}`
      await gate.query(`select get_lock(${name}, 0)`)
      const [look, held] = ['as answer from (', `as answer from (select get_lock(${name}, 30)) g, (`]
      const stopped = (text: string): string => {
        const at = which === 'first' ? text.indexOf(look) : text.lastIndexOf(look)
        return at === -1 ? text : text.slice(0, at) + held + text.slice(at + look.length)
      }
      const gated = {
        query: (query: { sql: string }) => pool.query({ ...query, sql: stopped(query.sql) }),
        getConnection: () => pool.getConnection(),
      }
      return {
        store: mysqlStore({ pool: gated }),
        arrived: () =>
          pollUntil('the batch to look', async () => {
            const waiting = `select count(*) as found from information_schema.processlist where state = 'User lock'`
            return Number((await rowOf(ground.admin, waiting))['found']) > 0
          }),
        async open() {
          await gate.query(`do release_lock(${name})`)
          gate.release()
        },
      }
    }

    test('a batch of settles answers by what it has written, whatever others do to its keys as soon as it is committed', async () => {
      const { store, arrived, open } = await gatedAt('first')
      const claim = await claimed(store, 'one')
      const settles = times(2).map(() => store.settle(claim, outcome, retention))
      await arrived()
      const forget = (): Promise<unknown> => mysqlStore({ pool }).mend(claim.key, 'forget', 'a test')
      const early = await forget().catch((error: unknown) => error)
      await open()
      expect(await Promise.all(settles)).toEqual(['done', 'done'])
      expect(early).toMatchObject({ code: 'STORE_UNAVAILABLE' })
      expect(await forget()).toMatchObject({ state: 'settled' })
    })

    test('a batch of claims tells whom it has granted a key, whatever others do to it as soon as it is committed', async () => {
      const { store, arrived, open } = await gatedAt('last')
      await claimed(store, 'another')
      const claims = times(2).map(() => store.claim(key('server', 'one'), request()))
      await arrived()
      const forgotten = await mysqlStore({ pool }).mend(key('server', 'one'), 'forget', 'a test')
      await open()
      expect(forgotten).toMatchObject({ state: 'running' })
      expect(await Promise.all(claims)).toMatchObject([{ is: 'granted' }, { is: 'granted' }])
    })

    test('of two claims of one token in a batch, for different requests, one is a mismatch', async () => {
      const store = mysqlStore({ pool })
      await claimed(store, 'another')
      const one = request()
      const other = { ...one, fingerprint: 'g'.repeat(43) }
      const claims = await Promise.all([one, other].map((each) => store.claim(key('server', 'one'), each)))
      expect(claims.map(({ is }) => is)).toEqual(['granted', 'mismatch'])
    })

    test('a transaction with an old snapshot is told what was settled since, and keeps nobody from the keys around it', async () => {
      const store = mysqlStore({ pool })
      await inTransaction(pool, async (tx) => {
        await tx.query('select count(*) from onceonly')
        expect(await store.settle(await claimed(store, 'm'), outcome, retention)).toBe('done')
        expect(await store.within(tx).claim(key('server', 'm'), request())).toMatchObject({ is: 'settled', outcome })
        await claimed(store.within(tx), 'n')
        for (const id of ['a', 'l', 'ma', 'o', 'z']) await claimed(store, id)
        expect(await store.claim(key('server', 'm'), request())).toMatchObject({ is: 'settled' })
      })
    })

    test("with MariaDB's snapshot isolation such a transaction is a conflict, and nothing of it is kept", async () => {
      const store = mysqlStore({ pool })
      const work = inTransaction(pool, async (tx) => {
        await tx.query('set innodb_snapshot_isolation = on')
        await tx.query('select count(*) from onceonly')
        await tx.query(`insert into effects values ('snapshot')`)
        expect(await store.settle(await claimed(store, 'm'), outcome, retention)).toBe('done')
        await store.within(tx).claim(key('server', 'm'), request())
      })
      const error = await work.catch((thrown: unknown) => thrown)
      expect(error).toMatchObject({ code: 'TRANSACTION_CONFLICT', executed: 'no' })
      expect(store.isConflict(error)).toBe(true)
      expect(await countEffects(pool, 'snapshot')).toBe(0)
    })

    // Time-ordered ids and the default isolation level make such locks: whenever a page is split under an open transaction.
    test('a key that nobody has is not busy because somebody has the gap beside it: it is granted when that is free', async () => {
      const asks: Record<string, (store: ReturnType<typeof mysqlStore<Pool>>) => Promise<{ readonly is: string }>> = {
        claim: (store) => store.claim(key('server', 'm'), request()),
        enlist: (store) => store.enlist(key('server', 'm'), { ...request(), input: outcome }),
        async begin(store) {
          const { verdict, granted } = await store.begin(key('server', 'm'), request())
          await granted?.rollback()
          return verdict
        },
      }
      for (const [name, ask] of Object.entries(asks)) {
        await ground.reset()
        const other = await ground.admin.getConnection()
        await other.query('set session transaction isolation level repeatable read')
        await other.beginTransaction()
        await other.query(`select * from onceonly where scope = 'server' and id = 'l' for update`)
        // The gap is free as soon as the store was told for the first time that it is not.
        const query = async (client: Pool | PoolConnection, sent: { sql: string }): Promise<unknown> => {
          const answer = await client.query(sent)
          if (sent.sql.startsWith('call')) await other.rollback()
          return answer
        }
        const store = mysqlStore({
          pool: {
            query: (sent: { sql: string }) => query(pool, sent),
            async getConnection() {
              const client = await pool.getConnection()
              return Object.assign(Object.create(client) as PoolConnection, {
                query: (sent: { sql: string }) => query(client, sent),
                release: () => client.release(),
                destroy: () => client.destroy(),
              })
            },
          } as unknown as Pool,
        })
        expect(await ask(store), name).toMatchObject({ is: 'granted', how: 'fresh' })
        other.release()
      }
    })

    test('a connection that dies under an idle effect ends that transaction, not the process', async () => {
      const store = mysqlStore({ pool })
      const { granted } = await store.begin(key('server', 'killed'), request())
      const ended = new Promise((resolve) => granted!.tx.connection.once('error', resolve))
      await ground.admin.query(`kill ${granted!.tx.threadId}`)
      await ended
      await expect(granted!.commit(outcome, retention)).rejects.toMatchObject({ executed: 'unknown', retryable: true })
      // The server takes a moment to roll back what a killed connection had open.
      const verdict = await claimWhenFree(() => store.claim(key('server', 'killed'), request()))
      expect(verdict).toMatchObject({ is: 'granted', how: 'fresh' })
    })
  })

  describe('changes by hand', () => {
    const [found, twoHours] = [bytesOf('found out'), { keepMs: 7_200_000, tombstoneMs: 60_000 }]
    const resolve = { resolve: found, retention: twoHours }

    test('a running, abandoned or open entry is resolved, its holder is fenced off, and its operation is settled', async () => {
      const store = mysqlStore({ pool })
      const claim = await claimed(store, 'resolved')
      expect(await store.mend(claim.key, resolve, 'the bank says so')).toMatchObject({ state: 'running' })
      expect(await store.settle(claim, outcome, retention)).toBe('lost')
      expect(await store.extend(claim, 1_000)).toBe('lost')
      expect(await store.claim(claim.key, request())).toMatchObject({ is: 'settled', outcome: found })
      const shown = (await store.show(claim.key))!
      expect(shown.fence).toBeGreaterThan(claim.fence)
      expect(shown.expiresAtMs - shown.leaseUntilMs).toBe(twoHours.keepMs)
      expect(await store.audit(claim.key)).toMatchObject([{ action: 'resolve', before: 'running' }])
      const enlisted = await store.enlist(key('server', 'parked'), { ...request(), input: outcome })
      if (enlisted.is !== 'granted') throw new Error(enlisted.is)
      await store.advance(enlisted.claim, { records: [], becomes: { to: 'open', afterMs: 0 } })
      expect(await store.mend(enlisted.claim.key, resolve, 'it is done')).toMatchObject({ state: 'open' })
      expect(await store.unfinished('server', { limit: 10 })).toEqual([])
      expect(await store.due('server', { limit: 10, holdMs: 1_000 })).toEqual([])
    })

    test('a settled entry is kept for longer and never for shorter, and is not resolved', async () => {
      const store = mysqlStore({ pool })
      const claim = await claimed(store, 'kept')
      expect(await store.mend(claim.key, { keepMs: 1 }, 'it runs')).toMatchObject({ state: 'running' })
      await store.settle(claim, outcome, retention)
      expect(await store.mend(claim.key, resolve, 'too late')).toMatchObject({ state: 'settled' })
      const before = (await store.show(claim.key))!
      await store.mend(claim.key, { keepMs: 1 }, 'shorter')
      expect((await store.show(claim.key))!.expiresAtMs).toBe(before.expiresAtMs)
      await store.mend(claim.key, { keepMs: retention.keepMs + 5_000 }, 'longer')
      expect((await store.show(claim.key))!.expiresAtMs).toBe(before.leaseUntilMs + retention.keepMs + 5_000)
      expect(await store.claim(claim.key, request())).toMatchObject({ is: 'settled', outcome })
      expect((await store.audit(claim.key)).map(({ action }) => action)).toEqual(['keep', 'keep'])
    })
  })

  describe('calls of one claim in one moment', () => {
    test('a release beside a heartbeat of the same claim is carried out', async () => {
      const store = mysqlStore({ pool })
      for (const how of ['open', 'forget'] as const) {
        const claim = await claimed(store, `beside ${how}`)
        const [released] = await Promise.all([store.release(claim, how), store.extend(claim, 30_000)])
        expect(released).toBe('done')
        expect(await store.claim(claim.key, request())).toMatchObject({ is: 'granted' })
      }
    })

    test('an operation that is given back beside a record is given back', async () => {
      const store = mysqlStore({ pool })
      const verdict = await store.enlist(key('server', 'beside'), { ...request(), input: outcome })
      if (verdict.is !== 'granted') throw new Error(verdict.is)
      const record = { name: 'a', revision: 1, content: outcome }
      const [opened] = await Promise.all([
        store.advance(verdict.claim, { records: [], becomes: { to: 'open', afterMs: 0 } }),
        store.advance(verdict.claim, { records: [record], becomes: { to: 'running', leaseMs: 30_000 } }),
      ])
      expect(opened).toBe('done')
      expect(await store.show(verdict.claim.key)).toMatchObject({ state: 'open' })
    })
  })

  describe('effects that do what onceonly should do', () => {
    test.each(['commit', 'create table made_by_hand (n int)'])(
      'an effect that ends its transaction itself is told that its outcome is unknown (%s)',
      async (end) => {
        const once = createOnce({ store: mysqlStore({ pool }), scope: 'server' })
        const unknown = { code: 'OUTCOME_UNKNOWN', executed: 'unknown', retryable: false }
        const effect = async (tx: PoolConnection): Promise<void> => {
          await tx.query(`insert into effects values ('ended by hand')`)
          await tx.query(end)
        }
        await expect(once.transaction(`fresh ${end}`, effect)).rejects.toMatchObject(unknown)
        expect(await once.get(`fresh ${end}`)).toMatchObject({ state: 'running' })
        await ground.admin.query('drop table if exists made_by_hand')
        await expect(once.run(`again ${end}`, () => Promise.reject(new Error('open')))).rejects.toThrow('open')
        await expect(once.transaction(`again ${end}`, effect)).rejects.toMatchObject(unknown)
        expect(await once.get(`again ${end}`)).not.toMatchObject({ state: 'settled' })
        await ground.admin.query('drop table if exists made_by_hand')
        await once.close()
      },
    )

    test('an effect that rolls back, writes and commits is not told that nothing was executed', async () => {
      const once = createOnce({ store: mysqlStore({ pool }), scope: 'server' })
      const effect = async (tx: PoolConnection): Promise<void> => {
        await tx.query('rollback')
        await tx.query(`insert into effects values ('on its own')`)
        await tx.query('commit')
      }
      const unknown = { code: 'OUTCOME_UNKNOWN', executed: 'unknown', retryable: false }
      await expect(once.transaction('on its own', effect)).rejects.toMatchObject(unknown)
      expect(await countEffects(pool, 'on its own')).toBe(1)
      await once.close()
    })

    test('a key is in flight inside of its own transaction', async () => {
      const once = createOnce({ store: mysqlStore({ pool }), scope: 'server', waitMs: 0 })
      const nested = once.transaction('nested', (tx) => once.within(tx).run('nested', () => 'inner'))
      await expect(nested).rejects.toMatchObject({ code: 'IN_FLIGHT' })
      const twice = once.transaction('twice', () => once.transaction('twice', () => 'inner'))
      await expect(twice).rejects.toMatchObject({ code: 'IN_FLIGHT' })
      const others = await once.transaction('outer', (tx) => once.within(tx).run('inner', () => 'inner'))
      expect(others.value).toMatchObject({ value: 'inner' })
      await once.close()
    })
  })

  describe('deadlocks', () => {
    // A transaction that waits for a row, so that the one who has it can close the circle.
    const meetInDeadlock = async (tx: PoolConnection): Promise<unknown> => {
      const other = await ground.admin.getConnection()
      await other.beginTransaction()
      // The server sacrifices whoever has written less.
      await other.query(`insert into accounts select 10 + seq, 0 from seq_1_to_1000`)
      await other.query('update accounts set balance = 1 where id = 2')
      await tx.query('update accounts set balance = 1 where id = 1')
      const waiting = tx.query('update accounts set balance = 2 where id = 2').catch((error: unknown) => error)
      await other.query('update accounts set balance = 2 where id = 1')
      const error = await waiting
      await other.rollback()
      other.release()
      return error
    }

    beforeAll(async () => {
      await ground.admin.query('create table accounts (id int primary key, balance int not null) engine = InnoDB')
      await ground.admin.query('insert into accounts values (1, 0), (2, 0)')
      await ground.admin.query('create table raised (times int not null) engine = MyISAM')
      await ground.admin.query(`create trigger raising before update on onceonly for each row begin
        if new.id like 'raise%' and new.state = if(new.id like '%settle', 's', 'r') and (select times from raised) > 0 then
          update raised set times = times - 1;
          signal sqlstate '40001' set mysql_errno = 1213;
        end if;
      end`)
    })
    const raise = (count: number): Promise<unknown> =>
      ground.admin.query('delete from raised').then(() => ground.admin.query('insert into raised values (?)', [count]))

    test('one in the effect is a conflict; what an effect that goes on writes reaches nobody, and its outcome is told as unknown', async () => {
      const store = mysqlStore({ pool })
      const { granted } = await store.begin(key('server', 'deadlock'), request())
      await granted!.tx.query(`insert into effects values ('before')`)
      const error = await meetInDeadlock(granted!.tx)
      expect(store.isConflict(error)).toBe(true)
      await granted!.tx.query(`insert into effects values ('after')`)
      const unknown = { code: 'OUTCOME_UNKNOWN', executed: 'unknown', retryable: false }
      await expect(granted!.commit(outcome, retention)).rejects.toMatchObject(unknown)
      expect(await countEffects(pool, 'before')).toBe(0)
      expect(await countEffects(pool, 'after')).toBe(0)
      await claimed(store, 'deadlock')
    })

    test('one before the effect is tried again, in a claim and in begin', async () => {
      const store = mysqlStore({ pool })
      await raise(2)
      await claimed(store, 'raise 1')
      await raise(2)
      const { granted } = await store.begin(key('server', 'raise 2'), request())
      await granted!.rollback()
      await raise(1_000_000)
      await expect(claimed(store, 'raise 3')).rejects.toMatchObject({ code: 'TRANSACTION_CONFLICT', executed: 'no' })
      await raise(0)
    })

    test('one at the end of a transaction is told, with nothing committed, and the connection is given back', async () => {
      const single = createPool(ground.url, { connectionLimit: 1 })
      const store = mysqlStore({ pool: single })
      const { granted } = await store.begin(key('server', 'raise settle'), request())
      await granted!.tx.query(`insert into effects values ('settle')`)
      await raise(1)
      const error = await granted!.commit(outcome, retention).catch((thrown: unknown) => thrown)
      expect(error).toMatchObject({ code: 'TRANSACTION_CONFLICT', executed: 'no' })
      expect(store.isConflict(error)).toBe(true)
      expect(await countEffects(pool, 'settle')).toBe(0)
      await claimed(store, 'raise settle')
      await single.end()
    })
  })
})

needs('mariadb', { ours: true }).describe('other servers', () => {
  const unsafe = { code: 'STORE_UNSAFE', executed: 'no' }

  test.each([
    ['innodb_flush_log_at_trx_commit', 2, '2'],
    ['innodb_doublewrite', 0, 'OFF'],
  ])('%s = %s is refused, or a warning when that is asked for', async (setting, value, shown) => {
    await using server = await startMariadb({ settings: { [setting]: value } })
    const pool = createPool(await createMysqlDatabase(server))
    const refused = `${setting} is ${shown}`
    await expect(claimed(mysqlStore({ pool }), 'one')).rejects.toMatchObject(unsafe)
    await expect(claimed(mysqlStore({ pool }), 'one')).rejects.toThrow(refused)
    await expect(mysqlStore({ pool }).begin(key('server', 'one'), request())).rejects.toMatchObject(unsafe)
    const within = inTransaction(pool, (tx) => claimed(mysqlStore({ pool }).within(tx), 'one'))
    await expect(within).rejects.toMatchObject(unsafe)
    const warning = new Promise<Error>((resolve) => process.once('warning', resolve))
    await claimed(mysqlStore({ pool, durability: 'relaxed' }), 'one')
    expect((await warning).message).toContain(refused)
    await pool.end()
  })

  test('an engine without transactions and innodb_rollback_on_timeout are refused, whatever is asked for', async () => {
    await using server = await startMariadb({ settings: { 'innodb-rollback-on-timeout': 1 } })
    const pool = createPool(await createMysqlDatabase(server))
    const durability = 'relaxed'
    await expect(claimed(mysqlStore({ pool, durability }), 'one')).rejects.toMatchObject(unsafe)
    await expect(claimed(mysqlStore({ pool, durability }), 'one')).rejects.toThrow('innodb_rollback_on_timeout is ON')
    await pool.query('alter table onceonly engine = MyISAM')
    await expect(claimed(mysqlStore({ pool, durability }), 'one')).rejects.toThrow('of the engine MyISAM')
    await pool.end()
  })

  test('a binary log works in its mixed form, with advice about sync_binlog, and is refused as statements', async () => {
    await using server = await startMariadb({ settings: { 'log-bin': 'binlog', 'sync-binlog': 0 } })
    const url = await createMysqlDatabase(server)
    const pool = createPool(url)
    const warning = new Promise<Error>((resolve) => process.once('warning', resolve))
    const store = mysqlStore({ pool })
    const claims = await Promise.all(ids(20).map((id) => claimed(store, id)))
    await Promise.all(claims.map((claim) => store.settle(claim, outcome, retention)))
    const { granted } = await store.begin(key('server', 'logged'), request())
    expect(await granted!.commit(outcome, retention)).toBe('done')
    expect((await warning).message).toContain('sync_binlog is 0')
    await pool.query('set global binlog_format = statement')
    await expect(claimed(mysqlStore({ pool }), 'one')).rejects.toThrow('binlog_format is STATEMENT')
    await pool.end()
  })

  test('neither collation nor SQL mode matter: keys that differ in a byte are different keys', async () => {
    const lax = { 'sql-mode': 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,PIPES_AS_CONCAT' }
    const latin = { 'character-set-server': 'latin1', 'collation-server': 'latin1_swedish_ci' }
    await using server = await startMariadb({ settings: { ...lax, ...latin } })
    const pool = createPool(await createMysqlDatabase(server), { charset: 'latin1_swedish_ci' })
    const store = mysqlStore({ pool })
    const odd = [
      'a',
      'A',
      'a ',
      ' a',
      'ä',
      'a\u0308',
      'ss',
      'ß',
      '🙂',
      '🙃',
      '\\',
      '\\\\',
      `'`,
      '"',
      '%',
      '_',
      '0',
      '00',
    ]
    const claims = await Promise.all(odd.map((id) => claimed(store, id)))
    await Promise.all(claims.map((claim) => store.settle(claim, bytesOf(claim.key.id), retention)))
    for (const id of odd) {
      expect(await store.claim(key('server', id), request())).toMatchObject({ is: 'settled', outcome: bytesOf(id) })
      expect(await store.show(key('server', id))).toMatchObject({ key: key('server', id) })
    }
    const tooLong = { scope: 'server', id: 'x'.repeat(256) }
    await expect(store.claim(tooLong, request())).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' })
    await pool.end()
  })

  // MySQL cannot forbid an INSERT to wait, and in the caller's transaction nothing can look before it.
  test("where waits cannot be forbidden, a claim in the caller's transaction waits a second for another one, then is busy", async () => {
    await using server = await startMariadb({ settings: { version: '8.0.40' } })
    const pool = createPool(await createMysqlDatabase(server))
    const store = mysqlStore({ pool })
    await inTransaction(pool, async (first) => {
      const claim = await claimed(store.within(first), 'held')
      await inTransaction(pool, async (second) => {
        await second.query(`insert into effects values ('kept')`)
        expect(await store.within(second).claim(key('server', 'held'), request())).toMatchObject({ is: 'busy' })
      })
      expect(await store.within(first).settle(claim, outcome, retention)).toBe('done')
    })
    expect(await countEffects(pool, 'kept')).toBe(1)
    expect(await store.claim(key('server', 'held'), request())).toMatchObject({ is: 'settled' })
    await pool.end()
  })

  describe('that takes packets of 1 MiB', () => {
    let server: RunningMariadb
    let pool: Pool
    beforeAll(async () => {
      server = await startMariadb({ settings: { 'max-allowed-packet': '1M' } })
      pool = createPool(await createMysqlDatabase(server))
    })
    afterAll(async () => {
      await pool.end()
      await server.stop()
    })

    test('what does not fit into max_allowed_packet is refused with a word about it, and nothing is written', async () => {
      const store = mysqlStore({ pool })
      const [fits, tooLarge] = [new Uint8Array(500_000).fill(1), new Uint8Array(600_000).fill(1)]
      const claims = await Promise.all(ids(5).map((id) => claimed(store, id)))
      const answers = await Promise.all(claims.map((claim) => store.settle(claim, fits, retention)))
      expect(new Set(answers)).toEqual(new Set(['done']))
      expect(await store.claim(claims[0]!.key, request())).toMatchObject({ is: 'settled', outcome: fits })
      const claim = await claimed(store, 'large')
      const notStored = { code: 'OUTCOME_NOT_STORED', retryable: false }
      await expect(store.settle(claim, tooLarge, retention)).rejects.toMatchObject(notStored)
      await expect(store.settle(claim, tooLarge, retention)).rejects.toThrow(
        /^The outcome of \S+ makes a statement of \d+ bytes, and the server takes at most \d+ \(max_allowed_packet\)\. Nothing was written\. Raise/,
      )
      expect(await store.settle(claim, outcome, retention)).toBe('done')
      const { granted } = await store.begin(key('server', 'begun'), request())
      await granted!.tx.query(`insert into effects values ('large')`)
      await expect(granted!.commit(tooLarge, retention)).rejects.toMatchObject({ ...notStored, executed: 'no' })
      expect(await countEffects(pool, 'large')).toBe(0)
      const input = store.claim(key('server', 'input'), request({ input: tooLarge }))
      await expect(input).rejects.toMatchObject({ code: 'INVALID_ARGUMENT', executed: 'no' })
    })

    test('of a value too large for a packet, a transaction undoes effect and claim, over HTTP too, and run keeps that it ran', async () => {
      const once = createOnce({ store: mysqlStore({ pool }), scope: 'server', waitMs: 0, sweepEveryMs: false })
      const tooLarge = 'x'.repeat(600_000)
      const inside = (returned: string) =>
        inTransaction(pool, async (tx) => {
          const effect = async (): Promise<string> => {
            await tx.query(`insert into effects values ('within')`)
            return returned
          }
          // A caller that goes on and commits has committed neither.
          return once
            .within(tx)
            .run('within', effect)
            .catch((error: unknown) => error)
        })
      expect(await inside(tooLarge)).toMatchObject({ code: 'OUTCOME_NOT_STORED', executed: 'no' })
      expect(await countEffects(pool, 'within')).toBe(0)
      expect(await inside('small')).toMatchObject({ value: 'small', replayed: false, attempt: 1 })
      expect(await countEffects(pool, 'within')).toBe(1)
      const handle = idempotency(once, { tenant: 'shared', transaction: true })(async (_request, context) => {
        await context.idempotency!.tx.query(`insert into effects values ('http')`)
        return new Response(tooLarge)
      })
      // A fault of the program, for whoever serves the errors of handlers. Nobody is told that the request was processed.
      const headers = { 'idempotency-key': 'k-1' }
      const asked = () => handle(new Request('http://shop/orders', { method: 'POST', headers, body: '{}' }))
      for (const _ of times(2)) {
        await expect(asked()).rejects.toMatchObject({ code: 'OUTCOME_NOT_STORED', executed: 'no' })
      }
      expect(await countEffects(pool, 'http')).toBe(0)
      let runs = 0
      const run = () =>
        once.run('run', () => {
          runs++
          return tooLarge
        })
      for (const _ of times(2)) {
        await expect(run()).rejects.toMatchObject({ code: 'OUTCOME_NOT_STORED', executed: 'yes', retryable: false })
      }
      expect(runs).toBe(1)
      await once.close()
    })
  })
})

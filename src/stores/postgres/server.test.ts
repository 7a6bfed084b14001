// What is PostgreSQL's own: several processes, plans, locks of others, poolers, settings that would void the promise.

import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import type pg from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { createPool, inTransaction, type PostgresGround, startPostgresGround } from '../../../test/subjects/postgres.ts'
import { needs } from '../../../test/servers/needs.ts'
import { startPostgres } from '../../../test/servers/postgres.ts'
import { key, newId } from '../../core/key.ts'
import { createOnce } from '../../core/once.ts'
import type { Advanced, Change, Claim, ClaimRequest, Store, Verdict } from '../../core/store.ts'
import type { PgPool } from '../../clients/postgres.ts'
import { eventually } from '../../testing/store-contract.ts'
import { functionName, lockNumber, schemaComment, schemaVersion } from './names.ts'
import { postgresStore } from '../postgres.ts'
import type { PostgresStore } from '../postgres.ts'

const retention = { keepMs: 3_600_000, tombstoneMs: 3_600_000 }
const outcome = new TextEncoder().encode('outcome')

function request(changes: Partial<ClaimRequest> = {}): ClaimRequest {
  const token = crypto.randomUUID()
  const fingerprint = 'f'.repeat(43)
  const policies = { onTakeover: 'run', onExpired: 'refuse' } as const
  return { token, fingerprint, leaseMs: 60_000, retention, version: 1, ...policies, ...changes }
}

async function claimed(store: Pick<Store, 'claim'>, id: string): Promise<Claim> {
  const verdict = await store.claim(key('server', id), request())
  if (verdict.is !== 'granted') throw new Error(`expected ${id} to be granted, got ${verdict.is}`)
  return verdict.claim
}

function ids(count: number): string[] {
  return Array.from({ length: count }, () => newId())
}

// Each child prints one line of JSON.
async function inProcesses(count: number, code: string): Promise<unknown[]> {
  const module = new URL('../postgres.ts', import.meta.url).href
  const whole = `import pg from 'pg'; import { postgresStore } from '${module}'; ${code}`
  const run = promisify(execFile)
  const children = Array.from({ length: count }, () =>
    run(process.execPath, ['--input-type=module-typescript', '-e', whole], { cwd: import.meta.dirname }),
  )
  return (await Promise.all(children)).map(({ stdout }) => JSON.parse(stdout) as unknown)
}

interface Gated extends AsyncDisposable {
  readonly slow: PostgresStore
  readonly fast: PostgresStore
  arrived(): Promise<void>
  open(): Promise<void>
}

const underLock = `exists (select from pg_locks l where l.pid = pg_backend_pid() and l.locktype = 'advisory')`
const secondRead = `nextval('fake.reads') = 2`

// A server whose clock holds the slow store where it is read: under the lock of a key, or for the second time. Until the gate is opened.
async function startGated(when: string = underLock): Promise<Gated> {
  const gate = 7_001
  const ground = await startPostgresGround()
  await ground.admin.query('create sequence fake.reads')
  await ground.admin
    .query(`create or replace function fake.clock_timestamp() returns timestamptz language plpgsql volatile as $$
    begin
      if current_setting('application_name') = 'slow' and ${when} then
        perform pg_advisory_xact_lock(${gate});
      end if;
      return (select at from fake.clock);
    end $$`)
  const [slow, fast] = [createPool(ground.url, { application_name: 'slow' }), createPool(ground.url)]
  const keeper = await ground.admin.connect()
  await keeper.query(`select pg_advisory_lock(${gate})`)
  return {
    slow: postgresStore({ pool: slow }),
    fast: postgresStore({ pool: fast }),
    async arrived() {
      const waiting = `select from pg_locks where locktype = 'advisory' and not granted`
      while ((await ground.admin.query(waiting)).rowCount === 0);
    },
    async open() {
      await keeper.query(`select pg_advisory_unlock(${gate})`)
    },
    async [Symbol.asyncDispose]() {
      keeper.release()
      await Promise.all([slow.end(), fast.end()])
      await ground[Symbol.asyncDispose]()
    },
  }
}

needs('postgres', { ours: true }).describe('the PostgreSQL store and its server', () => {
  let ground: PostgresGround
  let pool: pg.Pool
  beforeAll(async () => {
    ground = await startPostgresGround()
    pool = createPool(ground.url)
    // Its transactions would be counted as ours.
    await ground.admin.query('alter system set autovacuum = off')
    await ground.admin.query('select pg_reload_conf()')
  })
  beforeEach(() => ground.reset())
  afterAll(async () => {
    await pool.end()
    await ground[Symbol.asyncDispose]()
  })

  const ask = async <T>(text: string): Promise<T> => {
    const { rows } = await ground.admin.query<{ answer: T }>(text)
    return rows[0]!.answer
  }

  // An object that only looks like a pool is sent text. A pool of pg is sent values, too.
  const ways = ['text', 'values'] as const
  const through = (way: (typeof ways)[number], query: (statement: unknown) => Promise<unknown>): PgPool => {
    if (way === 'text') return { query, connect: () => pool.connect() }
    return new Proxy(pool, { get: (target, name) => (name === 'query' ? query : Reflect.get(target, name)) as unknown })
  }

  describe('processes', () => {
    test('of 1,000 claims of one key by two processes at once, one is granted', async () => {
      const verdicts = await inProcesses(
        2,
        `const pool = new pg.Pool({ connectionString: ${JSON.stringify(ground.url)} })
         const store = postgresStore({ pool })
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

    test('five processes that migrate at once all succeed, and there is one schema that works', async () => {
      const url = await ground.server.createDatabase()
      const migrating = `const pool = new pg.Pool({ connectionString: ${JSON.stringify(url)} })
        await postgresStore({ pool, schema: 'elsewhere', table: 'kept' }).migrate()
        console.log('"migrated"')
        await pool.end()`
      expect(await inProcesses(5, migrating)).toEqual(Array(5).fill('migrated'))
      const fresh = createPool(url)
      const store = postgresStore({ pool: fresh, schema: 'elsewhere', table: 'kept' })
      await store.migrate()
      expect(await store.settle(await claimed(store, 'one'), outcome, retention)).toBe('done')
      await fresh.end()
    })
  })

  describe('the schema', () => {
    test('migrate takes no lock when there is nothing to do', async () => {
      await inTransaction(pool, async (tx) => {
        await tx.query('lock table onceonly in access exclusive mode')
        await postgresStore({ pool }).migrate()
      })
    })

    test.each([{}, { periodMs: 3_600_000 }])(
      'a table of the version before is migrated under an open transaction, and its functions stay for old processes (%j)',
      async (options) => {
        // A lock that is waited for is an error here, not a test that hangs.
        const upgraded = createPool(await ground.server.createDatabase(), { options: '-c lock_timeout=10s' })
        const store = postgresStore({ pool: upgraded, ...options })
        const before = schemaVersion - 1
        const older = store.schema().replaceAll(schemaComment, `onceonly schema version ${before}`)
        await upgraded.query(older.replaceAll(`_v${schemaVersion}"`, `_v${before}"`))
        await upgraded.query('drop index onceonly_operations_unfinished')
        await expect(claimed(store, 'one')).rejects.toMatchObject({ code: 'SCHEMA_MISSING' })
        await inTransaction(upgraded, async (tx) => {
          await tx.query('lock table onceonly, onceonly_steps, onceonly_audit in row exclusive mode')
          await store.migrate()
          expect(await store.settle(await claimed(store, 'one'), outcome, retention)).toBe('done')
        })
        const count = async (text: string): Promise<unknown> =>
          (await upgraded.query(`select count(*)::integer as count from ${text}`)).rows[0]
        const of = (version: number): Promise<unknown> => count(`pg_proc where proname like 'onceonly%v${version}'`)
        expect(await of(before)).toEqual(await of(schemaVersion))
        expect(await count(`pg_class where relname = 'onceonly_operations_unfinished'`)).toEqual({ count: 1 })
        await upgraded.end()
      },
    )

    test('what schema() prints is the whole of it', async () => {
      const url = await ground.server.createDatabase()
      const fresh = createPool(url)
      const store = postgresStore({ pool: fresh })
      await expect(claimed(store, 'one')).rejects.toMatchObject({ code: 'SCHEMA_MISSING', executed: 'no' })
      await expect(claimed(store, 'one')).rejects.toThrow('store.migrate()')
      await fresh.query(store.schema())
      expect(await store.settle(await claimed(store, 'one'), outcome, retention)).toBe('done')
      await fresh.end()
    })

    // PostgreSQL cuts the names of indexes and functions off at 63 bytes.
    test('a table with the longest name works, and its schema can be applied twice', async () => {
      const store = postgresStore({ pool, table: 'a'.repeat(48) })
      for (let round = 0; round < 2; round++) await pool.query(store.schema())
      expect(await store.settle(await claimed(store, 'one'), outcome, retention)).toBe('done')
      expect(await store.sweep({ limit: 1 })).toMatchObject({ more: false })
    })

    test('two versions of a table with the longest name share no function', async () => {
      const fresh = createPool(await ground.server.createDatabase())
      const store = postgresStore({ pool: fresh, table: 'a'.repeat(48) })
      const before = schemaVersion - 1
      await fresh.query(store.schema().replaceAll(`_v${schemaVersion}"`, `_v${before}"`))
      await fresh.query(store.schema())
      const { rows } = await fresh.query<{ name: string }>(
        `select proname as name from pg_proc where proname like 'aaa%'`,
      )
      const versions = [before, schemaVersion].map((version) =>
        rows.filter(({ name }) => name.endsWith(`_v${version}`)),
      )
      expect(versions[0]).toHaveLength(versions[1]!.length)
      expect(rows).toHaveLength(versions.flat().length)
      await fresh.end()
    })

    test('the same key in another table is another key, and another lock', async () => {
      const other = postgresStore({ pool, table: 'other', schema: 'tenant' })
      await other.migrate()
      const { granted } = await postgresStore({ pool }).begin(key('server', 'same'), request())
      await claimed(other, 'same')
      expect(await granted!.commit(outcome, retention)).toBe('done')
    })

    test('names and options are checked at once', () => {
      const expectRefused = (options: object, message: string): void =>
        expect(() => postgresStore({ pool, ...options })).toThrow(message)
      expectRefused({ table: 'a"; drop table users; --' }, 'expected table to be a name')
      expectRefused({ schema: 'Upper' }, 'expected schema to be a name')
      expectRefused({ durability: 'relax' }, 'did you mean "relaxed"?')
      expectRefused({ tables: 'x' }, 'did you mean "table"?')
      expectRefused({ pool: 'postgres://' }, 'expected pool to be a Pool of pg or the sql of postgres.js')
    })
  })

  describe('cost', () => {
    test.each(ways)(
      'claims of one moment are one statement, or two where they are many, settles too, and replays write nothing (%s)',
      async (way) => {
        const statements: unknown[] = []
        const counted = through(way, (statement) => {
          statements.push(statement)
          return pool.query(statement as string)
        })
        const store = postgresStore({ pool: counted })
        await claimed(store, 'warm up')
        const take = async (count: () => Promise<unknown>): Promise<number> => {
          statements.length = 0
          await count()
          return statements.length
        }
        // Many are shared by the two statements that may be under way: while the server works on one, the other is made or read.
        for (const [callers, expected] of [
          [32, 1],
          [200, 2],
        ] as const) {
          const some = ids(callers)
          let claims: Claim[] = []
          const claiming = await take(async () => (claims = await Promise.all(some.map((id) => claimed(store, id)))))
          const settling = await take(() => Promise.all(claims.map((claim) => store.settle(claim, outcome, retention))))
          expect([claiming, settling]).toEqual([expected, expected])
        }
        const some = ids(200)
        const all = await Promise.all(some.map((id) => claimed(store, id)))
        await Promise.all(all.map((claim) => store.settle(claim, outcome, retention)))
        const xid = `select pg_snapshot_xmax(pg_current_snapshot())::text as answer`
        const before = await ask(xid)
        const replay = (id: string): Promise<unknown> => store.claim(key('server', id), request())
        expect(await take(() => Promise.all(some.map(replay)))).toBe(2)
        await replay(some[0]!)
        expect(await ask(xid)).toBe(before)
      },
    )

    const kinds: Readonly<Record<string, (store: PostgresStore<pg.PoolClient>) => Promise<unknown>>> = {
      'once.transaction': async (store) => {
        const { granted } = await store.begin(key('server', newId()), request())
        await granted!.commit(outcome, retention)
      },
      'claims and settles': async (store) => {
        const claims = await Promise.all(ids(4).map((id) => claimed(store, id)))
        await Promise.all(claims.map((claim) => store.settle(claim, outcome, retention)))
      },
      'an open release': async (store) => store.release(await claimed(store, newId()), 'open'),
      'a release without a trace': async (store) => store.release(await claimed(store, newId()), 'forget'),
      'a heartbeat': async (store) => store.extend(await claimed(store, newId()), 60_000),
      'a sweep': (store) => store.sweep({ limit: 3 }),
      'an operation': async (store) => {
        const verdict = await store.enlist(key('server', newId()), { ...request(), input: outcome })
        const { claim } = verdict as Extract<typeof verdict, { is: 'granted' }>
        const record = { name: 'a', revision: 1, content: outcome }
        await store.advance(claim, { records: [record], becomes: { to: 'settled', outcome, retention } })
      },
    }

    test.each(Object.entries(kinds))(
      'plans made on an empty table are still look-ups in the index when it has grown, without ANALYZE (%s)',
      async (_name, work) => {
        const single = createPool(ground.url, { max: 1 })
        const store = postgresStore({ pool: single })
        // More than five times: that is when PostgreSQL settles for a plan.
        const workOften = async (): Promise<void> => {
          for (let round = 0; round < 8; round++) await work(store)
        }
        await ground.admin.query('vacuum public.onceonly')
        await workOften()
        await ground.admin.query(`insert into public.onceonly
          select n, n, 1e12, 1, 1, 1e14, 1, 1, 's', 'f', 0, gen_random_uuid(), 'f', 'grown', n::text from generate_series(1, 20000) n`)
        const scans = async (): Promise<unknown> => {
          await single.query('select pg_stat_force_next_flush()')
          await single.query('select pg_stat_clear_snapshot()')
          return (await single.query(`select seq_scan from pg_stat_user_tables where relname = 'onceonly'`)).rows[0]
        }
        const before = await scans()
        await workOften()
        expect(await scans()).toEqual(before)
        await single.end()
      },
    )

    // The server reports every plan that it makes to a client that asks for it. (The clock of the ground is a function with a plan.)
    test.each(['claims and settles', 'an operation'])(
      'a small batch is planned once, and not anew with every call (%s)',
      async (name) => {
        const single = createPool(await ground.server.createDatabase(), {
          max: 1,
          options: '-c log_planner_stats=on -c client_min_messages=log',
        })
        let plans = 0
        single.on('connect', (client) =>
          client.on('notice', (notice) => (plans += Number(notice.message === 'PLANNER STATISTICS'))),
        )
        const store = postgresStore({ pool: single })
        await store.migrate()
        // The two statements themselves are planned anew, as they are text.
        for (let round = 0; round < 2; round++) {
          plans = 0
          await kinds[name]!(store)
        }
        expect(plans).toBe(2)
        await single.end()
      },
    )

    test('outcomes that do not fit into one message together come back byte for byte', async () => {
      const store = postgresStore({ pool })
      const claims = await Promise.all(ids(20).map((id) => claimed(store, id)))
      const large = claims.map((_, index) => new Uint8Array(1024 * 1024).fill(index))
      await Promise.all(claims.map((claim, index) => store.settle(claim, large[index]!, retention)))
      const replays = await Promise.all(claims.map((claim) => store.claim(claim.key, request())))
      replays.forEach((replay, index) => {
        if (replay.is !== 'settled') throw new Error(`expected settled, got ${replay.is}`)
        expect(Buffer.compare(replay.outcome, large[index]!)).toBe(0)
      })
    })

    // All in one message could be more than a string can hold, and more than the server can send.
    test.each(
      ways.flatMap((way) => [
        { way, by: 'claim' as const },
        { way, by: 'enlist' as const },
      ]),
    )(
      'of large outcomes that are asked for at once each comes alone, byte for byte ($way, $by)',
      async ({ way, by }) => {
        let longest = 0
        const measured = through(way, async (statement) => {
          const result = (await pool.query(statement as string)) as pg.QueryResult | pg.QueryResult[]
          longest = Math.max(longest, JSON.stringify([result].flat().map(({ rows }) => rows as unknown[])).length)
          return result
        })
        const store = postgresStore({ pool: measured })
        const claims = await Promise.all(ids(9).map((id) => claimed(store, id)))
        const outcomes = claims.map((_, n) => new Uint8Array(n % 3 === 0 ? 100 : 256 * 1024).fill(n))
        await Promise.all(claims.map((claim, n) => store.settle(claim, outcomes[n]!, retention)))
        // The first of them twice: a batch may have a key more than once.
        const asked = [1, ...claims.keys()]
        const replays = await Promise.all(asked.map((n) => store[by](claims[n]!.key, { ...request(), input: outcome })))
        replays.forEach((replay, at) => expect(replay).toMatchObject({ is: 'settled', outcome: outcomes[asked[at]!] }))
        expect(longest).toBeLessThan(2 * 256 * 1024)
      },
    )
  })

  describe('calls of one claim at once', () => {
    test.each(['open', 'forget'] as const)(
      'a release beside a heartbeat of the same claim is carried out (%s)',
      async (how) => {
        const store = postgresStore({ pool })
        for (const order of ['release first', 'extend first']) {
          const claim = await claimed(store, `${how} ${order}`)
          const release = (): Promise<unknown> => store.release(claim, how)
          const extend = (): Promise<unknown> => store.extend(claim, 30_000)
          const calls = order === 'release first' ? [release, extend] : [extend, release]
          expect(await Promise.all(calls.map((call) => call()))).toContain('done')
          expect(await store.show(claim.key)).toEqual(
            how === 'open' ? expect.objectContaining({ state: 'open' }) : undefined,
          )
          expect(await store.claim(claim.key, request())).toMatchObject({ is: 'granted' })
        }
      },
    )

    test('an operation that is given back beside a record of its last step is open, and due', async () => {
      const store = postgresStore({ pool })
      const verdict = await store.enlist(key('server', 'both'), { ...request(), input: outcome })
      if (verdict.is !== 'granted') throw new Error(verdict.is)
      const record = { name: 'a', revision: 1, content: outcome }
      const answers = await Promise.all([
        store.advance(verdict.claim, { records: [], becomes: { to: 'open', afterMs: 0 } }),
        store.advance(verdict.claim, { records: [record], becomes: { to: 'running', leaseMs: 30_000 } }),
      ])
      expect(answers).toEqual(['done', 'done'])
      expect(await store.show(verdict.claim.key)).toMatchObject({ state: 'open' })
      expect((await store.due('server', { limit: 1, holdMs: 1_000 })).map((found) => found.key.id)).toEqual(['both'])
    })
  })

  describe('the straight way', () => {
    test('a batch may have a key twice, in one scope or two, and one claim of each key is granted', async () => {
      const store = postgresStore({ pool })
      const scopes = ['one', 'one', 'two', 'one', 'two', 'three']
      const verdicts = await Promise.all(scopes.map((scope) => store.claim(key(scope, 'same'), request())))
      expect(verdicts.map(({ is }) => is)).toEqual(['granted', 'busy', 'granted', 'busy', 'busy', 'granted'])
    })

    // Heartbeats, keys and operations of one moment are three statements, each of which commits by itself.
    test.each([
      { broken: 'writes', fails: 'heartbeats' },
      { broken: 'together', fails: 'keys' },
      { broken: 'operate', fails: 'operations' },
    ] as const)('of a batch whose $fails the server refuses, the others are answered', async ({ broken, fails }) => {
      const single = createPool(ground.url, { max: 1 })
      const table = `broken_${broken}`
      const store = postgresStore({ pool: single, table })
      await store.migrate()
      const held = await Promise.all(ids(2).map((id) => claimed(store, id)))
      await single.query(`alter function ${functionName({ table, schema: undefined }, broken)} rename to ${table}`)
      const asked = {
        heartbeats: held.map((claim) => store.extend(claim, 60_000)),
        keys: ids(2).map((id) => store.claim(key('server', id), request())),
        operations: ids(2).map((id) => store.enlist(key('server', id), { ...request(), input: outcome })),
      }
      const ended = await Promise.all(Object.values(asked).map((calls) => Promise.allSettled<unknown>(calls)))
      const statuses = ended.map((calls) => calls.map(({ status }) => status))
      const expected = Object.keys(asked).map((kind) => (kind === fails ? 'rejected' : 'fulfilled'))
      expect(statuses).toEqual(expected.map((status) => [status, status]))
      await single.end()
    })

    test('terms of one batch are kept apart: each entry has its own lease, retention, version and input', async () => {
      const store = postgresStore({ pool })
      const terms = Array.from({ length: 8 }, (_, n) => ({
        leaseMs: 1_000 * (1 + (n % 2)),
        version: 1 + (Math.floor(n / 2) % 2),
        retention: { keepMs: 2 ** 33 + Math.floor(n / 4), tombstoneMs: 5 },
        ...(n % 3 === 0 && { input: new Uint8Array(n).fill(n) }),
      }))
      const claims = await Promise.all(
        terms.map((term, n) => store.claim(key(`scope ${n % 7 === 6}`, `${n} é 💡`), request(term))),
      )
      const shown = await Promise.all(terms.map((_, n) => store.show(key(`scope ${n % 7 === 6}`, `${n} é 💡`))))
      shown.forEach((entry, n) => {
        const { leaseMs, retention: kept, version } = terms[n]!
        const { fence } = (claims[n] as Extract<Verdict, { is: 'granted' }>).claim
        const leaseUntilMs = Math.floor(fence / 1000) + leaseMs
        expect(entry).toMatchObject({ fence, version, expiresAtMs: leaseUntilMs + kept.keepMs })
        expect(entry).toMatchObject({ forgottenAtMs: leaseUntilMs + kept.keepMs + kept.tombstoneMs })
        expect(entry!.input).toEqual(terms[n]!.input)
      })
    })

    test('settles of one batch write each its own outcome, of one that is lost nothing, and the others are done', async () => {
      const store = postgresStore({ pool })
      const claims = await Promise.all(ids(5).map((id) => claimed(store, id)))
      const lost = { ...claims[2]!, fence: claims[2]!.fence + 1 }
      const outcomes = claims.map((_, n) => new Uint8Array(n).fill(255 - n))
      const settled = claims.map((claim, n) =>
        store.settle(n === 2 ? lost : claim, outcomes[n]!, { keepMs: 1_000_000 + n, tombstoneMs: n }),
      )
      const beside = store.claim(claims[4]!.key, request())
      expect(await Promise.all(settled)).toEqual(['done', 'done', 'lost', 'done', 'done'])
      expect(await beside).toMatchObject({ is: 'settled', outcome: outcomes[4] })
      const shown = await Promise.all(claims.map((claim) => store.show(claim.key)))
      expect(shown.map((entry) => entry!.state)).toEqual(['settled', 'settled', 'running', 'settled', 'settled'])
      for (const n of [0, 1, 3, 4]) {
        expect(shown[n]!.outcome).toEqual(outcomes[n])
        expect(shown[n]!.forgottenAtMs - shown[n]!.leaseUntilMs).toBe(1_000_000 + 2 * n)
      }
    })

    test('a settle that was written is told done beside one that is lost, however short it is kept', async () => {
      // Every look at the clock is 5 ms later than the one before.
      await using ticking = await startPostgresGround()
      await ticking.admin.query(`create sequence fake.reads;
        create or replace function fake.clock_timestamp() returns timestamptz language sql volatile as
          $$ select at + nextval('fake.reads') * interval '5 milliseconds' from fake.clock $$`)
      const own = createPool(ticking.url)
      const store = postgresStore({ pool: own })
      const claims = await Promise.all(ids(3).map((id) => claimed(store, id)))
      const lost = { ...claims[1]!, fence: claims[1]!.fence + 1 }
      const settled = [claims[0]!, lost, claims[2]!].map((claim) =>
        store.settle(claim, outcome, { keepMs: 1, tombstoneMs: 60_000 }),
      )
      expect(await Promise.all(settled)).toEqual(['done', 'lost', 'done'])
      await own.end()
    })

    test('claims of one batch keep each its own times, also those that differ in one of them alone', async () => {
      const store = postgresStore({ pool })
      const terms = [
        { leaseMs: 30_000, keepMs: 1_000_000, tombstoneMs: 5_000 },
        { leaseMs: 30_000, keepMs: 1_000_000, tombstoneMs: 7_000 },
        { leaseMs: 30_000, keepMs: 2_000_000, tombstoneMs: 5_000 },
        { leaseMs: 40_000, keepMs: 1_000_000, tombstoneMs: 5_000 },
      ]
      const keys = ids(terms.length).map((id) => key('terms', id))
      await Promise.all(
        terms.map(({ leaseMs, ...retention }, n) => store.claim(keys[n]!, request({ leaseMs, retention }))),
      )
      const shown = await Promise.all(keys.map((each) => store.show(each)))
      const times = shown.map((entry) => ({
        leaseMs: entry!.leaseUntilMs - entry!.firstClaimedAtMs,
        keepMs: entry!.expiresAtMs - entry!.leaseUntilMs,
        tombstoneMs: entry!.forgottenAtMs - entry!.expiresAtMs,
      }))
      expect(times).toEqual(terms)
    })

    test('a key that others commit between the look of a batch and its lock is not granted again', async () => {
      await using gated = await startGated()
      const [first, second] = [key('gate', 'first'), key('gate', 'second')]
      const asked = Promise.all([gated.slow.claim(first, request()), gated.slow.claim(second, request())])
      await gated.arrived()
      const other = await gated.fast.claim(second, request())
      await gated.open()
      expect([other, ...(await asked)].map(({ is }) => is)).toEqual(['granted', 'granted', 'busy'])
    })

    test('a settle that comes between the look of a release by hand and its lock is not undone', async () => {
      await using gated = await startGated()
      const claim = await claimed(gated.fast, 'settled meanwhile')
      const mended = gated.slow.mend(claim.key, 'release', 'to see')
      await gated.arrived()
      const settled = eventually(() => gated.fast.settle(claim, outcome, retention))
      // If the release has the row by now, the settle waits for it.
      await Promise.race([settled, new Promise((resolve) => setTimeout(resolve, 500))])
      await gated.open()
      const told = [(await mended)?.state, await settled, (await gated.fast.claim(claim.key, request())).is]
      expect([
        ['running', 'lost', 'granted'],
        ['settled', 'done', 'settled'],
      ]).toContainEqual(told)
    })

    test('a record that comes again is not left to the life after the one that was forgotten meanwhile', async () => {
      await using gated = await startGated(secondRead)
      const operation = { ...request(), input: outcome }
      const at = key('server', 'forgotten meanwhile')
      const given = await gated.fast.enlist(at, operation)
      if (given.is !== 'granted') throw new Error(`expected to be granted, got ${given.is}`)
      const change: Change = { records: [{ name: 'charge', revision: 1, content: outcome }], becomes: { to: 'open' } }
      expect(await gated.fast.advance(given.claim, change)).toBe('done')
      const again = gated.slow.advance(given.claim, change)
      await gated.arrived()
      const forgotten = eventually(() => gated.fast.mend(at, 'forget', 'to see'))
      // If the record has its entry by now, the other waits for it.
      await Promise.race([forgotten, new Promise((resolve) => setTimeout(resolve, 500))])
      await gated.open()
      expect([await again, (await forgotten)?.state]).toEqual(['done', 'open'])
      expect(await gated.fast.enlist(at, { ...operation, token: crypto.randomUUID() })).toMatchObject({ is: 'granted' })
      expect((await gated.fast.ledger(at))?.records).toEqual([])
    })

    describe('of operations', () => {
      /** So many operations, enlisted by one statement. */
      async function enlistedAll(store: PostgresStore, names: readonly string[]): Promise<readonly Claim[]> {
        const verdicts = await Promise.all(
          names.map((id) => store.enlist(key('operations', id), { ...request(), input: outcome })),
        )
        return verdicts.map((verdict) => {
          if (verdict.is !== 'granted') throw new Error(`expected to be granted, got ${verdict.is}`)
          return verdict.claim
        })
      }
      const bytes = (text: string): Uint8Array => new TextEncoder().encode(text)
      const contents = async (store: PostgresStore, claim: Claim): Promise<string[]> =>
        ((await store.ledger(claim.key))?.records ?? []).map(
          ({ name, revision, content }) => `${name} ${revision} ${Buffer.from(content).toString()}`,
        )

      test('advances of one batch write each its own records and end, of one that is lost nothing, beside claims', async () => {
        const store = postgresStore({ pool })
        const claims = await enlistedAll(store, ids(5))
        const becomes: Change['becomes'][] = [
          { to: 'running', leaseMs: 70_000 },
          { to: 'settled', outcome: bytes('value'), retention: { keepMs: 900_000, tombstoneMs: 7 } },
          { to: 'settled', outcome: bytes('never'), retention },
          { to: 'open', afterMs: 50_000 },
          { to: 'open' },
        ]
        const answers = claims.map((claim, n) =>
          store.advance(n === 2 ? { ...claim, fence: claim.fence + 1 } : claim, {
            records: [
              { name: 'a', revision: 1, content: bytes(`${n} é`) },
              { name: 'b', revision: 2 + n, content: new Uint8Array(n) },
            ],
            becomes: becomes[n]!,
          }),
        )
        const beside = [store.claim(key('beside', newId()), request()), store.enlist(claims[1]!.key, request())]
        expect(await Promise.all(answers)).toEqual(['done', 'done', 'lost', 'done', 'done'])
        expect(await Promise.all(beside)).toMatchObject([{ is: 'granted' }, { is: 'settled', outcome: bytes('value') }])
        const shown = await Promise.all(claims.map((claim) => store.show(claim.key)))
        expect(shown.map((entry) => entry!.state)).toEqual(['running', 'settled', 'running', 'open', 'open'])
        expect(shown[1]!.forgottenAtMs - shown[1]!.leaseUntilMs).toBe(900_007)
        for (const n of [0, 1, 3, 4]) {
          expect(await contents(store, claims[n]!)).toEqual([`a 1 ${n} é`, `b ${2 + n} ${'\0'.repeat(n)}`])
        }
        expect(await contents(store, claims[2]!)).toEqual([])
        const dues = await Promise.all(
          claims.map(async ({ key: at }) => (await store.ledger(at))?.dueAtMs !== undefined),
        )
        // One that is settled or parked is not due.
        expect(dues).toEqual([true, false, true, true, false])
      })

      test('of a record that comes twice in one batch the later revision stays, whichever comes first', async () => {
        const store = postgresStore({ pool })
        const [claim] = await enlistedAll(store, ids(1))
        const write = (revision: number): Promise<Advanced> =>
          store.advance(claim!, {
            records: [{ name: 'charge', revision, content: bytes(`${revision}`) }],
            becomes: { to: 'running', leaseMs: 60_000 },
          })
        expect(await Promise.all([write(2), write(3), write(1)])).toEqual(['done', 'done', 'done'])
        expect(await contents(store, claim!)).toEqual(['charge 3 3'])
        expect(await Promise.all([write(1), write(2)])).toEqual(['done', 'done'])
        expect(await contents(store, claim!)).toEqual(['charge 3 3'])
      })

      test('a wish for a cancel is told to those of a batch that it is for, and to no other', async () => {
        const store = postgresStore({ pool })
        const claims = await enlistedAll(store, ids(4))
        await store.requestCancel(claims[1]!.key, 'the customer left')
        const change: Change = { records: [], becomes: { to: 'running', leaseMs: 60_000 } }
        const lost = { ...claims[3]!, fence: claims[3]!.fence + 1 }
        const advance = (all: readonly Claim[]): Promise<Advanced[]> =>
          Promise.all(all.map((claim) => store.advance(claim, change)))
        expect(await advance(claims)).toEqual(['done', 'cancelled', 'done', 'done'])
        expect(await advance([...claims.slice(0, 3), lost])).toEqual(['done', 'cancelled', 'done', 'lost'])
      })

      test('a life that begins after the entry of the last one is gone has none of its records, in a batch too', async () => {
        const store = postgresStore({ pool })
        const names = ids(3)
        const claims = await enlistedAll(store, names)
        await Promise.all(
          claims.map((claim) =>
            store.advance(claim, {
              records: [{ name: 'charge', revision: 1, content: bytes('of the first life') }],
              becomes: { to: 'running', leaseMs: 60_000 },
            }),
          ),
        )
        // As after a sweep of entries that has not come to the operations yet.
        await pool.query(`delete from onceonly where scope = 'operations' and id = any($1)`, [names.slice(0, 2)])
        await ground.advance(1)
        const again = await enlistedAll(store, [...names.slice(0, 2), newId()])
        for (const claim of again) expect(await contents(store, claim)).toEqual([])
        expect((await store.ledger(again[0]!.key))?.dueAtMs).toBeGreaterThan(0)
        expect(await contents(store, claims[2]!)).toEqual(['charge 1 of the first life'])
      })

      test('enlistings and advances of one moment are one statement each, or two where they are many', async () => {
        const sent: unknown[] = []
        const counted = through('values', (statement) => {
          sent.push(statement)
          return pool.query(statement as string)
        })
        const store = postgresStore({ pool: counted })
        await enlistedAll(store, ids(1))
        const statements = async (work: () => Promise<unknown>): Promise<number> => {
          sent.length = 0
          await work()
          return sent.length
        }
        let claims: readonly Claim[] = []
        expect(await statements(async () => (claims = await enlistedAll(store, ids(30))))).toBe(1)
        const settled: Change = {
          records: [{ name: 'charge', revision: 1, content: outcome }],
          becomes: { to: 'settled', outcome, retention },
        }
        const settle = (): Promise<unknown> => Promise.all(claims.map((claim) => store.advance(claim, settled)))
        expect(await statements(settle)).toBe(1)
        expect(await statements(async () => (claims = await enlistedAll(store, ids(200))))).toBe(2)
        expect(await statements(settle)).toBe(2)
      })
    })

    test('a session that lost its prepared statements is asked without names from there on', async () => {
      const single = createPool(ground.url, { max: 1 })
      const names: (string | undefined)[] = []
      const store = postgresStore({
        pool: new Proxy(single, {
          get: (target, name) =>
            (name !== 'query'
              ? Reflect.get(target, name)
              : (statement: { name?: string }) => {
                  if (typeof statement === 'object' && 'values' in statement) names.push(statement.name)
                  return single.query(statement as never)
                }) as unknown,
        }),
      })
      const first = await claimed(store, newId())
      await single.query('deallocate all')
      const second = await claimed(store, newId())
      expect(await Promise.all([first, second].map((claim) => store.settle(claim, outcome, retention)))).toEqual([
        'done',
        'done',
      ])
      expect(names.map((name) => name !== undefined)).toEqual([true, true, false, false])
      await single.end()
    })
  })

  describe('transactions of prepared statements', () => {
    // In whichever session a pooler gives: one that knows nothing, or one that another client has used.
    test('a session that lost a prepared statement says so before the effect, which runs once', async () => {
      const single = createPool(ground.url, { max: 1 })
      const once = createOnce({ store: postgresStore({ pool: single }), scope: 'server' })
      let effects = 0
      const run = (id: string): Promise<unknown> => once.transaction(id, () => ++effects)
      await run('before')
      const { rows } = await single.query<{ name: string }>(
        `select name from pg_prepared_statements where name like 'onceonly%'`,
      )
      // The claim and the record are the same statement: a session cannot know the one without the other.
      expect(rows).toHaveLength(1)
      await single.query(`deallocate ${rows[0]!.name}`)
      expect(await run('after')).toMatchObject({ value: 2, replayed: false })
      expect(await run('again')).toMatchObject({ value: 3, replayed: false })
      await once.close()
      await single.end()
    })

    test('what is recorded is an entry like that of a claim and its settle', async () => {
      const single = createPool(ground.url, { max: 1 })
      const store = postgresStore({ pool: single })
      const asked = {
        ...request(),
        input: new TextEncoder().encode('input'),
        version: 3,
        retention: { keepMs: 5_000, tombstoneMs: 7_000 },
      }
      const { granted } = await store.begin(key('server', 'in one'), asked)
      expect(await granted!.commit(outcome, { keepMs: 6_000, tombstoneMs: 8_000 })).toBe('done')
      const apart = (await store.claim(key('server', 'apart'), asked)) as Extract<Verdict, { is: 'granted' }>
      expect(await store.settle(apart.claim, outcome, { keepMs: 6_000, tombstoneMs: 8_000 })).toBe('done')
      // The fence is the time of the claim. A claim leaves when to sweep as it was: earlier is safe.
      const { rows } = await ground.admin
        .query(`select keep_ms, tombstone_ms, attempt, version, state, how, slot, fingerprint,
        input, outcome, first_claimed_at_ms, abs(lease_until_ms - fence / 1000) < 5000 as is_now,
        sweep_at_ms <= lease_until_ms + keep_ms as is_swept_in_time from public.onceonly where id in ('in one', 'apart')`)
      expect(rows).toHaveLength(2)
      expect(rows[0]).toEqual(rows[1])
      expect(rows[0]).toMatchObject({
        is_now: true,
        is_swept_in_time: true,
        keep_ms: '6000',
        input: Buffer.from('input'),
      })
      await single.end()
    })

    test('a key that got an entry behind the lock is not recorded twice, and what the effect wrote is rolled back', async () => {
      const single = createPool(ground.url, { max: 1 })
      const store = postgresStore({ pool: single })
      const overtaken = async (id: string): Promise<unknown> => {
        const { granted } = await store.begin(key('server', id), request())
        await granted!.tx.query('insert into effects values ($1)', [id])
        await ground.admin.query(
          `insert into public.onceonly (fence, lease_until_ms, keep_ms, tombstone_ms, sweep_at_ms, attempt, version, state, how, token,
            fingerprint, scope, id) values (1, 1, 1, 1, 1, 1, 1, 's', 'f', gen_random_uuid(), '', 'server', $1)`,
          [id],
        )
        return granted!.commit(outcome, retention)
      }
      expect(await overtaken('behind')).toBe('lost')
      await single.query(`set default_transaction_isolation = 'repeatable read'`)
      await expect(overtaken('unseen')).rejects.toMatchObject({ code: 'TRANSACTION_CONFLICT', executed: 'no' })
      expect((await ground.admin.query('select name from public.effects')).rows).toEqual([])
      await single.end()
    })

    test('an effect that is undone and one that is refused leave a connection that goes on', async () => {
      const single = createPool(ground.url, { max: 1 })
      const store = postgresStore({ pool: single })
      const first = (await store.begin(key('server', 'undone'), request())).granted!
      await first.tx.query(`insert into effects values ('undone')`)
      await first.undoEffect()
      await first.tx.query(`insert into effects values ('kept')`)
      expect(await first.commit(outcome, retention)).toBe('done')
      const second = (await store.begin(key('server', 'refused'), request())).granted!
      await second.tx.query('select 1 / 0').catch(() => undefined)
      await expect(second.commit(outcome, retention)).rejects.toMatchObject({ code: 'COMMIT_REFUSED' })
      const third = (await store.begin(key('server', 'next'), request())).granted!
      expect(await third.commit(outcome, retention)).toBe('done')
      expect((await ground.admin.query('select name from public.effects')).rows).toEqual([{ name: 'kept' }])
      await single.end()
    })

    test('an effect that is undone while another caller gets its key is lost, and its connection goes on', async () => {
      const single = createPool(ground.url, { max: 1 })
      const store = postgresStore({ pool: single })
      const { granted } = await store.begin(key('server', 'undone'), request())
      await granted!.tx.query(`insert into effects values ('undone')`)
      const other = await ground.admin.connect()
      const number = lockNumber({ table: 'onceonly', schema: undefined }, `'server'`, `'undone'`)
      const taken = other.query(`select pg_advisory_lock(${number})`)
      const waiting = `select count(*)::integer as answer from pg_locks where locktype = 'advisory' and not granted`
      while ((await ask<number>(waiting)) === 0);
      await granted!.undoEffect()
      await taken
      const told = await granted!.commit(outcome, retention).catch((error: unknown) => error)
      await other.query('select pg_advisory_unlock_all()')
      other.release()
      expect(told).toBe('lost')
      const next = (await store.begin(key('server', 'next'), request())).granted!
      expect(await next.commit(outcome, retention)).toBe('done')
      expect((await ground.admin.query('select name from public.effects')).rows).toEqual([])
      await single.end()
    })

    test('an effect that drops the prepared statements is rolled back, and the next try of it commits', async () => {
      const own = createPool(ground.url, { max: 2 })
      const once = createOnce({ store: postgresStore({ pool: own }), scope: 'server' })
      const run = (id: string): Promise<unknown> =>
        once.transaction(id, async (tx) => {
          await tx.query(`insert into effects values ('dropped')`)
          await tx.query('deallocate all')
          return 'done'
        })
      const notDone = { code: 'STORE_UNAVAILABLE', executed: 'no', retryable: true }
      await expect(run('dropped')).rejects.toMatchObject(notDone)
      expect((await ground.admin.query('select name from public.effects')).rows).toEqual([])
      // The next one gets a connection on which nothing was dropped yet.
      const first = await own.connect()
      expect(await run('dropped')).toMatchObject({ value: 'done', replayed: false })
      expect(await run('another')).toMatchObject({ value: 'done', replayed: false })
      first.release()
      await once.close()
      await own.end()
    })

    test('a client that pipelines its queries is sent text', async () => {
      const pipelined = createPool(ground.url, { pipeline: true } as pg.PoolConfig)
      const once = createOnce({ store: postgresStore({ pool: pipelined }), scope: 'server' })
      const piped = (): Promise<unknown> => once.transaction('piped', (tx) => tx.query('select 1').then(() => 'done'))
      expect(await piped()).toMatchObject({ value: 'done', replayed: false })
      expect(await piped()).toMatchObject({ value: 'done', replayed: true })
      await once.close()
      await pipelined.end()
    })
  })

  describe('others', () => {
    test('a key that an open transaction has claimed is busy for one claim and for many: none waits for it', async () => {
      const store = postgresStore({ pool })
      await inTransaction(ground.admin, async (tx) => {
        const held = ids(20).map((id) => key('shop', id))
        for (const each of held) expect(await store.within(tx).claim(each, request())).toMatchObject({ is: 'granted' })
        // One that waits is answered in the end, too, when the time of its statement is over: by an error.
        expect(await store.claim(held[0]!, request())).toMatchObject({ is: 'busy' })
        const verdicts = await Promise.all(held.map((each) => store.claim(each, request())))
        expect(new Set(verdicts.map(({ is }) => is))).toEqual(new Set(['busy']))
      })
    })

    test('a row that somebody has locked holds up neither the writes nor the claims of its batch', async () => {
      const store = postgresStore({ pool })
      const [mine, ...others] = await Promise.all(ids(20).map((id) => claimed(store, id)))
      let late: Promise<unknown> = Promise.resolve()
      await inTransaction(ground.admin, async (tx) => {
        await tx.query('select from public.onceonly where id = $1 for update', [mine!.key.id])
        late = store.settle(mine!, outcome, retention)
        const answers = others.map((claim) => store.settle(claim, outcome, retention))
        expect(new Set(await Promise.all(answers))).toEqual(new Set(['done']))
        expect(await store.claim(mine!.key, request())).toMatchObject({ is: 'busy' })
      })
      expect(await late).toBe('done')
    })

    test.each(ways)(
      'nothing depends on the session: every statement may go over another connection (%s)',
      async (way) => {
        const scattered = through(way, async (statement) => {
          const client = await pool.connect()
          try {
            const result = await client.query(statement as string)
            await client.query('discard all')
            return result
          } finally {
            client.release(true)
          }
        })
        const store = postgresStore({ pool: scattered })
        const claims = await Promise.all(ids(50).map((id) => claimed(store, id)))
        expect(await store.extend(claims[0]!, 1_000)).toBe('done')
        for (const claim of claims) expect(await store.settle(claim, outcome, retention)).toBe('done')
        expect(await store.claim(claims[0]!.key, request())).toMatchObject({ is: 'settled' })
        expect(await ask(`select count(*)::integer as answer from pg_locks where locktype = 'advisory'`)).toBe(0)
      },
    )

    test('an effect that went on after a failed statement cannot commit, and says why', async () => {
      const store = postgresStore({ pool })
      const { granted } = await store.begin(key('server', 'failed'), request())
      await granted!.tx.query('select 1 / 0').catch(() => undefined)
      const commit = granted!.commit(outcome, retention)
      await expect(commit).rejects.toMatchObject({ code: 'COMMIT_REFUSED', executed: 'no', retryable: false })
      await claimed(store, 'failed')
    })

    test('a constraint that fails at COMMIT is an error that says so, and nothing is kept', async () => {
      const store = postgresStore({ pool })
      await ground.admin.query(`create table public.deferred (n integer unique deferrable initially deferred)`)
      const { granted } = await store.begin(key('server', 'deferred'), request())
      await granted!.tx.query('insert into deferred values (1), (1)')
      const commit = granted!.commit(outcome, retention)
      await expect(commit).rejects.toMatchObject({ code: 'COMMIT_REFUSED', executed: 'no', cause: { code: '23505' } })
      await claimed(store, 'deferred')
    })

    test.each(['commit', 'rollback', 'commit; begin'])(
      'an effect that ends its transaction itself is told that its outcome is unknown, fresh or taken over (%s)',
      async (end) => {
        const once = createOnce({ store: postgresStore({ pool }), scope: 'server' })
        const effect = async (tx: pg.PoolClient): Promise<void> => {
          await tx.query(`insert into effects values ('ended by hand')`)
          await tx.query(end)
        }
        const unknown = { code: 'OUTCOME_UNKNOWN', executed: 'unknown', retryable: false }
        await expect(once.transaction(`fresh ${end}`, effect)).rejects.toMatchObject(unknown)
        expect(await once.get(`fresh ${end}`)).toBeUndefined()
        await expect(once.run(`again ${end}`, () => Promise.reject(new Error('open')))).rejects.toThrow('open')
        await expect(once.transaction(`again ${end}`, effect)).rejects.toMatchObject(unknown)
        expect(await once.get(`again ${end}`)).not.toMatchObject({ state: 'settled' })
        await once.close()
      },
    )

    test('a step that ends its transaction itself is not recorded as done', async () => {
      const store = postgresStore({ pool })
      const verdict = await store.enlist(key('server', 'step'), { ...request(), input: outcome })
      if (verdict.is !== 'granted') throw new Error(verdict.is)
      const step = (await store.beginStep(verdict.claim))!
      await step.tx.query('commit')
      const change = {
        records: [{ name: 'a', revision: 1, content: outcome }],
        becomes: { to: 'running', leaseMs: 1_000 },
      }
      await expect(step.commit(change as Change)).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
      expect((await store.ledger(verdict.claim.key))!.records).toEqual([])
    })

    test('a key is in flight inside of its own transaction', async () => {
      const once = createOnce({ store: postgresStore({ pool }), scope: 'server' })
      let inner = 0
      const nested = once.transaction('nested', (tx) => once.within(tx).run('nested', () => ++inner))
      await expect(nested).rejects.toMatchObject({ code: 'IN_FLIGHT' })
      expect(inner).toBe(0)
      const others = await once.transaction('outer', (tx) => once.within(tx).run('inner', () => 'inner'))
      expect(others.value).toMatchObject({ value: 'inner' })
      await once.close()
      // Another `createOnce` of the process knows nothing of it, and the store must.
      const store = postgresStore({ pool })
      const { granted } = await store.begin(key('server', 'own'), request())
      const again = await store.within(granted!.tx).claim(key('server', 'own'), request())
      await granted!.rollback()
      expect(again).toMatchObject({ is: 'busy' })
    })

    test('a server that ends the session at COMMIT leaves the outcome unknown', async () => {
      const store = postgresStore({ pool })
      // A deferred trigger runs inside of COMMIT, and the server that shuts down there sends 57P01.
      await ground.admin.query(`create table public.ending (n integer);
        create function public.ends() returns trigger language plpgsql as $$ begin
          raise exception using errcode = '57P01'; end $$;
        create constraint trigger ends after insert on public.ending deferrable initially deferred
          for each row execute function public.ends()`)
      const { granted } = await store.begin(key('server', '57P01'), request())
      await granted!.tx.query('insert into ending values (1)')
      await expect(granted!.commit(outcome, retention)).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    })

    test('a connection that dies under an idle effect ends that transaction, not the process', async () => {
      const store = postgresStore({ pool })
      const { granted } = await store.begin(key('server', 'killed'), request())
      const { rows } = await granted!.tx.query<{ pid: number }>('select pg_backend_pid() as pid')
      const ended = new Promise((resolve) => granted!.tx.once('end', resolve))
      await ground.admin.query('select pg_terminate_backend($1)', [rows[0]!.pid])
      await ended
      await expect(granted!.commit(outcome, retention)).rejects.toMatchObject({ executed: 'unknown', retryable: true })
      await claimed(store, 'killed')
    })
  })
})

needs('postgres', { ours: true }).describe('settings that lose acknowledged commits', () => {
  const unsafe = { code: 'STORE_UNSAFE', executed: 'no' }

  test.each(['fsync', 'full_page_writes'])(
    '%s = off is refused, or a warning when that is asked for',
    async (setting) => {
      await using server = await startPostgres({ settings: { [setting]: 'off' } })
      const pool = createPool(server.url)
      await postgresStore({ pool }).migrate()
      await expect(claimed(postgresStore({ pool }), 'one')).rejects.toMatchObject(unsafe)
      await expect(claimed(postgresStore({ pool }), 'one')).rejects.toThrow(`${setting} is off`)
      await expect(postgresStore({ pool }).begin(key('server', 'one'), request())).rejects.toMatchObject(unsafe)
      const warning = new Promise<Error & { code?: string }>((resolve) => process.once('warning', resolve))
      await claimed(postgresStore({ pool, durability: 'relaxed' }), 'one')
      expect((await warning).message).toContain(`${setting} is off`)
      await pool.end()
    },
  )

  test('synchronous_commit = off, an unlogged table and another encoding are refused', async () => {
    await using server = await startPostgres()
    const pool = createPool(server.url)
    const relaxed = createPool(server.url, { options: '-c synchronous_commit=off' })
    await postgresStore({ pool }).migrate()
    await expect(claimed(postgresStore({ pool: relaxed }), 'one')).rejects.toThrow('synchronous_commit is off')
    const within = inTransaction(relaxed, (tx) => claimed(postgresStore({ pool: relaxed }).within(tx), 'one'))
    await expect(within).rejects.toMatchObject(unsafe)
    await pool.query('alter table onceonly set unlogged')
    await expect(claimed(postgresStore({ pool }), 'one')).rejects.toThrow('is unlogged')
    await pool.query(`create database latin encoding 'LATIN1' template template0 locale 'C'`)
    const latin = createPool(server.url.replace(/postgres$/, 'latin'))
    await postgresStore({ pool: latin }).migrate()
    await expect(claimed(postgresStore({ pool: latin }), 'one')).rejects.toThrow('encoded in LATIN1')
    await Promise.all([pool.end(), relaxed.end(), latin.end()])
  })
})

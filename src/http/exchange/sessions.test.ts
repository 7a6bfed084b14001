// Sessions over HTTP on Node in memory, and what depends on other options. test/http/sessions.test.ts has every adapter.

import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { apps } from '../../../test/conformance/apps/index.ts'
import { valueOf } from '../../../test/conformance/client.ts'
import { memory, sqlite } from '../../../test/conformance/stores.ts'
import {
  expectProblem,
  numbers,
  openSessionWorld,
  register,
  sessionCases,
  sessionsPath,
  type SessionWorld,
  type SessionWorldOptions,
} from '../../../test/http/session-cases.ts'
import { OnceError } from '../../core/errors.ts'
import { createOnce } from '../../core/once.ts'
import { createSessions } from '../../sessions/sessions.ts'
import { memoryStore } from '../../stores/memory.ts'
import { sqliteStore } from '../../stores/sqlite.ts'
import { idempotency } from '../fetch.ts'

describe('the cases of sessions', () => {
  let world: SessionWorld
  beforeAll(async () => {
    world = await openSessionWorld({ start: apps.node, storeKind: memory })
  })
  afterAll(() => world.close())
  for (const [name, run] of Object.entries(sessionCases)) test(name, () => run(world))
})

describe('with other options', () => {
  const open: SessionWorld[] = []
  afterEach(async () => {
    for (const world of open.splice(0)) await world.close()
  })
  const start = async (options: Partial<SessionWorldOptions>): Promise<SessionWorld> => {
    const world = await openSessionWorld({ start: apps.node, storeKind: memory, ...options })
    open.push(world)
    return world
  }

  test('without sessions a numbered request is refused by name, and a key protects as ever', async () => {
    const world = await start({ sessions: 'none' })
    const headers = numbers('till', 1, 1)
    const refused = await world.ask({ path: '/effects', headers })
    expectProblem(refused, 400, 'idempotency-sessions-not-offered')
    expect(refused.body.toString()).toContain('Send an idempotency key instead')
    const { 'Idempotency-Sequence': sequence } = headers
    const lonely = await world.ask({ path: '/effects', headers: { 'Idempotency-Sequence': sequence } })
    expectProblem(lonely, 400, 'idempotency-sessions-not-offered')
    const keyed = { ...headers, 'Idempotency-Key': 'k1' }
    const first = await world.ask({ path: '/effects', headers: keyed })
    const second = await world.ask({ path: '/effects', headers: keyed })
    expect([first.status, valueOf(second, 'idempotent-replayed')]).toEqual([201, 'true'])
    expect((await world.ask({ path: sessionsPath })).status).toBe(404)
  })

  test('where a key is required, a client may still register, and its number is as good as a key', async () => {
    const world = await start({ config: { required: true } })
    const till = await register(world, 'till')
    expect((await till.ask(1)).status).toBe(201)
    expectProblem(await world.ask({ path: '/effects' }), 400, 'idempotency-key-missing')
  })

  test('the profile of Stripe has an error member, and 400 for a number that was used', async () => {
    const world = await start({ config: { profile: 'stripe' } })
    const till = await register(world, 'till')
    await till.ask(1)
    const reused = await till.ask(1, { tag: 'another' })
    expectProblem(reused, 400, 'idempotency-sequence-reused')
    const { error } = JSON.parse(reused.body.toString()) as { error: { type: string } }
    expect([error.type, valueOf(reused, 'stripe-should-retry')]).toEqual(['idempotency_error', 'false'])
    const beyond = await till.ask(9)
    expectProblem(beyond, 409, 'idempotency-window-exceeded')
    expect(valueOf(beyond, 'stripe-should-retry')).toBe('true')
  })

  test('with hashed keys the store is given neither tenant nor session', async () => {
    const world = await start({ config: { hashKeys: true } })
    const till = await register(world, 'till-7')
    expect((await till.ask(1)).status).toBe(201)
    const [shown, ...others] = await world.sessions.list()
    expect([others, shown?.session.startsWith('#'), /acme|till-7/.test(JSON.stringify(shown))]).toEqual([
      [],
      true,
      false,
    ])
  })

  test('in a transaction effect and answer commit together, and a refusal without what it wrote', async () => {
    let path = ''
    const storeKind = {
      ...sqlite,
      async open(clock: Parameters<typeof sqlite.open>[0]) {
        const place = await sqlite.open(clock)
        path = (place.address as { path: string }).path
        const database = new DatabaseSync(path)
        database.exec('create table effects (name text not null)')
        database.close()
        return place
      },
    }
    const commitWith = async (tx: unknown, tag: string): Promise<void> => {
      const database = tx as { prepare(sql: string): { run(value: string): unknown } }
      database.prepare('insert into effects values (?)').run(tag)
    }
    const world = await start({ storeKind, transactions: 'offered', commitWith })
    const till = await register(world, 'till')
    for (const [at, status] of [201, 402, 500].entries()) {
      const more = { path: `/transaction/${status}`, tag: `tx-${status}` }
      const first = await till.ask(at + 1, more)
      const second = await till.ask(at + 1, more)
      expect([first.status, second.status]).toEqual([status, status])
      expect(valueOf(second, 'idempotent-replayed'), `${status}`).toBe(status === 500 ? undefined : 'true')
    }
    const database = new DatabaseSync(path)
    const rows = database.prepare('select name from effects').all()
    database.close()
    expect(rows.map(({ name }) => name)).toEqual(['tx-201'])
  })
})

test('a session that the store did not confirm is 503 with executed unknown, and may be asked for again', async () => {
  const store = memoryStore()
  const down = async (): Promise<never> => {
    throw new OnceError('STORE_UNAVAILABLE', { message: 'no answer within 5000 ms' })
  }
  const sessions = { ...createSessions({ store, scope: 'tills' }), register: down, keepAlive: down, close: down }
  const protect = idempotency(createOnce({ store, scope: 'shop' }), { tenant: 'shared', sessions })
  const handle = protect(() => new Response('not ours'))
  const headers = { 'Idempotency-Epoch': '1' }
  for (const [method, path] of [
    ['POST', ''],
    ['PUT', '/till'],
    ['DELETE', '/till'],
  ] as const) {
    const answer = await handle(new Request(`http://shop.example${sessionsPath}${path}`, { method, headers }))
    expect([answer.status, answer.headers.get('retry-after')]).toEqual([503, '1'])
    const problem = { code: 'idempotency-store-unavailable', executed: 'unknown', retryable: true }
    expect(await answer.json()).toMatchObject(problem)
  }
})

test('sessions that cannot keep what the other options promise are refused at the start', () => {
  const [store, database] = [
    memoryStore(),
    sqliteStore({ path: join(mkdtempSync(join(tmpdir(), 'onceonly-')), 'once.db') }),
  ]
  const inMemory = createSessions({ store, scope: 'tills' })
  const onSqlite = createSessions({ store: database, scope: 'tills' })
  // The store is closed below: a sweep of it would fail in the middle of another test.
  const quiet = { scope: 'shop', sweepEveryMs: false } as const
  const [once, transacting] = [createOnce({ store, ...quiet }), createOnce({ store: database, ...quiet })]
  const tenant = 'shared'
  expect(() => idempotency(once, { tenant, sessions: inMemory, onTakeover: 'refuse' })).toThrow(/onTakeover: 'refuse'/)
  expect(() => idempotency(transacting, { tenant, sessions: inMemory, transaction: true })).toThrow(
    /another memory store/,
  )
  const another = sqliteStore({ path: join(mkdtempSync(join(tmpdir(), 'onceonly-')), 'once.db') })
  const elsewhere = createSessions({ store: another, scope: 'tills' })
  expect(() => idempotency(transacting, { tenant, sessions: elsewhere, transaction: true })).toThrow(
    /another sqlite store/,
  )
  another.close()
  const claiming = { ...onSqlite, guarantee: 'claim-and-settle' } as const
  expect(() => idempotency(transacting, { tenant, sessions: claiming, transaction: true })).toThrow(
    /a sqlite store, which has no transactions for them/,
  )
  expect(() => idempotency(once, { tenant, sessions: {} as never })).toThrow(/expected sessions to be/)
  idempotency(transacting, { tenant, sessions: onSqlite, transaction: true, onTakeover: 'refuse' })
  database.close()
})

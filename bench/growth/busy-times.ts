// Fresh calls while the store is busy with something else: a sweep of a hundred thousand expired entries, a period that ends and another
// that begins, and a storm of takeovers after a fleet of workers has died.

import pg from 'pg'
import { key, newId } from '../../src/core/key.ts'
import type { Key } from '../../src/core/key.ts'
import { createOnce } from '../../src/core/once.ts'
import type { ClaimRequest, Store } from '../../src/core/store.ts'
import { postgresStore } from '../../src/stores/postgres.ts'
import { size } from '../plan.ts'
import { report } from '../report.ts'
import { startPostgres } from '../servers.ts'
import { fresh, outcome, places } from './places.ts'
import type { Place } from './places.ts'
import { p99During } from './windows.ts'

const callers = 16
const windowMs = 1_000

export async function benchBusyTimes(): Promise<void> {
  const { open, close } = places()
  try {
    for (const on of ['PostgreSQL', 'SQLite'] as const) await sweeping(on, await open(on))
    for (const on of ['PostgreSQL', 'Redis'] as const) await takeovers(on, await open(on))
  } finally {
    await close()
  }
  await periodSwitch()
}

async function sweeping(on: string, place: Place): Promise<void> {
  const expired = size(100_000, 20_000)
  let swept = 0
  const during = await p99During({
    windows: size(9, 5),
    windowMs,
    callers,
    call: () => fresh(place.once),
    prepare: async (next) => (next === 'disturbed' ? place.fill(expired, 'over') : undefined),
    async disturb(until) {
      while (!until.aborted) swept += await sweepOnce(place)
    },
  })
  if (swept === 0) throw new Error(`${on}: nothing was swept`)
  const what = `${on}, fresh calls during a sweep, c=${callers}`
  report({ id: 'growth', what: `${what}: p99 to a window without`, ...during.p99 })
  report({ id: 'growth', what: `${what}: p50 to a window without`, ...during.p50 })
}

async function sweepOnce({ store }: Place): Promise<number> {
  const { tombstoned, forgotten } = await store.sweep!({ limit: 1_000 })
  return tombstoned + forgotten
}

/** Entries that workers claimed and never settled, all asked for again at once. */
async function takeovers(on: string, { once, store }: Place): Promise<void> {
  const dead = size(2_000, 500)
  const request = await requestOf(store)
  let ids: string[] = []
  let taken = 0
  const take = async (id: string): Promise<void> => {
    const { replayed } = await once.run(key('storm', id), () => outcome, { fingerprint: 'bench' })
    if (replayed) throw new Error(`${on}: storm/${id} was replayed`)
    taken++
  }
  const during = await p99During({
    windows: size(9, 5),
    windowMs,
    callers,
    call: () => fresh(once),
    async prepare(next) {
      ids = Array.from({ length: next === 'disturbed' ? dead : 0 }, () => newId())
      const claim = { ...request, leaseMs: 1 }
      await Promise.all(ids.map((id) => store.claim(key('storm', id), { ...claim, token: crypto.randomUUID() })))
    },
    disturb: () => Promise.all(ids.map(take)),
  })
  if (taken === 0) throw new Error(`${on}: nothing was taken over`)
  const what = `${on}, fresh calls during ${dead.toLocaleString('en')} takeovers at once, c=${callers}`
  report({ id: 'growth', what: `${what}: p99 to a window without`, ...during.p99 })
  report({ id: 'growth', what: `${what}: p50 to a window without`, ...during.p50 })
}

/** What `once.run` asks a store for. */
async function requestOf(store: Store): Promise<ClaimRequest> {
  const { promise, resolve } = Promise.withResolvers<ClaimRequest>()
  const watched = Object.create(store, {
    claim: {
      value: (of: Key, request: ClaimRequest) => {
        resolve(request)
        return store.claim(of, request)
      },
    },
  }) as Store
  const once = createOnce({ store: watched, scope: 'storm' })
  await fresh(once)
  await once.close()
  return promise
}

/** With periods of a few seconds the switch comes often enough to be met. */
async function periodSwitch(): Promise<void> {
  const periodMs = 4_000
  const server = await startPostgres()
  const pool = new pg.Pool({ connectionString: await server.createDatabase(), max: 20 })
  try {
    const store = postgresStore({ pool, periodMs })
    await store.migrate()
    const once = createOnce({ store, scope: 'bench', sweepEveryMs: false, keepMs: periodMs, tombstoneMs: periodMs })
    const during = await p99During({
      windows: size(9, 5),
      windowMs,
      callers,
      call: () => fresh(once),
      async prepare(next) {
        for (let count = 0; count < 5; count++) await store.sweep({ limit: 1_000 })
        // Half a window before the switch, or as far from it as can be.
        await untilBefore(periodMs, next === 'disturbed' ? windowMs / 2 : (periodMs + windowMs) / 2)
      },
      disturb: async () => {},
    })
    report({
      id: 'growth',
      what: `PostgreSQL, fresh calls while one period ends and another begins, c=${callers}: p99 to a window without`,
      ...during.p99,
    })
    await once.close()
  } finally {
    await pool.end()
    await server.stop()
  }
}

function untilBefore(periodMs: number, aheadMs: number): Promise<void> {
  const waitMs = (2 * periodMs - (Date.now() % periodMs) - aheadMs) % periodMs
  return new Promise((resolve) => setTimeout(resolve, waitMs))
}

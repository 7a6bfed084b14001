// A till over a network that loses requests and replies, breaks answers off and delivers requests twice, at once and late. The process is
// replaced again and again, and the old one is not told: it goes on beside the new one. Whatever happens, a number stands for one request
// and has one effect, and what is pending in the end is finished under its own number. 300 seeds with
// ONCEONLY_LONG=1.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { createSessionClient, memoryKeys, retryBudget } from '../../src/client/client.ts'
import type { ClientOptions, SessionClient } from '../../src/client/client.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import { faultyFetch } from '../../src/testing/faulty-fetch.ts'
import { manualClock } from '../../src/testing/manual-clock.ts'
import type { ManualClock } from '../../src/testing/manual-clock.ts'
import { seededRandom } from '../../src/testing/seeded-random.ts'
import { freshSeed } from '../fresh-seed.ts'
import { isLong } from '../long-run.ts'
import { collisionsIn, openTillServer } from './till-server.ts'
import type { TillServer } from './till-server.ts'

const window = 8
const perProcess = 20
const processes = 6

interface Sold {
  readonly article: string
  readonly receipt: string
}

/** All sales of one process at once: as many as the window has room for are in flight. */
async function sellAll(client: SessionClient, articles: readonly string[]): Promise<Sold[]> {
  const sold = articles.map(async (article): Promise<Sold[]> => {
    try {
      const response = await client.fetch('/sales', { method: 'POST', body: article }, { operation: article })
      const receipt = await response.text()
      await response.settled()
      return [{ article, receipt }]
    } catch {
      // Another process has the numbers, or there is no answer yet: then it is pending, or was never sent.
      return []
    }
  })
  return (await Promise.all(sold)).flat()
}

async function run(
  seed: number,
  server: TillServer,
  clock: ManualClock,
): Promise<{ readonly sold: Sold[]; readonly faults: number }> {
  const random = seededRandom(seed)
  const keys = memoryKeys()
  const faultsOf = { drop: 0.1, loseReply: 0.15, reset: 0.05, duplicate: 0.2, delay: 0.2 }
  const network = faultyFetch((request) => server.fetch(request.url, request), { ...faultsOf, seed, clock })
  const start = (process: number, fetch: ClientOptions['fetch'] = network): SessionClient =>
    createSessionClient({
      url: 'https://shop.example',
      client: 'till-7',
      keys,
      fetch,
      clock,
      random: seededRandom(seed).fork(process),
      budget: retryBudget({ burst: 100_000, clock }),
    })
  const finish = async <T>(work: Promise<T>): Promise<T> => {
    let hasEnded = false
    const ending = work.finally(() => (hasEnded = true))
    ending.catch(() => {})
    while (!hasEnded) await clock.advance(100)
    return ending
  }
  // Registered over a good network: a registration that arrives twice begins two sessions, and the first one is fenced.
  await finish(start(0, server.fetch).register())
  const under: Promise<Sold[]>[] = []
  const resumed: Sold[] = []
  const use = async (response: Response, { operation }: { readonly operation: string }): Promise<void> =>
    void resumed.push({ article: operation, receipt: await response.text() })
  for (let process = 1; process <= processes; process++) {
    const client = start(process)
    await finish(client.resume(use))
    const articles = Array.from({ length: perProcess }, (_, index) => `${process}/${index}`)
    under.push(sellAll(client, articles))
    // The next process starts in the middle of it.
    await clock.advance(random.integer(1, 300))
  }
  const sold = (await finish(Promise.all(under))).flat()
  network.heal()
  await network.idle()
  const last = start(processes + 1)
  expect((await finish(last.resume(use))).failed, `seed ${seed}`).toEqual([])
  expect(await last.pending()).toEqual([])
  return { sold: [...sold, ...resumed], faults: network.faults.length }
}

async function judge(seed: number, server: TillServer, clock: ManualClock): Promise<void> {
  const { sold, faults } = await run(seed, server, clock)
  expect(collisionsIn(server), `seed ${seed}`).toEqual([])
  const effects = server.effects.map(({ body }) => body)
  expect(effects.length, `seed ${seed}: a sale was booked twice`).toBe(new Set(effects).size)
  // Every effect was told to a caller, and every caller that was told has its effect.
  expect(new Set(sold.map(({ article }) => article)), `seed ${seed}`).toEqual(new Set(effects))
  for (const { article, receipt } of sold) expect(receipt).toBe(`receipt of ${article}`)
  console.log(`${effects.length} sales, ${server.sent.length} requests, ${faults} faults, seed ${seed}`)
  // A run that reached too little proves nothing.
  expect(effects.length).toBeGreaterThan(5)
  expect(faults).toBeGreaterThan(5)
}

const seeds = isLong ? Array.from({ length: 300 }, (_, index) => index + 1) : [1, 2, 3]

test.each([...seeds, freshSeed('session client') ?? 0])(
  'on memory, seed %i: a number has one request and one effect',
  async (seed) => {
    const clock = manualClock()
    await judge(seed, openTillServer({ store: memoryStore({ clock }), clock, window }), clock)
  },
  60_000,
)

test('on SQLite: a number has one request and one effect', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-till-'))
  const store = sqliteStore({ path: join(folder, 'tills.db') })
  const clock = manualClock()
  const server = openTillServer({ store, clock, window })
  await server.sessions.migrate()
  await judge(5, server, clock)
  store.close()
  rmSync(folder, { recursive: true })
}, 60_000)
